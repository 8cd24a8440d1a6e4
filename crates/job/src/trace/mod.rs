//! What happened in a job: spans of time on the lanes of each worker, as they were recorded.
//!
//! Every importer fills this model and every reader uses it. What a file looks like is known to the importers only; what
//! follows from a trace (clocks, dependencies, predictions) is not known here.

mod assemble;
mod chakra;
pub mod chrome;
mod duplicates;
mod execution;
mod horovod;
mod items;
mod kineto;
mod matching;
mod problems;
mod read;
pub mod recorded;
mod table;
mod words;

pub use matching::{Matched, match_collectives};
pub use read::TraceError;
pub(crate) use words::SEND_RECEIVE;

use crate::{Dtype, Link, Rank, View};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, sync::Arc};

/// Nanoseconds on one worker's own clock. The clocks of two hosts may differ by any amount.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Stamp(pub i64);

impl Stamp {
    /// So many nanoseconds later.
    pub const fn after(self, nanoseconds: u64) -> Stamp {
        Stamp(self.0.saturating_add_unsigned(nanoseconds))
    }

    /// Nanoseconds since `earlier`; none if that is later.
    pub fn since(self, earlier: Stamp) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

/// A recorded run, or the part of it that could be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In the order of their ranks, each rank once. Ranks may be missing.
    pub workers: Vec<WorkerTrace>,
    /// What could not be read, and what was left out or mended.
    pub problems: Vec<Problem>,
}

impl Trace {
    /// How many workers the job had: as many as its files say, and at least all up to the last that was seen.
    pub fn world(&self) -> usize {
        let said = self.workers.iter().filter_map(|worker| worker.world).max().unwrap_or(0);
        let seen = self.workers.iter().map(|worker| worker.rank.0.saturating_add(1)).max();
        said.max(seen.unwrap_or(0)) as usize
    }

    /// How many of them are not in it.
    pub fn missing(&self) -> usize {
        // Each rank is there once, and is below the number of all.
        self.world().saturating_sub(self.workers.len())
    }

    /// How many steps were marked by any worker; a trace without steps counts as one.
    pub fn marked_steps(&self) -> usize {
        let steps = self.workers.iter().flat_map(|worker| &worker.steps);
        steps.map(|step| step.number).collect::<BTreeSet<_>>().len().max(1)
    }

    /// How many steps lack something of a worker, or may; a trace without steps counts as one.
    pub fn lossy_steps(&self) -> usize {
        let mut numbers = BTreeSet::new();
        for worker in &self.workers {
            let lossy = worker.steps.iter().filter(|step| worker.lost.concerns(step));
            numbers.extend(lossy.map(|step| step.number));
            if worker.steps.is_empty() && worker.lost != Lost::default() {
                numbers.insert(0);
            }
        }
        numbers.len()
    }
}

/// Something about a trace that its reader should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The file, or the worker.
    pub place: String,
    /// What was found and what was done about it, as a sentence without its full stop.
    pub text: String,
    /// How many times.
    pub times: u64,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)?;
        if self.times > 1 { write!(f, " ({} times)", self.times) } else { Ok(()) }
    }
}

/// What one worker recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerTrace {
    /// Whose trace this is.
    pub rank: Rank,
    /// Workers with the same host share memory and, as a rule, a clock. Never empty: importers make up a name for each
    /// worker whose file has none.
    pub host: String,
    /// Workers with the same name here share a clock wherever they are: one that does not tick, of a prediction. See
    /// [`WorkerTrace::clock`].
    pub common_clock: Option<String>,
    /// How many workers took part, where the file says so.
    pub world: Option<u32>,
    /// The view in force at the end, in traces of ours.
    pub view: Option<View>,
    /// What memory carries between workers of a host, in predictions that were written as traces: they were made with that.
    pub memory: Option<Link>,
    /// The layers of the model in the order of the forward pass, in traces of ours and in tables of layers.
    pub layers: Vec<Layer>,
    /// Whether an optimizer of ours lets updates cross the step; then a layer's forward pass waits for its own tensors
    /// only. Otherwise a step ends when all of its tensors are there.
    pub crosses_step: bool,
    /// Threads, streams and whatever else does one thing after another.
    pub lanes: Vec<Lane>,
    /// By begin; of two that begin together, the longer first.
    pub spans: Vec<Span>,
    /// Steps that were recorded from begin to end.
    pub steps: Vec<Step>,
    /// What is known to be missing.
    pub lost: Lost,
    /// Whether workers take part in its operations that are not in it, although nothing else shows it: in predictions that were made
    /// of such a trace.
    pub partial: bool,
    /// Whether only lengths were recorded, and when things began follows from them and from what waits for what: then nobody
    /// measured a step.
    pub laid_out: bool,
}

/// What a file does not have although it happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The file was cut off, or parts of it cannot be read, or were dropped: nobody knows when they happened.
    pub of_file: bool,
    /// When something happened of which a part is missing: a launch without what it launched, an event without its length.
    pub at: Vec<Stamp>,
}

