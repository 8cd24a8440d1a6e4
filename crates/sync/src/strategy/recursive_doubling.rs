//! Recursive doubling: partners exchange everything, at twice the distance each round.
//!
//! It knows nothing of hosts beyond the order in which they line members up.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    layout::{Layout, Layouts},
};
use crate::program::{Dest, Instr, Member, Program, Site, Slot, Source, Span, Strategy};
use std::{borrow::Cow, sync::Arc};

/// Whole chunks, log2(n) rounds.
#[derive(Debug, Default)]
pub struct RecursiveDoubling {
    layouts: Layouts,
}

impl Strategy for RecursiveDoubling {
    fn name(&self) -> Cow<'static, str> {
        "recursive_doubling".into()
    }

    fn about(&self) -> &'static str {
        "In each round every member exchanges its whole partial sum with a partner, first its \
         neighbour, then two away, then four: after log2(n) rounds all hold the total. Where n is \
         not a power of two, some neighbours fold together first and share the result last. Every \
         member sends log2(n) times the chunk. Right for small tensors, where only the number of \
         rounds counts."
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        if site.members() == 1 {
            return Box::new(Alone { span });
        }
        let layout = self.layouts.of(&site.hosts);
        let position = layout.position(site.me);
        Box::new(DoublingProgram { cube: Cube::of(site.members()), layout, position, span })
    }
}

/// What exchanging everything asks of the network.
pub(super) fn demand(layout: &Layout, bytes: f64) -> Demand {
    let cube = Cube::of(layout.members());
    // The first rounds stay inside hosts as far as the smallest host reaches.
    let near = layout.smallest_host().max(1).ilog2().min(cube.rounds);
    let far = if layout.hosts() > 1 { cube.rounds - near } else { 0 };
    let near = cube.rounds - far;
    let folds = if cube.extras > 0 { 2 } else { 0 };
    let (near, far) =
        if layout.largest_host() > 1 { (near + folds, far) } else { (near, far + folds) };
    let bytes = Sides {
        memory: f64::from(near) * bytes,
        // All members of a host exchange over its one wire at the same time.
        wire: f64::from(far) * f64::from(layout.largest_host()) * bytes,
    };
    Demand {
        rounds: Sides { memory: near, wire: far },
        path_bytes: bytes,
        busiest_bytes: bytes,
        messages: cube.rounds + folds / 2,
        fan_in: 1,
    }
}

/// The largest hypercube inside the group. The first `2 * extras` positions form pairs, and the odd
/// one of each pair is folded into its neighbour; everyone else is a corner.
#[derive(Clone, Copy, Debug)]
struct Cube {
    rounds: u32,
    extras: u32,
}

impl Cube {
    fn of(members: u32) -> Cube {
        let rounds = members.ilog2();
        Cube { rounds, extras: members - (1 << rounds) }
    }

    fn has_extra(self, position: u32) -> bool {
        position < 2 * self.extras
    }

    fn partner(self, position: u32, round: u32) -> u32 {
        let corner = if self.has_extra(position) { position / 2 } else { position - self.extras };
        let other = corner ^ (1 << round);
        if other < self.extras { 2 * other } else { other + self.extras }
    }
}

#[derive(Debug)]
struct DoublingProgram {
    layout: Arc<Layout>,
    cube: Cube,
    position: u32,
    span: Span,
}

impl DoublingProgram {
    fn member(&self, position: u32) -> Member {
        self.layout.at(position)
    }

    /// The odd one of a pair: hand over, then wait for the result.
    fn extra(&self, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let neighbour = self.member(self.position - 1);
        match pc {
            0 => {
                let slot = Slot { lane: 0, pc: 0 };
                Some(Instr::Send { to: neighbour, slot, source: Source::Own(offset), len })
            }
            1 => Some(Instr::Recv { from: neighbour, with: None, into: Dest::Out(offset), len }),
            _ => None,
        }
    }

    /// A corner: `[take the extra's]`, then send and receive each round, then `[answer the extra]`.
    fn corner(&self, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let has_extra = self.cube.has_extra(self.position);
        let before_rounds = u32::from(has_extra);
        if pc < before_rounds {
            return Some(Instr::Recv {
                from: self.member(self.position + 1),
                with: Some(Source::Own(offset)),
                into: Dest::Reg(0),
                len,
            });
        }
        let step = pc - before_rounds;
        let round = step / 2;
        if round < self.cube.rounds {
            let partner = self.cube.partner(self.position, round);
            let untouched = round == 0 && !has_extra;
            let sum = if untouched { Source::Own(offset) } else { Source::Reg(0, 0) };
            if step.is_multiple_of(2) {
                let partner_before_rounds = u32::from(self.cube.has_extra(partner));
                let slot = Slot { lane: 0, pc: partner_before_rounds + step + 1 };
                return Some(Instr::Send { to: self.member(partner), slot, source: sum, len });
            }
            let last = round + 1 == self.cube.rounds;
            let into = if last { Dest::Out(offset) } else { Dest::Reg(0) };
            return Some(Instr::Recv { from: self.member(partner), with: Some(sum), into, len });
        }
        let answer = has_extra && step == 2 * self.cube.rounds;
        answer.then(|| Instr::Send {
            to: self.member(self.position + 1),
            slot: Slot { lane: 0, pc: 1 },
            source: Source::Out(offset),
            len,
        })
    }
}

impl Program for DoublingProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        if self.cube.has_extra(self.position) && self.position % 2 == 1 {
            self.extra(pc)
        } else {
            self.corner(pc)
        }
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.layout.members()
    }
}
