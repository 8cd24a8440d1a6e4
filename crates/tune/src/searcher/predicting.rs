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

    /// Conditions are not what they were.
    fn begin(&mut self) {}

    /// What the settings of `seen` were measured to give.
    fn learn(&mut self, seen: &JobMetrics) {
        let _ = seen;
    }
}

/// Takes the candidate that is predicted to be the best.
#[derive(Clone, Debug)]
pub struct Predicting<P>(pub P);

impl<P: Predictor> Searcher for Predicting<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn begin(&mut self) {
        self.0.begin();
    }

    fn ask(&mut self, question: &Question<'_>) -> Answer {
        let mut candidates = question.space.candidates();
        let measured = candidates.len();
        candidates.push(question.present());
        candidates.extend(question.known.iter().map(|known| known.candidate.clone()));
        let speeds = self.0.predict(question.seen, &candidates);
        if speeds.len() != candidates.len() {
            return Answer::Nothing;
        }
        let gain = |place: usize| {
            let places = std::iter::once(place).chain(measured..candidates.len());
            let predicted = |wanted: &Candidate| {
                let found = places.clone().find(|place| candidates[*place] == *wanted);
                found.map_or(f64::NAN, |place| speeds[place])
            };
            (question.gain(&candidates[place], predicted), candidates[place].clone())
        };
        question.best(&(0..candidates.len()).map(gain).collect::<Vec<_>>())
    }

    fn tell(&mut self, seen: &JobMetrics) {
        self.0.learn(seen);
    }
}
