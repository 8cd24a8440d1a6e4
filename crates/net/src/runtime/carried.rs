//! What wires have carried, told to whoever asks without waiting for the driver: its holder counts, everybody may read.

use super::trace::monotonic_nanoseconds;
use paceline_job::{Rank, Time, View};
use paceline_sync::{
    event::Event,
    frame::Header,
    metrics::{self, Totals, Traffic},
    slab::Key,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The numbers as others read them. Each is right by itself; together they may be a message apart.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    sent: OneWay,
    received: OneWay,
    /// Since when no operation is in flight; 0 while one is.
    idle_since: AtomicU64,
}

#[derive(Debug, Default)]
struct OneWay {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl OneWay {
    fn read(&self) -> metrics::Carried {
        metrics::Carried {
            bytes: self.bytes.load(Ordering::Relaxed),
            nanoseconds: self.nanoseconds.load(Ordering::Relaxed),
        }
    }

    fn write(&self, carried: metrics::Carried) {
        self.bytes.store(carried.bytes, Ordering::Relaxed);
        self.nanoseconds.store(carried.nanoseconds, Ordering::Relaxed);
    }
}

impl Carried {
    pub(crate) fn totals(&self) -> Totals {
        Totals { sent: self.sent.read(), received: self.received.read() }
    }

    /// Since when no operation is in flight.
    pub(crate) fn idle_since(&self) -> Option<Time> {
        Some(Time(self.idle_since.load(Ordering::Relaxed))).filter(|since| *since > Time::ZERO)
    }

    fn tell(&self, totals: Totals) {
        self.sent.write(totals.sent);
        self.received.write(totals.received);
    }
}

/// The driver's part.
#[derive(Debug)]
pub(crate) struct Counting {
    traffic: Traffic,
    carried: Arc<Carried>,
}

impl Counting {
    pub(crate) fn new(traffic: Traffic, carried: Arc<Carried>) -> Counting {
        Counting { traffic, carried }
    }

    /// Others are in the view.
    pub(crate) fn enter(&mut self, rank: Rank, view: &View) {
        self.traffic.enter(rank, view);
    }

    /// What came from each peer so far, in the view in force.
    pub(crate) fn inward(&self) -> Vec<(Rank, metrics::Came)> {
        self.traffic.inward().collect()
    }

    /// An operation was posted.
    pub(crate) fn busy(&self) {
        self.carried.idle_since.store(0, Ordering::Relaxed);
    }

    /// The last operation in flight is over.
    pub(crate) fn idle(&self) {
        self.carried.idle_since.store(monotonic_nanoseconds(), Ordering::Relaxed);
    }

    pub(crate) fn sending(&mut self, now: Time, to: Rank, token: Key, header: &Header) {
        self.traffic.sending(now, to, token, header.len);
    }

    pub(crate) fn receiving(&mut self, now: Time, from: Rank, token: Key, header: &Header) {
        self.traffic.receiving(now, from, token, header.len);
    }

    /// The engine is about to hear this.
    pub(crate) fn note(&mut self, now: Time, event: &Event) {
        match event {
            Event::Delivered { token } => self.traffic.delivered(now, *token),
            Event::Arrived { token } => self.traffic.received(now, *token),
            _ => return,
        }
        self.carried.tell(self.traffic.totals());
    }
}
