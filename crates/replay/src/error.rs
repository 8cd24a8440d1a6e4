//! What can be wrong with a cluster that somebody describes.

use paceline_job::{ByteSize, LinkName, Rank};
use paceline_sync::strategy::UnknownStrategy;
use std::sync::Arc;

/// A cluster, a fault or a view that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A worker sits on a host that the topology lacks: add the host, or correct the worker's.
    #[error("the view has a worker on host `{0}`, which the topology does not have")]
    UnknownHost(String),
    /// A host sits in a rack without uplink: give every rack one, or none.
    #[error("host `{host}` is in rack {rack}, which has no uplink")]
    UnknownRack {
        /// The host.
        host: String,
        /// Its rack.
        rack: u32,
    },
    /// A fault names a link that the topology lacks: correct its number.
    #[error("there is no link {0:?}")]
    UnknownLink(LinkName),
    /// A fault would change the rate of a wire whose segments are under way: leave `shaping` out.
    #[error(
        "link {0:?} is shaped, and a shaped link keeps its rate; leave `shaping` out to change it"
    )]
    ShapedLink(LinkName),
    /// Something names a worker that the view lacks: correct the rank.
    #[error("there is no worker {0}")]
    UnknownWorker(Rank),
    /// The view names no strategy that exists: use one of those listed.
    #[error(transparent)]
    Strategy(#[from] UnknownStrategy),
    /// A number in the configuration that cannot work: correct it.
    #[error("{name} is {value}; it must be positive and finite")]
    Configuration {
        /// The field.
        name: &'static str,
        /// What it held.
        value: String,
    },
    /// Play all workers instead of one: leave `mirrored` out.
    #[error(
        "one worker cannot stand for all: that needs the strategy `ring`, one worker on each host, and wires alike"
    )]
    NotSymmetric,
    /// Give a larger partition, or mend the sizes of operations.
    #[error(
        "operations of a step are {pieces} pieces of {partition}, and more than {most} would take hours and all memory: give a larger \
         partition, or look whether tensors are as large as they say"
    )]
    TooManyPieces {
        /// How many they are.
        pieces: u64,
        /// How large, at most.
        partition: ByteSize,
        /// How many can be played.
        most: u64,
    },
    /// A new view must have the members of the first: start another cluster for others.
    #[error("the next view has {next} workers, the cluster {now}")]
    Members {
        /// Of the cluster.
        now: usize,
        /// Of the view.
        next: usize,
    },
    /// A graph that waits for itself, or for a worker that never takes part: mend what made it. Or the bound on events or time was
    /// reached.
    #[error(
        "the graph came to a halt with {nodes} nodes left, the first of them `{name}` of worker {rank}"
    )]
    Halted {
        /// How many.
        nodes: usize,
        /// Whose.
        rank: Rank,
        /// One of them.
        name: Arc<str>,
        /// Engine events until then, where engines ran.
        events: u64,
    },
    /// Workers of a graph disagree about an operation: mend what made it.
    #[error("operation `{name}` of the graph failed: {problem}")]
    Operation {
        /// Which.
        name: Arc<str>,
        /// What the engine said.
        problem: String,
    },
}
