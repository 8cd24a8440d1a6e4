//! Memory with bytes in it, for tests: it does what kernels and transports do, slowly and plainly, and
//! writes down every access that an engine must never order. It knows nothing of time or networks.

use crate::memory::{Memory, WorkOrder};
use paceline_job::{Dtype, Rank, ReduceOp};
use paceline_sync::{
    event::{BufId, Loc, OpId, Placement, Recipe},
    frame::{Header, OpKey},
    program::Slot,
    slab::Key,
};
use rustc_hash::FxHashMap;

/// The memory of all workers, and what was done to it that must not be.
#[derive(Debug, Default)]
pub struct Contents {
    ranks: Vec<RankMemory>,
    written_by_neighbours: u64,
    departures: Vec<Departure>,
    violations: Vec<String>,
}

/// A data frame that a worker handed to its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Its sender.
    pub from: Rank,
    /// Its receiver.
    pub to: Rank,
    /// What it said of itself.
    pub header: Header,
}

#[derive(Debug, Default)]
struct RankMemory {
    ops: Vec<Option<Lent>>,
    returned: Vec<Option<Tensor>>,
    /// `None` where scratch holds nothing.
    scratch: Vec<Option<Vec<u8>>>,
    /// What is handed to the transport and must not change.
    departing: FxHashMap<Key, Departing>,
    /// Where frames of neighbours may be written by them.
    expected: FxHashMap<Expected, Loc>,
}

/// Sender, operation, chunk and slot.
type Expected = (Rank, OpKey, u32, Slot);

#[derive(Debug)]
struct Departing {
    to: Rank,
    from: Loc,
    bytes: Vec<u8>,
}

/// An operation's memory while it is the engine's.
#[derive(Debug)]
struct Lent {
    own: Vec<u8>,
    /// `None` if it is the same memory as `own`.
    out: Option<Vec<u8>>,
    written: Vec<bool>,
}

/// An operation's memory when it is the caller's again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The output.
    pub out: Vec<u8>,
    /// For each byte of it, whether it was written.
    pub written: Vec<bool>,
    /// Whether the operation succeeded.
    pub succeeded: bool,
}

/// The payload of a frame.
#[derive(Debug)]
pub struct Parcel(Vec<u8>);

/// Something that is being computed: the result, where it goes, and what must not change meanwhile.
#[derive(Debug)]
pub struct Task {
    into: Loc,
    result: Vec<u8>,
    reads: Vec<(Loc, Vec<u8>)>,
}

