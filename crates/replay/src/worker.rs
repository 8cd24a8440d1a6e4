//! A worker's own time: the thread that handles frames one by one, and the hands that combine and
//! copy bytes one piece after another. It knows when they are done, not what it leads to.

use crate::{
    config::{Combine, WorkerConfig},
    memory::Memory,
    network::Frame,
};
use paceline_sync::{event::Work, slab::Key};
use std::collections::VecDeque;

/// What an engine hears when something of its own is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prompt {
    Delivered(Key),
    Arrived(Key),
    Worked(Work),
}

/// Combining or copying that is under way.
#[derive(Debug)]
pub(crate) struct Job<T> {
    done: u64,
    /// Whose frame it is, if it is one.
    from: Option<u32>,
    pub prompt: Prompt,
    pub task: T,
}

/// A frame that waits for the thread.
#[derive(Debug)]
pub(crate) enum Errand<P> {
    Receive { from: u32, frame: Frame<P> },
    Send { to: u32, frame: Frame<P> },
}

/// See the file's first paragraph. Its queues hold what peers' credit and grants let them hold.
#[derive(Debug)]
pub(crate) struct Worker<M: Memory> {
    hands: VecDeque<Job<M::Task>>,
    hands_free_at: f64,
    thread: VecDeque<Errand<M::Parcel>>,
    thread_free_at: u64,
    /// When its engine is to be told that time passed.
    pub tick_at: u64,
}

impl<M: Memory> Worker<M> {
    pub(crate) fn new() -> Worker<M> {
        Worker {
            hands: VecDeque::new(),
            hands_free_at: 0.0,
            thread: VecDeque::new(),
            thread_free_at: 0,
            tick_at: u64::MAX,
        }
    }

    /// Give the hands `bytes` to combine or copy; when they are done. A frame's bytes could have been
    /// worked on from `first_byte_at` on.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn take_in_hand(
        &mut self,
        now: u64,
        config: &WorkerConfig,
        bytes: u64,
        frame: Option<(u32, u64)>,
        prompt: Prompt,
        task: M::Task,
    ) -> u64 {
        let first_byte_at = match (config.combine, frame) {
            (Combine::Overlapped, Some((_, first_byte_at))) => first_byte_at.min(now),
            _ => now,
        };
        let span = match config.combine_rate {
            Some(rate) => bytes as f64 / rate.bytes_per_second() * 1e9,
            None => 0.0,
        };
        self.hands_free_at = self.hands_free_at.max(first_byte_at as f64) + span;
        let done = (self.hands_free_at.ceil() as u64).max(now);
        self.hands.push_back(Job { done, from: frame.map(|(from, _)| from), prompt, task });
        done
    }

    /// The next piece that the hands have finished.
    pub(crate) fn finished_job(&mut self, now: u64) -> Option<Job<M::Task>> {
        if self.hands.front()?.done > now {
            return None;
        }
        self.hands.pop_front()
    }

    /// Give the thread a frame to handle; when it is done.
    pub(crate) fn run_errand(
        &mut self,
        now: u64,
        per_frame: u64,
        errand: Errand<M::Parcel>,
    ) -> u64 {
        self.thread_free_at = self.thread_free_at.max(now).saturating_add(per_frame);
        self.thread.push_back(errand);
        self.thread_free_at
    }

    /// The errand that the thread has just finished: each sets one timer, and they end in order.
    pub(crate) fn finished_errand(&mut self) -> Option<Errand<M::Parcel>> {
        self.thread.pop_front()
    }

    /// A peer is lost: nothing of it is worked on any more. Its places in the thread's queue stay, as
    /// the time for them is spent; the cluster drops what comes of them.
    pub(crate) fn forget_peer(&mut self, peer: u32) {
        self.hands.retain(|job| job.from != Some(peer));
    }

    /// The worker is dead.
    pub(crate) fn die(&mut self) {
        self.tick_at = u64::MAX;
        self.hands = VecDeque::new();
        self.thread = VecDeque::new();
    }
}
