//! Divide and shuffle: members average in small groups that avoid slow links, and the groups change from step to step.
//!
//! Which groups, the plan of [`groups`](crate::groups) says; here they become programs. It knows racks and contended
//! links as far as its terrain tells, and nothing of rates.

use super::{
    Hierarchical, Ring, alone::Alone, gossip::PairProgram, layout::Derived, ring::RingProgram,
};
use crate::{
    groups::{Plan, Seating, Terrain},
    program::{Groups, Instr, Member, Program, Semantics, Site, Span, Strategy},
};
use std::{borrow::Cow, num::NonZeroU64, sync::Arc};

/// Groups around the bottleneck (Wang, Zhang, Zhang and Chen, 2020: DS-Sync).
#[derive(Debug, Default)]
pub struct Shuffle {
    terrain: Option<Terrain>,
    /// Every so many steps all members average together.
    together_every: Option<NonZeroU64>,
    grounds: Derived<Ground>,
    ring: Ring,
    hierarchical: Hierarchical,
}

/// What follows from where the members of a group sit.
#[derive(Debug)]
struct Ground {
    plan: Plan,
    /// By member; `None` where there is one rack.
    racks: Option<Arc<[u32]>>,
}

impl Shuffle {
    /// The name without parameters.
    pub const NAME: &'static str = "shuffle";

    /// On a terrain, if one is known, with the parameters that follow the name: none, or after how many steps all
    /// members average together.
    pub(super) fn with_parameters(
        parameters: Option<&str>,
        terrain: Option<Terrain>,
    ) -> Option<Shuffle> {
        let together_every = match parameters {
            None => None,
            Some(number) => Some(number.parse().ok()?),
        };
        Some(Shuffle { terrain, together_every, ..Shuffle::default() })
    }

    /// Who averages with whom, where members sit on these hosts.
    pub fn plan(&self, hosts: &[u32]) -> Plan {
        Plan::of(&self.seating(hosts))
    }

    fn seating(&self, hosts: &[u32]) -> Seating {
        match &self.terrain {
            Some(terrain) => Seating::on(terrain, hosts),
            None => Seating::of_hosts(hosts),
        }
    }

    /// Whether all members average together in this step.
    fn is_together(&self, step: u64) -> bool {
        self.together_every.is_some_and(|every| step % every == every.get() - 1)
    }

    fn ground(&self, hosts: &Arc<[u32]>) -> Arc<Ground> {
        self.grounds.of(hosts, |hosts| {
            let seating = self.seating(hosts);
            let racks = (seating.racks.len() > 1).then(|| seating.rack_of_each().into());
            Ground { plan: Plan::of(&seating), racks }
        })
    }
}

impl Strategy for Shuffle {
    fn name(&self) -> Cow<'static, str> {
        match self.together_every {
            None => Shuffle::NAME.into(),
            Some(steps) => format!("{}:{steps}", Shuffle::NAME).into(),
        }
    }

    fn about(&self) -> &'static str {
        "Members average in groups that do not overlap: each rack by itself, and one \
         representative of each rack in a group between racks. Who represents changes from step to \
         step, so that what any member knows reaches every other. A contended uplink or host is \
         kept in groups of two, where its link carries the chunk once each way. It averages, it \
         does not sum: members agree over steps, and with a parameter (shuffle:16) exactly after \
         so many. Without a topology, hosts of several members are taken for racks, and lone hosts \
         for a grid. Right for parameters in training on uneven networks."
    }

    fn semantics(&self) -> Semantics {
        Semantics::Averaging
    }

    fn groups(&self, hosts: &Arc<[u32]>, step: u64) -> Option<Groups> {
        let plan = &self.ground(hosts).plan;
        Some(match self.is_together(step) {
            true => Groups { groups: vec![(0..plan.members()).collect()], parts: 1 },
            false => Groups { groups: plan.at(step).groups().to_vec(), parts: plan.lanes() },
        })
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        let ground = self.ground(&site.hosts);
        if self.is_together(site.step) {
            return match &ground.racks {
                None => self.ring.program(site, span),
                Some(racks) => {
                    let site = Site { hosts: racks.clone(), ..site.clone() };
                    self.hierarchical.program(&site, span)
                }
            };
        }
        let lanes = ground.plan.lanes();
        let lane = |lane: u32| {
            let division = ground.plan.at(site.step.wrapping_add(u64::from(lane)));
            let (group, position) = division.group_of(site.me);
            exchange(group, position, span.part(lane, lanes), lane)
        };
        Box::new(ShuffleProgram { lanes: (0..lanes).map(lane).collect() })
    }
}