impl Contents {
    /// Empty memory for so many workers.
    pub fn new(size: usize) -> Contents {
        Contents {
            ranks: (0..size).map(|_| RankMemory::default()).collect(),
            written_by_neighbours: 0,
            departures: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Give a worker the memory of an operation that it is about to post. In place, the output is
    /// the input's memory.
    pub fn lend(&mut self, rank: Rank, op: OpId, own: Vec<u8>, out_bytes: usize, in_place: bool) {
        let lent = if in_place {
            let mut own = own;
            own.resize(own.len().max(out_bytes), 0);
            Lent { own, out: None, written: vec![false; out_bytes] }
        } else {
            Lent { own, out: Some(vec![0; out_bytes]), written: vec![false; out_bytes] }
        };
        let ops = &mut self.ranks[rank.index()].ops;
        let place = op.0 as usize;
        if ops.len() <= place {
            ops.resize_with(place + 1, || None);
        }
        if ops[place].replace(lent).is_some() {
            self.blame(rank, format!("operation {} was lent twice", op.0));
        }
    }

    /// Take back the memory of an operation that is over.
    pub fn take(&mut self, rank: Rank, op: OpId) -> Option<Tensor> {
        self.ranks[rank.index()].returned.get_mut(op.0 as usize)?.take()
    }

    /// What was done that must not be: memory read or written at the wrong time.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// How many frames their senders wrote straight into place.
    pub fn written_by_neighbours(&self) -> u64 {
        self.written_by_neighbours
    }

    /// All data frames, in the order they departed.
    pub fn departures(&self) -> &[Departure] {
        &self.departures
    }

    /// Pieces of scratch that hold something.
    pub fn scratch_in_use(&self, rank: Rank) -> usize {
        self.ranks[rank.index()].scratch.iter().flatten().count()
    }

    fn blame(&mut self, rank: Rank, what: String) {
        self.violations.push(format!("worker {rank}: {what}"));
    }

    /// The bytes at a place, whether or not they may be read.
    fn bytes_at(&self, rank: Rank, loc: Loc, len: usize) -> Option<&[u8]> {
        let memory = &self.ranks[rank.index()];
        let lent = |op: OpId| memory.ops.get(op.0 as usize)?.as_ref();
        let (whole, at) = match loc {
            Loc::Own(op, at) => (&lent(op)?.own, at),
            Loc::Out(op, at) => {
                let lent = lent(op)?;
                (lent.out.as_ref().unwrap_or(&lent.own), at)
            }
            Loc::Buf(buf, at) => (memory.scratch.get(buf.0 as usize)?.as_ref()?, at),
        };
        whole.get(at as usize..at as usize + len)
    }

    fn read(&mut self, rank: Rank, loc: Loc, len: usize) -> Vec<u8> {
        let range = |at: u64| at as usize..at as usize + len;
        let lent = |op: OpId| self.ranks[rank.index()].ops.get(op.0 as usize)?.as_ref();
        let wrong = match loc {
            Loc::Own(op, at) => lent(op).is_some_and(|lent| {
                let ended = lent.written.get(range(at)).unwrap_or_default();
                lent.out.is_none() && ended.contains(&true)
            }),
            Loc::Out(op, at) => lent(op).is_some_and(|lent| {
                lent.written.get(range(at)).is_none_or(|written| written.contains(&false))
            }),
            Loc::Buf(..) => false,
        };
        if wrong {
            self.blame(rank, format!("{len} bytes of {loc:?} were read at the wrong time"));
        }
        match self.bytes_at(rank, loc, len) {
            Some(bytes) => bytes.to_vec(),
            None => {
                self.blame(rank, format!("{len} bytes of {loc:?} were read and do not exist"));
                vec![0; len]
            }
        }
    }

    fn write(&mut self, rank: Rank, loc: Loc, bytes: Vec<u8>) {
        let memory = &mut self.ranks[rank.index()];
        let fault = match loc {
            Loc::Own(..) => Some("is input and was written"),
            Loc::Buf(buf, at) => {
                let place = buf.0 as usize;
                if memory.scratch.len() <= place {
                    memory.scratch.resize_with(place + 1, || None);
                }
                let twice = memory.scratch[place].replace(bytes).is_some() || at != 0;
                twice.then_some("was written twice")
            }
            Loc::Out(op, at) => match memory.ops.get_mut(op.0 as usize).and_then(Option::as_mut) {
                None => Some("was written after its operation"),
                Some(lent) => lent.write(at as usize, &bytes),
            },
        };
        if let Some(fault) = fault {
            self.blame(rank, format!("{loc:?} {fault}"));
        }
    }

    /// A neighbour that may write in place does so at the first moment it can: whatever the receiver
    /// still does with that memory will then go wrong, and be seen.
    fn write_at_neighbour(&mut self, rank: Rank, to: Rank, header: &Header, bytes: &[u8]) {
        let memory = &mut self.ranks[to.index()];
        let expected = (rank, header.key, header.chunk, header.slot);
        let Some(Loc::Out(op, at)) = memory.expected.remove(&expected) else { return };
        let Some(lent) = memory.ops.get_mut(op.0 as usize).and_then(Option::as_mut) else { return };
        self.written_by_neighbours += 1;
        let out = lent.out.as_mut().unwrap_or(&mut lent.own);
        match out.get_mut(at as usize..at as usize + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.blame(to, "a message is expected beyond the output's end".to_string()),
        }
    }

    fn computed(&mut self, result: Result<Vec<u8>, String>, rank: Rank) -> Vec<u8> {
        result.unwrap_or_else(|reason| {
            self.blame(rank, reason);
            Vec::new()
        })
    }
}

impl Lent {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Option<&'static str> {
        let range = at..at + bytes.len();
        let Some(written) = self.written.get_mut(range.clone()) else {
            return Some("was written beyond its end");
        };
        let twice = written.contains(&true);
        written.fill(true);
        // In place, memory is at least as long as the output.
        self.out.as_mut().unwrap_or(&mut self.own)[range].copy_from_slice(bytes);
        twice.then_some("was written twice")
    }
}

impl Memory for Contents {
    type Parcel = Parcel;
    type Task = Task;

    fn depart(&mut self, rank: Rank, to: Rank, token: Key, header: &Header, from: Loc) -> Parcel {
        self.departures.push(Departure { from: rank, to, header: *header });
        let bytes = self.read(rank, from, header.payload_bytes());
        self.write_at_neighbour(rank, to, header, &bytes);
        let departing = Departing { to, from, bytes: bytes.clone() };
        self.ranks[rank.index()].departing.insert(token, departing);
        Parcel(bytes)
    }

    fn expect(&mut self, rank: Rank, from: Rank, header: &Header, into: Loc) {
        let expected = (from, header.key, header.chunk, header.slot);
        self.ranks[rank.index()].expected.insert(expected, into);
    }

    fn delivered(&mut self, rank: Rank, token: Key) {
        let Some(departing) = self.ranks[rank.index()].departing.remove(&token) else { return };
        let Departing { from, bytes, .. } = departing;
        if self.bytes_at(rank, from, bytes.len()) != Some(&bytes) {
            self.blame(rank, format!("{from:?} changed before it was delivered"));
        }
    }

    fn lost(&mut self, rank: Rank, peer: Rank) {
        self.ranks[rank.index()].departing.retain(|_, departing| departing.to != peer);
    }

