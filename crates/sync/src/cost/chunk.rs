//! One chunk of a set of programs on its way over links: a message waits in front of each link that it crosses until it
//! is free, and then has it for itself. Coarser than a replay, where messages share links; made of the same programs.

use super::Roads;
use crate::{
    frame::HEADER_BYTES,
    program::{Instr, Program, Slot},
};
use rustc_hash::FxHashMap;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// What came of it.
pub(super) struct Passage {
    /// Until the last lane was at its end.
    pub(super) seconds: f64,
    /// How long each link carried something.
    pub(super) busy: Vec<f64>,
    /// Bytes from whom to whom, in an order that is the same everywhere.
    pub(super) sent: BTreeMap<(u32, u32), u64>,
    /// Messages that the busiest member sends.
    pub(super) messages: u32,
}

/// A message that is ready to leave, the soonest first; the numbers make the order total.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    /// Nanoseconds, so that the order is one of whole numbers.
    at: u64,
    number: u64,
    from: u32,
    to: u32,
    slot: Slot,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Lane {
    pc: u32,
    clock: f64,
}

struct Machine<'a> {
    programs: &'a [Box<dyn Program>],
    element: u64,
    /// By member, then by lane.
    lanes: Vec<Vec<Lane>>,
    /// Messages that arrived before their receive was reached.
    arrived: FxHashMap<(u32, Slot), f64>,
    ready: BinaryHeap<Reverse<Ready>>,
    numbers: u64,
}

/// Let a chunk pass: one program for each member, elements of so many bytes.
pub(super) fn pass(programs: &[Box<dyn Program>], roads: &Roads, element: u64) -> Passage {
    let mut machine = Machine {
        programs,
        element,
        lanes: programs
            .iter()
            .map(|program| vec![Lane { pc: 0, clock: 0.0 }; program.lanes() as usize])
            .collect(),
        arrived: FxHashMap::default(),
        ready: BinaryHeap::new(),
        numbers: 0,
    };
    for (member, program) in (0..).zip(programs) {
        (0..program.lanes()).for_each(|lane| machine.advance(member, lane));
    }
    let mut busy = vec![0.0; roads.len()];
    let mut sent = BTreeMap::new();
    let mut messages = vec![0_u32; programs.len()];
    let mut free_at = vec![0.0_f64; roads.len()];
    // Ends, because each message is sent once and programs are finite.
    while let Some(Reverse(message)) = machine.ready.pop() {
        let route = roads.route(message.from, message.to);
        // What waits for one link lies in front of it, and does not hold up the one before it.
        let (mut start, mut end) = (message.at as f64 / 1e9, 0.0_f64);
        for link in route.links() {
            let carrying = message.bytes as f64 * roads.byte(*link);
            start = start.max(free_at[*link]);
            busy[*link] += carrying;
            free_at[*link] = start + carrying;
            end = end.max(free_at[*link]);
        }
        let Ready { from, to, slot, .. } = message;
        *sent.entry((from, to)).or_insert(0) += message.bytes;
        messages[from as usize] += 1;
        machine.arrived.insert((to, slot), end + route.latency);
        machine.advance(to, slot.lane);
    }
    let clocks = machine.lanes.iter().flatten().map(|lane| lane.clock);
    let messages = messages.into_iter().max().unwrap_or(0);
    Passage { seconds: clocks.fold(0.0, f64::max), busy, sent, messages }
}

impl Machine<'_> {
    /// Let a lane go on until it waits for a message that is not there.
    fn advance(&mut self, member: u32, lane: u32) {
        let program = &self.programs[member as usize];
        loop {
            let Lane { pc, clock } = self.lanes[member as usize][lane as usize];
            let Some(instr) = program.instr(lane, pc) else { return };
            let mut after = clock;
            match instr {
                _ if instr.is_empty() => {}
                Instr::Local { .. } => {}
                Instr::Send { to, slot, len, .. } => {
                    let bytes = len * self.element + HEADER_BYTES as u64;
                    let at = (clock * 1e9).round() as u64;
                    self.numbers += 1;
                    let number = self.numbers;
                    let from = member;
                    self.ready.push(Reverse(Ready { at, number, from, to, slot, bytes }));
                }
                Instr::Recv { .. } => match self.arrived.remove(&(member, Slot { lane, pc })) {
                    Some(arrival) => after = after.max(arrival),
                    None => return,
                },
            }
            self.lanes[member as usize][lane as usize] = Lane { pc: pc + 1, clock: after };
        }
    }
}
