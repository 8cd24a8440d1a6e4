//! The ways to tune, by the names that commands know them by.

use std::{fmt, str::FromStr};

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
