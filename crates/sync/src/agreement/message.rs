//! What registrar and participants say to each other. Plain data; whether it can be meant is checked here, so that
//! neither side has to trust the other.

use super::{Change, MAXIMUM_STEP};
use paceline_job::{Rank, View, ViewVersion, WorkerId};
use serde::{Deserialize, Serialize};

/// Names one attempt to agree, in one job, once.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Ballot(pub u64);

/// Why a proposal did not come to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Objection {
    /// Look at the view that came first, and propose again if the change is still wanted.
    #[error(
        "it was made for view {made_for}, but view {by} was agreed meanwhile; look at that one and propose again"
    )]
    Overtaken {
        /// The view it was to follow.
        made_for: ViewVersion,
        /// The latest view.
        by: ViewVersion,
    },
    /// Propose something that can work.
    #[error("it cannot be used: {reason}")]
    Unusable {
        /// What is wrong with it.
        reason: String,
    },
    /// Wait for the proposal before, or for its outcome.
    #[error("this worker's last proposal is not decided yet; wait for its outcome before the next")]
    Undecided,
    /// Start the job again to change its settings.
    #[error(
        "worker {worker} cannot be reached any more and may go on with the settings it has; start the job again to \
         change them"
    )]
    WorkerLost {
        /// Who.
        worker: Rank,
    },
    /// Propose again.
    #[error("workers began steps faster than they could be asked, {attempts} times; propose again")]
    Outrun {
        /// Steps that were tried.
        attempts: u32,
    },
}

/// What a proposal came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agreed {
    /// The view that has the change.
    pub version: ViewVersion,
    /// From this step on it is in force.
    pub step: u64,
}

/// How far a worker's program is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The first step that it has not begun.
    pub next: u64,
    /// Operations of all workers that it has posted in the step before that.
    pub posted: u64,
}

/// From a participant to the registrar. `next` is always the first step that the worker has not begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Fields of the same names mean the same everywhere.
pub enum ToRegistrar {
    /// It wants a change of the view `after`; `proposal` is a number of its own.
    Propose { proposal: u64, after: ViewVersion, change: Change, next: u64 },
    /// It will not begin the ballot's step before it knows the outcome.
    Promise { ballot: Ballot, next: u64 },
    /// It has begun the ballot's step already.
    Refuse { ballot: Ballot, next: u64 },
    /// It has put that view in force.
    InForce { version: ViewVersion, next: u64 },
    /// It stands before the ballot's step, has nothing in progress and is connected with everybody of the next view.
    Gathered { ballot: Ballot, next: u64 },
    /// It has lost contact with another worker of the view `version`.
    Lost { worker: WorkerId, version: ViewVersion, next: u64 },
    /// It is as far as that, or wants to be, and waits for others that are not going to come there.
    Onward { to: Place, next: u64 },
    /// It begins no further step, and posts nothing more in the one it is in.
    Leave { posted: u64, next: u64 },
    /// It is connected again, and this is the view it has in force. `finished`: it has said that it begins no further
    /// step, having posted so many operations in its last.
    Resume { version: ViewVersion, finished: Option<u64>, next: u64 },
}

/// From the registrar to a participant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // As above.
pub enum ToParticipant {
    /// Promise not to begin `step` before the outcome, if you have not begun it. A later ballot ends an earlier one.
    Prepare { ballot: Ballot, step: u64, version: ViewVersion, change: Change },
    /// All have promised: the change is in force from the ballot's step on. Where workers come or go, gather there.
    Commit { ballot: Ballot },
    /// The ballot came to nothing.
    Abort { ballot: Ballot },
    /// What became of the receiver's own proposal.
    Decided { proposal: u64, outcome: Result<Agreed, Objection> },
    /// To a worker that wants to join: connect with everybody of this view, which begins at this step.
    Invite { ballot: Ballot, step: u64, view: View },
    /// All have gathered: the ballot's view is in force.
    Enter { ballot: Ballot },
    /// This view is in force from now on, in the middle of whatever step: others are gone.
    Without { view: View },
    /// Another worker goes no further than that.
    Finished { worker: WorkerId, at: Place },
    /// The latest view that is agreed, and the step of the last planned change: to a worker that is connected again. What was asked before
    /// and is not in it came to nothing.
    Latest { view: View, since: u64 },
    /// Nobody needs the receiver any more: all are done.
    Dismissed,
    /// Too few workers are left for the job to go on.
    Dissolved { left: usize, needed: usize },
}

/// Whether a step can be meant.
pub(crate) fn is_step(step: u64) -> bool {
    step <= MAXIMUM_STEP
}

impl ToRegistrar {
    /// The first step that the sender has not begun.
    pub(crate) fn next(&self) -> u64 {
        match self {
            ToRegistrar::Propose { next, .. }
            | ToRegistrar::Promise { next, .. }
            | ToRegistrar::Refuse { next, .. }
            | ToRegistrar::InForce { next, .. }
            | ToRegistrar::Gathered { next, .. }
            | ToRegistrar::Lost { next, .. }
            | ToRegistrar::Onward { next, .. }
            | ToRegistrar::Leave { next, .. }
            | ToRegistrar::Resume { next, .. } => *next,
        }
    }

    /// Whether everything in it can be meant, whoever sent it.
    pub fn is_sound(&self) -> bool {
        let rest = match self {
            ToRegistrar::Propose { change, .. } => change.is_sound(),
            ToRegistrar::Onward { to, .. } => is_step(to.next),
            _ => true,
        };
        rest && is_step(self.next())
    }
}

impl ToParticipant {
    /// Whether everything in it can be meant, whoever sent it.
    pub fn is_sound(&self) -> bool {
        let is_view = |view: &View| !view.workers.is_empty() && view.settings.validate().is_ok();
        match self {
            ToParticipant::Prepare { step, change, .. } => is_step(*step) && change.is_sound(),
            ToParticipant::Decided { outcome: Ok(agreed), .. } => is_step(agreed.step),
            ToParticipant::Invite { step, view, .. } => is_step(*step) && is_view(view),
            ToParticipant::Without { view } => is_view(view),
            ToParticipant::Latest { view, since } => is_step(*since) && is_view(view),
            ToParticipant::Finished { at, .. } => is_step(at.next),
            ToParticipant::Decided { outcome: Err(_), .. }
            | ToParticipant::Commit { .. }
            | ToParticipant::Abort { .. }
            | ToParticipant::Enter { .. }
            | ToParticipant::Dismissed
            | ToParticipant::Dissolved { .. } => true,
        }
    }
}
