//! Trace files that are cut off, spoilt or no traces at all: any bytes give a trace whose parts refer to each other
//! properly, or a named error.

use paceline_job::trace::{Trace, TraceError, WorkerTrace, match_collectives};

/// One file.
pub fn run(bytes: &[u8]) {
    match Trace::read_bytes("rank0.json", bytes.to_vec()) {
        Ok(trace) => check(&trace),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!matches!(error, TraceError::Empty { .. }), "bytes are no folder");
        }
    }
}

fn check(trace: &Trace) {
    assert!(!trace.workers.is_empty());
    for worker in &trace.workers {
        check_worker(worker);
    }
    let (matched, _) = match_collectives(trace);
    for operation in matched {
        assert!(!operation.parts.is_empty());
        for (worker, span) in operation.parts {
            assert!((span.0 as usize) < trace.workers[worker].spans.len());
        }
    }
}

fn check_worker(worker: &WorkerTrace) {
    assert!(!worker.host.is_empty());
    assert!(worker.spans.is_sorted_by_key(|span| span.begin));
    for span in &worker.spans {
        assert!((span.lane.0 as usize) < worker.lanes.len());
        assert!(span.after.iter().all(|before| (before.0 as usize) < worker.spans.len()));
    }
    let mut numbers: Vec<u64> = worker.steps.iter().map(|step| step.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), worker.steps.len());
}
