//! How a running job comes to its next view: every change is proposed, prepared, promised and then in force from a
//! step that nobody had begun. The [`Registrar`] sits with the coordinator, a [`Participant`] with every worker; both
//! are state machines without socket, clock or thread, which `paceline-net` drives in real time and
//! `paceline-replay` in virtual time. They know nothing of tensors.
//!
//! 1. A worker proposes a [`Change`] of the view it knows. The registrar takes proposals one at a time; one that was
//!    made for another view than the latest has lost, and its proposer is told ([`Objection::Overtaken`]).
//! 2. The registrar chooses a step beyond every step it knows to be begun and asks all workers to *prepare* under a
//!    fresh [`Ballot`]. A worker that has not begun that step *promises* not to, before it knows the outcome; another
//!    *refuses*, and says which step it may begin next. Then a later step is tried, with twice the distance, at most
//!    [`ATTEMPTS`] times.
//! 3. When all have promised, the registrar *commits*. A worker that begins the step, or a later one, puts the view
//!    in force first and says so. The next proposal is looked at when all have.
//!
//! Membership fits the same steps: a view without a lost worker, or with a new one, is another kind of [`Change`].
//!
//! # What always holds
//!
//! - **One view per step.** Operations of a step belong to the same view on all workers: a worker begins a step under
//!   the new view only after every worker has promised not to begin it under the old one.
//! - **One view per version.** A version is given to a view by its commit, and a ballot is never given twice.
//! - **Views go forward**, one version at a time, and at most one that is agreed is not in force everywhere.
//! - **Nobody waits for anybody slow.** Promises are made while a step computes; whoever does wait at a step waits for
//!   messages, never for another worker's step.
//! - **Progress.** A worker that left is asked nothing more, so every attempt ends, and every proposer is told how.
//! - **No splitting.** A worker that promised and then lost the coordinator cannot know the outcome: it does not
//!   begin the step ([`Begin::Doubt`]). All others go on, and without a promise outstanding, all do. And since a worker
//!   that the registrar has lost may go on too, under the view it has, there is no other view after that
//!   ([`Objection::WorkerLost`]), until one can be agreed upon that is without that worker.
//!
//! Messages between one worker and the registrar arrive in order or not at all; those of different workers in any
//! order. A message that comes late or twice carries an old ballot or version, and changes nothing.

mod participant;
mod registrar;

pub use participant::{Begin, CannotPropose, Heard, Participant};
pub use registrar::{Registrar, Summons};

use crate::{
    resolver::check_strategy,
    strategy::{UnknownStrategy, by_name},
};
use paceline_job::{Rank, Settings, View, ViewVersion};
use serde::{Deserialize, Serialize};

/// How often a proposal is tried with a later step. The distance doubles each time: workers would have to begin
/// thousands of steps while one message is on its way.
pub const ATTEMPTS: u32 = 14;

/// The highest number of a step, so that adding a distance cannot overflow: longer than any training.
pub const MAXIMUM_STEP: u64 = 1 << 48;

/// Names one attempt to agree, in one job, once.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Ballot(pub u64);

/// What the next view has otherwise than the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// Other settings, for the same workers.
    Settings(Settings),
}

impl Change {
    /// The view after `view`: equal wherever it is computed.
    pub fn apply(&self, view: &View) -> View {
        let version = ViewVersion(view.version.0 + 1);
        match self {
            Change::Settings(settings) => {
                View { version, settings: settings.clone(), ..view.clone() }
            }
        }
    }

    /// Whether `view` is as it would be with this change.
    pub fn is_made(&self, view: &View) -> bool {
        match self {
            Change::Settings(settings) => view.settings == *settings,
        }
    }

    /// Refuse what cannot follow `view`.
    pub fn check(&self, view: &View) -> Result<(), Objection> {
        let Change::Settings(settings) = self;
        let unusable = |reason: String| Err(Objection::Unusable { reason });
        if let Err(error) = settings.validate() {
            return unusable(error.to_string());
        }
        if let Err(UnknownStrategy(name)) = check_strategy(&settings.strategy) {
            return unusable(UnknownStrategy(name).to_string());
        }
        if settings.eager != view.settings.eager {
            return unusable(format!(
                "eager is {} for as long as the job runs; leave it as it is",
                view.settings.eager
            ));
        }
        // Whether a worker trains or only serves was decided when the programs started.
        let members = view.size() as u32;
        let trains =
            |name: &str| by_name(name).map_or(members, |found| found.contributors(members));
        if trains(&settings.strategy.0) != trains(&view.settings.strategy.0) {
            return unusable(format!(
                "`{}` has other workers contribute than `{}`; start the job with it",
                settings.strategy, view.settings.strategy
            ));
        }
        Ok(())
    }
}

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
    /// It begins no further step.
    Leave { next: u64 },
}

/// From the registrar to a participant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // As above.
pub enum ToParticipant {
    /// Promise not to begin `step` before the outcome, if you have not begun it. A later ballot ends an earlier one.
    Prepare { ballot: Ballot, step: u64, version: ViewVersion, change: Change },
    /// All have promised: the change is in force from the ballot's step on.
    Commit { ballot: Ballot },
    /// The ballot came to nothing.
    Abort { ballot: Ballot },
    /// What became of the receiver's own proposal.
    Decided { proposal: u64, outcome: Result<Agreed, Objection> },
}

/// Whether a step can be meant.
pub(crate) fn is_step(step: u64) -> bool {
    step <= MAXIMUM_STEP
}

impl ToRegistrar {
    /// Whether everything in it can be meant, whoever sent it.
    pub fn is_sound(&self) -> bool {
        match self {
            ToRegistrar::Propose { next, change: Change::Settings(settings), .. } => {
                is_step(*next) && settings.validate().is_ok()
            }
            ToRegistrar::Promise { next, .. }
            | ToRegistrar::Refuse { next, .. }
            | ToRegistrar::InForce { next, .. }
            | ToRegistrar::Leave { next } => is_step(*next),
        }
    }
}

impl ToParticipant {
    /// Whether everything in it can be meant, whoever sent it.
    pub fn is_sound(&self) -> bool {
        match self {
            ToParticipant::Prepare { step, change: Change::Settings(settings), .. } => {
                is_step(*step) && settings.validate().is_ok()
            }
            ToParticipant::Decided { outcome: Ok(agreed), .. } => is_step(agreed.step),
            ToParticipant::Decided { outcome: Err(_), .. }
            | ToParticipant::Commit { .. }
            | ToParticipant::Abort { .. } => true,
        }
    }
}
