//! The words of Paceline as types, and the files they are written to.
//!
//! This crate knows nothing of time, sockets or threads. Everything here is data: who takes part
//! ([`View`]), where they sit ([`Topology`]), what is in force ([`Settings`]), and how people write
//! quantities ([`ByteSize`], [`Rate`]).

mod collective;
mod duration;
mod element;
pub mod graph;
mod plan;
mod quantity;
mod random;
pub mod script;
mod topology;
pub mod trace;
mod view;

pub use collective::CollectiveKind;
pub use duration::WrittenDuration;
pub use element::{Dtype, ReduceOp};
pub use plan::{Batch, Fusion, Pass, Plan, PlanError, Suggestion};
pub use quantity::{ByteSize, ParseQuantityError, Rate, Time};
pub use random::Random;
pub use topology::{Contended, Host, Link, LinkName, Topology, TopologyError, TopologySource, Way};
pub use view::{
    Measured, Membership, Rank, Settings, SettingsError, StrategyChoice, View, ViewVersion, Worker,
    WorkerId,
};
