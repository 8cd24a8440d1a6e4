//! Collectives over real links: results, order independence, and the proof that a recorded run
//! replays on a fresh engine.

mod cluster;

use cluster::{WIRINGS, Wiring};
use paceline_job::{ByteSize, Rank, ReduceOp, Settings, StrategyChoice};
use paceline_net::{Buffers, Operation, WorkerConfig};
use paceline_sync::{collective::Collective, program::Semantics, strategy};

fn with_strategy(name: &str) -> Settings {
    Settings {
        strategy: StrategyChoice(name.to_string()),
        partition: ByteSize::kib(16),
        credit: ByteSize::kib(64),
        ..Settings::default()
    }
}

/// Different on every rank and element, exact in f32 whatever the order of summation.
fn contribution(rank: u32, len: usize) -> Vec<f32> {
    (0..len).map(|index| ((index * 7 + rank as usize * 13) % 101) as f32).collect()
}

fn expected_sum(size: usize, len: usize) -> Vec<f32> {
    (0..len)
        .map(|index| (0..size).map(|rank| ((index * 7 + rank * 13) % 101) as f32).sum())
        .collect()
}

#[test]
fn every_strategy_sums_over_every_wiring() {
    for strategy in strategy::all() {
        if strategy.semantics() != Semantics::Reduce {
            continue;
        }
        for wiring in WIRINGS {
            let size = 4;
            let results = cluster::run(size, with_strategy(&strategy.name()), wiring, |worker| {
                let mut results = Vec::new();
                for len in [1, 3, 1000, 40_000] {
                    let mut data = contribution(worker.rank().0, len);
                    worker.all_reduce(&format!("t{len}"), &mut data, ReduceOp::Sum).unwrap();
                    results.push(data);
                }
                results
            });
            for rank in results {
                for data in rank {
                    assert!(
                        data == expected_sum(size, data.len()),
                        "{} {wiring:?} {}",
                        strategy.name(),
                        data.len()
                    );
                }
            }
        }
    }
}

#[test]
fn many_tensors_posted_in_any_order_all_finish() {
    for wiring in WIRINGS {
        let lens: Vec<usize> = (0..40).map(|index| 1 + index * index * 17).collect();
        let results = cluster::run(4, with_strategy("auto"), wiring, |worker| {
            let shift = worker.rank().index() * 11;
            let pending: Vec<_> = (0..lens.len())
                .map(|index| (index + shift) % lens.len())
                .map(|index| {
                    let len = lens[index];
                    let operation = Operation::new(
                        format!("tensor {index}"),
                        Collective::AllReduce { len: len as u64 },
                    )
                    .priority(index as i64 % 5);
                    let data = if index % 2 == 0 {
                        contribution(worker.rank().0, len).into()
                    } else {
                        let mut data = worker.alloc(len).unwrap();
                        data.copy_from_slice(&contribution(worker.rank().0, len));
                        data.into()
                    };
                    worker.start_with(operation, Buffers::InPlace(data)).unwrap()
                })
                .collect();
            let sums: Vec<Vec<f32>> = pending
                .into_iter()
                .map(|pending| match pending.wait().unwrap() {
                    Buffers::InPlace(data) => data.to_vec(),
                    Buffers::Pair(..) => unreachable!("posted in place"),
                })
                .collect();
            assert_eq!(worker.load().scratch_bytes, 0);
            sums
        });
        for sums in results {
            for sum in sums {
                assert!(sum == expected_sum(4, sum.len()), "{wiring:?} {}", sum.len());
            }
        }
    }
}

#[test]
fn the_other_collectives_move_the_right_blocks() {
    for wiring in WIRINGS {
        let size = 4_u32;
        cluster::run(size as usize, with_strategy("auto"), wiring, |worker| {
            let me = worker.rank().0;
            let counts: Vec<u64> = (0..u64::from(size)).map(|rank| rank * 3000 + 1).collect();
            let block = |rank: u32| vec![rank as f32 + 0.5; counts[rank as usize] as usize];
            let all: Vec<f32> = (0..size).flat_map(block).collect();
            let total = all.len();

            let mut gathered = vec![0.0; total];
            let gather = Collective::AllGather { counts: counts.clone().into() };
            worker.run(Operation::new("ag", gather), &block(me), &mut gathered).unwrap();
            assert!(gathered == all, "{wiring:?}");

            let mut mine = vec![0.0; counts[me as usize] as usize];
            let scatter = Collective::ReduceScatter { counts: counts.clone().into() };
            worker.run(Operation::new("rs", scatter), &all, &mut mine).unwrap();
            assert!(mine.iter().all(|value| *value == (me as f32 + 0.5) * size as f32));

            let mut data = if me == 2 { all.clone() } else { vec![0.0; total] };
            worker.broadcast("b", Rank(2), &mut data).unwrap();
            assert!(data == all);

            let mut out = vec![0.0; if me == 1 { total } else { 0 }];
            let reduce = Collective::Reduce { root: 1, len: total as u64 };
            worker.run(Operation::new("r", reduce), &all, &mut out).unwrap();
            assert!(out.iter().zip(&all).all(|(sum, one)| *sum == one * size as f32));

            let mut out = vec![0.0; if me == 3 { total } else { 0 }];
            let gather = Collective::Gather { root: 3, counts: counts.clone().into() };
            worker.run(Operation::new("g", gather), &block(me), &mut out).unwrap();
            assert!(out.is_empty() || out == all);

            let input = if me == 0 { all.clone() } else { Vec::new() };
            let mut out = vec![0.0; counts[me as usize] as usize];
            let scatter = Collective::Scatter { root: 0, counts: counts.clone().into() };
            worker.run(Operation::new("s", scatter), &input, &mut out).unwrap();
            assert!(out == block(me));

            // Rank r sends r + p + 1 elements to rank p.
            let pair = |from: u32, to: u32| vec![(from * 10 + to) as f32; (from + to + 1) as usize];
            let sends: Vec<u64> = (0..size).map(|to| pair(me, to).len() as u64).collect();
            let receives: Vec<u64> = (0..size).map(|from| pair(from, me).len() as u64).collect();
            let input: Vec<f32> = (0..size).flat_map(|to| pair(me, to)).collect();
            let wanted: Vec<f32> = (0..size).flat_map(|from| pair(from, me)).collect();
            let mut out = vec![0.0; wanted.len()];
            let exchange = Collective::AllToAll { sends: sends.into(), receives: receives.into() };
            worker.run(Operation::new("a2a", exchange), &input, &mut out).unwrap();
            assert!(out == wanted);

            match me {
                0 => worker.send("p2p", Rank(3), &all).unwrap(),
                3 => {
                    let mut out = vec![0.0; total];
                    worker.recv("p2p", Rank(0), &mut out).unwrap();
                    assert!(out == all);
                }
                _ => {}
            }
            worker.barrier("end").unwrap();
        });
    }
}

