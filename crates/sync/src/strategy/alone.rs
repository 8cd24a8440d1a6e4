//! What is left of any collective when a group has one member: a copy from in to out.

use crate::program::{Dest, Instr, Program, Source, Span};

/// Copies a span; in and out have the same offsets.
#[derive(Debug)]
pub(crate) struct Alone {
    pub(crate) span: Span,
}

impl Program for Alone {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let copy =
            Instr::Local { source: Source::Own(offset), with: None, into: Dest::Out(offset), len };
        (pc == 0).then_some(copy)
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}
