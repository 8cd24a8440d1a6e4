//! Gossip: at every step members average with one partner, drawn anew.
//!
//! Pairs follow the circle method of round-robin tournaments, and the round is drawn by lot from
//! the seed and the step: O(1) for any member, and any two members meet with the same probability,
//! so that disagreement shrinks in mean square exactly as with uniformly drawn pairings. It knows
//! nothing of hosts.

use super::alone::Alone;
use crate::{
    groups::partner,
    program::{Dest, Instr, Member, Program, Semantics, Site, Slot, Source, Span, Strategy},
};
use paceline_job::Random;
use std::borrow::Cow;

/// Pairwise averaging (Boyd, Ghosh, Prabhakar and Shah, 2006; AD-PSGD uses it for training).
#[derive(Debug, Default)]
pub struct Gossip;

impl Strategy for Gossip {
    fn name(&self) -> Cow<'static, str> {
        "gossip".into()
    }

    fn about(&self) -> &'static str {
        "Each step pairs the members by lot, and partners average their values; with an odd \
         number one sits out. One message each way, whatever the size of the group, but members \
         only agree after many steps: it averages, it does not sum. Right for parameters in \
         training that tolerates replicas which differ a little, on networks where a full \
         all-reduce is too slow."
    }

    fn semantics(&self) -> Semantics {
        Semantics::Averaging
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        match partner(site.members(), site.me, Random::after(site.seed, site.step).bits()) {
            Some(partner) => Box::new(PairProgram { partner, span, lane: 0 }),
            None => Box::new(Alone { span }),
        }
    }
}

/// Two members send each other everything, at the same time.
#[derive(Debug)]
pub(super) struct PairProgram {
    pub(super) partner: Member,
    pub(super) span: Span,
    /// Which lane it is on both, where a program has several.
    pub(super) lane: u32,
}

impl Program for PairProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let own = Source::Own(offset);
        match pc {
            0 => {
                let slot = Slot { lane: self.lane, pc: 1 };
                Some(Instr::Send { to: self.partner, slot, source: own, len })
            }
            1 => Some(Instr::Recv {
                from: self.partner,
                with: Some(own),
                into: Dest::Out(offset),
                len,
            }),
            _ => None,
        }
    }

    fn divisor(&self, _lane: u32) -> u32 {
        2
    }
}
