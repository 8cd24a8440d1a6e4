//! What a virtual worker does for its engine: frames go in, and what it orders is done at once, or a little later.

use super::{Actor, Envelope, Told, engine};
use paceline_job::{View, ViewVersion};
use paceline_sync::{
    event::{Action, Event, Payload},
    frame::Kind,
};
use std::sync::Arc;

impl Actor {
    pub(super) fn frame(&mut self, envelope: Envelope) {
        if envelope.era > self.era.version {
            return self.early.push(envelope);
        }
        // Of a view that is over, or of one that nothing more comes of.
        if envelope.era < self.era.version || self.frozen || self.engine.is_none() {
            return;
        }
        let Envelope { from, header, payload, .. } = envelope;
        if header.kind != Kind::Data {
            return self.feed(Event::Control { from, header, payload: payload.into() });
        }
        let mut actions = Vec::new();
        let engine = self.engine.as_mut().expect("seen above");
        engine.handle(self.now, Event::Incoming { from, header }, &mut actions);
        let at = actions.iter().position(|action| matches!(action, Action::Place { .. }));
        let Action::Place { token, placement } = actions.remove(at.expect("every frame has one"))
        else {
            unreachable!("found by its kind")
        };
        self.memory.place(placement, &payload);
        if let Some(token) = token {
            // Some are in place at once, others take a while.
            if header.len % 3 == 0 {
                self.laters
                    .push((u64::from(header.len % 7), Told::Arrived(self.era.version, token)));
            } else {
                let engine = self.engine.as_mut().expect("seen above");
                engine.handle(self.now, Event::Arrived { token }, &mut actions);
            }
        }
        self.perform(actions);
    }

    pub(super) fn feed_in(&mut self, era: ViewVersion, event: Event) {
        if era == self.era.version && !self.frozen {
            self.feed(event);
        }
    }

    pub(super) fn feed(&mut self, event: Event) {
        let Some(engine) = &mut self.engine else { return };
        let mut actions = Vec::new();
        engine.handle(self.now, event, &mut actions);
        self.perform(actions);
    }

    /// Bounded by what is posted, as in the driver of real time.
    pub(super) fn perform(&mut self, mut actions: Vec<Action>) {
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                let Some(engine) = &mut self.engine else { return };
                match action {
                    Action::Send { to, token, header, payload, .. } => {
                        let payload = match payload {
                            Payload::Inline(bytes) => bytes.into_vec(),
                            Payload::Memory(loc) => self.memory.read(loc, header.len as usize),
                        };
                        if let Some(token) = token {
                            let after = 1 + u64::from(header.chunk % 5);
                            self.laters.push((after, Told::Delivered(self.era.version, token)));
                        }
                        let (era, from) = (self.era.version, engine.rank());
                        let envelope = Envelope { era, from, header, payload };
                        self.sent.push((self.era.workers[to.index()].id, envelope));
                    }
                    Action::Work { token, source, with, into, elements, recipe } => {
                        self.memory.work(source, with, into, elements, recipe);
                        engine.handle(self.now, Event::Worked { token }, &mut actions);
                    }
                    Action::Free(buf) => self.memory.free(buf),
                    Action::Complete(op) => match self.memory.leave(op) {
                        None => self.keeper.completed(op, &mut self.orders),
                        Some(bytes) => {
                            let read = self.keeper.exchanged(op, &bytes, &mut self.orders);
                            if let Err(rank) = read {
                                self.memory.violations.push(format!("no report from {rank}"));
                            }
                        }
                    },
                    Action::Fail(op, error) => {
                        self.memory.leave(op);
                        self.memory.violations.push(format!("an engine failed: {error}"));
                        self.keeper.failed(op, error, &mut self.orders);
                    }
                    Action::Close { peer, reason } => {
                        self.memory.violations.push(format!("{peer} was closed: {reason}"));
                    }
                    Action::Place { .. } => unreachable!("taken where the frame arrived"),
                    Action::Expect { .. } => {
                        self.memory.violations.push("a place was announced".to_string());
                    }
                    Action::Report(_) => {}
                }
            }
        }
    }

    pub(super) fn start_engine(&mut self, view: Arc<View>) {
        self.memory.forget_engine();
        self.engine = Some(engine(self.id, &view));
        self.era = view;
        self.frozen = false;
        let early = std::mem::take(&mut self.early);
        self.accuse();
        early.into_iter().for_each(|envelope| self.frame(envelope));
    }
}
