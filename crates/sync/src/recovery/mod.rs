//! What happens to operations when a worker is lost in the middle of them: those who are left finish them together.
//!
//! Every view has engines of its own, joined by connections of its own, so that nothing of an old view can reach a new
//! one. A [`Keeper`] stands above the engines of one worker and outlives them. It knows every operation that the caller
//! has posted and that not all are known to have finished. When a view [succeeds](Keeper::succeed) another because
//! somebody is gone:
//!
//! 1. The old engine is stopped. Every range of a caller's output is then either final or untouched
//!    ([`Engine::finals`](crate::engine::Engine::finals)), so contributions are still there, without a copy.
//! 2. The survivors tell each other what they hold ([`Report`]), by two all-gathers of the new engines.
//! 3. From the reports each derives the same [plan](plan()): a range that somebody holds is handed to those who lack it,
//!    the others are reduced again among the survivors. So each range is divided by the number of its contributors.
//!    A range of what is [mixed](paceline_job::ReduceOp::Mix) differs between workers: whoever has it keeps it, and those
//!    who lack it average it among themselves.
//! 4. The reports also say how far each is, so all know the first step that nobody has begun: from there on programs go by
//!    the new view ([`Keeper::known`]), all alike, and until then by the one before.
//! 5. When a worker has what it lacked, it also knows what became of the samples of those who are gone ([`Account`]):
//!    they are consumed if any range they contributed to is final on a survivor; otherwise they go back. No sooner: as
//!    long as a range is elsewhere only, it can be lost as well.
//!
//! Another loss in the middle of it starts over with what is held then. A worker that has finished an operation gives
//! the memory back to its caller, and keeps a copy of the result ([`Order::Retain`]) until all are known to have
//! finished too: when a later use of the same name is reduced (a worker starts a use when the one before is over), or
//! something of two steps later is (a worker begins a step when all before the last are over).
//!
//! All-reduces, broadcasts and barriers of all workers are recovered. Other operations fail.

mod held;
mod keeper;
mod plan;
mod report;

pub use held::{Held, Span};
pub use keeper::{Keeper, Order, Source, Ticket};
pub use plan::{Account, Piece, Remedy, Way, account, plan};
pub use report::{Entry, Kind, REPORT_BYTES, Report};

/// One use of a tensor's name; equal on all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Hash of the name.
    pub hash: u64,
    /// Which use of it.
    pub uses: u32,
}
