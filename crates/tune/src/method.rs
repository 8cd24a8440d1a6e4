//! The ways to tune, by the names that commands know them by.

use crate::{
    Surroundings, Trigger, Tuner,
    metanet::AutoByte,
    searcher::{Bayesian, Budget, Keep, Predicting, ReplaySearch, Searcher, Trials},
};
use std::{fmt, str::FromStr};

/// Candidates that are tried where not all are: ByteScheduler tries 25, Horovod 20.
const TRIALS: usize = 25;

/// A way to tune.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// What is in force stays.
    Default,
    /// Every candidate is tried, once.
    Grid,
    /// Some candidates are tried, once.
    Random,
    /// Candidates are tried where a Gaussian process expects the most of them, once.
    Bayesian,
    /// A meta-network predicts, again and again.
    AutoByte,
    /// The job is replayed in virtual time, again and again.
    Replay,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 6] = [
        Method::Default,
        Method::Grid,
        Method::Random,
        Method::Bayesian,
        Method::AutoByte,
        Method::Replay,
    ];

    /// As commands call it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Default => "default",
            Method::Grid => "grid",
            Method::Random => "random",
            Method::Bayesian => "bo",
            Method::AutoByte => "autobyte",
            Method::Replay => "replay",
        }
    }

    /// Who says what would be better, for a job in these surroundings.
    pub fn searcher(self, surroundings: &Surroundings, seed: u64) -> Box<dyn Searcher> {
        let surroundings = surroundings.clone();
        match self {
            Method::Default => Box::new(Keep),
            Method::Grid => Box::new(Trials::grid()),
            Method::Random => Box::new(Trials::random(TRIALS, seed)),
            Method::Bayesian => Box::new(Bayesian::new(TRIALS, seed)),
            Method::AutoByte => Box::new(Predicting(AutoByte::new(surroundings))),
            Method::Replay => Box::new(ReplaySearch::new(surroundings, Budget::default())),
        }
    }

    /// A tuner for a job in these surroundings, with the usual trigger.
    pub fn tuner(self, surroundings: &Surroundings, seed: u64) -> Tuner {
        Tuner::new(self.searcher(surroundings, seed), surroundings, Trigger::default())
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Use one of the names listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to tune; known: default, grid, random, bo, autobyte, replay")]
pub struct UnknownMethod(pub String);

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(text: &str) -> Result<Method, UnknownMethod> {
        let found = Method::ALL.into_iter().find(|method| method.name() == text);
        found.ok_or_else(|| UnknownMethod(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_read_as_they_are_written_and_all_are_listed() {
        for method in Method::ALL {
            assert_eq!(method.name().parse(), Ok(method));
            assert!(UnknownMethod(String::new()).to_string().contains(method.name()));
        }
    }
}
