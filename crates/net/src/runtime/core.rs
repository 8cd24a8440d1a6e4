//! What all links of a worker share: the engine, the memory behind its names, and the clock.
//!
//! A link that received something tells it here; what the engine then wants done collects in
//! `actions`, which the driver performs when the link has had its turn.

use super::memory::Memory;
use crate::{
    runtime::{carried::Counting, record::Recorder, trace::EngineSource},
    watching::Watching,
};
use paceline_job::{Rank, Time};
use paceline_sync::{
    engine::Engine,
    event::{Action, BufId, Event, Placement},
    frame::Header,
    slab::Key,
};
use std::{sync::Arc, time::Instant};

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Core {
    pub engine: Engine,
    pub memory: Memory,
    pub actions: Vec<Action>,
    pub recorder: Option<Recorder>,
    /// Where what happens is told, while somebody makes a trace.
    pub trace: Option<EngineSource>,
    /// What wires carry is counted, unless nobody wants to know.
    pub counting: Option<Counting>,
    /// What people see who watch the job.
    pub watching: Arc<Watching>,
    /// Peers whose memory we have done with, and what to tell them.
    pub receipts: Vec<(Rank, u32)>,
    started: Instant,
    now: Time,
}

impl Core {
    pub(crate) fn new(
        engine: Engine,
        memory: Memory,
        recorder: Option<Recorder>,
        watching: Arc<Watching>,
    ) -> Core {
        let actions = Vec::with_capacity(64);
        Core {
            engine,
            memory,
            actions,
            recorder,
            trace: None,
            counting: None,
            watching,
            receipts: Vec::new(),
            started: Instant::now(),
            now: Time::ZERO,
        }
    }

    /// Look at the clock. Once per turn: reading it costs as much as handling an event.
    pub(crate) fn look_at_clock(&mut self) -> Time {
        self.now = Time::ZERO.after(self.started.elapsed());
        self.now
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn feed(&mut self, event: Event) {
        if let Some(trace) = &mut self.trace {
            match &event {
                Event::Delivered { token } => trace.delivered(*token),
                Event::Arrived { token } => trace.received(*token),
                Event::View(view) => trace.view(view),
                _ => {}
            }
        }
        if let (Some(counting), Event::Delivered { .. } | Event::Arrived { .. }) =
            (&mut self.counting, &event)
        {
            // A message may come and be through within one turn: the time at its beginning would make it infinitely fast.
            counting.note(Time::ZERO.after(self.started.elapsed()), &event);
        }
        match &mut self.recorder {
            None => self.engine.handle(self.now, event, &mut self.actions),
            Some(recorder) => {
                let before = self.actions.len();
                let copy = event.clone();
                self.engine.handle(self.now, event, &mut self.actions);
                recorder.note(self.now, copy, &self.actions[before..]);
            }
        }
    }

    /// Where does this data frame go?
    pub(crate) fn incoming(&mut self, from: Rank, header: Header) -> (Option<Key>, Placement) {
        let before = self.actions.len();
        self.feed(Event::Incoming { from, header });
        let at = self.actions[before..]
            .iter()
            .position(|action| matches!(action, Action::Place { .. }))
            .expect("the engine places every data frame");
        match self.actions.remove(before + at) {
            Action::Place { token, placement } => {
                // It jumps the queue of actions, and the scratch it names may be freed further up.
                self.free_scratch();
                if let (Some(trace), Some(token)) = (&mut self.trace, token) {
                    trace.receiving(from, token, &header);
                }
                self.watching.receiving(header.key.name, header.len);
                if let (Some(counting), Some(token)) = (&mut self.counting, token) {
                    counting.receiving(self.now, from, token, &header);
                }
                (token, placement)
            }
            _ => unreachable!("found by its kind"),
        }
    }

    /// Perform the queued [`Action::Free`]s. Nothing else in the queue names their scratch: it is freed
    /// after its last use.
    fn free_scratch(&mut self) {
        let (memory, receipts) = (&mut self.memory, &mut self.receipts);
        self.actions.retain(|action| match action {
            Action::Free(buf) => {
                receipts.extend(memory.free(*buf));
                false
            }
            _ => true,
        });
    }

    /// Scratch is not needed any more.
    pub(crate) fn free(&mut self, buf: BufId) {
        self.receipts.extend(self.memory.free(buf));
    }

    /// A placed frame is complete. Discarded ones have no token.
    pub(crate) fn arrived(&mut self, token: Option<Key>) {
        if let Some(token) = token {
            self.feed(Event::Arrived { token });
        }
    }

    /// The memory of a send is ours again. Control frames have no token.
    pub(crate) fn delivered(&mut self, token: Option<Key>) {
        if let Some(token) = token {
            self.feed(Event::Delivered { token });
        }
    }

    pub(crate) fn control(&mut self, from: Rank, header: Header, payload: Box<[u8]>) {
        self.feed(Event::Control { from, header, payload });
    }
}
