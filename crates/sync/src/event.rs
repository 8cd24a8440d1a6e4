//! The engine's border: what a driver tells it ([`Event`]) and what it asks a driver to do ([`Action`]).
//!
//! Both are plain data, so that a run can be written down and fed to a fresh engine. Memory is named,
//! never pointed at: the caller's buffers by operation, scratch by [`BufId`].

use crate::{
    collective::Collective,
    frame::{Header, OpKey},
    scheduler::{Priority, Urgency},
    slab::Key,
};
use paceline_job::{Dtype, Rank, ReduceOp, View, ViewVersion};
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Range, sync::Arc};

/// The driver's name for an operation it posted; dense, reused after `Complete` or `Fail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u32);

/// The engine's name for a piece of scratch; dense, reused after `Free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufId(pub u32);

/// Operations with names that begin so are none of the program's.
pub const OURS: &str = "paceline ";

/// A collective that this worker takes part in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Post {
    /// The driver's name for it.
    pub op: OpId,
    /// The tensor's name: the n-th use of it on one rank meets the n-th on every other.
    pub name: Arc<str>,
    /// What to do.
    pub collective: Collective,
    /// Type of its elements.
    pub dtype: Dtype,
    /// How contributions are combined.
    pub reduce: ReduceOp,
    /// Smaller goes first.
    pub priority: Priority,
    /// The ranks that take part, in the order that gives each its member number; all if `None`.
    pub group: Option<Arc<[Rank]>>,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// How many of the members add nothing, and only hear the result: averages are not divided by them.
    #[serde(default)]
    pub listeners: u32,
    /// What it holds of samples.
    #[serde(default)]
    pub holds: Holds,
}

/// What an operation holds of what its members made of their samples, as its caller says, and all members alike: where a worker is
/// lost, its samples count if a survivor has something that holds them, and are dealt again otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holds {
    /// Nothing that parameters follow from: a loss to be shown, a vote, a barrier.
    #[default]
    Nothing,
    /// What was made of those of the step in which it is posted, as gradients do.
    Step,
    /// What was made of those of all steps below this one, as copies of parameters do.
    Below(u64),
}

impl Holds {
    /// The steps of whose samples it holds something, if it is posted in this one.
    pub(crate) fn steps(self, step: u64) -> Range<u64> {
        match self {
            Holds::Nothing => 0..0,
            Holds::Step => step..step + 1,
            Holds::Below(end) => 0..end,
        }
    }

    /// Below which step it holds all that was made; nothing if 0.
    pub(crate) fn all_below(self) -> u64 {
        match self {
            Holds::Nothing | Holds::Step => 0,
            Holds::Below(end) => end,
        }
    }
}

impl Post {
    /// A sum over all ranks in place, of usual priority; what is to be otherwise, write before `..`.
    pub fn new(op: OpId, name: impl Into<Arc<str>>, collective: Collective, dtype: Dtype) -> Post {
        Post {
            op,
            name: name.into(),
            collective,
            dtype,
            reduce: ReduceOp::Sum,
            priority: 0,
            group: None,
            in_place: true,
            listeners: 0,
            holds: Holds::Nothing,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The caller handed over a buffer.
    Post(Box<Post>),
    /// The header of a data frame arrived; the engine answers with [`Action::Place`].
    Incoming {
        /// Sender.
        from: Rank,
        /// The header.
        header: Header,
    },
    /// All bytes of a placed frame are where the placement said (and combined, if it said so).
    Arrived {
        /// From [`Action::Place`].
        token: Key,
    },
    /// A frame without elements arrived, with its payload.
    Control {
        /// Sender.
        from: Rank,
        /// The header.
        header: Header,
        /// At most [`crate::frame::MAX_CONTROL_BYTES`].
        payload: Box<[u8]>,
    },
    /// The bytes of a send left this worker; its memory may be reused.
    Delivered {
        /// From [`Action::Send`].
        token: Key,
    },
    /// Local work is done.
    Worked {
        /// From [`Action::Work`].
        token: Work,
    },
    /// A worker cannot be reached any more. Its frames are gone, in both directions.
    PeerLost {
        /// Who.
        peer: Rank,
        /// How it showed.
        reason: String,
    },
    /// A worker left in good order, and everything it sent has arrived. What it had finished can still
    /// be finished here.
    PeerLeft {
        /// Who.
        peer: Rank,
    },
    /// Operations posted from now on belong to this view; those in progress keep the settings they were
    /// posted with. All workers have to say so between the same two operations.
    View(Arc<View>),
    /// Time passed.
    Tick,
}

/// Local work belongs to a lane of a chunk; there is at most one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    pub(crate) chunk: Key,
    pub(crate) lane: u32,
}

/// A place in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Loc {
    /// The caller's input.
    Own(OpId, u64),
    /// The caller's output.
    Out(OpId, u64),
    /// Scratch.
    Buf(BufId, u64),
}

