//! Finding operations for which workers would wait for ever, because they take part in them in orders that contradict each other. Only
//! what waits for what counts here, not when.

use super::{Graph, NodeId, OperationId, Role};
use std::collections::HashSet;

/// Operations that some worker waits for and that are never over.
pub(super) fn tangled(graph: &Graph) -> HashSet<OperationId> {
    let mut search = Search::new(graph);
    search.run();
    let waits = |(node, missing): (&super::Node, &u32)| match node.role {
        Role::Await(operation) if *missing > 0 => Some(operation),
        _ => None,
    };
    let stuck = graph.nodes.iter().zip(&search.missing).filter_map(waits);
    // Whoever waits for what nobody has begun waits for one of the others.
    stuck.filter(|operation| !search.posted[operation.index()].is_empty()).collect()
}

struct Search<'g> {
    graph: &'g Graph,
    /// For each node, of how many things that it waits for the end is not known.
    missing: Vec<u32>,
    /// For each node, those that wait for it.
    followers: Vec<Vec<NodeId>>,
    /// For each operation, those that wait for it and are not through.
    awaiting: Vec<Vec<NodeId>>,
    /// For each operation, the places of members that take part.
    posted: Vec<HashSet<usize>>,
    ready: Vec<NodeId>,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph) -> Search<'g> {
        let count = graph.nodes.len();
        let mut missing = vec![0; count];
        let mut followers = vec![Vec::new(); count];
        let mut wait = |node: NodeId, before: NodeId| {
            missing[node.index()] += 1;
            followers[before.index()].push(node);
        };
        for sequence in graph.workers.iter().flat_map(|worker| &worker.lanes) {
            for pair in sequence.nodes.windows(2) {
                wait(pair[1], pair[0]);
            }
        }
        let mut awaiting = vec![Vec::new(); graph.operations.len()];
        for (place, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(place as u32);
            node.after.iter().for_each(|before| wait(id, *before));
            if let Role::Await(operation) = node.role {
                awaiting[operation.index()].push(id);
            }
        }
        for id in awaiting.iter().flatten() {
            missing[id.index()] += 1;
        }
        let all = (0..count as u32).map(NodeId);
        let ready = all.filter(|id| missing[id.index()] == 0).collect();
        let posted = vec![HashSet::new(); graph.operations.len()];
        Search { graph, missing, followers, awaiting, posted, ready }
    }

    /// Bounded: every node is over once.
    fn run(&mut self) {
        while let Some(id) = self.ready.pop() {
            let node = &self.graph.nodes[id.index()];
            if let Role::Post(operation) = node.role {
                self.post(operation, self.place(operation, id));
            }
            for follower in std::mem::take(&mut self.followers[id.index()]) {
                self.release(follower);
            }
        }
    }

    fn post(&mut self, operation: OperationId, place: usize) {
        let known = &self.graph.operations[operation.index()];
        let members = match known.members.len() {
            0 => self.graph.workers.len(),
            members => members,
        };
        self.posted[operation.index()].insert(place);
        let posted = &self.posted[operation.index()];
        let through = |member: usize| {
            (0..members).all(|other| !known.kind.needs(member, other) || posted.contains(&other))
        };
        // Where everybody needs everybody, all are through with the last.
        if posted.len() < members && known.kind.needs(1, 2) {
            return;
        }
        let waiting = std::mem::take(&mut self.awaiting[operation.index()]);
        let (over, left): (Vec<NodeId>, Vec<NodeId>) =
            waiting.into_iter().partition(|id| through(self.place(operation, *id)));
        self.awaiting[operation.index()] = left;
        over.into_iter().for_each(|id| self.release(id));
    }

    /// The place of a node's worker among the members of an operation.
    fn place(&self, operation: OperationId, node: NodeId) -> usize {
        let (rank, members) = (
            self.graph.nodes[node.index()].rank,
            &self.graph.operations[operation.index()].members,
        );
        members.iter().position(|member| *member == rank).unwrap_or(rank.index())
    }

    fn release(&mut self, node: NodeId) {
        self.missing[node.index()] -= 1;
        if self.missing[node.index()] == 0 {
            self.ready.push(node);
        }
    }
}
