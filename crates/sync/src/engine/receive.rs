//! Arriving messages: where do their bytes go? Straight into place when it is their turn, into
//! scratch when it is not, into the eager account when nobody here has posted the tensor yet.

use super::{
    Engine,
    chunk::{ChunkSlot, Held, LaneState},
    lanes::receive_at,
};
use crate::{
    event::{Action, BufId, OpError, OpId, Placement},
    frame::{Header, Kind, OpKey, TensorUse},
    program::{Dest, Slot},
    slab::Key,
};
use paceline_job::{Rank, Time, ViewVersion};

/// A data frame whose bytes are on the way into the place they were given.
#[derive(Debug)]
pub(super) struct Receiving {
    pub from: Rank,
    slot: Slot,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// Executes the receive instruction its lane stands at.
    Turn { op: OpId, chunk: Key },
    /// Waits in scratch for its turn.
    Early { op: OpId, chunk: Key, buf: BufId },
    /// Waits in scratch for its tensor to be posted. Boxed: the others are small, and many.
    Eager { header: Box<Header>, buf: BufId },
}

/// A frame that arrived before its tensor was posted.
#[derive(Debug)]
pub(super) struct Eager {
    from: Rank,
    header: Header,
    buf: BufId,
}

impl Eager {
    pub(super) fn is_for(&self, from: Rank, chunk: u32, slot: Slot) -> bool {
        self.from == from && self.header.chunk == chunk && self.header.slot == slot
    }
}

impl Engine {
    pub(super) fn incoming(
        &mut self,
        now: Time,
        from: Rank,
        header: Header,
        out: &mut Vec<Action>,
    ) {
        debug_assert_eq!(header.kind, Kind::Data);
        let bytes = u64::from(header.len);
        let id = match self.recent {
            Some((key, id)) if key == header.key => id,
            _ => {
                let Some(id) = self.posted(&header.key) else {
                    return self.incoming_unposted(from, header, out);
                };
                self.recent = Some((header.key, id));
                id
            }
        };
        if header.charged {
            self.owe(from, bytes, out);
        }
        let op = self.op(id);
        op.last_progress = now;
        if op.error.is_some() {
            return out.push(Action::Place { token: None, placement: Placement::Discard });
        }
        let chunk = match self.admit(id, from, &header, out) {
            Ok(chunk) => chunk,
            Err(refusal) => {
                out.push(Action::Place { token: None, placement: Placement::Discard });
                return self.refuse(id, from, refusal, out);
            }
        };
        let (lane_index, pc) = (header.slot.lane, header.slot.pc);
        let running = self.chunks.get(chunk).expect("admitted messages have a chunk");
        let lane = &running.lanes[lane_index as usize];
        let (_, with, into, len) =
            receive_at(&*running.program, lane_index, pc).expect("admitted as a receive");
        let its_turn = lane.pc == pc && lane.state == LaneState::Idle;
        let gated = self.must_wait_for_delivery(chunk, lane_index, into);
        // A message that breaks off must not leave half of a final value behind where workers go on without its sender.
        let whole = matches!(into, Dest::Out(_)) && !self.view.membership.is_fixed();
        if !its_turn || gated || whole {
            let buf = self.bufs.take(bytes);
            self.op(id).in_hand += 1;
            let running = self.chunks.get_mut(chunk).expect("as above");
            running.lanes[lane_index as usize].held.push(Held { pc, buf, is_here: false });
            let purpose = Purpose::Early { op: id, chunk, buf };
            let slot = header.slot;
            let token = Some(self.receiving.insert(Receiving { from, slot, purpose }));
            // A message left in its sender's memory is not delivered. Two members that write their
            // outputs only after the other took their input would wait for each other for ever.
            let placement = if gated { Placement::Stow(buf) } else { Placement::Hold(buf) };
            return out.push(Action::Place { token, placement });
        }
        let step = self.step(chunk, lane_index, with, into, len, with.is_some());
        let mut landing = None;
        let placement = match step.with {
            None => Placement::Straight(step.into),
            Some(with) => {
                let scratch = step.produced.unwrap_or_else(|| {
                    let buf = self.bufs.take(bytes);
                    landing = Some(buf);
                    buf
                });
                Placement::Combine { landing: scratch, with, into: step.into, recipe: step.recipe }
            }
        };
        let lane = &mut self.chunks.get_mut(chunk).expect("as above").lanes[lane_index as usize];
        lane.state = LaneState::Busy { consumed: landing, produced: step.produced };
        self.op(id).in_hand += 1;
        let purpose = Purpose::Turn { op: id, chunk };
        let token = Some(self.receiving.insert(Receiving { from, slot: header.slot, purpose }));
        out.push(Action::Place { token, placement });
    }

