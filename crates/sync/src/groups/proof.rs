//! What a plan of groups does, proven from the plan alone: that what any member knows reaches every other, how soon,
//! and by how much a period shrinks disagreement. It knows nothing of racks or programs.

use super::Plan;
use crate::program::Member;
use paceline_job::Random;

/// What was found out about a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupProof {
    /// Steps until the plan begins anew.
    pub rotation: u32,
    /// The most steps that anything takes to reach everybody, whichever step it begins with.
    pub reach: u32,
    /// The shortest run of whole rotations that is not below `reach`.
    pub period: u32,
    /// What is left of the members' disagreement after a period, at worst: the second largest singular value of the
    /// product of its mixing matrices. Below one, because groups average and everything reaches everybody; zero where
    /// it is not above what rounding leaves.
    pub contraction: f64,
}

impl GroupProof {
    /// Whether everybody holds the exact average after a period.
    pub fn is_exact(&self) -> bool {
        self.contraction == 0.0
    }
}

/// A plan that never brings two members together, whatever the number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what member {from} knows never reaches member {to}")]
pub struct Disconnected {
    /// Who is not heard.
    pub from: Member,
    /// By whom.
    pub to: Member,
}

/// Prove a plan.
pub fn prove(plan: &Plan) -> Result<GroupProof, Disconnected> {
    let rotation = plan.steps().len() as u64;
    let mut reach = 0;
    for start in 0..rotation {
        reach = reach.max(spread(plan, start)?);
    }
    let period = u64::from(reach).max(1).div_ceil(rotation) * rotation;
    Ok(GroupProof {
        rotation: rotation as u32,
        reach,
        period: period as u32,
        contraction: contraction(plan, period),
    })
}

/// Steps from `start` until everybody knows of everybody.
fn spread(plan: &Plan, start: u64) -> Result<u32, Disconnected> {
    let members = plan.members() as usize;
    let words = members.div_ceil(64);
    // By member, a bit for each of those it knows of.
    let mut known = vec![0_u64; members * words];
    for member in 0..members {
        known[member * words + member / 64] |= 1 << (member % 64);
    }
    let mut pairs = members as u64;
    let (mut steps, mut idle) = (0, 0);
    let mut together = vec![0_u64; words];
    while pairs < (members * members) as u64 {
        // Whoever learns nothing in a whole rotation never does.
        if idle == plan.steps().len() {
            return Err(unheard(&known, members, words));
        }
        for group in plan.at(start + u64::from(steps)).groups() {
            together.fill(0);
            for member in group {
                let row = &known[*member as usize * words..][..words];
                together.iter_mut().zip(row).for_each(|(all, one)| *all |= one);
            }
            for member in group {
                known[*member as usize * words..][..words].copy_from_slice(&together);
            }
        }
        let now = known.iter().map(|word| u64::from(word.count_ones())).sum();
        idle = if now == pairs { idle + 1 } else { 0 };
        pairs = now;
        steps += 1;
    }
    Ok(steps)
}

fn unheard(known: &[u64], members: usize, words: usize) -> Disconnected {
    let knows = |to: usize, from: usize| known[to * words + from / 64] >> (from % 64) & 1 == 1;
    let pairs = (0..members).flat_map(|to| (0..members).map(move |from| (from, to)));
    let (from, to) = pairs.into_iter().find(|(from, to)| !knows(*to, *from)).unwrap_or((0, 0));
    Disconnected { from: from as Member, to: to as Member }
}

/// Power iteration on the product and its transpose, applied group by group: a matrix is never made, so a thousand
/// members take milliseconds. Each factor is symmetric, so the transpose is the same steps backwards.
fn contraction(plan: &Plan, steps: u64) -> f64 {
    /// What is not settled by then lies closer to the next value than anybody asks.
    const MOST_ROUNDS: usize = 300;
    const SETTLED: f64 = 1e-10;
    /// What is shorter than this is what arithmetic leaves of nothing.
    const ROUNDING: f64 = 1e-13;
    let mut random = Random::new(1);
    let mut values: Vec<f64> = (0..plan.members()).map(|_| random.unit() - 0.5).collect();
    let mut left = 1.0;
    stretch_to_one(&mut values);
    for _ in 0..MOST_ROUNDS {
        (0..steps).for_each(|step| average(plan, step, &mut values));
        // Of one way, not of both: what is left of both may be as short as rounding where one leaves something.
        let there = stretch_to_one(&mut values);
        if there < ROUNDING {
            return 0.0;
        }
        (0..steps).rev().for_each(|step| average(plan, step, &mut values));
        let back = stretch_to_one(&mut values);
        let now = (there * back).sqrt();
        if (now - left).abs() <= SETTLED * now {
            return now;
        }
        left = now;
    }
    left
}

