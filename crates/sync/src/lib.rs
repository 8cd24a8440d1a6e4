//! What to send, when, to whom.
//!
//! Everything here is a pure function or a deterministic state machine: no clock, no socket, no
//! thread. `paceline-net` drives it in real time and `paceline-replay` in virtual time.

pub mod adaptation;
pub mod agreement;
pub mod checker;
pub mod collective;
pub mod cost;
pub mod engine;
pub mod event;
pub mod frame;
pub mod groups;
pub mod listing;
pub mod liveness;
pub mod metrics;
pub mod policy;
pub mod program;
pub mod recovery;
mod resolver;
pub mod sampler;
pub mod scheduler;
pub mod slab;
pub mod strategy;
pub mod survey;

pub use resolver::{check_strategy, mixes};
