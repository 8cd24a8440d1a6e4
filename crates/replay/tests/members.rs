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

/// A claim, how many seeds show it, what runs are like, and what they must have met.
type Claim = (&'static str, u64, fn(&mut Conditions), &'static Least);

const CLAIMS: [Claim; 13] = [
    (
        "whatever happens, workers agree, and those who are left finish",
        1500,
        |_| {},
        &[
            JOINED,
            RECOVERIES,
            ("tensors of several contributors", |it| it.mixed, 50),
            RETURNED,
            RESTARTS,
            PLANNED,
        ],
    ),
    (
        "a sum of the program's own holds nobody's samples",
        1000,
        |it| {
            in_any_mode(it);
            (it.sums_before, it.crashes) = (Some(lot(it) as usize % 3), it.crashes.max(1));
        },
        &[RECOVERIES, RETURNED],
    ),
    (
        "what is mixed in groups is mixed again among those who lack it",
        1000,
        in_groups,
        &[JOINED, RECOVERIES, ("tensors of several contributors", |it| it.mixed, 500), PLANNED],
    ),
    (
        "workers that average in pairs make copies equal for newcomers, and samples count with copies",
        1000,
        |it| it.mode = Mode::Pairs,
        &[JOINED, RECOVERIES, RETURNED, PLANNED],
    ),
    (
        "so do those that average now and then",
        1000,
        |it| it.mode = Mode::Local(3),
        &[JOINED, RECOVERIES, RETURNED, PLANNED],
    ),
    (
        "so do those that average in every step and use it in the next",
        1000,
        averaging,
        &[JOINED, RECOVERIES, RETURNED, PLANNED],
    ),
    (
        "newcomers listen to steps while others go on, whoever is lost or comes meanwhile",
        1500,
        |it| (it.listens, it.joins) = (1 + lot(it) as usize % 4, it.joins.max(1)),
        &[
            ("workers that listened", |it| it.listened, 400),
            ("workers that listened to more than one step", |it| it.listened_on, 100),
            ("states that were sent again", |it| it.sent_again, 20),
            RECOVERIES,
            RETURNED,
        ],
    ),
    (
        "nobody leaves for a wish that a loss made true",
        1000,
        |it| {
            (it.resizes, it.crashes) = (2, it.crashes.max(1));
            (it.leaves, it.workers) = (0, it.workers.max(3));
        },
        &[
            ("wishes that came true by leaving", |it| it.shrunk, 200),
            ("wishes while somebody was lost", |it| it.shrunk_by_loss, 100),
        ],
    ),
    (
        "nobody waits for a worker whose program ends in the middle of a step",
        1000,
        |it| {
            in_any_mode(it);
            (it.ends, it.workers) = (1 + (it.compute % 3) as u32, it.workers.max(2));
        },
        &[RECOVERIES],
    ),
    (
        "whoever is stopped for too long is lost, and the others go on, be it a worker, the coordinator or all",
        1000,
        |it| {
            in_any_mode(it);
            (it.stops, it.elects) = (3, it.delay.is_multiple_of(2));
        },
        &[
            ("workers and coordinators that were stopped", |it| it.stopped, 1000),
            ("workers that were silent for too long", |it| it.silent, 50),
            ("coordinators that were elected", |it| it.elected, 50),
            RECOVERIES,
        ],
    ),
    (
        "of two halves of a network the one that reaches the coordinator goes on, and no other",
        1000,
        |it| {
            in_any_mode(it);
            (it.halves, it.workers) = (1, it.workers.max(2));
        },
        &[
            ("networks that fell into halves", |it| it.halves, 300),
            ("workers that came to a standstill", |it| it.stranded, 300),
            RECOVERIES,
        ],
    ),
    (
        "all of it holds together",
        1000,
        |it| {
            in_any_mode(it);
            (it.stops, it.halves, it.ends) = (1, 1, 1);
        },
        &[RECOVERIES],
    ),
    ("where nothing goes wrong, everybody finishes", 200, calm, &[]),
];

