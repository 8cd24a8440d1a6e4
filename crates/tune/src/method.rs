//! The ways to tune, by the names that commands know them by.

use crate::{
    Surroundings, Trigger, Tuner,
    metanet::AutoByte,
    searcher::{Bayesian, Budget, Keep, Predicting, ReplaySearch, Searcher, Trials},
};
use paceline_learn::{LearnError, metanet::MetaNetwork};
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

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
        self.searcher_with(None, surroundings, seed)
    }

    /// The same with a network of one's own, where this method predicts by one.
    pub fn searcher_with(
        self,
        network: Option<&MetaNetwork>,
        surroundings: &Surroundings,
        seed: u64,
    ) -> Box<dyn Searcher> {
        let surroundings = surroundings.clone();
        match self {
            Method::Default => Box::new(Keep),
            Method::Grid => Box::new(Trials::grid()),
            Method::Random => Box::new(Trials::random(TRIALS, seed)),
            Method::Bayesian => Box::new(Bayesian::new(TRIALS, seed)),
            Method::AutoByte => Box::new(Predicting(match network {
                Some(network) => AutoByte::with_network(surroundings, network.clone()),
                None => AutoByte::new(surroundings),
            })),
            Method::Replay => Box::new(ReplaySearch::new(surroundings, Budget::default())),
        }
    }

    /// A tuner for a job in these surroundings, with the usual trigger.
    pub fn tuner(self, surroundings: &Surroundings, seed: u64) -> Tuner {
        self.tuner_with(None, surroundings, seed)
    }

    /// The same with a network of one's own, where this method predicts by one.
    pub fn tuner_with(
        self,
        network: Option<&MetaNetwork>,
        surroundings: &Surroundings,
        seed: u64,
    ) -> Tuner {
        let searcher = self.searcher_with(network, surroundings, seed);
        Tuner::new(searcher, surroundings, Trigger::default())
    }

    /// The weights of a file, for tuning in these ways: one of them has to predict by them.
    pub fn weights(methods: &[Method], file: &Path) -> Result<MetaNetwork, WeightsError> {
        if !methods.contains(&Method::AutoByte) {
            return Err(WeightsError::Unused(file.to_path_buf()));
        }
        Ok(MetaNetwork::read(file)?)
    }
}

/// Why weights are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// Name the method that predicts, or no weights.
    #[error("the weights {} would be read by nobody: they are for the method `autobyte`", .0.display())]
    Unused(PathBuf),
    /// Name another file, or none.
    #[error(transparent)]
    Unreadable(#[from] LearnError),
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

    #[test]
    fn weights_are_refused_where_nobody_would_read_them() {
        let file = Path::new("/no/such.bin");
        let error = Method::weights(&[Method::Replay], file).unwrap_err().to_string();
        assert!(error.contains("autobyte") && error.contains("/no/such.bin"), "{error}");
        let error = Method::weights(&[Method::Replay, Method::AutoByte], file).unwrap_err();
        assert!(matches!(error, WeightsError::Unreadable(_)), "{error}");
    }
}
