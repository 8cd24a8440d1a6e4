//! Searchers: what would be better than what is in force. All have one interface: they are asked, and told what a
//! running job showed. Some need to try candidates on the job, others predict. When they are asked, and whether anybody
//! follows, is decided by the [`Tuner`](crate::Tuner).

mod bayesian;
mod predicting;
mod replay;
mod trying;

pub use bayesian::Bayesian;
pub use predicting::{Predicting, Predictor};
pub use replay::{Budget, ReplaySearch};
pub use trying::{Keep, Trials};

use crate::{Candidate, Space};
use paceline_sync::metrics::JobMetrics;

/// What a searcher is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// What there is to choose from.
    pub space: &'q Space,
    /// What the job shows now, under what is in force now.
    pub seen: &'q JobMetrics,
    /// What candidates were measured to give since conditions last changed, what is in force included. Measurements
    /// outweigh predictions: this is what keeps a tuner from going back and forth.
    pub known: &'q [Known],
}

impl Question<'_> {
    /// What is in force.
    pub fn present(&self) -> Candidate {
        Candidate::of(&self.seen.settings)
    }

    /// What a candidate was measured to give.
    pub fn known(&self, candidate: &Candidate) -> Option<f64> {
        self.known.iter().find(|known| known.candidate == *candidate).map(|known| known.speed)
    }

    /// What is in force was measured to give, or else what it shows now.
    pub fn present_speed(&self) -> f64 {
        self.known(&self.present()).unwrap_or_else(|| self.seen.speed())
    }
}

/// A measured candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Which.
    pub candidate: Candidate,
    /// Steps a second.
    pub speed: f64,
}

/// What a searcher answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Measure this one on the job: it is not known what it gives.
    Try(Candidate),
    /// This one is predicted to give so many times the speed of what is in force.
    Predict {
        /// Which.
        candidate: Candidate,
        /// Above 1 if it is faster.
        gain: f64,
    },
    /// The search is over, and this was measured to be the best.
    Best(Candidate),
    /// Nothing to say: leave it as it is.
    Nothing,
}

/// How often a searcher wants to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// Never.
    Never,
    /// Until its first search is over, as the tuners of other projects do.
    Once,
    /// Whenever conditions change, and now and then.
    Always,
}

/// Finds better settings.
pub trait Searcher: Send {
    /// As commands and logs call it.
    fn name(&self) -> &'static str;

    /// How often it wants to be asked.
    fn frequency(&self) -> Frequency {
        Frequency::Always
    }

    /// Conditions are not what they were: what was measured before says nothing any more.
    fn begin(&mut self) {}

    /// What would be better. May take time, and has a bound on it.
    fn ask(&mut self, question: &Question<'_>) -> Answer;

    /// What a candidate was measured to give: that of `seen`, at its speed.
    fn tell(&mut self, seen: &JobMetrics) {
        let _ = seen;
    }
}
