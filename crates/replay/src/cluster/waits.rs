//! What everything in a cluster waited for last, so that the end of an operation can be followed back, message by message,
//! to the posts that it follows from. An engine acts on the event that it lacked, so the event is the reason; nothing is
//! asked of engines or of the network for this. It knows nothing of graphs and steps.

use paceline_job::{Rank, Time};
use paceline_sync::{
    event::{Event, OpId, Work},
    slab::Key,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Hops that are noted, at 32 bytes; later ones are not known, and the way back ends where they would be.
const MOST_HOPS: usize = 1 << 23;

/// What a stretch of time was spent on, somewhere in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A message moved: the time that it takes where nothing else does.
    Link {
        /// Its sender.
        from: Rank,
        /// Its receiver.
        to: Rank,
    },
    /// A message waited for others that shared its way, or were before it.
    Queue {
        /// Its sender.
        from: Rank,
        /// Its receiver.
        to: Rank,
    },
    /// A worker combined what it had received, or handled other messages first.
    Worker(Rank),
    /// It is not known.
    Unknown,
}

/// How the end of an operation on a worker came about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WayBack {
    /// What follows on each other up to that end, latest first.
    pub stretches: Vec<Stretch>,
    /// The post that all of it follows from. If it is not known, the last stretch reaches back to the begin of time.
    pub post: Option<(OpId, Rank)>,
}

/// A stretch of the way back from the end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// From when.
    pub from: Time,
    /// To when.
    pub to: Time,
    /// On what.
    pub over: Over,
}

/// See the file's first paragraph. While the cluster runs it grows; afterwards it answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    hops: Vec<Hop>,
    /// How long a message of no bytes takes, and bytes per nanosecond, by sender and receiver.
    ways: FxHashMap<(u32, u32), (u64, f64)>,
    /// What led to each operation's end on each worker.
    ends: FxHashMap<(u32, OpId), u32>,
    /// What led to messages that are on the way, and to work that is under way.
    departed: FxHashMap<(u32, Key), (u32, u32, u32)>,
    control: FxHashMap<(u32, u32), VecDeque<u32>>,
    landed: FxHashMap<(u32, Key), u32>,
    working: FxHashMap<(u32, Work), u32>,
    /// What an engine is being told of. It becomes a hop when something follows from it, which is rare enough to spare half.
    telling: Option<Hop>,
    /// The hop that it became, or is a part of.
    current: u32,
}

/// Something that happened, and what it had waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Hop {
    at: Time,
    before: u32,
    after: After,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Post(u32, OpId),
    /// A message was given to the transport, or arrived; with its bytes.
    Left(u32, u32, u32),
    Arrival(u32, u32, u32),
    Worker(u32),
    Unknown,
}

const NONE: u32 = u32::MAX;

impl Waits {
    /// An engine is told of something that is no frame.
    pub(super) fn tell(&mut self, now: Time, rank: u32, event: &Event) {
        let (before, after) = match event {
            Event::Post(post) => (NONE, After::Post(rank, post.op)),
            Event::Delivered { token } => match self.departed.get(&(rank, *token)) {
                Some((before, to, bytes)) => (*before, After::Left(rank, *to, *bytes)),
                None => (NONE, After::Unknown),
            },
            Event::Arrived { token } => {
                let before = self.landed.remove(&(rank, *token));
                (before.unwrap_or(NONE), After::Worker(rank))
            }
            Event::Worked { token } => {
                let before = self.working.remove(&(rank, *token));
                (before.unwrap_or(NONE), After::Worker(rank))
            }
            Event::Incoming { .. } | Event::Control { .. } => return,
            Event::PeerLost { .. } | Event::PeerLeft { .. } | Event::View(_) | Event::Tick => {
                (NONE, After::Unknown)
            }
        };
        self.set(Hop { at: now, before, after });
    }

    /// An engine is about to be told of a data frame.
    pub(super) fn data(&mut self, now: Time, from: u32, to: u32, token: Key) {
        let hop = match self.departed.remove(&(from, token)) {
            Some((before, _, bytes)) => {
                Hop { at: now, before, after: After::Arrival(from, to, bytes) }
            }
            None => Hop { at: now, before: NONE, after: After::Unknown },
        };
        self.set(hop);
    }

