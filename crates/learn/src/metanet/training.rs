//! Learning the meta-network from measured jobs. One job gives many pairs: any of its measurements may be what is in
//! force, all others are predicted from there. Numbers are disturbed a little each time, as measured ones are.

use super::{
    conditions::{Choice, Conditions, STRATEGIES, Seen},
    features::{self, CHOICE_FEATURES, Chunks, JOB_FEATURES, SLOT_FEATURES, SLOTS},
    network::{MEMORY, MetaNetwork, WIDTH},
};
use crate::{
    Random,
    matrix::Matrix,
    nn::{Adam, rectified, rectified_backward},
};
use serde::{Deserialize, Serialize};

/// A job under conditions, and what choices gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Without anything in force.
    pub conditions: Conditions,
    /// Choices, and seconds of a step.
    pub measured: Vec<Seen>,
    /// For each of them, what each worker sees its wire carry, up and down: less than it could where pieces are small
    /// or a neighbour is slow. Empty where nobody said.
    #[serde(default)]
    pub wires: Vec<Vec<[f64; 2]>>,
    /// Which model it is; equal for the same one.
    pub model: u32,
    /// Which network it is; equal for the same one.
    pub network: u32,
}

impl Sample {
    /// What the job shows while one of its measurements is in force; without it, if there is none in this place.
    pub fn under(&self, place: usize) -> Conditions {
        let mut conditions = self.conditions.clone();
        conditions.seen = self.measured.get(place).copied();
        let wires = self.wires.get(place).map_or(&[][..], |wires| wires);
        for (worker, [upload, download]) in conditions.workers.iter_mut().zip(wires) {
            (worker.upload, worker.download) = (*upload, *download);
        }
        conditions
    }
}

impl Sample {
    /// What cannot be of a job that was measured, if anything: files may say what they like.
    pub fn problem(&self) -> Option<&'static str> {
        let number = |value: f64| value.is_finite() && value >= 0.0;
        let conditions = &self.conditions;
        let tensors = conditions
            .tensors
            .iter()
            .flat_map(|tensor| [tensor.bytes, tensor.forward, tensor.backward, tensor.slowest]);
        let workers = conditions.workers.iter();
        let workers =
            workers.flat_map(|worker| [worker.upload, worker.download, worker.computation]);
        let wires = self.wires.iter().flatten().flatten().copied();
        let choices = || self.measured.iter().map(|seen| seen.choice);
        if self.measured.iter().any(|seen| !number(seen.seconds) || seen.seconds == 0.0) {
            Some("a step takes no time, or no number of seconds")
        } else if choices().any(|choice| choice.strategy >= STRATEGIES.len()) {
            Some("a strategy has no such number")
        } else if choices().any(|choice| !number(choice.partition) || choice.partition < 1.0) {
            Some("a partition has no size")
        } else if choices().any(|choice| choice.credit.is_nan() || choice.credit < 1.0) {
            Some("a credit has no size")
        } else if !tensors.chain(workers).chain(wires).all(number) {
            Some("a size, a time or a rate is below 0")
        } else if conditions.reference().is_none() {
            Some("nothing can be predicted from its conditions")
        } else {
            None
        }
    }
}

/// How to learn.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingOptions {
    /// How often every sample is looked at.
    pub epochs: usize,
    /// How far steps go at first; they become shorter and shorter.
    pub rate: f32,
    /// How fast weights shrink that nothing is learned from.
    pub decay: f32,
    /// How many jobs a step looks at.
    pub batch: usize,
    /// What chance follows from.
    pub seed: u64,
}

impl Default for TrainingOptions {
    fn default() -> TrainingOptions {
        TrainingOptions { epochs: 60, rate: 2e-3, decay: 0.05, batch: 16, seed: 1 }
    }
}

/// How often nothing is in force: a network that relies on it could not say anything at the beginning.
const UNSEEN: f64 = 0.15;
/// How much rates, times and speeds are disturbed.
const NOISE: f64 = 0.03;
/// What the whole job's error counts beside the errors between its choices: choices are compared, jobs are not.
const WHOLE: f32 = 0.3;
/// How fast the interest in slow choices falls: the best are chosen from.
const INTEREST: f32 = 1.5;

