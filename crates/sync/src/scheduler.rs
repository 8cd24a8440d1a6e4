//! The order in which chunks enter the network: priority and credit (ByteScheduler).
//!
//! A chunk starts when it is the most urgent one that is ready and the bytes handed to the transport
//! and not yet delivered are below its tensor's credit (so one chunk may overdraw it). First come, first
//! served is the same rule with one priority and unlimited credit. Only a rank's own start of a chunk
//! waits here; what other ranks have started is never held up. And the order in which a worker serves
//! its peers, which is the same on both clocks.

use crate::event::OpId;
use paceline_job::Rank;
use std::{cmp::Reverse, collections::BinaryHeap};

/// Smaller is more urgent. For gradients: the order in which the next forward pass needs them.
pub type Priority = i64;

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
        let Reverse((_, ticket, op, credit_bytes)) = self.ready.peek()?;
        (self.in_transport_bytes < *credit_bytes).then_some((*ticket, *op))
    }

    /// The tensor at the head has no chunk left to start.
    pub(crate) fn exhausted(&mut self) {
        self.ready.pop();
    }

    pub(crate) fn handed(&mut self, bytes: u64) {
        self.in_transport_bytes += bytes;
    }

    pub(crate) fn delivered(&mut self, bytes: u64) {
        debug_assert!(self.in_transport_bytes >= bytes);
        self.in_transport_bytes -= bytes;
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
        scheduler.handed(9);
        assert_eq!(scheduler.next(), Some((1, OpId(2))));
        scheduler.handed(9);
        assert_eq!(scheduler.next(), None);
        scheduler.delivered(9);
        scheduler.exhausted();
        assert_eq!(scheduler.next(), Some((2, OpId(3))));
    }

    #[test]
    fn each_tensor_waits_for_the_credit_it_was_posted_with() {
        let mut scheduler = Scheduler::default();
        scheduler.post(0, OpId(1), 10);
        scheduler.post(1, OpId(2), 30);
        scheduler.handed(20);
        assert_eq!(scheduler.next(), None);
        scheduler.exhausted();
        assert_eq!(scheduler.next(), Some((1, OpId(2))));
    }

    #[test]
    fn with_one_priority_and_unlimited_credit_it_is_first_come_first_served() {
        let mut scheduler = Scheduler::default();
        let order: Vec<OpId> = (0..9).map(OpId).collect();
        for op in &order {
            scheduler.post(0, *op, u64::MAX);
        }
        for op in order {
            scheduler.handed(1 << 40);
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
