//! Gossip: at every step members average with one partner, drawn anew.
//!
//! Pairs follow the circle method of round-robin tournaments, and the round is drawn by lot from
//! the seed and the step: O(1) for any member, and any two members meet with the same probability,
//! so that disagreement shrinks in mean square exactly as with uniformly drawn pairings. It knows
//! nothing of hosts.

use super::alone::Alone;
use crate::program::{Dest, Instr, Member, Program, Semantics, Site, Slot, Source, Span, Strategy};
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
            Some(partner) => Box::new(PairProgram { partner, span }),
            None => Box::new(Alone { span }),
        }
    }
}

/// With whom `me` is paired in the tournament's round `lot`; `None` for the one who sits out.
///
/// With an odd number, players `a` and `b` meet in the round `a + b` modulo their number, and who
/// would meet themselves sits out. With an even number the last player stands apart and meets that
/// one.
fn partner(members: u32, me: Member, lot: u64) -> Option<Member> {
    if members < 2 {
        return None;
    }
    let circle = members - 1 + members % 2;
    let round = (lot % u64::from(circle)) as u32;
    let meets_itself = |player: u32| (round + circle - player) % circle == player;
    if me == circle {
        // `circle` is odd, so (circle + 1) / 2 halves modulo `circle`.
        let half = u64::from(round) * u64::from(circle.div_ceil(2)) % u64::from(circle);
        return Some(half as Member);
    }
    if meets_itself(me) {
        return (members.is_multiple_of(2)).then_some(circle);
    }
    Some((round + circle - me) % circle)
}

#[derive(Debug)]
struct PairProgram {
    partner: Member,
    span: Span,
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
                let slot = Slot { lane: 0, pc: 1 };
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

    fn divisor(&self) -> u32 {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_agree_on_each_other_and_at_most_one_sits_out() {
        for members in 1..=65 {
            for lot in 0..70 {
                let alone = (0..members).filter(|me| match partner(members, *me, lot) {
                    Some(other) => {
                        assert_ne!(other, *me);
                        assert_eq!(partner(members, other, lot), Some(*me));
                        false
                    }
                    None => true,
                });
                assert_eq!(alone.count() as u32, members % 2, "{members} members, lot {lot}");
            }
        }
    }

    #[test]
    fn over_all_rounds_every_two_members_meet_once() {
        for members in [2, 5, 8, 13] {
            let rounds = u64::from(members - 1 + members % 2);
            for me in 0..members {
                let mut met: Vec<_> =
                    (0..rounds).filter_map(|lot| partner(members, me, lot)).collect();
                met.sort_unstable();
                assert_eq!(met, (0..members).filter(|other| *other != me).collect::<Vec<_>>());
            }
        }
    }
}
