//! Where the time of a step goes: along the critical path, and by asking what a step would take if one thing were
//! different.

use super::{
    Change, Network, Piece, Played, Scenario, critical_path, links::LinkShare, play, play_out,
};
use crate::error::ReplayError;
use paceline_job::{
    Rank, Time,
    graph::Graph,
    trace::{LaneKind, Phase},
};
use serde::Serialize;
use std::{collections::HashMap, fmt, sync::Arc};

/// Gains below this share of a step are not worth a sentence, unless they are among the largest.
const WORTH_SAYING: f64 = 0.005;

/// So many are said in any case: whoever asks where time goes wants to know that it is little, too.
const SAID: usize = 3;

/// A nanosecond: what is below is rounding.
const LEAST_MS: f64 = 1e-6;
/// Stragglers that are named; the others are counted.
const NAMED: usize = 3;

/// What the critical path spends its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spent {
    /// Forward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// Update of parameters.
    Update,
    /// Other work of the host or the device.
    Other,
    /// What passed between spans.
    Gap,
    /// On the way between workers.
    Communication,
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spent::Forward => "forward",
            Spent::Backward => "backward",
            Spent::Update => "update",
            Spent::Other => "other work:",
            Spent::Gap => "time before",
            Spent::Communication => "communication of",
        })
    }
}

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// On what.
    pub spent: Spent,
    /// Of which layer or tensor.
    pub name: Arc<str>,
    /// A step.
    pub milliseconds: f64,
    /// Of the step.
    pub share: f64,
}

/// Something that costs time, and what a step would take without it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// In plain words.
    pub text: String,
    /// What a step would take less.
    pub milliseconds: f64,
    /// Of the step.
    pub share: f64,
}

/// Where the time of a step goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// A step.
    pub step_ms: f64,
    /// A step if operations took no time.
    pub compute_ms: f64,
    /// What operations add to it.
    pub exposed_comm_ms: f64,
    /// By what the critical path spends its time on, longest first.
    pub critical_path: Vec<Share>,
    /// By which link the communication of the critical path is on, longest first.
    pub links: Vec<LinkShare>,
    /// Communication of the critical path that is on no link: workers combine, or it is not known, as where operations take
    /// the time that was recorded.
    pub off_links_ms: f64,
    /// What costs most, by asking what a step would take without it.
    pub losses: Vec<Loss>,
}

impl Analysis {
    /// Of a job as it is, whose operations take the time that `network` gives them, and the run that it is of, to its very end. The first
    /// `skip` steps do not count, because they find nothing left over from one before.
    pub fn of(
        scenario: &Scenario,
        network: &Network,
        skip: usize,
    ) -> Result<(Analysis, Played), ReplayError> {
        let graph = &scenario.graph;
        let played = play_out(graph, &network.watched())?;
        let step = played.step_ms(skip);
        let free = play(graph, &Network::Free)?.step_ms(skip);
        let (since, steps) = played.counted(skip);
        let path = critical_path(graph, &played, since);
        let steps = steps.max(1) as f64;
        let (links, off_links_ms) = LinkShare::along(graph, &path, steps, step);
        let analysis = Analysis {
            step_ms: step,
            compute_ms: free,
            exposed_comm_ms: (step - free).max(0.0),
            critical_path: shares(graph, &path, steps, step),
            links,
            off_links_ms,
            losses: losses(scenario, network, skip, step, free)?,
        };
        Ok((analysis, played))
    }
}

fn shares(graph: &Graph, path: &[Piece], steps: f64, step: f64) -> Vec<Share> {
    let mut sums: HashMap<(Spent, Arc<str>), u64> = HashMap::new();
    let mut add = |spent, name: &Arc<str>, from: Time, to: Time| {
        if from < to {
            *sums.entry((spent, name.clone())).or_default() += to.0 - from.0;
        }
    };
    for piece in path {
        match *piece {
            Piece::Node { node, from, to } => {
                let node = &graph.nodes[node.index()];
                let begin = Time(to.0 - node.length.min(to.0)).max(from);
                add(Spent::Gap, &node.name, from, begin);
                let spent = match node.phase {
                    Phase::Forward => Spent::Forward,
                    Phase::Backward => Spent::Backward,
                    Phase::Update => Spent::Update,
                    Phase::Other => Spent::Other,
                };
                add(spent, &node.name, begin, to);
            }
            Piece::Operation { operation, from, to, .. } => {
                add(Spent::Communication, &graph.operations[operation.index()].name, from, to);
            }
        }
    }
    let mut shares: Vec<Share> = sums
        .into_iter()
        .map(|((spent, name), nanoseconds)| {
            let milliseconds = nanoseconds as f64 / 1e6 / steps;
            Share { spent, name, milliseconds, share: milliseconds / step }
        })
        .collect();
    shares.sort_by(|one, other| {
        let by_time = other.milliseconds.total_cmp(&one.milliseconds);
        by_time.then_with(|| one.name.cmp(&other.name))
    });
    shares
}

