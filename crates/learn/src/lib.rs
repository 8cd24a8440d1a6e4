//! Small learned models, made and used inside the program: neural layers, Gaussian processes with Bayesian search, curve fits, and
//! the meta-network that predicts a job's speed.
//!
//! Everything is a function of its arguments and a seed: no thread, no clock, no file. Where numbers come from and what is
//! done with predictions is not known here.

pub mod bayes;
mod error;
pub mod matrix;
pub mod metanet;
pub mod nn;
mod throughput;

pub use error::LearnError;
pub use paceline_job::Random;
pub use throughput::{StepModel, StepSample};
