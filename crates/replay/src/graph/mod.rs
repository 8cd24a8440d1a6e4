//! Graphs of training steps in virtual time: lanes do one thing after another, and what workers do together passes
//! through the engines of a [`Cluster`](crate::Cluster), or takes as long as it was recorded to take.
//!
//! Where a graph comes from, and what is made of the times, is not known here.

mod analysis;
mod links;
mod memory;
mod metrics;
mod path;
mod play;
mod prices;
mod remote;
mod scenario;
mod served;

pub use analysis::{Analysis, Loss, Share, Spent};
pub use links::LinkShare;
pub use memory::memory;
pub use metrics::{Shown, metrics};
pub use path::{Piece, critical_path};
pub use play::{Cause, Played, WorkerTraffic, play, play_out, warm_up};
pub use prices::Prices;
pub use remote::Network;
pub use scenario::{Change, ChangeError, Scenario};