/// How to combine: what kernels need besides the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recipe {
    /// Type of the elements.
    pub dtype: Dtype,
    /// The operation.
    pub reduce: ReduceOp,
    /// For averages, where the value is final: divide by this. Otherwise 1.
    pub divisor: u32,
}

/// Where the payload of a data frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// As it is, straight into place.
    Straight(Loc),
    /// `into = payload ⊕ with`, if possible while it arrives. `landing` is scratch for the raw bytes.
    Combine {
        /// Scratch of the payload's length; the same place as `into` when that is scratch.
        landing: BufId,
        /// The other operand.
        with: Loc,
        /// The result.
        into: Loc,
        /// How.
        recipe: Recipe,
    },
    /// Into scratch (or leave it where it is, if it can be read there), until its turn comes.
    Hold(BufId),
    /// Into scratch at once: its turn waits for deliveries, and its sender may wait for this one's.
    Stow(BufId),
    /// Read and forget: it belongs to something that failed.
    Discard,
}

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Elements from memory that stays as it is until `Delivered`.
    Memory(Loc),
    /// A few bytes of the frame's own; no `Delivered` is expected.
    Inline(Box<[u8]>),
}

/// What the driver has to do, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Send a frame. Frames to one peer may overtake each other; control frames should.
    Send {
        /// Receiver.
        to: Rank,
        /// To be given back in [`Event::Delivered`]; `None` for control frames.
        token: Option<Key>,
        /// Its place among the frames that wait to leave.
        urgency: Urgency,
        /// The header.
        header: Header,
        /// What follows it.
        payload: Payload,
    },
    /// Where the frame just announced by [`Event::Incoming`] goes.
    Place {
        /// To be given back in [`Event::Arrived`]; `None` if it is discarded.
        token: Option<Key>,
        /// Where.
        placement: Placement,
    },
    /// The next thing a lane needs is a final value from a member of the same host, straight into
    /// `into`, which nothing here touches until then. A transport may let the sender write it there.
    Expect {
        /// Sender.
        from: Rank,
        /// The operation, chunk, instruction and length, as the frame's header will have them.
        header: Header,
        /// Its place.
        into: Loc,
    },
    /// `into = source ⊕ with`, or a copy that an average's divisor still applies to.
    Work {
        /// To be given back in [`Event::Worked`].
        token: Work,
        /// First operand.
        source: Loc,
        /// The other operand.
        with: Option<Loc>,
        /// The result.
        into: Loc,
        /// Elements.
        elements: u64,
        /// How.
        recipe: Recipe,
    },
    /// The scratch will not be named again.
    Free(BufId),
    /// The operation is finished: output is final, input and output are the caller's again.
    Complete(OpId),
    /// The operation will not finish; its memory is the caller's again.
    Fail(OpId, Arc<OpError>),
    /// A peer broke the protocol, or others lost it: close its connection, then tell [`Event::PeerLost`].
    Close {
        /// Who.
        peer: Rank,
        /// What it did.
        reason: String,
    },
    /// Something people should hear of, though nothing has failed yet.
    Report(Report),
}

