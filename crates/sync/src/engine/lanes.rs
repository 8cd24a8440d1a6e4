//! Running programs: each lane goes as far as it can, in order, and waits for a message, a delivery
//! or the driver's hands.

use super::{
    Engine,
    chunk::{Chunk, ChunkSlot, LaneState, Lanes, OwnSent},
};
use crate::{
    event::{Action, BufId, Loc, OpId, Recipe, Work},
    program::{Dest, Instr, Member, Program, Slot, Source},
    slab::Key,
};
use paceline_job::Time;

/// A receive or local instruction, resolved to memory.
pub(super) struct Step {
    pub with: Option<Loc>,
    pub into: Loc,
    pub recipe: Recipe,
    /// Scratch that becomes the register named by the instruction.
    pub produced: Option<BufId>,
}

impl Engine {
    /// Begin a chunk: by our own schedule, or because a message for it arrived.
    pub(super) fn start_chunk(&mut self, id: OpId, index: u32, out: &mut Vec<Action>) -> Key {
        let op = self.op(id);
        let program =
            op.post.collective.program(&op.site, &op.strategy, index, op.partition_elements);
        let lanes = program.lanes();
        let chunk = Chunk {
            op: id,
            index,
            lanes: Lanes::new(lanes),
            unfinished_lanes: lanes,
            undelivered: 0,
            program,
        };
        let key = self.chunks.insert(chunk);
        self.op(id).chunks[index as usize] = ChunkSlot::Running(key);
        for lane in 0..lanes {
            self.advance(key, lane, out);
        }
        self.finish_chunk(key, out);
        key
    }

    /// Run a lane until it waits. Bounded by the length of its program.
    pub(super) fn advance(&mut self, key: Key, lane_index: u32, out: &mut Vec<Action>) {
        loop {
            let Some(chunk) = self.chunks.get_mut(key) else { return };
            let lane = &mut chunk.lanes[lane_index as usize];
            if lane.state != LaneState::Idle {
                return;
            }
            let Some(instr) = chunk.program.instr(lane_index, lane.pc) else {
                lane.state = LaneState::Finished;
                chunk.unfinished_lanes -= 1;
                let registers = std::mem::take(&mut lane.registers);
                for buf in registers.into_iter().flatten() {
                    self.bufs.release(buf, out);
                }
                return;
            };
            if instr.is_empty() {
                lane.pc += 1;
                continue;
            }
            match instr {
                Instr::Send { to, slot, source, len } => {
                    lane.pc += 1;
                    self.send(key, lane_index, to, slot, source, len, out);
                }
                Instr::Recv { from, with, into, len } => {
                    let pc = lane.pc;
                    let Some(at) = lane.held.iter().position(|held| held.pc == pc) else {
                        if let (None, Dest::Out(at)) = (with, into) {
                            self.expect(key, lane_index, from, at, len, out);
                        }
                        return;
                    };
                    let is_here = lane.held[at].is_here;
                    if !is_here || self.must_wait_for_delivery(key, lane_index, into) {
                        return;
                    }
                    let lane = &mut self.chunks.get_mut(key).expect("seen above").lanes
                        [lane_index as usize];
                    let buf = lane.held.swap_remove(at).buf;
                    if let (None, Dest::Reg(register)) = (with, into) {
                        lane.pc += 1;
                        let old = lane.registers[usize::from(register)].replace(buf);
                        if let Some(old) = old {
                            self.bufs.release(old, out);
                        }
                        continue;
                    }
                    let step = self.step(key, lane_index, with, into, len, with.is_some());
                    self.work(key, lane_index, Loc::Buf(buf, 0), Some(buf), step, len, out);
                    return;
                }
                Instr::Local { source, with, into, len } => {
                    if self.must_wait_for_delivery(key, lane_index, into) {
                        return;
                    }
                    let source = self.loc(key, lane_index, source);
                    let step = self.step(key, lane_index, with, into, len, true);
                    self.work(key, lane_index, source, None, step, len, out);
                    return;
                }
            }
        }
    }

