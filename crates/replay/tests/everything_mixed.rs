//! Every collective under every strategy, mixed in one run, on clusters and settings drawn by lot: it
//! always ends, with the right results, and leaves nothing behind.

mod scenario;

use paceline_job::{Dtype, Rank, Time};
use paceline_replay::{Outcome, Random};
use paceline_sync::event::OpId;
use scenario::{STRATEGIES, Scenario, under_seeds};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

fn ends_well(scenario: &Scenario) -> Result<Outcome, String> {
    let mut run = scenario.run();
    let settings = || scenario.views.iter().map(|view| &view.settings).collect::<Vec<_>>();
    run.ended_well(scenario)
        .map_err(|complaint| format!("{complaint}\nsettings {:?}", settings()))?;
    Ok(run.outcome)
}

#[test]
fn every_mixture_ends_with_the_right_results_and_leaves_nothing_behind() {
    under_seeds(2000, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(8) as u32;
        ends_well(&Scenario::draw(&mut random, size)).map(|_| ())
    });
}

#[test]
fn larger_groups_end_with_the_right_results_too() {
    under_seeds(40, |seed| {
        let mut random = Random::new(seed);
        let size = *random.choose(&[1, 12, 16, 17, 24, 33]);
        ends_well(&Scenario::draw(&mut random, size)).map(|_| ())
    });
}

/// The most strategies that one worker had tensors of at once.
fn most_strategies_at_once(scenario: &Scenario, outcome: &Outcome) -> usize {
    let strategy = |index: usize| scenario.strategy(&scenario.operations[index]);
    let begins = |(at, rank, index): &(Time, Rank, usize)| (*rank, *at, 0, strategy(*index));
    let mut moments: Vec<_> = scenario.posts.iter().map(begins).collect();
    let ends = outcome.finishes.iter();
    moments.extend(ends.map(|end| (end.rank, end.at, 1, strategy(end.op.0 as usize))));
    // What is posted and ends at one time was there at once.
    moments.sort();
    let mut open: BTreeMap<(Rank, &str), i32> = BTreeMap::new();
    let mut most = 0;
    for (rank, _, ending, strategy) in moments {
        *open.entry((rank, strategy)).or_default() += if ending == 1 { -1 } else { 1 };
        let here = open.iter().filter(|((at, _), count)| *at == rank && **count > 0);
        most = most.max(here.count());
    }
    most
}

#[test]
fn with_the_least_credit_and_eager_bytes_all_strategies_at_once_make_progress() {
    // Each worker comes to the tensors of a view in an order of its own, finds other ones urgent, has
    // credit for one chunk, and room for one piece of what it has not posted.
    let met = Cell::new(BTreeSet::new());
    under_seeds(300, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(8) as u32;
        let scenario = Scenario::tightest(&mut random, size);
        let outcome = ends_well(&scenario)?;
        let mut seen = met.take();
        seen.insert(most_strategies_at_once(&scenario, &outcome));
        met.set(seen);
        Ok(())
    });
    let seen = met.take();
    assert_eq!(seen.last(), Some(&STRATEGIES.len()), "strategies that met on a worker: {seen:?}");
}

#[test]
fn neighbours_write_final_values_in_place_and_break_nothing() {
    let written = Cell::new(0);
    under_seeds(200, |seed| {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(&mut random, 5);
        for view in &mut scenario.views {
            let workers = &mut Arc::make_mut(view).workers;
            workers.iter_mut().for_each(|worker| worker.host = "host0".to_string());
        }
        let mut run = scenario.run();
        run.ended_well(&scenario)?;
        written.set(written.get() + run.cluster.memory().written_by_neighbours());
        Ok(())
    });
    assert!(written.get() > 0, "no neighbour ever wrote in place");
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    under_seeds(50, |seed| {
        let draw = || Scenario::draw(&mut Random::new(seed), 5);
        let (first, second) = (draw().run().outcome, draw().run().outcome);
        if first == second { Ok(()) } else { Err("two runs differ".to_string()) }
    });
}

#[test]
fn replicas_of_floats_are_bit_identical_whatever_the_order_of_arrival() {
    // The same tensors under different networks: delays and orders change, no bit of the result does.
    under_seeds(100, |seed| {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(&mut random, 6);
        scenario.operations.retain(|operation| operation.dtype == Dtype::F32);
        let known = scenario.operations.len();
        scenario.installs.iter_mut().for_each(|(at, ..)| *at = Time::ZERO);
        scenario.posts = (0..known)
            .flat_map(|index| {
                let members = scenario.operations[index].members.clone();
                members.into_iter().map(move |rank| (Time::ZERO, rank, index))
            })
            .collect();
        let mut outputs = |seed: u64| {
            scenario.config.seed = seed;
            scenario.config.network.jitter = Duration::from_nanos(seed % 200_000);
            let mut run = scenario.run();
            let taken = scenario
                .posts
                .iter()
                .map(|(_, rank, index)| run.cluster.memory_mut().take(*rank, OpId(*index as u32)));
            taken.collect::<Vec<_>>()
        };
        let first = outputs(random.bits());
        if first == outputs(random.bits()) { Ok(()) } else { Err("results differ".to_string()) }
    });
}