    fn begin_place(&mut self, rank: Rank, placement: Placement, Parcel(payload): Parcel) -> Task {
        let (into, result, reads) = match placement {
            Placement::Straight(into) => (into, payload, Vec::new()),
            Placement::Hold(buf) | Placement::Stow(buf) => (Loc::Buf(buf, 0), payload, Vec::new()),
            Placement::Combine { landing, with, into, recipe } => {
                if matches!(into, Loc::Buf(buf, _) if buf != landing) {
                    self.blame(rank, format!("{placement:?} lands elsewhere than in its result"));
                }
                let other = self.read(rank, with, payload.len());
                let result = combine(&payload, Some(&other), recipe);
                (into, self.computed(result, rank), vec![(with, other)])
            }
            Placement::Discard => unreachable!("what is discarded is not placed"),
        };
        Task { into, result, reads }
    }

    fn begin_work(&mut self, rank: Rank, order: WorkOrder) -> Task {
        let len = order.elements as usize * order.recipe.dtype.size();
        let first = self.read(rank, order.source, len);
        let other = order.with.map(|with| (with, self.read(rank, with, len)));
        let result = combine(&first, other.as_ref().map(|(_, bytes)| &bytes[..]), order.recipe);
        let mut reads = vec![(order.source, first)];
        reads.extend(other);
        Task { into: order.into, result: self.computed(result, rank), reads }
    }

    fn end(&mut self, rank: Rank, task: Task) {
        for (loc, bytes) in task.reads {
            if self.bytes_at(rank, loc, bytes.len()) != Some(&bytes) {
                self.blame(rank, format!("{loc:?} changed while it was being read"));
            }
        }
        self.write(rank, task.into, task.result);
    }

    fn free(&mut self, rank: Rank, buf: BufId) {
        if let Some(scratch) = self.ranks[rank.index()].scratch.get_mut(buf.0 as usize) {
            *scratch = None;
        }
    }

    fn finished(&mut self, rank: Rank, op: OpId, succeeded: bool) {
        let memory = &mut self.ranks[rank.index()];
        let place = op.0 as usize;
        let Some(lent) = memory.ops.get_mut(place).and_then(Option::take) else {
            return self.blame(rank, format!("operation {} ended and was not lent", op.0));
        };
        let Lent { mut own, out, written } = lent;
        own.truncate(written.len());
        let tensor = Tensor { out: out.unwrap_or(own), written, succeeded };
        memory.expected.retain(|_, into| !matches!(into, Loc::Out(id, _) if *id == op));
        if memory.returned.len() <= place {
            memory.returned.resize_with(place + 1, || None);
        }
        memory.returned[place] = Some(tensor);
        let in_hand = |loc: &Loc| matches!(loc, Loc::Own(id, _) | Loc::Out(id, _) if *id == op);
        if memory.departing.values().any(|departing| in_hand(&departing.from)) {
            self.blame(rank, format!("operation {} ended while it was being sent", op.0));
        }
    }
}

/// `first ⊕ other`, or `first`, and then the division that ends an average.
fn combine(first: &[u8], other: Option<&[u8]>, recipe: Recipe) -> Result<Vec<u8>, String> {
    macro_rules! with_type {
        ($type:ty, $add:expr, $multiply:expr) => {{
            const SIZE: usize = size_of::<$type>();
            let number = |bytes: &[u8]| {
                let mut word = [0; SIZE];
                word.copy_from_slice(bytes);
                <$type>::from_le_bytes(word)
            };
            let mut result = Vec::with_capacity(first.len());
            for (at, bytes) in first.chunks_exact(SIZE).enumerate() {
                let a = number(bytes);
                let mut value = match other {
                    None => a,
                    Some(other) => {
                        let b = number(&other[at * SIZE..(at + 1) * SIZE]);
                        match recipe.reduce {
                            ReduceOp::Sum | ReduceOp::Average | ReduceOp::Mix => $add(a, b),
                            ReduceOp::Product => $multiply(a, b),
                            ReduceOp::Min => {
                                if b < a {
                                    b
                                } else {
                                    a
                                }
                            }
                            ReduceOp::Max => {
                                if b > a {
                                    b
                                } else {
                                    a
                                }
                            }
                        }
                    }
                };
                if recipe.divisor != 1 {
                    value /= recipe.divisor as $type;
                }
                result.extend_from_slice(&value.to_le_bytes());
            }
            Ok(result)
        }};
    }
    match recipe.dtype {
        Dtype::F64 => with_type!(f64, |a, b| a + b, |a, b| a * b),
        Dtype::F32 => with_type!(f32, |a, b| a + b, |a, b| a * b),
        Dtype::I64 => with_type!(i64, i64::wrapping_add, i64::wrapping_mul),
        Dtype::I32 => with_type!(i32, i32::wrapping_add, i32::wrapping_mul),
        Dtype::U8 => with_type!(u8, u8::wrapping_add, u8::wrapping_mul),
        other => Err(format!("no arithmetic for {other}")),
    }
}