    /// Let a member of the same host know where its final value belongs, once, if it may be written
    /// there from now on: nobody still reads our input from that memory, except the sender itself,
    /// whose final value cannot be there before it has read it.
    fn expect(
        &mut self,
        key: Key,
        lane_index: u32,
        from: Member,
        at: u64,
        len: u64,
        out: &mut Vec<Action>,
    ) {
        let chunk = self.chunks.get_mut(key).expect("a lane that runs has its chunk");
        let op = self.ops[chunk.op.0 as usize].as_ref().expect("a chunk has its operation");
        let local = op.site.hosts[from as usize] == op.site.hosts[op.site.me as usize];
        // In an elastic view nobody else writes the output: it must be known at any time what is final.
        if !local || !op.view.membership.is_fixed() {
            return;
        }
        let lane = &mut chunk.lanes[lane_index as usize];
        let read_by_others = lane.own_undelivered > 0 && lane.own_sent_to != OwnSent::One(from);
        if lane.announced > lane.pc || (read_by_others && op.post.in_place) {
            return;
        }
        lane.announced = lane.pc + 1;
        let slot = Slot { lane: lane_index, pc: lane.pc };
        let bytes = op.post.dtype.size() as u64;
        out.push(Action::Expect {
            from: op.rank_of(from),
            header: op.header(chunk.index, slot, len),
            into: Loc::Out(chunk.op, at * bytes),
        });
    }

    /// In place, writing the output ends the life of the input: sends from it must be delivered first.
    pub(super) fn must_wait_for_delivery(&mut self, key: Key, lane: u32, into: Dest) -> bool {
        let Some(chunk) = self.chunks.get(key) else { return false };
        let waiting = chunk.lanes[lane as usize].own_undelivered > 0;
        let id = chunk.op;
        waiting && matches!(into, Dest::Out(_)) && self.op(id).post.in_place
    }

    fn loc(&mut self, key: Key, lane: u32, source: Source) -> Loc {
        let chunk = self.chunks.get(key).expect("a lane that runs has its chunk");
        let (id, registers) = (chunk.op, chunk.lanes[lane as usize].registers);
        let bytes = self.op(id).post.dtype.size() as u64;
        match source {
            Source::Own(at) => Loc::Own(id, at * bytes),
            Source::Out(at) => Loc::Out(id, at * bytes),
            Source::Reg(register, at) => {
                let buf = registers[usize::from(register)];
                Loc::Buf(buf.expect("checked programs read written registers"), at * bytes)
            }
        }
    }

    /// Resolve where a result goes; a register gets fresh scratch. A message stored as it is was final
    /// where it came from; a value `made_here` and written to the output is divided, once, here.
    pub(super) fn step(
        &mut self,
        key: Key,
        lane: u32,
        with: Option<Source>,
        into: Dest,
        len: u64,
        made_here: bool,
    ) -> Step {
        let with_loc = with.map(|source| self.loc(key, lane, source));
        let chunk = self.chunks.get(key).expect("a lane that runs has its chunk");
        let (id, divisor) = (chunk.op, chunk.program.divisor(lane));
        let op = self.op(id);
        let (dtype, reduce) = (op.post.dtype, op.post.reduce);
        let divisor = divisor.saturating_sub(op.post.listeners).max(1);
        let bytes = dtype.size() as u64;
        let (into, produced) = match into {
            Dest::Out(at) => (Loc::Out(id, at * bytes), None),
            Dest::Reg(_) => {
                let buf = self.bufs.take(len * bytes);
                (Loc::Buf(buf, 0), Some(buf))
            }
        };
        let finished = produced.is_none() && made_here && reduce.divides();
        let recipe = Recipe { dtype, reduce, divisor: if finished { divisor } else { 1 } };
        Step { with: with_loc, into, recipe, produced }
    }

    #[allow(clippy::too_many_arguments)]
    fn work(
        &mut self,
        key: Key,
        lane: u32,
        source: Loc,
        consumed: Option<BufId>,
        step: Step,
        elements: u64,
        out: &mut Vec<Action>,
    ) {
        let chunk = self.chunks.get_mut(key).expect("a lane that runs has its chunk");
        chunk.lanes[lane as usize].state = LaneState::Busy { consumed, produced: step.produced };
        let id = chunk.op;
        self.op(id).in_hand += 1;
        out.push(Action::Work {
            token: Work { chunk: key, lane },
            source,
            with: step.with,
            into: step.into,
            elements,
            recipe: step.recipe,
        });
    }

