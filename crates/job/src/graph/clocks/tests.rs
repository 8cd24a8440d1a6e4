//! Traces whose clocks are known to be wrong, and by how much.

use super::*;
use crate::Random;
use crate::trace::{
    Collective, Direction, Kind, Lane, LaneId, LaneKind, Message, Span, Step, WorkerTrace,
};

/// Nanoseconds of latency that every message has at least.
const LATENCY: f64 = 50e3;
/// And what it may take longer, rarely all of it.
const JITTER: f64 = 200e3;

/// A cluster with wrong clocks, whose workers write down what happens at true times.
struct Cluster {
    hosts: Vec<usize>,
    /// Of each host, in nanoseconds.
    offsets: Vec<f64>,
    /// Of each host: nanoseconds gained in each.
    drifts: Vec<f64>,
    random: Random,
    trace: Trace,
}

impl Cluster {
    fn new(hosts: &[usize], offsets: &[f64], drifts: &[f64]) -> Cluster {
        let worker = |(rank, host): (usize, &usize)| WorkerTrace {
            rank: Rank(rank as u32),
            host: format!("host{host}"),
            lanes: vec![Lane { name: "network".to_string(), kind: LaneKind::Network }],
            ..WorkerTrace::default()
        };
        let workers = hosts.iter().enumerate().map(worker).collect();
        Cluster {
            hosts: hosts.to_vec(),
            offsets: offsets.to_vec(),
            drifts: drifts.to_vec(),
            random: Random::new(7),
            trace: Trace { workers, problems: Vec::new() },
        }
    }

    /// What a worker's clock says.
    fn local(&self, rank: usize, time: f64) -> Stamp {
        let host = self.hosts[rank];
        // As if counted from some day long ago, in which floating-point numbers have no nanoseconds.
        let base = 1_700_000_000_000_000_000_i64 + 86_400_000_000_000 * host as i64;
        Stamp(base + (time * (1.0 + self.drifts[host]) + self.offsets[host]).round() as i64)
    }

    fn record(&mut self, rank: usize, from: f64, to: f64, kind: Kind) {
        let (begin, end) = (self.local(rank, from), self.local(rank, to));
        let spans = &mut self.trace.workers[rank].spans;
        let (lane, length) = (LaneId(0), end.since(begin));
        spans.push(Span { name: "m".into(), lane, begin, length, kind, after: Vec::new() });
    }

    /// A message that was sent at a time; the receiver may have waited for it.
    fn message(&mut self, from: usize, to: usize, step: u64, tensor: u32, at: f64) {
        let late = self.random.unit().powi(3) * JITTER;
        let (first, last) = (at + LATENCY + late, at + LATENCY + late + 30e3);
        let waited = if self.random.unit() < 0.5 { at - 1e6 * self.random.unit() } else { first };
        let message = |direction, peer: usize| {
            Kind::Message(Box::new(Message {
                direction,
                peer: Rank(peer as u32),
                tensor: format!("t{tensor}").into(),
                use_number: step,
                chunk: 0,
                part: 0,
                bytes: 1000,
            }))
        };
        self.record(from, at, at + 20e3, message(Direction::Sent, to));
        self.record(to, waited, last, message(Direction::Received, from));
    }

    /// The rounds of rings, or of everybody with everybody, over so many seconds.
    fn run(&mut self, ring: bool, steps: u64, seconds: f64) {
        let size = self.hosts.len();
        for step in 0..steps {
            let begin = step as f64 * seconds * 1e9 / steps as f64;
            for tensor in 0..8 {
                for from in 0..size {
                    for to in (0..size).filter(|to| *to != from) {
                        let at = begin + 1e6 * f64::from(tensor) + 1e5 * self.random.unit();
                        if !ring || to == (from + 1) % size {
                            self.message(from, to, step, tensor, at);
                        }
                    }
                }
            }
        }
    }

    /// The largest error of any worker's clock at the beginning, in the middle and at the end, in nanoseconds.
    fn error(&self, clocks: &Clocks, seconds: f64) -> f64 {
        let mut worst = 0.0_f64;
        for rank in 0..self.hosts.len() {
            for time in [0.0, 0.5e9 * seconds, 1e9 * seconds] {
                let common = clocks.common(Rank(rank as u32), self.local(rank, time));
                worst = worst.max((common.0 - self.local(0, time).0).abs() as f64);
            }
        }
        worst
    }
}

const OFFSETS: [f64; 4] = [0.0, 50e6, -50e6, 13e6];
const HOSTS: [usize; 8] = [0, 0, 1, 1, 2, 2, 3, 3];