    fn incoming_unposted(&mut self, from: Rank, header: Header, out: &mut Vec<Action>) {
        let bytes = u64::from(header.len);
        if self.is_over(&header.key) {
            if header.charged {
                self.owe(from, bytes, out);
            }
            out.push(Action::Place { token: None, placement: Placement::Discard });
            return self.contradict(from, header.key, out);
        }
        let eager = self.peers.eager_bytes();
        let peer = self.peers.of(from);
        if !header.charged || peer.held_bytes + bytes > eager {
            out.push(Action::Place { token: None, placement: Placement::Discard });
            let reason = format!(
                "it sent {bytes} bytes for a tensor that is not posted here, beyond the {eager} it was granted"
            );
            return out.push(Action::Close { peer: from, reason });
        }
        peer.held_bytes += bytes;
        let buf = self.bufs.take(bytes);
        let purpose = Purpose::Eager { header: Box::new(header), buf };
        let token = Some(self.receiving.insert(Receiving { from, slot: header.slot, purpose }));
        out.push(Action::Place { token, placement: Placement::Hold(buf) });
    }

    /// Whether a key that is not in progress was posted here before.
    pub(super) fn is_over(&self, key: &OpKey) -> bool {
        self.names.get(&key.name).is_some_and(|known| key.uses < known.uses)
    }

    pub(super) fn arrived(&mut self, now: Time, token: Key, out: &mut Vec<Action>) {
        let Some(Receiving { from, slot, purpose }) = self.receiving.remove(token) else {
            return;
        };
        match purpose {
            Purpose::Turn { op: id, chunk } => {
                let op = self.op(id);
                op.in_hand -= 1;
                op.last_progress = now;
                if op.error.is_some() {
                    self.retire_chunk(chunk, slot.lane, out);
                    return self.finish(id, out);
                }
                self.retire(chunk, slot.lane, out);
                self.advance(chunk, slot.lane, out);
                self.finish_chunk(chunk, out);
            }
            Purpose::Early { op: id, chunk, buf } => {
                let op = self.op(id);
                op.in_hand -= 1;
                op.last_progress = now;
                if op.error.is_some() {
                    self.bufs.release(buf, out);
                    return self.finish(id, out);
                }
                self.is_here(chunk, slot, buf, out);
            }
            Purpose::Eager { header, buf } => {
                let header = *header;
                let arrived = Eager { from, header, buf };
                match self.posted(&header.key) {
                    Some(id) => self.take(now, id, arrived, out),
                    None if self.is_over(&header.key) => {
                        self.drop_eager(arrived, out);
                        self.contradict(from, header.key, out);
                    }
                    None => self.eager.entry(header.key.tensor_use()).or_default().push(arrived),
                }
            }
        }
    }

    /// Keep a message until its lane reaches it, which may be now.
    fn hold(&mut self, chunk: Key, slot: Slot, buf: BufId, out: &mut Vec<Action>) {
        let running = self.chunks.get_mut(chunk).expect("admitted messages have a chunk");
        let held = Held { pc: slot.pc, buf, is_here: true };
        running.lanes[slot.lane as usize].held.push(held);
        self.advance(chunk, slot.lane, out);
        self.finish_chunk(chunk, out);
    }

    /// All bytes of a message that is held are here.
    fn is_here(&mut self, chunk: Key, slot: Slot, buf: BufId, out: &mut Vec<Action>) {
        let running = self.chunks.get_mut(chunk).expect("a chunk waits for what it holds");
        let lane = &mut running.lanes[slot.lane as usize];
        if let Some(held) = lane.held.iter_mut().find(|held| held.buf == buf) {
            held.is_here = true;
        }
        self.advance(chunk, slot.lane, out);
        self.finish_chunk(chunk, out);
    }

