//! Real time: how workers find each other, prove who they are, and exchange bytes.
//!
//! A worker [joins](join()) a job at its [`Coordinator`]: both sides prove that they hold the job's
//! [`Secret`], the coordinator gives out ranks and the first view, and workers connect to each other.

mod adaptation;
mod buffer;
mod calibration;
mod control;
pub mod coordinator;
mod element;
pub mod error;
mod handle;
pub mod handshake;
pub mod join;
pub mod launch;
mod metering;
mod patience;
mod pending;
mod rendezvous;
mod runtime;
pub mod sealed;
mod secret;
pub mod store;
mod succession;
mod survey;
mod tuning;
mod watching;
mod worker;

pub use adaptation::Attached;
pub use buffer::{Buffer, SharedBuffer};
pub use control::Proposal;
pub use coordinator::{Coordinator, CoordinatorConfig, Fate, Log};
pub use element::{Bf16, Element, F16};
pub use error::{NetError, Result};
pub use handle::Outcome;
pub use handshake::{Connection, Encryption};
pub use join::{ControlChannel, JoinConfig, Joined, join};
pub use pending::{Buffers, Handle, Pending};
pub use runtime::{
    driver::ReportSink,
    mesh::Transport,
    pace::Pace,
    record::{Entry, Record},
    trace::{
        Activity, Description, Kernel, Place, Recording, Summary, TraceConfig,
        monotonic_nanoseconds,
    },
};
pub use sealed::{Opener, Seal, Sealer};
pub use secret::Secret;
pub use survey::{USUAL_SURVEY, survey};
pub use tuning::Unwatched;
pub use worker::{
    Entry as WorkerEntry, Gathering, Measuring, Operation, Region, Sharing, Worker, WorkerConfig,
};
