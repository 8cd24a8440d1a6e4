//! Workers that are gone: what their leaving or their loss means for the operations in progress and for
//! those that are posted later, and who is to blame. A worker that loses a peer fails and leaves in its turn;
//! whoever hears of that first shall still name the one that went first.

use super::{
    Engine,
    chunk::{ChunkSlot, LaneState},
    lanes,
};
use crate::{
    event::{Action, OpError, OpId, no_key},
    frame::{Header, Kind},
    program::{Member, Slot},
};
use paceline_job::{Rank, Time};

/// Who went first, and how it showed.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub worker: Rank,
    pub how: String,
}

/// What workers have told each other about those that are gone. At most one entry per worker in each list.
#[derive(Debug, Default)]
pub(super) struct Blame {
    /// Who told us, and of whom last: why it may leave.
    heard: Vec<(Rank, Cause)>,
    /// Of whom we have told all others.
    told: Vec<Rank>,
}

/// An operation failed on another worker.
#[derive(Debug)]
pub(super) struct Abort {
    by: Rank,
    /// The worker whose absence is the cause, if it is one.
    missing: Option<Rank>,
    /// Why; of a missing worker, how it went.
    reason: String,
}

impl Abort {
    /// As the frame says it.
    pub(super) fn read(by: Rank, chunk: u32, reason: String) -> Abort {
        Abort { by, missing: chunk.checked_sub(1).map(Rank), reason }
    }
}

impl Engine {
    pub(super) fn peer_lost(&mut self, peer: Rank, reason: String, out: &mut Vec<Action>) {
        if self.is_gone(peer) {
            return;
        }
        self.lost.push((peer, reason.clone()));
        self.forget_transfers(peer, out);
        // Others may hear of us leaving before they hear of it: tell them who was first.
        self.tell_all(Kind::Lost, &Cause { worker: peer, how: reason.clone() }, out);
        for id in self.concerned(peer) {
            let op = self.op(id);
            if op.error.is_some() {
                // It failed before; the transfers just forgotten may have been its last.
                self.finish(id, out);
                continue;
            }
            let cause = self.cause(peer, &reason);
            let error = self.departed(id, peer, &reason, &cause);
            self.fail(id, error, out);
        }
    }

    /// Let everybody know that a worker is gone, once.
    fn tell_all(&mut self, kind: Kind, cause: &Cause, out: &mut Vec<Action>) {
        // Who lost contact says so even to those who heard that it was missed: they must give it up.
        if kind == Kind::Missed && self.blame.told.contains(&cause.worker) {
            return;
        }
        if !self.blame.told.contains(&cause.worker) {
            self.blame.told.push(cause.worker);
        }
        let key = no_key(self.view.version);
        let header = Header { chunk: cause.worker.0, ..Header::control(kind, key) };
        for other in (0..self.view.size() as u32).map(Rank) {
            if other != self.rank && other != cause.worker {
                self.control_frame(other, header, cause.how.as_bytes(), out);
            }
        }
    }

    /// Another worker says that one is gone. Nothing if that cannot be.
    pub(super) fn heard(&mut self, from: Rank, worker: Rank, how: String) -> Option<Cause> {
        if worker == self.rank || worker == from || worker.index() >= self.view.size() {
            return None;
        }
        let cause = Cause { worker, how: format!("{how}, says worker {from}") };
        self.blame.heard.retain(|(by, _)| *by != from);
        self.blame.heard.push((from, cause.clone()));
        Some(cause)
    }

    /// Why a worker went: because of the one that it told us of, or by itself.
    fn cause(&self, peer: Rank, how: &str) -> Cause {
        let told = self.blame.heard.iter().find(|(by, _)| *by == peer);
        match told {
            Some((_, cause)) => cause.clone(),
            None => Cause { worker: peer, how: how.to_string() },
        }
    }

    /// What an operation fails with when `peer` is gone.
    fn departed(&mut self, id: OpId, peer: Rank, how: &str, cause: &Cause) -> OpError {
        let name = self.op(id).post.name.clone();
        let Cause { worker, how: why } = cause;
        if self.members(id).any(|rank| rank == *worker) {
            return OpError::PeerLost { name, peer: *worker, reason: why.clone() };
        }
        let reason = format!("{how} after worker {worker} was gone: {why}");
        OpError::PeerLost { name, peer, reason }
    }

