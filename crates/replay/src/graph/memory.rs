//! What the memory of a host carries between its workers, as recorded operations show it: with what it takes threads there to wake
//! up, copy and add, on processors that they share. It is the link with which engines in virtual time take as long for an operation
//! as workers took. What workers measured when they met is the best that memory can do, which is another thing.

use super::{Network, Scenario, play, prices::of_equal_tensors};
use paceline_job::{
    Link, Rate, Time,
    graph::{Operation, OperationKind},
};
use std::{collections::BTreeMap, time::Duration};

/// Fewer operations show nothing.
const LEAST_OPERATIONS: usize = 8;
/// Lengths that are looked at, those seen most often first.
const LENGTHS: usize = 8;

/// A replay that takes this much longer than what was recorded is wrong about the memory.
const LONGER: f64 = 0.02;
/// The least share of what lone operations show, and how often the way there is halved.
const LEAST_SHARE: f64 = 1.0 / 64.0;
const HALVINGS: usize = 5;

/// Links with which it is found out how many hops an operation takes, and how many of its bytes follow each other.
const PROBE_LATENCY: Duration = Duration::from_millis(1);
const PROBE_RATE: f64 = 1e9;
const INSTANT_RATE: f64 = 1e15;

/// What operations took that had memory for themselves, by length.
#[derive(Clone, Copy, Default)]
struct Seen {
    nanoseconds: f64,
    count: f64,
}

/// The link, if all workers of a recorded job share a host and enough all-reduces were recorded that were alone on their way.
pub fn memory(scenario: &Scenario) -> Option<Link> {
    let workers = &scenario.graph.workers;
    if workers.len() < 2 || workers.iter().any(|worker| worker.host != workers[0].host) {
        return None;
    }
    let mut lengths: Vec<(u64, Seen)> = alone(scenario)?.into_iter().collect();
    lengths.sort_by(|one, other| other.1.count.total_cmp(&one.1.count));
    lengths.truncate(LENGTHS);
    let mut equations = Vec::with_capacity(lengths.len());
    for (bytes, seen) in lengths {
        let took = |latency, rate| {
            let memory = Link { latency, rate: Rate::from_bytes_per_second(rate) };
            let scenario = Scenario { memory, ..scenario.clone() };
            let graph = of_equal_tensors(&scenario, bytes, 1).graph();
            let ends = play(&graph, &scenario.network()).ok()?.arrivals;
            Some(ends.iter().map(|(.., at)| at.0 as f64 * 1e-9).sum::<f64>() / ends.len() as f64)
        };
        let hops = took(PROBE_LATENCY, INSTANT_RATE)? / PROBE_LATENCY.as_secs_f64();
        let in_turn = took(Duration::ZERO, PROBE_RATE)? * PROBE_RATE;
        let seconds = seen.nanoseconds / seen.count * 1e-9;
        // Clocks of workers are not exact: what seems to have taken nothing shows nothing.
        if seconds <= 0.0 || in_turn <= 0.0 {
            continue;
        }
        // What is short counts as much as what is long: by how many percent it is off.
        let weight = seen.count / (seconds * seconds);
        equations.push(Equation { hops, bytes: in_turn, seconds, weight });
    }
    if equations.is_empty() {
        return None;
    }
    let (latency, per_byte) = solve(&equations, 1.0 / scenario.memory.rate.bytes_per_second());
    Some(as_fast_as_recorded(scenario, latency, per_byte))
}

/// A link of these seconds for a hop and a byte, or of a share of them if steps would take longer than they did: operations that
/// were alone on their way may be those that waited for a processor, where others were under way together.
fn as_fast_as_recorded(scenario: &Scenario, latency: f64, per_byte: f64) -> Link {
    let link = |share: f64| Link {
        latency: Duration::from_secs_f64(latency * share),
        rate: Rate::from_bytes_per_second(1.0 / (per_byte * share)),
    };
    let skip = scenario.graph.warm_up();
    let step = |network: &Network| Some(play(&scenario.graph, network).ok()?.step_ms(skip));
    let Some(recorded) = step(&Network::Recorded) else { return link(1.0) };
    let is_longer = |share: f64| {
        let scenario = Scenario { memory: link(share), ..scenario.clone() };
        step(&scenario.network()).is_some_and(|step| step > recorded * (1.0 + LONGER))
    };
    if !is_longer(1.0) || is_longer(LEAST_SHARE) {
        return link(1.0);
    }
    let (mut least, mut most) = (LEAST_SHARE, 1.0);
    for _ in 0..HALVINGS {
        let share = f64::sqrt(least * most);
        match is_longer(share) {
            true => most = share,
            false => least = share,
        }
    }
    link(least)
}

