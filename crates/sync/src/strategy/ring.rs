//! Ring: segments travel round a circle, once to be summed and once to be handed out.
//!
//! It knows nothing of hosts beyond the order in which they line members up.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    layout::{Layout, Layouts},
};
use crate::program::{Dest, Instr, Member, Program, Site, Slot, Source, Span, Strategy};
use std::borrow::Cow;

/// The bandwidth-optimal circle (Patarasuk and Yuan, 2009).
#[derive(Debug, Default)]
pub struct Ring {
    layouts: Layouts,
}

impl Strategy for Ring {
    fn name(&self) -> Cow<'static, str> {
        "ring".into()
    }

    fn about(&self) -> &'static str {
        "Members stand in a circle, those of one host side by side. The chunk is cut into one \
         segment per member; each segment travels once round to be summed and once more to be \
         handed out. Every member sends 2(n-1)/n of the chunk, which no method beats, but in \
         2(n-1) messages one after another. Right for large tensors and few members."
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        let members = site.members();
        if members == 1 {
            return Box::new(Alone { span });
        }
        let layout = self.layouts.of(&site.hosts);
        let position = layout.position(site.me);
        let next = layout.at((position + 1) % members);
        let previous = layout.at((position + members - 1) % members);
        Box::new(RingProgram { members, position, next, previous, span, lane: 0 })
    }
}

/// What a ring asks of the network.
pub(super) fn demand(layout: &Layout, bytes: f64) -> Demand {
    let rounds = 2 * (layout.members() - 1);
    let travelled = bytes / f64::from(layout.members()) * f64::from(rounds);
    // Segments move in step, so a circle that crosses a wire anywhere moves at the wire's pace.
    let (near, far) = if layout.hosts() > 1 { (0, rounds) } else { (rounds, 0) };
    let wire = if layout.hosts() > 1 { travelled } else { 0.0 };
    let memory = if layout.largest_host() > 1 { travelled } else { 0.0 };
    let path_memory = if layout.hosts() > 1 { 0.0 } else { travelled };
    Demand {
        rounds: Sides { memory: near, wire: far },
        path_bytes: Sides { memory: path_memory, wire },
        busiest_bytes: Sides { memory, wire },
        messages: rounds,
        fan_in: 1,
    }
}

/// One lane: send the own segment, then receive and forward `2(n-1)` times.
#[derive(Debug)]
pub(super) struct RingProgram {
    pub(super) members: u32,
    pub(super) position: u32,
    pub(super) next: Member,
    pub(super) previous: Member,
    pub(super) span: Span,
    /// Which lane it is on every member, where a program has several.
    pub(super) lane: u32,
}

impl RingProgram {
    /// The segment of the `received`-th message, counted from zero: one step further back each
    /// time.
    fn segment(&self, received: u32) -> Span {
        // `received` is below 2(n-1), so the sum stays positive.
        let index = self.position + 2 * self.members - 1 - received;
        self.span.part(index % self.members, self.members)
    }
}

impl Program for RingProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let receives = 2 * (self.members - 1);
        // The first is to send, the last to receive.
        if pc >= 2 * receives {
            return None;
        }
        // Message `r` is sent by instruction 2r and received by instruction 2r+1.
        let message = pc / 2;
        let summed = self.members - 2;
        if pc.is_multiple_of(2) {
            let segment = match message.checked_sub(1) {
                None => self.span.part(self.position, self.members),
                Some(received) => self.segment(received),
            };
            let source = match message.checked_sub(1) {
                None => Source::Own(segment.offset),
                Some(received) if received < summed => Source::Reg(0, 0),
                Some(_) => Source::Out(segment.offset),
            };
            let slot = Slot { lane: self.lane, pc: pc + 1 };
            return Some(Instr::Send { to: self.next, slot, source, len: segment.len });
        }
        let segment = self.segment(message);
        let with = (message <= summed).then_some(Source::Own(segment.offset));
        let into = if message < summed { Dest::Reg(0) } else { Dest::Out(segment.offset) };
        Some(Instr::Recv { from: self.previous, with, into, len: segment.len })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.members
    }
}
