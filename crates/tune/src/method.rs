//! The ways to tune, by the names that commands know them by.

use crate::{
    Surroundings, Trigger, Tuner,
    searcher::{Bayesian, Budget, Keep, ReplaySearch, Searcher, Trials},
};
use std::{fmt, str::FromStr};

/// Candidates that are tried where not all are: ByteScheduler tries 25, Horovod 20.
const TRIALS: usize = 25;

/// A tuner that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// Use another method.
    #[error("`{0}` is not built into this program; use `replay`")]
    NotBuilt(Method),
}

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
    ///
    /// # Errors
    /// [`TuneError::NotBuilt`].
    pub fn searcher(
        self,
        surroundings: &Surroundings,
        seed: u64,
    ) -> Result<Box<dyn Searcher>, TuneError> {
        Ok(match self {
            Method::Default => Box::new(Keep),
            Method::Grid => Box::new(Trials::grid()),
            Method::Random => Box::new(Trials::random(TRIALS, seed)),
            Method::Bayesian => Box::new(Bayesian::new(TRIALS, seed)),
            Method::AutoByte => return Err(TuneError::NotBuilt(self)),
            Method::Replay => Box::new(ReplaySearch::new(surroundings.clone(), Budget::default())),
        })
    }

    /// A tuner for a job in these surroundings, with the usual trigger.
    ///
    /// # Errors
    /// As [`Method::searcher`].
    pub fn tuner(self, surroundings: &Surroundings, seed: u64) -> Result<Tuner, TuneError> {
        let searcher = self.searcher(surroundings, seed)?;
        Ok(Tuner::new(searcher, surroundings, Trigger::default()))
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
