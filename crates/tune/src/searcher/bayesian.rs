//! Bayesian search: candidates are tried where a Gaussian process over what was measured expects the most, then the best
//! one is kept for good, as ByteScheduler and Horovod do. It knows nothing of jobs.

use super::{Answer, Frequency, Question, Searcher, trying::best};
use crate::{Candidate, Place, Space};
use paceline_learn::bayes::{self, BayesianSearch, SearchOptions};
use paceline_sync::metrics::JobMetrics;

/// Candidates that are tried before the process is asked: ByteScheduler draws 10, Horovod begins with 4.
const FIRST: usize = 8;

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Bayesian {
    most: usize,
    seed: u64,
    /// The search and its space, from the first question on.
    search: Option<(BayesianSearch, Space)>,
    told: Vec<(Candidate, f64)>,
}

impl Bayesian {
    /// Tries `most` candidates.
    pub fn new(most: usize, seed: u64) -> Bayesian {
        Bayesian { most, seed, search: None, told: Vec::new() }
    }
}

impl Searcher for Bayesian {
    fn name(&self) -> &'static str {
        "bo"
    }

    fn frequency(&self) -> Frequency {
        Frequency::Once
    }

    fn begin(&mut self) {
        self.search = None;
        self.told.clear();
    }

    fn ask(&mut self, question: &Question<'_>) -> Answer {
        if self.told.len() >= self.most {
            return best(&self.told);
        }
        if self.search.is_none() {
            let space = question.space;
            let points = space.places().map(|place| point(space, place)).collect();
            let options =
                SearchOptions { first: FIRST, seed: self.seed, ..SearchOptions::default() };
            // Only an empty space is refused, and this one has places.
            let search = BayesianSearch::new(bayes::Space::Points(points), options).ok();
            self.search = search.map(|search| (search, space.clone()));
        }
        let asked = self.search.as_mut().and_then(|(search, space)| {
            let asked = search.ask()?;
            let place = space.places().find(|place| point(space, *place) == asked)?;
            Some(space.at(place))
        });
        asked.map_or_else(|| best(&self.told), Answer::Try)
    }

    fn tell(&mut self, seen: &JobMetrics) {
        let candidate = Candidate::of(&seen.settings);
        if let Some((search, space)) = &mut self.search {
            let place = space.nearest(&candidate);
            // A speed that is no number teaches nothing, and is refused.
            let _ = search.tell(&point(space, place), seen.speed());
        }
        self.told.push((candidate, seen.speed()));
    }
}

/// A place as coordinates: whether it is each of the strategies, then sizes in powers of two.
fn point(space: &Space, place: Place) -> Vec<f64> {
    let strategies = space.extent().strategy;
    let mut point = Vec::with_capacity(strategies + 2);
    if strategies > 1 {
        let is = |other: usize| if other == place.strategy { 1.0 } else { 0.0 };
        point.extend((0..strategies).map(is));
    }
    point.push(place.partition as f64);
    point.push(place.credit as f64);
    point
}
