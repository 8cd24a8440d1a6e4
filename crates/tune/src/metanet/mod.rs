//! The meta-network in use: what a job's metrics are to it, and the jobs in virtual time from which it learns. Its layers
//! and its learning are in `paceline-learn`.

mod autobyte;
mod environment;
mod generate;
mod model;

pub use autobyte::{AutoByte, conditions};
pub use environment::Environment;
pub use generate::{Generator, Part};
pub use model::Model;
