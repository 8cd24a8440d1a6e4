//! Departing messages: may they go now? A message for a tensor that its receiver may not have posted
//! is charged to the eager bytes the receiver granted; beyond that it waits for a notice, and others
//! pass it. This room also keeps the other side of that account, and the ledger of what is in transport.

use super::{Engine, Op, chunk::OwnSent};
use crate::{
    event::{Action, BufId, Loc, OpId, Payload},
    frame::{Header, Kind, MAX_CONTROL_BYTES},
    program::{Member, Slot, Source},
    scheduler::Urgency,
    slab::Key,
};
use paceline_job::{Rank, Time};

/// A frame that the transport has and has not delivered.
#[derive(Debug)]
pub(super) struct Sending {
    pub to: Rank,
    pub op: OpId,
    chunk: Key,
    lane: u32,
    bytes: u64,
    scratch: Option<BufId>,
    from_own: bool,
}

/// A send that waits for a grant or a notice.
#[derive(Debug)]
pub(super) struct Blocked {
    pub op: OpId,
    member: Member,
    sending: Sending,
    header: Header,
    loc: Loc,
}

impl Op {
    pub(super) fn rank_of(&self, member: Member) -> Rank {
        match &self.post.group {
            None => Rank(member),
            Some(ranks) => ranks[member as usize],
        }
    }

    /// The header of a data frame of this operation.
    pub(super) fn header(&self, chunk: u32, slot: Slot, elements: u64) -> Header {
        let bytes = elements * self.post.dtype.size() as u64;
        Header {
            kind: Kind::Data,
            charged: false,
            dtype: self.post.dtype,
            reduce: self.post.reduce,
            key: self.key,
            chunk,
            slot,
            len: u32::try_from(bytes).expect("a partition is at most 1 GiB"),
            signature: self.signature,
            elements: self.told_elements,
        }
    }
}

impl Engine {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send(
        &mut self,
        chunk_key: Key,
        lane_index: u32,
        member: Member,
        slot: Slot,
        source: Source,
        elements: u64,
        out: &mut Vec<Action>,
    ) {
        let chunk = self.chunks.get_mut(chunk_key).expect("a lane that runs has its chunk");
        chunk.undelivered += 1;
        let (id, index) = (chunk.op, chunk.index);
        let lane = &mut chunk.lanes[lane_index as usize];
        let from_own = matches!(source, Source::Own(_));
        if from_own {
            lane.own_sent_to = match (lane.own_undelivered, lane.own_sent_to) {
                (0, _) => OwnSent::One(member),
                (_, OwnSent::One(other)) if other == member => OwnSent::One(member),
                _ => OwnSent::Several,
            };
            lane.own_undelivered += 1;
        }
        let register = match source {
            Source::Reg(register, _) => lane.registers[usize::from(register)],
            _ => None,
        };
        let op = self.ops[id.0 as usize].as_mut().expect("a chunk has its operation");
        let element_bytes = op.post.dtype.size() as u64;
        let (loc, scratch) = match source {
            Source::Own(at) => (Loc::Own(id, at * element_bytes), None),
            Source::Out(at) => (Loc::Out(id, at * element_bytes), None),
            Source::Reg(_, at) => {
                let buf = register.expect("checked programs send written registers");
                self.bufs.hold(buf);
                (Loc::Buf(buf, at * element_bytes), Some(buf))
            }
        };
        let bytes = elements * element_bytes;
        let to = op.rank_of(member);
        let header = op.header(index, slot, elements);
        let sending =
            Sending { to, op: id, chunk: chunk_key, lane: lane_index, bytes, scratch, from_own };
        let peer = self.peers.of(to);
        let noticed = op.noticed.contains(member);
        if noticed || peer.grant_bytes >= bytes {
            if !noticed {
                peer.grant_bytes -= bytes;
            }
            return self.hand(sending, Header { charged: !noticed, ..header }, loc, out);
        }
        peer.blocked.push_back(Blocked { op: id, member, sending, header, loc });
        if op.asked.insert(member) {
            self.control_frame(to, Header::control(Kind::Request, header.key), &[], out);
        }
    }

    /// Give a frame to the transport.
    fn hand(&mut self, sending: Sending, header: Header, loc: Loc, out: &mut Vec<Action>) {
        let op = self.ops[sending.op.0 as usize].as_mut().expect("a frame has its operation");
        op.in_hand += 1;
        let priority = op.post.priority;
        let urgency = Urgency::new(priority, op.ticket, header.chunk);
        self.scheduler.handed(priority, sending.bytes);
        let to = sending.to;
        let token = Some(self.sending.insert(sending));
        out.push(Action::Send { to, token, urgency, header, payload: Payload::Memory(loc) });
    }

    pub(super) fn delivered(&mut self, now: Time, token: Key, out: &mut Vec<Action>) {
        let Some(sending) = self.sending.remove(token) else { return };
        let op = self.transported(&sending);
        // A root that sends for hours makes progress, though nothing ever arrives for it.
        op.last_progress = now;
        let failed = op.error.is_some();
        if let Some(buf) = sending.scratch {
            self.bufs.release(buf, out);
        }
        if failed {
            return self.finish(sending.op, out);
        }
        let chunk = self.chunks.get_mut(sending.chunk).expect("a chunk waits for its deliveries");
        chunk.undelivered -= 1;
        if sending.from_own {
            let lane = &mut chunk.lanes[sending.lane as usize];
            lane.own_undelivered -= 1;
            if lane.own_undelivered == 0 {
                self.advance(sending.chunk, sending.lane, out);
            }
        }
        self.finish_chunk(sending.chunk, out);
    }

