//! Reduce-scatter and all-gather: rings over blocks that may be uneven or empty.
//!
//! They are the two halves of the `ring` strategy, with the caller's blocks for segments. They know
//! nothing of hosts beyond the order in which they line members up.

use super::{Blocks, Window};
use crate::{
    program::{Dest, Instr, Member, Program, Site, Slot, Source},
    strategy::Layout,
};

/// A circle of members, seen from one of them.
#[derive(Debug)]
struct Circle {
    layout: Layout,
    position: u32,
    me: Member,
}

impl Circle {
    fn new(site: &Site) -> Circle {
        let layout = Layout::new(&site.hosts);
        Circle { position: layout.position(site.me), layout, me: site.me }
    }

    fn members(&self) -> u32 {
        self.layout.members()
    }

    /// The member `steps` behind; at most `members` steps.
    fn behind(&self, steps: u32) -> Member {
        self.layout.at((self.position + self.members() - steps) % self.members())
    }

    fn next(&self) -> Member {
        self.layout.at((self.position + 1) % self.members())
    }
}

/// One lane: send the block of the member behind, then receive, add and forward until the own block
/// arrives.
#[derive(Debug)]
pub(super) struct ReduceScatterProgram {
    circle: Circle,
    blocks: Blocks,
}

impl ReduceScatterProgram {
    pub(super) fn new(site: &Site, counts: &[u64], window: Window) -> ReduceScatterProgram {
        ReduceScatterProgram { circle: Circle::new(site), blocks: Blocks::new(counts, window) }
    }
}

impl Program for ReduceScatterProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let receives = self.circle.members() - 1;
        let result = Dest::Out(self.blocks.alone(self.circle.me).offset);
        if receives == 0 {
            let own = self.blocks.within(self.circle.me);
            let source = Source::Own(own.offset);
            let copy = Instr::Local { source, with: None, into: result, len: own.len };
            return (pc == 0).then_some(copy);
        }
        if pc >= 2 * receives {
            return None;
        }
        // Message `r` is sent by instruction 2r and received by instruction 2r+1.
        let message = pc / 2;
        if pc.is_multiple_of(2) {
            let block = self.blocks.within(self.circle.behind(message + 1));
            let source = if message == 0 { Source::Own(block.offset) } else { Source::Reg(0, 0) };
            let slot = Slot { lane: 0, pc: pc + 1 };
            return Some(Instr::Send { to: self.circle.next(), slot, source, len: block.len });
        }
        let block = self.blocks.within(self.circle.behind(message + 2));
        let into = if message + 1 == receives { result } else { Dest::Reg(0) };
        let with = Some(Source::Own(block.offset));
        Some(Instr::Recv { from: self.circle.behind(1), with, into, len: block.len })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.circle.members()
    }
}

/// One lane: send the own block and keep a copy, then receive and forward everybody else's.
#[derive(Debug)]
pub(super) struct AllGatherProgram {
    circle: Circle,
    blocks: Blocks,
}

impl AllGatherProgram {
    pub(super) fn new(site: &Site, counts: &[u64], window: Window) -> AllGatherProgram {
        AllGatherProgram { circle: Circle::new(site), blocks: Blocks::new(counts, window) }
    }

    /// Forward the block of the member `steps` behind; the next member has it one step further
    /// behind.
    fn forward(&self, steps: u32) -> Instr {
        let block = self.circle.behind(steps);
        let within = self.blocks.within(block);
        let source = match steps {
            0 => Source::Own(self.blocks.alone(block).offset),
            _ => Source::Out(within.offset),
        };
        let slot = Slot { lane: 0, pc: 2 * (steps + 1) };
        Instr::Send { to: self.circle.next(), slot, source, len: within.len }
    }
}

impl Program for AllGatherProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        // Instruction 0 sends the own block and 1 copies it; then 2s receives the block of the
        // member `s` behind, and 2s+1 forwards it, except for the last one, which the next member
        // sent.
        let members = self.circle.members();
        let steps = pc / 2;
        let receives_here = steps < members;
        match (pc, pc % 2) {
            (0, _) if members == 1 => Some(Instr::Local {
                source: Source::Own(0),
                with: None,
                into: Dest::Out(0),
                len: 0,
            }),
            (0, _) => Some(self.forward(0)),
            (1, _) => Some(Instr::Local {
                source: Source::Own(self.blocks.alone(self.circle.me).offset),
                with: None,
                into: Dest::Out(self.blocks.within(self.circle.me).offset),
                len: self.blocks.alone(self.circle.me).len,
            }),
            (_, 0) if receives_here => {
                let within = self.blocks.within(self.circle.behind(steps));
                let into = Dest::Out(within.offset);
                Some(Instr::Recv { from: self.circle.behind(1), with: None, into, len: within.len })
            }
            (_, 1) if steps + 1 < members => Some(self.forward(steps)),
            _ => None,
        }
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}
