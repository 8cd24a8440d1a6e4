//! What the meta-network can learn, on jobs whose times follow from a formula.

use super::*;
use crate::Random;
use std::sync::OnceLock;

/// What a step takes: pieces cost, and large ones wait for each other. `price` is what differs between environments.
fn formula(conditions: &Conditions, choice: &Choice, price: f64) -> f64 {
    let rate = conditions.rate();
    let chunks: f64 =
        conditions.tensors.iter().map(|tensor| (tensor.bytes / choice.partition).ceil()).sum();
    let overhead = price * chunks * conditions.latency;
    let blocking = choice.credit.min(1e8).max(choice.partition) / rate;
    let strategy = 1.0 + 0.1 * choice.strategy as f64;
    conditions.computation() + strategy * conditions.transfer() + overhead + blocking
}

fn any_choice(random: &mut Random) -> Choice {
    let partition = (1u64 << (16 + random.below(9))) as f64;
    let credit = partition * [1.0, 2.0, 4.0, 8.0, f64::INFINITY][random.place(5)];
    Choice { strategy: random.place(5), partition, credit }
}

fn any_sample(random: &mut Random, price: f64) -> Sample {
    let layers = 4 + random.place(20);
    let tensor = |random: &mut Random| {
        let (bytes, forward) = (random.ratio(1e4, 3e7), random.ratio(1e-4, 3e-3));
        TensorConditions { bytes, forward, backward: 2.0 * forward, slowest: 3.0 * forward }
    };
    let tensors: Vec<TensorConditions> = (0..layers).map(|_| tensor(random)).collect();
    let computation = tensors.iter().map(|tensor| tensor.slowest).sum();
    let rate = random.ratio(3e8, 1e10);
    let worker = WorkerConditions { upload: rate, download: rate, computation };
    let workers = 2 + random.place(7);
    let conditions = Conditions {
        tensors,
        workers: vec![worker; workers],
        hosts: workers,
        latency: random.ratio(2e-5, 2e-4),
        crosses_step: true,
        seen: None,
    };
    let measured = (0..16).map(|_| {
        let choice = any_choice(random);
        Seen { choice, seconds: formula(&conditions, &choice, price) }
    });
    let measured = measured.collect();
    Sample { conditions, measured, wires: Vec::new(), model: 0, network: 0 }
}

/// A network that knows the formula, and jobs that it never saw; made once for all tests.
fn taught() -> &'static (MetaNetwork, Vec<Sample>) {
    static TAUGHT: OnceLock<(MetaNetwork, Vec<Sample>)> = OnceLock::new();
    TAUGHT.get_or_init(teach)
}

fn teach() -> (MetaNetwork, Vec<Sample>) {
    let mut random = Random::new(1);
    let samples: Vec<Sample> = (0..160).map(|_| any_sample(&mut random, 1.0)).collect();
    let (train_samples, held_out) = samples.split_at(120);
    let mut network = MetaNetwork::new(1);
    let options = TrainingOptions { epochs: 30, rate: 4e-3, ..TrainingOptions::default() };
    train(&mut network, train_samples, &options, &mut |_, _| {});
    (network, held_out.to_vec())
}

#[test]
fn it_learns_to_rank_choices_of_jobs_it_never_saw() {
    let (network, held_out) = taught();
    let before = judge(&MetaNetwork::new(1), held_out, |_| Some(0));
    let after = judge(network, held_out, |_| Some(0));
    assert!(after.rank_correlation > 0.85, "{after:?}");
    assert!(after.error < 0.5 * before.error, "{before:?} {after:?}");
    assert!(after.regret < 0.25 * after.regret_unchanged, "{after:?}");
}

#[test]
fn the_same_seed_teaches_the_same() {
    let mut random = Random::new(2);
    let samples: Vec<Sample> = (0..6).map(|_| any_sample(&mut random, 1.0)).collect();
    let options = TrainingOptions { epochs: 2, ..TrainingOptions::default() };
    let bytes = |seed| {
        let mut network = MetaNetwork::new(seed);
        train(&mut network, &samples, &options, &mut |_, _| {});
        network.to_bytes()
    };
    assert_eq!(bytes(3), bytes(3));
    assert_ne!(bytes(3), bytes(4));
}

#[test]
fn after_a_handful_of_measurements_in_another_environment_predictions_are_better() {
    let (network, _) = taught();
    let mut random = Random::new(5);
    let (mut before, mut after) = (0.0, 0.0);
    for _ in 0..8 {
        // Messages are six times as dear as in all that was seen.
        let sample = any_sample(&mut random, 6.0);
        let mut conditions = sample.conditions.clone();
        conditions.seen = Some(sample.measured[0]);
        let (shown, unseen) = sample.measured[1..].split_at(6);
        let error = |transfer: &Transfer| -> f64 {
            let prepared = transfer.prepare(&conditions).unwrap();
            let choices: Vec<Choice> = unseen.iter().map(|seen| seen.choice).collect();
            let pairs = transfer.seconds(&prepared, &choices).into_iter().zip(unseen);
            pairs.map(|(seconds, seen)| (seconds / seen.seconds).ln().powi(2)).sum()
        };
        let mut transfer = Transfer::new(network.clone());
        before += error(&transfer);
        for seen in shown {
            transfer.learn(&conditions, *seen);
        }
        after += error(&transfer);
    }
    println!("squared error after six measurements: {:.2} of before", after / before);
    assert!(after < 0.6 * before, "{after} {before}");
}

#[test]
fn what_it_remembers_is_bounded_and_what_is_no_measurement_changes_nothing() {
    let mut random = Random::new(6);
    let sample = any_sample(&mut random, 1.0);
    let mut transfer = Transfer::new(MetaNetwork::new(1));
    let before = transfer.network().to_bytes();
    let seen = sample.measured[0];
    transfer.learn(&sample.conditions, Seen { seconds: 0.0, ..seen });
    transfer.learn(&sample.conditions, Seen { seconds: f64::NAN, ..seen });
    transfer.learn(&Conditions::default(), seen);
    assert_eq!((transfer.remembered(), transfer.network().to_bytes()), (0, before));
    for _ in 0..60 {
        transfer.learn(&sample.conditions, seen);
    }
    assert_eq!(transfer.remembered(), 48);
}

#[test]
fn gradients_of_the_whole_network_are_those_of_finite_differences() {
    let mut random = Random::new(9);
    let samples: Vec<Sample> = (0..4).map(|_| any_sample(&mut random, 1.0)).collect();
    super::training::check_gradients(&samples);
}
