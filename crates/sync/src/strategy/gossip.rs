//! Gossip: at every step members average with one partner, drawn anew.
//!
//! Pairs follow the circle method of round-robin tournaments, and the round is drawn by lot from
//! the seed and the step: O(1) for any member, and any two members meet with the same probability,
//! so that disagreement shrinks in mean square exactly as with uniformly drawn pairings. It knows
//! nothing of hosts.

use super::{alone::Alone, pair::PairProgram};
use crate::{
    groups::partner,
    program::{Program, Semantics, Site, Span, Strategy},
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
            Some(partner) => Box::new(PairProgram { partner, span, lane: 0, pieces: 1 }),
            None => Box::new(Alone { span }),
        }
    }
}