#[test]
fn offsets_are_found_again_within_the_jitter() {
    let mut cluster = Cluster::new(&HOSTS, &OFFSETS, &[0.0; 4]);
    cluster.run(false, 10, 1.0);
    let alignment = Clocks::align(&cluster.trace);
    assert_eq!(alignment.problems, []);
    let error = cluster.error(&alignment.clocks, 1.0);
    assert!(error < 0.1 * JITTER, "{error}");
    assert_eq!(alignment.clocks.offsets[0], 0);
    // Workers of a host share its clock, and every quickest message took some time.
    assert_eq!(alignment.clocks.offsets[2], alignment.clocks.offsets[3]);
    assert!(alignment.bounds.iter().all(|bound| bound.quickest > 0), "{:?}", alignment.bounds);
    assert_eq!(alignment.bounds.len(), 4 * 3);
    assert!(alignment.uncertainty[2..].iter().all(|half| *half > 0 && *half < 200_000));
}

#[test]
fn rings_have_no_way_back_but_all_the_way_round() {
    let mut cluster = Cluster::new(&HOSTS, &OFFSETS, &[0.0; 4]);
    cluster.run(true, 10, 1.0);
    let alignment = Clocks::align(&cluster.trace);
    assert_eq!(alignment.problems, []);
    let error = cluster.error(&alignment.clocks, 1.0);
    assert!(error < 0.25 * JITTER, "{error}");
}

#[test]
fn clocks_that_drift_are_followed() {
    for ring in [false, true] {
        let drifts = [0.0, 50e-6, -50e-6, 20e-6];
        let mut cluster = Cluster::new(&HOSTS, &OFFSETS, &drifts);
        cluster.run(ring, 60, 20.0);
        let alignment = Clocks::align(&cluster.trace);
        assert_eq!(alignment.problems, []);
        // A clock that ran 50 ppm fast for 20 seconds is a millisecond off.
        let error = cluster.error(&alignment.clocks, 20.0);
        assert!(error < 0.25 * JITTER, "{error}");
        let rate = alignment.clocks.drifts[2].rate;
        assert!((rate + 50e-6).abs() < 3e-6, "{rate}");
    }
}

#[test]
fn clocks_that_run_alike_have_no_drift() {
    let mut cluster = Cluster::new(&HOSTS, &OFFSETS, &[0.0; 4]);
    cluster.run(false, 40, 20.0);
    let alignment = Clocks::align(&cluster.trace);
    assert!(alignment.clocks.drifts.iter().all(|drift| drift.rate.abs() < 1e-6));
    assert!(cluster.error(&alignment.clocks, 20.0) < 0.1 * JITTER);
}

#[test]
fn bounds_that_contradict_each_other_are_reported_and_the_others_kept() {
    let mut cluster = Cluster::new(&[0, 1, 2], &OFFSETS[..3], &[0.0; 3]);
    cluster.run(false, 10, 1.0);
    // One clock jumps back for one message: it arrives before it was sent.
    for span in &mut cluster.trace.workers[1].spans {
        if let Kind::Message(message) = &span.kind
            && (message.direction, message.peer, message.use_number)
                == (Direction::Received, Rank(0), 4)
        {
            span.begin = Stamp(span.begin.0 - 2_000_000);
        }
    }
    let alignment = Clocks::align(&cluster.trace);
    // Both ways between the two contradict each other, and so does the way round by the third.
    for problem in &alignment.problems {
        let text = problem.to_string();
        assert!(text.starts_with("host0, host1") && text.contains("contradict"), "{text}");
    }
    assert!(!alignment.problems.is_empty());
    // The error of 2 ms is shared out; the others' clocks stay as right as before, or nearly.
    assert!(clocks_of(&alignment, &cluster, 1) < 1_100_000.0);
    let third = clocks_of(&alignment, &cluster, 2);
    assert!(third < 3.0 * JITTER, "{third}");
}

fn clocks_of(alignment: &Alignment, cluster: &Cluster, rank: usize) -> f64 {
    let common = alignment.clocks.common(Rank(rank as u32), cluster.local(rank, 0.5e9));
    (common.0 - cluster.local(0, 0.5e9).0).abs() as f64
}

