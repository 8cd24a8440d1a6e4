//! Symbolic execution: run a set of programs on memory that holds expressions instead of numbers.
//!
//! Lanes run in whatever order is convenient; the module above says why one order speaks for all.
//! It knows what each instruction does, and nothing of what the set is for, except which memory it
//! was given.

use super::{
    content::{Content, Discord, Piece, Value},
    expectation::{Expectation, Share},
    expression::Expressions,
    violation::{At, Violation},
};
use crate::program::{Dest, Instr, Member, Program, REGISTERS, Slot, Source, Span};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// One program per member.
pub(super) type Chunk<'a> = &'a [Box<dyn Program>];

/// A message that was sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The send.
    pub send: At,
    /// The receive.
    pub receive: At,
    /// What was sent.
    pub source: Source,
    /// Whether the receiver adds it to something.
    pub combined: bool,
    /// Where the receiver put the result.
    pub into: Dest,
    /// Elements.
    pub len: u64,
    /// The contents, as ranges of input elements: first and one past last.
    pub elements: (u64, u64),
    /// When it arrived, where every message takes one unit of time and nothing else takes any.
    pub arrives: u32,
}

/// What an execution leaves behind.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) expressions: Expressions,
    pub(super) outputs: Vec<Output>,
    /// For each member, every range of its input that was read.
    pub(super) reads: Vec<Vec<(Span, At)>>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) rounds: u32,
    pub(super) instructions: u64,
    /// Messages and elements that each member sent.
    pub(super) sent: Vec<(u64, u64)>,
}

/// A member's output: disjoint ranges by their start.
#[derive(Debug, Default)]
pub(super) struct Output(BTreeMap<u64, Written>);

/// A range of the output, with who wrote it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) piece: Piece,
    pub(super) by: At,
    /// Where that instruction began to write; the range may be a later piece of it.
    pub(super) from: u64,
}

impl Output {
    /// The written ranges that overlap `span`, whole, in order.
    pub(super) fn overlapping(&self, span: Span) -> impl Iterator<Item = (u64, Written)> {
        // Only the last range that starts before the span can reach into it.
        let before = self.0.range(..=span.offset).next_back().map(|(start, _)| *start);
        self.0
            .range(before.unwrap_or(span.offset)..span.end().max(span.offset))
            .map(|(start, written)| (*start, *written))
            .filter(move |(start, written)| start + written.piece.len > span.offset)
    }

    fn write(&mut self, offset: u64, content: &Content, by: At) -> Result<(), Violation> {
        let len = content.len();
        if let Some((start, before)) = self.overlapping(Span { offset, len }).next() {
            return Err(Violation::WrittenTwice {
                at: by,
                before: before.by,
                element: start.max(offset),
            });
        }
        let mut start = offset;
        for piece in &content.0 {
            self.0.insert(start, Written { piece: *piece, by, from: offset });
            start += piece.len;
        }
        Ok(())
    }

    /// What a lane wrote to a range, if it wrote all of it.
    fn read(&self, span: Span, reader: At) -> Option<Content> {
        let mut pieces = Vec::new();
        let mut next = span.offset;
        for (start, Written { piece, by, .. }) in self.overlapping(span) {
            let same_lane = (by.chunk, by.lane) == (reader.chunk, reader.lane);
            if start > next || !same_lane {
                return None;
            }
            let skip = next - start;
            let len = (piece.len - skip).min(span.end() - next);
            let value = Value { start: piece.value.start + skip, ..piece.value };
            pieces.push(Piece { len, value });
            next += len;
        }
        (next == span.end()).then_some(Content(pieces))
    }
}

/// A message on its way.
#[derive(Debug)]
struct Message {
    content: Content,
    send: At,
    source: Source,
    arrives: u32,
}

#[derive(Debug)]
struct Lane {
    /// Its address; `pc` is the next instruction.
    at: At,
    registers: [Option<Content>; REGISTERS],
    clock: u32,
    finished: bool,
}

/// The machine.
struct Machine<'a> {
    chunks: &'a [Chunk<'a>],
    shares: Option<&'a [Share]>,
    members: u32,
    lanes: Vec<Lane>,
    /// Index of the first lane of each chunk's member.
    first_lane: Vec<Vec<usize>>,
    /// By lane index and pc; `None` once taken.
    messages: FxHashMap<(usize, u32), Option<Message>>,
    /// Lanes that may be able to run. A lane is here once at the start and once for each message.
    ready: Vec<usize>,
    outcome: Outcome,
}

/// A lane of the largest sensible group, a ring of a million members, is shorter.
const LONGEST_LANE: u32 = 1 << 23;

