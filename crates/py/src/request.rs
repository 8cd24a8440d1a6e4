//! What Python asks for, read and checked: a collective, its element type and its memory. The addresses are
//! Python's promise. Nothing is posted here.

use crate::notice::Needed;
use paceline_job::{CollectiveKind, Dtype, Rank};
use paceline_net::Operation;
use paceline_sync::{collective::Collective, event::Holds};
use pyo3::FromPyObject;
use std::sync::Arc;

/// A piece of memory as Python describes it: address and number of elements.
pub(crate) type Region = (usize, u64);

/// Bytes of a piece of what passes between devices. The same on all ranks: each piece is an operation of
/// its own.
const PIECE: u64 = 4 << 20;

/// The part of a request that is Python's keywords.
pub(crate) struct Choices<'a> {
    pub(crate) receives: Option<Vec<u64>>,
    pub(crate) root: u32,
    pub(crate) reduce: &'a str,
    pub(crate) priority: i64,
    pub(crate) ranks: Option<Vec<u32>>,
    pub(crate) holds: Option<Held>,
}

/// What an operation holds of samples, in Python's words: `"step"`, or the number of the step below which it is of all.
#[derive(FromPyObject)]
pub(crate) enum Held {
    #[pyo3(annotation = "int")]
    Below(u64),
    #[pyo3(annotation = "str")]
    Word(String),
}

impl Held {
    fn read(self) -> Result<Holds, String> {
        match self {
            Held::Below(step) => Ok(Holds::Below(step)),
            Held::Word(word) if word == "step" => Ok(Holds::Step),
            Held::Word(word) => {
                Err(format!("it holds samples of a \"step\" or below one, not `{word}`"))
            }
        }
    }
}

/// A collective that this worker can take part in with the memory it has for it.
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) dtype: Dtype,
    pub(crate) input: Region,
    pub(crate) output: Region,
    /// This worker's place in the operation's group.
    me: u32,
}

/// A part of a request that can be done by itself.
pub(crate) struct Piece {
    pub(crate) operation: Operation,
    /// Where it begins in the request's memory.
    pub(crate) begin: u64,
    /// How much it reads and writes.
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

impl Request {
    /// Of worker `rank` among `size`.
    #[expect(clippy::too_many_arguments, reason = "they are those of Python's call")]
    pub(crate) fn read(
        (rank, size): (Rank, usize),
        kind: &str,
        name: &str,
        dtype: &str,
        counts: Vec<u64>,
        input: Region,
        output: Region,
        choices: Choices<'_>,
    ) -> Result<Request, String> {
        let dtype: Dtype = dtype.parse()?;
        let collective = collective(kind, counts, choices.receives, choices.root)?;
        let group: Option<Arc<[Rank]>> =
            choices.ranks.map(|ranks| ranks.into_iter().map(Rank).collect());
        let wrong = |problem: String| format!("`{name}`: {problem}");
        let me = match &group {
            None => Some(rank.0),
            Some(ranks) => ranks.iter().position(|member| *member == rank).map(|at| at as u32),
        };
        let me = me.ok_or_else(|| wrong("this worker is not in the operation's group".into()))?;
        let members = group.as_ref().map_or(size, |ranks| ranks.len()) as u32;
        collective.validate_for(me, members).map_err(wrong)?;
        let reduce = choices.reduce.parse()?;
        let mut operation =
            Operation::new(name, collective).reduce(reduce).priority(choices.priority);
        operation.group = group;
        operation.holds = choices.holds.map_or(Ok(Holds::Nothing), Held::read)?;
        let request = Request { operation, dtype, input, output, me };
        request.check_memory().map_err(wrong)?;
        Ok(request)
    }

    /// Whether others may need it.
    pub(crate) fn needed(&self) -> Needed {
        match self.operation.collective {
            Collective::Recv { .. } => Needed::ByNobodyElse,
            _ => Needed::ByOthers,
        }
    }

