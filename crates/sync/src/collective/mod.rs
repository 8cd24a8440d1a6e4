//! Collectives: what callers ask for, cut into chunks, each chunk a program per member.
//!
//! An all-reduce is programmed by a strategy; the others have one good way each, chosen by their
//! shape. Offsets and lengths are in elements: this file knows nothing of element types, bytes or
//! transports.

mod blocks;
mod exchange;
mod rooted;

use crate::{
    program::{Member, Program, Site, Span, Strategy},
    strategy::RecursiveDoubling,
};
use blocks::{AllGatherProgram, ReduceScatterProgram};
use exchange::{AllToAllProgram, OneWayProgram};
use paceline_job::CollectiveKind;
use rooted::{BroadcastProgram, GatherProgram, ReduceProgram, ScatterProgram, Tree};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// What a group does together with one tensor. `counts` have one entry per member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collective {
    /// Every member ends with the combination of all contributions.
    AllReduce {
        /// Elements.
        len: u64,
    },
    /// In: one block per member, concatenated. Out: the combination of everybody's block for me.
    ReduceScatter {
        /// Elements of each member's block.
        counts: Arc<[u64]>,
    },
    /// In: my block. Out: everybody's blocks, concatenated.
    AllGather {
        /// Elements of each member's block.
        counts: Arc<[u64]>,
    },
    /// Every member ends with the root's input.
    Broadcast {
        /// Whose.
        root: Member,
        /// Elements.
        len: u64,
    },
    /// The root ends with the combination of all contributions; nobody else's output is written.
    Reduce {
        /// Who ends with it.
        root: Member,
        /// Elements.
        len: u64,
    },
    /// The root ends with everybody's blocks, concatenated; nobody else's output is written.
    Gather {
        /// Who ends with them.
        root: Member,
        /// Elements of each member's block.
        counts: Arc<[u64]>,
    },
    /// Every member ends with its block of the root's input; nobody else's input is read.
    Scatter {
        /// Whose input.
        root: Member,
        /// Elements of each member's block.
        counts: Arc<[u64]>,
    },
    /// In: a block for every member, concatenated. Out: a block from every member, concatenated. A
    /// member knows its own two lists only; for itself both must say the same.
    AllToAll {
        /// Elements this member sends to each.
        sends: Arc<[u64]>,
        /// Elements this member receives from each.
        receives: Arc<[u64]>,
    },
    /// One half of a transfer in a group of two: my input becomes the other's output.
    Send {
        /// The other.
        to: Member,
        /// Elements.
        len: u64,
    },
    /// The other half.
    Recv {
        /// The other.
        from: Member,
        /// Elements.
        len: u64,
    },
    /// Nobody leaves before everybody has come. In and out are one element without meaning.
    Barrier,
}

impl Collective {
    /// What it is called.
    pub const fn kind(&self) -> CollectiveKind {
        match self {
            Collective::AllReduce { .. } => CollectiveKind::AllReduce,
            Collective::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
            Collective::AllGather { .. } => CollectiveKind::AllGather,
            Collective::Broadcast { .. } => CollectiveKind::Broadcast,
            Collective::Reduce { .. } => CollectiveKind::Reduce,
            Collective::Gather { .. } => CollectiveKind::Gather,
            Collective::Scatter { .. } => CollectiveKind::Scatter,
            Collective::AllToAll { .. } => CollectiveKind::AllToAll,
            Collective::Send { .. } => CollectiveKind::Send,
            Collective::Recv { .. } => CollectiveKind::Recv,
            Collective::Barrier => CollectiveKind::Barrier,
        }
    }