    /// An operation failed on another worker, so it fails here.
    pub(super) fn fail_aborted(&mut self, id: OpId, abort: Abort, out: &mut Vec<Action>) {
        let Abort { by, missing, reason } = abort;
        let name = self.op(id).post.name.clone();
        let cause = missing.and_then(|worker| self.heard(by, worker, reason.clone()));
        let Some(cause) = cause else {
            return self.fail(id, OpError::Aborted { name, peer: by, reason }, out);
        };
        self.tell_all(Kind::Missed, &cause, out);
        let error = if self.members(id).any(|rank| rank == cause.worker) {
            OpError::PeerLost { name, peer: cause.worker, reason: cause.how }
        } else {
            let reason = format!("worker {} is gone ({})", cause.worker, cause.how);
            OpError::Aborted { name, peer: by, reason }
        };
        self.fail(id, error, out);
    }

    /// Operations in progress that a worker takes part in.
    fn concerned(&self, peer: Rank) -> Vec<OpId> {
        (0..self.ops.len() as u32)
            .map(OpId)
            .filter(|id| self.ops[id.0 as usize].is_some())
            .filter(|id| self.members(*id).any(|rank| rank == peer))
            .collect()
    }

    /// Whether frames to a worker go nowhere.
    pub(super) fn is_gone(&self, peer: Rank) -> bool {
        self.left.contains(&peer) || self.lost.iter().any(|(rank, _)| *rank == peer)
    }

    /// A worker that left has finished what it took part in, or it would not have left: what was sent
    /// to it has reached it, and what still needs it never had it.
    pub(super) fn peer_left(&mut self, now: Time, peer: Rank, out: &mut Vec<Action>) {
        if self.is_gone(peer) {
            return;
        }
        self.left.push(peer);
        for token in self.sends_to(peer) {
            self.delivered(now, token, out);
        }
        for id in self.concerned(peer) {
            self.fail_if_needed(id, peer, out);
        }
    }

    /// A tensor posted now can need workers that are gone. One that was lost may have left any member
    /// without something, so it fails what it was to take part in, as it does with what it interrupts.
    pub(super) fn fail_without_gone(&mut self, id: OpId, out: &mut Vec<Action>) {
        if self.lost.is_empty() && self.left.is_empty() || self.ops[id.0 as usize].is_none() {
            return;
        }
        let members: Vec<Rank> = self.members(id).collect();
        if let Some((peer, reason)) = self.lost.iter().find(|(rank, _)| members.contains(rank)) {
            let (peer, reason) = (*peer, reason.clone());
            let cause = self.cause(peer, &reason);
            let error = self.departed(id, peer, &reason, &cause);
            return self.fail(id, error, out);
        }
        for peer in self.left.clone() {
            self.fail_if_needed(id, peer, out);
        }
    }

    /// Fail an operation if what is to come of it here needs a worker that left. Others may not need
    /// that worker, but us: they are told.
    fn fail_if_needed(&mut self, id: OpId, peer: Rank, out: &mut Vec<Action>) {
        let live = self.ops[id.0 as usize].as_ref().is_some_and(|op| op.error.is_none());
        if live && self.needs(id, peer) {
            let how = "it left the job";
            let cause = self.cause(peer, how);
            self.tell_all(Kind::Missed, &cause, out);
            let key = self.op(id).key;
            let header = Header { chunk: cause.worker.0 + 1, ..Header::control(Kind::Abort, key) };
            self.tell_members(id, header, &cause.how, out);
            let error = self.departed(id, peer, how, &cause);
            self.fail(id, error, out);
        }
    }

