//! Scratch, counted: a register, each message that waits and each send in flight hold it. The engine only
//! names it; the driver has the memory.

use crate::event::{Action, BufId};

/// A piece of scratch, or a name that may be given again.
#[derive(Debug)]
struct Piece {
    holders: u32,
    /// Of a free name: the next free one.
    next_free: u32,
    bytes: u64,
}

/// Where the list of free names ends.
const NONE: u32 = u32::MAX;

/// See the file's first paragraph. It is as long as the most pieces that were ever in use at once.
#[derive(Debug)]
pub(super) struct Scratch {
    pieces: Vec<Piece>,
    first_free: u32,
    in_use_bytes: u64,
    peak_bytes: u64,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { pieces: Vec::new(), first_free: NONE, in_use_bytes: 0, peak_bytes: 0 }
    }
}

impl Scratch {
    /// A piece with one holder.
    pub(super) fn take(&mut self, bytes: u64) -> BufId {
        self.in_use_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.in_use_bytes);
        let index = self.first_free;
        match self.pieces.get_mut(index as usize) {
            Some(piece) => {
                self.first_free = piece.next_free;
                *piece = Piece { holders: 1, next_free: NONE, bytes };
                BufId(index)
            }
            None => {
                self.pieces.push(Piece { holders: 1, next_free: NONE, bytes });
                BufId(self.pieces.len() as u32 - 1)
            }
        }
    }

    /// One more holder.
    pub(super) fn hold(&mut self, buf: BufId) {
        self.pieces[buf.0 as usize].holders += 1;
    }

    /// One holder less; the last one frees it.
    pub(super) fn release(&mut self, buf: BufId, out: &mut Vec<Action>) {
        let piece = &mut self.pieces[buf.0 as usize];
        piece.holders -= 1;
        if piece.holders == 0 {
            self.in_use_bytes -= piece.bytes;
            piece.next_free = std::mem::replace(&mut self.first_free, buf.0);
            out.push(Action::Free(buf));
        }
    }

    pub(super) fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }
}
