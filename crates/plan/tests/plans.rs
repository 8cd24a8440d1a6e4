//! Plans against all plans, where there are few enough to try them all; limits; and that chance repeats itself.

use paceline_job::{
    ByteSize, Dtype, Link, Pass, Rate, Settings, StrategyChoice,
    graph::{
        Operation, OperationKind,
        layered::{Group, LayerTimes, Layered, Mark, MarkKind, Slot},
    },
    trace::{Layer, Tensor},
};
use paceline_plan::{Engine, Limits, Outcome, PlanError, Task, optimize};
use paceline_replay::{ClusterConfig, WorkerConfig, graph::Scenario};
use std::{collections::BTreeSet, ops::ControlFlow, time::Duration};

/// Layers of one tensor each: elements, and microseconds forward and backward.
fn task(layers: &[(u64, u64, u64)], workers: usize, rate: f64, crosses: bool) -> Task {
    let layer = |(place, (elements, ..)): (usize, &(u64, u64, u64))| {
        let name = format!("layer{place}.weight").into();
        let tensors = vec![Tensor { name, elements: *elements, dtype: Dtype::F32 }];
        Layer {
            name: format!("layer{place}").into(),
            tensors,
            activation_bytes: 1000 * (place as u64 + 1),
        }
    };
    let times = |(_, forward, backward): &(u64, u64, u64)| LayerTimes {
        forward: forward * 1000,
        backward: backward * 1000,
        ..LayerTimes::default()
    };
    let times: Vec<LayerTimes> = layers.iter().map(times).collect();
    let layers = layers.iter().enumerate().map(layer).collect();
    let hosts = (0..workers).map(|rank| format!("host{rank}")).collect();
    let layered = Layered::alike(layers, &times, hosts, 4);
    let layered = Layered { crosses_step: crosses, scheduled: crosses, ..layered };
    let link = |rate, latency| Link { rate: Rate::from_bits_per_second(rate), latency };
    let worker = WorkerConfig { per_frame: Duration::from_micros(5), ..WorkerConfig::default() };
    let scenario = Scenario {
        graph: layered.graph(),
        settings: Settings { strategy: StrategyChoice("ring".to_string()), ..Settings::default() },
        wire: link(rate, Duration::from_micros(80)),
        memory: link(32e9, Duration::from_micros(5)),
        met: None,
        config: ClusterConfig { worker, ..ClusterConfig::default() },
    };
    Task { scenario, layered: Some(layered) }
}

fn small_cases() -> Vec<Task> {
    let even = [(250_000, 400, 800); 5];
    let tiny = [(2_000, 100, 200), (3_000, 100, 200), (500, 50, 100), (20_000, 300, 500)];
    let last_large =
        [(1_000, 600, 1200), (4_000, 500, 900), (50_000, 200, 400), (900_000, 100, 300)];
    let first_large =
        [(900_000, 500, 800), (50_000, 300, 500), (4_000, 100, 300), (1_000, 50, 100)];
    let mut cases = Vec::new();
    for layers in [&even[..], &tiny, &last_large, &first_large] {
        for (rate, crosses) in [(1e9, true), (1e9, false), (10e9, true)] {
            cases.push(task(layers, 4, rate, crosses));
        }
    }
    cases
}

