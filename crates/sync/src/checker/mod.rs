//! The checker: proves what a set of programs leaves on every member, before anything runs.
//!
//! It runs the whole set once, on expressions instead of numbers, and shows that
//!
//! - every send meets exactly one receive, from the right member and of the same length, and every
//!   receive is met;
//! - every member's output is written once, everywhere, with what is expected there: for a
//!   reduction every contribution exactly once, and an average divided exactly once by their
//!   number; for an averaging strategy a fair (doubly stochastic) mixing, which is returned; for the
//!   others the right piece of the right member;
//! - the same contributions are added in the same order on all members, so that replicas stay equal
//!   bit by bit;
//! - registers and outputs are read only where they were written before in the same lane;
//! - in place, no input is read when its output may have been written: later in the same lane, or
//!   at any time in another lane (a send from the input that is still on its way when its own lane
//!   writes the output is the engine's care).
//!
//! **Why one execution speaks for all.** A lane is sequential and deterministic. It waits only for
//! messages, each receive for one message that is named in advance, and sends never wait. Lanes
//! share no memory but the output, where a lane reads only what it wrote itself and (checked here)
//! no two lanes write the same range. So a set of programs is a Kahn network: its lanes are
//! continuous functions of their input streams, and every fair order of execution ends with the
//! same messages and the same memory (Kahn, 1974). If the execution tried here ends, none can be
//! stuck; if this one is stuck, all are.
//!
//! Elements are never looked at one by one: memory is a list of intervals that hold the same
//! expression, so that the cost depends on the number of instructions and not on the size of the
//! tensor. It knows nothing of strategies.

mod content;
mod execution;
mod expectation;
mod expression;
mod mixing;
mod violation;

pub use execution::Delivery;
pub use expectation::{Expectation, Share, Wanted, What};
pub use mixing::{Matrix, contraction};
pub use violation::{At, Violation};

use crate::program::{Member, Program, Span};
use execution::{Chunk, Outcome, execute};
use expression::ExprId;
use rustc_hash::FxHashMap;

/// What was proven, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Proof {
    /// Time to the last message, where every message takes one unit and nothing else takes any.
    pub rounds: u32,
    /// Instructions that do something, on all members.
    pub instructions: u64,
    /// Messages, of all members.
    pub messages: u64,
    /// Elements sent, by all members.
    pub elements: u64,
    /// Messages that the busiest member sends.
    pub busiest_messages: u64,
    /// Elements that the busiest member sends.
    pub busiest_elements: u64,
    /// For averaging strategies: how members' values are mixed, by ranges of input elements. Empty
    /// for others.
    pub mixing: Vec<(Span, Matrix)>,
}

/// Check one chunk: one program per member.
pub fn check(programs: &[Box<dyn Program>], expect: &Expectation) -> Result<Proof, Violation> {
    check_parts(&[programs], expect)
}

/// Check all chunks of a tensor together: for each chunk, one program per member. They run side by
/// side, as lanes do.
pub fn check_chunks(
    chunks: &[Vec<Box<dyn Program>>],
    expect: &Expectation,
) -> Result<Proof, Violation> {
    let chunks: Vec<Chunk<'_>> = chunks.iter().map(Vec::as_slice).collect();
    check_parts(&chunks, expect)
}

/// All messages of a chunk, in order of arrival, without asking what it is for.
pub fn trace(programs: &[Box<dyn Program>]) -> Result<Vec<Delivery>, Violation> {
    let mut deliveries = execute(&[programs], None)?.deliveries;
    deliveries.sort_by_key(|delivery| (delivery.arrives, delivery.send.member, delivery.send.lane));
    Ok(deliveries)
}

fn check_parts(chunks: &[Chunk<'_>], expect: &Expectation) -> Result<Proof, Violation> {
    let outcome = execute(chunks, Some(expect))?;
    if expect.in_place {
        check_races(&outcome)?;
    }
    let held = check_outputs(&outcome, expect)?;
    let mixing = check_elements(&outcome, held)?;
    let busiest = |each: fn(&(u64, u64)) -> u64| outcome.sent.iter().map(each).max().unwrap_or(0);
    Ok(Proof {
        rounds: outcome.rounds,
        instructions: outcome.instructions,
        messages: outcome.sent.iter().map(|(messages, _)| messages).sum(),
        elements: outcome.sent.iter().map(|(_, elements)| elements).sum(),
        busiest_messages: busiest(|(messages, _)| *messages),
        busiest_elements: busiest(|(_, elements)| *elements),
        mixing,
    })
}

/// In place, a read of the input must come before the write of the same output, in the same lane.
fn check_races(outcome: &Outcome) -> Result<(), Violation> {
    for (output, reads) in outcome.outputs.iter().zip(&outcome.reads) {
        for (span, read) in reads {
            for (start, written) in output.overlapping(*span) {
                let write = written.by;
                let same_lane = (read.chunk, read.lane) == (write.chunk, write.lane);
                // One instruction may read and write the same element, but not a shifted one.
                let shifted = written.from != span.offset;
                let ordered = read.pc < write.pc || (read.pc == write.pc && !shifted);
                if !(same_lane && ordered) {
                    let element = start.max(span.offset);
                    return Err(Violation::Race { read: *read, write, element });
                }
            }
        }
    }
    Ok(())
}

/// A range of input elements whose combination a member holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    member: Member,
    elements: Span,
    expr: ExprId,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Total,
    Mixture,
}

