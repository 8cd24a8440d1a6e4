//! Policies in a program: what a worker says of each step, what all know when that is summed over workers, and what is followed
//! between which two steps. So whatever policies read is the same on all workers at the same step, and whatever they change, all
//! change at once. How sums come about, and what time it is, whoever drives this knows.

mod memory;

pub use memory::MemoryError;

use crate::{
    metrics::{GradientNoise, GradientNorms, JobMetrics, Pace},
    policy::{Moment, Policy, Wishes},
};
use memory::{Observed, Wanted};
use paceline_job::{Settings, StrategyChoice};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Under which workers sum what they say. It is as long as a packet and ahead of tensors ([`URGENCY`]), so that it is over in the next
/// step.
pub const EXCHANGE: &str = "paceline adaptation";

/// See [`EXCHANGE`].
pub const URGENCY: i64 = -1;

/// The share of the newest step in the throughput that policies see.
const NEWEST: f64 = 0.2;

/// Metrics that may wait until all workers have heard of them.
const MOST_METRICS: usize = 4;

/// What a worker says before the numbers that the program reports, each with its count.
const FIELDS: usize = 14;

/// Names of numbers that are always known: the program's loss, and what policies vote.
const LOSS: &str = "loss";
const VOTE: &str = "vote";

/// Where a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Before the first step.
    Training,
    /// When there is no further step.
    Trained,
    /// An epoch begins.
    Epoch,
    /// An epoch is over.
    EpochOver,
    /// A step begins.
    Step,
    /// A step is over.
    StepOver,
}

/// A worker among others, when a hook is called.
#[derive(Clone, Copy, Debug)]
pub struct Company<'a> {
    /// Its rank.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// In force.
    pub settings: &'a Settings,
}

/// What policies want at once, and not after all have heard of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Worker 0 is to propose these.
    pub settings: Option<Settings>,
    /// Why this worker is to leave.
    pub leaves: Option<String>,
    /// Why, as policies say.
    pub reasons: Vec<String>,
}

/// What is otherwise from the step on that begins, on all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// How workers stay together: the program's to follow.
    pub mode: Option<String>,
    /// So many workers are wanted.
    pub size: Option<usize>,
}

/// See the file's first paragraph.
pub struct Adaptation {
    policies: Vec<Box<dyn Policy>>,
    names: Vec<String>,
    step: u64,
    epoch: u64,
    batch: Option<u64>,
    learning_rate: f64,
    mode: String,
    pace: Pace,
    noise: GradientNoise,
    throughput: Option<f64>,
    observed: Observed,
    metrics: Option<Arc<JobMetrics>>,
    /// At most [`MOST_METRICS`].
    heard: VecDeque<Arc<JobMetrics>>,
    /// Sums and counts of what the program reported in this step.
    reported: BTreeMap<String, (f64, f64)>,
    /// Squared norms of this worker's gradient and of the average.
    norms: Option<(f64, f64)>,
    own_seconds: f64,
    speakers: usize,
    /// Not said yet.
    wanted: Wanted,
    /// Heard, and not followed yet.
    agreed: Wanted,
}

