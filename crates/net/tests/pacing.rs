//! Connections that are paced: what they carry takes as long as it should, the urgent still goes first, and a pace can be changed
//! while workers run. Times have lower bounds only: no machine is too slow for them.

mod cluster;

use cluster::{WIRINGS, Wiring};
use paceline_job::{ByteSize, Rank, Rate, ReduceOp, Settings, StrategyChoice};
use paceline_net::{Buffers, Handle, Operation, Pace, Pending, Worker, WorkerConfig};
use paceline_sync::collective::Collective;
use std::time::{Duration, Instant};

fn paced(pace: &Pace) -> impl Fn() -> WorkerConfig + Sync {
    let pace = pace.clone();
    move || WorkerConfig { pace: Some(pace.clone()), ..WorkerConfig::default() }
}

fn start(worker: &Worker, name: &str, len: usize, priority: i64) -> Pending<f32> {
    let operation =
        Operation::new(name, Collective::AllReduce { len: len as u64 }).priority(priority);
    worker.start_with(operation, Buffers::InPlace(vec![1.0_f32; len].into())).unwrap()
}

/// Until it is over, or long enough.
fn is_over(handle: &Handle) -> bool {
    handle.wait_until(Instant::now() + Duration::from_secs(60)).is_some()
}

#[test]
fn bytes_over_paced_connections_take_at_least_bytes_over_rate() {
    for wiring in [Wiring::Tcp, Wiring::TcpStriped] {
        let pace = Pace::new(Rate::from_bytes_per_second(4e6));
        let took = cluster::run_with(2, Settings::default(), wiring, paced(&pace), |worker| {
            worker.barrier("begin").unwrap();
            let begin = Instant::now();
            let mut data = vec![1_u8; 1_000_000];
            match worker.rank() {
                Rank(0) => worker.send("data", Rank(1), &data).unwrap(),
                _ => worker.recv("data", Rank(0), &mut data).unwrap(),
            }
            begin.elapsed()
        });
        // The receiver may have begun later than the sender, by less than a packet of the barrier takes.
        let least = Duration::from_secs_f64((1e6 - 3000.0) / 4e6);
        assert!(took[0] >= least, "{wiring:?}: {took:?}");
    }
}

#[test]
fn what_comes_to_a_slow_worker_takes_as_long_as_what_leaves_it() {
    let (fast, slow) = (Pace::default(), Pace::new(Rate::from_bytes_per_second(2e6)));
    let configured = std::sync::Mutex::new(0);
    let config = || {
        let mut count = configured.lock().unwrap();
        *count += 1;
        // One of the two, whichever starts first: the data is sent both ways.
        let pace = if *count == 1 { slow.clone() } else { fast.clone() };
        WorkerConfig { pace: Some(pace), ..WorkerConfig::default() }
    };
    let took = cluster::run_with(2, Settings::default(), Wiring::Tcp, config, |worker| {
        let mut both = [Duration::ZERO; 2];
        for (from, took) in both.iter_mut().enumerate() {
            worker.barrier("begin").unwrap();
            let begin = Instant::now();
            let mut data = vec![1_u8; 500_000];
            let (from, to) = (Rank(from as u32), Rank(1 - from as u32));
            if worker.rank() == from {
                worker.send("data", to, &data).unwrap();
            } else {
                worker.recv("data", from, &mut data).unwrap();
            }
            worker.barrier("end").unwrap();
            *took = begin.elapsed();
        }
        both
    });
    let least = Duration::from_secs_f64((5e5 - 4500.0) / 2e6);
    assert!(took.iter().flatten().all(|took| *took >= least), "{took:?}");
}

#[test]
fn the_urgent_overtakes_what_waits_for_the_line() {
    let pace = Pace::default();
    let settings = Settings { partition: ByteSize::kib(16), ..Settings::default() };
    cluster::run_with(3, settings, Wiring::Tcp, paced(&pace), |worker| {
        worker.barrier("begin").unwrap();
        pace.set(Some(Rate::from_bits_per_second(8e6)));
        // Ten seconds' worth, of which a few packets leave before it.
        let long = start(&worker, "long", 2_500_000, 1);
        let urgent = start(&worker, "urgent", 1000, 0);
        assert!(is_over(urgent.handle()));
        assert!(long.handle().poll().is_none(), "the urgent came last");
        // All have seen it before anybody hurries.
        let seen = start(&worker, "seen", 1, -1);
        assert!(is_over(seen.handle()));
        pace.set(None);
        let Buffers::InPlace(sums) = long.wait().unwrap() else { panic!("started in place") };
        assert!(sums.iter().all(|sum| *sum == 3.0));
    });
}

#[test]
fn sums_over_a_paced_line_are_those_of_any_other() {
    let sum = |worker: Worker| {
        let mut data: Vec<f32> = (0..50_000).map(|at| (at % 31) as f32).collect();
        worker.all_reduce("data", &mut data, ReduceOp::Sum).unwrap();
        data
    };
    for strategy in ["ring", "parameter_server", "recursive_doubling"] {
        let settings = Settings {
            strategy: StrategyChoice(strategy.to_string()),
            partition: ByteSize::kib(8),
            ..Settings::default()
        };
        for wiring in WIRINGS {
            let pace = Pace::new(Rate::from_bits_per_second(400e6));
            let slow = cluster::run_with(4, settings.clone(), wiring, paced(&pace), sum);
            assert_eq!(slow, cluster::run(4, settings.clone(), wiring, sum), "{wiring:?}");
        }
    }
}
