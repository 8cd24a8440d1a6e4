//! The order in which chunks enter the network: priority and credit (ByteScheduler).
//!
//! A chunk starts when it is the most urgent one that is ready and the bytes handed to the transport
//! and not yet delivered are below its tensor's credit (so one chunk may overdraw it). Bytes that are
//! less urgent do not count: they let the chunk pass. First come, first served is the same rule with
//! one priority and unlimited credit. Only a rank's own start of a chunk waits here; what other ranks
//! have started is never held up, but where frames wait to leave, the more urgent go first. And the
//! order in which a worker serves its peers. All of this is the same on both clocks.

use crate::event::OpId;
use paceline_job::Rank;
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Smaller is more urgent. For gradients: the order in which the next forward pass needs them.
pub type Priority = i64;

/// Who goes first where data frames wait to leave: the more urgent tensor, then the one posted earlier,
/// then the earlier chunk. Without it, workers that forward for each other would begin all chunks before
/// they finish one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Urgency {
    priority: Priority,
    turn: u64,
}

impl Urgency {
    /// Goes before all data.
    pub const FIRST: Urgency = Urgency { priority: Priority::MIN, turn: 0 };
    /// Goes after all data.
    pub const LAST: Urgency = Urgency { priority: Priority::MAX, turn: u64::MAX };

    /// Chunks of a tensor that are told apart; later ones share a turn.
    const CHUNKS: u32 = 1 << 20;

    pub(crate) fn new(priority: Priority, ticket: u64, chunk: u32) -> Urgency {
        let chunk = chunk.min(Self::CHUNKS - 1);
        Urgency { priority, turn: ticket * u64::from(Self::CHUNKS) + u64::from(chunk) }
    }

