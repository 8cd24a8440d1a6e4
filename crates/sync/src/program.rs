//! Programs: what one member of a group does for one chunk, as data that a checker can prove.
//!
//! A program is a few **lanes**. A lane is a list of instructions that run strictly in order; lanes
//! run side by side and touch disjoint ranges. There are three instructions: send, receive (with or
//! without combining) and a local step. A lane can name three kinds of memory:
//!
//! - **own**: the caller's input, read only;
//! - **out**: the caller's output, each range written once, with its final value. It may be the same
//!   memory as *own*: writing `out[x]` ends the life of `own[x]`;
//! - a **register**: scratch that belongs to the lane. What arrives lands in scratch, is combined
//!   there, and *becomes* the register; nothing partial ever reaches the caller's memory.
//!
//! Programs are lazy: an instruction is computed when it is asked for, because a ring of a thousand
//! ranks has two million of them. This file knows nothing of bytes, time or transports.

use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt, sync::Arc};

/// How many registers a lane has.
pub const REGISTERS: usize = 2;

/// A position in the group that a program runs over: `0..members`. The engine maps it to a rank.
pub type Member = u32;

/// The address of a receive instruction at the receiver. It travels with the message, so that
/// messages of one chunk may arrive in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// Lane at the receiver.
    pub lane: u32,
    /// Index of the `Recv` in that lane.
    pub pc: u32,
}

/// Where a value is read. Offsets are in elements, from the start of the whole tensor (for a register:
/// from its own start).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Source {
    /// The caller's contribution.
    Own(u64),
    /// A final value written earlier in this lane.
    Out(u64),
    /// A register.
    Reg(u8, u64),
}

/// Where a value is written. Writing a register replaces it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dest {
    /// The caller's output: the value is final. If it was combined here (or is a member's own
    /// contribution), an average is divided by [`Program::divisor`] on the way.
    Out(u64),
    /// A register.
    Reg(u8),
}

/// One instruction. An instruction of length zero does nothing, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Instr {
    /// Send `len` elements of `source` to a member's receive instruction `slot`.
    Send {
        /// Receiver.
        to: Member,
        /// Which of the receiver's instructions takes it.
        slot: Slot,
        /// What to send.
        source: Source,
        /// Elements.
        len: u64,
    },
    /// Wait for a message of `len` elements; `into = message ⊕ with`, or just the message.
    Recv {
        /// Sender.
        from: Member,
        /// The other operand.
        with: Option<Source>,
        /// Where the result goes.
        into: Dest,
        /// Elements.
        len: u64,
    },
    /// `into = source ⊕ with`, or just a copy.
    Local {
        /// First operand.
        source: Source,
        /// The other operand.
        with: Option<Source>,
        /// Where the result goes.
        into: Dest,
        /// Elements.
        len: u64,
    },
}

impl Instr {
    /// Elements it moves.
    pub fn len(&self) -> u64 {
        match *self {
            Instr::Send { len, .. } | Instr::Recv { len, .. } | Instr::Local { len, .. } => len,
        }
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What one member does for one chunk.
pub trait Program: fmt::Debug + Send + Sync {
    /// How many lanes there are.
    fn lanes(&self) -> u32;

    /// The `pc`-th instruction of a lane; `None` past its end.
    fn instr(&self, lane: u32, pc: u32) -> Option<Instr>;

    /// By how much an average is divided where a lane computes its final value here.
    fn divisor(&self, lane: u32) -> u32;
}

/// What a strategy may look at: the group, one member's place in it, and when.
#[derive(Clone, Debug)]
pub struct Site {
    /// Host of each member (equal numbers share memory); its length is the size of the group.
    pub hosts: Arc<[u32]>,
    /// The member whose program is asked for.
    pub me: Member,
    /// Which use of the tensor's name this is; strategies that change from step to step read it.
    pub step: u64,
    /// Equal on all members; strategies that draw lots seed their generator with it and `step`.
    pub seed: u64,
}

impl Site {
    /// A group of `members` on one host, seen by `me`, at step 0.
    pub fn flat(members: u32, me: Member) -> Site {
        Site { hosts: vec![0; members as usize].into(), me, step: 0, seed: 0 }
    }

    /// Size of the group.
    pub fn members(&self) -> u32 {
        self.hosts.len() as u32
    }
}

/// A range of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// First element.
    pub offset: u64,
    /// Number of elements.
    pub len: u64,
}

impl Span {
    /// Part `index` of `parts`, as equal as can be: the first parts are one longer, and with fewer
    /// elements than parts the last ones are empty.
    pub fn part(self, index: u32, parts: u32) -> Span {
        let (index, parts) = (u64::from(index), u64::from(parts));
        let (each, longer) = (self.len / parts, self.len % parts);
        let offset = self.offset + index * each + index.min(longer);
        Span { offset, len: each + u64::from(index < longer) }
    }

    /// One past the last element.
    pub fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// What a strategy leaves on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// Every contribution exactly once; see [`Strategy::contributors`].
    Reduce,
    /// A doubly stochastic mixing of the members' values; repeated use brings them together.
    Averaging,
}

/// Who averages with whom in one use of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// All members, each in one group.
    pub groups: Vec<Vec<Member>>,
    /// Into how many parts chunks are cut, each with groups of its own: these are those of the first.
    pub parts: u32,
}

/// A way to all-reduce: a pure function from (group, step, chunk) to one program per member.
pub trait Strategy: fmt::Debug + Send + Sync {
    /// The name that commands and plan files use, with the parameter if it has one.
    fn name(&self) -> Cow<'static, str>;

    /// One paragraph for people: how it works and when it is the right one.
    fn about(&self) -> &'static str;

    /// What it leaves on every member.
    fn semantics(&self) -> Semantics {
        Semantics::Reduce
    }

    /// How many members of a group contribute, the first ones; the others only serve, and end with
    /// the same result.
    fn contributors(&self, members: u32) -> u32 {
        members
    }

    /// In which groups members on these hosts average in the step of a [`Site`]; none where a strategy has no groups
    /// that are the same for all tensors.
    fn groups(&self, _hosts: &Arc<[u32]>, _step: u64) -> Option<Groups> {
        None
    }

    /// The program of `site.me` for the chunk `span`. In and out have the same offsets.
    fn program(&self, site: &Site, span: Span) -> Box<dyn Program>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_span_without_gap_or_overlap() {
        for len in [0, 1, 3, 7, 64, 1001] {
            for parts in [1, 2, 3, 8, 65] {
                let span = Span { offset: 10, len };
                let mut next = span.offset;
                for index in 0..parts {
                    let part = span.part(index, parts);
                    assert_eq!(part.offset, next);
                    next = part.end();
                }
                assert_eq!(next, span.end());
            }
        }
    }
}
