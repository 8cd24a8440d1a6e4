//! Which elements of an operation's output are final already: what a worker can hand to others if the operation is never
//! finished here, and what it must not contribute again. It only looks.

use super::{Engine, chunk::ChunkSlot};
use crate::{
    event::OpId,
    program::{Dest, Instr, Program},
};
use std::ops::Range;

impl Engine {
    /// The final elements of an operation in progress, as ranges in order that do not touch. All others of the output
    /// are untouched: where it shares its memory with the input, they are still the contribution.
    ///
    /// That holds between any two events in an elastic view, where every write of the output is one
    /// [`Action::Work`](crate::event::Action::Work).
    pub fn finals(&self, id: OpId) -> Vec<Range<u64>> {
        let Some(op) = self.ops.get(id.0 as usize).and_then(Option::as_ref) else {
            return Vec::new();
        };
        let mut finals = Vec::new();
        for (index, slot) in op.chunks.iter().enumerate() {
            match slot {
                ChunkSlot::Waiting => {}
                ChunkSlot::Running(key) => {
                    let Some(chunk) = self.chunks.get(*key) else { continue };
                    for (lane, state) in (0..).zip(chunk.lanes.iter()) {
                        collect(&*chunk.program, lane, state.pc, &mut finals);
                    }
                }
                ChunkSlot::Done => {
                    let program = op.post.collective.program(
                        &op.site,
                        &op.strategy,
                        index as u32,
                        op.partition_elements,
                    );
                    for lane in 0..program.lanes() {
                        collect(&*program, lane, u32::MAX, &mut finals);
                    }
                }
            }
        }
        joined(finals)
    }
}

/// What a lane writes to the output before it comes to `pc`.
fn collect(program: &dyn Program, lane: u32, pc: u32, finals: &mut Vec<Range<u64>>) {
    let instructions = (0..pc).map_while(|pc| program.instr(lane, pc));
    for instruction in instructions.filter(|instruction| !instruction.is_empty()) {
        if let Instr::Recv { into: Dest::Out(at), len, .. }
        | Instr::Local { into: Dest::Out(at), len, .. } = instruction
        {
            finals.push(at..at + len);
        }
    }
}

/// In order, and those that touch as one.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
