//! Searchers that predict: a model says what every candidate of the grid would give under what the job shows. How it
//! knows is the model's business.

use super::{Answer, Question, Searcher};
use crate::Candidate;
use paceline_sync::metrics::JobMetrics;

/// Says what candidates would give.
pub trait Predictor: Send {
    /// As commands and logs call it.
    fn name(&self) -> &'static str;

    /// Steps a second of each candidate under what `seen` shows, in their order; only ratios between them matter. Not
    /// a number, or none at all, where nothing can be said.
    fn predict(&mut self, seen: &JobMetrics, candidates: &[Candidate]) -> Vec<f64>;

    /// What the settings of `seen` were measured to give.
    fn learn(&mut self, seen: &JobMetrics) {
        let _ = seen;
    }
}

/// Takes the candidate that is predicted to be the fastest.
#[derive(Clone, Debug)]
pub struct Predicting<P>(pub P);

impl<P: Predictor> Searcher for Predicting<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn ask(&mut self, question: &Question<'_>) -> Answer {
        let mut candidates = question.space.candidates();
        candidates.push(question.present());
        let speeds = self.0.predict(question.seen, &candidates);
        if speeds.len() != candidates.len() {
            return Answer::Nothing;
        }
        let present = speeds[speeds.len() - 1];
        let measured = question.present_speed();
        let gain = |candidate: &Candidate, predicted: f64| match question.known(candidate) {
            Some(known) => known / measured,
            None => predicted / present,
        };
        let pairs = candidates.into_iter().zip(speeds);
        let gains = pairs.map(|(candidate, speed)| (gain(&candidate, speed), candidate));
        let finite = gains.filter(|(gain, _)| gain.is_finite());
        let best = finite.max_by(|one, other| one.0.total_cmp(&other.0));
        best.map_or(Answer::Nothing, |(gain, candidate)| Answer::Predict { candidate, gain })
    }

    fn tell(&mut self, seen: &JobMetrics) {
        self.0.learn(seen);
    }
}