    /// An engine is about to be told of a control frame; those between two workers keep their order.
    pub(super) fn control(&mut self, now: Time, from: u32, to: u32) {
        let before = self.control.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let before = before.unwrap_or(NONE);
        self.set(Hop { at: now, before, after: After::Arrival(from, to, 0) });
    }

    /// The engine sends a data frame over a way whose latency and rate are told once.
    pub(super) fn sends(
        &mut self,
        from: u32,
        to: u32,
        token: Key,
        bytes: u32,
        way: impl FnOnce() -> (u64, f64),
    ) {
        let hop = self.hop();
        self.departed.insert((from, token), (hop, to, bytes));
        self.ways.entry((from, to)).or_insert_with(way);
    }

    /// The engine sends a control frame.
    pub(super) fn sends_control(&mut self, from: u32, to: u32, way: impl FnOnce() -> (u64, f64)) {
        let hop = self.hop();
        self.control.entry((from, to)).or_default().push_back(hop);
        self.ways.entry((from, to)).or_insert_with(way);
    }

    /// The engine has said where a frame goes.
    pub(super) fn places(&mut self, rank: u32, token: Key) {
        let hop = self.hop();
        self.landed.insert((rank, token), hop);
    }

    /// The engine has ordered work.
    pub(super) fn orders(&mut self, rank: u32, token: Work) {
        let hop = self.hop();
        self.working.insert((rank, token), hop);
    }

    /// An operation is over on a worker.
    pub(super) fn ends(&mut self, rank: u32, op: OpId) {
        let hop = self.hop();
        self.ends.insert((rank, op), hop);
    }

    fn set(&mut self, hop: Hop) {
        // What follows at once waited for nothing more.
        if self.hops.get(hop.before as usize).is_some_and(|before| before.at == hop.at) {
            (self.telling, self.current) = (None, hop.before);
        } else {
            self.telling = Some(hop);
        }
    }

    fn hop(&mut self) -> u32 {
        if let Some(hop) = self.telling.take() {
            self.current = NONE;
            if self.hops.len() < MOST_HOPS {
                self.current = self.hops.len() as u32;
                self.hops.push(hop);
            }
        }
        self.current
    }

    /// The way back from an operation's end on a worker; `None` where nothing was noted of it.
    pub fn back(&self, op: OpId, rank: Rank) -> Option<WayBack> {
        let mut hop = self.hops.get(*self.ends.get(&(rank.0, op))? as usize)?;
        let mut stretches = Vec::new();
        // Every hop was noted after the one before it.
        loop {
            if let After::Post(rank, op) = hop.after {
                return Some(WayBack { stretches, post: Some((op, Rank(rank))) });
            }
            let before = self.hops.get(hop.before as usize);
            let since = before.map_or(Time::ZERO, |before| before.at);
            let Some(before) = before.filter(|_| hop.after != After::Unknown) else {
                stretches.push(Stretch { from: since, to: hop.at, over: Over::Unknown });
                return Some(WayBack { stretches, post: None });
            };
            self.split(hop, since, &mut stretches);
            hop = before;
        }
    }

    /// What a hop's time was spent on: waiting first, then moving.
    fn split(&self, hop: &Hop, since: Time, stretches: &mut Vec<Stretch>) {
        let to = hop.at;
        let mut add = |from: Time, to: Time, over| {
            if from < to {
                stretches.push(Stretch { from, to, over });
            }
        };
        let (sender, receiver, bytes, arrived) = match hop.after {
            After::Arrival(sender, receiver, bytes) => (sender, receiver, bytes, true),
            After::Left(sender, receiver, bytes) => (sender, receiver, bytes, false),
            After::Worker(rank) => return add(since, to, Over::Worker(Rank(rank))),
            After::Post(..) | After::Unknown => return add(since, to, Over::Unknown),
        };
        let (latency, rate) = self.ways.get(&(sender, receiver)).copied().unwrap_or((0, 0.0));
        let latency = if arrived { latency } else { 0 };
        // A way that carries nothing makes this infinite, which the conversion bounds.
        let moving = latency.saturating_add((f64::from(bytes) / rate).ceil() as u64);
        let moved_from = Time(to.0.saturating_sub(moving)).max(since);
        let (from, receiver) = (Rank(sender), Rank(receiver));
        add(moved_from, to, Over::Link { from, to: receiver });
        add(since, moved_from, Over::Queue { from, to: receiver });
    }
}