type Count = (&'static str, fn(&Ledger) -> usize, usize);
const JOINED: Count = ("workers that joined", |it| it.joined, 100);
const RECOVERIES: Count = ("recoveries", |it| it.recoveries, 300);
const RETURNED: Count = ("samples that went back", |it| it.returned, 50);
const RESTARTS: Count = ("restarts of the coordinator", |it| it.restarts, 200);
const PLANNED: Count = ("planned changes", |it| it.planned, 100);

fn lot(conditions: &Conditions) -> u64 {
    conditions.compute ^ conditions.delay << 20
}

fn in_groups(conditions: &mut Conditions) {
    *conditions = conditions.clone().mixing(&mut Random::new(lot(conditions)));
}

fn averaging(conditions: &mut Conditions) {
    *conditions = conditions.clone().averaging();
}

fn in_any_mode(conditions: &mut Conditions) {
    match lot(conditions) % 5 {
        0 => in_groups(conditions),
        1 => averaging(conditions),
        2 => conditions.mode = Mode::Pairs,
        3 => conditions.mode = Mode::Local(3),
        _ => conditions.listens = conditions.delay as usize % 4,
    }
}

fn calm(conditions: &mut Conditions) {
    (conditions.crashes, conditions.cuts, conditions.restarts) = (0, 0, 0);
    (conditions.joins, conditions.leaves) = (0, 0);
}

#[test]
fn what_is_claimed_of_workers_that_come_and_go_holds() {
    for (claim, seeds, shape, least) in CLAIMS {
        println!("{claim}:");
        println!("{}", play_all(seeds, shape, least));
    }
}

#[test]
fn where_nothing_goes_wrong_nothing_is_recovered() {
    let sum = play_all(200, calm, &[]);
    assert_eq!((sum.recoveries, sum.lost), (0, 0), "{sum}");
}

#[test]
fn a_worker_that_dies_costs_nobody_else_its_place() {
    let one_crash = |conditions: &mut Conditions| {
        calm(conditions);
        (conditions.crashes, conditions.workers) = (1, conditions.workers.max(2));
    };
    let sum = play_all(500, one_crash, &[]);
    assert_eq!(sum.lost, 0, "{sum}");
}

#[test]
fn nobody_loses_its_place_who_is_stopped_for_less_than_others_have_patience() {
    let shortly = |conditions: &mut Conditions| {
        calm(conditions);
        (conditions.stops, conditions.longest_stop) = (1, 19);
    };
    let sum = play_all(300, shortly, &[("stops", |it| it.stopped, 200)]);
    assert_eq!((sum.recoveries, sum.lost, sum.silent), (0, 0, 0), "{sum}");
    // And of those who are stopped for longer, nobody but them; a coordinator, or all together, cost nobody anything.
    let for_long = |conditions: &mut Conditions| {
        calm(conditions);
        conditions.stops = 1;
    };
    let sum = play_all(500, for_long, &[("workers that were lost", |it| it.silent, 10)]);
    assert!(sum.lost > 0 && sum.lost <= sum.silent, "{sum}");
}

/// Of the long set.
#[test]
fn seeds_that_failed_once_hold() {
    type Failed = (u64, fn(&mut Conditions), &'static str);
    let failed: [Failed; 3] = [
        (
            23_865,
            |it| it.mode = Mode::Pairs,
            "a worker was told of those who were dismissed when it had left itself",
        ),
        (
            23_870,
            |it| it.listens = 4,
            "a broadcast that failed on some was summed by others, who had not posted it",
        ),
        (
            1_386,
            |it| *it = it.clone().anything(1_386),
            "a coordinator was asked to go on without a worker of which it did not know yet that it is done",
        ),
    ];
    for (seed, shape, what_failed) in failed {
        let mut conditions = Conditions::draw(&mut Random::new(seed));
        shape(&mut conditions);
        let run = play(conditions, seed);
        assert!(run.is_ok(), "seed {seed}, where {what_failed}: {run:?}");
    }
}
