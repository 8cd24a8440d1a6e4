//! Graphs of traces that name no layers, such as those of PyTorch's profiler: threads and streams as they were seen, each
//! span after those it is known to wait for, with the time that passed in between kept as it was.

use super::{
    Graph, Node, NodeId, Operation, OperationId, OperationKind, Role, Sequence, Worker,
    build::{BuildError, Job, measured},
    clocks::Clocks,
};
use crate::{
    Dtype, Rank,
    trace::{Collective, Kind, LaneKind, Phase, Problem, Span, SpanId, Stamp, Trace, WorkerTrace},
};
use std::collections::HashMap;

/// The steps of a trace as they were seen.
pub(super) fn job(trace: &Trace, clocks: &Clocks, steps: &[u64]) -> Result<Job, BuildError> {
    let mut building = Building {
        graph: Graph { steps: steps.len() as u32, ..Graph::default() },
        operations: HashMap::new(),
        posts: Vec::new(),
        problems: Vec::new(),
    };
    for (place, worker) in trace.workers.iter().enumerate() {
        building.worker(Rank(place as u32), worker, clocks, steps);
    }
    building.settle(trace);
    Ok(Job {
        measured: measured(trace, clocks, steps),
        graph: building.graph,
        problems: building.problems,
        ..Job::default()
    })
}

struct Building {
    graph: Graph,
    /// By group, and sequence or ordinal.
    operations: HashMap<(String, u64), OperationId>,
    /// For each operation and worker: when it took part, and when it was over.
    posts: Vec<Vec<(Rank, Stamp, Stamp)>>,
    problems: Vec<Problem>,
}

impl Building {
    fn worker(&mut self, rank: Rank, worker: &WorkerTrace, clocks: &Clocks, steps: &[u64]) {
        let windows: Vec<(Stamp, Stamp)> = worker
            .steps
            .iter()
            .filter(|step| steps.contains(&step.number))
            .map(|step| (step.begin, step.end))
            .collect();
        let from = windows.iter().map(|window| window.0).min().unwrap_or_default();
        let to = windows.iter().map(|window| window.1).max().unwrap_or_default();
        let mut kept = Kept { from, to, nodes: HashMap::new(), ends: HashMap::new() };
        let mut lanes: Vec<Vec<NodeId>> = vec![Vec::new(); worker.lanes.len()];
        let mut ordinals: HashMap<&str, u64> = HashMap::new();
        for (index, span) in worker.spans.iter().enumerate() {
            let id = SpanId(index as u32);
            let ordinal = match &span.kind {
                Kind::Collective(collective) => {
                    let next = ordinals.entry(&collective.group).or_default();
                    *next += 1;
                    *next
                }
                _ => 0,
            };
            if span.begin < from || span.begin >= to || !counts(worker, span) {
                continue;
            }
            let lane = &mut lanes[span.lane.0 as usize];
            // What lies inside what came before on the same lane takes no time of its own.
            let before = lane.last().map(|last| kept.ends[last]);
            if before.is_some_and(|before| span.end() <= before && span.length > 0) {
                continue;
            }
            let begin = before.map_or(span.begin, |before| before.max(span.begin));
            let after: Vec<NodeId> =
                span.after.iter().filter_map(|cause| kept.nodes.get(cause).copied()).collect();
            let mut node = Node {
                name: span.name.clone(),
                rank,
                phase: phase(span),
                role: Role::Work,
                length: span.end().since(begin),
                gap: 0,
                after,
            };
            // The time at which all that it waits for was over; what it did after that is its own.
            let ready = node.after.iter().map(|node| kept.ends[node]).chain(before).max();
            let ready = ready.unwrap_or(from);
            match &span.kind {
                Kind::Collective(collective) => {
                    let stamps = (clocks.common(rank, begin), clocks.common(rank, span.end()));
                    self.collective(
                        collective, ordinal, rank, stamps, &mut node, lane, &mut kept, begin, ready,
                    );
                }
                Kind::Wait => {
                    // It ends when the last thing it waits for does, however long that takes.
                    let over = ready.min(span.end()).max(begin);
                    node.length = span.end().since(over);
                    node.gap = begin.since(ready);
                }
                _ => node.gap = begin.since(ready),
            }
            let number = self.push(node);
            kept.ends.insert(number, span.end().max(before.unwrap_or(from)));
            lane.push(number);
            kept.nodes.insert(id, number);
        }
        self.ends_of_steps(rank, worker, &windows, &mut lanes, &kept);
        let names = worker.lanes.iter().cloned();
        let lanes = names.zip(lanes).map(|(lane, nodes)| Sequence { lane, nodes }).collect();
        self.graph.workers.push(Worker { host: worker.host.clone(), lanes });
    }