#[test]
fn servers_apart_sum_what_the_workers_hold_and_serve_no_smaller_group() {
    let (size, workers, len) = (5, 3, 20_000);
    for wiring in WIRINGS {
        let settings = with_strategy("parameter_server:2:apart");
        cluster::run(size, settings, wiring, |worker| {
            let me = worker.rank().0;
            let mut data = contribution(me, len);
            worker.all_reduce("sum", &mut data, ReduceOp::Sum).unwrap();
            assert!(data == expected_sum(workers, len), "rank {me}, {wiring:?}");

            let mut mean = vec![me as f32; 10];
            worker.all_reduce("mean", &mut mean, ReduceOp::Average).unwrap();
            assert_eq!(mean, [1.0; 10], "rank {me}, {wiring:?}");

            // Two workers and a server, among themselves.
            let group = [Rank(0), Rank(2), Rank(4)];
            if group.contains(&worker.rank()) {
                let mut data = vec![me as f32; 10];
                let sum = Collective::AllReduce { len: 10 };
                let operation = Operation::new("group", sum).group(group.into());
                worker.run_in_place(operation, &mut data).unwrap();
                assert_eq!(data, [6.0; 10], "rank {me}, {wiring:?}");
            }
            worker.barrier("end").unwrap();
        });
    }
}

#[test]
fn a_recorded_run_gives_the_same_actions_on_a_fresh_engine() {
    let apart = strategy::by_name("parameter_server:1:apart").unwrap();
    for strategy in strategy::all().into_iter().chain([apart]) {
        for wiring in [Wiring::Shared, Wiring::Tcp] {
            let record = || WorkerConfig { record: true, ..WorkerConfig::default() };
            let settings = with_strategy(&strategy.name());
            let records = cluster::run_with(4, settings, wiring, record, |worker| {
                for len in [10, 30_000] {
                    let mut data = contribution(worker.rank().0, len);
                    worker.all_reduce("again", &mut data, ReduceOp::Mix).unwrap();
                }
                worker.leave_with_record().unwrap()
            });
            for record in records {
                assert!(record.entries.len() > 4);
                let text = serde_json::to_string(&record).unwrap();
                let read: paceline_net::Record = serde_json::from_str(&text).unwrap();
                assert_eq!(read.verify(), Ok(()), "{} {wiring:?}", strategy.name());
            }
        }
    }
}

#[test]
fn averaging_strategies_bring_workers_together() {
    for name in ["gossip", "shuffle"] {
        let values = cluster::run(4, with_strategy(name), Wiring::Shared, |worker| {
            let mut data = vec![worker.rank().0 as f32 * 8.0; 100];
            for _ in 0..40 {
                worker.all_reduce("x", &mut data, ReduceOp::Mix).unwrap();
            }
            data[0]
        });
        assert!(values.iter().all(|value| (value - 12.0).abs() < 0.01), "{name}: {values:?}");
    }
}

#[test]
fn one_worker_alone_gets_its_own_back() {
    for wiring in WIRINGS {
        cluster::run(1, Settings::default(), wiring, |worker| {
            let mut data = contribution(3, 1000);
            worker.all_reduce("x", &mut data, ReduceOp::Average).unwrap();
            assert_eq!(data, contribution(3, 1000));
            worker.barrier("b").unwrap();
        });
    }
}

#[test]
fn under_gossip_only_what_is_to_be_mixed_is_not_exact() {
    for wiring in [Wiring::Shared, Wiring::Tcp] {
        let results = cluster::run(4, with_strategy("gossip"), wiring, |worker| {
            let me = worker.rank().0 as f32;
            let (mut sum, mut most) = ([me + 1.0; 3], [me; 3]);
            worker.all_reduce("sum", &mut sum, ReduceOp::Sum).unwrap();
            worker.all_reduce("most", &mut most, ReduceOp::Max).unwrap();
            let mut mean = [me; 3];
            worker.all_reduce("mean", &mut mean, ReduceOp::Average).unwrap();
            assert_eq!(mean, [1.5; 3]);
            let mut mixed = [2.0 * me; 3];
            worker.all_reduce("mixed", &mut mixed, ReduceOp::Mix).unwrap();
            // With one other of the four: never what all have on average, for this one at least.
            assert!(me > 0.0 || [1.0, 2.0, 3.0].contains(&mixed[0]), "{mixed:?}");
            (sum, most)
        });
        assert_eq!(results, [([10.0; 3], [3.0; 3]); 4], "{wiring:?}");
    }
}
