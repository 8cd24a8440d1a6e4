//! Groups: which members average with which, step by step, so that a slow link holds up few of them.
//!
//! A [`Seating`] says who shares a rack and which links others' traffic slows down. From it follows a [`Plan`]: one
//! [`Division`] of all members into groups for every step of a rotation. A plan is data: it can be printed, and
//! [`prove`] shows that what any member knows reaches every other. Nothing here knows programs, bytes or time.

mod contention;
mod grid;
mod plan;
mod proof;
mod rotation;
mod seating;
mod tournament;

pub use contention::{Adjustment, Flow, Watch};
pub use plan::{Division, Plan, Seat};
pub use proof::{Disconnected, GroupProof, prove};
pub use seating::{RackSeats, Seating, Terrain};
pub(crate) use tournament::partner;