/// Teach a network. `progress` hears the number of epochs that are over and the loss of the last one.
pub fn train(
    network: &mut MetaNetwork,
    samples: &[Sample],
    options: &TrainingOptions,
    progress: &mut dyn FnMut(usize, f32),
) {
    let mut random = Random::new(options.seed);
    let mut adam = Adam { decay: options.decay, ..Adam::new(options.rate) };
    let usable =
        |sample: &&Sample| sample.conditions.reference().is_some() && sample.measured.len() > 1;
    let mut order: Vec<&Sample> = samples.iter().filter(usable).collect();
    let batch = options.batch.max(1);
    let steps = (options.epochs * order.len().div_ceil(batch)).max(1) as f32;
    let mut step = 0.0f32;
    for epoch in 1..=options.epochs {
        random.shuffle(&mut order);
        let mut loss = 0.0;
        for samples in order.chunks(batch) {
            // Down to a fiftieth along a cosine.
            let share = 0.5 * (1.0 + (std::f32::consts::PI * step / steps).cos());
            adam.rate = options.rate * (0.02 + 0.98 * share);
            let batch = Batch::of(samples, &mut random);
            loss += batch.learn(network) * samples.len() as f32;
            adam.step(network.parameters_mut());
            step += 1.0;
        }
        progress(epoch, loss / order.len().max(1) as f32);
    }
}

/// Some jobs with their choices, as rows.
struct Batch {
    /// For each slot, a row for each job.
    slots: Vec<Matrix>,
    /// A row for each job.
    jobs: Matrix,
    /// A row for each choice of all jobs.
    choices: Matrix,
    /// For each choice, what is to be predicted.
    wanted: Vec<f32>,
    /// For each choice, how much it counts; 1 in sum for each job.
    weights: Vec<f32>,
    /// For each job, where its choices begin; and where the last end.
    begins: Vec<usize>,
}

impl Batch {
    fn of(samples: &[&Sample], random: &mut Random) -> Batch {
        let mut slots = vec![Vec::new(); SLOTS];
        let (mut jobs, mut choices) = (Vec::new(), Vec::new());
        let (mut wanted, mut weights, mut begins) = (Vec::new(), Vec::new(), vec![0]);
        for sample in samples {
            let conditions = disturbed(sample, random);
            let reference = conditions.reference().unwrap_or(1.0);
            for (all, slot) in slots.iter_mut().zip(features::slots(&conditions)) {
                all.extend(slot);
            }
            jobs.extend(features::job(&conditions));
            let begin = wanted.len();
            for seen in &sample.measured {
                let chunks = Chunks::of(&conditions, seen.choice.partition);
                choices.extend(features::choice(&conditions, &seen.choice, &chunks));
                wanted.push((seen.seconds / reference).max(1e-6).ln() as f32);
            }
            let best = wanted[begin..].iter().copied().fold(f32::INFINITY, f32::min);
            let interest = |value: &f32| (-INTEREST * (value - best)).exp();
            let sum: f32 = wanted[begin..].iter().map(interest).sum();
            weights.extend(wanted[begin..].iter().map(|value| interest(value) / sum));
            begins.push(wanted.len());
        }
        let rows = samples.len();
        Batch {
            slots: slots
                .into_iter()
                .map(|values| Matrix::from_values(rows, SLOT_FEATURES, values))
                .collect(),
            jobs: Matrix::from_values(rows, JOB_FEATURES, jobs),
            choices: Matrix::from_values(wanted.len(), CHOICE_FEATURES, choices),
            wanted,
            weights,
            begins,
        }
    }

    /// Add gradients to all parameters, and give the loss.
    fn learn(&self, network: &mut MetaNetwork) -> f32 {
        let rows = self.jobs.rows();
        let embedded: Vec<Matrix> =
            self.slots.iter().map(|slot| rectified(network.embedding.forward(slot))).collect();
        let below = network.memories[0].forward(&embedded);
        let above = network.memories[1].forward(&below.states);
        let mut joined = Matrix::zeros(rows, MEMORY + JOB_FEATURES);
        for row in 0..rows {
            let (memory, job) = joined.row_mut(row).split_at_mut(MEMORY);
            memory.copy_from_slice(above.last().row(row));
            job.copy_from_slice(self.jobs.row(row));
        }
        let bases = network.from_job.forward(&joined);
        let mut first = network.from_choice.forward(&self.choices);
        self.each(|job, row| {
            for (value, base) in first.row_mut(row).iter_mut().zip(bases.row(job)) {
                *value += base;
            }
        });
        let first = rectified(first);
        let second = rectified(network.second.forward(&first));
        let output = network.output.forward(&second);
        let (loss, gradient) = self.loss(output.values());

        let mut gradient = network.output.backward(&second, &gradient);
        rectified_backward(&second, &mut gradient);
        let mut gradient = network.second.backward(&first, &gradient);
        rectified_backward(&first, &mut gradient);
        network.from_choice.learn(&self.choices, &gradient);
        let mut of_bases = Matrix::zeros(rows, WIDTH);
        self.each(|job, row| {
            for (sum, value) in of_bases.row_mut(job).iter_mut().zip(gradient.row(row)) {
                *sum += value;
            }
        });
        let of_joined = network.from_job.backward(&joined, &of_bases);
        let mut of_memory = Matrix::zeros(rows, MEMORY);
        for row in 0..rows {
            of_memory.row_mut(row).copy_from_slice(&of_joined.row(row)[..MEMORY]);
        }
        let mut of_states = vec![None; SLOTS];
        of_states[SLOTS - 1] = Some(&of_memory);
        let between = network.memories[1].backward(&below.states, &above, &of_states);
        let between: Vec<Option<&Matrix>> = between.iter().map(Some).collect();
        let of_embedded = network.memories[0].backward(&embedded, &below, &between);
        for ((slot, embedded), mut gradient) in self.slots.iter().zip(&embedded).zip(of_embedded) {
            rectified_backward(embedded, &mut gradient);
            network.embedding.learn(slot, &gradient);
        }
        loss
    }

