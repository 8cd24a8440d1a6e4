//! What-if: graphs of the same job under other conditions. Each change says what it takes for granted.

use super::{Graph, NodeId, Operation, OperationKind, Role, Sequence};
use crate::{
    Dtype, Rank,
    trace::{LaneKind, Phase},
};
use std::collections::HashMap;

/// Phases whose length follows the batch.
const OF_SAMPLES: [Phase; 2] = [Phase::Forward, Phase::Backward];

/// So many times as long as the worker in the middle is more than noise.
const STRAGGLES: f64 = 1.05;

impl Graph {
    /// A device so many times as fast: all that is computed takes so much less. Gaps stay, and where streams of a device
    /// compute, so do the host's threads: launching takes them as long as before.
    pub fn with_device(mut self, speed: f64) -> Graph {
        self.scale(|phase| phase != Phase::Other, 1.0 / speed);
        self
    }

    /// So many times as many samples in a step: forward and backward passes take so much longer, updates do not. Where streams
    /// of a device compute the passes, the host launches as many kernels as before and takes as long for it.
    pub fn with_batch(mut self, factor: f64) -> Graph {
        self.scale(|phase| OF_SAMPLES.contains(&phase), factor);
        self
    }

    /// Gradients, and whatever else is summed, are sent as this type. What is computed takes as long as before.
    pub fn with_dtype(mut self, dtype: Dtype) -> Graph {
        let sums = [OperationKind::AllReduce, OperationKind::ReduceScatter, OperationKind::Reduce];
        for operation in self.operations.iter_mut().filter(|one| sums.contains(&one.kind)) {
            operation.dtype = dtype;
            operation.recorded.clear();
        }
        self
    }

    /// Operations of at least as many elements, in whole multiples of `unit`.
    pub fn padded(mut self, unit: u64) -> Graph {
        for operation in &mut self.operations {
            operation.elements = operation.elements.next_multiple_of(unit.max(1));
        }
        self
    }

    /// Nothing is more urgent than anything else: first come, first served.
    pub fn first_come(mut self) -> Graph {
        for operation in &mut self.operations {
            operation.priority = 0;
        }
        self
    }

    /// Workers that take longer for what they compute, gaps included, than the one in the middle (of two, the faster one), with
    /// how many times as long they take. A few percent are noise.
    pub fn stragglers(&self) -> Vec<(Rank, f64)> {
        let totals: Vec<u64> = self.busy().iter().map(|phases| phases.values().sum()).collect();
        let Some(middle) = middle(totals.iter().copied()) else { return Vec::new() };
        let slowness = totals.iter().map(|total| *total as f64 / middle.max(1) as f64);
        let ranks = (0..).map(Rank).zip(slowness);
        ranks.filter(|(_, slowness)| *slowness > STRAGGLES).collect()
    }

    /// No straggler: whoever is one takes no longer for any phase than the worker in the middle does. Its nodes keep their
    /// proportions, so they need not be those of others.
    pub fn without_straggler(mut self) -> Graph {
        let busy = self.busy();
        for (rank, _) in self.stragglers() {
            let own = &busy[rank.index()];
            let factors: HashMap<Phase, f64> = own
                .iter()
                .map(|(phase, own)| {
                    let all = busy.iter().map(|one| one.get(phase).copied().unwrap_or(0));
                    (*phase, middle(all).unwrap_or(0) as f64 / (*own).max(1) as f64)
                })
                .collect();
            for node in self.nodes.iter_mut().filter(|node| node.rank == rank) {
                let factor = factors[&node.phase].min(1.0);
                node.length = scaled(node.length, factor);
                node.gap = scaled(node.gap, factor);
            }
        }
        self
    }

    /// Without operations of which this is so: nobody posts them, and whoever waited for them goes on.
    pub fn without_operations(mut self, is_so: impl Fn(&Operation) -> bool) -> Graph {
        for node in &mut self.nodes {
            if let Role::Post(operation) | Role::Await(operation) = node.role
                && is_so(&self.operations[operation.index()])
            {
                node.role = Role::Work;
            }
        }
        self
    }

