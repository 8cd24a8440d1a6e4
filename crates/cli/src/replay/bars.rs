//! A run as bars on rows: what each worker did when, as it was measured and as it is predicted, on the same axis.

use crate::scenario::Loaded;
use paceline_job::{
    Rank, Time,
    graph::{Graph, OperationId, Role},
    trace::{Kind, LaneKind, Phase, Stamp},
};
use paceline_replay::graph::{Piece, Played, critical_path};
use std::collections::{HashMap, HashSet};

/// What a bar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Forward,
    Backward,
    Update,
    Other,
    Wait,
    Network,
}

impl Look {
    /// For style sheets and legends.
    pub fn name(self) -> &'static str {
        match self {
            Look::Forward => "forward",
            Look::Backward => "backward",
            Look::Update => "update",
            Look::Other => "other",
            Look::Wait => "wait",
            Look::Network => "communication",
        }
    }

    fn of(phase: Phase) -> Look {
        match phase {
            Phase::Forward => Look::Forward,
            Phase::Backward => Look::Backward,
            Phase::Update => Look::Update,
            Phase::Other => Look::Other,
        }
    }
}

/// Something that took time, in nanoseconds from the begin of its row.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub from: u64,
    pub to: u64,
    pub look: Look,
    pub name: String,
    /// Whether it is on the critical path, where that is known.
    pub critical: bool,
    /// The operation that it is, in a graph.
    pub operation: Option<OperationId>,
}

/// Bars of one worker and one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub rank: Rank,
    pub name: String,
    pub bars: Vec<Bar>,
}

/// The last step as it was measured.
pub fn measured(loaded: &Loaded, most_workers: usize) -> Vec<Row> {
    let clocks = &loaded.clocks;
    let workers = &loaded.trace.workers;
    let last = workers.iter().filter_map(|worker| {
        let step = worker.steps.last()?;
        let before = worker.steps.iter().rev().nth(1).map_or(step.begin, |before| before.end);
        Some((clocks.common(worker.rank, before), clocks.common(worker.rank, step.end)))
    });
    let last: Vec<(Stamp, Stamp)> = last.collect();
    let Some(from) = last.iter().map(|window| window.0).min() else { return Vec::new() };
    let to = last.iter().map(|window| window.1).max().unwrap_or(from);
    let mut rows = Vec::new();
    for worker in workers.iter().take(most_workers) {
        let mut lanes: Vec<Row> = worker
            .lanes
            .iter()
            .map(|lane| Row { rank: worker.rank, name: lane.name.clone(), bars: Vec::new() })
            .collect();
        let name = "communication".to_string();
        let mut network = Row { rank: worker.rank, name, bars: Vec::new() };
        for span in &worker.spans {
            let begin = clocks.common(worker.rank, span.begin);
            let end = clocks.common(worker.rank, span.end());
            if end <= from || begin >= to {
                continue;
            }
            let look = match &span.kind {
                Kind::Work(phase) => Look::of(*phase),
                Kind::Launch => Look::Other,
                Kind::Wait => Look::Wait,
                Kind::Collective(_) => Look::Network,
                Kind::Message(_) | Kind::Post | Kind::Scope => continue,
            };
            let bar = Bar {
                from: begin.max(from).since(from),
                to: end.min(to).since(from),
                look,
                name: span.name.to_string(),
                critical: false,
                operation: None,
            };
            let lane = worker.lanes.get(span.lane.0 as usize).map(|lane| lane.kind);
            if look == Look::Network || lane == Some(LaneKind::Network) {
                network.bars.push(bar);
            } else if let Some(row) = lanes.get_mut(span.lane.0 as usize) {
                row.bars.push(bar);
            }
        }
        lanes.push(network);
        rows.extend(lanes.into_iter().filter(|row| !row.bars.is_empty()));
    }
    rows
}

/// The last step as it is predicted.
pub fn predicted(graph: &Graph, played: &Played, most_workers: usize) -> Vec<Row> {
    let steps = played.steps.len();
    let end_of = |step: usize| played.steps[step].iter().max().copied().unwrap_or_default();
    let Some(last) = steps.checked_sub(1) else { return Vec::new() };
    let from = if last > 0 { end_of(last - 1) } else { Time::ZERO };
    rows(graph, played, most_workers, from, end_of(last))
}

/// Everything between two times.
pub fn rows(graph: &Graph, played: &Played, most: usize, from: Time, to: Time) -> Vec<Row> {
    let path = critical_path(graph, played, from);
    let (mut nodes, mut operations) = (HashSet::new(), HashSet::new());
    for piece in path {
        match piece {
            Piece::Node { node, .. } => nodes.insert(node.0),
            Piece::Operation { operation, .. } => operations.insert(operation.0),
        };
    }
    // Operations that take no time are still there.
    let bar = |begin: Time, end: Time, look, name: &str, critical| {
        let long = begin < end || look == Look::Network;
        let end = end.max(begin);
        (end >= from && begin < to && long).then(|| Bar {
            from: begin.max(from).0 - from.0,
            to: end.min(to).0 - from.0,
            look,
            name: name.to_string(),
            critical,
            operation: None,
        })
    };
    let mut posted: HashMap<(OperationId, Rank), Time> = HashMap::new();
    for (node, end) in graph.nodes.iter().zip(&played.ends) {
        if let Role::Post(operation) = node.role {
            posted.insert((operation, node.rank), *end);
        }
    }
    let mut rows = Vec::new();
    for (rank, worker) in graph.workers.iter().enumerate().take(most) {
        let rank = Rank(rank as u32);
        for sequence in &worker.lanes {
            let mut before = Time::ZERO;
            let bars = sequence.nodes.iter().filter_map(|id| {
                let node = &graph.nodes[id.index()];
                let end = played.ends[id.index()];
                let ready = std::mem::replace(&mut before, end);
                if let Role::Await(_) = node.role {
                    return bar(ready, end, Look::Wait, &node.name, false);
                }
                let critical = nodes.contains(&id.0);
                bar(played.begins[id.index()], end, Look::of(node.phase), &node.name, critical)
            });
            rows.push(Row { rank, name: sequence.lane.name.clone(), bars: bars.collect() });
        }
        let arrivals = played.arrivals.iter().filter(|(_, receiver, _)| *receiver == rank);
        let bars = arrivals.filter_map(|(operation, _, over)| {
            let begin = *posted.get(&(*operation, rank))?;
            let critical = operations.contains(&operation.0);
            let name = &graph.operations[operation.index()].name;
            let bar = bar(begin, *over, Look::Network, name, critical)?;
            Some(Bar { operation: Some(*operation), ..bar })
        });
        rows.push(Row { rank, name: "communication".to_string(), bars: bars.collect() });
    }
    rows.retain(|row| !row.bars.is_empty());
    rows
}
