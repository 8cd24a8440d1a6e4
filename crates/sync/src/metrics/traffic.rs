//! How fast this worker's wires are, from when messages were handed over and when they were through; time in which nothing
//! was on its way says nothing about a wire.
//!
//! What comes is seen when it is read. What came while the reader was elsewhere is read from memory, at memory's speed, however
//! slow the wire is: so a stretch only counts if it lasts longer than what may have been there already. What leaves is seen to leave when the kernel takes it, which it does at once until its
//! queue is full, however fast the wire is. So only what had to wait counts, and only behind something that had to wait: then the
//! kernel takes as much as the wire does.
//!
//! Where some peers sit on other hosts, only messages to and from those count: memory is a hundred times as fast.

use super::FlowMetrics;
use crate::slab::Key;
use paceline_job::{Rank, Time, View};

/// A pause this short between two messages is part of one stretch: it is the receiver's or the sender's way to the next
/// message, and the kernel goes on sending meanwhile.
const SHORT_PAUSE_NANOSECONDS: u64 = 100_000;

/// What is carried in less says nothing of a wire: the kernel gives and takes a mebibyte in half of it.
const LEAST_STRETCH_NANOSECONDS: u64 = 500_000;

/// A message that was taken sooner did not have to wait.
const MOMENT_NANOSECONDS: u64 = 50_000;

/// Bytes that went one way, and the time in which something was on it. Numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// That went.
    pub bytes: u64,
    /// While they did.
    pub nanoseconds: u64,
}

impl Carried {
    /// What went since.
    pub fn since(&self, earlier: &Carried) -> Carried {
        Carried {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds),
        }
    }

    /// Bytes a second, if enough went to tell.
    pub fn rate(&self) -> Option<f64> {
        (self.bytes > 0 && self.nanoseconds >= LEAST_STRETCH_NANOSECONDS)
            .then(|| self.bytes as f64 / (self.nanoseconds as f64 * 1e-9))
    }
}

/// What came from one worker. Numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// All of it.
    pub bytes: u64,
    /// What came for long enough to tell how fast.
    pub timed: Carried,
}

impl Came {
    /// What came since from this worker, if enough did to tell how fast.
    pub fn since(&self, earlier: &Came, from: Rank) -> Option<FlowMetrics> {
        let timed = self.timed.since(&earlier.timed);
        timed.rate().map(|_| FlowMetrics {
            from,
            all: self.bytes.saturating_sub(earlier.bytes) as f64,
            bytes: timed.bytes as f64,
            seconds: timed.nanoseconds as f64 * 1e-9,
        })
    }
}

/// What this worker's wires carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// What left.
    pub sent: Carried,
    /// What came.
    pub received: Carried,
}

impl Totals {
    /// What was carried since.
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            sent: self.sent.since(&earlier.sent),
            received: self.received.since(&earlier.received),
        }
    }
}

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// By rank.
    counts: Vec<bool>,
    out: Outwards,
    into: Inwards,
}

impl Traffic {
    /// For this worker of the view.
    pub fn new(rank: Rank, view: &View) -> Traffic {
        Traffic { counts: counts(rank, view), out: Outwards::default(), into: Inwards::default() }
    }

    /// Others are in the view. What was on its way before never ends.
    pub fn enter(&mut self, rank: Rank, view: &View) {
        self.counts = counts(rank, view);
        self.out = Outwards { carried: self.out.carried, ..Outwards::default() };
        let all = Stretch { carried: self.into.all.carried, ..Stretch::default() };
        self.into = Inwards { all, ..Inwards::default() };
    }

    /// What came from each peer since others were last in the view.
    pub fn inward(&self) -> impl Iterator<Item = (Rank, Came)> {
        let from = (0..).map(Rank).zip(&self.into.from);
        from.map(|(rank, it)| (rank, Came { bytes: it.came, timed: it.carried }))
    }

    /// So far.
    pub fn totals(&self) -> Totals {
        Totals { sent: self.out.carried, received: self.into.all.carried }
    }

    /// A message was handed to the transport.
    pub fn sending(&mut self, now: Time, to: Rank, token: Key, bytes: u32) {
        if self.counts.get(to.index()).copied().unwrap_or(false) {
            self.out.begin(Underway { begun: now, bytes, peer: to.0 }, token);
        }
    }

