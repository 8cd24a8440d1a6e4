//! Operations that are served one after another, the most urgent first, each for as long as it was found to take by
//! itself. So a whole step follows from partial replays without playing an engine; how well, the tests say.

use super::{
    play::{Lanes, Posted},
    prices::Prices,
    remote::{Joined, bytes},
};
use paceline_job::{
    Rank, Time,
    graph::{Graph, OperationId},
};
use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

/// One server with a queue by priority; who is more urgent interrupts.
pub(super) struct Served {
    prices: Arc<Prices>,
    joined: Joined,
    /// Operations that all members take part in, in the order in which they come to the queue.
    coming: BinaryHeap<Reverse<(Time, OperationId)>>,
    /// Those in the queue: priority, when they came, which, and nanoseconds that they still need.
    queue: BinaryHeap<Reverse<(i64, Time, OperationId, u64)>>,
    now: Time,
}

impl Served {
    pub fn new(graph: &Graph, prices: &Arc<Prices>) -> Served {
        Served {
            prices: prices.clone(),
            joined: Joined::new(graph),
            coming: BinaryHeap::new(),
            queue: BinaryHeap::new(),
            now: Time::ZERO,
        }
    }

    pub fn join(&mut self, graph: &Graph, posted: Vec<Posted>) {
        self.coming.extend(self.joined.complete(graph, posted).map(Reverse));
    }

    /// Serve until one operation is over. False if there is none. Whatever comes because of it comes later than now.
    pub fn end_one(&mut self, graph: &Graph, lanes: &mut Lanes<'_>) -> bool {
        // Each turn takes one from `coming`, or is the last.
        loop {
            let arrival = self.coming.peek().map(|Reverse((at, _))| *at);
            let Some(Reverse((priority, came, id, left))) = self.queue.pop() else {
                let Some(at) = arrival else { return false };
                self.now = self.now.max(at);
                self.take_next(graph);
                continue;
            };
            let done = Time(self.now.0.saturating_add(left));
            match arrival.filter(|at| *at < done) {
                Some(at) => {
                    let at = at.max(self.now);
                    self.queue.push(Reverse((priority, came, id, done.0 - at.0)));
                    self.now = at;
                    self.take_next(graph);
                }
                None => {
                    self.now = done;
                    self.over(graph, id, lanes);
                    return true;
                }
            }
        }
    }

    fn take_next(&mut self, graph: &Graph) {
        let Some(Reverse((came, id))) = self.coming.pop() else { return };
        let operation = &graph.operations[id.index()];
        let left = self.prices.occupied(bytes(operation)) as u64;
        self.queue.push(Reverse((operation.priority, came, id, left)));
    }

    /// It leaves the server; the last of it is still on its way, which keeps nobody.
    fn over(&mut self, graph: &Graph, id: OperationId, lanes: &mut Lanes<'_>) {
        let operation = &graph.operations[id.index()];
        let length = bytes(operation);
        let rest = self.prices.alone(length) as u64 - self.prices.occupied(length) as u64;
        let at = Time(self.now.0 + rest);
        for place in 0..self.joined.members(graph, id) {
            let rank = operation.members.get(place).copied().unwrap_or(Rank(place as u32));
            lanes.arrived(id, rank, at);
        }
        lanes.go_on();
    }
}