    /// The transport is done with a frame, one way or the other.
    fn transported(&mut self, sending: &Sending) -> &mut Op {
        let op = self.ops[sending.op.0 as usize].as_mut().expect("a frame has its operation");
        self.scheduler.delivered(op.post.priority, sending.bytes);
        op.in_hand -= 1;
        op
    }

    /// The receiver returned eager bytes: let waiting sends go, in order, those that fit.
    pub(super) fn granted(&mut self, from: Rank, bytes: u64, out: &mut Vec<Action>) {
        let eager = self.peers.eager_bytes();
        let peer = self.peers.of(from);
        // A peer cannot grant more than the settings say: the rest would only hide an error of its own.
        peer.grant_bytes = peer.grant_bytes.saturating_add(bytes).min(eager);
        self.release_blocked(from, out, |_| false);
    }

    /// The receiver posted the tensor: nothing holds its messages up any more.
    pub(super) fn noticed(&mut self, from: Rank, key: crate::frame::OpKey, out: &mut Vec<Action>) {
        let Some(id) = self.posted(&key) else { return };
        let op = self.op(id);
        let member = match &op.post.group {
            None => Some(from.index()),
            Some(ranks) => ranks.iter().position(|rank| *rank == from),
        };
        let Some(member) = member else { return };
        op.noticed.insert(member as Member);
        self.release_blocked(from, out, |blocked| blocked.op == id);
    }

    fn release_blocked(
        &mut self,
        to: Rank,
        out: &mut Vec<Action>,
        noticed: impl Fn(&Blocked) -> bool,
    ) {
        let waiting = std::mem::take(&mut self.peers.of(to).blocked);
        for blocked in waiting {
            let free = noticed(&blocked) || self.op(blocked.op).noticed.contains(blocked.member);
            let peer = self.peers.of(to);
            let fits = peer.grant_bytes >= blocked.sending.bytes;
            if free || fits {
                if !free {
                    peer.grant_bytes -= blocked.sending.bytes;
                }
                let header = Header { charged: !free, ..blocked.header };
                self.hand(blocked.sending, header, blocked.loc, out);
            } else {
                peer.blocked.push_back(blocked);
            }
        }
    }

    /// What a failed operation still had to send will not be sent.
    pub(super) fn drop_blocked(&mut self, id: OpId, out: &mut Vec<Action>) {
        for peer in self.peers.known_mut() {
            peer.blocked.retain(|blocked| {
                let dropped = blocked.op == id;
                if let Some(buf) = blocked.sending.scratch.filter(|_| dropped) {
                    self.bufs.release(buf, out);
                }
                !dropped
            });
        }
    }

    /// A charged frame found its place outside the eager buffer: the sender may have the bytes back.
    /// Told in portions of half the window, or at once when somebody asks.
    pub(super) fn owe(&mut self, to: Rank, bytes: u64, out: &mut Vec<Action>) {
        let eager = self.peers.eager_bytes();
        let peer = self.peers.of(to);
        peer.owed_bytes += bytes;
        if peer.owed_bytes * 2 >= eager {
            self.pay(to, out);
        }
    }

    pub(super) fn pay(&mut self, to: Rank, out: &mut Vec<Action>) {
        let owed = std::mem::take(&mut self.peers.of(to).owed_bytes);
        if owed > 0 {
            let key = crate::event::no_key(self.view.version);
            // A window is a ByteSize and could exceed 32 bits; what is owed never exceeds it by more
            // than a message, and a window above 4 GiB is never exhausted in practice.
            let len = u32::try_from(owed).unwrap_or(u32::MAX);
            let header = Header { len, ..Header::control(Kind::Grant, key) };
            self.control_frame(to, header, &[], out);
        }
    }

    pub(super) fn control_frame(
        &self,
        to: Rank,
        header: Header,
        payload: &[u8],
        out: &mut Vec<Action>,
    ) {
        if self.is_gone(to) {
            return;
        }
        let payload = &payload[..payload.len().min(MAX_CONTROL_BYTES as usize)];
        let len = if header.kind == Kind::Grant { header.len } else { payload.len() as u32 };
        let header = Header { len, ..header };
        out.push(Action::Send {
            to,
            token: None,
            urgency: Urgency::FIRST,
            header,
            payload: Payload::Inline(payload.into()),
        });
    }

    /// Workers that messages of an operation are on the way to or from.
    pub(super) fn peers_in_hand(&self, id: OpId) -> Vec<Rank> {
        let sends = self.sending.iter().filter(|(_, sending)| sending.op == id);
        sends.map(|(_, sending)| sending.to).chain(self.senders_of(id)).collect()
    }

    /// Frames that the transport has for a worker.
    pub(super) fn sends_to(&self, peer: Rank) -> Vec<Key> {
        let sends = self.sending.iter().filter(|(_, sending)| sending.to == peer);
        sends.map(|(token, _)| token).collect()
    }

    /// What was on the way to or from a lost worker is gone: give back what it held.
    pub(super) fn forget_transfers(&mut self, peer: Rank, out: &mut Vec<Action>) {
        let sends = self.sends_to(peer);
        let blocked = std::mem::take(&mut self.peers.of(peer).blocked);
        let mut scratch: Vec<BufId> =
            blocked.into_iter().filter_map(|b| b.sending.scratch).collect();
        for token in sends {
            let Some(sending) = self.sending.remove(token) else { continue };
            self.transported(&sending);
            scratch.extend(sending.scratch);
        }
        for buf in scratch {
            self.bufs.release(buf, out);
        }
        self.forget_receives(peer, out);
    }
}
