//! Workers that disagree about a tensor, or of which some never post it: only that tensor fails, everywhere,
//! with an error that says who and what to do; everything else in flight ends well.

mod cluster;
mod trouble_support;

use cluster::{WIRINGS, Wiring};
use paceline_job::{Rank, ReduceOp};
use paceline_net::{Buffers, Element, NetError, Operation, Worker};
use paceline_sync::collective::Collective;
use std::{sync::mpsc, thread, time::Duration};
use trouble_support::*;

/// Waits for one tensor.
type Waiting<'a> = Box<dyn FnOnce() -> Result<(), NetError> + 'a>;

fn start<'a, T: Element + PartialEq + std::fmt::Debug>(
    worker: &'a Worker,
    operation: Operation,
    value: T,
    expected: Option<T>,
) -> Waiting<'a> {
    let me = worker.rank().0;
    let (input, output) = (operation.collective.input_len(me), operation.collective.output_len(me));
    let buffers = if operation.collective.in_place_allowed() {
        Buffers::InPlace(vec![value; input.max(output) as usize].into())
    } else {
        Buffers::Pair(vec![value; input as usize].into(), vec![value; output as usize].into())
    };
    let pending = worker.start_with(operation, buffers).unwrap();
    Box::new(move || {
        let (Buffers::InPlace(data) | Buffers::Pair(_, data)) = pending.wait()?;
        if let Some(expected) = expected {
            assert!(data.iter().all(|value| *value == expected));
        }
        Ok(())
    })
}

fn all_reduce(name: &str, len: u64) -> Operation {
    Operation::new(name, Collective::AllReduce { len })
}

/// How many tensors are in flight beside the one that ranks disagree about.
const OTHERS: usize = 40;

/// What became of the odd tensor on each rank.
fn disagree(
    size: usize,
    wiring: Wiring,
    odd: impl for<'a> Fn(&'a Worker) -> Waiting<'a> + Sync,
) -> Vec<Result<(), String>> {
    cluster::run(size, settings(), wiring, |worker| {
        let mut waiting = Vec::new();
        for index in 0..=OTHERS {
            waiting.push(match index == OTHERS / 2 {
                true => odd(&worker),
                false => {
                    let operation = all_reduce(&format!("tensor {index}"), 500 * index as u64);
                    start(&worker, operation, 1_f32, Some(size as f32))
                }
            });
        }
        let mut outcome = None;
        for (index, waiting) in waiting.into_iter().enumerate() {
            let result = waiting();
            match index == OTHERS / 2 {
                true => outcome = Some(result.map_err(|error| error.to_string())),
                false => result.unwrap(),
            }
        }
        // Nobody leaves while another may still need it.
        worker.barrier("end").unwrap();
        outcome.unwrap()
    })
}

/// The rank that differs.
const ODD_ONE: u32 = 1;

fn assert_all_told(outcomes: &[Result<(), String>], words: &[&str]) {
    for (rank, outcome) in outcomes.iter().enumerate() {
        let text = outcome.as_ref().expect_err("it cannot have ended well");
        assert!(
            text.contains("`odd`") && text.contains("different names"),
            "worker {rank}: {text}"
        );
        assert!(words.iter().all(|word| text.contains(word)), "worker {rank}: {text}");
    }
}

#[test]
fn lengths_that_differ_fail_that_tensor_only() {
    for wiring in WIRINGS {
        for (theirs, ours) in [(1000, 1001), (7, 100_000), (100_000, 99_999), (0, 5000), (5000, 0)]
        {
            let len_of = |rank: u32| if rank == ODD_ONE { theirs } else { ours };
            let outcomes = disagree(4, wiring, |worker| {
                start(worker, all_reduce("odd", len_of(worker.rank().0)), 1_f32, None)
            });
            // An empty tensor needs nobody: where it was posted it may have ended before.
            let needed = (0..).zip(outcomes).filter(|(rank, _)| len_of(*rank) > 0);
            assert_all_told(&needed.map(|(_, outcome)| outcome).collect::<Vec<_>>(), &[]);
        }
    }
}

