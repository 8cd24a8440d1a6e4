//! Between engines and the modelled world: frames and finished work become events, actions become
//! frames and work. It decides nothing that an engine could decide.

use super::{Cluster, HANDS, THREAD};
use crate::{
    memory::{Memory, WorkOrder},
    network::{Body, Frame},
    outcome::{Finish, Notice},
    worker::{Errand, Prompt},
};
use paceline_job::{Rank, Time};
use paceline_sync::{
    event::{Action, Event, OpError, OpId, Payload, Placement},
    slab::Key,
};
use std::sync::Arc;

/// A data frame that an engine is being told of.
#[derive(Debug)]
pub(super) struct Arriving<P> {
    from: u32,
    first_byte_at: u64,
    bytes: u64,
    parcel: P,
}

impl<M: Memory> Cluster<M> {
    pub(super) fn wire_due(&mut self, index: u32) {
        if !self.network.wake(self.now, index, &mut self.timeline) {
            return;
        }
        self.note_deliveries();
        while let Some((from, to, frame)) = self.network.arrived(self.now, index) {
            let (from, to) = if self.config.mirrored {
                (self.engines.len() as u32 - to, from)
            } else {
                (from, to)
            };
            if self.per_frame == 0 {
                self.receive(from, to, frame);
            } else {
                self.run_errand(to, Errand::Receive { from, frame });
            }
        }
        self.network.arm(index, &mut self.timeline);
    }

    fn run_errand(&mut self, rank: u32, errand: Errand<M::Parcel>) {
        let worker = &mut self.workers[rank as usize];
        let done = worker.run_errand(self.now.0, self.per_frame, errand);
        self.timeline.push(Time(done), THREAD | rank);
    }

    pub(super) fn thread_done(&mut self, rank: u32) {
        match self.workers[rank as usize].finished_errand() {
            // A frame that its connection's end overtook is gone.
            Some(Errand::Receive { from, .. }) if self.network.is_severed(from, rank) => {}
            Some(Errand::Receive { from, frame }) => self.receive(from, rank, frame),
            Some(Errand::Send { to, frame }) => {
                self.network.send(self.now, rank, to, frame, &mut self.timeline);
            }
            None => {}
        }
    }

    fn receive(&mut self, from: u32, to: u32, frame: Frame<M::Parcel>) {
        if !self.alive[to as usize] {
            return;
        }
        let Frame { header, body, first_byte_at, .. } = frame;
        match body {
            Body::Goodbye => {
                // Frames before it have arrived, and the engine has to know by now.
                self.follow_prompts();
                self.handle(to, Event::PeerLeft { peer: Rank(from) });
            }
            Body::Control(payload) => {
                if let Some(waits) = &mut self.waits {
                    waits.control(self.now, from, to);
                }
                self.handle(to, Event::Control { from: Rank(from), header, payload });
            }
            Body::Data { token, parcel } => {
                self.messages += 1;
                if let Some(waits) = &mut self.waits {
                    waits.data(self.now, from, to, token);
                }
                let bytes = header.payload_bytes() as u64;
                self.arriving = Some(Arriving { from, first_byte_at, bytes, parcel });
                self.handle(to, Event::Incoming { from: Rank(from), header });
                debug_assert!(self.arriving.is_none(), "an engine says where a data frame goes");
            }
        }
    }

    pub(super) fn hands_done(&mut self, rank: u32) {
        while let Some(job) = self.workers[rank as usize].finished_job(self.now.0) {
            self.memory.end(Rank(rank), job.task);
            self.prompts.push_back((rank, job.prompt));
        }
    }

    /// Tell engines what is due at once, and what follows from that. Each delivery, arrival and piece
    /// of work is told once, so this is bounded by what is on the way.
    pub(super) fn follow_prompts(&mut self) {
        loop {
            while let Some((rank, prompt)) = self.prompts.pop_front() {
                let event = match prompt {
                    Prompt::Delivered(token) => Event::Delivered { token },
                    Prompt::Arrived(token) => Event::Arrived { token },
                    Prompt::Worked(token) => Event::Worked { token },
                };
                self.handle(rank, event);
            }
            if self.network.delivered.is_empty() {
                return;
            }
            self.note_deliveries();
        }
    }

    fn note_deliveries(&mut self) {
        for (rank, token) in self.network.delivered.drain(..) {
            self.memory.delivered(Rank(rank), token);
            self.prompts.push_back((rank, Prompt::Delivered(token)));
        }
    }

