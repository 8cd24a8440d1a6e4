//! What samplers promise, under membership that does what it likes.
#![expect(
    clippy::single_range_in_vec_init,
    reason = "what comes back is a list of ranges, at times of one"
)]

use super::*;
use proptest::prelude::*;

const SEED: Shuffle = Shuffle::Seeded(11);

fn consumed(deal: &Deal) -> Vec<u64> {
    (0..deal.workers()).flat_map(|worker| deal.of(worker)).collect()
}

fn sorted(mut samples: Vec<u64>) -> Vec<u64> {
    samples.sort_unstable();
    samples
}

#[test]
fn workers_of_a_step_share_its_samples_and_steps_share_the_epoch() {
    let workers: Vec<Vec<Vec<u64>>> =
        (0..3).map(|worker| Sampler::new(40, SEED).batches(3, worker, 4).collect()).collect();
    assert!(workers.iter().all(|batches| batches.len() == 4));
    assert_eq!(sorted(workers.concat().concat()), Vec::from_iter(0..40));
    // 36 in three steps; the last has what is left.
    let last: Vec<usize> = workers.iter().map(|batches| batches[3].len()).collect();
    assert_eq!(last, [1, 1, 2]);
}

#[test]
fn a_rest_that_is_too_small_for_all_is_dealt_with_the_step_before() {
    let mut sampler = Sampler::new(14, SEED);
    assert_eq!(sampler.steps(&[2; 3]), 2);
    let sizes = |deal: &Deal| (0..3).map(|worker| deal.share(worker)).collect::<Vec<_>>();
    assert_eq!(sizes(&sampler.deal(&[2; 3]).unwrap().unwrap()), [2, 2, 2]);
    let last = sampler.deal(&[2; 3]).unwrap().unwrap();
    assert_eq!(sizes(&last), [2, 3, 3]);
    let weights: f64 = (0..3).map(|worker| last.weight(worker)).sum();
    assert!((weights - 3.0).abs() < 1e-12);
    assert!(sampler.deal(&[2; 3]).unwrap().is_none());
}

#[test]
fn a_lost_workers_samples_are_dealt_next() {
    let mut sampler = Sampler::new(100, SEED);
    let deal = sampler.deal(&[4; 4]).unwrap().unwrap();
    sampler.give_back(&deal, &[2]).unwrap();
    assert_eq!((sampler.left(), sampler.position().returned.as_slice()), (88, &[8..12][..]));
    let next = sampler.deal(&[4; 3]).unwrap().unwrap();
    assert_eq!(next.of(0).collect::<Vec<_>>(), deal.of(2).collect::<Vec<_>>());
    assert_eq!(sampler.position(), &Position { epoch: 0, dealt: 24, returned: vec![] });
}

#[test]
fn samples_of_an_epoch_that_is_over_are_not_taken_for_those_of_the_next() {
    let mut sampler = Sampler::new(4, SEED);
    let deal = sampler.deal(&[2; 2]).unwrap().unwrap();
    let before = Position::default();
    sampler.next_epoch();
    assert_eq!(sampler.give_back(&deal, &[0]), Err(SamplerError::Late { of: 0, now: 1 }));
    // Whoever kept the position from before the step goes back there.
    sampler.restore(before).unwrap();
    let again = sampler.deal(&[2; 2]).unwrap().unwrap();
    sampler.give_back(&again, &[0]).unwrap();
    assert_eq!(sampler.left(), 2);
}

#[test]
fn a_position_of_another_data_set_is_refused() {
    let mut sampler = Sampler::new(10, SEED);
    let ranges = |returned| Position { epoch: 0, dealt: 8, returned };
    let returned = [vec![2..2], vec![4..6, 5..7], vec![4..6, 6..7], vec![7..9], vec![6..7, 1..2]];
    for position in
        returned.map(ranges).into_iter().chain([Position { epoch: 0, dealt: 11, returned: vec![] }])
    {
        assert!(sampler.restore(position).is_err());
    }
    assert_eq!(sampler.restore(ranges(vec![2..3, 7..8])), Ok(()));
    assert_eq!(sampler.left(), 4);
}

#[test]
fn steps_without_workers_or_batches_are_refused() {
    let mut sampler = Sampler::new(10, SEED);
    assert_eq!(sampler.deal(&[]).unwrap_err(), SamplerError::NoBatch);
    assert_eq!(sampler.deal(&[3, 0]).unwrap_err(), SamplerError::NoBatch);
    assert!(Sampler::new(0, SEED).deal(&[1]).unwrap().is_none());
}

/// A step's batches, and whom it loses: bits by rank.
fn step() -> impl Strategy<Value = (Vec<u64>, u8)> {
    (prop::collection::vec(1_u64..9, 1..8), any::<u8>())
}

proptest! {
    #[test]
    fn an_epoch_has_every_sample_once_whatever_the_members_do(
        samples in 0_u64..600,
        seed: u64,
        history in prop::collection::vec(step(), 1..60),
    ) {
        let mut sampler = Sampler::new(samples, Shuffle::Seeded(seed));
        for epoch in 0..2 {
            let mut seen = Vec::new();
            // When the history is over, nobody is lost any more.
            let calm = history.iter().map(|(batches, _)| (batches.clone(), 0)).cycle();
            for (batches, losses) in history.iter().cloned().chain(calm) {
                let Some(deal) = sampler.deal(&batches).unwrap() else { break };
                prop_assert_eq!(deal.epoch(), epoch);
                let lost = |worker: &usize| losses >> (worker % 8) & 1 == 1;
                let (lost, stayed): (Vec<usize>, Vec<usize>) = (0..batches.len()).partition(lost);
                seen.extend(stayed.into_iter().flat_map(|worker| deal.of(worker)));
                sampler.give_back(&deal, &lost).unwrap();
                // Another process goes on from what this one knew.
                let position = sampler.position().clone();
                prop_assert!(position.returned.len() <= 8 * 60);
                sampler = Sampler::new(samples, Shuffle::Seeded(seed));
                sampler.restore(position).unwrap();
            }
            prop_assert!(sorted(seen).into_iter().eq(0..samples));
            sampler.next_epoch();
        }
    }

    #[test]
    fn the_number_of_steps_is_known_ahead(samples in 0_u64..500, batches in prop::collection::vec(1_u64..9, 1..8)) {
        let mut sampler = Sampler::new(samples, SEED);
        let expected = sampler.steps(&batches);
        let mut steps = 0;
        while let Some(deal) = sampler.deal(&batches).unwrap() {
            prop_assert!(deal.samples() > 0 && consumed(&deal).len() as u64 == deal.samples());
            steps += 1;
        }
        prop_assert_eq!(steps, expected);
    }

    #[test]
    fn equal_batches_leave_nobody_without_a_sample(samples in 8_u64..500, batch in 1_u64..9, size in 1_usize..9) {
        let mut sampler = Sampler::new(samples, SEED);
        while let Some(deal) = sampler.deal(&vec![batch; size]).unwrap() {
            for worker in 0..size {
                prop_assert!((1..=batch + 1).contains(&deal.share(worker)));
            }
        }
    }
}