    /// The tensor is posted: what waited for it moves on. Bounded by the eager bytes granted.
    pub(super) fn take_eager(
        &mut self,
        now: Time,
        id: OpId,
        tensor_use: TensorUse,
        out: &mut Vec<Action>,
    ) {
        for message in self.eager.remove(&tensor_use).unwrap_or_default() {
            self.take(now, id, message, out);
        }
    }

    fn take(&mut self, now: Time, id: OpId, message: Eager, out: &mut Vec<Action>) {
        let Eager { from, header, buf } = message;
        let live = self.ops[id.0 as usize].as_ref().is_some_and(|op| op.error.is_none());
        if !live {
            self.drop_eager(message, out);
            return self.contradict(from, header.key, out);
        }
        self.op(id).last_progress = now;
        match self.admit(id, from, &header, out) {
            Ok(chunk) => {
                self.return_eager(from, &header, out);
                self.hold(chunk, header.slot, buf, out);
            }
            Err(refusal) => {
                self.drop_eager(message, out);
                self.refuse(id, from, refusal, out);
            }
        }
    }

    fn return_eager(&mut self, from: Rank, header: &Header, out: &mut Vec<Action>) {
        let bytes = u64::from(header.len);
        let peer = self.peers.of(from);
        peer.held_bytes -= bytes;
        self.owe(from, bytes, out);
    }

    fn drop_eager(&mut self, message: Eager, out: &mut Vec<Action>) {
        self.return_eager(message.from, &message.header, out);
        self.bufs.release(message.buf, out);
    }

    /// Check a message against the operation it names, and find (or start) its chunk.
    fn admit(
        &mut self,
        id: OpId,
        from: Rank,
        header: &Header,
        out: &mut Vec<Action>,
    ) -> Result<Key, Refusal> {
        let op = self.op(id);
        let post = &op.post;
        if header.key.view != op.key.view {
            return Err(Refusal::View(header.key.view));
        }
        let same = header.dtype == post.dtype
            && header.reduce == post.reduce
            && header.signature == op.signature
            && header.elements == op.told_elements;
        if !same {
            return Err(Refusal::Mismatch(*header));
        }
        let index = header.chunk as usize;
        let chunk = match op.chunks.get(index) {
            None => return Err(Refusal::Protocol("a chunk that does not exist")),
            Some(ChunkSlot::Done) => return Err(Refusal::Protocol("a chunk that is finished")),
            Some(ChunkSlot::Running(chunk)) => *chunk,
            Some(ChunkSlot::Waiting) => self.start_chunk(id, header.chunk, out),
        };
        let Some(op) = self.ops[id.0 as usize].as_ref() else {
            return Err(Refusal::Protocol("a tensor that needs no message"));
        };
        let member_of = |rank: Rank| match &op.post.group {
            None => Some(rank.0),
            Some(ranks) => ranks.iter().position(|r| *r == rank).map(|at| at as u32),
        };
        let (lane, pc) = (header.slot.lane, header.slot.pc);
        let Some(running) = self.chunks.get(chunk) else {
            return Err(Refusal::Protocol("a chunk that needs no message"));
        };
        let Some(state) = running.lanes.get(lane as usize) else {
            return Err(Refusal::Protocol("a lane that does not exist"));
        };
        let Some((sender, _, _, len)) = receive_at(&*running.program, lane, pc) else {
            return Err(Refusal::Protocol("an instruction that receives nothing"));
        };
        let taken = pc < state.pc
            || (pc == state.pc && matches!(state.state, LaneState::Busy { .. }))
            || state.held.iter().any(|held| held.pc == pc);
        if Some(sender) != member_of(from) || taken {
            return Err(Refusal::Protocol("an instruction that is not waiting for it"));
        }
        if len * op.post.dtype.size() as u64 != u64::from(header.len) {
            return Err(Refusal::Length {
                wanted: len * op.post.dtype.size() as u64,
                got: header.len,
            });
        }
        Ok(chunk)
    }