    /// How many chunks it is cut into where a chunk has about `partition_elements`. A collective
    /// without elements has none. In an all-to-all this may differ from member to member; chunks
    /// beyond a member's number would be empty.
    ///
    /// # Panics
    /// If there were more than `u32::MAX` chunks. The smallest partition holds 64 bytes, so a
    /// tensor that large does not exist; a block that large does only if the group has more members
    /// than a partition has elements.
    pub fn chunks(&self, site: &Site, partition_elements: u64) -> u32 {
        let longest = |counts: &[u64]| counts.iter().copied().max().unwrap_or(0);
        let (len, width) = match self {
            Collective::AllReduce { len }
            | Collective::Broadcast { len, .. }
            | Collective::Reduce { len, .. }
            | Collective::Send { len, .. }
            | Collective::Recv { len, .. } => (*len, partition_elements.max(1)),
            Collective::ReduceScatter { counts }
            | Collective::AllGather { counts }
            | Collective::Gather { counts, .. }
            | Collective::Scatter { counts, .. } => {
                (longest(counts), block_width(site, partition_elements))
            }
            Collective::AllToAll { sends, receives } => {
                let len = longest(sends).max(longest(receives));
                (len, block_width(site, partition_elements))
            }
            Collective::Barrier => (1, 1),
        };
        u32::try_from(len.div_ceil(width)).expect("a tensor has fewer than 2^32 chunks")
    }

    /// The program of `site.me` for one chunk. Only an all-reduce asks the strategy.
    pub fn program(
        &self,
        site: &Site,
        strategy: &Arc<dyn Strategy>,
        chunk: u32,
        partition_elements: u64,
    ) -> Box<dyn Program> {
        let whole = |len| Window::new(chunk, partition_elements.max(1)).of(len);
        let window = || Window::new(chunk, block_width(site, partition_elements));
        let tree = |root| {
            let chunks = self.chunks(site, partition_elements);
            Tree::new(site, root, chunks)
        };
        match self {
            Collective::AllReduce { len } => strategy.program(site, whole(*len)),
            Collective::Barrier => {
                RecursiveDoubling::default().program(site, Span { offset: 0, len: 1 })
            }
            Collective::ReduceScatter { counts } => {
                Box::new(ReduceScatterProgram::new(site, counts, window()))
            }
            Collective::AllGather { counts } => {
                Box::new(AllGatherProgram::new(site, counts, window()))
            }
            Collective::Broadcast { root, len } => {
                Box::new(BroadcastProgram::new(tree(*root), whole(*len)))
            }
            Collective::Reduce { root, len } => {
                Box::new(ReduceProgram::new(tree(*root), whole(*len)))
            }
            Collective::Gather { root, counts } => {
                Box::new(GatherProgram::new(site.me, *root, counts, window()))
            }
            Collective::Scatter { root, counts } => {
                Box::new(ScatterProgram::new(site.me, *root, counts, window()))
            }
            Collective::AllToAll { sends, receives } => {
                Box::new(AllToAllProgram::new(site.me, sends, receives, window()))
            }
            Collective::Send { to, len } => Box::new(OneWayProgram::send(*to, whole(*len))),
            Collective::Recv { from, len } => Box::new(OneWayProgram::receive(*from, whole(*len))),
        }
    }

    /// Elements that `me` must hand in.
    pub fn input_len(&self, me: Member) -> u64 {
        match self {
            Collective::AllReduce { len } | Collective::Reduce { len, .. } => *len,
            Collective::Broadcast { root, len } => only_if(*root == me, *len),
            Collective::ReduceScatter { counts } => total(counts),
            Collective::AllGather { counts } | Collective::Gather { counts, .. } => {
                block(counts, me)
            }
            Collective::Scatter { root, counts } => only_if(*root == me, total(counts)),
            Collective::AllToAll { sends, .. } => total(sends),
            Collective::Send { len, .. } => *len,
            Collective::Recv { .. } => 0,
            Collective::Barrier => 1,
        }
    }

    /// Elements that `me` must have room for.
    pub fn output_len(&self, me: Member) -> u64 {
        match self {
            Collective::AllReduce { len } | Collective::Broadcast { len, .. } => *len,
            Collective::Reduce { root, len } => only_if(*root == me, *len),
            Collective::ReduceScatter { counts } | Collective::Scatter { counts, .. } => {
                block(counts, me)
            }
            Collective::AllGather { counts } => total(counts),
            Collective::Gather { root, counts } => only_if(*root == me, total(counts)),
            Collective::AllToAll { receives, .. } => total(receives),
            Collective::Send { .. } => 0,
            Collective::Recv { len, .. } => *len,
            Collective::Barrier => 1,
        }
    }