    pub(super) fn handle(&mut self, rank: u32, event: Event) {
        if !self.alive[rank as usize] {
            return;
        }
        self.events += 1;
        self.last_event = self.now;
        if let Some(traffic) = self.traffic.get_mut(rank as usize) {
            match event {
                Event::Delivered { token } => traffic.delivered(self.now, token),
                Event::Arrived { token } => traffic.received(self.now, token),
                _ => {}
            }
        }
        if let Some(waits) = &mut self.waits {
            waits.tell(self.now, rank, &event);
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.engines[rank as usize].handle(self.now, event, &mut actions);
        for action in actions.drain(..) {
            self.act(rank, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, rank: u32, action: Action) {
        match action {
            Action::Send { to, token, urgency, header, payload } => {
                let body = match (token, payload) {
                    (Some(token), Payload::Memory(from)) => {
                        if let Some(traffic) = self.traffic.get_mut(rank as usize) {
                            traffic.sending(self.now, to, token, header.len);
                        }
                        if let Some(waits) = &mut self.waits {
                            let way = || self.network.way(rank, to.0);
                            waits.sends(rank, to.0, token, header.len, way);
                        }
                        let parcel = self.memory.depart(Rank(rank), to, token, &header, from);
                        Body::Data { token, parcel }
                    }
                    (_, Payload::Inline(payload)) => {
                        if let Some(waits) = &mut self.waits {
                            waits.sends_control(rank, to.0, || self.network.way(rank, to.0));
                        }
                        Body::Control(payload)
                    }
                    (None, Payload::Memory(_)) => {
                        unreachable!("an engine wants to hear that memory was sent")
                    }
                };
                let frame = Frame::new(header, urgency, body);
                if self.per_frame == 0 {
                    self.network.send(self.now, rank, to.0, frame, &mut self.timeline);
                } else {
                    self.run_errand(rank, Errand::Send { to: to.0, frame });
                }
            }
            Action::Place { token, placement } => self.place(rank, token, placement),
            // Memory may make use of it; how long a frame takes does not change.
            Action::Expect { from, header, into } => {
                self.memory.expect(Rank(rank), from, &header, into);
            }
            Action::Work { token, source, with, into, elements, recipe } => {
                if let Some(waits) = &mut self.waits {
                    waits.orders(rank, token);
                }
                let order = WorkOrder { source, with, into, elements, recipe };
                let task = self.memory.begin_work(Rank(rank), order);
                let bytes = elements * recipe.dtype.size() as u64;
                self.take_in_hand(rank, bytes, None, Prompt::Worked(token), task);
            }
            Action::Free(buf) => self.memory.free(Rank(rank), buf),
            Action::Complete(op) => self.finish(rank, op, Ok(())),
            Action::Fail(op, error) => self.finish(rank, op, Err(error)),
            Action::Close { peer, reason } => self.part(rank, peer.0, &reason),
            Action::Report(report) => {
                self.notices.push(Notice { at: self.now, rank: Rank(rank), report });
            }
        }
    }

    fn place(&mut self, rank: u32, token: Option<Key>, placement: Placement) {
        let Some(arriving) = self.arriving.take() else { return };
        let Some(token) = token else { return };
        let Arriving { from, first_byte_at, bytes, parcel } = arriving;
        if let Some(traffic) = self.traffic.get_mut(rank as usize) {
            traffic.receiving(Time(first_byte_at), Rank(from), token, bytes as u32);
        }
        if let Some(waits) = &mut self.waits {
            waits.places(rank, token);
        }
        let combined = matches!(placement, Placement::Combine { .. });
        let task = self.memory.begin_place(Rank(rank), placement, parcel);
        let prompt = Prompt::Arrived(token);
        if combined {
            self.take_in_hand(rank, bytes, Some((from, first_byte_at)), prompt, task);
        } else {
            self.memory.end(Rank(rank), task);
            self.prompts.push_back((rank, prompt));
        }
    }

    fn take_in_hand(
        &mut self,
        rank: u32,
        bytes: u64,
        frame: Option<(u32, u64)>,
        prompt: Prompt,
        task: M::Task,
    ) {
        let config = &self.config.worker;
        if config.combine_rate.is_none() {
            self.memory.end(Rank(rank), task);
            return self.prompts.push_back((rank, prompt));
        }
        let worker = &mut self.workers[rank as usize];
        let done = worker.take_in_hand(self.now.0, config, bytes, frame, prompt, task);
        self.timeline.push(Time(done), HANDS | rank);
    }

    fn finish(&mut self, rank: u32, op: OpId, result: Result<(), Arc<OpError>>) {
        if let Some(waits) = &mut self.waits {
            waits.ends(rank, op);
        }
        self.memory.finished(Rank(rank), op, result.is_ok());
        self.unfinished[rank as usize][op.0 as usize] = None;
        self.finished.push_back(Finish { at: self.now, rank: Rank(rank), op, result });
    }
}
