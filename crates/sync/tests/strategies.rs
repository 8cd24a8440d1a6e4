//! Every strategy, proven by the checker: all world sizes, awkward lengths, several host layouts.

use paceline_sync::{
    checker::{Expectation, Matrix, Proof, check, contraction},
    groups::Terrain,
    program::{Program, Semantics, Site, Span, Strategy},
    strategy,
};
use proptest::prelude::*;
use std::sync::Arc;

/// The usual ones, and the ones with parameters.
fn every_strategy() -> Vec<Arc<dyn Strategy>> {
    let parameters = ["1", "2", "5", "1:apart", "3:apart", "40:apart"];
    let servers = parameters.map(|parameters| format!("parameter_server:{parameters}"));
    let named = servers.into_iter().chain(["hierarchical:racks", "shuffle:3"].map(String::from));
    let named =
        named.map(|name| strategy::by_name(&name).unwrap_or_else(|| panic!("{name} is not known")));
    strategy::all().into_iter().chain(named).collect()
}

fn programs(
    strategy: &dyn Strategy,
    hosts: &[u32],
    step: u64,
    seed: u64,
    span: Span,
) -> Vec<Box<dyn Program>> {
    let hosts: Arc<[u32]> = hosts.into();
    (0..hosts.len() as u32)
        .map(|me| strategy.program(&Site { hosts: hosts.clone(), me, step, seed }, span))
        .collect()
}

fn prove(strategy: &dyn Strategy, hosts: &[u32], step: u64, seed: u64, span: Span) -> Proof {
    let expect = Expectation::of_strategy(strategy, hosts.len() as u32, span);
    check(&programs(strategy, hosts, step, seed, span), &expect)
        .unwrap_or_else(|violation| panic!("{strategy:?} on {hosts:?}, {span:?}: {violation}"))
}

/// One host; a host each; neighbours; dealt out in turn; uneven.
fn layouts(members: u32) -> Vec<Vec<u32>> {
    vec![
        vec![0; members as usize],
        (0..members).collect(),
        (0..members).map(|member| member / 4).collect(),
        (0..members).map(|member| member % 3).collect(),
        (0..members).map(|member| (member + 1).ilog2()).collect(),
    ]
}

