//! How fast this worker's wires are, from when messages were handed over and when they were through. A rate is bytes over
//! the time in which something was on its way; time in which nothing was says nothing about a wire.
//!
//! Where some peers sit on other hosts, only messages to and from those count: memory is a hundred times as fast.

use crate::slab::Key;
use paceline_job::{Rank, Time, View};

/// A pause this short between two messages is part of one stretch: it is the receiver's or the sender's way to the next
/// message, and the kernel goes on sending meanwhile.
const SHORT_PAUSE_NANOSECONDS: u64 = 100_000;

/// What was carried so far, and how long that took. Numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that left.
    pub sent_bytes: u64,
    /// While they did.
    pub sending_nanoseconds: u64,
    /// Bytes that came.
    pub received_bytes: u64,
    /// While they did.
    pub receiving_nanoseconds: u64,
}

impl Totals {
    /// What came since.
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
            sending_nanoseconds: self
                .sending_nanoseconds
                .saturating_sub(earlier.sending_nanoseconds),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            receiving_nanoseconds: self
                .receiving_nanoseconds
                .saturating_sub(earlier.receiving_nanoseconds),
        }
    }

    /// Bytes a second that left, if any did.
    pub fn upload(&self) -> Option<f64> {
        rate(self.sent_bytes, self.sending_nanoseconds)
    }

    /// Bytes a second that came, if any did.
    pub fn download(&self) -> Option<f64> {
        rate(self.received_bytes, self.receiving_nanoseconds)
    }
}

fn rate(bytes: u64, nanoseconds: u64) -> Option<f64> {
    (bytes > 0 && nanoseconds > 0).then(|| bytes as f64 / (nanoseconds as f64 * 1e-9))
}

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// By rank.
    counts: Vec<bool>,
    out: Direction,
    into: Direction,
}

impl Traffic {
    /// `taken_at_once`: bytes that a transport takes without having sent them, when it had nothing to send.
    pub fn new(rank: Rank, view: &View, taken_at_once: u64) -> Traffic {
        let host = |rank: usize| view.workers.get(rank).map(|worker| worker.host.as_str());
        let elsewhere = |other: usize| host(other) != host(rank.index());
        let wired = (0..view.size()).any(elsewhere);
        Traffic {
            counts: (0..view.size()).map(|other| !wired || elsewhere(other)).collect(),
            out: Direction {
                taken_at_once: if wired { taken_at_once } else { 0 },
                ..Direction::default()
            },
            into: Direction::default(),
        }
    }

    /// So far.
    pub fn totals(&self) -> Totals {
        Totals {
            sent_bytes: self.out.bytes,
            sending_nanoseconds: self.out.nanoseconds,
            received_bytes: self.into.bytes,
            receiving_nanoseconds: self.into.nanoseconds,
        }
    }

    /// A message was handed to the transport.
    pub fn sending(&mut self, now: Time, to: Rank, token: Key, bytes: u32) {
        if self.counts.get(to.index()).copied().unwrap_or(false) {
            self.out.begin(now, token, bytes);
        }
    }

    /// The transport has done with it.
    pub fn delivered(&mut self, now: Time, token: Key) {
        self.out.end(now, token);
    }

    /// The first bytes of a message came, at `now` or a while ago.
    pub fn receiving(&mut self, now: Time, from: Rank, token: Key, bytes: u32) {
        if self.counts.get(from.index()).copied().unwrap_or(false) {
            self.into.begin(now, token, bytes);
        }
    }

    /// All of it is there.
    pub fn received(&mut self, now: Time, token: Key) {
        self.into.end(now, token);
    }
}

/// Bytes of a message that is on its way; 0 if none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Underway(u32);

#[derive(Clone, Debug, Default)]
struct Direction {
    taken_at_once: u64,
    /// By the index of their tokens, as many as were ever on their way at once.
    underway: Vec<Underway>,
    /// How many of them are.
    open: u32,
    /// The stretch without a pause that is going on: until when so far, until when it is counted, and what passed in it.
    until: Time,
    counted: Time,
    passed: u64,
    bytes: u64,
    nanoseconds: u64,
}

