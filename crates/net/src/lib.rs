//! Real time: how workers find each other, prove who they are, and exchange bytes.

pub mod error;
pub mod handshake;
pub mod sealed;
mod secret;

pub use error::{NetError, Result};
pub use handshake::Connection;
pub use sealed::{Opener, Seal, Sealer};
pub use secret::Secret;
