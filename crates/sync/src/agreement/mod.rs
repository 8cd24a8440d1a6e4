//! How a running job comes to its next view. The [`Registrar`] sits with the coordinator, a [`Participant`] with every
//! worker; both are state machines without socket, clock or thread, which `paceline-net` drives in real time and
//! `paceline-replay` in virtual time. They know nothing of tensors.
//!
//! # Changes that are planned
//!
//! 1. A worker proposes a [`Change`] of the view it knows, or new workers ask to join. The registrar takes changes one
//!    at a time; one that was made for another view than the latest has lost, and its proposer is told
//!    ([`Objection::Overtaken`]).
//! 2. The registrar chooses a step beyond every step it knows to be begun and asks all workers to *prepare* under a
//!    fresh [`Ballot`]. A worker that has not begun that step *promises* not to, before it knows the outcome; another
//!    *refuses*, and says which step it may begin next. Then a later step is tried, at a growing distance, at most
//!    [`ATTEMPTS`] times.
//! 3. When all have promised, the registrar *commits*. For other settings that is all: a worker that begins the step, or
//!    a later one, puts the view in force first and says so. The next change is looked at when all have.
//! 4. Where workers come or go, all *gather* before that step ([`Begin::Gather`]): each finishes what it has in progress
//!    and connects with everybody of the next view, and so do those who join. When the last has come, all *enter*.
//!    Until then nothing has happened that a lost worker could leave half done.
//!
//! # Changes that happen
//!
//! A worker that is lost ([`Registrar::gone`], or another says so), and one that is done while others go on, is out of
//! the next view at once, in the middle of whatever step ([`Participant::succeed`]). Nobody is asked: without that worker
//! nobody gets far. What was in progress is recovered ([`crate::recovery`]); what was being agreed upon comes to nothing.
//! That is the life of an elastic job ([`Membership::Elastic`](paceline_job::Membership)). In a fixed one there is no
//! other view after a loss ([`Objection::WorkerLost`]).
//!
//! # What always holds
//!
//! - **One view per version.** A version is given to a view when it is decided, and a ballot is never given twice.
//! - **One view per step**, where nobody is lost: a worker begins a step under the new view only after every worker has
//!   promised not to begin it under the old one.
//! - **Views go forward**, and at most one that is planned is not in force everywhere.
//! - **Nobody waits for anybody slow.** Promises are made while a step computes; whoever does wait at a step waits for
//!   messages, never for another worker's step. Only where workers come or go, all wait for all, once.
//! - **Progress.** A worker that left is asked nothing more, so every attempt ends, and every proposer is told how.
//! - **No splitting.** There is one registrar, which writes down every view before it tells anybody ([`Minutes`]). A
//!   worker that promised and then lost the coordinator cannot know the outcome: it does not begin the step. In a fixed
//!   job that is an error ([`Begin::Doubt`]), in an elastic one it waits until the coordinator is back. A worker that
//!   the view is without hears so, from the registrar or from the peers that turn it away, and begins nothing more
//!   ([`Begin::Removed`]).
//!
//! Messages between one worker and the registrar arrive in order or not at all; those of different workers in any
//! order. A message that comes late or twice carries an old ballot or version, and changes nothing.

mod change;
mod message;
mod participant;
mod registrar;

pub use change::{Change, MEMBERS_AT_ONCE, is_for_any_members};
pub use message::{Agreed, Ballot, Objection, Place, ToParticipant, ToRegistrar};
pub use participant::{Begin, CannotPropose, Heard, Participant};
pub use registrar::{Limits, Minutes, Registrar, Summons};

/// How often a proposal is tried with a later step. The distance doubles from the third time on: workers would have to begin
/// thousands of steps while one message is on its way.
pub const ATTEMPTS: u32 = 14;

/// The highest number of a step, so that adding a distance cannot overflow: longer than any training.
pub const MAXIMUM_STEP: u64 = 1 << 48;
