//! From nodes with dependencies to spans with times. How nodes are written in files is not known here.

use crate::CollectiveKind;
use crate::trace::{
    Collective, Kind, LaneId, LaneKind, Phase, Span, SpanId, Stamp, WorkerTrace,
    assemble::{self, Lanes},
    problems::Problems,
    words,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

/// Chakra's types of nodes, as far as they differ here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeType {
    /// Says something about the file.
    Metadata,
    /// Computes, loads or stores.
    #[default]
    Work,
    Send,
    Receive,
    Collective,
}

impl NodeType {
    pub fn of(number: i64) -> NodeType {
        match number {
            0 | 1 => NodeType::Metadata,
            5 => NodeType::Send,
            6 => NodeType::Receive,
            7 => NodeType::Collective,
            _ => NodeType::Work,
        }
    }
}

/// A node of either form of file. Times are microseconds.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub id: u64,
    pub name: Arc<str>,
    pub kind: NodeType,
    pub control: Vec<u64>,
    pub data: Vec<u64>,
    pub start: Option<u64>,
    pub duration: u64,
    pub on_host: Option<bool>,
    pub thread: Option<i64>,
    pub stream: Option<i64>,
    /// The number of the collective, as Chakra counts them.
    pub collective: Option<i64>,
    pub bytes: Option<u64>,
    pub group: String,
    pub priority: i64,
    pub phase: Phase,
}

impl Node {
    /// Whether the host does it. Files written by hand leave it out: then communication is not.
    fn host(&self) -> bool {
        self.on_host.unwrap_or(self.kind == NodeType::Work)
    }

    fn operation(&self) -> Option<Arc<str>> {
        use CollectiveKind::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
            Scatter,
        };
        const KINDS: [CollectiveKind; 10] = [
            AllReduce,
            Reduce,
            AllGather,
            Gather,
            Scatter,
            Broadcast,
            AllToAll,
            ReduceScatter,
            ReduceScatter,
            Barrier,
        ];
        let word = match self.kind {
            NodeType::Send => CollectiveKind::Send.word(),
            NodeType::Receive => CollectiveKind::Recv.word(),
            NodeType::Collective => {
                let number = self.collective.and_then(|number| usize::try_from(number).ok());
                let word = number.and_then(|number| KINDS.get(number)).map(|kind| kind.word());
                word.or_else(|| words::operation(&self.name))?
            }
            _ => return None,
        };
        Some(word.into())
    }
}

/// Nanoseconds of a time in microseconds; what is beyond all times is at their end.
fn nanoseconds(microseconds: u64) -> u64 {
    microseconds.saturating_mul(1000).min(i64::MAX as u64 / 4)
}

/// Spans of all nodes, with times.
pub fn worker(mut nodes: Vec<Node>, problems: &mut Problems) -> WorkerTrace {
    let mut index: HashMap<u64, usize> = HashMap::new();
    // Nodes about the file take no time and nothing waits for them.
    nodes.retain(|node| node.kind != NodeType::Metadata);
    let before = nodes.len();
    nodes.retain(|node| {
        let next = index.len();
        *index.entry(node.id).or_insert(next) == next
    });
    let again = before - nodes.len();
    problems.add_times("two nodes have the same id; the first is kept", again as u64);
    let dependencies = dependencies(&nodes, &index, problems);
    let mut lanes = Lanes::default();
    let lane_of: Vec<LaneId> = nodes.iter().map(|node| lane(node, &mut lanes)).collect();
    let timed = nodes.iter().any(|node| node.start.is_some_and(|start| start > 0));
    let begins = if timed {
        nodes.iter().map(|node| nanoseconds(node.start.unwrap_or(0))).collect()
    } else {
        problems.add(
            "the file has no times of begin; each node is put as early as its dependencies and its lane allow",
        );
        lay_out(&nodes, &dependencies, &lane_of, lanes.list.len())
    };
    let mut worker = WorkerTrace { lanes: lanes.list, laid_out: !timed, ..WorkerTrace::default() };
    for (at, node) in nodes.iter().enumerate() {
        let kind = match node.operation().filter(|_| !node.host() || node.collective.is_some()) {
            Some(operation) => {
                if node.bytes.is_none() && &*operation != "barrier" {
                    problems.add("a collective does not say how much it carries");
                }
                Kind::Collective(Box::new(Collective {
                    operation,
                    group: node.group.as_str().into(),
                    members: Vec::new(),
                    sequence: None,
                    tensor: None,
                    bytes: node.bytes.unwrap_or(0),
                    dtype: None,
                    priority: node.priority,
                }))
            }
            None => Kind::Work(phase(node, &nodes, &dependencies[at])),
        };
        worker.spans.push(Span {
            name: node.name.clone(),
            lane: lane_of[at],
            begin: Stamp(i64::try_from(begins[at]).unwrap_or(i64::MAX)),
            length: nanoseconds(node.duration),
            kind,
            after: dependencies[at].iter().map(|at| SpanId(*at as u32)).collect(),
        });
    }
    report_phases(&worker, problems);
    assemble::order(&mut worker);
    worker
}

