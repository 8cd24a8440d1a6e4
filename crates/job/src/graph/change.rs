//! What-if: graphs of the same job under other conditions. Each change says what it takes for granted.

use super::{Graph, NodeId, Operation, OperationKind, Role};
use crate::{Dtype, Rank, trace::Phase};

/// Phases whose length follows the batch.
const OF_SAMPLES: [Phase; 2] = [Phase::Forward, Phase::Backward];

impl Graph {
    /// A device so many times as fast: all that is computed takes so much less. Gaps, which are the host's, stay.
    pub fn with_device(mut self, speed: f64) -> Graph {
        self.scale(|phase| phase != Phase::Other, 1.0 / speed);
        self
    }

    /// So many times as many samples in a step: forward and backward passes take so much longer, updates do not.
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

    /// No straggler: every worker takes as long for a node as the worker in the middle; of two, the faster one. Only where all workers have the
    /// same nodes in the same order; otherwise nothing changes.
    pub fn without_straggler(mut self) -> Graph {
        let lists: Vec<Vec<NodeId>> = self.nodes_by_worker();
        let Some(count) = lists.first().map(Vec::len) else { return self };
        if lists.iter().any(|list| list.len() != count) {
            return self;
        }
        let mut values = Vec::with_capacity(lists.len());
        for place in 0..count {
            let gaps = |graph: &Graph, node: NodeId| graph.nodes[node.index()].gap;
            let lengths = |graph: &Graph, node: NodeId| graph.nodes[node.index()].length;
            let mut middle = |of: &dyn Fn(&Graph, NodeId) -> u64| {
                values.clear();
                values.extend(lists.iter().map(|list| of(&self, list[place])));
                values.sort_unstable();
                values[(values.len() - 1) / 2]
            };
            let (gap, length) = (middle(&gaps), middle(&lengths));
            for list in &lists {
                let node = &mut self.nodes[list[place].index()];
                (node.gap, node.length) = (gap, length);
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
                if let Role::Post(operation) | Role::Await(operation) = node.role
                    && !self.operations[operation.index()].members.is_empty()
                {
                    node.role = Role::Work;
                }
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
        graph
    }

    fn nodes_by_worker(&self) -> Vec<Vec<NodeId>> {
        let mut lists = vec![Vec::new(); self.workers.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            lists[node.rank.index()].push(NodeId(index as u32));
        }
        lists
    }

    fn scale(&mut self, which: impl Fn(Phase) -> bool, factor: f64) {
        for node in &mut self.nodes {
            if which(node.phase) {
                node.length = (node.length as f64 * factor).round() as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        graph::layered::{LayerTimes, Layered},
        trace::{Layer, Tensor},
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
        for (place, node) in slow.nodes.iter_mut().enumerate() {
            // Now the one, now the other.
            if place % 2 == node.rank.index() {
                node.length *= 3;
            }
        }
        let sum = |graph: &Graph| graph.nodes.iter().map(|node| node.length).sum::<u64>();
        let without = slow.clone().without_straggler();
        assert!(sum(&without) <= sum(&pair) && sum(&pair) < sum(&slow));
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
