//! What workers tell each other of each step, what all know when that is summed, and what is followed between which two steps. So
//! what is read is the same on all workers at the same step, and whatever changes, changes for all at once. Who reads it and
//! wants something, what time it is, and how sums come about, others know.

use super::{Company, exact};
use crate::{
    metrics::{GradientNoise, GradientNorms, JobMetrics, Pace},
    policy::{MODES, Moment, Wishes},
};
use paceline_job::{ByteSize, Settings, StrategyChoice};
use serde::{Deserialize, Serialize};
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
const FIELDS: usize = 17;

/// The name of a number that is always known: the program's loss.
const LOSS: &str = "loss";

/// Another: what policies vote.
pub const VOTE: &str = "vote";

/// What all know of a step that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// Which one.
    pub step: u64,
    /// How long it took, on average over workers.
    #[serde(with = "exact")]
    pub seconds: f64,
    /// Means of what workers reported, as far as any did.
    #[serde(with = "exact")]
    pub reported: BTreeMap<String, f64>,
    /// The share of the workers whose steps are slower than usual.
    #[serde(with = "exact")]
    pub interference: Option<f64>,
}

/// What somebody wants all to follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Samples of one worker's step.
    pub batch: Option<u64>,
    /// A factor on the program's learning rate.
    #[serde(with = "exact")]
    pub learning_rate: Option<f64>,
    /// Workers.
    pub size: Option<usize>,
    /// How workers stay together.
    pub mode: Option<String>,
    /// Why; known on worker 0 only.
    pub reason: String,
}

impl Wanted {
    /// What is wanted besides; of two wishes the later counts.
    fn add(&mut self, later: Wanted) {
        self.batch = later.batch.or(self.batch);
        self.learning_rate = later.learning_rate.or(self.learning_rate);
        self.size = later.size.or(self.size);
        self.mode = later.mode.or(self.mode.take());
        if !later.reason.is_empty() {
            self.reason = later.reason;
        }
    }
}

/// Settings that somebody wants; what is left open stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsWish {
    /// How all-reduces are programmed.
    pub strategy: Option<StrategyChoice>,
    /// How large the parts are that tensors are sent in.
    pub partition: Option<ByteSize>,
    /// How much may be on its way at once.
    pub credit: Option<ByteSize>,
}

impl SettingsWish {
    fn on(&self, settings: &Settings) -> Settings {
        Settings {
            strategy: self.strategy.clone().unwrap_or_else(|| settings.strategy.clone()),
            partition: self.partition.unwrap_or(settings.partition),
            credit: self.credit.unwrap_or(settings.credit),
            ..settings.clone()
        }
    }
}

/// One worker's part in it.
pub struct Talk {
    names: Vec<String>,
    step: u64,
    /// The one that was last timed, and the one of which was said what is being summed.
    timed: Option<u64>,
    told: Option<u64>,
    /// As the program says, or as was followed.
    batch: Option<u64>,
    followed_batch: Option<u64>,
    /// By what the program's learning rate is multiplied.
    pub learning_rate: f64,
    /// How workers stay together; empty if nobody said so.
    pub mode: String,
    /// Of the program.
    pub epoch: u64,
    pub(super) pace: Pace,
    noise: GradientNoise,
    throughput: Option<f64>,
    observed: Option<Observed>,
    metrics: Option<Arc<JobMetrics>>,
    /// At most [`MOST_METRICS`].
    heard: VecDeque<Arc<JobMetrics>>,
    /// Sums and counts of what was reported in this step.
    reported: BTreeMap<String, (f64, f64)>,
    /// Squared norms of this worker's gradient, and its share of that of the average.
    norms: Option<(f64, f64)>,
    seconds: f64,
    slowed: Option<bool>,
    speakers: usize,
    /// Not said yet.
    wanted: Wanted,
    /// What was not said in the last step, since it was worker 0's to say; it is said later if that one was lost meanwhile.
    held: Wanted,
    /// Settings that policies want and that were not seen in force yet, and whether this worker proposed them.
    asked: Option<(SettingsWish, bool)>,
    /// Why worker 0 wants what it said.
    why: String,
    /// Heard, and not followed yet.
    agreed: Wanted,
}

