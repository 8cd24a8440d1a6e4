//! What a job would show of itself, had it run: the metrics of a graph that was played, by the same rules by which a running
//! worker makes them of what it sees.

use super::{Played, remote::post};
use crate::error::ReplayError;
use paceline_job::{
    Time, ViewVersion,
    graph::{Graph, NodeId, Role},
};
use paceline_sync::metrics::{Computed, Flows, JobShape, Meter, WorkerMetrics};
use std::sync::Arc;

/// What a job shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// What it synchronises in every step, as worker 0 sees it.
    pub shape: Arc<JobShape>,
    /// By rank.
    pub workers: Vec<WorkerMetrics>,
}

/// Make metrics of what was played, smoothed over all steps; the first tells nothing. Each worker's first lane is its
/// training thread. Rates need [`Played::traffic`].
pub fn metrics(graph: &Graph, played: &Played) -> Result<Shown, ReplayError> {
    let mut shown = Shown::default();
    for (rank, worker) in graph.workers.iter().enumerate() {
        let traffic = played.traffic.get(rank);
        let (mut meter, mut until) = (Meter::default(), Time::ZERO);
        let mut numbers = vec![None; graph.operations.len()];
        let begin = |meter: &mut Meter, step: u64, at: Time| {
            let last = step == u64::from(graph.steps);
            let totals = traffic.filter(|_| last).map(|traffic| traffic.totals);
            meter.begin_step(step, ViewVersion(1), at, totals.unwrap_or_default());
        };
        begin(&mut meter, 0, until);
        let lane = worker.lanes.first().map_or(&[][..], |lane| &lane.nodes[..]);
        for &NodeId(node) in lane {
            let (begins, ends) = (played.begins[node as usize], played.ends[node as usize]);
            let node = &graph.nodes[node as usize];
            match node.role {
                Role::Work => {}
                Role::Post(operation) => {
                    let post = post(graph, operation, node.rank)?;
                    let tensor = Meter::tensor(&post, Computed::Here);
                    let number = tensor.map(|tensor| meter.posted(tensor, ends, ends));
                    numbers[operation.index()] = number;
                }
                Role::Await(operation) => {
                    // What lies between two nodes is the worker's own, whatever it waits for.
                    let over = Time(begins.0.saturating_sub(node.gap));
                    meter.waited(numbers[operation.index()], until.min(over), over);
                }
                Role::StepEnd(step) => begin(&mut meter, u64::from(step) + 1, ends),
            }
            until = ends;
        }
        if rank == 0 {
            shown.shape = meter.shape().cloned().unwrap_or_default();
        }
        let mut worker = meter.report().map_or_else(Default::default, |report| report.metrics);
        let inward = traffic.map_or(&[][..], |traffic| &traffic.inward);
        worker.flows = Flows::default().since(inward.iter().copied());
        shown.workers.push(worker);
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterConfig, graph::Scenario};
    use paceline_job::{
        ByteSize, Dtype, Link, Rate, Settings, StrategyChoice,
        graph::layered::{LayerTimes, Layered},
        trace::{Layer, Tensor},
    };
    use paceline_sync::metrics::LayerMetrics;
    use std::time::Duration;

    const TIMES: [(u64, u64); 4] = [(3, 5), (8, 17), (2, 6), (10, 19)];

    /// Four workers on hosts of their own; layers of so many MiB.
    fn scenario(wire: f64, sizes: [u64; 4], strategy: &str) -> Scenario {
        scenario_of(wire, sizes, strategy, true)
    }

    fn scenario_of(wire: f64, sizes: [u64; 4], strategy: &str, scheduled: bool) -> Scenario {
        let layers = sizes.iter().enumerate().map(|(number, mebibytes)| Layer {
            name: format!("layer {number}").into(),
            tensors: vec![Tensor {
                name: format!("weight {number}").into(),
                elements: mebibytes << 18,
                dtype: Dtype::F32,
            }],
            activation_bytes: 0,
        });
        let times = TIMES.map(|(forward, backward)| LayerTimes {
            forward: forward * 1_000_000,
            backward: backward * 1_000_000,
            ..LayerTimes::default()
        });
        let hosts = (0..4).map(|rank| rank.to_string()).collect();
        let layered = Layered::alike(layers.collect(), &times, hosts, 12);
        let graph = Layered { scheduled, ..layered }.graph();
        let link = |rate, microseconds| Link {
            rate: Rate::from_bytes_per_second(rate),
            latency: Duration::from_micros(microseconds),
        };
        let strategy = StrategyChoice(strategy.to_string());
        let settings = Settings { strategy, credit: ByteSize::mib(4), ..Settings::default() };
        let config = ClusterConfig { traffic: true, ..ClusterConfig::default() };
        Scenario { graph, settings, wire: link(wire, 50), memory: link(1e10, 1), met: None, config }
    }

    fn near(value: f64, wanted: f64, share: f64) -> bool {
        (value / wanted - 1.0).abs() < share
    }

    #[test]
    fn rates_of_wires_come_back() {
        for strategy in ["ring", "recursive_doubling", "parameter_server"] {
            for rate in [50e6, 200e6, 1e9] {
                let scenario = scenario(rate, [4, 16, 8, 32], strategy);
                let shown = metrics(&scenario.graph, &scenario.play().unwrap()).unwrap();
                for worker in &shown.workers {
                    let rates = (worker.upload, worker.download);
                    assert!(near(rates.0, rate, 0.1), "{strategy} at {rate}: {rates:?}");
                    assert!(near(rates.1, rate, 0.1), "{strategy} at {rate}: {rates:?}");
                }
            }
        }
    }

    #[test]
    fn times_of_layers_that_are_waited_for_come_back() {
        for rate in [50e6, 200e6] {
            let scenario = scenario(rate, [4, 16, 8, 32], "ring");
            let played = scenario.play().unwrap();
            let shown = metrics(&scenario.graph, &played).unwrap();
            let names: Vec<_> = shown.shape.tensors.iter().map(|tensor| &*tensor.name).collect();
            assert_eq!(names, ["weight 0", "weight 1", "weight 2", "weight 3"]);
            for worker in &shown.workers {
                assert!(near(worker.seconds, played.step_time(3).unwrap() * 1e-9, 0.03));
                for (place, (layer, (forward, backward))) in
                    worker.layers.iter().zip(TIMES).enumerate()
                {
                    // Where the last layer's forward pass ends and its backward pass begins is estimated.
                    let share = if place < 3 { 0.02 } else { 0.15 };
                    assert!(near(layer.forward * 1e3, forward as f64, share), "{rate}: {layer:?}");
                    assert!(
                        near(layer.backward * 1e3, backward as f64, share),
                        "{rate}: {layer:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn whether_the_most_urgent_goes_first_is_seen() {
        for scheduled in [true, false] {
            let scenario = scenario_of(200e6, [4, 16, 8, 32], "ring", scheduled);
            let shown = metrics(&scenario.graph, &scenario.play().unwrap()).unwrap();
            assert_eq!(shown.shape.scheduled, scheduled);
        }
    }

    #[test]
    fn computation_adds_up_where_nothing_is_waited_for() {
        let scenario = scenario(100e9, [4, 16, 8, 32], "ring");
        let shown = metrics(&scenario.graph, &scenario.play().unwrap()).unwrap();
        let wanted: u64 = TIMES.iter().map(|(forward, backward)| forward + backward).sum();
        for worker in &shown.workers {
            let sum =
                |of: fn(&LayerMetrics) -> f64| worker.layers.iter().map(of).sum::<f64>() * 1e3;
            assert!(near(sum(|layer| layer.forward + layer.backward), wanted as f64, 0.02));
            assert!(near(sum(|layer| layer.forward), 23.0, 0.1), "{worker:?}");
            assert!(near(worker.layers[1].backward * 1e3, 17.0, 0.02), "{worker:?}");
        }
    }
}
