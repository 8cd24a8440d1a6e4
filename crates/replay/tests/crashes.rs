//! Workers die and lose each other at any time: nobody hangs, every operation that needed the dead fails
//! with its name (or had ended), and every other one ends with the right result.

mod scenario;

use paceline_job::{Rank, Time};
use paceline_replay::{Fault, LinkName, Random};
use paceline_sync::event::{OpError, OpId};
use scenario::{Scenario, under_seeds};
use std::{cell::Cell, time::Duration};

/// Run a scenario with faults; `gone` are the workers that others may lose.
fn survive(
    seed: u64,
    faults: impl Fn(&mut Random, u32) -> (Vec<Fault>, Vec<Rank>),
) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = 2 + random.below(7) as u32;
    let scenario = Scenario::draw(&mut random, size);
    // As long as a run without faults takes, so that they fall anywhere.
    let span = scenario.run().outcome.end.0;
    let (faults, gone) = faults(&mut random, size);
    let mut cluster = scenario.cluster();
    scenario.post_all(&mut cluster);
    let mut crashed = Vec::new();
    for fault in faults {
        if let Fault::Crash(rank) = fault {
            crashed.push(rank);
        }
        cluster
            .inject(Time(random.below(span + span / 4 + 1)), fault)
            .map_err(|error| error.to_string())?;
    }
    let outcome = cluster.run();
    if outcome.cut_short || !outcome.stuck.is_empty() {
        return Err(format!("stuck: {:?}", outcome.stuck));
    }
    if let Some(violation) = cluster.memory().violations().first() {
        return Err(violation.clone());
    }
    for finish in &outcome.finishes {
        let operation = &scenario.operations[finish.op.0 as usize];
        let member = operation.member(finish.rank).ok_or("not a member")?;
        match finish.result.as_ref().map_err(|error| &**error) {
            Ok(()) => {
                let tensor = cluster.memory_mut().take(finish.rank, OpId(finish.op.0));
                operation.check(
                    scenario.strategy(operation),
                    member,
                    &tensor.ok_or("no tensor")?,
                )?;
            }
            Err(OpError::PeerLost { peer, .. }) if !operation.members.contains(peer) => {
                return Err(format!("{finish:?} does not need worker {peer}"));
            }
            Err(OpError::PeerLost { peer, .. }) if gone.contains(peer) => {}
            Err(error) => return Err(format!("worker {}: {error}", finish.rank)),
        }
    }
    for (_, rank, index) in &scenario.posts {
        let over = outcome
            .finishes
            .iter()
            .any(|finish| finish.rank == *rank && finish.op.0 as usize == *index);
        if !over && !crashed.contains(rank) {
            return Err(format!("worker {rank} never heard of operation {index}"));
        }
    }
    for rank in (0..size).map(Rank).filter(|rank| !crashed.contains(rank)) {
        let load = cluster.load(rank);
        // Scratch of eager messages may stay: their tensor may yet be posted.
        if load.operations != 0 || load.in_transport_bytes != 0 {
            return Err(format!("worker {rank} keeps {load:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_crash_fails_what_needs_the_dead_and_nothing_else() {
    under_seeds(1500, |seed| {
        survive(seed, |random, size| {
            let dead = Rank(random.below(u64::from(size)) as u32);
            (vec![Fault::Crash(dead)], vec![dead])
        })
    });
}

#[test]
fn several_crashes_leave_nobody_waiting() {
    under_seeds(700, |seed| {
        survive(seed, |random, size| {
            let dead: Vec<Rank> = (0..1 + random.below(3))
                .map(|_| Rank(random.below(u64::from(size)) as u32))
                .collect();
            (dead.iter().map(|rank| Fault::Crash(*rank)).collect(), dead)
        })
    });
}

/// A worker goes; whoever fails for it leaves at once or a moment later, as programs do that end on an error.
/// Every error names the first one, and not those that left because of it.
fn blame_the_first(seed: u64, first: impl Fn(Rank) -> Fault) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let size = 3 + random.below(6) as u32;
    let mut scenario = Scenario::draw(&mut random, size);
    // A thread that leaves has sent everything: frames that wait for it would never go.
    scenario.config.worker.per_frame = Duration::ZERO;
    let span = scenario.run().outcome.end.0;
    let gone = Rank(random.below(u64::from(size)) as u32);
    let mut cluster = scenario.cluster();
    scenario.post_all(&mut cluster);
    let at = Time(random.below(span + 1));
    cluster.inject(at, first(gone)).map_err(|error| error.to_string())?;
    let hesitation = *random.choose(&[0, 1_000, 100_000]);
    let mut leaving = vec![false; size as usize];
    let mut finishes = Vec::new();
    cluster.run_with(|cluster, finish| {
        if finish.result.is_err() && !std::mem::replace(&mut leaving[finish.rank.index()], true) {
            let at = Time(cluster.now().0 + random.below(hesitation + 1));
            cluster.inject(at, Fault::Leave(finish.rank)).expect("the worker exists");
        }
        finishes.push(finish);
    });
    let outcome = cluster.outcome(finishes);
    if outcome.cut_short || !outcome.stuck.is_empty() {
        return Err(format!("stuck: {:?}", outcome.stuck));
    }
    let mut indirect = 0;
    for finish in outcome.finishes.iter().filter(|finish| finish.rank != gone) {
        let Err(error) = &finish.result else { continue };
        let members = &scenario.operations[finish.op.0 as usize].members;
        let names_it = match &**error {
            OpError::PeerLost { peer, .. } if members.contains(&gone) => *peer == gone,
            // It takes no part in this one: whoever does and left says for whom.
            OpError::PeerLost { peer, reason, .. } => {
                indirect += 1;
                members.contains(peer) && reason.contains(&format!("after worker {gone} was gone"))
            }
            OpError::Aborted { reason, .. } => {
                indirect += 1;
                !members.contains(&gone) && reason.contains(&format!("worker {gone} is gone"))
            }
            _ => false,
        };
        if !names_it {
            return Err(format!("worker {gone} went, but worker {}: {error}", finish.rank));
        }
    }
    Ok(indirect)
}

#[test]
fn whoever_dies_is_named_by_all_even_if_others_left_for_it_before() {
    let indirect = Cell::new(0);
    under_seeds(700, |seed| {
        indirect.set(indirect.get() + blame_the_first(seed, Fault::Crash)?);
        Ok(())
    });
    assert!(indirect.get() > 0, "nobody failed for want of a survivor");
}

#[test]
fn whoever_leaves_too_early_is_named_by_all_even_if_others_left_for_it_before() {
    let indirect = Cell::new(0);
    under_seeds(700, |seed| {
        indirect.set(indirect.get() + blame_the_first(seed, Fault::Leave)?);
        Ok(())
    });
    assert!(indirect.get() > 0, "nobody failed for want of a survivor");
}

#[test]
fn two_workers_that_lose_each_other_are_lost_to_all() {
    under_seeds(700, |seed| {
        survive(seed, |random, size| {
            let one = random.below(u64::from(size)) as u32;
            let other = (one + 1 + random.below(u64::from(size) - 1) as u32) % size;
            // Whoever hears of one of them first closes it, so either may miss anybody.
            let everybody = (0..size).map(Rank).collect();
            (vec![Fault::Sever(Rank(one), Rank(other))], everybody)
        })
    });
}

#[test]
fn whoever_leaves_after_its_last_operation_costs_nobody_theirs() {
    under_seeds(700, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(7) as u32;
        let mut scenario = Scenario::draw(&mut random, size);
        // A thread that leaves has sent everything: frames that wait for it would never go.
        scenario.config.worker.per_frame = Duration::ZERO;
        let mut left_to_do = vec![0; size as usize];
        for (_, rank, _) in &scenario.posts {
            left_to_do[rank.index()] += 1;
        }
        let mut cluster = scenario.cluster();
        scenario.post_all(&mut cluster);
        let mut finishes = Vec::new();
        cluster.run_with(|cluster, finish| {
            let left_to_do = &mut left_to_do[finish.rank.index()];
            *left_to_do -= 1;
            if *left_to_do == 0 {
                let leave = Fault::Leave(finish.rank);
                cluster.inject(cluster.now(), leave).expect("the worker exists");
            }
            finishes.push(finish);
        });
        let outcome = cluster.outcome(finishes);
        let complete = outcome.finishes.len() == scenario.posts.len();
        let failed = outcome.finishes.iter().find(|finish| finish.result.is_err());
        match (complete, failed) {
            (true, None) if cluster.memory().violations().is_empty() => Ok(()),
            _ => {
                Err(format!("{failed:?}, {:?}, {:?}", outcome.stuck, cluster.memory().violations()))
            }
        }
    });
}

#[test]
fn a_link_that_is_cut_and_restored_only_costs_time() {
    under_seeds(300, |seed| {
        let mut random = Random::new(seed);
        let scenario = Scenario::draw(&mut random, 4);
        let undisturbed = scenario.run().outcome;
        let mut cluster = scenario.cluster();
        scenario.post_all(&mut cluster);
        let link = LinkName::MemoryOut(random.below(4) as u32);
        let cut = random.below(undisturbed.end.0 + 1);
        let inject = |cluster: &mut paceline_replay::Cluster<_>, at, fault| {
            cluster.inject(Time(at), fault).expect("the link exists");
        };
        inject(&mut cluster, cut, Fault::Cut(link));
        inject(&mut cluster, cut + 1_000_000, Fault::Restore(link));
        let outcome = cluster.run();
        let fine = outcome.finishes.iter().all(|finish| finish.result.is_ok());
        let complete = outcome.finishes.len() == scenario.posts.len();
        if fine && complete && cluster.memory().violations().is_empty() {
            Ok(())
        } else {
            Err(format!("{outcome:?}"))
        }
    });
}