/// Every wanted range is there and holds what it should. Returns the combinations.
fn check_outputs(outcome: &Outcome, expect: &Expectation) -> Result<Vec<Held>, Violation> {
    let mut held = Vec::new();
    let all = &outcome.expressions;
    for (member, share) in expect.shares.iter().enumerate() {
        let (member, output) = (member as Member, &outcome.outputs[member]);
        for Wanted { span, what } in &share.output {
            let mut next = span.offset;
            for (start, written) in output.overlapping(*span) {
                let element = start.max(next);
                if element > next {
                    break;
                }
                let end = (start + written.piece.len).min(span.end());
                let value = written.piece.value;
                let elements = Span { offset: value.start + (next - start), len: end - next };
                let (from, kind) = match *what {
                    What::Total { from } => (from, Some(Kind::Total)),
                    What::Mixture { from } => (from, Some(Kind::Mixture)),
                    What::Copy { from, .. } => (from, None),
                };
                let wanted_from = from + (next - span.offset);
                let copied = match *what {
                    What::Copy { of, .. } => {
                        value.expr == expression::Expressions::contribution(of)
                    }
                    _ => true,
                };
                let undivided = kind.is_some() || value.divisor == 1;
                if elements.offset != wanted_from || !copied || !undivided {
                    let found = format!(
                        "element {} of {} divided by {}",
                        elements.offset,
                        all.show(value.expr),
                        value.divisor
                    );
                    let expected = match *what {
                        What::Copy { of, .. } => format!("element {wanted_from} of {of}"),
                        _ => format!("element {wanted_from} of all"),
                    };
                    return Err(Violation::WrongContent { member, element, found, expected });
                }
                if let Some(kind) = kind {
                    let missing = all.missing(value.expr, expect.contributors);
                    if let Some(contributor) = missing.filter(|_| kind == Kind::Total) {
                        return Err(Violation::Missing { member, contributor, element });
                    }
                    let (divisor, contributions) = (value.divisor, all.count(value.expr));
                    if divisor != contributions {
                        return Err(Violation::WrongDivisor {
                            member,
                            element,
                            divisor,
                            contributions,
                        });
                    }
                    held.push(Held { member, elements, expr: value.expr, kind });
                }
                next = end;
            }
            if next < span.end() {
                return Err(Violation::Unwritten { member, element: next });
            }
        }
    }
    Ok(held)
}

/// For each element: equal contributions are added in equal order, and mixings are fair. Returns
/// the mixings.
fn check_elements(outcome: &Outcome, held: Vec<Held>) -> Result<Vec<(Span, Matrix)>, Violation> {
    let mut borders: Vec<u64> =
        held.iter().flat_map(|held| [held.elements.offset, held.elements.end()]).collect();
    borders.sort_unstable();
    borders.dedup();
    // For each interval between borders: who holds which sum.
    let mut holders: Vec<Vec<(Member, ExprId, Kind)>> = vec![Vec::new(); borders.len()];
    for Held { member, elements, expr, kind } in held {
        let first = borders.partition_point(|border| *border < elements.offset);
        let last = borders.partition_point(|border| *border < elements.end());
        for interval in &mut holders[first..last] {
            interval.push((member, expr, kind));
        }
    }
    let mut mixing: Vec<(Span, Matrix)> = Vec::new();
    for (border, interval) in borders.windows(2).zip(&holders) {
        let elements = Span { offset: border[0], len: border[1] - border[0] };
        check_order(outcome, elements.offset, interval)?;
        if !interval.iter().any(|(_, _, kind)| *kind == Kind::Mixture) {
            continue;
        }
        let matrix = check_fair(outcome, elements.offset, interval)?;
        match mixing.last_mut() {
            Some((span, same)) if span.end() == elements.offset && *same == matrix => {
                span.len += elements.len;
            }
            _ => mixing.push((elements, matrix)),
        }
    }
    Ok(mixing)
}

fn check_order(
    outcome: &Outcome,
    element: u64,
    holders: &[(Member, ExprId, Kind)],
) -> Result<(), Violation> {
    let all = &outcome.expressions;
    let mut seen: FxHashMap<&[u64], (Member, ExprId)> = FxHashMap::default();
    for (member, expr, _) in holders {
        let (other, theirs) = *seen.entry(all.contributors(*expr)).or_insert((*member, *expr));
        if theirs != *expr {
            return Err(Violation::Order {
                member: *member,
                other,
                element,
                ours: all.show(*expr),
                theirs: all.show(theirs),
            });
        }
    }
    Ok(())
}

fn check_fair(
    outcome: &Outcome,
    element: u64,
    holders: &[(Member, ExprId, Kind)],
) -> Result<Matrix, Violation> {
    let all = &outcome.expressions;
    let members = outcome.outputs.len() as u32;
    let mut matrix = Matrix::zero(members);
    for (to, expr, _) in holders {
        for from in (0..members).filter(|from| all.contributes(*expr, *from)) {
            // The divisor equals the number of contributions: rows add up to one.
            matrix.set(*to, from, 1.0 / f64::from(all.count(*expr)));
        }
    }
    for contributor in 0..members {
        let weight = matrix.influence(contributor);
        if (weight - 1.0).abs() > 1e-9 {
            return Err(Violation::Unfair { contributor, element, weight });
        }
    }
    Ok(matrix)
}