impl Talk {
    /// Of numbers of the program's own that are read by these names, on all workers the same in the same order; `batch` is what the
    /// program begins with as samples of one worker's step, if it says so.
    pub fn new(names: impl IntoIterator<Item = String>, batch: Option<u64>) -> Talk {
        let mut known = vec![LOSS.to_string(), VOTE.to_string()];
        for name in names {
            if !known.contains(&name) {
                known.push(name);
            }
        }
        Talk {
            names: known,
            step: 0,
            timed: None,
            told: None,
            batch,
            followed_batch: None,
            learning_rate: 1.0,
            mode: String::new(),
            epoch: 0,
            pace: Pace::default(),
            noise: GradientNoise::default(),
            throughput: None,
            observed: None,
            metrics: None,
            heard: VecDeque::new(),
            reported: BTreeMap::new(),
            norms: None,
            seconds: 0.0,
            slowed: None,
            speakers: 0,
            wanted: Wanted::default(),
            held: Wanted::default(),
            asked: None,
            why: String::new(),
            agreed: Wanted::default(),
        }
    }

    /// The step that workers are in.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Samples of one worker's step.
    pub fn batch(&self) -> Option<u64> {
        self.batch
    }

    /// The same, if it was agreed and is not the program's own.
    pub fn followed_batch(&self) -> Option<u64> {
        self.followed_batch
    }

    /// What all know of the last step that all have heard of.
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// Of gradients.
    pub fn noise(&self) -> &GradientNoise {
        &self.noise
    }

    /// Samples a second of all workers, smoothed; steps a second, if nobody said how large a batch is.
    pub fn throughput(&self) -> Option<f64> {
        self.throughput
    }

    /// The last that all workers have heard of.
    pub fn metrics(&self) -> Option<&Arc<JobMetrics>> {
        self.metrics.as_ref()
    }

    /// How many numbers a worker says.
    pub fn numbers(&self) -> usize {
        FIELDS + 2 * self.names.len()
    }

    /// How long this worker's last step took.
    pub fn own_seconds(&self) -> f64 {
        self.seconds
    }

    /// Whether workers will stay together in another way from the next step on.
    pub fn switches(&self) -> bool {
        self.agreed.mode.is_some()
    }

    /// So many samples make a step of this worker, as the program says.
    pub fn set_batch(&mut self, batch: Option<u64>) {
        self.batch = batch;
    }

