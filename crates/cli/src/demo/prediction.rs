//! What the replay of the recorded steps says, held against what the very same run measured: the steps themselves, and stages
//! that were measured under other conditions. It predicts from the trace alone.

use crate::scenario::{self, ConditionArgs};
use anyhow::{Context, Result};
use paceline_job::Rate;
use paceline_replay::graph::{Change, Network, Scenario, play};
use paceline_tune::Candidate;
use serde::Serialize;
use std::path::Path;

/// Steps at the beginning of a replay that do not count.
const SKIPPED: usize = 1;

/// A step, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    pub predicted_ms: f64,
    pub measured_ms: f64,
}

impl Prediction {
    /// By which share of what was measured it is off.
    pub fn error(&self) -> f64 {
        self.predicted_ms / self.measured_ms - 1.0
    }
}

/// A stage under other conditions than those of the trace, and what was measured of it.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// What was in force.
    pub settings: Candidate,
    /// Whether tensors left as they came.
    pub first_come: bool,
    /// A machine whose link was slower, and what it carried.
    pub slow: Option<(String, Rate)>,
    pub measured_ms: f64,
}

/// Of the recorded steps, and of each stage elsewhere.
pub fn predict(trace: &Path, elsewhere: &[Elsewhere]) -> Result<(Prediction, Vec<Prediction>)> {
    let loaded = scenario::load(trace, &ConditionArgs::default())?;
    let counted = &loaded.job.measured[SKIPPED.min(loaded.job.measured.len())..];
    let measured_ms = counted.iter().sum::<u64>() as f64 / counted.len().max(1) as f64 / 1e6;
    let step = |scenario: &Scenario, network: &Network| {
        let played = play(&scenario.graph, network).context("the trace cannot be played")?;
        anyhow::Ok(played.step_ms(SKIPPED))
    };
    let scenario = &loaded.scenario;
    let predicted_ms = step(scenario, &scenario.network())?;
    let predictions = elsewhere.iter().map(|stage| {
        let (scenario, network) = stage.applied_to(scenario);
        let predicted_ms = step(&scenario, &network)?;
        Ok(Prediction { predicted_ms, measured_ms: stage.measured_ms })
    });
    Ok((Prediction { predicted_ms, measured_ms }, predictions.collect::<Result<_>>()?))
}

impl Elsewhere {
    fn applied_to(&self, scenario: &Scenario) -> (Scenario, Network) {
        let mut scenario = scenario.clone();
        scenario.settings = self.settings.settings(&scenario.settings);
        if self.first_come {
            scenario = scenario.with(&Change::FirstCome);
        }
        let mut network = scenario.network();
        if let (Network::Engines { topology, .. }, Some((machine, rate))) =
            (&mut network, &self.slow)
        {
            let slow = topology.hosts.iter_mut().filter(|host| host.name == *machine);
            slow.for_each(|host| host.link.rate = *rate);
        }
        (scenario, network)
    }
}