/// All-reduces of all workers during which no other operation was under way, by bytes.
fn alone(scenario: &Scenario) -> Option<BTreeMap<u64, Seen>> {
    let graph = &scenario.graph;
    let played = play(graph, &Network::Recorded).ok()?;
    let mut spans: Vec<(Time, Time, &Operation)> = Vec::new();
    for (place, operation) in graph.operations.iter().enumerate() {
        let Some(post) = played.last_posts[place].filter(|_| !operation.recorded.is_empty()) else {
            continue;
        };
        spans.push((played.ends[post.index()], played.over[place], operation));
    }
    spans.sort_by_key(|(from, ..)| *from);
    let mut lengths: BTreeMap<u64, Seen> = BTreeMap::new();
    let (mut before, mut count) = (Time::ZERO, 0);
    for (place, &(from, to, operation)) in spans.iter().enumerate() {
        let next = spans.get(place + 1).map_or(Time(u64::MAX), |(from, ..)| *from);
        let is_alone = before <= from && to <= next;
        before = before.max(to);
        let of_all = operation.kind == OperationKind::AllReduce && operation.members.is_empty();
        if is_alone && of_all && operation.elements > 0 {
            let seen = lengths.entry(super::remote::bytes(operation) as u64).or_default();
            let sum: u64 = operation.recorded.iter().sum();
            seen.nanoseconds += sum as f64 / operation.recorded.len() as f64;
            seen.count += 1.0;
            count += 1;
        }
    }
    (count >= LEAST_OPERATIONS).then_some(lengths)
}

/// So many hops and so many bytes, one after the other, take so long in the mean of all workers.
struct Equation {
    hops: f64,
    bytes: f64,
    seconds: f64,
    weight: f64,
}

