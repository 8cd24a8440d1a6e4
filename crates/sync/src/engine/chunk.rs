//! Where a chunk stands: its program, and how far each lane has come. It only remembers; `lanes` runs it.

use crate::{
    event::{BufId, OpId},
    program::{Member, Program, REGISTERS},
    slab::Key,
};
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkSlot {
    Waiting,
    Running(Key),
    Done,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub op: OpId,
    pub index: u32,
    pub program: Box<dyn Program>,
    pub lanes: Lanes,
    pub unfinished_lanes: u32,
    pub undelivered: u32,
}

/// The lanes of a chunk. Most programs have one: it lies in the chunk itself, so that a message finds
/// both at once.
#[derive(Debug)]
pub(super) enum Lanes {
    One([Lane; 1]),
    Many(Vec<Lane>),
}

impl Lanes {
    /// So many lanes at their first instruction.
    pub(super) fn new(count: u32) -> Lanes {
        match count {
            1 => Lanes::One([Lane::default()]),
            _ => Lanes::Many((0..count).map(|_| Lane::default()).collect()),
        }
    }
}

impl Deref for Lanes {
    type Target = [Lane];

    fn deref(&self) -> &[Lane] {
        match self {
            Lanes::One(lane) => lane,
            Lanes::Many(lanes) => lanes,
        }
    }
}

impl DerefMut for Lanes {
    fn deref_mut(&mut self) -> &mut [Lane] {
        match self {
            Lanes::One(lane) => lane,
            Lanes::Many(lanes) => lanes,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub pc: u32,
    pub registers: [Option<BufId>; REGISTERS],
    pub state: LaneState,
    /// Sends from the caller's input that are not delivered: its range must not be overwritten yet.
    pub own_undelivered: u32,
    /// To whom those went.
    pub own_sent_to: OwnSent,
    /// One past the receive instruction that was last announced by [`crate::event::Action::Expect`].
    pub announced: u32,
    /// Messages whose turn has not come: at most one per receive instruction.
    pub held: Vec<Held>,
}

/// A message for a later instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub pc: u32,
    pub buf: BufId,
    /// Not while the driver still moves its bytes; the scratch is the driver's until then.
    pub is_here: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OwnSent {
    #[default]
    Nobody,
    One(Member),
    Several,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LaneState {
    /// Waits for a message, or for a delivery.
    #[default]
    Idle,
    /// The driver is moving or combining bytes for the instruction at `pc`. The scratch is what to
    /// free, and what becomes the register, when it is done.
    Busy {
        consumed: Option<BufId>,
        produced: Option<BufId>,
    },
    Finished,
}
