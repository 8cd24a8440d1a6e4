//! Virtual time: the engines of a whole cluster on one event heap, joined by a modelled network.
//!
//! The rules of synchronisation are not here: they are `paceline-sync`'s engine, the same object that
//! runs a real worker. This crate knows how long things take and what goes wrong, so that a run can be
//! predicted, or tested under thousands of seeds, in milliseconds. It is deterministic: a script, a
//! configuration and a seed give the same run everywhere.

pub mod agreement;
mod cluster;
mod config;
pub mod contents;
mod error;
pub mod graph;
pub mod members;
pub mod memory;
mod network;
mod outcome;
mod timeline;
mod worker;

pub use cluster::{Cluster, Over, Stretch, Waits, WayBack};
pub use config::{ClusterConfig, Combine, NetworkConfig, Shaping, TCP_OVER_ETHERNET, WorkerConfig};
pub use contents::Contents;
pub use error::ReplayError;
pub use outcome::{Fault, Finish, Notice, Outcome, Stuck};
pub use paceline_job::{LinkName, Random};
