//! Every collective, all chunks together, proven by the checker: uneven and empty blocks, any root,
//! any partition.

use paceline_sync::{
    checker::{Expectation, Proof, check_chunks},
    collective::Collective,
    program::{Program, Site},
    strategy,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Programs of all chunks, given what each member posts.
fn programs(posts: &[Collective], hosts: &[u32], partition: u64) -> Vec<Vec<Box<dyn Program>>> {
    let hosts: Arc<[u32]> = hosts.into();
    let ring = strategy::by_name("ring").unwrap();
    let site = |me: usize| Site { hosts: hosts.clone(), me: me as u32, step: 0, seed: 0 };
    let chunks = posts.iter().enumerate().map(|(me, post)| post.chunks(&site(me), partition)).max();
    (0..chunks.unwrap_or(0))
        .map(|chunk| {
            let program =
                |(me, post): (usize, &Collective)| post.program(&site(me), &ring, chunk, partition);
            posts.iter().enumerate().map(program).collect()
        })
        .collect()
}

fn prove(posts: &[Collective], hosts: &[u32], partition: u64) -> Proof {
    for post in posts {
        assert_eq!(post.validate(hosts.len() as u32), Ok(()));
    }
    let expect = Expectation::of_collective(posts);
    check_chunks(&programs(posts, hosts, partition), &expect)
        .unwrap_or_else(|violation| panic!("{posts:?} on {hosts:?} by {partition}: {violation}"))
}

/// What each member posts, where all post the same.
fn same(collective: Collective, members: usize) -> Vec<Collective> {
    vec![collective; members]
}

/// An all-to-all where member `from` sends `len(from, to)` elements to member `to`.
fn all_to_all(members: usize, len: impl Fn(usize, usize) -> u64) -> Vec<Collective> {
    (0..members)
        .map(|me| Collective::AllToAll {
            sends: (0..members).map(|to| len(me, to)).collect(),
            receives: (0..members).map(|from| len(from, me)).collect(),
        })
        .collect()
}

fn every_collective(
    members: usize,
    root: u32,
    len: u64,
    counts: &Arc<[u64]>,
) -> Vec<Vec<Collective>> {
    let counts = counts.clone();
    let mut posts: Vec<Vec<Collective>> = [
        Collective::AllReduce { len },
        Collective::ReduceScatter { counts: counts.clone() },
        Collective::AllGather { counts: counts.clone() },
        Collective::Broadcast { root, len },
        Collective::Reduce { root, len },
        Collective::Gather { root, counts: counts.clone() },
        Collective::Scatter { root, counts: counts.clone() },
        Collective::Barrier,
    ]
    .into_iter()
    .map(|collective| same(collective, members))
    .collect();
    let spread = |from: usize, to: usize| (counts[from] * 7 + to as u64 * 3) % 11;
    posts.push(all_to_all(members, spread));
    posts
}

#[test]
fn every_collective_is_right_for_every_world_size() {
    for members in 1..=64_usize {
        let hosts: Vec<u32> = (0..members as u32).map(|member| member % 5).collect();
        let counts: Arc<[u64]> = (0..members as u64).map(|member| member * 5 % 7).collect();
        let root = members as u32 / 3;
        for posts in every_collective(members, root, 2 * members as u64 + 3, &counts) {
            prove(&posts, &hosts, 2 * members as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_collective_is_right_for_any_blocks_root_and_partition(
        blocks in prop::collection::vec((0_u32..4, prop_oneof![Just(0), 0_u64..40]), 1..20),
        root in any::<u32>(),
        len in 0_u64..200,
        partition in 1_u64..100,
    ) {
        let (hosts, counts): (Vec<u32>, Vec<u64>) = blocks.into_iter().unzip();
        let root = root % hosts.len() as u32;
        for posts in every_collective(hosts.len(), root, len, &counts.into()) {
            prove(&posts, &hosts, partition);
        }
    }
}

#[test]
fn one_sends_and_the_other_receives() {
    for (to, from) in [(1, 0), (0, 1)] {
        let mut posts = [Collective::Send { to, len: 1000 }, Collective::Recv { from, len: 1000 }];
        if to == 0 {
            posts.reverse();
        }
        let proof = prove(&posts, &[0, 1], 300);
        assert_eq!((proof.messages, proof.elements), (4, 1000));
    }
}

#[test]
fn nothing_to_move_is_no_chunk_at_all() {
    let counts: Arc<[u64]> = vec![0; 4].into();
    for posts in every_collective(4, 1, 0, &counts) {
        let chunks = programs(&posts, &[0; 4], 10).len();
        match posts[0] {
            Collective::Barrier => assert_eq!(chunks, 1),
            Collective::AllToAll { .. } => {}
            _ => assert_eq!(chunks, 0, "{:?}", posts[0]),
        }
    }
}

#[test]
fn a_barrier_lets_nobody_leave_before_everybody_has_come() {
    // Every member's one element holds every contribution, so it depends on a message from all.
    for members in [1, 2, 3, 16, 33] {
        prove(&same(Collective::Barrier, members), &vec![0; members], 1);
    }
}

#[test]
fn a_large_broadcast_is_a_chain_and_a_small_one_a_tree() {
    let members = 16;
    let hosts = vec![0; members];
    let broadcast = |len| same(Collective::Broadcast { root: 3, len }, members);
    let small = prove(&broadcast(10), &hosts, 10);
    assert_eq!(small.rounds, 4);
    let large = prove(&broadcast(1000), &hosts, 10);
    assert_eq!(large.rounds, 15);
    assert_eq!(large.busiest_elements, 1000);
}

#[test]
fn signatures_agree_exactly_where_members_must() {
    let counts: Arc<[u64]> = vec![1, 2, 3].into();
    let other: Arc<[u64]> = vec![3, 2, 1].into();
    let gather = |root, counts: &Arc<[u64]>| Collective::Gather { root, counts: counts.clone() };
    assert_eq!(gather(1, &counts).signature(), gather(1, &counts).signature());
    assert_ne!(gather(1, &counts).signature(), gather(2, &counts).signature());
    assert_ne!(gather(1, &counts).signature(), gather(1, &other).signature());
    assert_ne!(
        Collective::AllGather { counts: counts.clone() }.signature(),
        Collective::ReduceScatter { counts: counts.clone() }.signature()
    );
    let exchange = all_to_all(3, |from, to| (from + 2 * to) as u64);
    assert_eq!(exchange[0].signature(), exchange[1].signature());
    assert_eq!(
        Collective::Send { to: 1, len: 4 }.signature(),
        Collective::Recv { from: 0, len: 4 }.signature()
    );
}

#[test]
fn what_no_group_can_do_is_refused_with_the_reason() {
    let counts: Arc<[u64]> = vec![1, 2, 3].into();
    let refused = |collective: Collective, members| collective.validate(members).unwrap_err();
    let error = refused(Collective::AllGather { counts: counts.clone() }, 4);
    assert!(error.contains("3 counts for 4 members"), "{error}");
    let error = refused(Collective::Broadcast { root: 4, len: 1 }, 4);
    assert!(error.contains("root"), "{error}");
    let error = refused(Collective::Send { to: 0, len: 1 }, 3);
    assert!(error.contains("between two"), "{error}");
    let huge: Arc<[u64]> = vec![u64::MAX, 2].into();
    assert!(refused(Collective::ReduceScatter { counts: huge }, 2).contains("overflow"));
}

#[test]
fn a_member_that_would_get_something_else_from_itself_than_it_sends_is_refused() {
    let exchange = Collective::AllToAll { sends: [1, 2, 3].into(), receives: [1, 4, 5].into() };
    assert_eq!(exchange.validate(3), Ok(()));
    assert_eq!(exchange.validate_for(0, 3), Ok(()));
    let error = exchange.validate_for(1, 3).unwrap_err();
    assert!(error.contains("sends 2 elements from member 1 to itself and receives 4"), "{error}");
    let error = Collective::Send { to: 1, len: 1 }.validate_for(1, 2).unwrap_err();
    assert!(error.contains("copy instead"), "{error}");
    // What nobody can do, no member can.
    assert!(exchange.validate_for(0, 2).unwrap_err().contains("one for each"));
}

#[test]
fn buffers_are_as_long_as_the_programs_need() {
    let counts: Arc<[u64]> = vec![1, 0, 3].into();
    let lens = |collective: Collective, me| (collective.input_len(me), collective.output_len(me));
    assert_eq!(lens(Collective::AllGather { counts: counts.clone() }, 2), (3, 4));
    assert_eq!(lens(Collective::ReduceScatter { counts: counts.clone() }, 2), (4, 3));
    assert_eq!(lens(Collective::Gather { root: 1, counts: counts.clone() }, 1), (0, 4));
    assert_eq!(lens(Collective::Gather { root: 1, counts: counts.clone() }, 0), (1, 0));
    assert_eq!(lens(Collective::Scatter { root: 1, counts }, 1), (4, 0));
}