    /// Whether anybody reads numbers of that name.
    pub fn knows(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// A number of this worker's step. What nobody reads is passed over.
    pub fn report(&mut self, name: &str, value: f64) {
        if self.knows(name) {
            let (sum, count) = self.reported.entry(name.to_string()).or_default();
            (*sum, *count) = (*sum + value, *count + 1.0);
        }
    }

    /// Squared norms: of this worker's gradient of a step, and this worker's share of that of the average: shares of all workers
    /// add up to it.
    pub fn report_norms(&mut self, own: f64, averaged: f64) {
        self.norms = Some((own, averaged));
    }

    /// What is wanted; of two wishes the later counts. Those of worker 0 are said.
    pub fn want(&mut self, wishes: Wishes) {
        let Wishes { batch, learning_rate, size, mode, reason, .. } = wishes;
        self.wanted.add(Wanted { batch, learning_rate, size, mode, reason });
    }

    /// Other settings are wanted; of two wishes the later counts.
    pub fn ask(&mut self, wish: SettingsWish) {
        let before = self.asked.take().map(|(before, _)| before).unwrap_or_default();
        let wish = SettingsWish {
            strategy: wish.strategy.or(before.strategy),
            partition: wish.partition.or(before.partition),
            credit: wish.credit.or(before.credit),
        };
        self.asked = Some((wish, false));
    }

    /// What this worker is to propose now: worker 0 once what was asked for, and whoever takes its place what nobody has seen in
    /// force.
    pub fn due(&mut self, rank: usize, in_force: &Settings) -> Option<Settings> {
        let (wish, proposed) = self.asked.as_mut()?;
        let settings = wish.on(in_force);
        if settings == *in_force {
            self.asked = None;
            return None;
        }
        let is_due = rank == 0 && !*proposed;
        *proposed |= is_due;
        is_due.then_some(settings)
    }

    /// The step is over, so many seconds after the last one that this was said of; there are `size` workers.
    pub fn time(&mut self, seconds: f64, size: usize) {
        if size != self.speakers {
            // Steps of other workers say nothing of these.
            self.speakers = size;
            self.pace.expect(None);
        }
        let steps = self.step + 1 - self.timed.map_or(0, |step| step + 1).min(self.step);
        self.seconds = seconds / steps as f64;
        self.slowed = self.pace.slowed(self.seconds);
        self.timed = Some(self.step);
    }

    /// What this worker says of the last step that was timed, to be summed over all.
    pub fn say(&mut self, rank: usize, metrics: Option<Arc<JobMetrics>>) -> Vec<f64> {
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
        let mut wanted = std::mem::take(&mut self.wanted);
        if rank > 0 {
            self.held = std::mem::take(&mut wanted);
        }
        let reported = std::mem::take(&mut self.reported);
        self.told = self.timed;
        let fields: [f64; FIELDS] = [
            1.0,
            self.seconds,
            own,
            averaged,
            f64::from(u8::from(norms.is_some())),
            1.0 / self.batch.unwrap_or(1).max(1) as f64,
            self.batch.unwrap_or(0) as f64,
            f64::from(u8::from(self.batch.is_some())),
            f64::from(u8::from(self.slowed == Some(true))),
            f64::from(u8::from(self.slowed.is_some())),
            latest,
            latest * latest,
            f64::from(u8::from(rank == 0)),
            wanted.batch.unwrap_or(0) as f64,
            wanted.learning_rate.unwrap_or(0.0),
            wanted.size.unwrap_or(0) as f64,
            wanted.mode.as_deref().and_then(number_of_mode).unwrap_or(0.0),
        ];
        self.why = wanted.reason;
        let of = |name: &String| reported.get(name).copied().unwrap_or_default();
        let rest = self.names.iter().map(of).flat_map(|(sum, count)| [sum, count]);
        fields.into_iter().chain(rest).collect()
    }

    /// What all workers said of a step, summed: the same everywhere. Anything else than what is said so is passed over.
    pub fn hear(&mut self, sums: &[f64]) {
        let Some((fields, reported)) = sums.split_first_chunk::<FIELDS>() else { return };
        let [speakers, seconds, own, averaged, measured, inverse, samples, counted, ..] = *fields;
        let [.., slowed, judged, latest, squares, first, batch, learning_rate, size, mode] =
            *fields;
        if speakers < 1.0 || sums.len() != self.numbers() {
            return;
        }
        let (workers, mean) = (speakers as usize, |sum: f64| sum / speakers);
        if workers > 1 && measured == speakers {
            let (contributed, inverse_batch) = (mean(own), mean(inverse));
            self.noise.add(GradientNorms { workers, contributed, averaged, inverse_batch });
        }
        if let Some(step) = self.told {
            let (pairs, _) = reported.as_chunks::<2>();
            let named = self.names.iter().zip(pairs).filter(|(_, [_, count])| *count > 0.0);
            self.observed = Some(Observed {
                step,
                seconds: mean(seconds),
                reported: named.map(|(name, [sum, count])| (name.clone(), sum / count)).collect(),
                interference: (judged > 0.0).then(|| slowed / judged),
            });
        }
        if seconds > 0.0 {
            let counted = if counted == speakers { samples } else { 1.0 };
            let speed = counted / mean(seconds);
            let before = self.throughput.unwrap_or(speed);
            self.throughput = Some(before + NEWEST * (speed - before));
        }
        // All workers have the same latest metrics if and only if the mean of squares is the square of the mean.
        if latest > 0.0 && mean(squares) == mean(latest) * mean(latest) {
            let known = self.heard.iter().find(|it| it.step as f64 == mean(latest));
            self.metrics = known.cloned().or(self.metrics.take());
        }
        let mut held = std::mem::take(&mut self.held);
        if first == 0.0 {
            // Worker 0 is lost, and what it wanted with it.
            held.add(std::mem::take(&mut self.wanted));
            self.wanted = held;
        }
        let some = |value: f64| (value > 0.0).then_some(value);
        self.agreed = Wanted {
            batch: some(batch).map(|batch| batch as u64),
            learning_rate: some(learning_rate),
            size: some(size).map(|size| size as usize),
            mode: mode_of_number(mode).map(str::to_string),
            reason: std::mem::take(&mut self.why),
        };
    }

    /// The next step begins; what all are to do between the two.
    pub fn begin_step(&mut self) -> Wanted {
        self.step += 1;
        std::mem::take(&mut self.agreed)
    }

    /// The next step begins, in which workers do not meet: what is agreed has to wait.
    pub fn pass_step(&mut self) {
        self.step += 1;
    }

    /// Batches of so many samples are followed from now on.
    pub fn follow_batch(&mut self, batch: u64) {
        if self.batch != Some(batch) {
            // Steps of another length say nothing of these.
            self.throughput = None;
            self.pace.expect(None);
        }
        (self.batch, self.followed_batch) = (Some(batch), Some(batch));
    }

    /// What policies are shown.
    pub fn moment(&self, company: Company<'_>) -> Moment {
        let Company { rank, size, settings } = company;
        let mut reported =
            self.observed.as_ref().map_or_else(BTreeMap::new, |it| it.reported.clone());
        let (loss, vote) = (reported.remove(LOSS), reported.remove(VOTE));
        Moment {
            rank,
            step: self.step,
            epoch: self.epoch,
            size,
            batch: self.batch,
            learning_rate: self.learning_rate,
            seconds: self.observed.as_ref().map(|observed| observed.seconds),
            throughput: self.throughput,
            metrics: self.metrics.clone(),
            interference: self.observed.as_ref().and_then(|observed| observed.interference),
            loss,
            squared_norm: self.noise.squared_norm(),
            variance: self.noise.variance(),
            reported,
            vote,
            strategy: settings.strategy.0.clone(),
            partition: Some(settings.partition),
            credit: Some(settings.credit),
            mode: self.mode.clone(),
        }
    }

    /// For a worker that comes later, and for checkpoints; `said` is the sum that is to be heard at the end of this step.
    pub fn remember(&self, said: Option<&[f64]>) -> Remembered {
        Remembered {
            names: self.names.clone(),
            step: self.step,
            timed: self.timed,
            told: self.told,
            epoch: self.epoch,
            followed_batch: self.followed_batch,
            learning_rate: self.learning_rate,
            mode: self.mode.clone(),
            noise: self.noise.known(),
            throughput: self.throughput,
            observed: self.observed.clone(),
            speakers: self.speakers,
            usual: self.pace.usual(),
            wanted: self.wanted.clone(),
            held: self.held.clone(),
            asked: self.asked.as_ref().map(|(wish, _)| wish.clone()),
            why: self.why.clone(),
            agreed: self.agreed.clone(),
            said: said.map(<[f64]>::to_vec),
        }
    }

    /// Go on from there among `size` workers; the sum that all are about to hear.
    pub fn resume(&mut self, from: Remembered, size: usize) -> Option<Vec<f64>> {
        (self.step, self.timed, self.told) = (from.step, from.timed, from.told);
        (self.epoch, self.learning_rate, self.mode) = (from.epoch, from.learning_rate, from.mode);
        self.batch = from.followed_batch.or(self.batch);
        self.followed_batch = from.followed_batch;
        self.noise.resume(from.noise);
        (self.throughput, self.observed) = (from.throughput, from.observed);
        self.speakers = size;
        self.pace.expect(from.usual.filter(|_| size == from.speakers));
        (self.wanted, self.held) = (from.wanted, from.held);
        (self.why, self.agreed) = (from.why, from.agreed);
        self.asked = from.asked.map(|wish| (wish, false));
        // Whoever reads other numbers cannot hear what was said.
        from.said.filter(|_| from.names == self.names)
    }
}

/// See [`Talk::remember`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    names: Vec<String>,
    step: u64,
    timed: Option<u64>,
    told: Option<u64>,
    epoch: u64,
    followed_batch: Option<u64>,
    #[serde(with = "exact")]
    learning_rate: f64,
    mode: String,
    #[serde(with = "exact")]
    noise: [f64; 4],
    #[serde(with = "exact")]
    throughput: Option<f64>,
    observed: Option<Observed>,
    speakers: usize,
    #[serde(with = "exact")]
    pub(super) usual: Option<f64>,
    wanted: Wanted,
    held: Wanted,
    asked: Option<SettingsWish>,
    why: String,
    agreed: Wanted,
    #[serde(with = "exact")]
    said: Option<Vec<f64>>,
}

/// Workers tell each other a number.
fn number_of_mode(mode: &str) -> Option<f64> {
    MODES.iter().position(|known| *known == mode).map(|place| place as f64 + 1.0)
}

fn mode_of_number(number: f64) -> Option<&'static str> {
    let place = (number as usize).checked_sub(1)?;
    MODES.get(place).copied()
}
