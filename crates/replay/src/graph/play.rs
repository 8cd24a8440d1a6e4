//! When everything in a graph happens. Nodes become due as what they wait for is over, so that no order has to be
//! chosen: begin and end of a node follow from those before it, whatever order they are looked at.

use super::remote::{Network, Remote};
use crate::{Waits, error::ReplayError};
use paceline_job::{
    Rank, Time,
    graph::{Graph, NodeId, OperationId, Role},
};
use paceline_sync::metrics::{Came, Totals};

/// When everything happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// When each node began.
    pub begins: Vec<Time>,
    /// When each node was over.
    pub ends: Vec<Time>,
    /// What each node waited for last.
    pub causes: Vec<Cause>,
    /// For each operation the node that posted it last.
    pub last_posts: Vec<Option<NodeId>>,
    /// When each operation was over on the last worker that it was over on; zero if nobody waited that long.
    pub over: Vec<Time>,
    /// When operations were over, worker by worker, in the order in which that became known.
    pub arrivals: Vec<(OperationId, Rank, Time)>,
    /// For each step, when it ended on each worker.
    pub steps: Vec<Vec<Time>>,
    /// Engine events, where engines ran.
    pub events: u64,
    /// What wires carried, by rank, where engines ran and [`ClusterConfig::traffic`](crate::ClusterConfig::traffic) asks for it.
    pub traffic: Vec<WorkerTraffic>,
    /// What everything between workers waited for, where engines ran and [`ClusterConfig::waits`](crate::ClusterConfig::waits)
    /// asks for it.
    pub waits: Option<Box<Waits>>,
}

/// What the wires of one worker carried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerTraffic {
    /// Of all.
    pub totals: Totals,
    /// From each worker.
    pub inward: Vec<(Rank, Came)>,
}

impl Played {
    /// Since when steps count, and how many do: all but the [`first ones`](warm_up).
    pub fn counted(&self, skip: usize) -> (Time, usize) {
        let first = warm_up(self.steps.len(), skip);
        let before = first.checked_sub(1).and_then(|step| self.steps[step].iter().max());
        (before.copied().unwrap_or(Time::ZERO), self.steps.len() - first)
    }

    /// Nanoseconds that a step takes on the slowest worker, the mean of those that [count](Played::counted). `None` if
    /// there is no step.
    pub fn step_time(&self, skip: usize) -> Option<f64> {
        let (since, steps) = self.counted(skip);
        let to = self.steps.last().and_then(|ends| ends.iter().max())?;
        Some(to.0.saturating_sub(since.0) as f64 / steps as f64)
    }

    /// The same in milliseconds; nothing if there is no step.
    pub fn step_ms(&self, skip: usize) -> f64 {
        self.step_time(skip).unwrap_or(0.0) / 1e6
    }
}

/// How many steps do not count, where `skip` of them are to warm up: at least the first, which finds nothing left over from one
/// before it; but the last one always counts.
pub fn warm_up(steps: usize, skip: usize) -> usize {
    skip.max(1).min(steps.saturating_sub(1))
}

/// What a node waited for last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Nothing: it began with the run.
    #[default]
    Start,
    /// A node of the same worker.
    Node(NodeId),
    /// An operation of several workers.
    Operation(OperationId),
}

/// Play a graph. Deterministic: the same graph and network give the same times.
pub fn play(graph: &Graph, network: &Network) -> Result<Played, ReplayError> {
    let mut remote = Remote::new(graph, network)?;
    let mut lanes = Lanes::new(graph);
    lanes.go_on();
    // What is still on its way when the last node is over, nobody waits for.
    while lanes.over < graph.nodes.len() && remote.go_on(graph, &mut lanes)? {}
    lanes.finish(&mut remote)
}

/// Play a graph, and go on until the operations that nobody waits for are over too.
pub fn play_out(graph: &Graph, network: &Network) -> Result<Played, ReplayError> {
    let mut remote = Remote::new(graph, network)?;
    let mut lanes = Lanes::new(graph);
    lanes.go_on();
    while remote.go_on(graph, &mut lanes)? {}
    lanes.finish(&mut remote)
}

