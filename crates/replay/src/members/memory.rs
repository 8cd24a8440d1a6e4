//! One worker's memory in runs of membership: tensors of the caller, copies that are kept of results, scratch, and which
//! of it an engine's operation works on. It does what it is told, and notes what nobody may tell it.

use super::ledger::contributors;
use paceline_job::{Dtype, ReduceOp};
use paceline_sync::{
    event::{BufId, Loc, OpId, Placement, Recipe},
    recovery::{Source, Ticket},
};
use std::collections::BTreeMap;

/// Bytes of an element of callers' tensors.
const WORD: usize = 8;

/// What a caller's memory holds when it is not the runtime's: nobody may build on it.
const GARBAGE: u8 = 0xee;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(super) struct Memory {
    tensors: BTreeMap<Ticket, Tensor>,
    retained: BTreeMap<Ticket, Vec<u8>>,
    places: BTreeMap<OpId, Place>,
    scratch: BTreeMap<BufId, Vec<u8>>,
    pub(super) violations: Vec<String>,
    /// The most bytes of results that were kept at once.
    pub(super) most_retained: usize,
}

#[derive(Debug)]
struct Tensor {
    bytes: Vec<u8>,
    written: Vec<bool>,
}

#[derive(Debug)]
enum Place {
    Named(Source),
    Exchange { input: Vec<u8>, output: Vec<u8> },
}

impl Memory {
    /// The caller lends a tensor.
    pub(super) fn lend(&mut self, ticket: Ticket, values: &[i64]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let written = vec![false; bytes.len()];
        self.tensors.insert(ticket, Tensor { bytes, written });
    }

    /// The caller has it back; from now on it holds anything.
    pub(super) fn give_back(&mut self, ticket: Ticket) -> Vec<i64> {
        let tensor = self.tensors.remove(&ticket).expect("lent before");
        let (words, _) = tensor.bytes.as_chunks::<WORD>();
        words.iter().map(|word| i64::from_le_bytes(*word)).collect()
    }

    pub(super) fn retain(&mut self, ticket: Ticket) {
        self.retained.insert(ticket, self.tensors[&ticket].bytes.clone());
        let bytes = self.retained.values().map(Vec::len).sum();
        self.most_retained = self.most_retained.max(bytes);
    }

    pub(super) fn release(&mut self, ticket: Ticket) {
        self.retained.remove(&ticket);
    }

    pub(super) fn enter(&mut self, op: OpId, source: Source) {
        self.places.insert(op, Place::Named(source));
    }

    pub(super) fn enter_exchange(&mut self, op: OpId, input: Vec<u8>, output_bytes: usize) {
        self.places.insert(op, Place::Exchange { input, output: vec![GARBAGE; output_bytes] });
    }

    /// An engine's operation is over; what an exchange brought.
    pub(super) fn leave(&mut self, op: OpId) -> Option<Vec<u8>> {
        match self.places.remove(&op) {
            Some(Place::Exchange { output, .. }) => Some(output),
            _ => None,
        }
    }

    /// The engine is gone, and all it named.
    pub(super) fn forget_engine(&mut self) {
        self.places.clear();
        self.scratch.clear();
    }

    pub(super) fn free(&mut self, buf: BufId) {
        self.scratch.remove(&buf);
    }

    pub(super) fn read(&mut self, loc: Loc, bytes: usize) -> Vec<u8> {
        let (whole, at): (&[u8], u64) = match loc {
            Loc::Buf(buf, at) => match self.scratch.get(&buf) {
                Some(scratch) => (scratch, at),
                None => {
                    return self.violation(format!("scratch {buf:?} is read and holds nothing"));
                }
            },
            Loc::Own(op, at) | Loc::Out(op, at) => match &self.places[&op] {
                Place::Exchange { input, output } => match loc {
                    Loc::Own(..) => (input, at),
                    _ => (output, at),
                },
                Place::Named(Source::Retained(ticket, offset)) => {
                    (&self.retained[ticket], at + offset * WORD as u64)
                }
                Place::Named(Source::Caller(ticket, offset) | Source::Output(ticket, offset)) => {
                    (&self.tensors[ticket].bytes, at + offset * WORD as u64)
                }
            },
        };
        match whole.get(at as usize..at as usize + bytes) {
            Some(read) => read.to_vec(),
            None => self.violation(format!("{loc:?} is read beyond its end")),
        }
    }

