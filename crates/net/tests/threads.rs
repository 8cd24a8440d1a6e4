//! Several threads of one worker: some wait and drive, others post meanwhile, and callbacks post too.

mod cluster;

use cluster::{WIRINGS, Wiring};
use paceline_job::Settings;
use paceline_net::{Buffers, Operation, Worker};
use paceline_sync::collective::Collective;
use std::sync::mpsc;

fn sum_of_ones(worker: &Worker, name: String, len: usize) {
    let operation = Operation::new(name, Collective::AllReduce { len: len as u64 });
    let pending =
        worker.start_with(operation, Buffers::InPlace(vec![1.0_f32; len].into())).unwrap();
    let Buffers::InPlace(data) = pending.wait().unwrap() else { unreachable!("started in place") };
    assert!(data.iter().all(|value| *value == worker.size() as f32));
}

#[test]
fn threads_that_post_and_wait_at_once_all_get_their_sums() {
    for wiring in WIRINGS {
        cluster::run(3, Settings::default(), wiring, |worker| {
            let worker = &worker;
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        for turn in 0..15 {
                            let len = [1, 5_000, 300_000][turn % 3];
                            sum_of_ones(worker, format!("{thread} {turn}"), len);
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn what_one_thread_posts_goes_out_while_another_sleeps_for_something_else() {
    cluster::run(2, Settings::default(), Wiring::Tcp, |worker| {
        let worker = &worker;
        let (posted, all_posted) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            // Nothing arrives for this one until the other thread is done.
            scope.spawn(move || {
                if worker.rank().0 == 1 {
                    all_posted.recv().unwrap();
                }
                worker.barrier("late").unwrap();
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            // More than a connection holds, all in flight at once.
            let len = 4 << 20;
            let pending: Vec<_> = (0..4)
                .map(|index| {
                    let sum = Collective::AllReduce { len: len as u64 };
                    let buffers = Buffers::InPlace(vec![1.0_f32; len].into());
                    worker
                        .start_with(Operation::new(format!("bulk {index}"), sum), buffers)
                        .unwrap()
                })
                .collect();
            for pending in pending {
                pending.wait().unwrap();
            }
            // Worker 0's other thread does not listen, and may be gone.
            let _ = posted.send(());
        });
    });
}