#[test]
fn types_and_reductions_that_differ_fail_that_tensor_only() {
    for wiring in WIRINGS {
        let outcomes = disagree(4, wiring, |worker| match worker.rank() == Rank(ODD_ONE) {
            true => start(worker, all_reduce("odd", 3000), 1_i32, None),
            false => start(worker, all_reduce("odd", 3000), 1_f32, None),
        });
        assert_all_told(&outcomes, &["f32", "i32"]);
        let outcomes = disagree(4, wiring, |worker| {
            let odd = worker.rank() == Rank(ODD_ONE);
            let reduce = if odd { ReduceOp::Max } else { ReduceOp::Sum };
            start(worker, all_reduce("odd", 3000).reduce(reduce), 1_f32, None)
        });
        assert_all_told(&outcomes, &["(max)", "(sum)"]);
    }
}

#[test]
fn collectives_that_differ_fail_that_tensor_only() {
    for wiring in WIRINGS {
        let outcomes = disagree(4, wiring, |worker| {
            let counts = [750; 4].into();
            let collective = match worker.rank() == Rank(ODD_ONE) {
                true => Collective::ReduceScatter { counts },
                false => Collective::AllReduce { len: 3000 },
            };
            start(worker, Operation::new("odd", collective), 1_f32, None)
        });
        assert_all_told(&outcomes, &[]);
    }
}

#[test]
fn roots_that_differ_are_told_to_whoever_waits_and_end_in_no_silence() {
    for wiring in WIRINGS {
        let outcomes = disagree(4, wiring, |worker| {
            let root = if worker.rank() == Rank(ODD_ONE) { 3 } else { 0 };
            let operation = Operation::new("odd", Collective::Broadcast { root, len: 3000 });
            start(worker, operation, 1_f32, None)
        });
        // Who has all it wants may be through before the others find out; who waits is told.
        let told: Vec<_> = outcomes.iter().filter(|outcome| outcome.is_err()).cloned().collect();
        assert!(!told.is_empty());
        assert_all_told(&told, &[]);
    }
}

#[test]
fn a_tensor_that_one_worker_never_posts_is_reported_to_all_and_then_fails() {
    count_panics();
    let mut settings = settings();
    settings.stall_report = Duration::from_millis(200);
    settings.timeout = Duration::from_secs(2);
    let job = &Job::new(3, settings);
    thread::scope(|scope| {
        let (failed, failures) = mpsc::channel();
        let waiting = [0, 1].map(|rank| {
            let failed = failed.clone();
            scope.spawn(move || {
                let (worker, reports) = job.worker(rank, "one host");
                worker.all_reduce("first", &mut [1_f32; 10], ReduceOp::Sum).unwrap();
                worker.all_reduce(&format!("of {rank}"), &mut [1_f32; 0], ReduceOp::Sum).unwrap();
                let error = worker.all_reduce("missed", &mut [1_f32; 10], ReduceOp::Sum);
                failed.send(()).unwrap();
                reports.expect(&["`missed`", "Not posted by worker 2 (last operation `first`)"]);
                reports.expect(&["Posted by worker 0", "1 (last operation `missed`)"]);
                let text = error.unwrap_err().to_string();
                assert!(text.contains("`missed`: no progress for"), "{text}");
                assert!(text.contains("Not posted by worker 2"), "{text}");
                assert!(text.contains("Post the tensor on every worker"), "{text}");
                worker.all_reduce("last", &mut [1_f32; 10], ReduceOp::Sum).unwrap();
            })
        });
        let (worker, reports) = job.worker(2, "one host");
        worker.all_reduce("first", &mut [1_f32; 10], ReduceOp::Sum).unwrap();
        // This worker is busy with something else, and is told all the same.
        reports.expect(&["waits for `missed`, which this worker has not posted", "`first`"]);
        for _ in 0..2 {
            failures.recv_timeout(PATIENCE).unwrap();
        }
        // Too late: it is told at once instead of waiting for the others.
        let error = worker.all_reduce("missed", &mut [1_f32; 10], ReduceOp::Sum);
        assert!(error.unwrap_err().to_string().contains("failed on worker"));
        worker.all_reduce("last", &mut [1_f32; 10], ReduceOp::Sum).unwrap();
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
    });
    assert_no_panics();
}
