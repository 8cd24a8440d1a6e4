//! What workers' memory does when frames leave, land and are combined. The cluster decides when; this
//! file only says what there is to be told. In timing runs it is told to nobody.

use paceline_job::Rank;
use paceline_sync::{
    event::{BufId, Loc, OpId, Placement, Recipe},
    frame::Header,
    slab::Key,
};

/// Local work, as an engine ordered it.
#[derive(Clone, Copy, Debug)]
pub struct WorkOrder {
    /// First operand.
    pub source: Loc,
    /// The other operand.
    pub with: Option<Loc>,
    /// The result.
    pub into: Loc,
    /// Elements.
    pub elements: u64,
    /// How.
    pub recipe: Recipe,
}

/// The memory of all workers.
pub trait Memory {
    /// The payload of a frame on its way.
    type Parcel: std::fmt::Debug;
    /// A placement or work that was begun and not ended.
    type Task: std::fmt::Debug;

    /// A frame is handed to the transport: read its payload.
    fn depart(
        &mut self,
        rank: Rank,
        to: Rank,
        token: Key,
        header: &Header,
        from: Loc,
    ) -> Self::Parcel;

    /// From now on a worker of the same host may write the payload of a frame with this key, chunk and
    /// slot into its place.
    fn expect(&mut self, rank: Rank, from: Rank, header: &Header, into: Loc);

    /// The frame was delivered: from now on the place it was read from may change.
    fn delivered(&mut self, rank: Rank, token: Key);

    /// A peer is lost: no frame to it is read any more.
    fn lost(&mut self, rank: Rank, peer: Rank);

    /// A frame has arrived and begins to be put in place.
    fn begin_place(&mut self, rank: Rank, placement: Placement, parcel: Self::Parcel)
    -> Self::Task;

    /// Local work begins.
    fn begin_work(&mut self, rank: Rank, order: WorkOrder) -> Self::Task;

    /// What was begun is done: its result is in memory.
    fn end(&mut self, rank: Rank, task: Self::Task);

    /// Scratch is given up.
    fn free(&mut self, rank: Rank, buf: BufId);

    /// The operation's memory is the caller's again.
    fn finished(&mut self, rank: Rank, op: OpId, succeeded: bool);
}

/// Memory that holds nothing: frames have a length and no payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weightless;

impl Memory for Weightless {
    type Parcel = ();
    type Task = ();

    fn depart(&mut self, _: Rank, _: Rank, _: Key, _: &Header, _: Loc) {}
    fn expect(&mut self, _: Rank, _: Rank, _: &Header, _: Loc) {}
    fn lost(&mut self, _: Rank, _: Rank) {}
    fn delivered(&mut self, _: Rank, _: Key) {}
    fn begin_place(&mut self, _: Rank, _: Placement, _: ()) {}
    fn begin_work(&mut self, _: Rank, _: WorkOrder) {}
    fn end(&mut self, _: Rank, _: ()) {}
    fn free(&mut self, _: Rank, _: BufId) {}
    fn finished(&mut self, _: Rank, _: OpId, _: bool) {}
}
