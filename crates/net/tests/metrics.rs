//! What real workers see of themselves, and of each other.

mod cluster;

use cluster::{WIRINGS, Wiring, run, run_with};
use paceline_job::{ReduceOp, Settings};
use paceline_net::{
    Buffer, Buffers, Measuring, Operation, Pending, Unwatched, Worker, WorkerConfig,
};
use paceline_sync::{
    collective::Collective,
    metrics::{FIRST_INTERVAL, JobMetrics},
};
use std::{collections::HashMap, sync::Arc};

const LAYERS: [(&str, usize); 3] = [("first", 400), ("second", 2_000_000), ("last", 20_000)];

/// Steps as the scheduled optimizer makes them: the forward pass waits layer by layer, the backward pass posts.
fn train(worker: &Worker, steps: u64) -> HashMap<u64, Arc<JobMetrics>> {
    let mut seen = HashMap::new();
    let mut underway: Vec<Pending<f32>> = Vec::new();
    for step in 0..steps {
        worker.begin_step(step).unwrap();
        seen.extend(worker.metrics().map(|metrics| (metrics.step, metrics)));
        for pending in underway.drain(..).rev() {
            drop(pending.wait().unwrap());
        }
        for (place, (name, len)) in LAYERS.iter().enumerate().rev() {
            let operation = Operation::new(*name, Collective::AllReduce { len: *len as u64 })
                .reduce(ReduceOp::Average)
                .priority(place as i64);
            let data = Buffers::InPlace(Buffer::from(vec![1.0; *len]));
            underway.push(worker.start_with(operation, data).unwrap());
        }
    }
    seen
}

#[test]
fn all_workers_see_the_same_of_a_step() {
    for wiring in WIRINGS {
        let seen = run(4, Settings::default(), wiring, |worker| train(&worker, 20));
        for metrics in seen.iter().flat_map(|seen| seen.values()) {
            let everywhere = seen.iter().filter_map(|seen| seen.get(&metrics.step));
            everywhere.for_each(|other| assert_eq!(other, metrics, "{wiring:?}"));
            assert_eq!(metrics.workers.len(), 4);
            assert!(metrics.step + 1 >= FIRST_INTERVAL);
            assert!(metrics.speed() > 0.0);
        }
        for seen in &seen {
            let latest = seen.values().max_by_key(|metrics| metrics.step).expect("some were seen");
            let shape: Vec<_> =
                latest.shape.tensors.iter().map(|tensor| (&*tensor.name, tensor.bytes)).collect();
            assert_eq!(shape, LAYERS.map(|(name, len)| (name, 4 * len as u64)), "{wiring:?}");
            for worker in &latest.workers {
                assert_eq!(worker.layers.len(), LAYERS.len());
            }
            // What takes less than half a millisecond says nothing of a wire, so a worker may have seen none.
            let rates = latest.workers.iter().map(|worker| worker.upload.max(worker.download));
            assert!(rates.fold(0.0, f64::max) > 0.0, "{wiring:?}: {:?}", latest.workers);
            let flows = latest.workers.iter().enumerate().flat_map(|(rank, worker)| {
                worker.flows.iter().map(move |flow| (flow.from.index(), rank, flow.rate()))
            });
            let flows: Vec<(usize, usize, f64)> = flows.collect();
            assert!(flows.iter().all(|(from, to, rate)| from != to && *rate > 0.0), "{flows:?}");
            assert!(!flows.is_empty() || !matches!(wiring, Wiring::Tcp), "{:?}", latest.workers);
        }
    }
}

#[test]
fn who_does_not_measure_has_no_metrics() {
    let config = || WorkerConfig { measuring: Measuring::Off, ..WorkerConfig::default() };
    let seen = run_with(2, Settings::default(), Wiring::Shared, config, |worker| {
        assert_eq!(worker.unwatched(), Some(Unwatched::NotMeasuring));
        train(&worker, 12)
    });
    assert!(seen.iter().all(HashMap::is_empty));
}

#[test]
fn a_worker_knows_why_policies_are_shown_nothing() {
    run(1, Settings::default(), Wiring::Shared, |worker| {
        assert_eq!(worker.unwatched(), Some(Unwatched::Alone));
    });
    run(2, Settings::default(), Wiring::Shared, |worker| {
        assert_eq!(worker.unwatched(), Some(Unwatched::NothingSeen));
        train(&worker, 20);
        assert_eq!(worker.unwatched(), None);
    });
}

#[test]
fn a_worker_that_leaves_does_not_wait_for_reports_of_others() {
    run(2, Settings::default(), Wiring::Tcp, |worker| {
        train(&worker, FIRST_INTERVAL);
        if worker.rank().0 == 0 {
            // Its report is on the way, and the other never makes one.
            worker.begin_step(FIRST_INTERVAL).unwrap();
        }
    });
}

#[test]
fn one_worker_alone_has_metrics() {
    let seen = run(1, Settings::default(), Wiring::Shared, |worker| train(&worker, 12));
    assert!(seen[0].values().all(|metrics| metrics.workers.len() == 1));
    assert!(!seen[0].is_empty());
}
