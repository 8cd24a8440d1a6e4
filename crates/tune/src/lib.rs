//! Self-tuning: which strategy, partition and credit a running job should use, when to look for better ones, and
//! whether to act.
//!
//! Everything here is a pure function or a state machine: metrics in, proposals out. Searchers say what would be better
//! ([`searcher`]), the [`Tuner`] decides when to ask them and whether to follow, and [`arena`] tries both in virtual time.
//! Policies that adapt batches, learning rates and workers are in [`policies`]. How metrics are collected and how workers agree on a proposal is not known here.

pub mod arena;
mod candidate;
mod contention;
mod crossing;
mod decision;
mod detector;
mod logged;
pub mod metanet;
mod method;
mod parts;
pub mod policies;
pub mod searcher;
mod space;
mod surroundings;
mod tuner;
mod wires;

pub use candidate::Candidate;
pub use contention::ContentionWatch;
pub use decision::{Action, Conditions, Decision};
pub use detector::{Change, Detector, Signal};
pub use logged::{DecisionFile, Logged};
pub use method::{Method, UnknownMethod, WeightsError};
pub use space::{Place, Results, Space, strategies};
pub use surroundings::Surroundings;
pub use tuner::{Trigger, Tuner};