    /// So many workers: the first ones of those there are, or copies of them in turn, each copy on a host of its own kind
    /// (workers that shared a host share the copy's). Operations of all workers have all the new ones; others are
    /// dropped with those who waited for them, because nobody knows who would take part.
    pub fn with_workers(&self, count: usize) -> Graph {
        let present = self.workers.len();
        let mut graph = Graph { steps: self.steps, ..Graph::default() };
        if present == 0 {
            return graph;
        }
        let operations = self.operations.iter();
        graph.operations =
            operations.map(|one| Operation { recorded: Vec::new(), ..one.clone() }).collect();
        let lists = self.nodes_by_worker();
        let mut places = vec![NodeId(0); self.nodes.len()];
        for number in 0..count {
            let (original, copy) = (number % present, number / present);
            for &id in &lists[original] {
                places[id.index()] = NodeId(graph.nodes.len() as u32);
                let mut node = self.nodes[id.index()].clone();
                node.rank = Rank(number as u32);
                graph.nodes.push(node);
            }
            for &id in &lists[original] {
                let node = &mut graph.nodes[places[id.index()].index()];
                for before in &mut node.after {
                    *before = places[before.index()];
                }
            }
            let mut worker = self.workers[original].clone();
            if copy > 0 {
                worker.host = format!("{} ({copy})", worker.host);
            }
            for sequence in &mut worker.lanes {
                for node in &mut sequence.nodes {
                    *node = places[node.index()];
                }
            }
            graph.workers.push(worker);
        }
        graph.without_operations(|operation| !operation.members.is_empty())
    }

    fn nodes_by_worker(&self) -> Vec<Vec<NodeId>> {
        let mut lists = vec![Vec::new(); self.workers.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            lists[node.rank.index()].push(NodeId(index as u32));
        }
        lists
    }

    /// Nanoseconds of each worker's nodes and of the gaps before them.
    fn busy(&self) -> Vec<HashMap<Phase, u64>> {
        let mut busy = vec![HashMap::new(); self.workers.len()];
        for node in &self.nodes {
            *busy[node.rank.index()].entry(node.phase).or_default() += node.gap + node.length;
        }
        busy
    }

    /// Let what is computed in some phases take another time: by streams, on a worker that has any that compute, else by threads.
    fn scale(&mut self, which: impl Fn(Phase) -> bool, factor: f64) {
        for worker in &self.workers {
            let (streams, threads): (Vec<&Sequence>, Vec<&Sequence>) =
                worker.lanes.iter().partition(|sequence| sequence.lane.kind == LaneKind::Stream);
            let computes = |id: &NodeId| {
                let node = &self.nodes[id.index()];
                node.phase != Phase::Other && node.length > 0
            };
            let on_device = streams.iter().any(|stream| stream.nodes.iter().any(computes));
            let lanes = if on_device { streams } else { threads };
            for id in lanes.iter().flat_map(|lane| &lane.nodes) {
                let node = &mut self.nodes[id.index()];
                if which(node.phase) {
                    node.length = scaled(node.length, factor);
                }
            }
        }
    }
}

fn scaled(nanoseconds: u64, factor: f64) -> u64 {
    (nanoseconds as f64 * factor).round() as u64
}