/// How a group averages: two by one message each way, more in a ring.
fn exchange(group: &[Member], position: u32, span: Span, lane: u32) -> Box<dyn Program> {
    let members = group.len() as u32;
    let neighbour = |steps: u32| group[((position + steps) % members) as usize];
    match members {
        1 => Box::new(Alone { span }),
        2 => Box::new(PairProgram { partner: neighbour(1), span, lane }),
        _ => Box::new(RingProgram {
            members,
            position,
            next: neighbour(1),
            previous: neighbour(members - 1),
            span,
            lane,
        }),
    }
}

/// One lane for each part of the chunk, each in a group of its own.
#[derive(Debug)]
struct ShuffleProgram {
    lanes: Vec<Box<dyn Program>>,
}

impl Program for ShuffleProgram {
    fn lanes(&self) -> u32 {
        self.lanes.len() as u32
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        self.lanes.get(lane as usize)?.instr(0, pc)
    }

    fn divisor(&self, lane: u32) -> u32 {
        self.lanes[lane as usize].divisor(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::{Expectation, Matrix, Proof, check};

    /// Three racks of three, the uplink of the first and one member of the last contended.
    fn terrain() -> Terrain {
        let mut contended_hosts = vec![false; 9];
        contended_hosts[8] = true;
        let racks = (0..9).map(|host| host / 3).collect();
        Terrain { racks, contended_hosts, contended_racks: vec![true] }
    }

    fn prove(shuffle: &Shuffle, step: u64, span: Span) -> Proof {
        let hosts: Arc<[u32]> = (0..9).collect();
        let site = |me| Site { hosts: hosts.clone(), me, step, seed: 3 };
        let programs: Vec<_> = (0..9).map(|me| shuffle.program(&site(me), span)).collect();
        check(&programs, &Expectation::of_strategy(shuffle, 9, span)).unwrap()
    }

    #[test]
    fn programs_mix_as_the_plan_says_each_lane_a_step_further() {
        let shuffle = Shuffle::with_parameters(None, Some(terrain())).unwrap();
        let plan = shuffle.plan(&(0..9).collect::<Vec<_>>());
        let span = Span { offset: 2, len: 90 };
        for step in 0..2 * plan.steps().len() as u64 {
            let mixing = prove(&shuffle, step, span).mixing;
            let told = shuffle.groups(&(0..9).collect(), step).unwrap();
            assert_eq!((&told.groups[..], told.parts), (plan.at(step).groups(), plan.lanes()));
            for lane in 0..plan.lanes() {
                let part = span.part(lane, plan.lanes());
                let mut expected = Matrix::zero(9);
                for group in plan.at(step + u64::from(lane)).groups() {
                    for (to, from) in
                        group.iter().flat_map(|to| group.iter().map(move |from| (to, from)))
                    {
                        expected.set(*to, *from, 1.0 / group.len() as f64);
                    }
                }
                let holds =
                    |within: &Span| within.offset <= part.offset && part.end() <= within.end();
                let found = mixing.iter().find(|(within, _)| holds(within)).unwrap();
                assert_eq!(found.1, expected, "step {step}, lane {lane}");
            }
        }
    }

    #[test]
    fn a_contended_link_carries_a_chunk_once_each_way() {
        let shuffle = Shuffle::with_parameters(None, Some(terrain())).unwrap();
        let hosts: Arc<[u32]> = (0..9).collect();
        for step in 0..9 {
            let site = |me| Site { hosts: hosts.clone(), me, step, seed: 0 };
            let span = Span { offset: 0, len: 360 };
            let programs: Vec<_> = (0..9).map(|me| shuffle.program(&site(me), span)).collect();
            let messages = crate::checker::trace(&programs).unwrap();
            let sum = |crosses: &dyn Fn(u32, u32) -> bool| -> u64 {
                let crossing =
                    messages.iter().filter(|each| crosses(each.send.member, each.receive.member));
                crossing.map(|each| each.len).sum()
            };
            assert_eq!(sum(&|from, _| from == 8), 360, "step {step}");
            assert_eq!(sum(&|from, to| from < 3 && to >= 3), 360, "step {step}");
            assert_eq!(sum(&|from, to| from >= 3 && to < 3), 360, "step {step}");
        }
    }

    #[test]
    fn every_so_many_steps_all_agree_exactly() {
        let shuffle = Shuffle::with_parameters(Some("4"), Some(terrain())).unwrap();
        let span = Span { offset: 0, len: 50 };
        for step in 0..12 {
            let mixing = prove(&shuffle, step, span).mixing;
            let ninth =
                |matrix: &Matrix| (0..9).all(|to| (matrix.weight(to, 0) - 1.0 / 9.0).abs() < 1e-12);
            assert_eq!(
                mixing.iter().all(|(_, matrix)| ninth(matrix)),
                step % 4 == 3,
                "step {step}"
            );
            let told = shuffle.groups(&(0..9).collect(), step).unwrap();
            assert_eq!(told.groups.len() == 1, step % 4 == 3, "step {step}: {told:?}");
        }
    }
}
