//! What the meta-network is told of a job: AutoByte's runtime metrics, as plain numbers. Where they come from is not known
//! here.

use serde::{Deserialize, Serialize};

/// Strategies that the network has an embedding of, by their place. Weights rely on the order.
pub const STRATEGIES: [&str; 7] = [
    "auto",
    "ring",
    "double_tree",
    "hierarchical",
    "parameter_server",
    "recursive_doubling",
    "one_shot",
];

/// A job, and the conditions it runs under.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// In the order of the forward pass.
    pub tensors: Vec<TensorConditions>,
    /// By rank.
    pub workers: Vec<WorkerConditions>,
    /// How many hosts the workers sit on.
    pub hosts: usize,
    /// Seconds that a message between hosts takes besides its bytes.
    pub latency: f64,
    /// Whether a layer's forward pass waits for its own tensors only.
    pub crosses_step: bool,
    /// What the job does now, and how fast: what is predicted, is predicted from there.
    pub seen: Option<Seen>,
}

/// One tensor, and the computation of its layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorConditions {
    /// Its size.
    pub bytes: f64,
    /// Seconds of the layer's forward pass, the mean of all workers.
    pub forward: f64,
    /// Seconds of the layer's backward pass, the mean of all workers.
    pub backward: f64,
    /// Seconds of both on the worker that takes longest.
    pub slowest: f64,
}

/// One worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerConditions {
    /// Bytes a second that leave it.
    pub upload: f64,
    /// Bytes a second that come to it.
    pub download: f64,
    /// Seconds that it computes in a step.
    pub computation: f64,
}

/// What can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// By its place in [`STRATEGIES`].
    pub strategy: usize,
    /// Bytes of the largest chunk.
    pub partition: f64,
    /// Bytes in flight; infinite for no limit.
    #[serde(with = "unlimited")]
    pub credit: f64,
}

/// A choice and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// In force.
    pub choice: Choice,
    /// Of a step.
    pub seconds: f64,
}

impl Conditions {
    /// Bytes that are synchronised in a step.
    pub fn bytes(&self) -> f64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Seconds of computation of the worker that takes longest.
    pub fn computation(&self) -> f64 {
        self.workers.iter().map(|worker| worker.computation).fold(0.0, f64::max)
    }

    /// The slowest direction of any worker's wire, in bytes a second.
    pub fn rate(&self) -> f64 {
        let both = self.workers.iter().flat_map(|worker| [worker.upload, worker.download]);
        both.fold(f64::INFINITY, f64::min)
    }

    /// Seconds that a step's bytes take on the slowest wire, if every host sends and receives only what it must.
    pub fn transfer(&self) -> f64 {
        let hosts = self.hosts.max(1) as f64;
        2.0 * (hosts - 1.0) / hosts * self.bytes() / self.rate()
    }

    /// What no choice can be much faster than: predictions are relative to it. `None` if these are no conditions of a
    /// job that can be predicted, or not all of it are numbers.
    pub fn reference(&self) -> Option<f64> {
        let reference = self.computation().max(self.transfer());
        let known = self.rate() > 0.0 && self.latency >= 0.0 && self.bytes() > 0.0;
        (known && reference.is_finite() && reference > 0.0).then_some(reference)
    }
}

/// JSON has no infinity: no limit is written as nothing.
mod unlimited {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(credit: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        credit.is_finite().then_some(*credit).serialize(serializer)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}
