//! Conditions and choices as rows of numbers near 1. All are ratios or logarithms of ratios, so that what was learned from
//! one model, device or network says something about others. What is made of them is the network's business.

use super::conditions::{Choice, Conditions, STRATEGIES};

/// Layers of any number are read as a sequence of so many.
pub const SLOTS: usize = 24;
/// Numbers of one element of that sequence.
pub const SLOT_FEATURES: usize = 7;
/// Numbers of a choice.
pub const CHOICE_FEATURES: usize = STRATEGIES.len() + CHOICE_NUMBERS;
/// Numbers of a job apart from its layers: its network, its static group, and what is in force.
pub const JOB_FEATURES: usize = NETWORK_FEATURES + STATIC_FEATURES + 2 + CHOICE_FEATURES;

const NETWORK_FEATURES: usize = 9 + PARTS;
const STATIC_FEATURES: usize = 8;
const CHOICE_NUMBERS: usize = 9;
/// Ranks are looked at in so many parts: who is slow matters to trees, and how many workers there are differs.
const PARTS: usize = 4;
/// Logarithms beyond this say nothing more.
const FAR: f64 = 12.0;
/// Logarithms become numbers near 1.
const SCALE: f64 = 3.0;
const MEBIBYTE: f64 = (1 << 20) as f64;

/// A logarithm that is a number whatever it is of.
fn logarithm(ratio: f64) -> f32 {
    let ratio = if ratio.is_nan() { 1.0 } else { ratio.max(1e-30) };
    (ratio.ln().clamp(-FAR, FAR) / SCALE) as f32
}

/// A share as a number in which small ones still differ.
fn root(share: f64) -> f32 {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    share.sqrt() as f32
}

/// The layers: each in the slot where it is in the middle of all, by its computation and its bytes.
pub fn slots(conditions: &Conditions) -> [[f32; SLOT_FEATURES]; SLOTS] {
    #[derive(Clone, Copy, Default)]
    struct Slot {
        forward: f64,
        backward: f64,
        bytes: f64,
        largest: f64,
        slowest: f64,
        tensors: f64,
    }
    let computed: f64 = conditions.tensors.iter().map(|one| one.forward + one.backward).sum();
    let computed = computed.max(1e-12);
    let bytes = conditions.bytes().max(1.0);
    let weight = |forward: f64, backward: f64, size: f64| {
        0.5 * ((forward + backward) / computed + size / bytes)
    };
    let mut slots = [Slot::default(); SLOTS];
    let mut before = 0.0;
    for tensor in &conditions.tensors {
        let weight = weight(tensor.forward, tensor.backward, tensor.bytes);
        let middle = (before + 0.5 * weight).clamp(0.0, 1.0);
        before += weight;
        let slot = &mut slots[((middle * SLOTS as f64) as usize).min(SLOTS - 1)];
        slot.forward += tensor.forward;
        slot.backward += tensor.backward;
        slot.bytes += tensor.bytes;
        slot.largest = slot.largest.max(tensor.bytes);
        slot.slowest += tensor.slowest;
        slot.tensors += 1.0;
    }
    let transfer = conditions.transfer();
    let least = 1e-3 * computed;
    slots.map(|slot| {
        let both = slot.forward + slot.backward;
        [
            root(slot.forward / computed),
            root(slot.backward / computed),
            root(slot.bytes / bytes),
            root(slot.largest / bytes),
            logarithm(1.0 + slot.tensors),
            logarithm((slot.slowest + least) / (both + least)),
            logarithm((transfer * slot.bytes / bytes + least) / (both + least)),
        ]
    })
}

/// The job apart from its layers.
pub fn job(conditions: &Conditions) -> [f32; JOB_FEATURES] {
    let mut features = [0.0; JOB_FEATURES];
    let mut rest = features.iter_mut();
    let mut put = |value: f32| {
        // The constants above count what is put, and a test does.
        if let Some(place) = rest.next() {
            *place = value;
        }
    };
    let computation = conditions.computation().max(1e-12);
    let rate = conditions.rate();
    let workers = conditions.workers.len().max(1) as f64;
    put(logarithm(conditions.transfer() / computation));
    let uploads: Vec<f64> = conditions.workers.iter().map(|worker| worker.upload).collect();
    let downloads: Vec<f64> = conditions.workers.iter().map(|worker| worker.download).collect();
    for rates in [uploads, downloads] {
        put(logarithm(rates.iter().copied().fold(f64::INFINITY, f64::min) / rate));
        put(logarithm(rates.iter().sum::<f64>() / workers / rate));
        put(logarithm(rates.iter().copied().fold(0.0, f64::max) / rate));
    }
    put(logarithm(conditions.latency.max(1e-7) / computation));
    put(logarithm(conditions.latency.max(1e-7) * rate / MEBIBYTE));
    for part in 0..PARTS {
        let count = conditions.workers.len();
        let first = (part * count / PARTS).min(count.saturating_sub(1));
        let end = ((part + 1) * count / PARTS).max(first + 1).min(count);
        let workers = conditions.workers.get(first..end).unwrap_or_default();
        let slowest = workers.iter().map(|worker| worker.upload.min(worker.download));
        put(logarithm(slowest.fold(f64::INFINITY, f64::min) / rate));
    }

    let total: f64 = conditions.workers.iter().map(|worker| worker.computation).sum();
    let largest = conditions.tensors.iter().map(|tensor| tensor.bytes).fold(0.0, f64::max);
    let forward: f64 = conditions.tensors.iter().map(|tensor| tensor.forward).sum();
    let backward: f64 = conditions.tensors.iter().map(|tensor| tensor.backward).sum();
    put(logarithm(workers));
    put(logarithm(workers / conditions.hosts.max(1) as f64));
    put(logarithm(conditions.tensors.len() as f64));
    put(logarithm(conditions.bytes() / MEBIBYTE));
    put(logarithm(computation * workers / total.max(1e-12)));
    put(root(largest / conditions.bytes().max(1.0)));
    put(root(forward / (forward + backward).max(1e-12)));
    put(f32::from(u8::from(conditions.crosses_step)));

    if let (Some(seen), Some(reference)) = (conditions.seen, conditions.reference()) {
        put(1.0);
        put(logarithm(seen.seconds / reference) * SCALE as f32);
        let chunks = Chunks::of(conditions, seen.choice.partition);
        choice(conditions, &seen.choice, &chunks).into_iter().for_each(&mut put);
    }
    features
}