    /// Where a frame enters a queue: among the places from `first` on, which hold frames in this order, behind
    /// those that are as urgent.
    pub fn place(self, first: usize, len: usize, at: impl Fn(usize) -> Urgency) -> usize {
        // Mostly the last one.
        if first == len || at(len - 1) <= self {
            return len;
        }
        let (mut low, mut high) = (first, len - 1);
        while low < high {
            let middle = low.midpoint(high);
            if at(middle) <= self {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Bytes in transport above which no further chunk of a tensor starts: what the settings said when it was
/// posted.
type Credit = u64;

#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// One entry per posted tensor that has chunks left to start: (priority, order of posting), which
    /// no two share, and then what the entry is about.
    ready: BinaryHeap<Reverse<(Priority, u64, OpId, Credit)>>,
    posted: u64,
    in_transport_bytes: u64,
    /// The same, by priority: sorted, without zeros. A step has a few priorities in transport.
    by_priority: Vec<(Priority, u64)>,
}

impl Scheduler {
    /// Returns a ticket that tells this tensor from a later one with the same id.
    pub(crate) fn post(&mut self, priority: Priority, op: OpId, credit_bytes: Credit) -> u64 {
        let ticket = self.posted;
        self.ready.push(Reverse((priority, ticket, op, credit_bytes)));
        self.posted += 1;
        ticket
    }

    /// The tensor whose next chunk may start now, if any. It stays at the head until [`Self::exhausted`].
    pub(crate) fn next(&self) -> Option<(u64, OpId)> {
        let Reverse((priority, ticket, op, credit_bytes)) = self.ready.peek()?;
        let may_start = self.in_transport_bytes < *credit_bytes
            || self.at_least_as_urgent(*priority) < *credit_bytes;
        may_start.then_some((*ticket, *op))
    }

    /// Bytes in transport that a chunk of this priority cannot pass.
    fn at_least_as_urgent(&self, priority: Priority) -> u64 {
        self.by_priority
            .iter()
            .take_while(|(other, _)| *other <= priority)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// The tensor at the head has no chunk left to start.
    pub(crate) fn exhausted(&mut self) {
        self.ready.pop();
    }

    pub(crate) fn handed(&mut self, priority: Priority, bytes: u64) {
        self.in_transport_bytes += bytes;
        match self.by_priority.binary_search_by_key(&priority, |(priority, _)| *priority) {
            Ok(place) => self.by_priority[place].1 += bytes,
            Err(place) => self.by_priority.insert(place, (priority, bytes)),
        }
    }

    pub(crate) fn delivered(&mut self, priority: Priority, bytes: u64) {
        self.in_transport_bytes -= bytes;
        let place = self
            .by_priority
            .binary_search_by_key(&priority, |(priority, _)| *priority)
            .expect("what is delivered was handed");
        self.by_priority[place].1 -= bytes;
        if self.by_priority[place].1 == 0 {
            self.by_priority.remove(place);
        }
    }

    pub(crate) fn in_transport_bytes(&self) -> u64 {
        self.in_transport_bytes
    }
}

/// The worker that `me` serves in its `place`-th turn. Every worker begins with the one after it: if all
/// began with the first, they would meet in its queue and leave others' empty.
pub fn peer_in_turn(me: Rank, place: usize, size: usize) -> Rank {
    Rank(((me.index() + 1 + place) % size) as u32)
}

/// The turn in which `me` serves `peer`: the inverse of [`peer_in_turn`].
pub fn turn_of(me: Rank, peer: Rank, size: usize) -> usize {
    (peer.index() + size - me.index() - 1) % size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_tensor_starts_first_and_credit_may_be_overdrawn_once() {
        let mut scheduler = Scheduler::default();
        scheduler.post(5, OpId(1), 10);
        scheduler.post(2, OpId(2), 10);
        scheduler.post(2, OpId(3), 10);
        assert_eq!(scheduler.next(), Some((1, OpId(2))));
        scheduler.handed(2, 9);
        assert_eq!(scheduler.next(), Some((1, OpId(2))));
        scheduler.handed(2, 9);
        assert_eq!(scheduler.next(), None);
        scheduler.delivered(2, 9);
        scheduler.exhausted();
        assert_eq!(scheduler.next(), Some((2, OpId(3))));
    }

    #[test]
    fn each_tensor_waits_for_the_credit_it_was_posted_with() {
        let mut scheduler = Scheduler::default();
        scheduler.post(0, OpId(1), 10);
        scheduler.post(1, OpId(2), 30);
        scheduler.handed(0, 20);
        assert_eq!(scheduler.next(), None);
        scheduler.exhausted();
        assert_eq!(scheduler.next(), Some((1, OpId(2))));
    }

    #[test]
    fn bytes_that_let_a_chunk_pass_do_not_use_up_its_credit() {
        let mut scheduler = Scheduler::default();
        scheduler.handed(7, 100);
        scheduler.handed(3, 6);
        scheduler.post(5, OpId(1), 10);
        assert_eq!(scheduler.next(), Some((0, OpId(1))));
        scheduler.handed(5, 4);
        assert_eq!(scheduler.next(), None);
        scheduler.post(2, OpId(2), 10);
        assert_eq!(scheduler.next(), Some((1, OpId(2))));
        scheduler.delivered(7, 100);
        scheduler.delivered(3, 6);
        scheduler.delivered(5, 4);
        assert_eq!((scheduler.in_transport_bytes(), scheduler.by_priority.len()), (0, 0));
    }

    #[test]
    fn frames_leave_by_priority_then_turn_then_chunk() {
        let order = [(1, 9, 0), (2, 3, 7), (2, 4, 0), (2, 4, 1), (2, 4, 1), (3, 0, 0)];
        let sorted: Vec<Urgency> =
            order.map(|(priority, ticket, chunk)| Urgency::new(priority, ticket, chunk)).into();
        let mut random = 1_u64;
        for _ in 0..50 {
            let mut queue = vec![Urgency::LAST];
            let mut left = sorted.clone();
            while !left.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let frame = left.swap_remove((random >> 33) as usize % left.len());
                let place = frame.place(1, queue.len(), |place| queue[place]);
                queue.insert(place, frame);
            }
            assert_eq!(queue[1..], sorted);
        }
        assert_eq!(Urgency::new(0, 1, 0).place(0, 3, |_| Urgency::new(0, 1, 0)), 3, "as urgent");
        assert!(Urgency::new(0, 0, u32::MAX) < Urgency::new(0, 1, 0));
        assert!(Urgency::FIRST < sorted[0] && sorted[5] < Urgency::LAST);
    }

    #[test]
    fn with_one_priority_and_unlimited_credit_it_is_first_come_first_served() {
        let mut scheduler = Scheduler::default();
        let order: Vec<OpId> = (0..9).map(OpId).collect();
        for op in &order {
            scheduler.post(0, *op, u64::MAX);
        }
        for op in order {
            scheduler.handed(0, 1 << 40);
            assert_eq!(scheduler.next().map(|(_, op)| op), Some(op));
            scheduler.exhausted();
        }
    }

    #[test]
    fn every_worker_serves_all_and_begins_with_the_one_after_it() {
        for me in (0..5).map(Rank) {
            let served: Vec<Rank> = (0..5).map(|place| peer_in_turn(me, place, 5)).collect();
            assert_eq!(served[0], Rank((me.0 + 1) % 5));
            assert!((0..5).all(|place| turn_of(me, served[place], 5) == place));
        }
    }
}
