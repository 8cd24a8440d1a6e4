//! Workers that are gone: what their leaving or their loss means for the operations in progress and for
//! those that are posted later.

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

impl Engine {
    pub(super) fn peer_lost(&mut self, peer: Rank, reason: String, out: &mut Vec<Action>) {
        if self.is_gone(peer) {
            return;
        }
        self.lost.push((peer, reason.clone()));
        self.forget_transfers(peer, out);
        // Others may hear of us leaving before they hear of it: tell them who was first.
        for other in (0..self.view.size() as u32).map(Rank) {
            if other != self.rank && !self.is_gone(other) {
                let header = Header {
                    chunk: peer.0,
                    ..Header::control(Kind::Lost, no_key(self.view.version))
                };
                self.control_frame(other, header, reason.as_bytes(), out);
            }
        }
        for id in self.concerned(peer) {
            let op = self.op(id);
            if op.error.is_some() {
                // It failed before; the transfers just forgotten may have been its last.
                self.finish(id, out);
                continue;
            }
            let name = op.post.name.clone();
            self.fail(id, OpError::PeerLost { name, peer, reason: reason.clone() }, out);
        }
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
        if self.lost.is_empty() && self.left.is_empty() {
            return;
        }
        let Some(op) = &self.ops[id.0 as usize] else { return };
        let name = op.post.name.clone();
        let members: Vec<Rank> = self.members(id).collect();
        if let Some((peer, reason)) = self.lost.iter().find(|(rank, _)| members.contains(rank)) {
            let (peer, reason) = (*peer, reason.clone());
            return self.fail(id, OpError::PeerLost { name, peer, reason }, out);
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
            let (name, reason) = (self.op(id).post.name.clone(), "it left the job".to_string());
            self.abort(id, OpError::PeerLost { name, peer, reason }, out);
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
