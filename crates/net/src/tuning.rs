//! A policy at work: a thread of one worker, which shows it metrics as they come, proposes what it answers and tells it what
//! became of that. The training never waits for it.

use crate::{
    control::Proposer,
    error::{NetError, Result},
    metering::Metering,
    runtime::trace::stand_back,
    worker::Worker,
};
use paceline_job::{View, WorkerId};
use paceline_sync::{agreement::Change, policy::Policy};
use std::{sync::Arc, time::Duration};

/// Why policies of this worker have been shown nothing: do what it says, where the job is to be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwatched {
    /// Let all workers measure.
    #[error("workers do not measure (PACELINE_METRICS=off): unset it on all workers")]
    NotMeasuring,
    /// Start more workers.
    #[error("a job of one worker synchronises nothing: start more workers")]
    Alone,
    /// Let it train for longer, by steps that the runtime hears of.
    #[error(
        "no metrics were ever seen: they come after some steps of an optimizer, and only where PACELINE_METRICS=off is set on no worker"
    )]
    NothingSeen,
}

/// A proposal is decided within a few steps, or something is wrong.
const DECISION: Duration = Duration::from_secs(60);

impl Worker {
    /// Let a policy watch the job and propose settings, until this worker leaves. All workers call it, once for each policy; that
    /// of the first in the view is asked. Whenever others have come or gone it is made anew, by whoever is the first then,
    /// if it has something to do there. Where workers do not measure, or one is alone, nothing happens;
    /// [`Worker::unwatched`] tells.
    pub fn tune(
        &self,
        make: impl FnMut(&View) -> Option<Box<dyn Policy>> + Send + 'static,
    ) -> Result<()> {
        let Some(metering) = self.metering().cloned() else { return Ok(()) };
        let (view, proposer) = (self.view(), self.proposer());
        let me = view.workers[self.rank().index()].id;
        if view.membership.is_fixed() && !is_first(me, &view) {
            return Ok(());
        }
        std::thread::Builder::new()
            .name("paceline-tune".to_string())
            .spawn(move || watch(me, &metering, &proposer, make))
            .map(drop)
            .map_err(NetError::from)
    }

    /// Why policies have been shown nothing so far; `None` where something was.
    pub fn unwatched(&self) -> Option<Unwatched> {
        let view = self.view();
        if self.metering().is_none() {
            Some(Unwatched::NotMeasuring)
        } else if view.membership.is_fixed() && view.size() == 1 {
            Some(Unwatched::Alone)
        } else {
            self.metrics().is_none().then_some(Unwatched::NothingSeen)
        }
    }
}

fn is_first(me: WorkerId, view: &View) -> bool {
    view.ids().next() == Some(me)
}

/// Until there will be no metrics any more. Nobody waits for the end: a policy may be in the middle of a thought.
fn watch(
    me: WorkerId,
    metering: &Arc<Metering>,
    proposer: &Proposer,
    mut make: impl FnMut(&View) -> Option<Box<dyn Policy>>,
) {
    stand_back();
    let mut seen = None;
    let (mut known, mut policy) = (None::<Arc<View>>, None);
    while let Some((metrics, view)) = metering.later(seen) {
        seen = Some(metrics.step);
        if known.as_ref().is_some_and(|known| !known.ids().eq(view.ids())) {
            (known, policy) = (None, None);
        }
        if proposer.is_paused() || view.size() == 1 || !is_first(me, &view) {
            continue;
        }
        if known.is_none() {
            policy = make(&view);
            known = Some(view);
        }
        let Some(policy) = &mut policy else { continue };
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
