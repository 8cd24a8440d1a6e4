//! What a running job shows of itself, as policies and tuners read it: how long steps take, what wires carried, how long
//! each layer computed. Plain data with no clock of its own, the same on both clocks.
//!
//! How a worker comes by it: `program` makes layer times of what the training thread posts and waits for, `traffic` rates
//! of what wires carry, `flows` of what came from whom, `smoothing` takes out the noise, `meter` puts them together, `report` is
//! what workers tell each other, and `cadence` when. `noise` is about gradients instead of time, and `pace` says whether steps are
//! as fast as usual.

mod cadence;
mod flows;
mod meter;
mod noise;
mod pace;
mod program;
mod report;
mod smoothing;
mod traffic;

pub use cadence::{Cadence, FIRST_INTERVAL, LONGEST_INTERVAL};
pub use flows::Flows;
pub use meter::Meter;
pub use noise::{GradientNoise, GradientNorms};
pub use pace::{Pace, median};
pub use program::{Computed, Handed};
pub use report::{REPORT_BYTES, Report, TOLD_FLOWS, agree};
pub use smoothing::{SHARE_OF_NEWEST, Smoothed};
pub use traffic::{Came, Carried, Totals, Traffic};

use paceline_job::{Rank, Settings, ViewVersion};
use std::sync::Arc;

/// The tensors a job synchronises in every step, in the order in which the forward pass needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// In the order of the forward pass.
    pub tensors: Vec<TensorShape>,
    /// Whether what is needed first goes first; otherwise first come, first served.
    pub scheduled: bool,
}

/// One tensor that is synchronised in every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Under which it is posted.
    pub name: Arc<str>,
    /// Its size.
    pub bytes: u64,
}

/// What one worker saw of one step, or the smoothed values of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// From the beginning of the step to that of the next, in seconds.
    pub seconds: f64,
    /// Bytes a second that left while something was on its way out; 0 where too little was sent to tell.
    pub upload: f64,
    /// Bytes a second that came while something was on its way in; 0 where nothing was received.
    pub download: f64,
    /// Seconds of the step that belong neither to a layer nor to waiting: data that is loaded, updates after the backward
    /// pass.
    pub rest: f64,
    /// Computation of each tensor's layer, in the order of [`JobShape::tensors`].
    pub layers: Vec<LayerMetrics>,
    /// What came from single workers, those that sent most first; at most [`TOLD_FLOWS`].
    pub flows: Vec<FlowMetrics>,
}

/// What comes from one worker to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowMetrics {
    /// The sender.
    pub from: Rank,
    /// All bytes that came since the last report: what is said of little says little.
    pub all: f64,
    /// Those of them that came for long enough to tell how fast.
    pub bytes: f64,
    /// Seconds in which these were on their way.
    pub seconds: f64,
}

impl FlowMetrics {
    /// Bytes a second while something was on its way.
    pub fn rate(&self) -> f64 {
        self.bytes / self.seconds
    }
}

/// Computation of one layer in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerMetrics {
    /// Seconds of its forward pass, without waiting for its parameters.
    pub forward: f64,
    /// Seconds of its backward pass.
    pub backward: f64,
}

/// What all workers saw of a step: the same on every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct JobMetrics {
    /// The last step that is in it.
    pub step: u64,
    /// In force during that step.
    pub view: ViewVersion,
    /// Of that view.
    pub settings: Settings,
    /// What the job synchronises.
    pub shape: Arc<JobShape>,
    /// By rank.
    pub workers: Vec<WorkerMetrics>,
}

impl JobMetrics {
    /// Steps a second: the slowest worker paces all.
    pub fn speed(&self) -> f64 {
        let slowest = self.workers.iter().map(|worker| worker.seconds).fold(0.0, f64::max);
        if slowest > 0.0 { slowest.recip() } else { 0.0 }
    }
}