    /// Whether any instruction to come names the worker, other than receives of what is here already,
    /// or a send to it waits.
    fn needs(&self, id: OpId, peer: Rank) -> bool {
        let op = self.ops[id.0 as usize].as_ref().expect("asked about live operations only");
        let Some(member) = self.members(id).position(|rank| rank == peer) else { return false };
        let member = member as Member;
        if self.peers.blocked(peer).any(|blocked| blocked.op == id) {
            return true;
        }
        let early = self.eager.get(&op.key.tensor_use()).map_or(&[][..], Vec::as_slice);
        op.chunks.iter().enumerate().any(|(index, slot)| match slot {
            ChunkSlot::Done => false,
            ChunkSlot::Waiting => {
                let index = index as u32;
                let program = op.post.collective.program(
                    &op.site,
                    &op.strategy,
                    index,
                    op.partition_elements,
                );
                (0..program.lanes()).any(|lane| {
                    let here = |pc: u32| {
                        let slot = Slot { lane, pc };
                        early.iter().any(|message| message.is_for(peer, index, slot))
                    };
                    lanes::names(&*program, lane, 0, member, here)
                })
            }
            ChunkSlot::Running(chunk) => self.chunks.get(*chunk).is_some_and(|chunk| {
                chunk.lanes.iter().enumerate().any(|(at, lane)| {
                    let held = |pc: u32| lane.held.iter().any(|held| held.pc == pc);
                    // What the driver has in hand is here.
                    let busy = matches!(lane.state, LaneState::Busy { .. });
                    let first = lane.pc + u32::from(busy);
                    lanes::names(&*chunk.program, at as u32, first, member, held)
                })
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        collective::Collective,
        event::{Event, Post},
    };
    use paceline_job::{Dtype, Settings, StrategyChoice, View};
    use std::sync::Arc;

    /// Worker 0 of four, which waits for a sum over `members`.
    fn waiting(members: &[u32]) -> Engine {
        let strategy = StrategyChoice("one_shot".to_string());
        let view = View::local(4, Settings { strategy, ..Settings::default() });
        let mut engine = Engine::new(Rank(0), Arc::new(view)).unwrap();
        let post = Post {
            group: Some(members.iter().copied().map(Rank).collect()),
            in_place: false,
            ..Post::new(OpId(0), "sum", Collective::AllReduce { len: 4 }, Dtype::F32)
        };
        engine.handle(Time::ZERO, Event::Post(Box::new(post)), &mut Vec::new());
        engine
    }

    fn hear(engine: &mut Engine, kind: Kind, chunk: u32, words: &str) -> Vec<Action> {
        let key = engine.ops[0].as_ref().expect("it waits").key;
        let header = Header { chunk, len: words.len() as u32, ..Header::control(kind, key) };
        let payload = words.as_bytes().into();
        let mut out = Vec::new();
        engine.handle(Time::ZERO, Event::Control { from: Rank(1), header, payload }, &mut out);
        out
    }

    fn leaves(engine: &mut Engine, peer: u32) -> Vec<Action> {
        let mut out = Vec::new();
        engine.handle(Time::ZERO, Event::PeerLeft { peer: Rank(peer) }, &mut out);
        // What was on the way comes back, so that failed operations end.
        for token in engine.sending.iter().map(|(token, _)| token).collect::<Vec<_>>() {
            engine.handle(Time::ZERO, Event::Delivered { token }, &mut out);
        }
        out
    }

    fn error(actions: &[Action]) -> String {
        let failed = actions.iter().find_map(|action| match action {
            Action::Fail(_, error) => Some(error.to_string()),
            _ => None,
        });
        failed.unwrap_or_else(|| panic!("nothing failed: {actions:?}"))
    }

    #[test]
    fn whoever_leaves_after_it_told_of_a_loss_is_not_blamed_for_it() {
        for kind in [Kind::Lost, Kind::Missed] {
            let mut engine = waiting(&[0, 1, 2]);
            hear(&mut engine, kind, 2, "its connection closed");
            let error = error(&leaves(&mut engine, 1));
            let words = "worker 2 is gone (its connection closed, says worker 1)";
            assert!(error.contains(words), "{error}");
        }
        let mut engine = waiting(&[0, 1]);
        hear(&mut engine, Kind::Missed, 3, "it left the job");
        let error = error(&leaves(&mut engine, 1));
        assert!(
            error.contains("worker 1 is gone (it left the job after worker 3 was gone"),
            "{error}"
        );
    }

    #[test]
    fn whoever_fails_for_a_worker_that_left_tells_all_others_of_it_once() {
        let mut engine = waiting(&[0, 1, 2]);
        let actions = leaves(&mut engine, 1);
        let told = |kind| {
            let to = actions.iter().filter_map(move |action| match action {
                Action::Send { to, header, .. } if header.kind == kind => Some((*to, header.chunk)),
                _ => None,
            });
            to.collect::<Vec<_>>()
        };
        assert_eq!(told(Kind::Missed), [(Rank(2), 1), (Rank(3), 1)]);
        // Members are told which tensor, and on whose account.
        assert_eq!(told(Kind::Abort), [(Rank(2), 2)]);
    }

    #[test]
    fn an_abort_for_want_of_a_worker_names_that_worker() {
        let mut engine = waiting(&[0, 1, 2]);
        hear(&mut engine, Kind::Abort, 3, "it left the job");
        let text = error(&leaves(&mut engine, 1));
        assert!(text.contains("worker 2 is gone (it left the job, says worker 1)"), "{text}");
    }

    #[test]
    fn blame_that_makes_no_sense_blames_nobody() {
        for accused in [0, 1, 4, u32::MAX] {
            let mut engine = waiting(&[0, 1, 2]);
            hear(&mut engine, Kind::Missed, accused, "it left");
            let text = error(&leaves(&mut engine, 1));
            assert!(text.contains("worker 1 is gone (it left the job);"), "{text}");
        }
        for chunk in [0, 1, 2, 5, u32::MAX] {
            let mut engine = waiting(&[0, 1, 2]);
            hear(&mut engine, Kind::Abort, chunk, "it broke");
            let text = error(&leaves(&mut engine, 1));
            assert!(text.contains("failed on worker 1: it broke"), "{text}");
        }
    }
}