/// Seconds of a hop and of a byte that come nearest to all, both at least nothing and a byte at least what memory takes at its
/// best: by what was measured when workers met, unless an operation was faster than that, because somebody else was busy then.
fn solve(equations: &[Equation], met_per_byte: f64) -> (f64, f64) {
    let sum =
        |of: fn(&Equation) -> f64| equations.iter().map(|one| one.weight * of(one)).sum::<f64>();
    let (hh, hb, bb) =
        (sum(|e| e.hops * e.hops), sum(|e| e.hops * e.bytes), sum(|e| e.bytes * e.bytes));
    let (hs, bs) = (sum(|e| e.hops * e.seconds), sum(|e| e.bytes * e.seconds));
    let most_per_byte = equations.iter().map(|e| e.seconds / e.bytes).fold(f64::INFINITY, f64::min);
    let least_per_byte = if met_per_byte <= most_per_byte { met_per_byte } else { 0.0 };
    let determinant = hh * bb - hb * hb;
    // Of one length it cannot be told what is whose.
    let fitted = (determinant > 1e-9 * hh * bb).then(|| (hh * bs - hb * hs) / determinant);
    let per_byte = fitted.unwrap_or(0.0).max(least_per_byte);
    // If nobody knows, all of it is bytes: what is larger than anything seen does not come for nothing then.
    let per_byte = if per_byte > 0.0 { per_byte } else { most_per_byte };
    let latency = if hh > 0.0 { (hs - hb * per_byte) / hh } else { 0.0 };
    if latency >= 0.0 {
        return (latency, per_byte);
    }
    (0.0, (bs / bb).max(least_per_byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterConfig;
    use paceline_job::{
        Dtype, Settings, StrategyChoice,
        graph::layered::{LayerTimes, Layered},
        trace::{Layer, Tensor},
    };

    fn link(rate: f64, microseconds: u64) -> Link {
        let rate = Rate::from_bytes_per_second(rate);
        Link { rate, latency: Duration::from_micros(microseconds) }
    }

    /// Workers of one host whose layers are so far apart that operations do not meet, and the times that operations take over
    /// `memory` as if they had been recorded.
    fn recorded(workers: usize, strategy: &str, elements: [u64; 3], memory: Link) -> Scenario {
        let layers = elements.iter().map(|&elements| {
            let name: std::sync::Arc<str> = format!("layer of {elements}").into();
            let tensors = vec![Tensor { name: name.clone(), elements, dtype: Dtype::F32 }];
            Layer { name, tensors, activation_bytes: 0 }
        });
        let times = LayerTimes { backward: 100_000_000, ..LayerTimes::default() };
        let hosts = vec!["here".to_string(); workers];
        let graph = Layered::alike(layers.collect(), &[times; 3], hosts, 5).graph();
        let strategy = StrategyChoice(strategy.to_string());
        let settings = Settings { strategy, ..Settings::default() };
        let (wire, config) = (link(1e9, 50), ClusterConfig::default());
        let mut scenario = Scenario { graph, settings, wire, memory, met: None, config };
        let played = super::super::play_out(&scenario.graph, &scenario.network()).unwrap();
        for (operation, post) in scenario.graph.operations.iter_mut().zip(&played.last_posts) {
            operation.recorded = vec![0; workers];
            assert!(post.is_some());
        }
        for (operation, rank, at) in &played.arrivals {
            let post = played.last_posts[operation.index()].unwrap();
            let took = at.0 - played.ends[post.index()].0;
            scenario.graph.operations[operation.index()].recorded[rank.index()] = took;
        }
        scenario.met = Some(link(1e10, 1));
        scenario.memory = link(1e10, 1);
        scenario
    }

    #[test]
    fn the_link_that_operations_took_their_time_over_comes_back() {
        for (workers, strategy) in [(2, "ring"), (4, "ring"), (3, "recursive_doubling")] {
            let known = link(5e8, 80);
            let scenario = recorded(workers, strategy, [6, 60_000, 600_000], known);
            let found = memory(&scenario).unwrap();
            let near = |found: f64, known: f64| (found / known - 1.0).abs() < 0.05;
            assert!(near(found.rate.bytes_per_second(), 5e8), "{strategy}: {found:?}");
            assert!(near(found.latency.as_secs_f64(), 80e-6), "{strategy}: {found:?}");
        }
    }

    #[test]
    fn of_one_length_what_memory_cannot_have_taken_is_latency() {
        let scenario = recorded(2, "ring", [60_000; 3], link(1e10, 200));
        let found = memory(&scenario).unwrap();
        assert!((found.latency.as_secs_f64() / 200e-6 - 1.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn a_rate_slower_than_what_operations_took_is_not_believed() {
        let mut scenario = recorded(2, "ring", [6, 60_000, 600_000], link(5e8, 80));
        scenario.memory = link(5e7, 80);
        let found = memory(&scenario).unwrap();
        assert!((found.rate.bytes_per_second() / 5e8 - 1.0).abs() < 0.05, "{found:?}");
        assert!((found.latency.as_secs_f64() / 80e-6 - 1.0).abs() < 0.05, "{found:?}");

        let mut scenario = recorded(2, "ring", [60_000; 3], link(5e8, 80));
        scenario.memory = link(5e7, 80);
        let found = memory(&scenario).unwrap();
        assert_eq!(found.latency, Duration::ZERO, "{found:?}");
        assert!(found.rate.bytes_per_second() > 2e8, "{found:?}");
    }

    #[test]
    fn a_link_over_which_steps_would_take_longer_than_they_did_is_made_faster() {
        let scenario = recorded(2, "ring", [6, 60_000, 600_000], link(5e8, 80));
        let step = |network: &Network| play(&scenario.graph, network).unwrap().step_ms(1);
        let over = |memory| step(&Scenario { memory, ..scenario.clone() }.network());
        let recorded = step(&Network::Recorded);
        assert!(over(link(5e6, 8000)) > 1.5 * recorded);
        let found = as_fast_as_recorded(&scenario, 8e-3, 1.0 / 5e6);
        let ratio = over(found) / recorded;
        assert!((0.98..1.02).contains(&ratio), "{ratio}: {found:?}");
        // What is right already stays as it is.
        let right = as_fast_as_recorded(&scenario, 80e-6, 1.0 / 5e8);
        assert_eq!(right.latency, Duration::from_micros(80));
    }

    #[test]
    fn operations_that_seem_to_have_taken_nothing_show_nothing() {
        let mut scenario = recorded(2, "ring", [6, 60_000, 600_000], link(5e8, 80));
        for operation in scenario.graph.operations.iter_mut().filter(|one| one.elements == 6) {
            operation.recorded.fill(0);
        }
        let found = memory(&scenario).unwrap();
        assert!((found.rate.bytes_per_second() / 5e8 - 1.0).abs() < 0.05, "{found:?}");
        scenario.graph.operations.iter_mut().for_each(|one| one.recorded.fill(0));
        assert_eq!(memory(&scenario), None);
    }

    #[test]
    fn workers_of_several_hosts_and_a_few_operations_show_nothing() {
        let mut scenario = recorded(2, "ring", [6, 60_000, 600_000], link(5e8, 80));
        scenario.graph.operations.iter_mut().skip(3).for_each(|one| one.recorded.clear());
        assert_eq!(memory(&scenario), None);
        let mut scenario = recorded(2, "ring", [6, 60_000, 600_000], link(5e8, 80));
        scenario.graph.workers[1].host = "there".to_string();
        assert_eq!(memory(&scenario), None);
    }
}
