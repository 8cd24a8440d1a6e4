//! The producing end: a bounded ring with one writer and one reader, and what is to be known about names. Pushing
//! never waits and never allocates; what does not fit is counted and forgotten.

use super::{
    event::{Event, MessageKey},
    recording::monotonic_nanoseconds,
};
use paceline_job::{Rank, View};
use paceline_sync::{
    engine::Engine,
    event::{OpId, Post},
    frame::Header,
    slab::Key,
};
use rtrb::{Consumer, Producer, RingBuffer};
use rustc_hash::FxHashSet;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
    mpsc::Sender,
};

/// What all sources of a recording share with its collector.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    /// Whether events are wanted right now.
    pub on: AtomicBool,
    /// Events that found their ring full, or came after the last that is kept.
    pub dropped: AtomicU64,
}

/// What travels beside the rings, because it has no fixed size. One for each ring, name and view.
#[derive(Debug)]
pub(crate) enum Introduction {
    /// A source begins.
    Ring(Consumer<Event>),
    /// Events call a thread by a number.
    Thread { number: u32, name: String },
    /// Events call tensors by the hash of name and group.
    Name { hash: u64, name: Arc<str>, group: Option<Arc<[Rank]>> },
    /// This view is in force from now on.
    View(Arc<View>),
}

/// One thread's way into the recording, or that of whoever holds a lock.
#[derive(Debug)]
pub(crate) struct Source {
    ring: Producer<Event>,
    switch: Arc<Switch>,
}

impl Source {
    /// A ring of so many events.
    pub(crate) fn new(events: usize, switch: Arc<Switch>, to: &Sender<Introduction>) -> Source {
        let (ring, consumer) = RingBuffer::new(events);
        // A collector that has ended has no use for it.
        let _ = to.send(Introduction::Ring(consumer));
        Source { ring, switch }
    }

    /// Whether the recording is over.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.switch.on.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&mut self, event: Event) {
        if self.is_on() && self.ring.push(event).is_err() {
            self.switch.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The engine's way into the recording. Whoever drives the engine holds it, so there is one writer at a time.
#[derive(Debug)]
pub(crate) struct EngineSource {
    source: Source,
    introductions: Sender<Introduction>,
    /// Names that were introduced. The engine keeps every name as well.
    known: FxHashSet<u64>,
}

impl EngineSource {
    pub(crate) fn new(source: Source, introductions: Sender<Introduction>) -> EngineSource {
        EngineSource { source, introductions, known: FxHashSet::default() }
    }

    /// An operation is about to be given to the engine; the program handed it over at `at`.
    pub(crate) fn posted(&mut self, engine: &Engine, post: &Post, at: Option<u64>) {
        if !self.source.is_on() {
            return;
        }
        let group = post.group.as_deref();
        let key = engine.next_key(&post.name, group);
        if self.known.insert(key.name) {
            let (name, group) = (post.name.clone(), post.group.clone());
            let _ = self.introductions.send(Introduction::Name { hash: key.name, name, group });
        }
        let member = match group {
            None => Some(engine.rank().0),
            Some(ranks) => ranks.iter().position(|rank| *rank == engine.rank()).map(|at| at as u32),
        };
        let elements = member.map_or(0, |member| post.collective.input_len(member));
        self.source.push(Event::Posted {
            at: at.unwrap_or_else(monotonic_nanoseconds),
            op: post.op.0,
            name: key.name,
            uses: key.uses,
            operation: post.collective.kind(),
            dtype: post.dtype,
            bytes: elements * post.dtype.size() as u64,
            priority: post.priority,
        });
    }

    pub(crate) fn over(&mut self, op: OpId, well: bool) {
        self.tell(|at| Event::Over { at, op: op.0, well });
    }

    pub(crate) fn sending(&mut self, to: Rank, token: Key, header: &Header) {
        let message = || MessageKey::new(to.0, header);
        self.tell(|at| Event::Sending { at, token: token.bits(), message: message() });
    }

    pub(crate) fn delivered(&mut self, token: Key) {
        self.tell(|at| Event::Delivered { at, token: token.bits() });
    }

    pub(crate) fn receiving(&mut self, from: Rank, token: Key, header: &Header) {
        let message = || MessageKey::new(from.0, header);
        self.tell(|at| Event::Receiving { at, token: token.bits(), message: message() });
    }

    pub(crate) fn received(&mut self, token: Key) {
        self.tell(|at| Event::Received { at, token: token.bits() });
    }

    /// When work begins, if anybody wants to know.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.source.is_on().then(monotonic_nanoseconds)
    }

    /// Of which operation and chunk, where the engine knows.
    pub(crate) fn reduced(&mut self, begin: u64, bytes: u64, part: Option<(OpId, u32)>) {
        let part = part.map(|(op, chunk)| (op.0, chunk));
        self.tell(|now| Event::Reduced {
            begin,
            nanoseconds: now.saturating_sub(begin),
            bytes,
            part,
        });
    }

    pub(crate) fn view(&mut self, view: &Arc<View>) {
        let _ = self.introductions.send(Introduction::View(view.clone()));
    }

    fn tell(&mut self, event: impl FnOnce(u64) -> Event) {
        if self.source.is_on() {
            self.source.push(event(monotonic_nanoseconds()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn delivered(token: u64) -> Event {
        Event::Delivered { at: 0, token }
    }

    #[test]
    fn a_full_ring_drops_what_comes_and_counts_it() {
        let (to, from) = channel();
        let switch = Arc::new(Switch::default());
        let mut source = Source::new(4, switch.clone(), &to);
        source.push(delivered(0));
        assert_eq!(switch.dropped.load(Ordering::Relaxed), 0, "nobody wanted it");
        switch.on.store(true, Ordering::Relaxed);
        (1..=10).for_each(|token| source.push(delivered(token)));
        assert_eq!(switch.dropped.load(Ordering::Relaxed), 6);
        let Ok(Introduction::Ring(mut ring)) = from.recv() else { panic!("the ring comes first") };
        let kept: Vec<Event> = std::iter::from_fn(|| ring.pop().ok()).collect();
        assert_eq!(kept, [1, 2, 3, 4].map(delivered));
    }

    #[test]
    fn what_one_thread_pushes_another_takes_in_order_and_without_loss() {
        const EVENTS: u64 = 200_000;
        let (to, from) = channel();
        let switch = Arc::new(Switch { on: AtomicBool::new(true), ..Switch::default() });
        let mut source = Source::new(64, switch.clone(), &to);
        let Ok(Introduction::Ring(mut ring)) = from.recv() else { panic!("the ring comes first") };
        let pushing =
            std::thread::spawn(move || (0..EVENTS).for_each(|n| source.push(delivered(n))));
        let (mut last, mut taken) = (None, 0);
        while !(pushing.is_finished() && ring.is_empty()) {
            while let Ok(Event::Delivered { token, .. }) = ring.pop() {
                assert!(last < Some(token), "{last:?} before {token}");
                (last, taken) = (Some(token), taken + 1);
            }
        }
        pushing.join().unwrap();
        assert_eq!(taken + switch.dropped.load(Ordering::Relaxed), EVENTS);
    }
}
