//! A job in virtual time under a script of changing conditions, to try tuners on: what a step takes follows from replay,
//! noise from a seed. Beside every tuner stand the best setting of each phase and the best single setting, found by grid,
//! so that it is known what there was to gain.
//!
//! What a tuner is and how it decides is not known here: it is a [`Policy`](paceline_sync::policy::Policy).

mod chart;
mod meter;
mod outcome;
mod player;
mod scripts;
mod series;
mod stage;
mod truth;
mod weather;

pub use chart::draw;
pub use outcome::{Outcome, PhaseOutcome, Search, Yardstick};
pub use player::{Noise, Sample, Switch, Trial, play};
pub use scripts::{Named, UnknownScript};
pub use series::{Series, oracle, speeds};
pub use stage::Stage;
pub use truth::Truth;
pub use weather::{Phase, Weather, phases};

use paceline_job::script::Target;
use paceline_replay::ReplayError;

/// Why a job cannot be tried.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArenaError {
    /// Name a link or worker that the job has.
    #[error("script, line {line}: there is no {what}; {there}")]
    Missing {
        /// Counted from 1.
        line: usize,
        /// What the line names.
        what: String,
        /// What there is.
        there: String,
    },
    /// Give the link a low rate instead.
    #[error(
        "script, line {line}: {target} is cut; a job without a wire has no speed that could be tuned"
    )]
    Cut {
        /// Counted from 1.
        line: usize,
        /// Which link.
        target: Target,
    },
    /// The script is over before it begins: let it last longer.
    #[error("the script lasts no time; give it a length")]
    NoTime,
    /// Give a job whose step takes time.
    #[error("a step of this job takes no time; there is nothing to tune")]
    Idle,
    /// Give links more, or workers a smaller factor.
    #[error(
        "{place}: so little is left of a link or of a worker's computation that a step stands still for longer than workers wait \
         for each other; give links a higher rate, or computation a smaller factor"
    )]
    Stalled {
        /// Where in the script.
        place: String,
    },
    /// The job or its settings cannot be played.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}
