//! Real time: how workers find each other, prove who they are, and exchange bytes.
//!
//! A worker [joins](join()) a job at its [`Coordinator`]: both sides prove that they hold the job's
//! [`Secret`], the coordinator gives out ranks and the first view, and workers connect to each other.

pub mod coordinator;
pub mod error;
pub mod handshake;
pub mod join;
pub mod launch;
pub mod sealed;
mod secret;

pub use coordinator::{Coordinator, CoordinatorConfig, Fate, Log};
pub use error::{NetError, Result};
pub use handshake::Connection;
pub use join::{ControlChannel, JoinConfig, Joined, join};
pub use sealed::{Opener, Seal, Sealer};
pub use secret::Secret;
