//! Tuners on a small job in virtual time: what they see is made by the runtime's own rules of what the engines did, with noise.

use paceline_job::{
    ByteSize, Dtype, Link, Rate, Settings, StrategyChoice,
    graph::{
        Clocks, Job,
        layered::{LayerTimes, Layered},
    },
    trace::{Layer, Tensor, Trace},
};
use paceline_replay::{ClusterConfig, WorkerConfig};
use paceline_sync::{metrics::JobMetrics, policy::Policy};
use paceline_tune::{
    Action, Candidate, Method, Space, Surroundings, Trigger, Tuner,
    arena::{Named, Noise, Outcome, Stage, Trial, Truth, Weather, Yardstick, play},
    searcher::{Answer, Question},
};
use std::{ops::ControlFlow, time::Duration};

/// Six layers whose largest is needed last: what overtakes matters. Four workers.
fn stage() -> Stage {
    let layer = |(place, kibibytes): (usize, u64)| Layer {
        name: format!("layer {place}").into(),
        tensors: vec![Tensor {
            name: format!("weight {place}").into(),
            elements: kibibytes << 8,
            dtype: Dtype::F32,
        }],
        activation_bytes: 0,
    };
    let layers: Vec<Layer> =
        [64, 256, 512, 2048, 4096, 8192].into_iter().enumerate().map(layer).collect();
    let times = LayerTimes { forward: 1_000_000, backward: 2_000_000, ..LayerTimes::default() };
    let hosts = (0..4).map(|rank| format!("host{rank}")).collect();
    let link = |rate, microseconds| Link {
        rate: Rate::from_bits_per_second(rate),
        latency: Duration::from_micros(microseconds),
    };
    Stage {
        layered: Layered::alike(layers, &[times; 6], hosts, 1),
        racks: 2,
        rate: Rate::from_bits_per_second(20e9),
        uplink: None,
        latency: Duration::from_micros(200),
        memory: link(32e9, 5),
        config: ClusterConfig {
            worker: WorkerConfig { per_frame: Duration::from_micros(6), ..WorkerConfig::default() },
            ..ClusterConfig::default()
        },
        settings: Settings {
            strategy: StrategyChoice("ring".to_string()),
            partition: ByteSize::kib(256),
            credit: ByteSize::kib(256),
            ..Settings::default()
        },
    }
}

fn space(truth: &mut Truth<'_>) -> Space {
    let stage = truth.stage();
    let present = Candidate::of(&stage.settings);
    let shape = truth.shown(&stage.calm(), &present).unwrap().shape.clone();
    let names = ["ring", "double_tree", "parameter_server"];
    Space::of(&shape, names.map(|name| StrategyChoice(name.to_string())).to_vec()).coarse()
}

fn run(method: Method, script: Named, seed: u64) -> (Outcome, Yardstick, Trial, Vec<Action>) {
    let stage = stage();
    let mut truth = Truth::of(&stage);
    let space = space(&mut truth);
    let (_, phases) = script.script(&mut truth, 250.0).unwrap();
    let yardstick = Yardstick::of(&mut truth, &phases, &space).unwrap();
    let mut tuner = tuner(method, &stage.surroundings(), &space, seed);
    let noise = Noise { seed, ..Noise::default() };
    let best = yardstick.best_seconds.clone();
    let mut go_on = |_: f64| ControlFlow::Continue(());
    let trial = play(&mut truth, &phases, &best, &mut tuner, noise, &mut go_on).unwrap();
    let actions = tuner.take_decisions().iter().map(|decision| decision.action).collect();
    (Outcome::of(&trial, &phases, &yardstick), yardstick, trial, actions)
}

fn tuner(method: Method, surroundings: &Surroundings, space: &Space, seed: u64) -> Tuner {
    let searcher = method.searcher(surroundings, seed);
    Tuner::new(searcher, surroundings, Trigger::default()).with_space(space.clone())
}

#[test]
fn tuning_is_never_worse_than_leaving_things_as_they_are() {
    for script in [Named::Bursts, Named::SlowHost, Named::SlowRack, Named::Straggler] {
        for method in [Method::AutoByte, Method::Replay] {
            let (outcome, ..) = run(method, script, 1);
            assert!(outcome.over_default > -0.02, "{method}, {script}: {}", outcome.over_default);
        }
    }
}