    fn refuse(&mut self, id: OpId, from: Rank, refusal: Refusal, out: &mut Vec<Action>) {
        let Some(op) = self.ops[id.0 as usize].as_ref() else {
            let reason = "it sent data for a tensor that needs none".to_string();
            return out.push(Action::Close { peer: from, reason });
        };
        let name = op.post.name.clone();
        let describe = |elements: u64, dtype, reduce| format!("{elements} x {dtype} ({reduce})");
        match refusal {
            Refusal::Protocol(what) => {
                let reason = format!("it sent data of `{name}` for {what}");
                out.push(Action::Close { peer: from, reason });
            }
            Refusal::Mismatch(header) => {
                let post = &op.post;
                let mut theirs = describe(header.elements, header.dtype, header.reduce);
                let mut ours = describe(op.told_elements, post.dtype, post.reduce);
                if theirs == ours {
                    theirs = "another collective, root or split".to_string();
                    ours = post.collective.to_string();
                }
                self.abort(id, OpError::Mismatch { name, peer: from, theirs, ours }, out);
            }
            Refusal::View(theirs) => {
                let ours = op.key.view;
                self.abort(id, OpError::Views { name, peer: from, theirs, ours }, out);
            }
            Refusal::Length { wanted, got } => {
                let theirs = format!("a block of {got} bytes");
                let ours = format!("a block of {wanted} bytes");
                self.abort(id, OpError::Mismatch { name, peer: from, theirs, ours }, out);
            }
        }
    }

    /// Whose messages of an operation are on their way into place.
    pub(super) fn senders_of(&self, id: OpId) -> impl Iterator<Item = Rank> {
        self.receiving.iter().filter_map(move |(_, receiving)| match receiving.purpose {
            Purpose::Turn { op, .. } | Purpose::Early { op, .. } => {
                (op == id).then_some(receiving.from)
            }
            Purpose::Eager { .. } => None,
        })
    }

    pub(super) fn forget_receives(&mut self, peer: Rank, out: &mut Vec<Action>) {
        let tokens: Vec<Key> = self
            .receiving
            .iter()
            .filter(|(_, receiving)| receiving.from == peer)
            .map(|(token, _)| token)
            .collect();
        for token in tokens {
            let Some(receiving) = self.receiving.remove(token) else { continue };
            match receiving.purpose {
                Purpose::Turn { op, chunk } => {
                    self.op(op).in_hand -= 1;
                    self.retire_chunk_of_lost(chunk, receiving.slot.lane, out);
                }
                Purpose::Early { op, buf, .. } => {
                    self.op(op).in_hand -= 1;
                    self.bufs.release(buf, out);
                }
                Purpose::Eager { buf, .. } => self.bufs.release(buf, out),
            }
        }
        let keys: Vec<TensorUse> = self.eager.keys().copied().collect();
        for key in keys {
            let messages = self.eager.remove(&key).unwrap_or_default();
            let (gone, kept): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|message| message.from == peer);
            gone.into_iter().for_each(|message| self.bufs.release(message.buf, out));
            if !kept.is_empty() {
                self.eager.insert(key, kept);
            }
        }
    }

    /// The lane was receiving from a lost worker: it will never retire that instruction.
    fn retire_chunk_of_lost(&mut self, chunk: Key, lane: u32, out: &mut Vec<Action>) {
        let Some(running) = self.chunks.get(chunk) else { return };
        let id = running.op;
        if self.op(id).error.is_some() {
            return self.retire_chunk(chunk, lane, out);
        }
        let running = self.chunks.get_mut(chunk).expect("seen above");
        let state = &mut running.lanes[lane as usize].state;
        if let LaneState::Busy { consumed, produced } = std::mem::replace(state, LaneState::Idle) {
            for buf in consumed.into_iter().chain(produced) {
                self.bufs.release(buf, out);
            }
        }
    }
}

enum Refusal {
    View(ViewVersion),
    Mismatch(Header),
    Length { wanted: u64, got: u32 },
    Protocol(&'static str),
}