impl Adaptation {
    /// All workers have the same policies in the same order, and begin with the same batch of one worker, if the program has any.
    pub fn new(policies: Vec<Box<dyn Policy>>, batch: Option<u64>) -> Adaptation {
        let mut names = vec![LOSS.to_string(), VOTE.to_string()];
        for name in policies.iter().flat_map(|policy| policy.metrics()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Adaptation {
            policies,
            names,
            step: 0,
            epoch: 0,
            batch,
            learning_rate: 1.0,
            mode: String::new(),
            pace: Pace::default(),
            noise: GradientNoise::default(),
            throughput: None,
            observed: Observed::default(),
            metrics: None,
            heard: VecDeque::new(),
            reported: BTreeMap::new(),
            norms: None,
            own_seconds: 0.0,
            speakers: 0,
            wanted: Wanted::default(),
            agreed: Wanted::default(),
        }
    }

    /// Samples of one worker's step.
    pub fn batch(&self) -> Option<u64> {
        self.batch
    }

    /// By what the program's learning rate is multiplied.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// How workers stay together, as policies have it; empty if none said so.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// A number of this worker's step; `loss`, or one that a policy reads. Others are passed over.
    pub fn report(&mut self, name: &str, value: f64) {
        if self.names.iter().any(|known| known == name) {
            let (sum, count) = self.reported.entry(name.to_string()).or_default();
            (*sum, *count) = (*sum + value, *count + 1.0);
        }
    }

    /// Squared norms, of this worker's gradient of a step and of the average over workers.
    pub fn report_norms(&mut self, own: f64, averaged: f64) {
        self.norms = Some((own, averaged));
    }

    /// What this worker says of the step that is over, to be summed over all.
    pub fn say(
        &mut self,
        seconds: f64,
        metrics: Option<Arc<JobMetrics>>,
        company: Company<'_>,
    ) -> Vec<f64> {
        if company.size != self.speakers {
            // Steps of other workers say nothing of these.
            self.speakers = company.size;
            self.pace.expect(None);
        }
        self.own_seconds = seconds;
        let slowed = self.pace.slowed(seconds);
        if let Some(metrics) =
            metrics.filter(|it| self.heard.back().is_none_or(|l| l.step < it.step))
        {
            self.heard.push_back(metrics);
            let extra = self.heard.len().saturating_sub(MOST_METRICS);
            self.heard.drain(..extra);
        }
        let latest = self.heard.back().map_or(0.0, |metrics| metrics.step as f64);
        let norms = self.norms.take();
        let (own, averaged) = norms.unwrap_or_default();
        let wanted = std::mem::take(&mut self.wanted);
        let wanted = if company.rank == 0 { wanted } else { Wanted::default() };
        let reported = std::mem::take(&mut self.reported);
        let fields: [f64; FIELDS] = [
            1.0,
            seconds,
            own,
            averaged,
            f64::from(u8::from(norms.is_some())),
            self.batch.map_or(0.0, |batch| 1.0 / batch as f64),
            f64::from(u8::from(slowed == Some(true))),
            f64::from(u8::from(slowed.is_some())),
            latest,
            latest * latest,
            wanted.batch.unwrap_or(0) as f64,
            wanted.learning_rate.unwrap_or(0.0),
            wanted.size.unwrap_or(0) as f64,
            wanted.mode.as_deref().and_then(memory::number_of_mode).unwrap_or(0.0),
        ];
        let of = |name: &String| reported.get(name).copied().unwrap_or_default();
        let rest = self.names.iter().map(of).flat_map(|(sum, count)| [sum, count]);
        fields.into_iter().chain(rest).collect()
    }

    /// What all workers said of a step, summed: the same everywhere. Anything else than what is said so is passed over.
    pub fn hear(&mut self, sums: &[f64]) {
        let Some((fields, reported)) = sums.split_first_chunk::<FIELDS>() else { return };
        let [speakers, seconds, own, averaged, measured, inverse, slowed, judged, ..] = *fields;
        let [.., latest, squares, batch, learning_rate, size, mode] = *fields;
        if speakers < 1.0 || reported.len() != 2 * self.names.len() {
            return;
        }
        let (workers, mean) = (speakers as usize, |sum: f64| sum / speakers);
        if workers > 1 && measured == speakers {
            let (contributed, inverse_batch) = (mean(own), mean(inverse));
            let averaged = mean(averaged);
            self.noise.add(GradientNorms { workers, contributed, averaged, inverse_batch });
        }
        let (pairs, _) = reported.as_chunks::<2>();
        let mean_of = |[sum, count]: &[f64; 2]| (*count > 0.0).then(|| sum / count);
        self.observed = Observed {
            seconds: Some(mean(seconds)),
            reported: pairs.iter().map(mean_of).collect(),
            interference: (judged > 0.0).then(|| slowed / judged),
        };
        if seconds > 0.0 {
            let samples = self.batch.map_or(1.0, |batch| speakers * batch as f64);
            let speed = samples / mean(seconds);
            let before = self.throughput.unwrap_or(speed);
            self.throughput = Some(before + NEWEST * (speed - before));
        }
        // All workers have the same latest metrics if and only if the mean of squares is the square of the mean.
        if latest > 0.0 && mean(squares) == mean(latest) * mean(latest) {
            let known = self.heard.iter().find(|it| it.step as f64 == mean(latest));
            self.metrics = known.cloned().or(self.metrics.take());
        }
        let some = |value: f64| (value > 0.0).then_some(value);
        self.agreed = Wanted {
            batch: some(batch).map(|batch| batch as u64),
            learning_rate: some(learning_rate),
            size: some(size).map(|size| size as usize),
            mode: memory::mode_of_number(mode).map(str::to_string),
        };
    }

    /// The next step begins: do what was agreed, on all workers between the same two steps.
    pub fn follow(&mut self) -> Followed {
        self.step += 1;
        let Wanted { batch, learning_rate, size, mode } = std::mem::take(&mut self.agreed);
        if let Some(batch) = batch.filter(|batch| Some(*batch) != self.batch) {
            // Steps of another length say nothing of these.
            (self.batch, self.throughput) = (Some(batch), None);
            self.pace.expect(None);
        }
        self.learning_rate = learning_rate.unwrap_or(self.learning_rate);
        if let Some(mode) = &mode {
            self.mode.clone_from(mode);
        }
        Followed { mode, size }
    }

    /// An epoch begins.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Call a hook of all policies.
    pub fn call(&mut self, edge: Edge, company: Company<'_>) -> Asked {
        let moment = self.moment(company);
        let mut asked = Asked::default();
        for policy in &mut self.policies {
            let mut wishes = Wishes::default();
            match edge {
                Edge::Training => policy.before_train(&moment, &mut wishes),
                Edge::Trained => policy.after_train(&moment, &mut wishes),
                Edge::Epoch => policy.before_epoch(&moment, &mut wishes),
                Edge::EpochOver => policy.after_epoch(&moment, &mut wishes),
                Edge::Step => {
                    if let Some(vote) = policy.vote(self.own_seconds) {
                        let (sum, count) = self.reported.entry(VOTE.to_string()).or_default();
                        (*sum, *count) = (*sum + vote, *count + 1.0);
                    }
                    asked.leaves = policy.leaves().or(asked.leaves);
                    policy.before_step(&moment, &mut wishes);
                }
                Edge::StepOver => policy.after_step(&moment, &mut wishes),
            }
            let Wishes { strategy, partition, credit, reason, .. } = &mut wishes;
            if strategy.is_some() || partition.is_some() || credit.is_some() {
                let settings = asked.settings.get_or_insert_with(|| company.settings.clone());
                if let Some(strategy) = strategy.take() {
                    settings.strategy = StrategyChoice(strategy);
                }
                settings.partition = partition.unwrap_or(settings.partition);
                settings.credit = credit.unwrap_or(settings.credit);
            }
            if !reason.is_empty() {
                asked.reasons.push(std::mem::take(reason));
            }
            self.wanted.add(wishes);
        }
        asked
    }

    /// What worker 0 proposed will not be in force.
    pub fn refuse(&mut self, proposal: &crate::policy::Proposal, reason: &str) {
        for policy in &mut self.policies {
            policy.refused(proposal, reason);
        }
    }

    fn moment(&self, company: Company<'_>) -> Moment {
        let Company { rank, size, settings } = company;
        let Observed { seconds, reported, interference } = &self.observed;
        let named = self.names.iter().cloned().zip(reported);
        let mut means: BTreeMap<String, f64> =
            named.filter_map(|(name, mean)| Some((name, (*mean)?))).collect();
        let (loss, vote) = (means.remove(LOSS), means.remove(VOTE));
        Moment {
            rank,
            step: self.step,
            epoch: self.epoch,
            size,
            batch: self.batch,
            learning_rate: self.learning_rate,
            seconds: *seconds,
            throughput: self.throughput,
            metrics: self.metrics.clone(),
            interference: *interference,
            loss,
            squared_norm: self.noise.squared_norm(),
            variance: self.noise.variance(),
            reported: means,
            vote,
            strategy: settings.strategy.0.clone(),
            partition: Some(settings.partition),
            credit: Some(settings.credit),
            mode: self.mode.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