#[test]
fn lost_messages_and_a_silent_worker_are_reported() {
    let mut cluster = Cluster::new(&[0, 1, 2], &OFFSETS[..3], &[0.0; 3]);
    cluster.run(false, 10, 1.0);
    cluster.trace.workers[2].spans.clear();
    cluster.trace.workers[1].spans.truncate(100);
    let alignment = Clocks::align(&cluster.trace);
    let texts: Vec<String> = alignment.problems.iter().map(Problem::to_string).collect();
    assert!(texts[0].contains("only one end"), "{texts:?}");
    assert!(texts[1].starts_with("worker 2: no message"), "{texts:?}");
    assert_eq!(alignment.clocks.offsets[2], 0);
    assert!(clocks_of(&alignment, &cluster, 1) < 0.25 * JITTER);
}

#[test]
fn messages_at_the_ends_of_recordings_need_no_other_end() {
    let lost = |time: f64| {
        let mut cluster = Cluster::new(&[0, 1], &OFFSETS[..2], &[0.0; 2]);
        cluster.run(false, 10, 1.0);
        // Steps are marked for 0.1 to 0.9 s, the last of them for 0.7 s and more. Worker 1 lacks what it did at some time.
        let from = cluster.local(1, time);
        cluster.trace.workers[1]
            .spans
            .retain(|span| span.begin < from || from.after(20_000_000) < span.begin);
        for rank in 0..2 {
            let stamp = |time: f64| cluster.local(rank, time * 1e9 - 5e6);
            let step = |number, from, to| Step { number, begin: stamp(from), end: stamp(to) };
            let steps = vec![step(3, 0.1, 0.7), step(4, 0.7, 0.9)];
            cluster.trace.workers[rank].steps = steps;
        }
        let problems = Clocks::align(&cluster.trace).problems;
        problems.iter().any(|problem| problem.text.contains("only one end"))
    };
    let found = [0.0, 0.2, 0.6, 0.7, 0.9].map(|time| lost(time * 1e9 - 2e6));
    assert_eq!(found, [false, true, true, false, false]);
}

#[test]
fn one_way_messages_are_taken_to_be_as_quick_as_others() {
    let mut cluster = Cluster::new(&[0, 1, 2], &OFFSETS[..3], &[0.0; 3]);
    for step in 0..20 {
        for (from, to) in [(0, 1), (1, 0), (1, 2)] {
            cluster.message(from, to, step, 0, step as f64 * 1e7);
        }
    }
    let alignment = Clocks::align(&cluster.trace);
    assert_eq!(alignment.problems.len(), 1);
    assert!(alignment.problems[0].to_string().starts_with("host1, host2: messages"));
    assert!(cluster.error(&alignment.clocks, 0.2) < 0.5 * JITTER);
}

#[test]
fn operations_end_together_where_there_are_no_messages() {
    let mut cluster = Cluster::new(&[0, 1, 2], &OFFSETS[..3], &[0.0, 20e-6, -20e-6]);
    for number in 0..400 {
        let over = number as f64 * 5e7;
        for rank in 0..3 {
            let kind = Kind::Collective(Box::new(Collective {
                operation: "all_reduce".into(),
                group: "default".into(),
                members: Vec::new(),
                sequence: Some(number),
                tensor: None,
                bytes: 1000,
                dtype: None,
                priority: 0,
            }));
            let late = 20e3 * cluster.random.unit();
            let waited = 5e6 * cluster.random.unit();
            cluster.record(rank, over - waited, over + late, kind);
        }
    }
    let alignment = Clocks::align(&cluster.trace);
    assert_eq!(alignment.problems.len(), 1, "{:?}", alignment.problems);
    assert!(cluster.error(&alignment.clocks, 20.0) < 20e3);
}

#[test]
fn workers_of_one_host_with_clocks_of_their_own_are_noticed() {
    let mut cluster = Cluster::new(&[0, 1], &[0.0, 5e6], &[0.0; 2]);
    cluster.run(false, 10, 1.0);
    for worker in &mut cluster.trace.workers {
        worker.host = "one".to_string();
    }
    let alignment = Clocks::align(&cluster.trace);
    assert!(alignment.problems[0].text.contains("clocks of their own"));
    assert!(cluster.error(&alignment.clocks, 1.0) < 0.25 * JITTER);
}

#[test]
fn the_same_trace_gives_the_same_clocks_and_an_empty_one_none() {
    let mut cluster = Cluster::new(&HOSTS, &OFFSETS, &[0.0; 4]);
    cluster.run(true, 3, 1.0);
    assert_eq!(Clocks::align(&cluster.trace), Clocks::align(&cluster.trace));
    assert_eq!(Clocks::align(&Trace::default()), Alignment::default());
}