    /// An operation becomes two nodes: one that takes part, and one that waits for its end.
    #[allow(clippy::too_many_arguments)]
    fn collective(
        &mut self,
        collective: &Collective,
        ordinal: u64,
        rank: Rank,
        (post, over): (Stamp, Stamp),
        node: &mut Node,
        lane: &mut Vec<NodeId>,
        kept: &mut Kept,
        begin: Stamp,
        ready: Stamp,
    ) {
        let key = (collective.group.to_string(), collective.sequence.unwrap_or(ordinal));
        let next = OperationId(self.graph.operations.len() as u32);
        let operation = *self.operations.entry(key).or_insert(next);
        if operation == next {
            self.graph.operations.push(described(collective));
            self.posts.push(Vec::new());
        }
        self.posts[operation.index()].push((rank, post, over));
        let taking_part = Node {
            role: Role::Post(operation),
            length: 0,
            gap: begin.since(ready),
            phase: Phase::Other,
            name: node.name.clone(),
            rank,
            after: std::mem::take(&mut node.after),
        };
        let number = self.push(taking_part);
        kept.ends.insert(number, begin);
        lane.push(number);
        (node.role, node.length, node.gap) = (Role::Await(operation), 0, 0);
    }

    /// A step is over when the last thing that began in it is, on any lane.
    fn ends_of_steps(
        &mut self,
        rank: Rank,
        worker: &WorkerTrace,
        windows: &[(Stamp, Stamp)],
        lanes: &mut [Vec<NodeId>],
        kept: &Kept,
    ) {
        let thread = worker.lanes.iter().position(|lane| lane.kind == LaneKind::Thread);
        let busiest = (0..lanes.len())
            .filter(|lane| worker.lanes[*lane].kind == LaneKind::Thread)
            .max_by_key(|lane| lanes[*lane].len());
        let Some(home) = busiest.or(thread).or((!lanes.is_empty()).then_some(0)) else { return };
        for (step, &(_, to)) in windows.iter().enumerate() {
            let on_home = lanes[home].iter().filter(|node| kept.ends[node] <= to);
            let last = on_home.max_by_key(|node| kept.ends[node]).copied();
            let gap = last.map_or(to.since(kept.from), |last| to.since(kept.ends[&last]));
            let node = Node {
                name: "end of step".into(),
                rank,
                phase: Phase::Other,
                role: Role::StepEnd(step as u32),
                length: 0,
                gap,
                after: last.into_iter().collect(),
            };
            // Beside the lane: the next step's first spans may begin while this one's last are under way.
            self.push(node);
        }
    }

    /// What was recorded of operations, and those whose other workers are missing from the trace.
    fn settle(&mut self, trace: &Trace) {
        let mut alone = 0;
        for (operation, posts) in self.graph.operations.iter_mut().zip(&self.posts) {
            let last = posts.iter().map(|(_, post, _)| *post).max().unwrap_or_default();
            operation.members = posts.iter().map(|(rank, ..)| *rank).collect();
            operation.recorded = posts.iter().map(|(.., over)| over.since(last)).collect();
            alone += u64::from(posts.len() < trace.workers.len());
        }
        if alone > 0 {
            let text = "operations that not every worker of the trace recorded; they are taken to be among those who did";
            let place = "all workers".to_string();
            self.problems.push(Problem { place, text: text.to_string(), times: alone });
        }
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.graph.nodes.push(node);
        NodeId(self.graph.nodes.len() as u32 - 1)
    }
}

/// What became of a worker's spans.
struct Kept {
    from: Stamp,
    #[allow(dead_code)]
    to: Stamp,
    nodes: HashMap<SpanId, NodeId>,
    ends: HashMap<NodeId, Stamp>,
}

/// Whether a span takes time of its own on its lane.
fn counts(worker: &WorkerTrace, span: &Span) -> bool {
    let lane = worker.lanes.get(span.lane.0 as usize).map(|lane| lane.kind);
    match span.kind {
        Kind::Scope | Kind::Message(_) => false,
        Kind::Work(_) | Kind::Launch | Kind::Wait | Kind::Collective(_) => {
            matches!(lane, Some(LaneKind::Thread | LaneKind::Stream))
        }
    }
}

fn phase(span: &Span) -> Phase {
    match span.kind {
        Kind::Work(phase) => phase,
        _ => Phase::Other,
    }
}

fn described(collective: &Collective) -> Operation {
    let dtype = collective.dtype.unwrap_or(Dtype::F32);
    Operation {
        name: collective.tensor.clone().unwrap_or_else(|| collective.group.clone()),
        kind: match &*collective.operation {
            "reduce_scatter" => OperationKind::ReduceScatter,
            "all_gather" => OperationKind::AllGather,
            "broadcast" => OperationKind::Broadcast,
            "reduce" => OperationKind::Reduce,
            "all_to_all" => OperationKind::AllToAll,
            "barrier" => OperationKind::Barrier,
            "send" | "recv" => OperationKind::SendReceive,
            _ => OperationKind::AllReduce,
        },
        members: Vec::new(),
        elements: collective.bytes / dtype.size() as u64,
        dtype,
        priority: collective.priority,
        recorded: Vec::new(),
    }
}
