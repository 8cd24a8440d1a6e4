//! Two members send each other everything, at the same time, and average.
//!
//! In several pieces, each of which is sent when the partner's piece before it has come, neither direction runs ahead of the
//! other. That matters where a wire is contended: who sends all at once fills the queue before it, what acknowledges the
//! partner's packets waits there, and the partner, whose packets others' push out now and then, sends the slower.

use crate::program::{Dest, Instr, Member, Program, Slot, Source, Span};

/// More pieces are more waiting for messages.
const MOST_PIECES: u64 = 4;
/// Elements of a piece, at least: below that a queue takes them all.
const LEAST_PIECE: u64 = 16 << 10;

/// One of the two.
#[derive(Debug)]
pub(super) struct PairProgram {
    pub(super) partner: Member,
    pub(super) span: Span,
    /// Which lane it is on both, where a program has several.
    pub(super) lane: u32,
    /// As many on both.
    pub(super) pieces: u32,
}

/// Into how many pieces a span is best cut on a contended wire.
pub(super) fn pieces(span: Span) -> u32 {
    (span.len / LEAST_PIECE).clamp(1, MOST_PIECES) as u32
}

impl Program for PairProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let piece = pc / 2;
        if piece >= self.pieces {
            return None;
        }
        let Span { offset, len } = self.span.part(piece, self.pieces);
        let own = Source::Own(offset);
        Some(match pc % 2 {
            0 => {
                let slot = Slot { lane: self.lane, pc: pc + 1 };
                Instr::Send { to: self.partner, slot, source: own, len }
            }
            _ => {
                let into = Dest::Out(offset);
                Instr::Recv { from: self.partner, with: Some(own), into, len }
            }
        })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_spans_stay_whole_and_large_ones_are_cut_into_four() {
        let of = |len| pieces(Span { offset: 7, len });
        assert_eq!([0, 1000, 2 * LEAST_PIECE, 1 << 30].map(of), [1, 1, 2, 4]);
    }
}
