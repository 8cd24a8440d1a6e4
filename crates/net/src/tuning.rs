//! A policy at work: a thread of one worker, which shows it metrics as they come, proposes what it answers and tells it what
//! became of that. The training never waits for it.

use crate::{
    control::Proposer,
    error::{NetError, Result},
    metering::Metering,
    runtime::trace::stand_back,
    worker::Worker,
};
use paceline_sync::{agreement::Change, policy::Policy};
use std::{sync::Arc, time::Duration};

/// A proposal is decided within a few steps, or something is wrong.
const DECISION: Duration = Duration::from_secs(60);

impl Worker {
    /// Let a policy watch the job and propose settings, until this worker leaves. One worker of a job does that, once; where
    /// it does not measure, nothing happens.
    pub fn tune(&self, policy: Box<dyn Policy>) -> Result<()> {
        let Some(metering) = self.metering().cloned() else { return Ok(()) };
        let proposer = self.proposer();
        std::thread::Builder::new()
            .name("paceline-tune".to_string())
            .spawn(move || watch(&metering, &proposer, policy))
            .map(drop)
            .map_err(NetError::from)
    }
}

/// Until there will be no metrics any more. Nobody waits for the end: a policy may be in the middle of a thought.
fn watch(metering: &Arc<Metering>, proposer: &Proposer, mut policy: Box<dyn Policy>) {
    stand_back();
    let mut seen = None;
    while let Some(metrics) = metering.later(seen) {
        seen = Some(metrics.step);
        if proposer.is_paused() {
            continue;
        }
        let Some(proposal) = policy.observe(&metrics) else { continue };
        let decided = proposer
            .propose(Change::Settings(proposal.settings.clone()))
            .map(|open| open.wait(DECISION));
        let problem = match decided {
            Ok(Some(Ok(_))) => continue,
            Ok(Some(Err(error))) | Err(error) => error.to_string(),
            Ok(None) => format!("it was not decided within {} s", DECISION.as_secs()),
        };
        policy.refused(&proposal, &problem);
    }
}
