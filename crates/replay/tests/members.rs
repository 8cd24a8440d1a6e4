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

fn play_all(seeds: u64, shape: impl Fn(&mut Conditions)) -> Ledger {
    let sum = RefCell::new(Ledger::default());
    under_seeds(seeds, |seed| {
        let mut conditions = Conditions::draw(&mut Random::new(seed));
        shape(&mut conditions);
        let run = play(conditions.clone(), seed).map_err(|it| format!("{it} ({conditions:?})"))?;
        sum.borrow_mut().add(&run);
        Ok(())
    });
    sum.into_inner()
}

#[test]
fn whatever_happens_workers_agree_and_those_who_are_left_finish() {
    let sum = play_all(1500, |_| {});
    if std::env::var_os("PACELINE_SEED").is_some() {
        return; // One run does not meet everything.
    }
    for (what, count, least) in [
        ("workers that finished", sum.finished, 1500),
        ("workers that joined", sum.joined, 200),
        ("recoveries", sum.recoveries, 1000),
        ("tensors of several contributors", sum.mixed, 50),
        ("samples that went back", sum.returned, 50),
        ("restarts of the coordinator", sum.restarts, 200),
        ("planned changes", sum.planned, 200),
    ] {
        assert!(count >= least, "too few {what}: {sum}");
    }
}

#[test]
fn what_is_mixed_in_groups_is_mixed_again_among_those_who_lack_it() {
    let sum = play_all(1000, |conditions| {
        let seed = conditions.compute ^ conditions.delay << 20;
        *conditions = conditions.clone().mixing(&mut Random::new(seed));
    });
    if std::env::var_os("PACELINE_SEED").is_some() {
        return;
    }
    for (what, count, least) in [
        ("workers that finished", sum.finished, 1000),
        ("workers that joined", sum.joined, 100),
        ("recoveries", sum.recoveries, 600),
        ("tensors of several contributors", sum.mixed, 500),
        ("planned changes", sum.planned, 100),
    ] {
        assert!(count >= least, "too few {what}: {sum}");
    }
}

#[test]
fn workers_that_train_apart_make_copies_equal_for_newcomers_and_samples_count_with_copies() {
    for (name, mode) in [("pairs", Mode::Pairs), ("local", Mode::Local(3))] {
        let sum = play_all(1000, |conditions| conditions.mode = mode);
        if std::env::var_os("PACELINE_SEED").is_some() {
            return;
        }
        for (what, count, least) in [
            ("workers that finished", sum.finished, 1000),
            ("workers that joined", sum.joined, 100),
            ("recoveries", sum.recoveries, 600),
            ("samples that went back", sum.returned, 50),
            ("planned changes", sum.planned, 100),
        ] {
            assert!(count >= least, "{name}: too few {what}: {sum}");
        }
    }
}

#[test]
fn newcomers_listen_to_a_step_while_others_go_on_whoever_is_lost_meanwhile() {
    let sum = play_all(1500, |conditions| {
        (conditions.listens, conditions.joins) = (true, conditions.joins.max(1));
    });
    if std::env::var_os("PACELINE_SEED").is_some() {
        return;
    }
    for (what, count, least) in [
        ("workers that finished", sum.finished, 1500),
        ("workers that listened", sum.listened, 400),
        ("states that were sent again", sum.sent_again, 20),
        ("recoveries", sum.recoveries, 1000),
        ("samples that went back", sum.returned, 50),
    ] {
        assert!(count >= least, "too few {what}: {sum}");
    }
}

#[test]
fn where_nothing_goes_wrong_everybody_finishes_and_nothing_is_recovered() {
    let sum = play_all(200, |conditions| {
        (conditions.crashes, conditions.cuts, conditions.restarts) = (0, 0, 0);
        (conditions.joins, conditions.leaves) = (0, 0);
    });
    assert_eq!((sum.recoveries, sum.lost), (0, 0), "{sum}");
    assert!(sum.finished >= 200, "{sum}");
}

#[test]
fn a_worker_that_dies_costs_nobody_else_its_place() {
    let sum = play_all(500, |conditions| {
        (conditions.crashes, conditions.workers) = (1, conditions.workers.max(2));
        (conditions.cuts, conditions.restarts, conditions.joins, conditions.leaves) = (0, 0, 0, 0);
    });
    assert_eq!(sum.lost, 0, "{sum}");
}
