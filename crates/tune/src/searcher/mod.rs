//! Searchers: what would be better than what is in force. All have one interface: they are asked, and told what a
//! running job showed. Some need to try candidates on the job, others predict. When they are asked, and whether anybody
//! follows, is decided by the [`Tuner`](crate::Tuner).

mod bayesian;
mod correction;
mod predicting;
mod replay;
mod trying;

pub use bayesian::Bayesian;
pub use predicting::{Predicting, Predictor};
pub use replay::{Budget, ReplaySearch};
pub use trying::{Keep, Trials};

use crate::{Candidate, Space};
use paceline_sync::metrics::JobMetrics;
use std::time::Duration;

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

    /// How many times as fast as what is in force a candidate is, where `predicted` says what candidates would give; 0 if that
    /// cannot be said. What was measured counts. What was not is predicted from the nearest that was measured with the same
    /// strategy, or else from what is in force: whoever was wrong about a strategy will be wrong about all of it.
    pub fn gain(&self, candidate: &Candidate, mut predicted: impl FnMut(&Candidate) -> f64) -> f64 {
        let present = self.present_speed();
        if let Some(known) = self.known(candidate) {
            return known / present;
        }
        let distance = |known: &&Known| known.candidate.distance(candidate);
        let alike =
            self.known.iter().filter(|known| known.candidate.strategy == candidate.strategy);
        let nearest = alike.min_by(|one, other| distance(one).total_cmp(&distance(other)));
        let (base, speed) = match nearest {
            Some(known) => (known.candidate.clone(), known.speed),
            None => (self.present(), present),
        };
        let gain = predicted(candidate) / predicted(&base) * speed / present;
        if gain.is_finite() { gain } else { 0.0 }
    }

    /// The best of these candidates and their gains; of those as good the one nearest to what is in force, of which most is known.
    pub fn best(&self, gains: &[(f64, Candidate)]) -> Answer {
        let best = gains.iter().map(|(gain, _)| *gain).fold(0.0, f64::max);
        let present = self.present();
        let farther = |candidate: &Candidate| {
            (candidate.strategy != present.strategy, candidate.distance(&present))
        };
        let as_good = gains.iter().filter(|(gain, _)| *gain >= best * (1.0 - AS_GOOD));
        let nearest = as_good.min_by(|(_, one), (_, other)| {
            let (one, other) = (farther(one), farther(other));
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        nearest.map_or(Answer::Nothing, |(gain, candidate)| Answer::Predict {
            candidate: candidate.clone(),
            gain: *gain,
        })
    }
}

/// What is behind the best by no more than this share is as good.
const AS_GOOD: f64 = 0.002;

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

    /// How long a processor thought about the last answer, about: where that is little, nothing.
    fn thought(&self) -> Duration {
        Duration::ZERO
    }

    /// What a candidate was measured to give: that of `seen`, at its speed.
    fn tell(&mut self, seen: &JobMetrics) {
        let _ = seen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{ByteSize, Settings, StrategyChoice, ViewVersion};
    use paceline_sync::metrics::WorkerMetrics;

    fn candidate(strategy: &str, mebibytes: u64) -> Candidate {
        let (partition, credit) = (ByteSize::mib(mebibytes), ByteSize::mib(mebibytes));
        Candidate { strategy: StrategyChoice(strategy.to_string()), partition, credit }
    }

    #[test]
    fn of_what_is_as_good_the_nearest_is_taken() {
        let settings = candidate("ring", 1).settings(&Settings::default());
        let (step, view, shape) = (1, ViewVersion(1), Default::default());
        let seen = JobMetrics { step, view, settings, shape, workers: Vec::new() };
        let space = Space::of(&seen.shape, vec![StrategyChoice("ring".to_string())]);
        let question = Question { space: &space, seen: &seen, known: &[] };
        let all = [("tree", 4), ("tree", 2), ("tree", 1), ("ring", 64), ("ring", 1)];
        let all = all.map(|(name, size)| candidate(name, size));
        let best = |gains: [f64; 5]| {
            let gains: Vec<(f64, Candidate)> = gains.into_iter().zip(all.clone()).collect();
            let Answer::Predict { candidate, .. } = question.best(&gains) else { panic!() };
            candidate
        };
        assert_eq!(best([1.501, 1.5, 1.4, 1.0, 1.0]), all[1]);
        assert_eq!(best([1.501, 1.5, 1.4995, 1.0, 1.0]), all[2]);
        assert_eq!(best([1.501, 1.5, 1.5, 1.4995, 1.0]), all[3]);
        assert_eq!(best([1.001, 1.0, 1.0, 1.0, 1.0]), all[4]);
        assert_eq!(question.best(&[]), Answer::Nothing);
    }

    #[test]
    fn what_was_measured_of_a_strategy_corrects_what_is_predicted_of_it() {
        let settings = candidate("ring", 1).settings(&Settings::default());
        let workers = vec![WorkerMetrics { seconds: 0.5, ..WorkerMetrics::default() }];
        let (step, view, shape) = (1, ViewVersion(1), Default::default());
        let seen = JobMetrics { step, view, settings, shape, workers };
        let space = Space::of(&seen.shape, vec![StrategyChoice("ring".to_string())]);
        // A model that takes servers for twice as fast, and large partitions for a little faster.
        let predicted = |candidate: &Candidate| {
            let strategy = if candidate.strategy.0 == "ring" { 1.0 } else { 2.0 };
            strategy + 0.1 * (candidate.partition.0 as f64 / 1048576.0).log2()
        };
        let known = [("ring", 1, 2.0), ("parameter_server", 4, 1.0)];
        let known =
            known.map(|(name, size, speed)| Known { candidate: candidate(name, size), speed });
        let gain = |known: &[Known], name: &str, mebibytes: u64| {
            let question = Question { space: &space, seen: &seen, known };
            question.gain(&candidate(name, mebibytes), predicted)
        };
        assert!((gain(&known[..1], "parameter_server", 4) - 2.2).abs() < 1e-9);
        assert!((gain(&known, "parameter_server", 4) - 0.5).abs() < 1e-9);
        assert!((gain(&known, "parameter_server", 8) - 0.5 * 2.3 / 2.2).abs() < 1e-9);
        assert!((gain(&known, "ring", 2) - 1.1).abs() < 1e-9);
    }
}
