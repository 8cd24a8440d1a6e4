//! Links on the critical path: where communication is slow is where its time is found, and nothing of a step is lost on
//! the way back from its end.

use paceline_job::{
    ByteSize, Dtype, Link, Rate, Settings, StrategyChoice,
    graph::layered::{LayerTimes, Layered},
    trace::{Layer, Tensor},
};
use paceline_replay::{
    ClusterConfig, WorkerConfig,
    graph::{Analysis, LinkShare, Network, Scenario, Spent, play},
};
use std::time::Duration;

/// Workers on these hosts, with layers that need more time on the wire than to compute.
fn scenario(hosts: &[&str], strategy: &str) -> Scenario {
    let layers = [4_u64, 16, 8, 32].iter().enumerate().map(|(number, mebibytes)| Layer {
        name: format!("layer {number}").into(),
        tensors: vec![Tensor {
            name: format!("weight {number}").into(),
            elements: mebibytes << 18,
            dtype: Dtype::F32,
        }],
        activation_bytes: 0,
    });
    let times = [(3, 5), (8, 17), (2, 6), (10, 19)].map(|(forward, backward)| LayerTimes {
        forward: forward * 1_000_000,
        backward: backward * 1_000_000,
        ..LayerTimes::default()
    });
    let hosts = hosts.iter().map(ToString::to_string).collect();
    let graph = Layered::alike(layers.collect(), &times, hosts, 5).graph();
    let link = |rate, microseconds| Link {
        rate: Rate::from_bytes_per_second(rate),
        latency: Duration::from_micros(microseconds),
    };
    let strategy = StrategyChoice(strategy.to_string());
    let settings = Settings { strategy, credit: ByteSize::mib(4), ..Settings::default() };
    let config = ClusterConfig::default();
    Scenario { graph, settings, wire: link(4e8, 50), memory: link(4e9, 5), met: None, config }
}

fn sum<'a>(links: impl Iterator<Item = &'a LinkShare>) -> f64 {
    links.map(|link| link.milliseconds).sum()
}

fn communication(analysis: &Analysis) -> f64 {
    let shares = analysis.critical_path.iter();
    shares.filter(|share| share.spent == Spent::Communication).map(|share| share.milliseconds).sum()
}

#[test]
fn a_slow_wire_takes_most_of_the_communication() {
    let scenario = scenario(&["a", "b", "c", "d"], "ring");
    let mut network = scenario.network();
    let Network::Engines { topology, .. } = &mut network else { unreachable!("engines play it") };
    topology.hosts[2].link.rate = Rate::from_bytes_per_second(4e7);
    let (analysis, _) = Analysis::of(&scenario, &network, 1).unwrap();
    let all = communication(&analysis);
    let of_slow = sum(analysis.links.iter().filter(|link| link.from == "c" || link.to == "c"));
    assert!(of_slow > 0.9 * all, "{of_slow} of {all}: {:?}", analysis.links);
    // Where wires are alike, that host is one of four, and each host is at two of the ring's four links.
    let (alike, _) = Analysis::of(&scenario, &scenario.network(), 1).unwrap();
    let of_same = sum(alike.links.iter().filter(|link| link.from == "c" || link.to == "c"));
    assert!(of_same < 0.75 * communication(&alike), "{:?}", alike.links);
}

#[test]
fn what_is_inside_hosts_is_told_from_what_is_between_them() {
    let scenario = scenario(&["a", "a", "b", "b"], "ring");
    let (analysis, _) = Analysis::of(&scenario, &scenario.network(), 1).unwrap();
    let all = communication(&analysis);
    let between = sum(analysis.links.iter().filter(|link| link.from != link.to));
    let inside = sum(analysis.links.iter().filter(|link| link.from == link.to));
    assert!(inside > 0.0 && between > 3.0 * inside, "{between} and {inside} of {all}");
}

#[test]
fn one_message_moves_and_those_behind_it_wait() {
    let mut scenario = scenario(&["a", "b"], "ring");
    let of_queue = |scenario: &Scenario| {
        let (analysis, _) = Analysis::of(scenario, &scenario.network(), 1).unwrap();
        sum(analysis.links.iter()) - analysis.links.iter().map(|link| link.waiting_ms).sum::<f64>()
    };
    scenario.settings.credit = ByteSize(1);
    let one_by_one = of_queue(&scenario);
    scenario.settings.credit = ByteSize::mib(64);
    let together = of_queue(&scenario);
    // With no more than one on the way, hardly anything is behind others.
    assert!(one_by_one > together, "{one_by_one} ms moving one by one, {together} ms all at once");
}

#[test]
fn layers_links_and_the_rest_are_the_step() {
    let hosts: [&[&str]; 3] =
        [&["a", "b", "c", "d"], &["a", "a", "b", "b"], &["a", "a", "a", "b", "b", "c"]];
    for hosts in hosts {
        for strategy in paceline_sync::strategy::all() {
            let strategy = strategy.name();
            for combine_rate in [None, Some(Rate::from_bytes_per_second(1e9))] {
                let mut scenario = scenario(hosts, &strategy);
                let per_frame = Duration::from_micros(3);
                scenario.config.worker =
                    WorkerConfig { combine_rate, per_frame, ..WorkerConfig::default() };
                let (analysis, played) = Analysis::of(&scenario, &scenario.network(), 1).unwrap();
                let named = format!("{strategy} on {hosts:?}, {combine_rate:?}: {analysis:?}");
                let shares: f64 = analysis.critical_path.iter().map(|share| share.share).sum();
                assert!((shares - 1.0).abs() < 1e-6, "{shares}: {named}");
                let links = sum(analysis.links.iter()) + analysis.off_links_ms;
                assert!((links - communication(&analysis)).abs() < 1e-6, "{links}: {named}");
                // What cannot be followed would be off links; combining is the only other thing there.
                assert!(combine_rate.is_some() || analysis.off_links_ms == 0.0, "{named}");
                let unwatched = play(&scenario.graph, &scenario.network()).unwrap();
                assert_eq!(unwatched.steps, played.steps, "watching changes nothing");
            }
        }
    }
}
