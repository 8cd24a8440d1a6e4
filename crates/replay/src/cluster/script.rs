//! What happens to a cluster from outside, at the times that were written down, and the passing of time
//! itself. It tells engines; what they answer is carried out next door.

use super::{Cluster, SCRIPT, TICK};
use crate::{
    memory::Memory,
    network::{Body, Frame},
    outcome::Fault,
};
use paceline_job::{Rank, Time, View};
use paceline_sync::{
    event::{Event, Post},
    frame::{Header, Kind, OpKey},
    scheduler::Urgency,
};
use std::{sync::Arc, time::Duration};

/// Something that was said to happen at a time.
#[derive(Debug)]
pub(super) enum Scripted {
    Post(Rank, Box<Post>),
    Fault(Fault),
    Lost { at: Rank, peer: Rank, reason: String },
    View(Rank, Arc<View>),
}

impl<M: Memory> Cluster<M> {
    pub(super) fn write_down(&mut self, at: Time, scripted: Scripted) {
        let line = match self.free_lines.pop() {
            Some(line) => {
                self.script[line as usize] = Some(scripted);
                line
            }
            None => {
                self.script.push(Some(scripted));
                self.script.len() as u32 - 1
            }
        };
        self.timeline.push(at.max(self.now), SCRIPT | line);
    }

    pub(super) fn perform(&mut self, line: u32) {
        let Some(scripted) = self.script[line as usize].take() else { return };
        self.free_lines.push(line);
        match scripted {
            Scripted::Post(rank, post) => {
                if !self.alive[rank.index()] {
                    return;
                }
                let place = post.op.0 as usize;
                let unfinished = &mut self.unfinished[rank.index()];
                if unfinished.len() <= place {
                    unfinished.resize(place + 1, None);
                }
                unfinished[place] = Some(post.name.clone());
                self.handle(rank.0, Event::Post(post));
                self.expect_tick(rank.0);
            }
            Scripted::Lost { at, peer, reason } => {
                self.workers[at.index()].forget_peer(peer.0);
                self.memory.lost(at, peer);
                self.handle(at.0, Event::PeerLost { peer, reason });
            }
            Scripted::View(rank, view) => {
                self.handle(rank.0, Event::View(view));
                self.expect_tick(rank.0);
            }
            Scripted::Fault(fault) => self.suffer(fault),
        }
    }

    fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Crash(rank) => {
                if !std::mem::replace(&mut self.alive[rank.index()], false) {
                    return;
                }
                self.workers[rank.index()].die();
                self.unfinished[rank.index()].clear();
                for peer in (0..self.engines.len() as u32).filter(|peer| *peer != rank.0) {
                    self.part(rank.0, peer, "its connection closed");
                }
            }
            Fault::Leave(rank) => {
                if !std::mem::replace(&mut self.alive[rank.index()], false) {
                    return;
                }
                self.unfinished[rank.index()].clear();
                for peer in (0..self.engines.len() as u32).filter(|peer| *peer != rank.0) {
                    let key = OpKey { name: 0, uses: 0, view: self.engines[0].view().version };
                    let goodbye = Header::control(Kind::Goodbye, key);
                    let frame = Frame::new(goodbye, Urgency::LAST, Body::Goodbye);
                    self.network.send(self.now, rank.0, peer, frame, &mut self.timeline);
                }
            }
            Fault::Sever(one, other) => self.part(one.0, other.0, "its connection broke"),
            Fault::Rate(link, rate) => {
                self.network.set_rate(link, Some(rate.bytes_per_second()));
            }
            Fault::Cut(link) => self.network.set_rate(link, Some(0.0)),
            Fault::Restore(link) => self.network.set_rate(link, None),
        }
    }

    /// End the connections between two workers. Both hear of it a latency later, if they live.
    pub(super) fn part(&mut self, one: u32, other: u32, reason: &str) {
        if one == other || !self.network.sever(one, other) {
            return;
        }
        for (at, peer) in [(one, other), (other, one)] {
            let (at, peer, reason) = (Rank(at), Rank(peer), reason.to_string());
            let heard = self.now.after(self.network.latency(peer.0, at.0));
            self.write_down(heard, Scripted::Lost { at, peer, reason });
        }
    }

    /// Time may pass for this engine from now on: see that it is told when that matters.
    fn expect_tick(&mut self, rank: u32) {
        let settings = &self.engines[rank as usize].view().settings;
        // What was posted before can only be due later, or a tick is set for it.
        self.set_tick(rank, self.now.after(settings.stall_report.min(settings.timeout)));
    }

    fn set_tick(&mut self, rank: u32, at: Time) {
        let worker = &mut self.workers[rank as usize];
        if self.alive[rank as usize] && at.0 < worker.tick_at {
            worker.tick_at = at.0;
            self.timeline.push(at, TICK | rank);
        }
    }

    pub(super) fn tick(&mut self, rank: u32) {
        let worker = &mut self.workers[rank as usize];
        if worker.tick_at != self.now.0 {
            return;
        }
        worker.tick_at = u64::MAX;
        let engine = &self.engines[rank as usize];
        if engine.next_tick().is_some_and(|at| at <= self.now) {
            self.handle(rank, Event::Tick);
        }
        if let Some(next) = self.engines[rank as usize].next_tick() {
            // An engine that wants the same tick again gets it, but later: time must go on.
            self.set_tick(rank, next.max(self.now.after(Duration::from_nanos(1))));
        }
    }
}
