//! Who changes a running job, as the runtime knows it: something that is shown what the job does and at times answers with a
//! wish. How it comes to one, and how the workers agree on it, is not known here.

use crate::metrics::JobMetrics;
use paceline_job::{ByteSize, Settings};
use std::{collections::BTreeMap, sync::Arc};

/// Ways to stay together, in one order on all workers: they tell each other a number. What they are is the training program's.
pub const MODES: [&str; 6] =
    ["synchronous", "averaging", "pairs", "groups", "local", "asynchronous"];

/// There is no such way to stay together. Use one of those listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no mode `{0}`; choose one of {names}", names = MODES.join(", "))]
pub struct UnknownMode(pub String);

/// Refuse what is no way to stay together.
pub fn check_mode(name: &str) -> Result<(), UnknownMode> {
    if MODES.contains(&name) { Ok(()) } else { Err(UnknownMode(name.to_string())) }
}

/// Settings that somebody wants to be in force. They are once every worker has promised to switch between the same two steps, and
/// [`JobMetrics::settings`] says so; until then, and if they are refused, those of the view before them are.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// All of them, also those that stay as they are.
    pub settings: Settings,
    /// Why, in one sentence for logs.
    pub reason: String,
}

/// What a job shows at the edge of a step: but for the rank the same on every worker at that edge. What is measured is of a step
/// that all workers have heard of, two before this one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// This worker.
    pub rank: usize,
    /// The step that begins or is over.
    pub step: u64,
    /// The epoch it is in.
    pub epoch: u64,
    /// How many workers there are.
    pub size: usize,
    /// Samples of one worker's step; `None` if the program did not say.
    pub batch: Option<u64>,
    /// The factor on the program's learning rate that is in force.
    pub learning_rate: f64,
    /// How long a step took, on average over workers.
    pub seconds: Option<f64>,
    /// Samples a second of all workers, smoothed over some steps; steps a second, if nobody says how large a batch is.
    pub throughput: Option<f64>,
    /// Times of layers and rates of links, of the last step that all workers have them of.
    pub metrics: Option<Arc<JobMetrics>>,
    /// The share of the workers whose steps are slower than usual, by [`crate::metrics::Pace`].
    pub interference: Option<f64>,
    /// The mean of workers' losses, if they said.
    pub loss: Option<f64>,
    /// The squared norm of the gradient without its noise.
    pub squared_norm: Option<f64>,
    /// The variance of one sample's gradient.
    pub variance: Option<f64>,
    /// Means over workers of other numbers that the program reports: those that [`Policy::metrics`] of any policy names.
    pub reported: BTreeMap<String, f64>,
    /// The mean of what [`Policy::vote`] said on each worker.
    pub vote: Option<f64>,
    /// The strategy in force.
    pub strategy: String,
    /// How tensors are cut, and how much is on its way, in force.
    pub partition: Option<ByteSize>,
    /// See `partition`.
    pub credit: Option<ByteSize>,
    /// How workers stay together; empty if nobody says.
    pub mode: String,
}

impl Moment {
    /// Samples of a step of all workers.
    pub fn global_batch(&self) -> Option<u64> {
        self.batch.map(|batch| batch * self.size as u64)
    }

    /// The gradient noise scale, in samples.
    pub fn noise_scale(&self) -> Option<f64> {
        let (squared, variance) = (self.squared_norm?, self.variance?);
        (squared > 0.0).then(|| (variance / squared).max(0.0))
    }
}

/// What a policy wants to be otherwise. Workers follow all of it between the same two steps, but for the size and the settings
/// (strategy, partition, credit), which take an agreement of their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// Samples of one worker's step.
    pub batch: Option<u64>,
    /// A factor on the program's learning rate.
    pub learning_rate: Option<f64>,
    /// Workers.
    pub size: Option<usize>,
    /// How all-reduces are programmed.
    pub strategy: Option<String>,
    /// How large the parts are that tensors are sent in.
    pub partition: Option<ByteSize>,
    /// How much may be on its way at once.
    pub credit: Option<ByteSize>,
    /// How workers stay together, by the name that programs call it.
    pub mode: Option<String>,
    /// Why, in one sentence for logs.
    pub reason: String,
}

/// What a policy is to go on from cannot be used. Let it begin anew, or restore what a policy of the same kind and version remembered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what policy {policy} remembered cannot be used: {problem}")]
pub struct StateError {
    /// Which one was to go on.
    pub policy: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// Watches a job and changes it, in one of two ways.
///
/// Settings are a matter of thought: one worker shows [`Policy::observe`] metrics, on a thread that stands back behind the
/// training, so it may take its time. Metrics that come meanwhile are left out, only the latest are shown next. It may
/// neither sleep nor assume that steps come one by one.
///
/// The other hooks are called between steps, on every worker with the same arguments; the job waits for them.
pub trait Policy: Send {
    /// What the job shows now. `None`: leave it as it is.
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let _ = metrics;
        None
    }

    /// Its last proposal will not be in force, because of `reason`.
    fn refused(&mut self, proposal: &Proposal, reason: &str) {
        let _ = (proposal, reason);
    }

    /// Before the first step.
    fn before_train(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let _ = (moment, wishes);
    }

    /// When training is over.
    fn after_train(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let _ = (moment, wishes);
    }

    /// An epoch begins.
    fn before_epoch(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let _ = (moment, wishes);
    }

    /// An epoch is over.
    fn after_epoch(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let _ = (moment, wishes);
    }

    /// A step begins.
    fn before_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let _ = (moment, wishes);
    }

    /// A step is over.
    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let _ = (moment, wishes);
    }

    /// Names of numbers of the program's own that it reads ([`Moment::reported`]).
    fn metrics(&self) -> Vec<String> {
        Vec::new()
    }

    /// What it remembers, for checkpoints and for workers that come later; `None` if it goes by nothing but what it is shown.
    fn state(&self) -> Option<String> {
        None
    }

    /// Go on from what one of its kind remembered. The text comes from a file or from another worker: what cannot be is
    /// refused, and then nothing is changed.
    fn restore(&mut self, state: &str) -> Result<(), StateError> {
        let _ = state;
        Ok(())
    }

    /// Asked before each step, on each worker for itself: why this worker is to leave the job, if it is. Once is enough.
    fn leaves(&mut self) -> Option<String> {
        None
    }

    /// A number of this worker's own, of which all see the mean ([`Moment::vote`]): how long its last step took is only its own
    /// to know.
    fn vote(&mut self, own_seconds: f64) -> Option<f64> {
        let _ = own_seconds;
        None
    }
}

/// Leaves everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchanged;

impl Policy for Unchanged {}