/// Why an operation failed. The text names the worker and what can be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum OpError {
    /// A worker died or its connection broke.
    #[error(
        "`{name}`: worker {peer} is gone ({reason}); see that worker's output for the cause, then restart it or go on without it"
    )]
    PeerLost {
        /// The tensor.
        name: Arc<str>,
        /// Who is gone.
        peer: Rank,
        /// How it showed.
        reason: String,
    },
    /// Ranks disagree about what the tensor is.
    #[error(
        "`{name}`: worker {peer} posted {theirs}, this worker {ours}; give the tensor the same shape and operation everywhere, or different names"
    )]
    Mismatch {
        /// The tensor.
        name: Arc<str>,
        /// Who differs.
        peer: Rank,
        /// What it posted.
        theirs: String,
        /// What was posted here.
        ours: String,
    },
    /// Ranks put a view in force between different operations.
    #[error(
        "`{name}`: worker {peer} posted it in view {theirs}, this worker in view {ours}; install a view between the same two operations on every worker"
    )]
    Views {
        /// The tensor.
        name: Arc<str>,
        /// Who differs.
        peer: Rank,
        /// Where it posted the tensor.
        theirs: ViewVersion,
        /// Where this worker did.
        ours: ViewVersion,
    },
    /// Nobody made progress for too long.
    #[error("`{name}`: no progress for {seconds} s. {report}")]
    Stalled {
        /// The tensor.
        name: Arc<str>,
        /// How long.
        seconds: u64,
        /// Who lacks it.
        report: String,
    },
    /// It failed on another worker first.
    #[error("`{name}`: failed on worker {peer}: {reason}")]
    Aborted {
        /// The tensor.
        name: Arc<str>,
        /// Where.
        peer: Rank,
        /// What it said.
        reason: String,
    },
    /// It could not even be posted.
    #[error("`{name}`: {reason}")]
    Invalid {
        /// The tensor.
        name: Arc<str>,
        /// Why not.
        reason: String,
    },
}

/// A notice about slowness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// A tensor posted here does not progress.
    Stall {
        /// The tensor.
        name: Arc<str>,
        /// Since when, in whole seconds.
        seconds: u64,
        /// Per rank of its group: posted or not, and the last operation it posted.
        ranks: Vec<RankState>,
    },
    /// Another worker waits for a tensor that this worker has not posted.
    WaitedFor {
        /// The tensor.
        name: String,
        /// Who waits.
        by: Rank,
        /// The last operation posted here.
        last: Arc<str>,
    },
}

/// What a rank said when it was asked about a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankState {
    /// Who.
    pub rank: Rank,
    /// Its answer; `None` if it has not answered.
    pub answer: Option<(Standing, String)>,
}

/// Where a tensor stands on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Not posted.
    Absent,
    /// Posted, not finished.
    Posted,
    /// Finished there.
    Finished,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::WaitedFor { name, by, last } => write!(
                f,
                "worker {by} waits for `{name}`, which this worker has not posted (its last operation was {})",
                last_operation(last)
            ),
            Report::Stall { name, seconds, ranks } => {
                write!(f, "`{name}` has made no progress for {seconds} s. {}", standings(ranks))
            }
        }
    }
}

fn last_operation(name: &str) -> String {
    if name.is_empty() { "none".to_string() } else { format!("`{name}`") }
}

/// The sentence of a stall report: who posted, who did not, and what each did last.
pub(crate) fn standings(ranks: &[RankState]) -> String {
    let list = |wanted: Option<Standing>| {
        let chosen = ranks.iter().filter(|state| state.answer.as_ref().map(|a| a.0) == wanted);
        chosen
            .map(|state| match &state.answer {
                Some((_, last)) => {
                    format!("{} (last operation {})", state.rank, last_operation(last))
                }
                None => state.rank.to_string(),
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut sentences = Vec::new();
    for (wanted, words) in [
        (Some(Standing::Absent), "Not posted by worker"),
        (Some(Standing::Posted), "Posted by worker"),
        (Some(Standing::Finished), "Already finished on worker"),
        (None, "No answer from worker"),
    ] {
        let who = list(wanted);
        if !who.is_empty() {
            sentences.push(format!("{words} {who}."));
        }
    }
    sentences.push("Post the tensor on every worker, or look at those that lag.".to_string());
    sentences.join(" ")
}

/// Identity of a name on the wire: equal names in equal groups meet.
pub fn name_hash(name: &str, group: Option<&[Rank]>) -> u64 {
    // FNV-1a with a final mix: stable across builds and platforms, which a hasher of std is not.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    name.bytes().for_each(&mut eat);
    for rank in group.unwrap_or_default() {
        rank.0.to_le_bytes().into_iter().for_each(&mut eat);
    }
    hash ^= hash >> 32;
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (hash >> 29)
}

/// The key of a frame that is about no operation.
pub(crate) fn no_key(view: ViewVersion) -> OpKey {
    OpKey { name: 0, uses: 0, view }
}