/// The lesser one of two in the middle.
fn middle(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        graph::{
            Node, Worker,
            layered::{LayerTimes, Layered},
        },
        trace::{Lane, Layer, Tensor},
    };

    fn graph() -> Graph {
        let tensors = vec![Tensor { name: "w".into(), elements: 8, dtype: Dtype::F32 }];
        let layers = vec![Layer { name: "l".into(), tensors, activation_bytes: 0 }];
        let times = LayerTimes { forward: 10, backward: 20, update: 5, ..LayerTimes::default() };
        Layered::alike(layers, &[times], vec!["a".into(), "b".into(), "c".into()], 2).graph()
    }

    fn total(graph: &Graph, rank: u32, phase: Phase) -> u64 {
        let nodes =
            graph.nodes.iter().filter(|node| node.rank == Rank(rank) && node.phase == phase);
        nodes.map(|node| node.length).sum()
    }

    #[test]
    fn a_larger_batch_leaves_updates_alone_and_a_faster_device_does_not() {
        let batch = graph().with_batch(2.0);
        assert_eq!(total(&batch, 0, Phase::Backward), 80);
        assert_eq!(total(&batch, 0, Phase::Update), 5);
        let device = graph().with_device(2.0);
        assert_eq!(total(&device, 1, Phase::Forward), 10);
        assert_eq!(total(&device, 1, Phase::Update), 3);
    }

    /// A host that launches for 10 ns what a device computes for 100 ns.
    fn launched(kind: LaneKind) -> Graph {
        let mut graph = Graph { steps: 1, ..Graph::default() };
        let mut lanes = Vec::new();
        for (kind, length) in [(LaneKind::Thread, 10), (kind, 100)] {
            let id = NodeId(graph.nodes.len() as u32);
            graph.nodes.push(Node {
                name: "n".into(),
                rank: Rank(0),
                phase: Phase::Forward,
                role: Role::Work,
                length,
                gap: 0,
                after: Vec::new(),
            });
            lanes.push(Sequence { lane: Lane { name: String::new(), kind }, nodes: vec![id] });
        }
        graph.workers.push(Worker { host: "a".into(), lanes });
        graph
    }

    #[test]
    fn where_a_device_computes_the_host_takes_as_long_as_before() {
        let lengths = |graph: Graph| [graph.nodes[0].length, graph.nodes[1].length];
        assert_eq!(lengths(launched(LaneKind::Stream).with_batch(2.0)), [10, 200]);
        assert_eq!(lengths(launched(LaneKind::Stream).with_device(2.0)), [10, 50]);
        assert_eq!(lengths(launched(LaneKind::Thread).with_batch(2.0)), [20, 200]);
        assert_eq!(lengths(launched(LaneKind::Thread).with_device(2.0)), [5, 50]);
    }

    #[test]
    fn a_straggler_becomes_as_fast_as_the_worker_in_the_middle() {
        let mut slow = graph();
        for node in &mut slow.nodes {
            if node.rank == Rank(1) {
                node.length *= 3;
            }
        }
        assert_eq!(slow.without_straggler(), graph());
    }

    #[test]
    fn of_two_workers_the_slower_one_is_the_straggler() {
        let pair = graph().with_workers(2);
        let mut slow = pair.clone();
        for node in slow.nodes.iter_mut().filter(|node| node.rank == Rank(1)) {
            node.length *= 3;
        }
        assert_eq!(slow.stragglers(), [(Rank(1), 3.0)]);
        assert_eq!(slow.without_straggler(), pair);
    }

    #[test]
    fn workers_of_whom_now_one_is_slower_and_now_the_other_are_no_stragglers() {
        let mut uneven = graph().with_workers(2);
        for node in uneven.nodes.iter_mut().filter(|node| node.length > 0) {
            let slow = [(Rank(0), Phase::Forward), (Rank(1), Phase::Backward)];
            node.length += if slow.contains(&(node.rank, node.phase)) { 10 } else { 0 };
        }
        assert_eq!(uneven.stragglers(), []);
        assert_eq!(uneven.clone().without_straggler(), uneven);
    }

    #[test]
    fn a_straggler_with_nodes_of_its_own_is_seen_and_loses_what_it_takes_longer() {
        let mut slow = graph();
        let extra = slow.nodes.iter().position(|node| node.rank == Rank(2)).unwrap();
        let node = Node { length: 300, gap: 100, after: Vec::new(), ..slow.nodes[extra].clone() };
        slow.nodes.push(node);
        let ranks: Vec<Rank> = slow.stragglers().iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, [Rank(2)]);
        let without = slow.without_straggler();
        let busy = without.busy();
        let [own, other] = [2, 0].map(|rank: usize| busy[rank].values().sum::<u64>());
        assert!(own.abs_diff(other) <= 4, "{own} and {other}, but for rounding");
    }

    #[test]
    fn workers_are_copied_in_turn_and_left_out_from_the_end() {
        let more = graph().with_workers(5);
        assert_eq!(more.workers[3].host, "a (1)");
        assert_eq!(more.workers[3].lanes[0].nodes.len(), more.workers[0].lanes[0].nodes.len());
        assert!(
            more.workers[4].lanes[0].nodes.iter().all(|n| more.nodes[n.index()].rank == Rank(4))
        );
        assert_eq!(graph().with_workers(3).workers, graph().workers);
        assert_eq!(graph().with_workers(1).workers.len(), 1);
    }
}