#[test]
fn every_strategy_is_right_for_every_world_size_layout_and_length() {
    for strategy in every_strategy() {
        for members in 1..=64 {
            let lengths = [1, u64::from(members) - 1, 2 * u64::from(members) + 1, 1_000_003];
            for (layout, hosts) in layouts(members).iter().enumerate() {
                // All lengths on the first layout; on the others one, which changes with the size.
                for (index, len) in lengths.into_iter().enumerate() {
                    if layout == 0 || index == (members as usize + layout) % lengths.len() {
                        let step = u64::from(members) * 7 + index as u64;
                        prove(strategy.as_ref(), hosts, step, 11, Span { offset: 5, len });
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_strategy_is_right_for_any_layout(
        hosts in prop::collection::vec(0_u32..6, 1..40),
        which in 0_usize..16,
        offset in 0_u64..1000,
        len in 0_u64..300,
        step in any::<u64>(),
        seed in any::<u64>(),
    ) {
        let strategies = every_strategy();
        let strategy = &strategies[which % strategies.len()];
        prove(strategy.as_ref(), &hosts, step, seed, Span { offset, len });
    }
}

#[test]
fn an_empty_chunk_sends_nothing() {
    for strategy in every_strategy() {
        let proof = prove(strategy.as_ref(), &[0, 0, 1, 1, 2], 0, 0, Span { offset: 3, len: 0 });
        assert_eq!((proof.messages, proof.instructions), (0, 0), "{strategy:?}");
    }
}

#[test]
fn a_ring_sends_no_more_than_any_method_must() {
    for members in [2, 5, 16, 61] {
        let len = u64::from(members) * 100;
        let ring = strategy::Ring::default();
        let proof = prove(&ring, &vec![0; members as usize], 0, 0, Span { offset: 0, len });
        assert_eq!(proof.rounds, 2 * (members - 1));
        assert_eq!(proof.busiest_elements, 2 * u64::from(members - 1) * 100);
        assert_eq!(proof.elements, proof.busiest_elements * u64::from(members));
    }
}

#[test]
fn trees_and_cubes_finish_in_logarithmic_time_and_servers_in_two_messages() {
    let span = Span { offset: 0, len: 6400 };
    for members in [2_u32, 3, 8, 17, 64] {
        let hosts = vec![0; members as usize];
        let rounds = |name: &str| {
            prove(strategy::by_name(name).unwrap().as_ref(), &hosts, 0, 0, span).rounds
        };
        let depth = members.next_power_of_two().ilog2();
        assert_eq!(rounds("double_tree"), 2 * depth);
        let doubling = rounds("recursive_doubling");
        let folds = if members.is_power_of_two() { 0 } else { 2 };
        assert!((members.ilog2()..=members.ilog2() + folds).contains(&doubling), "{doubling}");
        assert_eq!(rounds("parameter_server"), 2);
        assert_eq!(rounds("one_shot"), 1);
        assert_eq!(rounds("gossip"), 1);
    }
}

#[test]
fn two_trees_load_every_member_with_at_most_twice_the_chunk() {
    let proof =
        prove(&strategy::DoubleTree::default(), &[0; 32], 0, 0, Span { offset: 0, len: 1000 });
    assert!(proof.busiest_elements <= 2000, "{proof:?}");
}

#[test]
fn gossip_brings_members_together_whatever_the_seed() {
    let gossip = strategy::Gossip;
    assert_eq!(gossip.semantics(), Semantics::Averaging);
    for members in [2, 3, 8, 15, 32] {
        for seed in 0..5 {
            let period: Vec<Matrix> = (0..40)
                .map(|step| {
                    let hosts = vec![0; members];
                    let proof = prove(&gossip, &hosts, step, seed, Span { offset: 0, len: 9 });
                    assert_eq!(proof.mixing.len(), 1);
                    proof.mixing[0].1.clone()
                })
                .collect();
            let factor = contraction(&period);
            assert!(factor < 1e-3, "{members} members, seed {seed}: {factor}");
        }
    }
}

/// Racks of these sizes, one member on each host; the uplink of the first rack and the last member contended if
/// `contended`.
fn terrain(sizes: &[u32], contended: bool) -> (Terrain, Vec<u32>) {
    let racks: Vec<u32> =
        (0..).zip(sizes).flat_map(|(rack, size)| (0..*size).map(move |_| rack)).collect();
    let hosts: Vec<u32> = (0..racks.len() as u32).collect();
    let last = racks.len() - 1;
    let contended_hosts = (0..racks.len()).map(|host| contended && host == last).collect();
    (Terrain { racks, contended_hosts, contended_racks: vec![contended] }, hosts)
}

#[test]
fn shuffling_is_fair_in_every_group_of_racks_and_brings_all_together() {
    for sizes in [&[3, 3, 3, 3][..], &[4, 2, 1], &[8; 8], &[2, 2], &[5, 5, 1, 1, 7], &[64]] {
        for contended in [false, true] {
            let (terrain, hosts) = terrain(sizes, contended);
            let shuffle = strategy::find_on("shuffle", Some(terrain)).unwrap();
            let steps = 24;
            let mut products: Vec<(u64, Vec<Matrix>)> =
                (0..4).map(|quarter| (quarter * 250, Vec::new())).collect();
            for step in 0..steps {
                let proof = prove(shuffle.as_ref(), &hosts, step, 0, Span { offset: 0, len: 1000 });
                for (element, period) in &mut products {
                    let holds = |span: &Span| span.offset <= *element && *element < span.end();
                    let found = proof.mixing.iter().find(|(span, _)| holds(span)).unwrap();
                    period.push(found.1.clone());
                }
            }
            for (element, period) in products {
                let factor = contraction(&period);
                assert!(factor < 0.5, "{sizes:?}, element {element}: {factor}");
            }
        }
    }
}

#[test]
fn more_servers_than_members_are_as_many_as_members() {
    let many = strategy::by_name("parameter_server:99").unwrap();
    let (many, all) = (many.as_ref(), strategy::ParameterServer::All);
    for (left, right) in programs(many, &[0; 6], 0, 0, Span { offset: 0, len: 60 })
        .iter()
        .zip(&programs(&all, &[0; 6], 0, 0, Span { offset: 0, len: 60 }))
    {
        for lane in 0..left.lanes() {
            for pc in 0..20 {
                assert_eq!(left.instr(lane, pc), right.instr(lane, pc));
            }
        }
    }
}

#[test]
fn servers_apart_contribute_nothing_and_leave_the_workers_two_chunks_on_the_wire() {
    let apart = strategy::by_name("parameter_server:2:apart").unwrap();
    let (span, hosts) = (Span { offset: 0, len: 600 }, [0; 5]);
    assert_eq!(apart.contributors(5), 3);
    let programs = programs(apart.as_ref(), &hosts, 0, 0, span);
    for server in &programs[3..] {
        let instrs = |lane| (0..).map_while(move |pc| server.instr(lane, pc));
        let mut reads = (0..server.lanes()).flat_map(instrs).map(|instr| format!("{instr:?}"));
        assert!(reads.all(|instr| !instr.contains("Own")), "a server reads its own input");
    }
    let everybody = check(&programs, &Expectation::all_reduce(5, span));
    assert!(everybody.is_err(), "five contributions were found where three were made");
    // Each of three workers hands in a chunk; each server answers them and the other server.
    let proof = prove(apart.as_ref(), &hosts, 0, 0, span);
    assert_eq!((proof.rounds, proof.elements), (2, 3 * 600 + 2 * 4 * 300));
}