    /// Whether input and output may be the same memory: they must have the same offsets for that.
    pub fn in_place_allowed(&self) -> bool {
        match self {
            Collective::AllReduce { .. }
            | Collective::Broadcast { .. }
            | Collective::Reduce { .. }
            | Collective::Send { .. }
            | Collective::Recv { .. }
            | Collective::Barrier => true,
            Collective::ReduceScatter { .. }
            | Collective::AllGather { .. }
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll { .. } => false,
        }
    }

    /// The size that a strategy is chosen by: elements of the longer side, over all members.
    pub fn elements(&self) -> u64 {
        match self {
            Collective::AllToAll { sends, receives } => total(sends).max(total(receives)),
            Collective::Barrier => 1,
            Collective::Send { len, .. } | Collective::Recv { len, .. } => *len,
            _ => self.agreed_elements(),
        }
    }

    /// The number of elements that all members must agree on; zero where they need not agree.
    pub fn agreed_elements(&self) -> u64 {
        match self {
            Collective::AllReduce { len }
            | Collective::Broadcast { len, .. }
            | Collective::Reduce { len, .. } => *len,
            Collective::ReduceScatter { counts }
            | Collective::AllGather { counts }
            | Collective::Gather { counts, .. }
            | Collective::Scatter { counts, .. } => total(counts),
            Collective::AllToAll { .. }
            | Collective::Send { .. }
            | Collective::Recv { .. }
            | Collective::Barrier => 0,
        }
    }

    /// A number for everything that must be equal on all members: the kind, the lengths, the root.
    /// The same in every build and on every machine.
    pub fn signature(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.add(self.agreed_kind());
        match self {
            Collective::AllReduce { len } => hash.add(*len),
            Collective::Broadcast { root, len } | Collective::Reduce { root, len } => {
                hash.add(u64::from(*root));
                hash.add(*len);
            }
            Collective::ReduceScatter { counts } | Collective::AllGather { counts } => {
                counts.iter().for_each(|count| hash.add(*count));
            }
            Collective::Gather { root, counts } | Collective::Scatter { root, counts } => {
                hash.add(u64::from(*root));
                counts.iter().for_each(|count| hash.add(*count));
            }
            // A member knows its own lengths only; a block of the wrong length is found when it
            // arrives.
            Collective::AllToAll { .. }
            | Collective::Send { .. }
            | Collective::Recv { .. }
            | Collective::Barrier => {}
        }
        hash.0
    }

    /// Refuse what member `me` of a group of `members` cannot do, with the reason.
    pub fn validate_for(&self, me: Member, members: u32) -> Result<(), String> {
        self.validate(members)?;
        match self {
            Collective::AllToAll { sends, receives } => {
                let (sent, received) = (block(sends, me), block(receives, me));
                if sent == received {
                    return Ok(());
                }
                Err(format!(
                    "the {self} sends {sent} elements from member {me} to itself and receives \
                     {received} there; both must be the same"
                ))
            }
            Collective::Send { to: other, .. } | Collective::Recv { from: other, .. }
                if *other == me =>
            {
                Err("a worker cannot send to itself; copy instead".to_string())
            }
            _ => Ok(()),
        }
    }

    /// Refuse what no group of `members` can do, with the reason.
    pub fn validate(&self, members: u32) -> Result<(), String> {
        let one_each = |counts: &[u64], what: &str| {
            if counts.len() != members as usize {
                return Err(format!(
                    "{self} has {} {what} for {members} members; give one for each",
                    counts.len()
                ));
            }
            // A tensor is memory, so its length in elements fits 63 bits with much to spare.
            let total = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
            total.map(drop).ok_or_else(|| format!("the {what} of {self} overflow"))
        };
        let exists = |member: Member, what: &str| match member < members {
            true => Ok(()),
            false => Err(format!("the {what} of {self} is not one of its {members} members")),
        };
        match self {
            Collective::AllReduce { .. } | Collective::Barrier => Ok(()),
            Collective::ReduceScatter { counts } | Collective::AllGather { counts } => {
                one_each(counts, "counts")
            }
            Collective::Broadcast { root, .. } | Collective::Reduce { root, .. } => {
                exists(*root, "root")
            }
            Collective::Gather { root, counts } | Collective::Scatter { root, counts } => {
                exists(*root, "root")?;
                one_each(counts, "counts")
            }
            Collective::AllToAll { sends, receives } => {
                one_each(sends, "sends")?;
                one_each(receives, "receives")
            }
            Collective::Send { to: other, .. } | Collective::Recv { from: other, .. } => {
                if members != 2 {
                    return Err(format!("{self} is between two, not {members} members"));
                }
                exists(*other, "other side")
            }
        }
    }