/// What a partition makes of the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunks {
    /// It is of.
    pub partition: f64,
    count: f64,
    largest: f64,
}

impl Chunks {
    /// Cut all tensors.
    pub fn of(conditions: &Conditions, partition: f64) -> Chunks {
        let pieces = |bytes: f64| (bytes / partition.max(1.0)).ceil().max(1.0);
        let sizes = conditions.tensors.iter().map(|tensor| tensor.bytes);
        let count = sizes.clone().map(pieces).sum();
        Chunks { partition, count, largest: sizes.fold(0.0, f64::max) }
    }
}

/// A choice, for a job.
pub fn choice(conditions: &Conditions, choice: &Choice, chunks: &Chunks) -> [f32; CHOICE_FEATURES] {
    let mut features = [0.0; CHOICE_FEATURES];
    let (names, numbers) = features.split_at_mut(STRATEGIES.len());
    if let Some(name) = names.get_mut(choice.strategy) {
        *name = 1.0;
    }
    let computation = conditions.computation().max(1e-12);
    let latency = conditions.latency.max(1e-7);
    let rate = conditions.rate();
    // Chunks larger than the largest tensor, and credit for more than there is, change nothing.
    let partition = choice.partition.min(chunks.largest).max(1.0);
    let credit = choice.credit.min(conditions.bytes()).max(1.0);
    numbers.copy_from_slice(&[
        logarithm(partition / MEBIBYTE),
        logarithm(credit / MEBIBYTE),
        logarithm(credit / partition),
        logarithm(partition / rate / computation),
        logarithm(credit / rate / computation),
        logarithm(partition / rate / latency),
        logarithm(chunks.count),
        logarithm(chunks.count * latency / computation),
        logarithm(partition / conditions.bytes().max(1.0)),
    ]);
    features
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metanet::conditions::{Seen, TensorConditions, WorkerConditions};

    fn conditions(scale: f64) -> Conditions {
        let tensor = |bytes: f64, time: f64| TensorConditions {
            bytes,
            forward: scale * time,
            backward: 2.0 * scale * time,
            slowest: 3.3 * scale * time,
        };
        let worker = WorkerConditions {
            upload: 1e9 / scale,
            download: 2e9 / scale,
            computation: 9e-3 * scale,
        };
        let choice = Choice { strategy: 1, partition: 1e6, credit: f64::INFINITY };
        Conditions {
            tensors: vec![tensor(1e5, 1e-3), tensor(4e6, 1e-3), tensor(9e6, 1e-3)],
            workers: vec![worker; 4],
            hosts: 4,
            latency: 5e-5 * scale,
            crosses_step: true,
            seen: Some(Seen { choice, seconds: 0.04 * scale }),
        }
    }

    #[test]
    fn a_job_that_is_slower_in_everything_looks_the_same() {
        let (one, other) = (conditions(1.0), conditions(8.0));
        let close = |one: &[f32], other: &[f32]| {
            one.iter().zip(other).all(|(one, other)| (one - other).abs() < 1e-4)
        };
        assert!(close(&job(&one), &job(&other)));
        assert!(close(slots(&one).as_flattened(), slots(&other).as_flattened()));
        assert!((other.reference().unwrap() / one.reference().unwrap() - 8.0).abs() < 1e-9);
    }

    #[test]
    fn every_place_of_a_job_is_filled() {
        let mut unlike = conditions(1.0);
        for (rank, worker) in unlike.workers.iter_mut().enumerate() {
            worker.upload *= 1.0 + 0.5 * rank as f64;
            worker.computation *= 1.0 + 0.1 * rank as f64;
        }
        let features = job(&unlike);
        // Only those of strategies that are not in force may be zero, and logarithms of 1.
        let zeros = features.iter().filter(|value| **value == 0.0).count();
        assert!(zeros < STRATEGIES.len() + 4, "{zeros}");
        assert!(features[JOB_FEATURES - 1] != 0.0);
    }

    #[test]
    fn whatever_conditions_are_features_are_numbers() {
        let mut odd = conditions(1.0);
        odd.workers[0].upload = 0.0;
        odd.workers[1].download = f64::NAN;
        odd.tensors[0].bytes = f64::INFINITY;
        odd.latency = -1.0;
        for conditions in [odd, Conditions::default()] {
            assert_eq!(conditions.reference(), None);
            let chosen = Choice { strategy: 99, partition: 0.0, credit: f64::NAN };
            let chosen = choice(&conditions, &chosen, &Chunks::of(&conditions, 0.0));
            let all = job(&conditions).into_iter().chain(chosen);
            let slots = slots(&conditions);
            assert!(all.chain(slots.as_flattened().iter().copied()).all(f32::is_finite));
        }
    }
}