/// Take the mean out, and make the rest as long as one. How long it was.
fn stretch_to_one(values: &mut [f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter_mut().for_each(|value| *value -= mean);
    let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    if length > 0.0 {
        values.iter_mut().for_each(|value| *value /= length);
    }
    length
}

/// What one step does to the members' values.
fn average(plan: &Plan, step: u64, values: &mut [f64]) {
    for group in plan.at(step).groups() {
        let sum: f64 = group.iter().map(|member| values[*member as usize]).sum();
        let mean = sum / group.len() as f64;
        group.iter().for_each(|member| values[*member as usize] = mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checker::{Matrix, contraction as by_matrices},
        groups::{Seating, Terrain},
    };
    use proptest::prelude::*;

    /// Racks of these sizes, one member on each host; which racks and which members are contended.
    fn seating(sizes: &[u32], slow_racks: &[usize], slow_members: &[u32]) -> Seating {
        let lone: Vec<Vec<u32>> = sizes.iter().map(|size| vec![1; *size as usize]).collect();
        crowded(&lone, slow_racks, slow_members)
    }

    /// Racks of hosts of these sizes; which racks and which hosts are contended.
    fn crowded(sizes: &[Vec<u32>], slow_racks: &[usize], slow_hosts: &[u32]) -> Seating {
        let (mut hosts, mut terrain) = (Vec::new(), Terrain::default());
        for (rack, sizes) in (0..).zip(sizes) {
            for size in sizes {
                let host = terrain.racks.len() as u32;
                hosts.extend((0..*size).map(|_| host));
                terrain.racks.push(rack);
                terrain.contended_hosts.push(slow_hosts.contains(&host));
            }
        }
        terrain.contended_racks = (0..sizes.len()).map(|rack| slow_racks.contains(&rack)).collect();
        Seating::on(&terrain, &hosts)
    }

    fn plan(sizes: &[u32], slow_racks: &[usize], slow_members: &[u32]) -> Plan {
        Plan::of(&seating(sizes, slow_racks, slow_members))
    }

    #[test]
    fn racks_stay_apart_but_for_one_representative_of_each_who_takes_turns() {
        let shown = plan(&[3, 3, 3], &[], &[]).to_string();
        let expected = "\
step   0  {1 2} {4 5} {7 8} {0 3 6}
step   1  {0 2} {3 5} {6 8} {1 4 7}
step   2  {0 1} {3 4} {6 7} {2 5 8}
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_contended_uplink_is_in_groups_of_two_whose_partners_change() {
        let plan = plan(&[3, 3, 3, 3], &[0], &[]);
        let mut partners = Vec::new();
        for division in plan.steps() {
            let group = division.groups().iter().find(|group| {
                group.iter().any(|member| *member < 3) && group.iter().any(|member| *member >= 3)
            });
            let group = group.expect("rack 0 is represented in every step");
            assert_eq!(group.len(), 2, "{division}");
            partners.push(group[1] / 3);
        }
        partners.sort_unstable();
        partners.dedup();
        assert_eq!(partners, [1, 2, 3]);
    }

    #[test]
    fn a_member_whose_own_link_is_contended_is_in_groups_of_two_and_never_serves() {
        let plan = plan(&[5, 5], &[], &[4]);
        for division in plan.steps() {
            let (group, _) = division.group_of(4);
            assert_eq!(group.len(), 2, "{division}");
            assert!(group.iter().all(|member| *member < 5), "{division}");
        }
    }

    #[test]
    fn hosts_stay_apart_but_for_one_member_of_each_and_racks_but_for_one_of_these() {
        let plan = Plan::of(&crowded(&[vec![3, 3, 3], vec![3, 3, 3]], &[], &[]));
        let shown = plan.to_string();
        // Of rack 0, one of host 0 serves, then one of host 1 and of host 2, then the next of host 0; the other two hosts meet.
        let expected = "\
step   0  {1 2} {4 5} {7 8} {3 6} {10 11} {13 14} {16 17} {12 15} {0 9}
step   1  {1 2} {4 5} {6 8} {0 7} {10 11} {13 14} {15 17} {9 16} {3 12}
step   2  {0 2} {3 5} {7 8} {1 4} {9 11} {12 14} {16 17} {10 13} {6 15}
step   3  {0 2} {3 4} {6 7} {5 8} {9 11} {12 13} {15 16} {14 17} {1 10}
";
        assert!(shown.starts_with(expected), "{shown}");
        assert_eq!((plan.steps().len(), plan.lanes()), (9, 9));
    }

    #[test]
    fn a_grid_of_equal_sides_agrees_exactly_after_as_many_steps_as_it_has_axes() {
        for (side, axes) in [(2, 1), (2, 6), (3, 3), (5, 2), (7, 1)] {
            let seats = seating(&[u32::pow(side, axes)], &[], &[]);
            let proof = prove(&Plan::of(&seats)).unwrap();
            assert_eq!((proof.reach, proof.period), (axes, axes), "{side}^{axes}");
            assert!(proof.is_exact(), "{side}^{axes}: {}", proof.contraction);
        }
    }

    #[test]
    fn what_is_nearly_exact_is_not_said_to_be_exact() {
        let seats = seating(&[1; 36], &[22, 16], &[1]);
        let proof = prove(&Plan::of(&seats)).unwrap();
        assert!(proof.contraction > 1e-8 && proof.contraction < 1e-6, "{}", proof.contraction);
    }

    #[test]
    fn the_factor_is_that_of_the_product_of_mixing_matrices() {
        for (sizes, slow_racks, slow_members) in [
            (&[3, 3, 3, 3][..], &[][..], &[][..]),
            (&[3, 3, 3, 3], &[1], &[]),
            (&[4, 2, 3], &[], &[0]),
            (&[2, 2], &[], &[]),
        ] {
            let plan = plan(sizes, slow_racks, slow_members);
            let proof = prove(&plan).unwrap();
            let matrix = |step: u64| {
                let mut mixing = Matrix::zero(plan.members());
                for group in plan.at(step).groups() {
                    for to in group {
                        for from in group {
                            mixing.set(*to, *from, 1.0 / group.len() as f64);
                        }
                    }
                }
                mixing
            };
            let period: Vec<Matrix> = (0..u64::from(proof.period)).map(matrix).collect();
            let exact = by_matrices(&period);
            assert!((proof.contraction - exact).abs() < 1e-4, "{proof:?}, by matrices {exact}");
            assert!(exact < 1.0, "{exact}");
        }
    }

    #[test]
    fn a_thousand_members_are_proven() {
        let proof = prove(&plan(&[32; 32], &[3], &[100])).unwrap();
        assert!(proof.reach <= proof.rotation && proof.contraction < 0.7, "{proof:?}");
    }

    /// What holds of any seats, and is said once for lone and for crowded hosts.
    fn everybody_is_heard_and_serves_and_links_carry_little(seats: &Seating) {
        let plan = Plan::of(seats);
        let proof = prove(&plan).unwrap_or_else(|problem| panic!("{problem} in\n{plan}"));
        assert!(proof.reach <= 5 * proof.rotation, "{proof:?} in\n{plan}");
        assert!(proof.contraction < 1.0 - 1e-6, "{proof:?} in\n{plan}");
        let rack_of = seats.rack_of_each();
        let mut has_served = vec![false; rack_of.len()];
        for division in plan.steps() {
            let is_between = |group: &[u32], places: &[u32]| {
                group.iter().any(|one| places[*one as usize] != places[group[0] as usize])
            };
            // Who goes out of its rack, and out of its host.
            let away = |member: u32| is_between(division.group_of(member).0, &rack_of);
            for rack in &seats.racks {
                let served: Vec<u32> =
                    rack.hosts.iter().flatten().copied().filter(|member| away(*member)).collect();
                assert!(served.len() <= 1, "{served:?} all leave a rack in {division}");
                served.iter().for_each(|member| has_served[*member as usize] = true);
                for host in &rack.hosts {
                    let out = |member: &&u32| {
                        let (group, _) = division.group_of(**member);
                        group.iter().any(|other| !host.contains(other))
                    };
                    let out = host.iter().filter(out).count();
                    assert!(out <= 1, "{out} members leave a host in {division}");
                }
            }
            // A rack that is alone has no use for its uplink.
            let is_weak = |member: &u32| {
                let rack = &seats.racks[rack_of[*member as usize] as usize];
                seats.contended[*member as usize] || rack.contended && seats.racks.len() > 1
            };
            for group in division.groups().iter().filter(|group| group.len() > 2) {
                assert!(seats.is_flat() || is_between(group, &rack_of), "{division}");
                assert!(!group.iter().any(is_weak), "a contended link in {group:?} of {division}");
            }
        }
        for rack in seats.racks.iter().filter(|_| seats.racks.len() > 1) {
            let free = |member: &&u32| !seats.contended[**member as usize];
            let all = || rack.hosts.iter().flatten();
            let none_is_free = all().filter(free).count() == 0;
            for member in all().filter(|member| none_is_free || free(member)) {
                assert!(
                    has_served[*member as usize],
                    "{member} never meets another rack in\n{plan}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn whatever_is_contended_everybody_is_heard_and_serves(
            sizes in prop::collection::vec(1_u32..8, 1..8),
            slow_racks in prop::collection::vec(0_usize..8, 0..5),
            slow_members in prop::collection::vec(0_u32..40, 0..8),
        ) {
            everybody_is_heard_and_serves_and_links_carry_little(&seating(&sizes, &slow_racks, &slow_members));
        }

        #[test]
        fn however_hosts_are_filled_everybody_is_heard_and_serves(
            sizes in prop::collection::vec(prop::collection::vec(1_u32..6, 1..5), 1..6),
            slow_racks in prop::collection::vec(0_usize..6, 0..4),
            slow_hosts in prop::collection::vec(0_u32..20, 0..6),
        ) {
            everybody_is_heard_and_serves_and_links_carry_little(&crowded(&sizes, &slow_racks, &slow_hosts));
        }
    }
}
