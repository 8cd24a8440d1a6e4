//! Partial replays against whole ones: steps that follow from tensors played by themselves are about as long as those of
//! the engines, and above all come in the same order, for every way to send the tensors of small jobs together.

use paceline_job::{
    Dtype, Link, Rate, Settings, StrategyChoice,
    graph::layered::{Group, LayerTimes, Layered},
    trace::{Layer, Tensor},
};
use paceline_replay::{
    ClusterConfig, WorkerConfig,
    graph::{Network, Prices, Scenario, play},
};
use std::{sync::Arc, time::Duration};

/// Two plans that differ by less are as good as each other.
const AS_GOOD: f64 = 0.02;

/// Layers of one tensor each: elements, and microseconds forward and backward.
fn layers(layers: &[(u64, u64, u64)], crosses: bool) -> Layered {
    let layer = |(place, (elements, ..)): (usize, &(u64, u64, u64))| {
        let name = format!("layer{place}").into();
        let tensors = vec![Tensor { name, elements: *elements, dtype: Dtype::F32 }];
        Layer { name: format!("layer{place}").into(), tensors, activation_bytes: 0 }
    };
    let times = |(_, forward, backward): &(u64, u64, u64)| LayerTimes {
        forward: forward * 1000,
        backward: backward * 1000,
        ..LayerTimes::default()
    };
    let times: Vec<LayerTimes> = layers.iter().map(times).collect();
    let layers = layers.iter().enumerate().map(layer).collect();
    let hosts = (0..4).map(|rank| format!("host{rank}")).collect();
    let layered = Layered::alike(layers, &times, hosts, 3);
    Layered { crosses_step: crosses, scheduled: crosses, ..layered }
}

fn scenario(layered: &Layered, strategy: &str, rate: f64) -> Scenario {
    let link = |rate, latency| Link { rate: Rate::from_bits_per_second(rate), latency };
    let worker = WorkerConfig { per_frame: Duration::from_micros(5), ..WorkerConfig::default() };
    let strategy = StrategyChoice(strategy.to_string());
    Scenario {
        graph: layered.graph(),
        settings: Settings { strategy, ..Settings::default() },
        wire: link(rate, Duration::from_micros(80)),
        memory: link(32e9, Duration::from_micros(5)),
        met: None,
        config: ClusterConfig { worker, ..ClusterConfig::default() },
    }
}

/// Milliseconds of a step for every way to cut the chain of tensors: partial replay, and whole.
fn all_ways(layered: &Layered, scenario: &Scenario) -> Vec<(f64, f64)> {
    let tensors = layered.layers.len();
    let longest = layered.layers.iter().map(|layer| layer.tensors[0].bytes()).sum();
    let prices = Arc::new(Prices::of(scenario, longest).unwrap());
    let ways = (0..1_u32 << (tensors - 1)).map(|cuts| {
        let mut groups = vec![Group { tensors: vec![0] }];
        for tensor in 1..tensors as u32 {
            if cuts >> (tensor - 1) & 1 == 1 {
                groups.push(Group { tensors: Vec::new() });
            }
            groups.last_mut().unwrap().tensors.push(tensor);
        }
        let graph = Layered { groups, ..layered.clone() }.graph();
        let partial = play(&graph, &Network::Served(prices.clone())).unwrap();
        assert_eq!(partial.events, 0);
        let whole = play(&graph, &scenario.network()).unwrap();
        (partial.step_ms(0), whole.step_ms(0))
    });
    ways.collect()
}

/// Chains with large tensors at one end, at the other, small ones, and all alike.
fn chains() -> [Vec<(u64, u64, u64)>; 4] {
    [
        vec![(250_000, 400, 800); 6],
        vec![
            (2_000, 100, 200),
            (3_000, 100, 200),
            (500, 50, 100),
            (20_000, 300, 500),
            (900, 50, 80),
        ],
        vec![(1_000, 600, 1200), (4_000, 500, 900), (50_000, 200, 400), (900_000, 100, 300)],
        vec![(900_000, 500, 800), (50_000, 300, 500), (4_000, 100, 300), (1_000, 50, 100)],
    ]
}

#[test]
fn partial_replay_ranks_plans_as_whole_replay_does() {
    let mut deviations = Vec::new();
    let (mut agreeing, mut differing) = (0, 0);
    for chain in chains() {
        for (strategy, rate, crosses) in [
            ("ring", 1e9, true),
            ("ring", 1e9, false),
            ("ring", 10e9, true),
            ("double_tree", 1e9, true),
            ("parameter_server", 10e9, false),
        ] {
            let layered = layers(&chain, crosses);
            let ways = all_ways(&layered, &scenario(&layered, strategy, rate));
            deviations.extend(ways.iter().map(|(partial, whole)| (partial / whole - 1.0).abs()));
            for (place, one) in ways.iter().enumerate() {
                for other in &ways[..place] {
                    if (one.1 / other.1 - 1.0).abs() > AS_GOOD {
                        differing += 1;
                        agreeing += usize::from((one.0 < other.0) == (one.1 < other.1));
                    }
                }
            }
            let chosen = ways.iter().min_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
            let least = ways.iter().map(|way| way.1).fold(f64::INFINITY, f64::min);
            let case = format!("{strategy} {rate} crosses={crosses} {chain:?}");
            println!("{case}: {:.3} chosen, {least:.3} the least", chosen.1);
            assert!(chosen.1 <= 1.05 * least, "{case}: {} {least}", chosen.1);
        }
    }
    deviations.sort_by(f64::total_cmp);
    let of = |share: f64| deviations[(share * (deviations.len() - 1) as f64) as usize];
    println!(
        "{} plans: off by {:.3} in the middle, {:.3} at the 90th",
        deviations.len(),
        of(0.5),
        of(0.9)
    );
    println!("{agreeing} of {differing} pairs in the same order");
    assert!(of(0.5) < 0.03 && of(0.9) < 0.12, "{} {}", of(0.5), of(0.9));
    assert!(100 * agreeing >= 90 * differing, "{agreeing} of {differing}");
}