    /// The two halves of a transfer are of one kind: they meet each other. These numbers are seen by peers.
    fn agreed_kind(&self) -> u64 {
        match self.kind() {
            CollectiveKind::Send | CollectiveKind::Recv => 8,
            CollectiveKind::Barrier => 9,
            other => other as u64,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::AllReduce { len } => write!(f, "all-reduce of {len}"),
            Collective::ReduceScatter { .. } => {
                write!(f, "reduce-scatter of {}", self.agreed_elements())
            }
            Collective::AllGather { .. } => write!(f, "all-gather of {}", self.agreed_elements()),
            Collective::Broadcast { root, len } => {
                write!(f, "broadcast of {len} from member {root}")
            }
            Collective::Reduce { root, len } => write!(f, "reduce of {len} to member {root}"),
            Collective::Gather { root, .. } => {
                write!(f, "gather of {} to member {root}", self.agreed_elements())
            }
            Collective::Scatter { root, .. } => {
                write!(f, "scatter of {} from member {root}", self.agreed_elements())
            }
            Collective::AllToAll { .. } => write!(f, "all-to-all"),
            Collective::Send { to, len } => write!(f, "send of {len} to member {to}"),
            Collective::Recv { from, len } => write!(f, "receive of {len} from member {from}"),
            Collective::Barrier => write!(f, "barrier"),
        }
    }
}

/// A chunk of a collective of blocks takes a slice of every block, so that together they are about
/// a partition.
fn block_width(site: &Site, partition_elements: u64) -> u64 {
    (partition_elements / u64::from(site.members())).max(1)
}

/// Counts that overflow are refused by [`Collective::validate`]; until then they must not panic.
fn total(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

fn only_if(condition: bool, len: u64) -> u64 {
    if condition { len } else { 0 }
}

fn block(counts: &[u64], member: Member) -> u64 {
    counts.get(member as usize).copied().unwrap_or(0)
}

/// The part of any buffer or block that a chunk covers.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: u64,
    width: u64,
}

impl Window {
    fn new(chunk: u32, width: u64) -> Window {
        Window { start: u64::from(chunk).saturating_mul(width), width }
    }

    /// What it covers of a block of `len`; nothing, if the block ends before.
    fn of(self, len: u64) -> Span {
        let start = self.start.min(len);
        Span { offset: start, len: self.width.min(len - start) }
    }
}

/// The part of each of several concatenated blocks that a chunk covers.
#[derive(Clone, Debug)]
struct Blocks {
    /// Start of each block, and the end of the last.
    starts: Vec<u64>,
    window: Window,
}

impl Blocks {
    /// One pass over the counts: programs of blocks have an instruction for each anyway.
    fn new(counts: &[u64], window: Window) -> Blocks {
        let mut starts = Vec::with_capacity(counts.len() + 1);
        starts.push(0);
        let mut end = 0;
        for count in counts {
            end += count;
            starts.push(end);
        }
        Blocks { starts, window }
    }

    /// The covered part, from the start of the block.
    fn alone(&self, member: Member) -> Span {
        let index = member as usize;
        self.window.of(self.starts[index + 1] - self.starts[index])
    }

    /// The covered part, from the start of the concatenation.
    fn within(&self, member: Member) -> Span {
        let alone = self.alone(member);
        Span { offset: self.starts[member as usize] + alone.offset, len: alone.len }
    }
}

/// FNV-1a, 64 bits: small, and the same everywhere.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