    /// It done piece by piece, where element i of the result depends on elements i only. All pieces have one
    /// name: they are successive uses of it.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let most = (PIECE / self.dtype.size() as u64).max(1);
        let part = |len: u64| match self.operation.collective {
            Collective::AllReduce { .. } => Some(Collective::AllReduce { len }),
            Collective::Broadcast { root, .. } => Some(Collective::Broadcast { root, len }),
            Collective::Reduce { root, .. } => Some(Collective::Reduce { root, len }),
            _ => None,
        };
        let elements = self.operation.collective.elements();
        if elements <= most || part(most).is_none() {
            return vec![self.piece(0, self.operation.collective.clone())];
        }
        (0..elements)
            .step_by(most as usize)
            .filter_map(|begin| Some(self.piece(begin, part(most.min(elements - begin))?)))
            .collect()
    }

    fn piece(&self, begin: u64, collective: Collective) -> Piece {
        let (reads, writes) = (collective.input_len(self.me), collective.output_len(self.me));
        let operation = Operation { collective, ..self.operation.clone() };
        Piece { operation, begin, reads, writes }
    }

    /// Memory of another device must be as long as what takes its place here.
    pub(crate) fn check_device(&self, input: Region, output: Region) -> Result<(), String> {
        self.check_lengths(input, output)
            .map_err(|problem| format!("`{}`: on its device, {problem}", self.operation.name))
    }

    /// The lengths must fit what the collective reads and writes, or the engine would leave them.
    fn check_memory(&self) -> Result<(), String> {
        let (input, output, dtype) = (self.input, self.output, self.dtype);
        self.check_lengths(input, output)?;
        for (what, (address, elements)) in [("input", input), ("output", output)] {
            if elements > 0 && (address == 0 || !address.is_multiple_of(dtype.size())) {
                return Err(format!("the {what} is not aligned memory of {dtype}"));
            }
        }
        let (first, second) = (bytes_of(input, dtype), bytes_of(output, dtype));
        let same = input.0 == output.0 && self.operation.collective.in_place_allowed();
        if !same && first.start < second.end && second.start < first.end {
            return Err("input and output overlap; give one of them its own memory".into());
        }
        Ok(())
    }

    fn check_lengths(&self, input: Region, output: Region) -> Result<(), String> {
        let collective = &self.operation.collective;
        let (wanted_in, wanted_out) =
            (collective.input_len(self.me), collective.output_len(self.me));
        if input.1 < wanted_in || output.1 < wanted_out {
            return Err(format!(
                "the {collective} reads {wanted_in} and writes {wanted_out} elements; it was given \
                 {} and {}",
                input.1, output.1
            ));
        }
        Ok(())
    }
}

fn bytes_of((address, elements): Region, dtype: Dtype) -> std::ops::Range<u128> {
    let start = address as u128;
    start..start + u128::from(elements) * dtype.size() as u128
}

fn collective(
    kind: &str,
    counts: Vec<u64>,
    receives: Option<Vec<u64>>,
    root: u32,
) -> Result<Collective, String> {
    let one = || match counts.as_slice() {
        [len] => Ok(*len),
        other => Err(format!("{kind} takes one count, not {}", other.len())),
    };
    Ok(match kind.parse()? {
        CollectiveKind::AllReduce => Collective::AllReduce { len: one()? },
        CollectiveKind::Broadcast => Collective::Broadcast { root, len: one()? },
        CollectiveKind::Reduce => Collective::Reduce { root, len: one()? },
        CollectiveKind::Send => Collective::Send { to: root, len: one()? },
        CollectiveKind::Recv => Collective::Recv { from: root, len: one()? },
        CollectiveKind::ReduceScatter => Collective::ReduceScatter { counts: counts.into() },
        CollectiveKind::AllGather => Collective::AllGather { counts: counts.into() },
        CollectiveKind::Gather => Collective::Gather { root, counts: counts.into() },
        CollectiveKind::Scatter => Collective::Scatter { root, counts: counts.into() },
        CollectiveKind::AllToAll => {
            let receives = receives.ok_or("all_to_all needs `receives`")?;
            Collective::AllToAll { sends: counts.into(), receives: receives.into() }
        }
        CollectiveKind::Barrier => Collective::Barrier,
    })
}
