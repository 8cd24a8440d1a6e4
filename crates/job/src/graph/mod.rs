//! Training steps over all workers as a dependency graph: what is computed where, in which order, and what waits for
//! what. How long communication takes is not written here: it follows from the network and the settings, or from what was
//! recorded.

mod asides;
mod build;
mod chain;
mod change;
mod clocks;
mod edges;
mod groups;
mod handing;
pub mod layered;
mod observed;
mod pieces;
mod tangled;
mod times;
mod wire;

pub use build::{BuildError, Job};
pub use clocks::{Alignment, Bound, Clocks, Drift};
pub use wire::wire;

use crate::{
    CollectiveKind, Dtype, Rank,
    trace::{Lane, Phase, SEND_RECEIVE},
};
use std::sync::Arc;

/// A node, by its place in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// For indexing a list that has one entry per node.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An operation of several workers, by its place in [`Graph::operations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u32);

impl OperationId {
    /// For indexing a list that has one entry per operation.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Steps of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// By rank.
    pub workers: Vec<Worker>,
    /// In no particular order.
    pub nodes: Vec<Node>,
    /// In no particular order.
    pub operations: Vec<Operation>,
    /// How many steps there are: [`Role::StepEnd`] counts them from 0.
    pub steps: u32,
}

impl Graph {
    /// Steps at the beginning that do not count, unless somebody says otherwise: the first finds nothing left over from one before.
    pub const fn warm_up(&self) -> usize {
        (self.steps > 2) as usize
    }
}

/// Who computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worker {
    /// Workers with the same host share memory and its link.
    pub host: String,
    /// What does one thing after another.
    pub lanes: Vec<Sequence>,
}

/// Nodes that follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Thread or stream.
    pub lane: Lane,
    /// In order: each begins after the one before it is over.
    pub nodes: Vec<NodeId>,
}

/// Something that takes time on a lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// For people.
    pub name: Arc<str>,
    /// The worker whose lane it is on.
    pub rank: Rank,
    /// The part of a step.
    pub phase: Phase,
    /// What it does.
    pub role: Role,
    /// Nanoseconds, once it has begun.
    pub length: u64,
    /// Nanoseconds between the end of all that it waits for and its begin, as observed.
    pub gap: u64,
    /// Nodes of the same worker that must be over, apart from the one before it on its lane.
    pub after: Vec<NodeId>,
}

/// What a node does besides taking time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Work,
    /// At its end the worker takes part in an operation.
    Post(OperationId),
    /// It cannot begin before the operation is over on this worker.
    Await(OperationId),
    /// At its end the worker's step is over.
    StepEnd(u32),
}

/// An operation of several workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The tensor.
    pub name: Arc<str>,
    /// What is done.
    pub kind: OperationKind,
    /// Members in order; all workers if empty.
    pub members: Vec<Rank>,
    /// Elements that a member contributes.
    pub elements: u64,
    /// Of each element.
    pub dtype: Dtype,
    /// Smaller goes first.
    pub priority: i64,
    /// Nanoseconds from the last post that a member [needs](OperationKind::needs) to its end, for each member in order, as
    /// recorded; empty if it was not.
    pub recorded: Vec<u64>,
}

impl Operation {
    /// What a member contributes.
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.size() as u64)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Everybody has the sum of all.
    AllReduce,
    /// Everybody has a part of the sum.
    ReduceScatter,
    /// Everybody has all parts.
    AllGather,
    /// Everybody has what the first member had.
    Broadcast,
    /// The first member has the sum of all.
    Reduce,
    /// Everybody has a part of everybody.
    AllToAll,
    /// Everybody is there.
    Barrier,
    /// From the first member to the second.
    SendReceive,
}

impl OperationKind {
    /// Whether a member cannot be through before another takes part, both by their places: who only gives waits for nobody.
    pub const fn needs(self, member: usize, other: usize) -> bool {
        match self {
            OperationKind::Broadcast | OperationKind::SendReceive => other == 0 || other == member,
            OperationKind::Reduce => member == 0 || other == member,
            _ => true,
        }
    }

    /// As traces name it.
    pub const fn word(self) -> &'static str {
        match self {
            OperationKind::AllReduce => CollectiveKind::AllReduce.word(),
            OperationKind::ReduceScatter => CollectiveKind::ReduceScatter.word(),
            OperationKind::AllGather => CollectiveKind::AllGather.word(),
            OperationKind::Broadcast => CollectiveKind::Broadcast.word(),
            OperationKind::Reduce => CollectiveKind::Reduce.word(),
            OperationKind::AllToAll => CollectiveKind::AllToAll.word(),
            OperationKind::Barrier => CollectiveKind::Barrier.word(),
            OperationKind::SendReceive => SEND_RECEIVE,
        }
    }
}
