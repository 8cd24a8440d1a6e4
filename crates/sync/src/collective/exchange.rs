//! Direct exchange: everybody with everybody, or one with another.
//!
//! A member knows what it sends and receives itself, and nothing of what others exchange.

use super::{Blocks, Window};
use crate::program::{Dest, Instr, Member, Program, Slot, Source, Span};

/// A lane per distance: lane `d` sends to the member `d` ahead and receives from the member `d`
/// behind, so that at any time everybody sends to somebody else. Lane 0 copies the own block.
#[derive(Debug)]
pub(super) struct AllToAllProgram {
    me: Member,
    members: u32,
    sends: Blocks,
    receives: Blocks,
}

impl AllToAllProgram {
    pub(super) fn new(
        me: Member,
        sends: &[u64],
        receives: &[u64],
        window: Window,
    ) -> AllToAllProgram {
        AllToAllProgram {
            me,
            members: sends.len() as u32,
            sends: Blocks::new(sends, window),
            receives: Blocks::new(receives, window),
        }
    }
}

impl Program for AllToAllProgram {
    fn lanes(&self) -> u32 {
        self.members
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        let ahead = (self.me + lane) % self.members;
        let behind = (self.me + self.members - lane) % self.members;
        let sent = self.sends.within(ahead);
        let received = self.receives.within(behind);
        let source = Source::Own(sent.offset);
        let into = Dest::Out(received.offset);
        match (lane, pc) {
            // Both lists of a member say the same of itself; where they do not, read no stranger's
            // block.
            (0, 0) => {
                let len = received.len.min(sent.len);
                Some(Instr::Local { source, with: None, into, len })
            }
            (0, _) => None,
            (_, 0) => {
                Some(Instr::Send { to: ahead, slot: Slot { lane, pc: 1 }, source, len: sent.len })
            }
            (_, 1) => Some(Instr::Recv { from: behind, with: None, into, len: received.len }),
            _ => None,
        }
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}

/// One message.
#[derive(Debug)]
pub(super) struct OneWayProgram {
    instr: Instr,
}

impl OneWayProgram {
    pub(super) fn send(to: Member, span: Span) -> OneWayProgram {
        let source = Source::Own(span.offset);
        let slot = Slot { lane: 0, pc: 0 };
        OneWayProgram { instr: Instr::Send { to, slot, source, len: span.len } }
    }

    pub(super) fn receive(from: Member, span: Span) -> OneWayProgram {
        let into = Dest::Out(span.offset);
        OneWayProgram { instr: Instr::Recv { from, with: None, into, len: span.len } }
    }
}

impl Program for OneWayProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        (pc == 0).then_some(self.instr)
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}
