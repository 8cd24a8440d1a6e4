//! Graphs of traces that name no layers, such as those of PyTorch's profiler: threads and streams as they were seen, each
//! span after those it is known to wait for, with the time that passed in between kept as it was.

use super::{
    Graph, Node, NodeId, Operation, OperationId, OperationKind, Role, Sequence, Worker,
    build::{BuildError, Job, by, measured},
    clocks::Clocks,
    pieces::{self, Piece},
    tangled::tangled,
};
use crate::{
    CollectiveKind, Dtype, Rank,
    trace::{
        Collective, Kind, LaneKind, Phase, Problem, SEND_RECEIVE, Span, SpanId, Stamp, Trace,
        WorkerTrace, match_collectives,
    },
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// The steps of a trace as they were seen.
pub(super) fn job(trace: &Trace, clocks: &Clocks, steps: &[u64]) -> Result<Job, BuildError> {
    // What does not fit together is reported with the trace.
    let (matched, _) = match_collectives(trace);
    let parts = matched.iter().enumerate().flat_map(|(number, it)| {
        it.parts.iter().map(move |(place, span)| ((Rank(*place as u32), *span), number))
    });
    let mut building = Building {
        graph: Graph { steps: steps.len() as u32, ..Graph::default() },
        matched: parts.collect(),
        operations: HashMap::new(),
        names: HashMap::new(),
        posts: Vec::new(),
        problems: Vec::new(),
    };
    for (place, worker) in trace.workers.iter().enumerate() {
        building.worker(Rank(place as u32), worker, clocks, steps);
    }
    building.settle(trace);
    building.untangle();
    // Where nothing is done together, nobody knows who began when: the graph has all begin together, each goes by its own clock.
    let begun_together = |worker: &WorkerTrace, stamp: Stamp| {
        let first = worker.steps.iter().find(|step| Some(&step.number) == steps.first());
        Stamp(stamp.0.saturating_sub(first.map_or(0, |step| step.begin.0)))
    };
    let measured = if building.graph.operations.is_empty() {
        measured(trace, steps, begun_together)
    } else {
        measured(trace, steps, by(clocks))
    };
    Ok(Job { measured, graph: building.graph, problems: building.problems, ..Job::default() })
}

struct Building {
    graph: Graph,
    /// Collectives of workers that are the same one have the same number.
    matched: HashMap<(Rank, SpanId), usize>,
    /// By that number.
    operations: HashMap<usize, OperationId>,
    /// How many operations of a step have a name.
    names: HashMap<(usize, Arc<str>), u64>,
    /// For each operation and worker: when it took part, and when it was over.
    posts: Vec<Vec<(Rank, Stamp, Stamp)>>,
    problems: Vec<Problem>,
}

impl Building {
    fn worker(&mut self, rank: Rank, worker: &WorkerTrace, clocks: &Clocks, steps: &[u64]) {
        let recorded = worker.steps.iter().filter(|step| steps.contains(&step.number));
        let windows: Vec<(Stamp, Stamp)> = recorded.map(|step| (step.begin, step.end)).collect();
        let from = windows.iter().map(|window| window.0).min().unwrap_or_default();
        let to = windows.iter().map(|window| window.1).max().unwrap_or_default();
        let lanes: Vec<Vec<Piece>> = pieces::of(worker, from, to);

        // Who waits for a span waits for its last piece; for a launch, for its first: a device may begin before the call is over.
        let first = self.graph.nodes.len() as u32;
        let mut waited_for: HashMap<SpanId, (NodeId, Stamp)> = HashMap::new();
        for (piece, number) in lanes.iter().flatten().zip(first..) {
            let launches = matches!(worker.spans[piece.span.0 as usize].kind, Kind::Launch);
            let entry = (NodeId(number), piece.end);
            if launches {
                waited_for.entry(piece.span).or_insert(entry);
            } else {
                waited_for.insert(piece.span, entry);
            }
        }
        let mut sequences = Vec::with_capacity(lanes.len());
        for (place, pieces) in lanes.iter().enumerate() {
            let place = pieces.first().map_or(place, |piece| {
                // What is on its way has pieces of its own, and its lane with others.
                worker.spans[piece.span.0 as usize].lane.0 as usize
            });
            let begin = self.graph.nodes.len() as u32;
            let mut before = None;
            for piece in pieces {
                let node = self.node(rank, worker, piece, &waited_for, before.unwrap_or(from));
                self.graph.nodes.push(node);
                before = Some(piece.end);
            }
            let nodes = (begin..self.graph.nodes.len() as u32).map(NodeId).collect();
            sequences.push(Sequence { lane: worker.lanes[place].clone(), nodes });
        }
        self.operations_of(rank, worker, clocks, &windows, &lanes, first);
        self.ends_of_steps(rank, worker, &windows, &lanes, first, from);
        self.graph.workers.push(Worker { host: worker.host.clone(), lanes: sequences });
    }

    fn node(
        &self,
        rank: Rank,
        worker: &WorkerTrace,
        piece: &Piece,
        waited_for: &HashMap<SpanId, (NodeId, Stamp)>,
        before: Stamp,
    ) -> Node {
        let span = &worker.spans[piece.span.0 as usize];
        let causes: Vec<(NodeId, Stamp)> = if piece.first {
            let known = span.after.iter().filter_map(|cause| waited_for.get(cause).copied());
            known.collect()
        } else {
            Vec::new()
        };
        // When all that it waits for was over; what passed after that is its own.
        let ready = causes.iter().map(|cause| cause.1).fold(before, Stamp::max);
        let begin = if matches!(span.kind, Kind::Wait) {
            // It ends when the last thing it waits for does, however long that takes.
            piece.begin.max(ready.min(piece.end))
        } else {
            piece.begin
        };
        Node {
            name: span.name.clone(),
            rank,
            phase: phase(span),
            role: Role::Work,
            length: piece.end.since(begin),
            gap: begin.since(ready),
            after: causes.into_iter().map(|cause| cause.0).collect(),
        }
    }

    /// An operation is two pieces: one that takes part, and one that waits for its end.
    fn operations_of(
        &mut self,
        rank: Rank,
        worker: &WorkerTrace,
        clocks: &Clocks,
        windows: &[(Stamp, Stamp)],
        lanes: &[Vec<Piece>],
        first: u32,
    ) {
        let mut found: Vec<(SpanId, NodeId)> = Vec::new();
        for (piece, number) in lanes.iter().flatten().zip(first..) {
            let span = &worker.spans[piece.span.0 as usize];
            if matches!(span.kind, Kind::Collective(_)) && piece.first {
                found.push((piece.span, NodeId(number)));
            }
        }
        found.sort_unstable_by_key(|(span, _)| *span);
        for (id, node) in found {
            let span = &worker.spans[id.0 as usize];
            let Kind::Collective(collective) = &span.kind else { continue };
            let next = OperationId(self.graph.operations.len() as u32);
            let number = self.matched.get(&(rank, id));
            let operation = number.map_or(next, |it| *self.operations.entry(*it).or_insert(next));
            let mut described = described(collective);
            if operation == next {
                let step = windows.partition_point(|window| window.0 <= span.begin);
                described.name = self.name(step, collective);
                self.graph.operations.push(described);
                self.posts.push(Vec::new());
            } else {
                // Of a broadcast only the root says how much it is; of others, perhaps only some of them do.
                let known = &mut self.graph.operations[operation.index()];
                if known.bytes() < described.bytes() {
                    (known.elements, known.dtype) = (described.elements, described.dtype);
                }
            }
            let stamps =
                (clocks.common(worker.rank, span.begin), clocks.common(worker.rank, span.end()));
            self.posts[operation.index()].push((rank, stamps.0, stamps.1));
            self.graph.nodes[node.index()].role = Role::Post(operation);
            let wait = &mut self.graph.nodes[node.index() + 1];
            (wait.role, wait.length, wait.gap) = (Role::Await(operation), 0, 0);
        }
    }

    /// Engines know operations by their names, so no two of a step have the same.
    fn name(&mut self, step: usize, collective: &Collective) -> Arc<str> {
        let group = &collective.group;
        let name = match &collective.tensor {
            Some(tensor) => tensor.clone(),
            None if group.is_empty() => collective.operation.clone(),
            None => format!("{} of group {group}", collective.operation).into(),
        };
        let count = self.names.entry((step, name.clone())).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name} ({count})").into() }
    }

    /// A step is over when the thread that goes through all of them has done its part: the one on which they are marked, or
    /// else whatever worked to the very end, or of the host's threads the one that worked closest to it; and when devices are through
    /// with what they were through with then, lest the host run ahead of a device that got slower. Beside the lanes: the next step's
    /// first spans may begin while this one's last are under way.
    fn ends_of_steps(
        &mut self,
        rank: Rank,
        worker: &WorkerTrace,
        windows: &[(Stamp, Stamp)],
        lanes: &[Vec<Piece>],
        first: u32,
        from: Stamp,
    ) {
        let mut number = first;
        let mut ends: Vec<Vec<(Stamp, NodeId)>> = Vec::new();
        for pieces in lanes {
            let numbered = pieces.iter().zip(number..);
            ends.push(numbered.map(|(piece, number)| (piece.end, NodeId(number))).collect());
            number += pieces.len() as u32;
        }
        let last_before = |lane: usize, to: Stamp| {
            let until = ends[lane].partition_point(|(end, _)| *end <= to);
            ends[lane][..until].last().copied()
        };
        let rest =
            |lane: usize, to: Stamp| to.since(last_before(lane, to).map_or(from, |(end, _)| end));
        let rests = |lane: usize| windows.iter().map(|(_, to)| rest(lane, *to)).sum::<u64>();
        let begins: HashSet<Stamp> = windows.iter().map(|window| window.0).collect();
        let scopes = worker.spans.iter().filter(|span| matches!(span.kind, Kind::Scope));
        let marks = scopes.filter(|span| begins.contains(&span.begin));
        let marked: HashSet<usize> = marks.map(|span| span.lane.0 as usize).collect();
        let is_thread = |lane: usize| worker.lanes[lane].kind == LaneKind::Thread;
        let lanes = 0..worker.lanes.len();
        let home = lanes.filter(|lane| !ends[*lane].is_empty()).min_by_key(|&lane| {
            // Where nobody marked the step and it ends with what a device does, so does the worker's part.
            let ends_later = rests(lane) > 0;
            (!marked.contains(&lane), ends_later, !is_thread(lane), rests(lane), lane)
        });
        let streams: Vec<usize> =
            (0..worker.lanes.len()).filter(|lane| !is_thread(*lane)).collect();
        for (step, &(_, to)) in windows.iter().enumerate() {
            let last = home.and_then(|lane| last_before(lane, to));
            let host = NodeId(self.graph.nodes.len() as u32);
            let node = Node {
                name: "end of step".into(),
                rank,
                phase: Phase::Other,
                role: Role::Work,
                length: 0,
                gap: to.since(last.map_or(from, |(end, _)| end)),
                after: last.map(|(_, node)| node).into_iter().collect(),
            };
            let done = streams.iter().filter_map(|stream| last_before(*stream, to));
            let after = std::iter::once(host).chain(done.map(|(_, node)| node)).collect();
            let end = Node { role: Role::StepEnd(step as u32), gap: 0, after, ..node.clone() };
            self.graph.nodes.extend([node, end]);
        }
    }

    /// What was recorded of operations, and those whose other workers are missing from the trace.
    fn settle(&mut self, trace: &Trace) {
        let mut alone = 0;
        for (operation, posts) in self.graph.operations.iter_mut().zip(&mut self.posts) {
            let of_all = posts.len() == trace.workers.len() && posts.len() > 1;
            if of_all && operation.kind != OperationKind::SendReceive {
                // Of however many workers there are, also if there were more of them.
                posts.sort_by_key(|(rank, ..)| *rank);
            } else {
                operation.members = posts.iter().map(|(rank, ..)| *rank).collect();
            }
            let needed = |place: usize| {
                let others = posts.iter().enumerate();
                let others = others.filter(|(other, _)| operation.kind.needs(place, *other));
                others.map(|(_, (_, post, _))| *post).max().unwrap_or_default()
            };
            let ends = posts.iter().enumerate();
            operation.recorded =
                ends.map(|(place, (.., over))| over.since(needed(place))).collect();
            alone += u64::from(posts.len() < trace.workers.len());
        }
        if alone > 0 {
            let text = "operations that not every worker of the trace recorded; they are taken to be among those who did";
            let place = "all workers".to_string();
            self.problems.push(Problem { place, text: text.to_string(), times: alone });
        }
    }

    /// Workers that take part in the same operations in orders that contradict each other would wait for ever. What they wait
    /// for takes each of them as long as it did.
    fn untangle(&mut self) {
        let mut times = 0;
        // Bounded: every turn leaves fewer operations.
        loop {
            let tangled = tangled(&self.graph);
            if tangled.is_empty() {
                break;
            }
            times += tangled.len() as u64;
            for node in &mut self.graph.nodes {
                let (Role::Post(operation) | Role::Await(operation)) = node.role else { continue };
                if !tangled.contains(&operation) {
                    continue;
                }
                if let Role::Await(_) = node.role {
                    let posts = self.posts[operation.index()].iter();
                    let own = posts.filter(|(rank, ..)| *rank == node.rank);
                    node.length = own.map(|(_, post, over)| over.since(*post)).sum();
                }
                node.role = Role::Work;
            }
        }
        if times > 0 {
            let text = "operations that workers took part in in different orders, so that they cannot be the same ones; on each \
                        worker they take as long as recorded";
            let place = "all workers".to_string();
            self.problems.push(Problem { place, text: text.to_string(), times });
        }
    }
}

