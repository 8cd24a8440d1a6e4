//! Folding contributions in a fixed order, `((x0 + x1) + x2) + x3`, with one's own entering at its
//! place.
//!
//! Every member that folds the same list gets the same bits, whatever order messages arrive in. It
//! knows nothing of who sends where.

use crate::program::{Dest, Instr, Member, Source};

/// A fold over `count` contributors, of whom the folder is number `mine`, or none.
///
/// It takes exactly `count` instructions, and contributor `i` is received by the `i`-th, so that a
/// sender knows its slot without knowing the folder's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    pub(crate) count: u32,
    pub(crate) mine: Option<u32>,
}

impl Fold {
    /// The `pc`-th instruction: contributions of `len` elements, own ones at `own`, and the total
    /// into `total`. Register 0 carries the partial sum. A fold of one contributor does nothing:
    /// the total is the contribution itself.
    pub(crate) fn instr(
        self,
        pc: u32,
        from: impl Fn(u32) -> Member,
        own: u64,
        len: u64,
        total: Dest,
    ) -> Instr {
        let own = Source::Own(own);
        let partial = Source::Reg(0, 0);
        // The first two contributions meet in one instruction: if mine is one of them, no copy of
        // it is made, and its place in the list is an instruction that does nothing.
        let enters_first = self.mine.is_some_and(|mine| mine <= 1);
        let last = self.count - 1;
        let total_at =
            if enters_first && self.mine == Some(last) { last.saturating_sub(1) } else { last };
        let into = if pc == total_at { total } else { Dest::Reg(0) };
        if self.mine == Some(pc) {
            let len = if enters_first { 0 } else { len };
            return Instr::Local { source: partial, with: Some(own), into, len };
        }
        let with = match (pc, self.mine) {
            (0, Some(1)) | (1, Some(0)) => Some(own),
            (0, _) => None,
            _ => Some(partial),
        };
        Instr::Recv { from: from(pc), with, into, len }
    }
}
