//! What cannot be learned from, or read.

use std::path::PathBuf;

/// What cannot be learned from, or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LearnError {
    /// Give points of as many coordinates as the space has, all of them numbers.
    #[error(
        "a point of {found} coordinates was given to a space of {expected}, or one that is no number"
    )]
    Point {
        /// How many the space has.
        expected: usize,
        /// How many came.
        found: usize,
    },
    /// Give a space with at least one point, whose lower bounds are below its upper ones.
    #[error("the space to search is empty")]
    EmptySpace,
    /// Give more noise: measurements at the same place contradict each other.
    #[error("the measurements cannot be explained: their covariance has no root")]
    NotPositive,
    /// Train weights with this version of the program (`paceline learn metanet`), or leave them out to use its own.
    #[error("these weights cannot be used: {0}")]
    Weights(&'static str),
    /// Name a file that this version of `paceline learn metanet` wrote, or none, to use the program's own weights.
    #[error(
        "the weights {} cannot be used: {reason}; learn them with this version (`paceline learn metanet --out FILE`), or name none \
         for those that come with the program", .file.display()
    )]
    WeightsFile {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
