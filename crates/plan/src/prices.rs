//! What it takes to synchronise one tensor by itself, by its length: a partial replay of nothing but that tensor.

use crate::{candidate::Candidate, error::PlanError, task::Task};
use paceline_job::{
    Dtype,
    graph::layered::{LayerTimes, Layered},
    trace::{Layer, Tensor},
};

/// Lengths that are replayed, in bytes: what lies between is on a line.
const FIRST: u64 = 4 << 10;
const FACTOR: u64 = 4;
/// Beyond so many chunks, each further one takes as long as the one before.
const CHUNKS: u64 = 64;

/// Nanoseconds by bytes, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prices(Vec<(f64, f64)>);

impl Prices {
    /// Under the settings of a candidate.
    pub fn of(task: &Task, candidate: &Candidate) -> Result<Prices, PlanError> {
        let most = task.bytes().min(candidate.partition.0.saturating_mul(CHUNKS)).max(FIRST);
        let mut points = Vec::new();
        let mut bytes = FIRST;
        // At most 32 turns: lengths are 64 bits and grow fourfold.
        while bytes < most {
            points.push((bytes as f64, price(task, candidate, bytes)?));
            bytes = bytes.saturating_mul(FACTOR);
        }
        points.push((most as f64, price(task, candidate, most)?));
        Ok(Prices(points))
    }

    /// Nanoseconds for so many bytes.
    pub fn time(&self, bytes: f64) -> f64 {
        let points = &self.0;
        let after = points.partition_point(|(length, _)| *length < bytes);
        let last = points.len() - 1;
        if last == 0 {
            return points[0].1 * (bytes / points[0].0).max(1.0);
        }
        let (one, other) = (points[after.clamp(1, last) - 1], points[after.clamp(1, last)]);
        let slope = (other.1 - one.1) / (other.0 - one.0);
        (one.1 + slope * (bytes - one.0)).max(0.0)
    }
}

fn price(task: &Task, candidate: &Candidate, bytes: u64) -> Result<f64, PlanError> {
    let dtype = Dtype::F32;
    let elements = bytes / dtype.size() as u64;
    let tensors = vec![Tensor { name: "one".into(), elements, dtype }];
    let layers = vec![Layer { name: "one".into(), tensors, activation_bytes: 0 }];
    let workers = task.scenario.graph.workers.iter();
    let hosts = workers.map(|worker| worker.host.clone()).collect();
    let one = Layered::alike(layers, &[LayerTimes::default()], hosts, 1);
    let graph = Layered { crosses_step: false, ..one }.graph();
    let scenario = task.scenario(graph, candidate.settings(&task.scenario.settings));
    Ok(scenario.play()?.step_ms(0) * 1e6)
}