/// What each node waits for, by place.
fn dependencies(
    nodes: &[Node],
    index: &HashMap<u64, usize>,
    problems: &mut Problems,
) -> Vec<Vec<usize>> {
    let mut absent = 0;
    // A control dependency names the caller, which is not over before what it calls; it orders nodes only where nothing
    // else does.
    let only_control = nodes.iter().all(|node| node.data.is_empty());
    let all = nodes.iter().map(|node| {
        let before = if only_control { &node.control } else { &node.data };
        absent += before.iter().filter(|id| !index.contains_key(id)).count();
        let mut known: Vec<usize> = before.iter().filter_map(|id| index.get(id).copied()).collect();
        known.sort_unstable();
        known.dedup();
        known
    });
    let mut all: Vec<Vec<usize>> = all.collect();
    problems.add_times("a node waits for one that is not in the file", absent as u64);
    problems.add_times(
        "nodes wait for each other in a circle; they are taken not to",
        break_circles(&mut all),
    );
    all
}

/// Drop what can never be waited for: dependencies among nodes that are left when all others are done.
fn break_circles(dependencies: &mut [Vec<usize>]) -> u64 {
    let mut open: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); open.len()];
    for (at, before) in dependencies.iter().enumerate() {
        for it in before {
            waiting[*it].push(at);
        }
    }
    let mut ready: Vec<usize> = (0..open.len()).filter(|at| open[*at] == 0).collect();
    let mut done = vec![false; open.len()];
    // Bounded: each node is done once.
    while let Some(at) = ready.pop() {
        done[at] = true;
        for next in &waiting[at] {
            open[*next] -= 1;
            if open[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    let mut dropped = 0;
    for (at, before) in dependencies.iter_mut().enumerate().filter(|(at, _)| !done[*at]) {
        let length = before.len();
        before.retain(|it| done[*it]);
        dropped += u64::from(before.len() < length && !done[at]);
    }
    dropped
}

fn lane(node: &Node, lanes: &mut Lanes<(LaneKind, i64)>) -> LaneId {
    let communicates =
        matches!(node.kind, NodeType::Send | NodeType::Receive | NodeType::Collective);
    if node.host() {
        let thread = node.thread.unwrap_or(0);
        return lanes
            .of((LaneKind::Thread, thread), LaneKind::Thread, |_| format!("thread {thread}"));
    }
    match node.stream.or(node.thread) {
        Some(stream) => {
            lanes.of((LaneKind::Stream, stream), LaneKind::Stream, |_| format!("stream {stream}"))
        }
        // Communication runs beside computation.
        None if communicates => {
            lanes.of((LaneKind::Stream, -1), LaneKind::Stream, |_| "communication".into())
        }
        None => lanes.of((LaneKind::Stream, 0), LaneKind::Stream, |_| "stream 0".into()),
    }
}

/// Of a node, or of what it waits for: a kernel belongs to the operator that launched it. A kernel's own name is believed
/// before its operator's, and names before autograd's numbers: what computes gradients is named so, and has the number of
/// the operator that it belongs to.
fn phase(node: &Node, nodes: &[Node], dependencies: &[usize]) -> Phase {
    let launcher = |of: fn(&Node) -> Phase| {
        let operators = dependencies.iter().map(|at| &nodes[*at]).filter(|it| it.host());
        let mut phases = operators.filter(|_| !node.host()).map(of);
        phases.find(|phase| *phase != Phase::Other).unwrap_or_default()
    };
    let named = |node: &Node| words::phase(&node.name);
    let said = [named(node), launcher(named), node.phase, launcher(|node| node.phase)];
    said.into_iter().find(|phase| *phase != Phase::Other).unwrap_or_default()
}

/// Files do not say which pass a node belongs to: how well that could be told.
fn report_phases(worker: &WorkerTrace, problems: &mut Problems) {
    let work = || worker.spans.iter().filter(|span| matches!(span.kind, Kind::Work(_)));
    let undecided = work().filter(|span| span.kind == Kind::Work(Phase::Other)).count();
    if work().next().is_some() {
        problems.add(format!(
            "the file does not say what is forward, backward or update; that is told by names and by autograd's numbers, and {undecided} \
             of {} nodes are undecided",
            work().count()
        ));
    }
}

/// Begin each node as early as possible, in nanoseconds: of those that could begin on a lane, first the one that could first.
fn lay_out(
    nodes: &[Node],
    dependencies: &[Vec<usize>],
    lane_of: &[LaneId],
    lanes: usize,
) -> Vec<u64> {
    let mut open: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (at, before) in dependencies.iter().enumerate() {
        for it in before {
            waiting[*it].push(at);
        }
    }
    let mut free = vec![0_u64; lanes];
    let mut ready_at = vec![0_u64; nodes.len()];
    let mut begins = vec![0_u64; nodes.len()];
    let mut ready: BinaryHeap<Reverse<(u64, u64, usize)>> = (0..nodes.len())
        .filter(|at| open[*at] == 0)
        .map(|at| Reverse((0, nodes[at].id, at)))
        .collect();
    // Bounded: each node is taken once.
    while let Some(Reverse((time, _, at))) = ready.pop() {
        let lane = &mut free[lane_of[at].0 as usize];
        begins[at] = time.max(*lane);
        let end = begins[at].saturating_add(nanoseconds(nodes[at].duration));
        *lane = end;
        for next in &waiting[at] {
            ready_at[*next] = ready_at[*next].max(end);
            open[*next] -= 1;
            if open[*next] == 0 {
                ready.push(Reverse((ready_at[*next], nodes[*next].id, *next)));
            }
        }
    }
    begins
}