    /// The transport has done with it.
    pub fn delivered(&mut self, now: Time, token: Key) {
        self.out.end(now, token);
    }

    /// The first bytes of a message came, at `now` or a while ago.
    pub fn receiving(&mut self, now: Time, from: Rank, token: Key, bytes: u32) {
        if self.counts.get(from.index()).copied().unwrap_or(false) {
            self.into.begin(Underway { begun: now, bytes, peer: from.0 }, token);
        }
    }

    /// All of it is there.
    pub fn received(&mut self, now: Time, token: Key) {
        self.into.end(now, token);
    }
}

/// With whom messages count, by rank.
fn counts(rank: Rank, view: &View) -> Vec<bool> {
    let host = |rank: usize| view.workers.get(rank).map(|worker| worker.host.as_str());
    let elsewhere = |other: usize| host(other) != host(rank.index());
    let wired = (0..view.size()).any(elsewhere);
    (0..view.size()).map(|other| !wired || elsewhere(other)).collect()
}

/// A message that is on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Underway {
    begun: Time,
    /// 0 if none is.
    bytes: u32,
    peer: u32,
}

/// Messages on their way in one direction, by the index of their tokens: as many as were ever on their way at once.
#[derive(Clone, Debug, Default)]
struct Messages {
    underway: Vec<Underway>,
    open: u32,
}

impl Messages {
    fn begin(&mut self, message: Underway, token: Key) {
        let place = token.index();
        if self.underway.len() <= place {
            self.underway.resize(place + 1, Underway::default());
        }
        // One whose end nobody told has lost its place, and is not on its way any more.
        let before = std::mem::replace(&mut self.underway[place], message);
        self.open += u32::from(before.bytes == 0 && message.bytes > 0);
    }

