//! Waiting with a deadline, and calls that cannot work: the first end in time and lose nothing, the second
//! end at once, with an error that names the remedy.

mod cluster;
mod trouble_support;

use cluster::{WIRINGS, Wiring};
use paceline_job::{Rank, ReduceOp};
use paceline_net::{Buffers, Operation, Worker};
use paceline_sync::collective::Collective;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use trouble_support::settings;

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}

#[test]
fn a_wait_that_ends_early_leaves_the_operation_as_it_was() {
    for wiring in WIRINGS {
        let given_up = Barrier::new(2);
        cluster::run(2, settings(), wiring, |worker| {
            if worker.rank() == Rank(0) {
                let operation = Operation::new("late", Collective::AllReduce { len: 50_000 });
                let buffers = Buffers::InPlace(vec![1_f32; 50_000].into());
                let pending = worker.start_with(operation, buffers).unwrap();
                assert_eq!(pending.handle().wait_until(soon()), None);
                assert_eq!(pending.handle().wait_until(Instant::now()), None);
                assert_eq!(pending.handle().poll(), None);
                given_up.wait();
                let Buffers::InPlace(data) = pending.wait().unwrap() else { unreachable!() };
                assert!(data.iter().all(|value| *value == 2.0));
            } else {
                given_up.wait();
                worker.all_reduce("late", &mut [1_f32; 50_000], ReduceOp::Sum).unwrap();
            }
        });
    }
}

#[test]
fn a_deadline_is_kept_while_other_operations_keep_the_worker_busy() {
    for wiring in [Wiring::Shared, Wiring::Tcp] {
        let over = AtomicBool::new(false);
        cluster::run(2, settings(), wiring, |worker| {
            thread::scope(|scope| {
                // Both sides look after the same number of rounds whether to go on.
                let traffic = scope.spawn(|| {
                    let mut more = [1_u8];
                    while more == [1] {
                        let mut data = [1_f32; 100];
                        for _ in 0..50 {
                            worker.all_reduce("traffic", &mut data, ReduceOp::Max).unwrap();
                        }
                        more = [u8::from(!over.load(Ordering::Relaxed))];
                        worker.all_reduce("more", &mut more, ReduceOp::Min).unwrap();
                    }
                });
                if worker.rank() == Rank(0) {
                    let operation = Operation::new("late", Collective::AllReduce { len: 10 });
                    let buffers = Buffers::InPlace(vec![1_f32; 10].into());
                    let pending = worker.start_with(operation, buffers).unwrap();
                    assert_eq!(pending.handle().wait_until(soon()), None);
                    over.store(true, Ordering::Relaxed);
                    traffic.join().unwrap();
                    pending.wait().unwrap();
                } else {
                    traffic.join().unwrap();
                    worker.all_reduce("late", &mut [1_f32; 10], ReduceOp::Sum).unwrap();
                }
            });
        });
    }
}

/// Run by one worker alone; nobody else hears of it.
fn refused(worker: &Worker, operation: Operation, input: usize, output: usize) -> String {
    let (input, mut output) = (vec![1_f32; input], vec![0_f32; output]);
    worker.run(operation, &input, &mut output).unwrap_err().to_string()
}

#[test]
fn operations_that_cannot_work_are_refused_at_once_with_the_remedy() {
    let group = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>().into();
    cluster::run(2, settings(), Wiring::Shared, |worker| {
        let me = worker.rank().0;
        let op = |collective| Operation::new("x", collective);
        let all_reduce = || op(Collective::AllReduce { len: 4 });
        let counts = |counts: &[u64]| counts.into();
        for (operation, input, output, words) in [
            (all_reduce(), 3, 4, "takes 4 and 4"),
            (all_reduce().group(group(&[1 - me])), 4, 4, "not in the operation's group"),
            (all_reduce().group(group(&[])), 4, 4, "not in the operation's group"),
            (all_reduce().group(group(&[0, 1, 9])), 4, 4, "worker 9, which does not exist"),
            (all_reduce().group(group(&[0, 1, 0])), 4, 4, "twice"),
            (op(Collective::Broadcast { root: 2, len: 4 }), 0, 4, "root"),
            (op(Collective::Reduce { root: u32::MAX, len: 4 }), 4, 0, "root"),
            (
                op(Collective::AllGather { counts: counts(&[2]) }),
                if me == 0 { 2 } else { 0 },
                2,
                "one for each",
            ),
            (op(Collective::ReduceScatter { counts: counts(&[1, 1, 1]) }), 3, 1, "one for each"),
            (
                op(Collective::AllToAll { sends: counts(&[1]), receives: counts(&[1, 1]) }),
                1,
                2,
                "one for each",
            ),
            (
                op(Collective::AllToAll { sends: counts(&[1, 1]), receives: counts(&[2, 2]) }),
                2,
                4,
                "both must be the same",
            ),
        ] {
            let error = refused(&worker, operation, input, output);
            assert!(error.contains("`x`") && error.contains(words), "{error}");
        }
        let error = worker.send("x", Rank(me), &[1_f32]).unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
        let error = worker.recv("x", Rank(7), &mut [1_f32]).unwrap_err().to_string();
        assert!(error.contains("worker 7, which does not exist"), "{error}");
        let gather = op(Collective::AllGather { counts: counts(&[1, 1]) });
        let error = worker.run_in_place(gather, &mut [1_f32; 2]).unwrap_err().to_string();
        assert!(error.contains("cannot have its input and output in the same memory"), "{error}");
        // None of it has touched the name.
        let mut data = [1_f32; 4];
        worker.all_reduce("x", &mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [2.0; 4]);
    });
}

#[test]
fn memory_that_cannot_be_is_an_error() {
    cluster::run(1, settings(), Wiring::Shared, |worker| {
        for len in [usize::MAX, usize::MAX / 8, 1 << 61, 1 << 60, 1 << 40, (9 << 30) + 1] {
            let error = worker.alloc::<f64>(len).unwrap_err().to_string();
            assert!(error.contains("no shared memory"), "{len}: {error}");
        }
        assert_eq!(worker.alloc::<f64>(0).unwrap().len(), 0);
    });
}