    /// Every choice with its job.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for (job, ends) in self.begins.windows(2).enumerate() {
            (ends[0]..ends[1]).for_each(|row| visit(job, row));
        }
    }

    /// For each job the weighted squares of errors around their mean, and a part of that mean's; its gradient.
    fn loss(&self, output: &[f32]) -> (f32, Matrix) {
        let jobs = self.jobs.rows().max(1) as f32;
        let mut gradient = vec![0.0; output.len()];
        let mut loss = 0.0;
        for ends in self.begins.windows(2) {
            let errors = (ends[0]..ends[1]).map(|row| output[row] - self.wanted[row]);
            let weights = &self.weights[ends[0]..ends[1]];
            let mean: f32 = errors.clone().zip(weights).map(|(error, weight)| error * weight).sum();
            loss += WHOLE * mean * mean;
            for (row, (error, weight)) in (ends[0]..).zip(errors.zip(weights)) {
                let apart = error - mean;
                loss += weight * apart * apart;
                // Weights are 1 in sum, so the mean's own part in `apart` cancels out.
                gradient[row] = 2.0 * weight * (apart + WHOLE * mean) / jobs;
            }
        }
        (loss / jobs, Matrix::from_values(output.len(), 1, gradient))
    }
}

/// A sample's conditions as they might have been measured, with one of its measurements in force.
fn disturbed(sample: &Sample, random: &mut Random) -> Conditions {
    let mut conditions = if random.chance(UNSEEN) {
        sample.conditions.clone()
    } else {
        sample.under(random.place(sample.measured.len()))
    };
    let mut noise = |value: &mut f64| *value *= (NOISE * random.normal()).exp();
    for worker in &mut conditions.workers {
        noise(&mut worker.upload);
        noise(&mut worker.download);
        noise(&mut worker.computation);
    }
    for tensor in &mut conditions.tensors {
        noise(&mut tensor.forward);
        noise(&mut tensor.backward);
    }
    noise(&mut conditions.latency);
    if let Some(seen) = &mut conditions.seen {
        seen.seconds *= (0.5 * NOISE * random.normal()).exp();
    }
    conditions
}

/// A choice out of a sample's, by its place.
pub(super) fn choices(sample: &Sample) -> Vec<Choice> {
    sample.measured.iter().map(|seen| seen.choice).collect()
}

/// For tests: hold some gradients against finite differences.
#[cfg(test)]
pub(super) fn check_gradients(samples: &[Sample]) {
    let samples: Vec<&Sample> = samples.iter().collect();
    let mut random = Random::new(1);
    let batch = Batch::of(&samples, &mut random);
    let mut network = MetaNetwork::new(3);
    // Empty slots and offsets of zero would sit in the corner of a rectifier, where nothing is differentiable.
    for value in network.parameters_mut().into_iter().flat_map(|one| one.value.values_mut()) {
        *value += 0.1 * random.normal() as f32;
    }
    batch.learn(&mut network);
    let loss = |network: &MetaNetwork| batch.learn(&mut network.clone());
    for parameter in 0..network.parameters().len() {
        let gradient = network.parameters()[parameter].gradient.clone();
        // The largest is the furthest from rounding errors.
        let sizes = gradient.values().iter().map(|value| value.abs()).enumerate();
        let (place, _) = sizes.max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((0, 0.0));
        let moved = |by: f32| {
            let mut moved = network.clone();
            moved.parameters_mut()[parameter].value.values_mut()[place] += by;
            loss(&moved)
        };
        let width = 1e-3;
        let expected = (moved(width) - moved(-width)) / (2.0 * width);
        let found = gradient.values()[place];
        let error = (found - expected).abs();
        assert!(error < 0.03 * expected.abs() + 2e-3, "{parameter}: {found}, not {expected}");
    }
}
