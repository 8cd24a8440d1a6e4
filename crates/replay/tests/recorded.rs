//! Recordings, played with the recorded times of operations, take what was measured: nothing of a step is lost on the way from
//! a trace to a graph, and nothing counts twice.

use paceline_job::{
    Dtype, Rank,
    graph::{Clocks, Job},
    trace::{
        Collective, Kind, Lane, LaneId, LaneKind, Layer, Phase, Span, Stamp, Step, Tensor, Trace,
        WorkerTrace,
    },
};
use paceline_replay::graph::{Network, play};

const STEPS: i64 = 4;
const LENGTH: i64 = 300;

/// What a worker does in a step: name, begin, end and kind.
type Doing = (&'static str, i64, i64, Kind);

const FORWARD: Kind = Kind::Work(Phase::Forward);
const BACKWARD: Kind = Kind::Work(Phase::Backward);
const UPDATE: Kind = Kind::Work(Phase::Update);

fn operation(tensor: Option<&str>, bytes: u64) -> Kind {
    Kind::Collective(Box::new(Collective {
        operation: "all_reduce".into(),
        group: "0".into(),
        members: Vec::new(),
        sequence: None,
        tensor: tensor.map(Into::into),
        bytes,
        dtype: Some(Dtype::F32),
        priority: 0,
    }))
}

/// Two workers with two layers of one tensor each.
fn job(crosses_step: bool, doing: impl Fn(i64, i64) -> Vec<Doing>) -> Job {
    let layer = |name: &str| {
        let tensor = Tensor { name: format!("{name}.w").into(), elements: 10, dtype: Dtype::F32 };
        Layer { name: name.into(), tensors: vec![tensor], activation_bytes: 0 }
    };
    let worker = |rank: i64| {
        let span = |step: i64, (name, begin, end, kind): Doing| Span {
            name: name.into(),
            lane: LaneId(0),
            begin: Stamp(step * LENGTH + begin),
            length: (end - begin) as u64,
            kind,
            after: Vec::new(),
        };
        let of_step = |step| doing(rank, step).into_iter().map(move |doing| span(step, doing));
        let mut spans: Vec<Span> = (0..STEPS).flat_map(of_step).collect();
        spans.sort_by_key(|span| span.begin);
        let step = |step: i64| Step {
            number: step as u64,
            begin: Stamp(step * LENGTH),
            end: Stamp((step + 1) * LENGTH),
        };
        WorkerTrace {
            rank: Rank(rank as u32),
            host: "here".to_string(),
            layers: vec![layer("a"), layer("b")],
            crosses_step,
            lanes: vec![Lane { name: "training".into(), kind: LaneKind::Thread }],
            spans,
            steps: (0..STEPS).map(step).collect(),
            ..WorkerTrace::default()
        }
    };
    let trace = Trace { workers: vec![worker(0), worker(1)], ..Trace::default() };
    Job::from_trace(&trace, &Clocks::default()).unwrap()
}

fn assert_takes_what_was_measured(job: &Job) {
    let played = play(&job.graph, &Network::Recorded).unwrap();
    let ends = played.steps.iter().map(|step| step.iter().max().unwrap().0);
    let expected = (1..=STEPS as u64).map(|step| step * LENGTH as u64);
    assert_eq!(ends.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(job.measured, [LENGTH as u64; STEPS as usize]);
}

#[test]
fn a_thread_that_wakes_up_late_under_ddp_is_part_of_the_step() {
    let job = job(false, |rank, _| {
        vec![
            ("a", 10, 20, FORWARD),
            ("b", 20, 30, FORWARD),
            ("b", 30, 50, BACKWARD),
            ("a", 50, 80 + 5 * rank, BACKWARD),
            // Posted before the backward pass is over, and through before its worker goes on.
            ("bucket", 70, 140, operation(None, 80)),
            ("wait", 90, 150 + 4 * rank, Kind::Wait),
            ("update", 160, 180, UPDATE),
        ]
    });
    assert!(job.layered.as_ref().unwrap().own_buckets);
    assert_takes_what_was_measured(&job);
}