    fn end(&mut self, token: Key) -> Option<Underway> {
        let message = std::mem::take(self.underway.get_mut(token.index())?);
        (message.bytes > 0).then(|| {
            self.open -= 1;
            message
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Outwards {
    messages: Messages,
    /// When the last message was through that had to wait, if something was on its way ever since.
    since: Option<Time>,
    /// A bit for each peer whose messages have had to wait since then.
    peers: u64,
    carried: Carried,
}

impl Outwards {
    fn begin(&mut self, message: Underway, token: Key) {
        self.messages.begin(message, token);
    }

    fn end(&mut self, now: Time, token: Key) {
        let Some(Underway { begun, bytes, peer }) = self.messages.end(token) else { return };
        if now.0.saturating_sub(begun.0) > MOMENT_NANOSECONDS {
            // Of the first that waits for a peer, the kernel may have taken most at once.
            let peer = 1 << (peer % 64);
            if let Some(since) = self.since.filter(|_| self.peers & peer != 0) {
                self.carried.bytes += u64::from(bytes);
                self.carried.nanoseconds += now.0.saturating_sub(since.0);
            }
            self.since = Some(now);
            self.peers |= peer;
        }
        if self.messages.open == 0 {
            (self.since, self.peers) = (None, 0);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Inwards {
    messages: Messages,
    /// Of all peers together: they share this worker's wire.
    all: Stretch,
    /// Of each, by rank: whoever sends less than the wire takes is slow by itself.
    from: Vec<Stretch>,
}

impl Inwards {
    fn begin(&mut self, message: Underway, token: Key) {
        let peer = message.peer as usize;
        if self.from.len() <= peer {
            self.from.resize(peer + 1, Stretch::default());
        }
        // What had the token before it has lost its place, and is not on its way any more.
        if let Some(before) = self.messages.end(token) {
            self.all.open -= 1;
            self.from[before.peer as usize].open -= 1;
        }
        if message.bytes == 0 {
            return;
        }
        self.messages.begin(message, token);
        self.all.begin(message.begun);
        self.from[peer].begin(message.begun);
    }

    fn end(&mut self, now: Time, token: Key) {
        let Some(Underway { bytes, peer, .. }) = self.messages.end(token) else { return };
        self.all.end(now, bytes);
        self.from[peer as usize].end(now, bytes);
    }
}

/// What comes without long pauses.
#[derive(Clone, Debug, Default)]
struct Stretch {
    /// Messages on their way.
    open: u32,
    /// Of the present one: when it began, when something was read last, until when it is counted, and its bytes that are
    /// not counted yet.
    since: Time,
    read: Time,
    until: Time,
    fresh: u64,
    carried: Carried,
    /// All bytes, counted or not.
    came: u64,
}

impl Stretch {
    fn begin(&mut self, at: Time) {
        let pause = at.0.saturating_sub(self.read.0) > SHORT_PAUSE_NANOSECONDS;
        if self.open == 0 && pause {
            (self.since, self.until, self.fresh) = (at, at, 0);
        }
        self.open += 1;
    }

    fn end(&mut self, now: Time, bytes: u32) {
        self.open -= 1;
        self.fresh += u64::from(bytes);
        self.came += u64::from(bytes);
        self.read = self.read.max(now);
        if now.0.saturating_sub(self.since.0) < LEAST_STRETCH_NANOSECONDS {
            return;
        }
        self.carried.bytes += std::mem::take(&mut self.fresh);
        self.carried.nanoseconds += now.0.saturating_sub(self.until.0);
        self.until = self.until.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;
    use paceline_job::Settings;

    fn wired() -> (Traffic, Vec<Key>) {
        let hosts = ["a", "a", "b"].map(String::from).to_vec();
        let view = View::on_hosts(hosts, Settings::default());
        let mut slab = Slab::default();
        let keys = (0..8).map(|_| slab.insert(())).collect();
        (Traffic::new(Rank(0), &view), keys)
    }

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn time_in_which_nothing_is_on_its_way_is_not_counted() {
        let (mut traffic, keys) = wired();
        for begin in [0, 50, 1000].map(|milliseconds| milliseconds * MILLISECOND) {
            traffic.receiving(Time(begin), Rank(2), keys[0], 1000);
            traffic.received(Time(begin + MILLISECOND), keys[0]);
        }
        assert_eq!(traffic.totals().received.rate(), Some(1e6));
    }

    #[test]
    fn messages_that_overlap_share_the_time() {
        let (mut traffic, keys) = wired();
        traffic.receiving(Time(0), Rank(2), keys[0], 4000);
        traffic.receiving(Time(MILLISECOND), Rank(2), keys[1], 1000);
        traffic.received(Time(2 * MILLISECOND), keys[1]);
        traffic.received(Time(5 * MILLISECOND), keys[0]);
        assert_eq!(traffic.totals().received.rate(), Some(1e6));
    }

    #[test]
    fn each_peer_has_a_rate_of_its_own_beside_that_of_the_wire() {
        let hosts = ["a", "b", "c"].map(String::from).to_vec();
        let mut traffic = Traffic::new(Rank(0), &View::on_hosts(hosts, Settings::default()));
        let mut slab = Slab::default();
        let keys: Vec<Key> = (0..2).map(|_| slab.insert(())).collect();
        traffic.receiving(Time(0), Rank(1), keys[0], 3000);
        traffic.receiving(Time(0), Rank(2), keys[1], 1000);
        traffic.received(Time(MILLISECOND), keys[0]);
        traffic.received(Time(4 * MILLISECOND), keys[1]);
        let rates: Vec<_> =
            traffic.inward().map(|(rank, came)| (rank.0, came.timed.rate())).collect();
        assert_eq!(rates, [(0, None), (1, Some(3e6)), (2, Some(0.25e6))]);
        assert_eq!(traffic.totals().received.rate(), Some(1e6));
    }

    #[test]
    fn a_message_without_bytes_does_not_stay_on_its_way() {
        let (mut traffic, keys) = wired();
        traffic.receiving(Time(0), Rank(2), keys[0], 0);
        traffic.received(Time(1), keys[0]);
        for begin in [0, 50, 1000].map(|milliseconds| milliseconds * MILLISECOND) {
            traffic.receiving(Time(begin), Rank(2), keys[1], 1000);
            traffic.received(Time(begin + MILLISECOND), keys[1]);
        }
        assert_eq!(traffic.totals().received.rate(), Some(1e6));
    }

    #[test]
    fn memory_does_not_count_beside_a_wire() {
        let (mut traffic, keys) = wired();
        traffic.sending(Time(0), Rank(1), keys[0], 1 << 30);
        traffic.delivered(Time(1), keys[0]);
        assert_eq!(traffic.totals(), Totals::default());
    }

    #[test]
    fn what_the_kernel_takes_at_once_makes_no_wire_faster() {
        let (mut traffic, keys) = wired();
        // It takes three and a half of six messages, then a byte in a microsecond.
        for (number, at) in [0, 1, 2, 500, 1500, 2500].into_iter().enumerate() {
            traffic.sending(Time(0), Rank(2), keys[number], 1000);
            traffic.delivered(Time(at * 1000), keys[number]);
            traffic.sending(Time(0), Rank(2), keys[7], 1);
        }
        assert_eq!(traffic.totals().sent.rate(), Some(1e6));
    }

    #[test]
    fn what_was_there_already_says_nothing_of_the_wire() {
        let (mut traffic, keys) = wired();
        for number in 0..100 {
            traffic.receiving(Time(number * MILLISECOND), Rank(2), keys[0], 1 << 18);
            traffic.received(Time(number * MILLISECOND + 60_000), keys[0]);
        }
        assert_eq!(traffic.totals().received.rate(), None);
        // Pieces that follow each other closely are one stretch, which counts from its beginning.
        for number in 0..100 {
            let begin = 200 * MILLISECOND + number * 100_000;
            traffic.receiving(Time(begin), Rank(2), keys[0], 1 << 18);
            traffic.received(Time(begin + 60_000), keys[0]);
        }
        let rate = traffic.totals().received.rate().unwrap();
        assert!((2.5e9..2.7e9).contains(&rate), "{rate}");
    }

    #[test]
    fn what_the_kernel_takes_together_says_nothing() {
        let (mut traffic, keys) = wired();
        for &key in &keys[..3] {
            traffic.sending(Time(0), Rank(2), key, 1 << 18);
        }
        // It had no room for a while, and then for all of them.
        for (at, &key) in (MILLISECOND..).step_by(5_000).zip(&keys[..3]) {
            traffic.delivered(Time(at), key);
        }
        assert_eq!(traffic.totals().sent.rate(), None);
    }

    #[test]
    fn what_leaves_at_once_says_nothing() {
        let (mut traffic, keys) = wired();
        for number in 0..100 {
            traffic.sending(Time(number * MILLISECOND), Rank(2), keys[0], 1 << 20);
            traffic.delivered(Time(number * MILLISECOND + 1000), keys[0]);
        }
        assert_eq!(traffic.totals().sent.rate(), None);
    }

    #[test]
    fn what_was_overtaken_for_long_counts_its_time_once() {
        let (mut traffic, keys) = wired();
        traffic.sending(Time(0), Rank(2), keys[0], 1000);
        for number in 0..4 {
            traffic.sending(Time(number * MILLISECOND), Rank(2), keys[1], 1000);
            traffic.delivered(Time((number + 1) * MILLISECOND), keys[1]);
        }
        traffic.delivered(Time(5 * MILLISECOND), keys[0]);
        assert_eq!(traffic.totals().sent.rate(), Some(1e6));
    }

    #[test]
    fn what_was_on_its_way_when_others_came_is_forgotten() {
        let (mut traffic, keys) = wired();
        traffic.receiving(Time(0), Rank(2), keys[0], 1000);
        traffic.received(Time(MILLISECOND), keys[0]);
        let before = traffic.totals();
        traffic.receiving(Time(2 * MILLISECOND), Rank(2), keys[0], 1000);
        traffic.sending(Time(2 * MILLISECOND), Rank(2), keys[1], 1000);
        let hosts = ["a", "b"].map(String::from).to_vec();
        traffic.enter(Rank(1), &View::on_hosts(hosts, Settings::default()));
        traffic.received(Time(3 * MILLISECOND), keys[0]);
        traffic.delivered(Time(3 * MILLISECOND), keys[1]);
        assert_eq!(traffic.totals(), before);
        // Rank 0 sits elsewhere now.
        traffic.receiving(Time(4 * MILLISECOND), Rank(0), keys[0], 1000);
        traffic.received(Time(5 * MILLISECOND), keys[0]);
        assert_eq!(traffic.totals().received.rate(), Some(1e6));
    }

    #[test]
    fn a_token_that_is_unknown_counts_nothing() {
        let (mut traffic, keys) = wired();
        traffic.delivered(Time(5), keys[3]);
        traffic.sending(Time(0), Rank(9), keys[0], 10);
        traffic.delivered(Time(5), keys[0]);
        assert_eq!(traffic.totals(), Totals::default());
    }
}
