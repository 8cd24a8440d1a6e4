//! What a job's metrics do not show and its view does: who sits where, and what messages cost besides their bytes.

use paceline_job::{Link, Measured, View};
use paceline_sync::strategy::CostModel;
use std::time::Duration;

/// Where a job runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Surroundings {
    /// Of each worker, by rank.
    pub hosts: Vec<String>,
    /// What workers measured when they met; `auto` decides by it, whatever wires carry now.
    pub met: Measured,
    /// What a message between hosts takes besides its bytes.
    pub latency: Duration,
    /// Between workers of one host.
    pub memory: Link,
    /// Whether a layer's forward pass waits for its own tensors only; otherwise a step ends when all are there.
    pub crosses_step: bool,
}

impl Surroundings {
    /// As a view says, as far as its workers measured it, of a job whose tensors cross the step.
    pub fn of(view: &View) -> Surroundings {
        let usual = CostModel::usual(&view.settings);
        Surroundings {
            hosts: view.workers.iter().map(|worker| worker.host.clone()).collect(),
            met: view.measured,
            latency: view.measured.wire.unwrap_or(usual.wire).latency,
            memory: view.measured.memory.unwrap_or(usual.memory),
            crosses_step: true,
        }
    }
}