#[test]
fn tuners_rest_where_nothing_changes() {
    for method in [Method::AutoByte, Method::Replay] {
        for seed in 1..=3 {
            let (outcome, _, trial, _) = run(method, Named::Still, seed);
            assert!(outcome.switches <= 2, "{method}, seed {seed}: {:?}", trial.switches);
            assert!(outcome.phases[0].end_share > 0.95, "{method}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn bayesian_search_tries_a_few_candidates_and_rests() {
    let (outcome, _, _, actions) = run(Method::Bayesian, Named::Still, 1);
    let tries = actions.iter().filter(|action| **action == Action::Try).count();
    assert_eq!(tries, 25);
    assert_eq!(actions.last(), Some(&Action::Switch));
    assert!(outcome.phases[0].end_share > 0.9, "{outcome:?}");
}

/// What a method says of a job in this weather, without noise: which candidate, and how many times as fast.
fn said(
    method: Method,
    truth: &mut Truth<'_>,
    space: &Space,
    weather: &Weather,
) -> (Candidate, f64) {
    let stage = truth.stage();
    let present = Candidate::of(&stage.settings);
    let taken = truth.seconds(weather, &present).unwrap();
    let shown = truth.shown(weather, &present).unwrap();
    let mut workers = shown.workers.clone();
    workers.iter_mut().for_each(|worker| worker.seconds = taken);
    let seen = JobMetrics {
        step: 1,
        view: paceline_job::ViewVersion(1),
        settings: stage.settings.clone(),
        shape: shown.shape.clone(),
        workers,
    };
    let mut searcher = method.searcher(&stage.surroundings(), 1);
    match searcher.ask(&Question { space, seen: &seen, known: &[] }) {
        Answer::Predict { candidate, gain } => (candidate, gain),
        other => panic!("{method} says {other:?}"),
    }
}

/// Whoever asks for more than the best gives is wrong by more than a little, and so is who promises far more or less than it gives.
fn assert_it_is_so(method: Method, truth: &mut Truth<'_>, space: &Space, weather: &Weather) {
    let present = Candidate::of(&truth.stage().settings);
    let taken = truth.seconds(weather, &present).unwrap();
    let (_, best) = truth.best(weather, space).unwrap();
    assert!(taken > 1.05 * best, "there is something to gain: {taken} {best}");
    let (candidate, gain) = said(method, truth, space, weather);
    let seconds = truth.seconds(weather, &candidate).unwrap();
    assert!(seconds < 1.05 * best, "{method}: {candidate} takes {seconds}, not {best}");
    let off = gain / (taken / seconds) - 1.0;
    assert!(off.abs() < 0.1, "{method}: {candidate} gives {}, not {gain}", taken / seconds);
}

/// `auto` sends small tensors another way than large ones, by what workers measured when they met and not by what wires carry now.
#[test]
fn what_settings_take_across_a_slow_rack_is_known_before_they_are_tried() {
    let settings = Settings { strategy: StrategyChoice::auto(), ..stage().settings };
    let stage = Stage { settings, ..stage() };
    let mut truth = Truth::of(&stage);
    let space = space(&mut truth);
    let (_, phases) = Named::SlowRack.script(&mut truth, 250.0).unwrap();
    for method in [Method::AutoByte, Method::Replay] {
        assert_it_is_so(method, &mut truth, &space, &phases[1].weather);
    }
}

/// Tensors that go as they come wait for a straggler's, under `auto` more than under one strategy; those of which the most urgent goes
/// first do not.
#[test]
fn what_goes_first_is_known_of_a_job_with_a_straggler() {
    let profile =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/training/profiles/resnet50.json");
    let trace = Trace::read(profile.as_ref()).unwrap();
    let job = Job::from_trace(&trace, &Clocks::align(&trace).clocks).unwrap();
    let layered = job.layered.unwrap().like_first(8).with_steps(0..1);
    assert!(!layered.scheduled);
    let rate = Rate::from_bits_per_second(10e9);
    let latency = Duration::from_micros(50);
    let settings = Settings::default();
    let stage = Stage { layered, racks: 1, rate, latency, settings, ..stage() };
    let mut truth = Truth::of(&stage);
    let space = space(&mut truth);
    let (_, phases) = Named::Straggler.script(&mut truth, 250.0).unwrap();
    assert_it_is_so(Method::Replay, &mut truth, &space, &phases[1].weather);
}

/// What a message costs a worker's thread is twice what it usually does, and nobody says so.
#[test]
fn whoever_begins_with_small_messages_learns_that_they_are_what_takes_time() {
    let settings =
        Settings { partition: ByteSize::kib(64), credit: ByteSize::kib(64), ..stage().settings };
    let worker = WorkerConfig { per_frame: Duration::from_micros(10), ..WorkerConfig::default() };
    let config = ClusterConfig { worker, ..ClusterConfig::default() };
    let stage = Stage { settings, config, ..stage() };
    let mut truth = Truth::of(&stage);
    let space = space(&mut truth);
    assert_it_is_so(Method::Replay, &mut truth, &space, &stage.calm());
}

#[test]
fn a_run_follows_from_its_seed() {
    let steps = |seed| run(Method::Replay, Named::SlowHost, seed).2.samples;
    assert_eq!(steps(1), steps(1));
    assert_ne!(steps(1), steps(2));
}

#[test]
fn metrics_that_show_nothing_are_answered_with_nothing() {
    let stage = stage();
    let mut truth = Truth::of(&stage);
    let space = space(&mut truth);
    let mut tuner = tuner(Method::Replay, &stage.surroundings(), &space, 1);
    let present = Candidate::of(&stage.settings);
    let shown = truth.shown(&stage.calm(), &present).unwrap();
    let mut metrics = JobMetrics {
        step: 1,
        view: paceline_job::ViewVersion(1),
        settings: stage.settings.clone(),
        shape: shown.shape.clone(),
        workers: shown.workers.clone(),
    };
    for worker in &mut metrics.workers {
        (worker.upload, worker.download) = (0.0, f64::NAN);
    }
    for _ in 0..500 {
        assert_eq!(tuner.observe(&metrics), None);
    }
    metrics.workers.clear();
    assert_eq!(tuner.observe(&metrics), None);
}
