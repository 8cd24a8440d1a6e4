//! Jobs whose workers come and go, under crashes, joins, departures, delays of any length, cuts between workers, lost and
//! restarted coordinators: whatever happens, a version has one view, parameters are equal, no contribution counts twice
//! or is lost, samples of those who are gone are consumed or go back for all alike, and whoever reaches the coordinator
//! goes on.

mod scenario;

use paceline_replay::{
    Random,
    members::{Conditions, Ledger, Mode, play},
};
use scenario::under_seeds;
use std::cell::RefCell;

/// What a set of runs must have met, and how often at least: a set that does not meet it shows nothing.
type Least = [(&'static str, fn(&Ledger) -> usize, usize)];

fn play_all(seeds: u64, shape: impl Fn(&mut Conditions), least: &Least) -> Ledger {
    let sum = RefCell::new(Ledger::default());
    under_seeds(seeds, |seed| {
        let mut conditions = Conditions::draw(&mut Random::new(seed));
        shape(&mut conditions);
        let run = play(conditions.clone(), seed).map_err(|it| format!("{it} ({conditions:?})"))?;
        sum.borrow_mut().add(&run);
        Ok(())
    });
    let sum = sum.into_inner();
    // One run does not meet everything.
    if std::env::var_os("PACELINE_SEED").is_none() {
        assert!(sum.finished >= seeds as usize, "too few workers that finished: {sum}");
        for (what, count, least) in least {
            assert!(count(&sum) >= *least, "too few {what}: {sum}");
        }
    }
    sum
}

#[test]
fn whatever_happens_workers_agree_and_those_who_are_left_finish() {
    let least: &Least = &[
        ("workers that joined", |it| it.joined, 200),
        ("recoveries", |it| it.recoveries, 1000),
        ("tensors of several contributors", |it| it.mixed, 50),
        ("samples that went back", |it| it.returned, 50),
        ("restarts of the coordinator", |it| it.restarts, 200),
        ("planned changes", |it| it.planned, 200),
    ];
    play_all(1500, |_| {}, least);
}

#[test]
fn what_is_mixed_in_groups_is_mixed_again_among_those_who_lack_it() {
    let groups = |conditions: &mut Conditions| {
        let seed = conditions.compute ^ conditions.delay << 20;
        *conditions = conditions.clone().mixing(&mut Random::new(seed));
    };
    let least: &Least = &[
        ("workers that joined", |it| it.joined, 100),
        ("recoveries", |it| it.recoveries, 600),
        ("tensors of several contributors", |it| it.mixed, 500),
        ("planned changes", |it| it.planned, 100),
    ];
    play_all(1000, groups, least);
}

#[test]
fn workers_that_train_apart_make_copies_equal_for_newcomers_and_samples_count_with_copies() {
    let least: &Least = &[
        ("workers that joined", |it| it.joined, 100),
        ("recoveries", |it| it.recoveries, 600),
        ("samples that went back", |it| it.returned, 50),
        ("planned changes", |it| it.planned, 100),
    ];
    for mode in [Mode::Pairs, Mode::Local(3)] {
        play_all(1000, |conditions| conditions.mode = mode, least);
    }
}

#[test]
fn newcomers_listen_to_a_step_while_others_go_on_whoever_is_lost_meanwhile() {
    let listening = |conditions: &mut Conditions| {
        (conditions.listens, conditions.joins) = (true, conditions.joins.max(1));
    };
    let least: &Least = &[
        ("workers that listened", |it| it.listened, 400),
        ("states that were sent again", |it| it.sent_again, 20),
        ("recoveries", |it| it.recoveries, 1000),
        ("samples that went back", |it| it.returned, 50),
    ];
    play_all(1500, listening, least);
}

#[test]
fn nobody_leaves_for_a_wish_that_a_loss_made_true() {
    let resized = |conditions: &mut Conditions| {
        (conditions.resizes, conditions.crashes) = (2, conditions.crashes.max(1));
        (conditions.leaves, conditions.workers) = (0, conditions.workers.max(3));
    };
    let least: &Least = &[
        ("wishes that came true by leaving", |it| it.shrunk, 200),
        ("wishes while somebody was lost", |it| it.shrunk_by_loss, 100),
    ];
    play_all(1000, resized, least);
}

#[test]
fn nobody_waits_for_a_worker_whose_program_ends_in_the_middle_of_a_step() {
    for mode in [Mode::Synchronous, Mode::Groups, Mode::Pairs, Mode::Local(3)] {
        let ending = |conditions: &mut Conditions| {
            (conditions.mode, conditions.ends) = (mode, 1 + (conditions.compute % 3) as u32);
            conditions.workers = conditions.workers.max(2);
        };
        play_all(500, ending, &[("recoveries", |it| it.recoveries, 200)]);
    }
}

#[test]
fn where_nothing_goes_wrong_everybody_finishes_and_nothing_is_recovered() {
    let calm = |conditions: &mut Conditions| {
        (conditions.crashes, conditions.cuts, conditions.restarts) = (0, 0, 0);
        (conditions.joins, conditions.leaves) = (0, 0);
    };
    let sum = play_all(200, calm, &[]);
    assert_eq!((sum.recoveries, sum.lost), (0, 0), "{sum}");
}

#[test]
fn a_worker_that_dies_costs_nobody_else_its_place() {
    let one_crash = |conditions: &mut Conditions| {
        (conditions.crashes, conditions.workers) = (1, conditions.workers.max(2));
        (conditions.cuts, conditions.restarts, conditions.joins, conditions.leaves) = (0, 0, 0, 0);
    };
    let sum = play_all(500, one_crash, &[]);
    assert_eq!(sum.lost, 0, "{sum}");
}

/// Of the long set.
#[test]
fn seeds_that_failed_once_hold() {
    for (seed, what_failed) in [
        (23_865, "a worker was told of those who were dismissed when it had left itself"),
        (23_870, "a broadcast that failed on some was summed by others, who had not posted it"),
    ] {
        let conditions = Conditions::draw(&mut Random::new(seed)).any_mode(seed);
        let run = play(conditions, seed);
        assert!(run.is_ok(), "seed {seed}, where {what_failed}: {run:?}");
    }
}