fn phase(span: &Span) -> Phase {
    match span.kind {
        Kind::Work(phase) => phase,
        _ => Phase::Other,
    }
}

/// What is played for an operation of this name; of what nobody knows, everybody gets the sum of all.
fn kind(operation: &str) -> OperationKind {
    if operation == SEND_RECEIVE {
        return OperationKind::SendReceive;
    }
    match operation.parse() {
        Ok(CollectiveKind::ReduceScatter) => OperationKind::ReduceScatter,
        Ok(CollectiveKind::AllGather) => OperationKind::AllGather,
        Ok(CollectiveKind::Broadcast) => OperationKind::Broadcast,
        Ok(CollectiveKind::Reduce) => OperationKind::Reduce,
        Ok(CollectiveKind::AllToAll) => OperationKind::AllToAll,
        Ok(CollectiveKind::Barrier) => OperationKind::Barrier,
        Ok(CollectiveKind::Send | CollectiveKind::Recv) => OperationKind::SendReceive,
        Ok(CollectiveKind::AllReduce | CollectiveKind::Gather | CollectiveKind::Scatter)
        | Err(_) => OperationKind::AllReduce,
    }
}

/// An operation as one of its workers saw it.
pub(super) fn described(collective: &Collective) -> Operation {
    let dtype = collective.dtype.unwrap_or(Dtype::F32);
    Operation {
        name: collective.tensor.clone().unwrap_or_else(|| collective.group.clone()),
        kind: kind(&collective.operation),
        members: Vec::new(),
        elements: collective.bytes / dtype.size() as u64,
        dtype,
        priority: collective.priority,
        recorded: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Lane, LaneId, Step};

    fn span(lane: u32, name: &str, begin: i64, length: u64, kind: Kind) -> Span {
        let (name, begin) = (name.into(), Stamp(begin));
        Span { name, lane: LaneId(lane), begin, length, kind, after: Vec::new() }
    }

    /// One step in which a thread of autograd's does most, and the main thread comes last.
    fn last_of_step(others: Vec<Span>) -> String {
        let thread = |name: &str| Lane { name: name.to_string(), kind: LaneKind::Thread };
        let work = Kind::Work(Phase::Backward);
        let mut spans: Vec<Span> = others;
        spans.extend((1..5).map(|at| span(0, "backward", 10 * at, 9, work.clone())));
        spans.push(span(1, "update", 60, 30, Kind::Work(Phase::Update)));
        spans.sort_by_key(|span| span.begin);
        let worker = WorkerTrace {
            lanes: vec![thread("autograd"), thread("main"), thread("loader")],
            spans,
            steps: vec![Step { number: 0, begin: Stamp(0), end: Stamp(100) }],
            ..WorkerTrace::default()
        };
        let trace = Trace { workers: vec![worker], problems: Vec::new() };
        let graph = job(&trace, &Clocks::agreeing(), &[0]).unwrap().graph;
        last_before(&graph, host_of(&graph)).name.to_string()
    }

    /// What the end of the step waits for: first of all the host's part of it.
    fn host_of(graph: &Graph) -> &Node {
        let end = graph.nodes.iter().find(|node| node.role == Role::StepEnd(0)).unwrap();
        last_before(graph, end)
    }

    fn last_before<'g>(graph: &'g Graph, node: &Node) -> &'g Node {
        &graph.nodes[node.after[0].index()]
    }

    #[test]
    fn a_step_ends_with_the_thread_that_works_to_its_end_not_with_the_one_that_does_most() {
        assert_eq!(last_of_step(Vec::new()), "update");
    }

    #[test]
    fn a_step_ends_with_the_thread_on_which_it_is_marked() {
        let mark = span(1, "step", 0, 100, Kind::Scope);
        let load = span(2, "load", 70, 28, Kind::Work(Phase::Other));
        assert_eq!(last_of_step(vec![load.clone()]), "load");
        assert_eq!(last_of_step(vec![load, mark]), "update");
    }

    #[test]
    fn a_step_that_nobody_marked_ends_with_the_device_that_works_to_its_end() {
        let lane = |name: &str, kind| Lane { name: name.to_string(), kind };
        let work = |lane, name, end| span(lane, name, 0, end, Kind::Work(Phase::Other));
        let worker = WorkerTrace {
            lanes: vec![lane("main", LaneKind::Thread), lane("stream", LaneKind::Stream)],
            spans: vec![work(1, "kernel", 100), work(0, "launch", 20)],
            steps: vec![Step { number: 0, begin: Stamp(0), end: Stamp(100) }],
            ..WorkerTrace::default()
        };
        let trace = Trace { workers: vec![worker], problems: Vec::new() };
        let graph = job(&trace, &Clocks::agreeing(), &[0]).unwrap().graph;
        let host = host_of(&graph);
        assert_eq!((&*last_before(&graph, host).name, host.gap), ("kernel", 0));
    }

    #[test]
    fn a_step_is_not_over_before_the_device_is_through_with_what_it_was_through_with() {
        let lane = |name: &str, kind| Lane { name: name.to_string(), kind };
        let work =
            |lane, name, begin, length| span(lane, name, begin, length, Kind::Work(Phase::Other));
        let worker = WorkerTrace {
            lanes: vec![lane("main", LaneKind::Thread), lane("stream", LaneKind::Stream)],
            spans: vec![work(0, "launch", 0, 100), work(1, "kernel", 10, 80)],
            steps: vec![Step { number: 0, begin: Stamp(0), end: Stamp(100) }],
            ..WorkerTrace::default()
        };
        let trace = Trace { workers: vec![worker], problems: Vec::new() };
        let graph = job(&trace, &Clocks::agreeing(), &[0]).unwrap().graph;
        let end = graph.nodes.iter().find(|node| node.role == Role::StepEnd(0)).unwrap();
        let names: Vec<&str> =
            end.after.iter().map(|node| &*graph.nodes[node.index()].name).collect();
        assert_eq!(names, ["end of step", "kernel"]);
    }
}