    pub(super) fn worked(&mut self, now: Time, token: Work, out: &mut Vec<Action>) {
        let Work { chunk: key, lane } = token;
        let Some(chunk) = self.chunks.get(key) else { return };
        let id = chunk.op;
        let op = self.op(id);
        op.in_hand -= 1;
        op.last_progress = now;
        if op.error.is_some() {
            self.retire_chunk(key, lane, out);
            return self.finish(id, out);
        }
        self.retire(key, lane, out);
        self.advance(key, lane, out);
        self.finish_chunk(key, out);
    }

    /// The instruction at `pc` is done: swap the register, free what was used up, go on.
    pub(super) fn retire(&mut self, key: Key, lane_index: u32, out: &mut Vec<Action>) {
        let chunk = self.chunks.get_mut(key).expect("the caller holds a live chunk");
        let lane = &mut chunk.lanes[lane_index as usize];
        let LaneState::Busy { consumed, produced } = lane.state else {
            unreachable!("only a busy lane has an instruction to retire")
        };
        let mut dropped = None;
        if let Some(buf) = produced {
            let instr = chunk.program.instr(lane_index, lane.pc);
            let Some(
                Instr::Recv { into: Dest::Reg(register), .. }
                | Instr::Local { into: Dest::Reg(register), .. },
            ) = instr
            else {
                unreachable!("scratch is produced by instructions that write a register")
            };
            dropped = lane.registers[usize::from(register)].replace(buf);
        }
        lane.pc += 1;
        lane.state = LaneState::Idle;
        for buf in consumed.into_iter().chain(dropped) {
            self.bufs.release(buf, out);
        }
    }

    /// If every lane is finished and every send delivered, the chunk is done.
    pub(super) fn finish_chunk(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(chunk) = self.chunks.get(key) else { return };
        if chunk.unfinished_lanes > 0 || chunk.undelivered > 0 {
            return;
        }
        let (id, index) = (chunk.op, chunk.index);
        self.chunks.remove(key);
        let op = self.op(id);
        op.chunks[index as usize] = ChunkSlot::Done;
        op.unfinished -= 1;
        if op.unfinished == 0 {
            self.finish(id, out);
        }
    }

    /// Forget a chunk of a failed operation. Lanes that a driver works on keep their scratch until
    /// it says that it is done.
    pub(super) fn drop_chunk(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(chunk) = self.chunks.get_mut(key) else { return };
        let mut scratch = Vec::new();
        let mut busy = false;
        for lane in chunk.lanes.iter_mut() {
            let held = lane.held.drain(..);
            scratch.extend(held.filter(|held| held.is_here).map(|held| held.buf));
            if matches!(lane.state, LaneState::Busy { .. }) {
                // A register may be what the driver combines with.
                busy = true;
            } else {
                scratch.extend(std::mem::take(&mut lane.registers).into_iter().flatten());
            }
        }
        if !busy {
            self.chunks.remove(key);
        }
        for buf in scratch {
            self.bufs.release(buf, out);
        }
    }

    /// A lane of a failed operation came back from the driver.
    pub(super) fn retire_chunk(&mut self, key: Key, lane: u32, out: &mut Vec<Action>) {
        let Some(chunk) = self.chunks.get_mut(key) else { return };
        let state = std::mem::replace(&mut chunk.lanes[lane as usize].state, LaneState::Finished);
        if let LaneState::Busy { consumed, produced } = state {
            for buf in consumed.into_iter().chain(produced) {
                self.bufs.release(buf, out);
            }
        }
        self.drop_chunk(key, out);
    }
}

/// The receive instruction that a slot names, if it is one.
pub(super) fn receive_at(
    program: &dyn Program,
    lane: u32,
    pc: u32,
) -> Option<(Member, Option<Source>, Dest, u64)> {
    match program.instr(lane, pc) {
        Some(Instr::Recv { from, with, into, len }) if len > 0 => Some((from, with, into, len)),
        _ => None,
    }
}

/// Whether a lane sends to a member at `pc` or later, or receives from it what is not here yet.
pub(super) fn names(
    program: &dyn Program,
    lane: u32,
    pc: u32,
    member: Member,
    here: impl Fn(u32) -> bool,
) -> bool {
    (pc..).map_while(|pc| program.instr(lane, pc).map(|instr| (pc, instr))).any(|(pc, instr)| {
        !instr.is_empty()
            && match instr {
                Instr::Send { to, .. } => to == member,
                Instr::Recv { from, .. } => from == member && !here(pc),
                Instr::Local { .. } => false,
            }
    })
}
