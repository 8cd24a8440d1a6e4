//! Divide and shuffle: members average in small groups that avoid slow links, and the groups change from step to step.
//!
//! Which groups, the plan of [`groups`](crate::groups) says; here they become programs. It knows hosts, racks and contended
//! links as far as its terrain tells, and nothing of rates.

use super::{
    Hierarchical, Ring,
    alone::Alone,
    layout::{Derived, Layout},
    pair::{PairProgram, pieces},
    ring::RingProgram,
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
    /// By member, who is summed first when all average together: hosts where any has several members, whose wire would carry
    /// the tensors of all, or else racks; `None` where there is one rack.
    first: Option<Arc<[u32]>>,
    /// By member: whether others' traffic slows its own link down.
    contended: Vec<bool>,
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
            let first = match seating.racks.len() {
                0 | 1 => None,
                _ if Layout::new(hosts).largest_host() > 1 => Some(hosts.into()),
                _ => Some(seating.rack_of_each().into()),
            };
            Ground { plan: Plan::of(&seating), first, contended: seating.contended }
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
        "Members average in groups that do not overlap: groups of two inside each rack, and \
         one representative of each rack in a group between racks; of a host with several \
         members one goes out, and the others meet inside it. Who represents and who meets \
         whom changes from step to step, so that what any member knows reaches every other. A \
         contended uplink or host is kept in groups of two, where its link carries the chunk \
         once each way. It averages, it does not sum: members agree over steps, and with a \
         parameter (shuffle:16) exactly after so many. Without a topology, hosts of several \
         members are taken for racks, and lone hosts for a grid. Right for parameters in \
         training on uneven networks."
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
            return match &ground.first {
                None => self.ring.program(site, span),
                Some(first) => {
                    let site = Site { hosts: first.clone(), ..site.clone() };
                    self.hierarchical.program(&site, span)
                }
            };
        }
        let parts = ground.plan.lanes();
        let mut lanes: Vec<Box<dyn Program>> = Vec::with_capacity(2 * parts as usize);
        let mut backward: Vec<Box<dyn Program>> = Vec::new();
        for part in 0..parts {
            let division = ground.plan.at(site.step.wrapping_add(u64::from(part)));
            let (group, position) = division.group_of(site.me);
            let span = span.part(part, parts);
            let [first, second] = [span.part(0, 2), span.part(1, 2)];
            let neighbour = |steps: usize| group[(position as usize + steps) % group.len()];
            match group.len() {
                1 => lanes.push(Box::new(Alone { span })),
                2 => {
                    let is_contended = group.iter().any(|it| ground.contended[*it as usize]);
                    let pieces = if is_contended { pieces(span) } else { 1 };
                    let partner = neighbour(1);
                    lanes.push(Box::new(PairProgram { partner, span, lane: part, pieces }));
                }
                _ => {
                    // Whoever has one of these lanes has all of them, so that numbers are the same on all members.
                    while (backward.len() as u32) < part {
                        backward.push(Box::new(Alone { span: Span { offset: 0, len: 0 } }));
                    }
                    lanes.push(Box::new(ring(group, position, first, part)));
                    backward.push(Box::new(back(ring(group, position, second, parts + part))));
                }
            }
        }
        lanes.append(&mut backward);
        Box::new(ShuffleProgram { lanes })
    }
}

/// A group of more than two averages half of its part in a ring, and half in another the other way round. Members of
/// a ring have groups of two in other parts, and connections share a wire: with one ring, which moves its part nearly
/// twice, groups of two would be through long before it.
fn ring(group: &[Member], position: u32, span: Span, lane: u32) -> RingProgram {
    let members = group.len() as u32;
    let neighbour = |steps: u32| group[((position + steps) % members) as usize];
    let (next, previous) = (neighbour(1), neighbour(members - 1));
    RingProgram { members, position, next, previous, span, lane }
}

/// The same ring, the other way round.
fn back(ring: RingProgram) -> RingProgram {
    let position = (ring.members - ring.position) % ring.members;
    RingProgram { position, next: ring.previous, previous: ring.next, ..ring }
}