fn plan(task: &Task, limits: &Limits) -> Outcome {
    optimize(task, limits, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The least that any of all plans takes: every way to cut the chain, strategies, partitions and credits.
fn exhaustive(task: &Task) -> f64 {
    let layered = task.layered.as_ref().unwrap();
    let tensors = layered.layers.len();
    let mut least = f64::INFINITY;
    for cuts in 0..1_u32 << (tensors - 1) {
        let mut groups = vec![Group { tensors: vec![0] }];
        for tensor in 1..tensors as u32 {
            if cuts >> (tensor - 1) & 1 == 1 {
                groups.push(Group { tensors: Vec::new() });
            }
            groups.last_mut().unwrap().tensors.push(tensor);
        }
        let graph = Layered { groups, ..layered.clone() }.graph();
        for strategy in
            ["ring", "double_tree", "recursive_doubling", "parameter_server", "one_shot"]
        {
            for partition in [1_u64 << 16, 1 << 18, 1 << 20, 1 << 22] {
                for credit in [partition, 4 * partition, u64::MAX] {
                    let settings = Settings {
                        strategy: StrategyChoice(strategy.to_string()),
                        partition: ByteSize(partition),
                        credit: ByteSize(credit),
                        ..Settings::default()
                    };
                    let scenario =
                        Scenario { graph: graph.clone(), settings, ..task.scenario.clone() };
                    least = least.min(scenario.play().unwrap().step_ms(1));
                }
            }
        }
    }
    least
}

#[test]
fn no_plan_is_much_better_than_the_one_that_is_found() {
    for (number, task) in small_cases().iter().enumerate() {
        let found = plan(task, &Limits::default());
        let least = exhaustive(task);
        assert!(
            found.after_ms <= 1.03 * least,
            "case {number}: {} against {least}",
            found.after_ms
        );
        assert!(found.after_ms <= found.before_ms);
    }
}

#[test]
fn partial_replay_spares_whole_ones_and_finds_as_good_a_plan() {
    let (mut whole, mut spared) = (0, 0);
    for (number, task) in small_cases().iter().enumerate() {
        let with = plan(task, &Limits::default());
        let without = plan(task, &Limits { partial: false, ..Limits::default() });
        println!(
            "case {number}: {} replays, {:.3} ms; without partial replay {}, {:.3} ms",
            with.replays, with.after_ms, without.replays, without.after_ms
        );
        assert!(with.after_ms <= 1.02 * without.after_ms, "case {number}");
        assert_eq!(without.partial.spared, 0);
        whole += without.replays;
        spared += without.replays.saturating_sub(with.replays);
    }
    println!("{spared} of {whole} whole replays spared");
    assert!(4 * spared >= whole, "{spared} of {whole}");
}

#[test]
fn chance_finds_nothing_much_better() {
    for task in small_cases() {
        let limits = Limits { engine: Engine::Both, replays: 200, ..Limits::default() };
        let found = plan(&task, &limits);
        let of = |name: &str| found.engines.iter().find(|engine| engine.0 == name).unwrap().1;
        assert!(of("search") <= 1.03 * of("annealing"), "{:?}", found.engines);
    }
}

#[test]
fn what_gains_too_little_stays_as_it_is() {
    for task in small_cases() {
        let best = plan(&task, &Limits::default());
        let simple = plan(&task, &Limits { least_gain: 0.01, ..Limits::default() });
        // Four things can be undone, and each may cost a hundredth.
        assert!(simple.after_ms <= 1.05 * best.after_ms, "{} {}", simple.after_ms, best.after_ms);
        assert!(simple.decisions.len() <= best.decisions.len());
        let nothing = plan(&task, &Limits { least_gain: 100.0, ..Limits::default() });
        assert_eq!(nothing.decisions, []);
        assert_eq!(nothing.plan.settings, task.scenario.settings);
    }
}

#[test]
fn no_engine_changes_what_gains_too_little_by_long_replays_and_each_says_what_it_would_answer() {
    for (number, task) in small_cases().iter().enumerate() {
        for least_gain in [0.01, 0.1] {
            let limits = |engine| Limits { engine, replays: 60, least_gain, ..Limits::default() };
            let both = plan(task, &limits(Engine::Both));
            let engines = [("search", Engine::Search), ("annealing", Engine::Annealing)];
            for ((name, engine), said) in engines.into_iter().zip(&both.engines) {
                let alone = plan(task, &limits(engine));
                assert_eq!(*said, (name, alone.after_ms), "case {number}");
                for found in [&alone, &both] {
                    let gain = found.before_ms - found.after_ms;
                    let enough = found.decisions.is_empty() || gain >= least_gain * found.after_ms;
                    assert!(enough, "case {number}, {name}: {gain} of {}", found.before_ms);
                    let settled = found.decisions.iter().all(|one| one.expected_gain_ms > 0.0);
                    assert!(settled, "case {number}, {name}: {:?}", found.decisions);
                }
            }
        }
    }
}

#[test]
fn gains_add_up_however_few_replays_there_were() {
    for (number, task) in small_cases().iter().enumerate() {
        for engine in [Engine::Search, Engine::Annealing, Engine::Both] {
            for replays in [0, 1, 7, 40] {
                let found = plan(task, &Limits { engine, replays, ..Limits::default() });
                let gains = found.decisions.iter().map(|decision| decision.expected_gain_ms);
                assert!(gains.clone().all(f64::is_finite), "case {number}: {:?}", found.decisions);
                let total =
                    if found.decisions.is_empty() { 0.0 } else { found.before_ms - found.after_ms };
                assert!(
                    (gains.sum::<f64>() - total).abs() < 1e-9,
                    "case {number}, {engine:?}, {replays}"
                );
            }
        }
    }
}

#[test]
fn gains_add_up_where_memory_costs_and_workers_are_slow_in_turn() {
    let mut task = task(&[(1000, 100, 200); 5], 2, 1e9, true);
    // An average step, by which is estimated, does not show who waits for whom.
    let layered = task.layered.as_mut().unwrap();
    for (place, worker) in layered.workers.iter_mut().enumerate() {
        let slow = worker.steps.iter_mut().skip(place).step_by(2);
        slow.flatten().for_each(|layer| layer.forward *= 5);
    }
    task.scenario.graph = layered.graph();
    let needed = layered.peak_memory().unwrap();
    for spared in [5_000, 13_000] {
        let limits = Limits { memory: Some(ByteSize(needed - spared)), ..Limits::default() };
        let found = plan(&task, &limits);
        let gains: f64 = found.decisions.iter().map(|decision| decision.expected_gain_ms).sum();
        let gained = found.before_ms - found.after_ms;
        assert!((gains - gained).abs() < 1e-9, "{gains} {gained}: {:?}", found.decisions);
    }
}

#[test]
fn the_same_task_gets_the_same_plan() {
    let task = &small_cases()[3];
    let limits = Limits { engine: Engine::Both, replays: 60, ..Limits::default() };
    assert_eq!(plan(task, &limits), plan(task, &limits));
}

#[test]
fn a_plan_is_what_its_file_says() {
    let task = &small_cases()[3];
    let found = plan(task, &Limits::default());
    let read = paceline_job::Plan::parse(&found.plan.to_toml()).unwrap();
    assert_eq!(read, found.plan);
    // Played as the file says, it takes what was promised.
    let mut layered = task.layered.clone().unwrap();
    assert_eq!(layered.fuse(&read.fusion), [""; 0]);
    let scenario =
        Scenario { graph: layered.graph(), settings: read.settings, ..task.scenario.clone() };
    let played = scenario.play().unwrap().step_ms(1);
    assert!((played - found.after_ms).abs() < 1e-9, "{played} {}", found.after_ms);
}

#[test]
fn tensors_of_two_types_are_never_sent_together() {
    let mut task = task(&[(1000, 10, 20); 5], 4, 1e9, true);
    task.layered.as_mut().unwrap().layers[2].tensors[0].dtype = Dtype::F16;
    let found = plan(&task, &Limits::default());
    for group in &found.plan.fusion.groups {
        assert!(!group.contains(&"layer2.weight".to_string()), "{group:?}");
    }
}

/// The same task where handing an operation over takes long.
fn dear(task: Task) -> Task {
    let layered = task.layered.map(|layered| layered.posting(Duration::from_micros(60)));
    Task { layered, ..task }
}

#[test]
fn operations_that_take_time_to_hand_over_are_made_fewer() {
    let cheap = task(&[(1000, 100, 200); 5], 2, 100e9, true);
    let dear = dear(cheap.clone());
    let (cheap, dear) = (plan(&cheap, &Limits::default()), plan(&dear, &Limits::default()));
    // What was recorded contains it already.
    assert!((cheap.before_ms - dear.before_ms).abs() < 1e-9);
    let spared = cheap.after_ms - dear.after_ms;
    assert!((0.1..0.25).contains(&spared), "{} {}", cheap.after_ms, dear.after_ms);
}

#[test]
fn memory_limits_are_kept_or_refused() {
    let task = task(&[(1000, 100, 200); 5], 2, 1e9, true);
    let needed = task.layered.as_ref().unwrap().peak_memory().unwrap();
    let limited = |limit: u64| {
        let limits = Limits { memory: Some(ByteSize(limit)), replays: 40, ..Limits::default() };
        optimize(&task, &limits, &mut |_| ControlFlow::Continue(()))
    };
    let enough = limited(needed).unwrap().memory.unwrap();
    assert_eq!((enough.passes, enough.recomputed.len()), (1, 0));
    for spared in [500, 5_000, 10_000, 13_000] {
        let found = limited(needed - spared).unwrap();
        let memory = found.memory.unwrap();
        assert!(memory.after.0 <= needed - spared, "{memory:?}");
        assert!(memory.passes > 1 || !memory.recomputed.is_empty());
        assert!(found.decisions[0].what.starts_with("to fit into memory"));
    }
    let error = limited(4 * 5 * 4000 - 1).unwrap_err();
    assert!(matches!(error, PlanError::TooLarge { .. }), "{error}");
}

#[test]
fn where_wires_are_the_limit_a_forward_pass_again_is_cheaper_than_passes_that_send_nothing() {
    let task = task(&[(250_000, 400, 800); 5], 4, 1e9, false);
    let needed = task.layered.as_ref().unwrap().peak_memory().unwrap();
    let limits = Limits { memory: Some(ByteSize(needed - 1000)), ..Limits::default() };
    let memory = plan(&task, &limits).memory.unwrap();
    assert!(memory.passes == 1 && !memory.recomputed.is_empty(), "{memory:?}");
}

#[test]
fn every_pass_is_named_with_what_it_is_expected_to_gain() {
    let even = task(&[(250_000, 400, 800); 5], 4, 1e9, false);
    // Small tensors that take long to hand over.
    let small = task(&[(1000, 100, 200); 5], 2, 100e9, true);
    let small = dear(small);
    let slow = task(&[(900_000, 50, 80); 4], 4, 1e9, true);
    // A host that is slow between layers, so that few passes are better than many.
    let tight = task(&[(1000, 100, 200); 5], 2, 1e9, true);
    let needed = tight.layered.as_ref().unwrap().peak_memory().unwrap();
    let mut gaps = tight.clone();
    for times in gaps.layered.as_mut().unwrap().workers.iter_mut().flat_map(|one| &mut one.steps) {
        times.iter_mut().for_each(|times| times.forward_gap = 100_000);
    }
    let mut named = BTreeSet::new();
    for (task, memory) in [
        (even, None),
        (small, None),
        (slow, None),
        (tight, Some(needed - 13_500)),
        (gaps, Some(needed - 3_000)),
    ] {
        let limits = Limits { memory: memory.map(ByteSize), ..Limits::default() };
        let found = plan(&task, &limits);
        named.extend(found.decisions.iter().map(|decision| decision.pass));
        named.extend(found.advice.iter().map(|advice| advice.pass));
        assert!(found.decisions.iter().all(|decision| decision.expected_gain_ms.is_finite()));
        // What nobody applies is in the file, and said to be so.
        let left = found.decisions.iter().filter(|decision| !decision.applied).count();
        assert_eq!(found.plan.advice.len(), left + found.advice.len());
        assert!(found.plan.advice.iter().all(|suggestion| !suggestion.applied));
        let memory = found.memory.unwrap();
        assert_eq!(found.plan.batch.accumulate.get(), memory.passes);
        let recomputed = found.plan.advice.iter().find(|one| one.pass == Pass::Recomputation);
        assert_eq!(recomputed.map_or(0, |one| one.layers.len()), memory.recomputed.len());
    }
    let passes = [
        Pass::TensorFusion,
        Pass::TensorPartition,
        Pass::Strategy,
        Pass::Credit,
        Pass::OpFusion,
        Pass::Recomputation,
        Pass::GradientAccumulation,
        Pass::MixedPrecision,
    ];
    for pass in passes {
        assert!(named.contains(&pass), "{pass:?} is not among {named:?}");
    }
}

#[test]
fn a_job_that_does_not_cross_the_step_is_told_to() {
    let found = plan(&task(&[(250_000, 400, 800); 5], 4, 1e9, false), &Limits::default());
    assert!(found.advice.iter().any(|advice| advice.what.contains("DistributedOptimizer")));
    assert!(found.advice.iter().all(|advice| advice.expected_gain_ms > 0.0));
}

#[test]
fn buckets_of_the_program_are_advised_about_and_not_planned() {
    let mut ddp = task(&[(250_000, 100, 200); 12], 4, 1e9, false);
    let layered = ddp.layered.as_mut().unwrap();
    layered.own_buckets = true;
    // All at the end: nothing overlaps.
    layered.groups = vec![Group { tensors: (0..12).collect() }];
    ddp.scenario.graph = layered.graph();
    for engine in [Engine::Search, Engine::Annealing] {
        let found = plan(&ddp, &Limits { engine, replays: 100, ..Limits::default() });
        assert!(found.plan.fusion.is_empty(), "{:?}", found.plan.fusion);
        assert!(found.decisions.iter().all(|decision| decision.pass != Pass::TensorFusion));
        let advised = found.advice.iter().find(|advice| advice.pass == Pass::TensorFusion).unwrap();
        assert!(advised.what.contains("bucket_cap_mb="), "{}", advised.what);
        let written = found.plan.advice.iter().find(|one| one.pass == Pass::TensorFusion).unwrap();
        assert!(!written.applied);
        // What is promised is what happens with the program's own buckets.
        let settings = found.plan.settings;
        let scenario = Scenario { settings, ..ddp.scenario.clone() };
        let played = scenario.play().unwrap().step_ms(1);
        assert!((played - found.after_ms).abs() < 1e-9, "{played} {}", found.after_ms);
    }
}

#[test]
fn groups_are_planned_for_a_job_that_also_sends_other_things() {
    let mut task = task(&[(500, 5, 10); 12], 4, 1e10, true);
    let layered = task.layered.as_mut().unwrap();
    let mean = Operation {
        name: "mean of the loss".into(),
        kind: OperationKind::AllReduce,
        members: Vec::new(),
        elements: 1,
        dtype: Dtype::F32,
        priority: 0,
        recorded: Vec::new(),
    };
    layered.asides = vec![vec![mean]; layered.steps()];
    let mark = |kind| Mark { aside: 0, kind, slot: Slot::forward(0), gap: 1000, work: 0 };
    let marks = vec![mark(MarkKind::Posted), mark(MarkKind::Awaited)];
    for worker in &mut layered.workers {
        worker.marks = vec![marks.clone(); worker.steps.len()];
    }
    task.scenario.graph = layered.graph();
    let found = plan(&task, &Limits::default());
    assert!(!found.plan.fusion.is_empty() && found.after_ms < found.before_ms, "{found:?}");
}

#[test]
fn a_search_that_is_broken_off_keeps_the_best_so_far() {
    let task = &small_cases()[0];
    let mut heard = 0;
    let found = optimize(task, &Limits::default(), &mut |progress| {
        heard += 1;
        assert!(progress.replays <= progress.most + 20);
        if heard == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(found.unwrap().after_ms.is_finite());
    assert_eq!(heard, 5);
}

#[test]
fn without_layers_settings_are_planned() {
    let with = task(&[(250_000, 400, 800); 5], 4, 1e9, false);
    let found = plan(&Task { layered: None, ..with.clone() }, &Limits::default());
    assert!(found.plan.fusion.is_empty());
    assert!(found.after_ms <= found.before_ms);
}