    pub(super) fn write(&mut self, loc: Loc, value: &[u8]) {
        match loc {
            Loc::Own(..) => drop(self.violation(format!("{loc:?} is written"))),
            Loc::Buf(buf, at) => {
                let end = at as usize + value.len();
                let scratch = self.scratch.entry(buf).or_default();
                scratch.resize(scratch.len().max(end), GARBAGE);
                scratch[at as usize..end].copy_from_slice(value);
            }
            Loc::Out(op, at) => match self.places.get_mut(&op) {
                Some(Place::Exchange { output, .. }) => {
                    output[at as usize..at as usize + value.len()].copy_from_slice(value);
                }
                Some(Place::Named(
                    Source::Caller(ticket, offset) | Source::Output(ticket, offset),
                )) => {
                    let start = at as usize + *offset as usize * WORD;
                    let range = start..start + value.len();
                    let Some(tensor) = self.tensors.get_mut(ticket) else {
                        return drop(self.violation(format!("{loc:?} is the caller's again")));
                    };
                    let again = tensor.written[range.clone()].iter().any(|written| *written);
                    tensor.written[range.clone()].fill(true);
                    tensor.bytes[range].copy_from_slice(value);
                    if again {
                        self.violations.push(format!("{loc:?} is written a second time"));
                    }
                }
                _ => drop(self.violation(format!("{loc:?} is written and is a result"))),
            },
        }
    }

    /// Put what arrived where it belongs.
    pub(super) fn place(&mut self, placement: Placement, payload: &[u8]) {
        match placement {
            Placement::Discard => {}
            Placement::Straight(into) => self.write(into, payload),
            Placement::Hold(buf) | Placement::Stow(buf) => self.write(Loc::Buf(buf, 0), payload),
            Placement::Combine { with, into, recipe, .. } => {
                let with = self.read(with, payload.len());
                self.write(into, &combine(recipe, payload, &with));
            }
        }
    }

    pub(super) fn work(
        &mut self,
        source: Loc,
        with: Option<Loc>,
        into: Loc,
        elements: u64,
        recipe: Recipe,
    ) {
        // In place, what is only copied is there already.
        if let (Loc::Own(op, from), None, Loc::Out(_, to)) = (source, with, into)
            && from == to
            && matches!(self.places.get(&op), Some(Place::Named(_)))
        {
            return;
        }
        let bytes = elements as usize * recipe.dtype.size();
        let source = self.read(source, bytes);
        let result = match with {
            Some(with) => combine(recipe, &source, &self.read(with, bytes)),
            None => source,
        };
        if recipe.divisor > 1 && !divides_by_contributors(recipe, &result) {
            self.violation(format!("{:?} is divided by {}", result, recipe.divisor));
        }
        self.write(into, &result);
    }

    fn violation(&mut self, what: String) -> Vec<u8> {
        self.violations.push(what);
        Vec::new()
    }
}

/// Averages are left undivided here, so that they show who is in them: as many as they would be divided by.
fn divides_by_contributors(recipe: Recipe, sums: &[u8]) -> bool {
    let (words, _) = sums.as_chunks::<WORD>();
    let right = |word: &[u8; WORD]| contributors(i64::from_le_bytes(*word)) == recipe.divisor;
    recipe.reduce.divides() && words.iter().all(right)
}

fn combine(recipe: Recipe, left: &[u8], right: &[u8]) -> Vec<u8> {
    assert!(recipe.dtype == Dtype::I64, "the only one here");
    assert!(recipe.reduce == ReduceOp::Sum || recipe.reduce.divides(), "the only ones here");
    let (left, _) = left.as_chunks::<WORD>();
    let (right, _) = right.as_chunks::<WORD>();
    let sums = left.iter().zip(right).map(|(left, right)| {
        i64::from_le_bytes(*left).wrapping_add(i64::from_le_bytes(*right)).to_le_bytes()
    });
    sums.flatten().collect()
}