/// One lane for each part of the chunk, each in a group of its own, and one for the second ring of parts that have two.
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
    fn a_pair_with_a_contended_member_goes_piece_by_piece() {
        let shuffle = Shuffle::with_parameters(None, Some(terrain())).unwrap();
        let len = 3 << 18;
        prove(&shuffle, 0, Span { offset: 5, len });
        let hosts: Arc<[u32]> = (0..9).collect();
        let program = |me| {
            let site = Site { hosts: hosts.clone(), me, step: 0, seed: 0 };
            shuffle.program(&site, Span { offset: 0, len })
        };
        let instrs = |me: u32, lane: u32| (0..).map_while(|pc| program(me).instr(lane, pc)).count();
        let plan = shuffle.plan(&hosts);
        for lane in 0..plan.lanes() {
            let partner_of_8 = plan.at(u64::from(lane)).group_of(8).0.to_vec();
            assert_eq!((partner_of_8.len(), instrs(8, lane)), (2, 8), "lane {lane}");
        }
        assert_eq!(plan.at(0).group_of(4).0, [4, 5]);
        assert_eq!(instrs(4, 0), 2);
    }

    #[test]
    fn a_contended_link_carries_a_chunk_once_each_way() {
        let shuffle = Shuffle::with_parameters(None, Some(terrain())).unwrap();
        let hosts: Arc<[u32]> = (0..9).collect();
        for step in 0..9 {
            let sum =
                |crosses: &dyn Fn(u32, u32) -> bool| crossing(&shuffle, &hosts, step, 360, crosses);
            assert_eq!(sum(&|from, _| from == 8), 360, "step {step}");
            assert_eq!(sum(&|from, to| from < 3 && to >= 3), 360, "step {step}");
            assert_eq!(sum(&|from, to| from >= 3 && to < 3), 360, "step {step}");
        }
    }

    /// Racks of so many hosts with so many members each, and the host of each member.
    fn crowded(racks: u32, hosts: u32, members: u32) -> (Terrain, Arc<[u32]>) {
        let of_hosts = (0..racks * hosts).map(|host| host / hosts).collect();
        let terrain = Terrain { racks: of_hosts, ..Terrain::default() };
        (terrain, (0..racks * hosts * members).map(|member| member / members).collect())
    }

    /// What crosses from some members to others, by the two members' numbers.
    fn crossing(
        shuffle: &Shuffle,
        hosts: &Arc<[u32]>,
        step: u64,
        len: u64,
        crosses: impl Fn(u32, u32) -> bool,
    ) -> u64 {
        let site = |me| Site { hosts: hosts.clone(), me, step, seed: 0 };
        let span = Span { offset: 0, len };
        let all = 0..hosts.len() as u32;
        let programs: Vec<_> = all.map(|me| shuffle.program(&site(me), span)).collect();
        let messages = crate::checker::trace(&programs).unwrap();
        let crossing =
            messages.iter().filter(|each| crosses(each.send.member, each.receive.member));
        crossing.map(|each| each.len).sum()
    }

    #[test]
    fn the_members_of_a_host_send_a_chunk_once_over_its_wire_however_many_they_are() {
        let (mut terrain, hosts) = crowded(2, 3, 4);
        let len = 12 * 12 * 10;
        for contended in [false, true] {
            terrain.contended_hosts = (0..6).map(|host| contended && host == 5).collect();
            let shuffle = Shuffle::with_parameters(None, Some(terrain.clone())).unwrap();
            for step in 0..24 {
                let sent = |crosses: &dyn Fn(u32, u32) -> bool| {
                    crossing(&shuffle, &hosts, step, len, crosses)
                };
                for host in 0..6 {
                    let out = sent(&|from, to| from / 4 == host && to / 4 != host);
                    let least = if contended && host == 5 { len } else { 0 };
                    assert!(
                        (least..=len).contains(&out),
                        "step {step}, host {host}: {out} of {len}"
                    );
                }
                let uplink = sent(&|from, to| from < 12 && to >= 12);
                assert!(uplink <= len, "step {step}, uplink: {uplink} of {len}");
            }
        }
    }

    #[test]
    fn when_all_average_together_the_members_of_a_host_are_summed_first() {
        let (terrain, hosts) = crowded(2, 2, 4);
        let shuffle = Shuffle::with_parameters(Some("1"), Some(terrain)).unwrap();
        // A ring of four hosts.
        let out = crossing(&shuffle, &hosts, 0, 160, |from, to| from / 4 == 0 && to / 4 != 0);
        assert_eq!(out, 160 * 2 * 3 / 4);
    }

    #[test]
    fn in_large_racks_a_wire_carries_little_more_than_a_chunk_whoever_serves() {
        let racks = (0..32).map(|host| host / 8).collect();
        let terrain = Terrain { racks, ..Terrain::default() };
        let shuffle = Shuffle::with_parameters(None, Some(terrain)).unwrap();
        let hosts: Arc<[u32]> = (0..32).collect();
        let len = 8 * 8 * 30;
        for step in 0..8 {
            let site = |me| Site { hosts: hosts.clone(), me, step, seed: 0 };
            let span = Span { offset: 0, len };
            let programs: Vec<_> = (0..32).map(|me| shuffle.program(&site(me), span)).collect();
            let messages = crate::checker::trace(&programs).unwrap();
            for member in 0..32 {
                let sent = messages.iter().filter(|each| each.send.member == member);
                // Seven parts of eight in groups of two at most, and one in rings of four.
                let most = len / 8 * 7 + len / 8 * 3 / 2;
                let sent: u64 = sent.map(|each| each.len).sum();
                assert!(sent <= most, "step {step}, member {member}: {sent} above {most}");
                // Both ways round, so that connections to neighbours in the ring are as many as it is busy.
                let far = messages.iter().filter(|each| {
                    each.send.member == member && each.receive.member / 8 != member / 8
                });
                let mut neighbours: Vec<u32> = far.map(|each| each.receive.member).collect();
                neighbours.sort_unstable();
                neighbours.dedup();
                assert_eq!(neighbours.len(), 2, "step {step}, member {member}");
            }
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