/// The workers' own part: everything but what happens between workers.
pub(super) struct Lanes<'g> {
    graph: &'g Graph,
    /// How many things each node still waits for.
    missing: Vec<u32>,
    /// The latest end of what each node waited for so far.
    ready: Vec<Time>,
    /// Nodes that wait for each node, `followers[first[n]..first[n + 1]]`.
    followers: Vec<NodeId>,
    first: Vec<u32>,
    /// Nodes that wait for each operation, by rank.
    awaiting: Vec<Vec<NodeId>>,
    /// Nodes that wait for nothing any more.
    due: Vec<NodeId>,
    /// What workers took part in since it was last asked.
    posts: Vec<Posted>,
    over: usize,
    played: Played,
}

/// A worker takes part in an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub at: Time,
    pub rank: Rank,
    pub operation: OperationId,
}

impl<'g> Lanes<'g> {
    fn new(graph: &'g Graph) -> Lanes<'g> {
        let count = graph.nodes.len();
        let mut missing: Vec<u32> = vec![0; count];
        let mut awaiting = vec![Vec::new(); graph.operations.len()];
        let mut edges: Vec<(NodeId, NodeId)> = Vec::new();
        for sequence in graph.workers.iter().flat_map(|worker| &worker.lanes) {
            edges.extend(sequence.nodes.windows(2).map(|pair| (pair[0], pair[1])));
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            edges.extend(node.after.iter().map(|&before| (before, id)));
            if let Role::Await(operation) = node.role {
                missing[index] += 1;
                awaiting[operation.index()].push(id);
            }
        }
        for nodes in &mut awaiting {
            nodes.sort_unstable_by_key(|node: &NodeId| (graph.nodes[node.index()].rank, *node));
        }
        let mut first = vec![0_u32; count + 1];
        for (before, after) in &edges {
            first[before.index() + 1] += 1;
            missing[after.index()] += 1;
        }
        for place in 0..count {
            first[place + 1] += first[place];
        }
        let mut room = first.clone();
        let mut followers = vec![NodeId(0); edges.len()];
        for (before, after) in edges {
            followers[room[before.index()] as usize] = after;
            room[before.index()] += 1;
        }
        let nodes = (0..count as u32).map(NodeId);
        let due = nodes.filter(|node| missing[node.index()] == 0).collect();
        let workers = graph.workers.len();
        Lanes {
            graph,
            missing,
            ready: vec![Time::ZERO; count],
            followers,
            first,
            awaiting,
            due,
            posts: Vec::new(),
            over: 0,
            played: Played {
                begins: vec![Time::ZERO; count],
                ends: vec![Time::ZERO; count],
                causes: vec![Cause::Start; count],
                last_posts: vec![None; graph.operations.len()],
                arrivals: Vec::new(),
                over: vec![Time::ZERO; graph.operations.len()],
                steps: vec![vec![Time::ZERO; workers]; graph.steps as usize],
                events: 0,
                traffic: Vec::new(),
                waits: None,
            },
        }
    }

    /// What workers took part in since this was last asked.
    pub fn take_posts(&mut self) -> Vec<Posted> {
        std::mem::take(&mut self.posts)
    }

    /// An operation is over on a worker.
    pub fn arrived(&mut self, operation: OperationId, rank: Rank, at: Time) {
        let over = &mut self.played.over[operation.index()];
        *over = at.max(*over);
        self.played.arrivals.push((operation, rank, at));
        let rank_of = |node: &NodeId| self.graph.nodes[node.index()].rank;
        let nodes = &self.awaiting[operation.index()];
        let from = nodes.partition_point(|node| rank_of(node) < rank);
        let to = nodes.partition_point(|node| rank_of(node) <= rank);
        for place in from..to {
            let node = self.awaiting[operation.index()][place];
            self.release(node, at, Cause::Operation(operation));
        }
    }

    /// Do everything that waits for nothing.
    pub fn go_on(&mut self) {
        while let Some(id) = self.due.pop() {
            let node = &self.graph.nodes[id.index()];
            let begin = Time(self.ready[id.index()].0.saturating_add(node.gap));
            let end = Time(begin.0.saturating_add(node.length));
            self.played.begins[id.index()] = begin;
            self.played.ends[id.index()] = end;
            self.over += 1;
            match node.role {
                Role::Post(operation) => {
                    let last = &mut self.played.last_posts[operation.index()];
                    if last.is_none_or(|other| self.played.ends[other.index()] <= end) {
                        *last = Some(id);
                    }
                    self.posts.push(Posted { at: end, rank: node.rank, operation });
                }
                Role::StepEnd(step) => {
                    self.played.steps[step as usize][node.rank.index()] = end;
                }
                Role::Work | Role::Await(_) => {}
            }
            let followers = self.first[id.index()] as usize..self.first[id.index() + 1] as usize;
            for place in followers {
                self.release(self.followers[place], end, Cause::Node(id));
            }
        }
    }

    fn release(&mut self, node: NodeId, at: Time, cause: Cause) {
        let index = node.index();
        if at >= self.ready[index] {
            self.ready[index] = at;
            self.played.causes[index] = cause;
        }
        self.missing[index] -= 1;
        if self.missing[index] == 0 {
            self.due.push(node);
        }
    }

    fn finish(mut self, remote: &mut Remote) -> Result<Played, ReplayError> {
        if self.over < self.graph.nodes.len() {
            let left = (0..self.graph.nodes.len()).find(|&node| self.missing[node] > 0);
            let node = left.map(|node| &self.graph.nodes[node]);
            return Err(ReplayError::Halted {
                nodes: self.graph.nodes.len() - self.over,
                rank: node.map_or(Rank(0), |node| node.rank),
                name: node.map_or("".into(), |node| node.name.clone()),
                events: remote.events(),
            });
        }
        self.played.events = remote.events();
        self.played.traffic = remote.traffic();
        self.played.waits = remote.take_waits();
        Ok(self.played)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{
        Dtype,
        graph::{Node, Operation, OperationKind, Sequence, Worker},
        trace::{Lane, LaneKind, Phase},
    };

    /// Two workers: each works, posts, awaits. The lengths of the work are given.
    fn two(lengths: [u64; 2], recorded: u64) -> Graph {
        let mut graph = Graph { steps: 1, ..Graph::default() };
        let operation = OperationId(0);
        for (rank, length) in lengths.into_iter().enumerate() {
            let mut nodes = Vec::new();
            for (role, length) in [
                (Role::Post(operation), length),
                (Role::Await(operation), 0),
                (Role::StepEnd(0), 5),
            ] {
                nodes.push(NodeId(graph.nodes.len() as u32));
                graph.nodes.push(Node {
                    name: "n".into(),
                    rank: Rank(rank as u32),
                    phase: Phase::Other,
                    role,
                    length,
                    gap: 1,
                    after: Vec::new(),
                });
            }
            let lane = Lane { name: "main".into(), kind: LaneKind::Thread };
            let lanes = vec![Sequence { lane, nodes }];
            graph.workers.push(Worker { host: format!("host{rank}"), lanes });
        }
        graph.operations.push(Operation {
            name: "t".into(),
            kind: OperationKind::AllReduce,
            members: Vec::new(),
            elements: 1000,
            dtype: Dtype::F32,
            priority: 0,
            recorded: vec![recorded; 2],
        });
        graph
    }

    #[test]
    fn a_recorded_operation_ends_so_long_after_its_last_post() {
        let played = play(&two([100, 40], 30), &Network::Recorded).unwrap();
        // 1 + 100, 30 on the way, 1 before the wait is over, 1 + 5 for the end of the step.
        assert_eq!(played.steps, [[Time(138), Time(138)]]);
        assert_eq!(played.causes[1], Cause::Operation(OperationId(0)));
        assert_eq!(played.last_posts, [Some(NodeId(0))]);
        assert_eq!(played.over, [Time(131)]);
    }

    #[test]
    fn free_communication_leaves_the_slowest_worker() {
        let played = play(&two([100, 40], 30), &Network::Free).unwrap();
        assert_eq!(played.steps, [[Time(108), Time(108)]]);
    }

    #[test]
    fn steps_to_warm_up_never_count_while_one_is_left() {
        let ends = [700, 1000, 1200].map(|end| vec![Time(end), Time(end - 5)]);
        let mut played = Played { steps: ends.to_vec(), ..Played::default() };
        assert_eq!(played.step_time(0), Some(250.0), "the first finds nothing left over");
        assert_eq!(played.step_time(1), Some(250.0), "and is the one to warm up");
        assert_eq!(played.step_time(2), Some(200.0), "the last step, not all of them as one");
        played.steps.truncate(1);
        assert_eq!(played.step_time(0), Some(700.0));
        played.steps.clear();
        assert_eq!(played.step_time(0), None);
    }

    #[test]
    fn a_node_that_waits_for_itself_is_named() {
        let mut graph = two([1, 1], 1);
        graph.nodes[0].after.push(NodeId(1));
        let error = play(&graph, &Network::Recorded).unwrap_err().to_string();
        assert!(error.contains("`n` of worker 0"), "{error}");
    }
}