/// Ask what would be without each of the usual suspects; the largest gain first.
fn losses(
    scenario: &Scenario,
    network: &Network,
    skip: usize,
    step: f64,
    free: f64,
) -> Result<Vec<Loss>, ReplayError> {
    let mut found = Vec::new();
    let mut say = |milliseconds: f64, text: String| {
        if milliseconds >= LEAST_MS {
            found.push(Loss { text, milliseconds, share: milliseconds / step });
        }
    };
    say(
        step - free,
        "communication that no computation hides (a faster network, fewer bytes, or more overlap would shorten it)"
            .to_string(),
    );
    let mut ask = |graph: Graph, text: &str| -> Result<(), ReplayError> {
        if graph != scenario.graph {
            say(step - play(&graph, network)?.step_ms(skip), text.to_string());
        }
        Ok(())
    };
    let stragglers = scenario.graph.stragglers();
    if !stragglers.is_empty() {
        ask(scenario.graph.clone().without_straggler(), &waiting_for(&stragglers))?;
    }
    ask(
        without(&scenario.graph, |node| node.gap = 0),
        "time between layers or kernels in which nothing was recorded: the host prepares work, loads data or runs Python",
    )?;
    ask(
        without(&scenario.graph, |node| {
            if node.phase == Phase::Update {
                node.length = 0;
            }
        }),
        "updates of parameters (fused optimizers take less)",
    )?;
    for (kind, text) in [
        (
            LaneKind::Thread,
            "work of the host that belongs to no pass of the model: launching kernels, copying, logging",
        ),
        (
            LaneKind::Stream,
            "work of devices of which the trace does not tell which pass of the model it belongs to",
        ),
    ] {
        ask(without_unnamed(&scenario.graph, kind), text)?;
    }
    if let Network::Engines { .. } = network {
        let instant = scenario.clone().with(&Change::Latency(std::time::Duration::ZERO));
        let without_latency = instant.play()?.step_ms(skip);
        say(
            step - without_latency,
            "latency of messages (larger chunks, or fewer hops)".to_string(),
        );
    }
    Ok(largest(found))
}

/// What is worth a sentence, the largest first.
fn largest(mut losses: Vec<Loss>) -> Vec<Loss> {
    losses.sort_by(|one, other| other.milliseconds.total_cmp(&one.milliseconds));
    let worth = losses.iter().take_while(|loss| loss.share >= WORTH_SAYING).count();
    losses.truncate(worth.max(SAID));
    losses
}

/// The slowest by name: of many it is enough to know whom to look at first.
fn waiting_for(stragglers: &[(Rank, f64)]) -> String {
    let mut slowest = stragglers.to_vec();
    slowest.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let named = slowest.iter().take(NAMED);
    let mut named: Vec<String> =
        named.map(|(rank, times)| format!("worker {rank} ({times:.2} times as long)")).collect();
    if slowest.len() > NAMED {
        named.push(format!("{} more", slowest.len() - NAMED));
    }
    format!(
        "waiting for workers that compute longer than the one in the middle: {}",
        named.join(", ")
    )
}

fn without(graph: &Graph, change: impl Fn(&mut paceline_job::graph::Node)) -> Graph {
    let mut graph = graph.clone();
    graph.nodes.iter_mut().for_each(change);
    graph
}

/// Without what lanes of a kind do that belongs to no pass.
fn without_unnamed(graph: &Graph, kind: LaneKind) -> Graph {
    let mut graph = graph.clone();
    let lanes = graph.workers.iter().flat_map(|worker| &worker.lanes);
    for node in lanes.filter(|it| it.lane.kind == kind).flat_map(|it| &it.nodes) {
        let node = &mut graph.nodes[node.index()];
        if node.phase == Phase::Other {
            node.length = 0;
        }
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{
        graph::{Clocks, Job},
        trace::Trace,
    };

    #[test]
    fn work_of_devices_is_not_said_to_be_the_hosts() {
        let node = |id: u32, name: &str, after: &str, took: u32, host: bool| {
            format!(
                r#"{{"Id": {id}, "Name": "{name}", "NodeType": 4, "data_deps": [{after}], "runtime": {took}, "is_cpu_op": {host}}}"#
            )
        };
        let nodes = [node(1, "aten::mm", "", 10, true), node(2, "gemm", "1", 90, false)];
        let json = format!(r#"{{"workload_graph": [{}]}}"#, nodes.join(","));
        let trace = Trace::read_bytes("chakra.0.json", json.into()).unwrap();
        let graph = Job::from_trace(&trace, &Clocks::default()).unwrap().graph;
        let all = play(&graph, &Network::Recorded).unwrap().step_ms(0);
        let gain = |kind| {
            all - play(&without_unnamed(&graph, kind), &Network::Recorded).unwrap().step_ms(0)
        };
        assert!((gain(LaneKind::Thread) - 0.01).abs() < 1e-9);
        assert!((gain(LaneKind::Stream) - 0.09).abs() < 1e-9);
    }

    #[test]
    fn three_causes_are_said_even_if_they_are_small_and_more_only_if_they_are_not() {
        let said = |shares: &[f64]| {
            let loss =
                |share: &f64| Loss { text: String::new(), milliseconds: *share, share: *share };
            largest(shares.iter().map(loss).collect())
                .iter()
                .map(|loss| loss.share)
                .collect::<Vec<_>>()
        };
        assert_eq!(said(&[0.001, 0.2, 0.002, 0.003]), [0.2, 0.003, 0.002]);
        assert_eq!(said(&[0.1, 0.2, 0.004, 0.3, 0.006]), [0.3, 0.2, 0.1, 0.006]);
        assert_eq!(said(&[0.1]), [0.1]);
    }
}
