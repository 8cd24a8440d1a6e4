//! The meta-network of AutoByte (INFOCOM 2022): from what a running job shows to the speed it would have under other
//! settings. Learned offline from many jobs, and further from the job itself while it runs.
//!
//! ```
//! use paceline_learn::metanet::{Choice, Conditions, MetaNetwork, TensorConditions, WorkerConditions};
//!
//! let tensor = TensorConditions { bytes: 4e6, forward: 1e-3, backward: 2e-3, slowest: 3e-3 };
//! let worker = WorkerConditions { upload: 1e9, download: 1e9, computation: 0.03 };
//! let conditions = Conditions {
//!     tensors: vec![tensor; 10],
//!     workers: vec![worker; 4],
//!     hosts: 4,
//!     latency: 50e-6,
//!     crosses_step: true,
//!     seen: None,
//! };
//! let network = MetaNetwork::shipped();
//! let prepared = network.prepare(&conditions).expect("conditions that can be predicted");
//! let choice = |partition| Choice { strategy: 1, partition, credit: 4.0 * partition };
//! let seconds = network.seconds(&prepared, &[choice(65536.0), choice(1048576.0)]);
//! assert!(seconds.iter().all(|seconds| *seconds > 0.0));
//! ```

mod conditions;
mod features;
mod file;
mod network;
mod quality;
mod training;
mod transfer;

#[cfg(test)]
mod tests;

pub use conditions::{Choice, Conditions, STRATEGIES, Seen, TensorConditions, WorkerConditions};
pub use network::{MetaNetwork, Prepared};
pub use quality::{Quality, judge};
pub use training::{Sample, TrainingOptions, train};
pub use transfer::Transfer;
