//! Searchers that measure: candidates are tried on the running job, one after another, and the best one is kept. They know
//! nothing of jobs.

use super::{Answer, Frequency, Question, Searcher};
use crate::Candidate;
use paceline_replay::Random;
use paceline_sync::metrics::JobMetrics;

/// Leaves everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep;

impl Searcher for Keep {
    fn name(&self) -> &'static str {
        "default"
    }

    fn frequency(&self) -> Frequency {
        Frequency::Never
    }

    fn ask(&mut self, _: &Question<'_>) -> Answer {
        Answer::Nothing
    }
}

/// Tries candidates in an order that does not depend on what they give.
#[derive(Clone, Debug)]
pub struct Trials {
    name: &'static str,
    /// What chance follows from; `None`: in the order of the grid.
    random: Option<Random>,
    /// How many are tried at most.
    most: usize,
    /// Candidates that are left, the next one last; `None` before the first question.
    left: Option<Vec<Candidate>>,
    told: Vec<(Candidate, f64)>,
}

impl Trials {
    /// All candidates of the space.
    pub fn grid() -> Trials {
        Trials { name: "grid", random: None, most: usize::MAX, left: None, told: Vec::new() }
    }

    /// `most` candidates, any of them.
    pub fn random(most: usize, seed: u64) -> Trials {
        let random = Some(Random::new(seed));
        Trials { name: "random", random, most, left: None, told: Vec::new() }
    }

    fn order(&mut self, question: &Question<'_>) -> Vec<Candidate> {
        let mut all = question.space.candidates();
        match &mut self.random {
            Some(random) => random.shuffle(&mut all),
            None => all.reverse(),
        }
        all.split_off(all.len().saturating_sub(self.most))
    }
}

impl Searcher for Trials {
    fn name(&self) -> &'static str {
        self.name
    }

    fn frequency(&self) -> Frequency {
        Frequency::Once
    }

    fn begin(&mut self) {
        self.left = None;
        self.told.clear();
    }

    fn ask(&mut self, question: &Question<'_>) -> Answer {
        if self.left.is_none() {
            self.left = Some(self.order(question));
        }
        match self.left.as_mut().and_then(Vec::pop) {
            Some(candidate) => Answer::Try(candidate),
            None => best(&self.told),
        }
    }

    fn tell(&mut self, seen: &JobMetrics) {
        self.told.push((Candidate::of(&seen.settings), seen.speed()));
    }
}

/// The fastest of all that were told.
pub(super) fn best(told: &[(Candidate, f64)]) -> Answer {
    let fastest = told.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    fastest.map_or(Answer::Nothing, |(candidate, _)| Answer::Best(candidate.clone()))
}