/// Run to the end. With an expectation, memory that it does not grant is out of bounds.
pub(super) fn execute(
    chunks: &[Chunk<'_>],
    expect: Option<&Expectation>,
) -> Result<Outcome, Violation> {
    let members = chunks.first().map_or(0, |programs| programs.len());
    let shares = expect.map(|expect| expect.shares.as_slice());
    for programs in chunks {
        let expected = shares.map_or(members, <[Share]>::len);
        if programs.len() != expected {
            return Err(Violation::Incomplete { programs: programs.len(), members: expected });
        }
    }
    let members = shares.map_or(members, <[Share]>::len);
    let mut lanes = Vec::new();
    let mut first_lane = Vec::new();
    for (chunk, programs) in chunks.iter().enumerate() {
        let mut firsts = Vec::with_capacity(members);
        for (member, program) in programs.iter().enumerate() {
            firsts.push(lanes.len());
            lanes.extend((0..program.lanes()).map(|lane| Lane {
                at: At { member: member as Member, chunk: chunk as u32, lane, pc: 0 },
                registers: [const { None }; REGISTERS],
                clock: 0,
                finished: false,
            }));
        }
        first_lane.push(firsts);
    }
    let outcome = Outcome {
        expressions: Expressions::new(members as u32),
        outputs: (0..members).map(|_| Output::default()).collect(),
        reads: vec![Vec::new(); members],
        deliveries: Vec::new(),
        rounds: 0,
        instructions: 0,
        sent: vec![(0, 0); members],
    };
    let ready = (0..lanes.len()).rev().collect();
    let messages = FxHashMap::default();
    let members = members as u32;
    let mut machine =
        Machine { chunks, shares, members, lanes, first_lane, messages, ready, outcome };
    machine.run()?;
    Ok(machine.outcome)
}

impl Machine<'_> {
    fn run(&mut self) -> Result<(), Violation> {
        while let Some(lane) = self.ready.pop() {
            self.advance(lane)?;
        }
        let waiting = self.lanes.iter().filter(|lane| !lane.finished);
        let others = waiting.clone().count().saturating_sub(1);
        // Where one missing message stops everybody in the end, the lane that came least far misses
        // it.
        let Some(first) = waiting.min_by_key(|lane| lane.clock) else { return Ok(()) };
        let from = match self.instr(first.at) {
            Some(Instr::Recv { from, .. }) => from,
            // Only a receive stops a lane.
            _ => first.at.member,
        };
        Err(Violation::Stuck { at: first.at, from, others })
    }

    fn instr(&self, at: At) -> Option<Instr> {
        self.chunks[at.chunk as usize][at.member as usize].instr(at.lane, at.pc)
    }

    /// Run one lane until it ends or waits for a message that is not there.
    fn advance(&mut self, index: usize) -> Result<(), Violation> {
        loop {
            let at = self.lanes[index].at;
            let Some(instr) = self.instr(at) else {
                self.lanes[index].finished = true;
                return Ok(());
            };
            if at.pc >= LONGEST_LANE {
                return Err(Violation::Endless { at });
            }
            match instr {
                _ if instr.is_empty() => {}
                Instr::Send { to, slot, source, len } => {
                    let content = self.read(index, at, source, len)?;
                    self.send(index, at, to, slot, source, content)?;
                }
                Instr::Recv { from, with, into, len } => {
                    if from >= self.members {
                        return Err(Violation::NoSuchMember { at, peer: from });
                    }
                    let message = self.messages.get_mut(&(index, at.pc)).and_then(Option::take);
                    let Some(message) = message else { return Ok(()) };
                    let lane = &mut self.lanes[index];
                    lane.clock = lane.clock.max(message.arrives);
                    self.outcome.rounds = self.outcome.rounds.max(lane.clock);
                    self.note_delivery(&message, at, with, into, len);
                    self.write(index, at, message.content, with, into, len, with.is_some())?;
                }
                Instr::Local { source, with, into, len } => {
                    let content = self.read(index, at, source, len)?;
                    self.write(index, at, content, with, into, len, true)?;
                }
            }
            self.outcome.instructions += u64::from(!instr.is_empty());
            self.lanes[index].at.pc += 1;
        }
    }

    fn send(
        &mut self,
        index: usize,
        at: At,
        to: Member,
        slot: Slot,
        source: Source,
        content: Content,
    ) -> Result<(), Violation> {
        if to >= self.members {
            return Err(Violation::NoSuchMember { at, peer: to });
        }
        if to == at.member {
            return Err(Violation::ToItself { at });
        }
        let receive = At { member: to, chunk: at.chunk, lane: slot.lane, pc: slot.pc };
        let exists = slot.lane < self.chunks[at.chunk as usize][to as usize].lanes();
        let (expected, len) = match self.instr(receive).filter(|instr| exists && !instr.is_empty())
        {
            Some(Instr::Recv { from, len, .. }) => (from, len),
            _ => return Err(Violation::NothingReceives { at, to, slot }),
        };
        if expected != at.member {
            return Err(Violation::WrongSender { at, receive, expected });
        }
        let sent = content.len();
        if sent != len {
            return Err(Violation::WrongLength { at, receive, sent, expected: len });
        }
        let target = self.first_lane[at.chunk as usize][to as usize] + slot.lane as usize;
        let arrives = self.lanes[index].clock + 1;
        let message = Message { content, send: at, source, arrives };
        if self.messages.insert((target, slot.pc), Some(message)).is_some() {
            return Err(Violation::SentTwice { at, receive });
        }
        let (messages, elements) = &mut self.outcome.sent[at.member as usize];
        (*messages, *elements) = (*messages + 1, *elements + sent);
        self.ready.push(target);
        Ok(())
    }

    fn note_delivery(
        &mut self,
        message: &Message,
        receive: At,
        with: Option<Source>,
        into: Dest,
        len: u64,
    ) {
        let starts = message.content.0.iter().map(|piece| piece.value.start);
        let ends = message.content.0.iter().map(|piece| piece.value.start + piece.len);
        self.outcome.deliveries.push(Delivery {
            send: message.send,
            receive,
            source: message.source,
            combined: with.is_some(),
            into,
            len,
            elements: (starts.min().unwrap_or(0), ends.max().unwrap_or(0)),
            arrives: message.arrives,
        });
    }

    fn read(
        &mut self,
        index: usize,
        at: At,
        source: Source,
        len: u64,
    ) -> Result<Content, Violation> {
        match source {
            Source::Own(offset) => {
                let span = Span { offset, len };
                let granted = self.shares.map(|shares| shares[at.member as usize].input);
                let inside = |input: Span| input.offset <= offset && span.end() <= input.end();
                if !granted.is_none_or(inside) {
                    return Err(Violation::OutsideInput { at, span });
                }
                self.outcome.reads[at.member as usize].push((span, at));
                Ok(Content::own(at.member, span))
            }
            Source::Out(offset) => {
                let span = Span { offset, len };
                let output = &self.outcome.outputs[at.member as usize];
                output.read(span, at).ok_or(Violation::OutsideWritten { at, span })
            }
            Source::Reg(register, offset) => {
                let held = self.lanes[index].registers.get(usize::from(register));
                let held = held.and_then(Option::as_ref);
                held.and_then(|content| content.slice(offset, len)).ok_or_else(|| {
                    let end = offset + len;
                    let len = held.map_or(0, Content::len);
                    Violation::OutsideRegister { at, register, end, len }
                })
            }
        }
    }

    /// Combine and store. What is `made_here` and stored in the output is divided.
    #[allow(clippy::too_many_arguments)]
    fn write(
        &mut self,
        index: usize,
        at: At,
        mut content: Content,
        with: Option<Source>,
        into: Dest,
        len: u64,
        made_here: bool,
    ) -> Result<(), Violation> {
        if let Some(with) = with {
            let other = self.read(index, at, with, len)?;
            let sum = content.add(&other, &mut self.outcome.expressions);
            content = sum.map_err(|discord| match discord {
                Discord::Elements(left, right) => Violation::Misaligned { at, left, right },
                Discord::Twice(contributor) => Violation::CountedTwice { at, contributor },
                Discord::Final => Violation::DividedTwice { at },
            })?;
        }
        match into {
            Dest::Reg(register) => {
                let held = self.lanes[index].registers.get_mut(usize::from(register));
                let violation = Violation::OutsideRegister { at, register, end: len, len: 0 };
                *held.ok_or(violation)? = Some(content);
                Ok(())
            }
            Dest::Out(offset) => {
                self.check_granted(at, Span { offset, len })?;
                if made_here {
                    let program = &self.chunks[at.chunk as usize][at.member as usize];
                    let divided = content.divided(program.divisor(at.lane));
                    content = divided.ok_or(Violation::DividedTwice { at })?;
                }
                self.outcome.outputs[at.member as usize].write(offset, &content, at)
            }
        }
    }

    /// Every written element must be asked for. Wanted ranges are in order and side by side.
    fn check_granted(&self, at: At, span: Span) -> Result<(), Violation> {
        let Some(shares) = self.shares else { return Ok(()) };
        let output = &shares[at.member as usize].output;
        let mut next = span.offset;
        for wanted in output {
            if wanted.span.offset <= next && next < wanted.span.end() {
                next = wanted.span.end();
            }
        }
        if next < span.end() { Err(Violation::OutsideOutput { at, span }) } else { Ok(()) }
    }
}