impl Direction {
    fn begin(&mut self, begun: Time, token: Key, bytes: u32) {
        let place = token.index();
        if self.underway.len() <= place {
            self.underway.resize(place + 1, Underway(0));
        }
        if self.open == 0 && begun.0 > self.until.0.saturating_add(SHORT_PAUSE_NANOSECONDS) {
            (self.until, self.counted, self.passed) = (begun, begun, 0);
        }
        // One whose end nobody told has lost its place, and is not on its way any more.
        let before = std::mem::replace(&mut self.underway[place], Underway(bytes));
        self.open += u32::from(before == Underway(0) && bytes > 0);
    }

    fn end(&mut self, now: Time, token: Key) {
        let Some(underway) = self.underway.get_mut(token.index()) else { return };
        let Underway(bytes) = std::mem::take(underway);
        if bytes == 0 {
            return;
        }
        self.open -= 1;
        // What the transport took at once was on its way for longer than anybody saw: that much of a stretch is not
        // counted. The rest of it left at the wire's rate.
        let before = self.passed.saturating_sub(self.taken_at_once);
        self.passed += u64::from(bytes);
        let counted = self.passed.saturating_sub(self.taken_at_once) - before;
        if counted > 0 {
            self.bytes += counted;
            self.nanoseconds += now.0.saturating_sub(self.counted.0);
            self.counted = self.counted.max(now);
        }
        self.until = self.until.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;
    use paceline_job::Settings;

    fn wired(taken_at_once: u64) -> (Traffic, Vec<Key>) {
        let hosts = ["a", "a", "b"].map(String::from).to_vec();
        let view = View::on_hosts(hosts, Settings::default());
        let mut slab = Slab::default();
        let keys = (0..4).map(|_| slab.insert(())).collect();
        (Traffic::new(Rank(0), &view, taken_at_once), keys)
    }

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn time_in_which_nothing_is_on_its_way_is_not_counted() {
        let (mut traffic, keys) = wired(0);
        for begin in [0, 50, 1000].map(|milliseconds| milliseconds * MILLISECOND) {
            traffic.receiving(Time(begin), Rank(2), keys[0], 1000);
            traffic.received(Time(begin + MILLISECOND), keys[0]);
        }
        assert_eq!(traffic.totals().download(), Some(1e6));
    }

    #[test]
    fn messages_that_overlap_share_the_time() {
        let (mut traffic, keys) = wired(0);
        traffic.sending(Time(0), Rank(2), keys[0], 4000);
        traffic.sending(Time(MILLISECOND), Rank(2), keys[1], 1000);
        traffic.delivered(Time(2 * MILLISECOND), keys[1]);
        traffic.delivered(Time(5 * MILLISECOND), keys[0]);
        assert_eq!(traffic.totals().upload(), Some(1e6));
    }

    #[test]
    fn memory_does_not_count_beside_a_wire() {
        let (mut traffic, keys) = wired(0);
        traffic.sending(Time(0), Rank(1), keys[0], 1 << 30);
        traffic.delivered(Time(1), keys[0]);
        assert_eq!(traffic.totals(), Totals::default());
    }

    #[test]
    fn what_the_kernel_takes_at_once_makes_no_wire_faster() {
        let (mut traffic, keys) = wired(1000);
        // The kernel takes 1000 bytes, then a byte in a microsecond.
        for (number, at) in [0, 500, 1500, 2500].into_iter().enumerate() {
            traffic.sending(Time(0), Rank(2), keys[number], if number < 2 { 750 } else { 1000 });
            traffic.delivered(Time(at * 1000), keys[number]);
        }
        assert_eq!(traffic.totals().upload(), Some(1e6));
    }

    #[test]
    fn what_was_overtaken_for_long_counts_its_time_once() {
        let (mut traffic, keys) = wired(0);
        traffic.sending(Time(0), Rank(2), keys[0], 1000);
        for number in 0..3 {
            traffic.sending(Time(number * MILLISECOND), Rank(2), keys[1], 1000);
            traffic.delivered(Time((number + 1) * MILLISECOND), keys[1]);
        }
        traffic.delivered(Time(4 * MILLISECOND), keys[0]);
        assert_eq!(traffic.totals().upload(), Some(1e6));
    }

    #[test]
    fn a_token_that_is_unknown_counts_nothing() {
        let (mut traffic, keys) = wired(0);
        traffic.delivered(Time(5), keys[3]);
        traffic.sending(Time(0), Rank(9), keys[0], 10);
        traffic.delivered(Time(5), keys[0]);
        assert_eq!(traffic.totals(), Totals::default());
    }
}
