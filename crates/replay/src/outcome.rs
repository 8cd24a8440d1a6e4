//! What happens to a cluster from outside, and what came of a run.

use paceline_job::{LinkName, Rank, Rate, Time};
use paceline_sync::event::{OpError, OpId, Report};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something that goes wrong, or right again, at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fault {
    /// A worker dies: its connections vanish, and its peers hear of it a latency later.
    Crash(Rank),
    /// A worker leaves in good order: what it sent still arrives, and then its peers hear of it. It
    /// should have nothing left to do, or others wait for it in vain.
    Leave(Rank),
    /// Two workers lose each other, and hear of it a latency later.
    Sever(Rank, Rank),
    /// A link carries this much from now on.
    Rate(LinkName, Rate),
    /// A link carries nothing from now on; nobody is told.
    Cut(LinkName),
    /// A link carries what it did at first.
    Restore(LinkName),
}

/// An operation that is over on one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// When.
    pub at: Time,
    /// Where.
    pub rank: Rank,
    /// Which; the worker may use the name again.
    pub op: OpId,
    /// How it went.
    pub result: Result<(), Arc<OpError>>,
}

/// An operation that was posted and is not over, though nothing happens any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Where.
    pub rank: Rank,
    /// Which.
    pub op: OpId,
    /// Its tensor.
    pub name: Arc<str>,
}

/// What an engine wanted people to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// When.
    pub at: Time,
    /// Whose engine.
    pub rank: Rank,
    /// What it said.
    pub report: Report,
}

/// A run, when it has come to rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What is over, in the order it ended.
    pub finishes: Vec<Finish>,
    /// What engines reported.
    pub notices: Vec<Notice>,
    /// What is not over: nothing, unless an engine has a defect or the run was cut short.
    pub stuck: Vec<Stuck>,
    /// Whether the run ended at the bound on events, and not by itself.
    pub cut_short: bool,
    /// Engine events handled.
    pub events: u64,
    /// Data frames that arrived.
    pub messages: u64,
    /// When the last engine event was.
    pub end: Time,
}

impl Outcome {
    /// When an operation was over on a worker (the last time, if its name was used again).
    pub fn finished_at(&self, rank: Rank, op: OpId) -> Option<Time> {
        let mut matching = self.finishes.iter().rev();
        matching.find(|finish| finish.rank == rank && finish.op == op).map(|finish| finish.at)
    }
}