impl Lost {
    /// Whether anything of a step is missing, or may be.
    pub fn concerns(&self, step: &Step) -> bool {
        self.of_file || self.at.iter().any(|at| (step.begin..step.end).contains(at))
    }
}

impl WorkerTrace {
    /// Which clock it has: its host's, unless it shares another.
    pub fn clock(&self) -> &str {
        self.common_clock.as_deref().unwrap_or(&self.host)
    }

    /// Whether it says how long anything took. Traces of operators alone do not; layers and steps have times, if only none.
    pub fn has_times(&self) -> bool {
        let marked = !self.layers.is_empty() || !self.steps.is_empty();
        marked || self.spans.is_empty() || self.spans.iter().any(|span| span.length > 0)
    }
}

/// A layer of a model: a module that has parameters of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// As the program names it.
    pub name: Arc<str>,
    /// Parameters that its forward pass uses first, in the order of the program.
    pub tensors: Vec<Tensor>,
    /// What its forward pass keeps for its backward pass.
    #[serde(default)]
    pub activation_bytes: u64,
}

/// A parameter, as its gradient is synchronised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// As operations name it.
    pub name: Arc<str>,
    /// Number of elements.
    pub elements: u64,
    /// Of each element.
    pub dtype: Dtype,
}

impl Tensor {
    /// Length of the gradient.
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.size() as u64
    }
}

/// Something that does one thing after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// For people.
    pub name: String,
    /// What it is.
    pub kind: LaneKind,
}

/// What does one thing after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneKind {
    /// A thread of the host. Its spans nest.
    Thread,
    /// A stream of a device.
    Stream,
    /// What is on its way between workers: spans overlap.
    Network,
}

/// A lane of a worker, by its place in [`WorkerTrace::lanes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaneId(pub u32);

/// A span of a worker, by its place in [`WorkerTrace::spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpanId(pub u32);

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// For people.
    pub name: Arc<str>,
    /// Where.
    pub lane: LaneId,
    /// When.
    pub begin: Stamp,
    /// Nanoseconds.
    pub length: u64,
    /// What it was.
    pub kind: Kind,
    /// Spans of the same worker that had to be over, or for what a device does to be launched, before this began; apart
    /// from what came before it on its lane. A launch causes what lists it here.
    pub after: Vec<SpanId>,
}

impl Span {
    /// When it was over.
    pub fn end(&self) -> Stamp {
        self.begin.after(self.length)
    }
}

/// What a span was.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Something was computed or copied.
    Work(Phase),
    /// The host told a device, or a thread of Gloo, to do what lists this span in its `after`.
    Launch,
    /// The host stood still until what is in `after` was over; if that is empty, nobody knows for what.
    Wait,
    /// The host handed an operation over, inside what else it did.
    Post,
    /// An operation of several workers: from when this worker took part to when it was over here.
    Collective(Box<Collective>),
    /// A message of such an operation.
    Message(Box<Message>),
    /// It encloses others and has no work of its own: a module, an annotation.
    Scope,
}

/// The part of a step that work belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From inputs to the loss.
    Forward,
    /// From the loss to gradients.
    Backward,
    /// From gradients to parameters.
    Update,
    /// Anything else: loading data, logging, what nobody named.
    #[default]
    Other,
}

/// An operation of several workers. On all of them the same `group`, `sequence` and `name` mean the same operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The word of a [`CollectiveKind`](crate::CollectiveKind): `all_reduce`, `broadcast`, ….
    pub operation: Arc<str>,
    /// Who takes part, by the name that the program gave to the group.
    pub group: Arc<str>,
    /// Ranks that take part; all if empty.
    pub members: Vec<Rank>,
    /// Counts the operations of a group, where the file says so; otherwise they are matched in order.
    pub sequence: Option<u64>,
    /// The tensor, where it has a name of its own.
    pub tensor: Option<Arc<str>>,
    /// What this worker contributes.
    pub bytes: u64,
    /// Of each element, where it is known.
    pub dtype: Option<Dtype>,
    /// Smaller goes first.
    pub priority: i64,
}

/// A message: the same `tensor`, `use_number`, `chunk` and `part` on both ends mean the same message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Whether this worker sent it or received it.
    pub direction: Direction,
    /// The worker at the other end.
    pub peer: Rank,
    /// What it is a part of.
    pub tensor: Arc<str>,
    /// How many times the tensor's name was used before.
    pub use_number: u64,
    /// Which chunk of the tensor.
    pub chunk: u32,
    /// Which message of the chunk between these two.
    pub part: u32,
    /// Payload.
    pub bytes: u64,
}

/// Which end of a message a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From being handed to the transport to being delivered to it.
    Sent,
    /// From its first byte, as far as that is known, to its last.
    Received,
}

/// A training step, from begin to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Counted by the program.
    pub number: u64,
    /// When it began.
    pub begin: Stamp,
    /// When the next one could begin.
    pub end: Stamp,
}
