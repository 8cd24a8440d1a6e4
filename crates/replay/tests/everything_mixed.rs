//! Every collective under every strategy, mixed, on clusters and settings drawn by lot: it always ends,
//! with the right results, and leaves nothing behind.

mod scenario;

use paceline_job::{Dtype, Rank};
use paceline_replay::Random;
use paceline_sync::{collective::Collective, event::OpId};
use scenario::{Run, Scenario, under_seeds};

fn everything_ends_well(scenario: &Scenario, run: &mut Run) -> Result<(), String> {
    let Run { outcome, cluster } = run;
    if outcome.cut_short {
        return Err("it never ends".to_string());
    }
    if !outcome.stuck.is_empty() {
        return Err(format!("stuck: {:?}", outcome.stuck));
    }
    if let Some(finish) = outcome.finishes.iter().find(|finish| finish.result.is_err()) {
        return Err(format!("failed: {finish:?}"));
    }
    if outcome.finishes.len() != scenario.posts.len() {
        return Err(format!("{} of {} ended", outcome.finishes.len(), scenario.posts.len()));
    }
    if let Some(violation) = cluster.memory().violations().first() {
        return Err(violation.clone());
    }
    for rank in (0..scenario.size()).map(Rank) {
        let load = cluster.load(rank);
        if load.operations != 0 || load.in_transport_bytes != 0 || load.scratch_bytes != 0 {
            return Err(format!("worker {rank} keeps {load:?}"));
        }
        if cluster.memory().scratch_in_use(rank) != 0 {
            return Err(format!("worker {rank} keeps scratch"));
        }
    }
    let strategy = scenario.view.settings.strategy.0.as_str();
    for (index, operation) in scenario.operations.iter().enumerate() {
        let mut outputs = Vec::new();
        for (member, rank) in operation.members.iter().enumerate() {
            let tensor = cluster.memory_mut().take(*rank, OpId(index as u32));
            let tensor = tensor.ok_or_else(|| format!("worker {rank} kept operation {index}"))?;
            operation.check(strategy, member, &tensor)?;
            outputs.push(tensor.out);
        }
        let replicated = matches!(operation.collectives[0], Collective::AllReduce { .. });
        if replicated && strategy != "gossip" && outputs.iter().any(|out| *out != outputs[0]) {
            return Err(format!("replicas of operation {index} differ: {operation:?}"));
        }
    }
    Ok(())
}

fn check(seed: u64, size: impl Fn(&mut Random) -> u32) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = size(&mut random);
    let scenario = Scenario::draw(&mut random, size);
    everything_ends_well(&scenario, &mut scenario.run())
        .map_err(|complaint| format!("{complaint}\nsettings {:?}", scenario.view.settings))
}

#[test]
fn every_mixture_ends_with_the_right_results_and_leaves_nothing_behind() {
    under_seeds(2000, |seed| check(seed, |random| 2 + random.below(8) as u32));
}

#[test]
fn larger_groups_end_with_the_right_results_too() {
    under_seeds(40, |seed| check(seed, |random| *random.choose(&[1, 12, 16, 17, 24, 33])));
}

#[test]
fn neighbours_write_final_values_in_place_and_break_nothing() {
    let written = std::cell::Cell::new(0);
    under_seeds(200, |seed| {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(&mut random, 5);
        let mut view = (*scenario.view).clone();
        view.workers.iter_mut().for_each(|worker| worker.host = "host0".to_string());
        scenario.view = std::sync::Arc::new(view);
        let mut run = scenario.run();
        everything_ends_well(&scenario, &mut run)?;
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
        scenario.posts = (0..known)
            .flat_map(|index| {
                let members = scenario.operations[index].members.clone();
                members.into_iter().map(move |rank| (paceline_job::Time::ZERO, rank, index))
            })
            .collect();
        let mut outputs = |seed: u64| {
            scenario.config.seed = seed;
            scenario.config.network.jitter = std::time::Duration::from_nanos(seed % 200_000);
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
