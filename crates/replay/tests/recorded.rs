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
    numbered("all_reduce", tensor, bytes, None)
}

fn numbered(operation: &str, tensor: Option<&str>, bytes: u64, sequence: Option<u64>) -> Kind {
    Kind::Collective(Box::new(Collective {
        operation: operation.into(),
        group: "0".into(),
        members: Vec::new(),
        sequence,
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

#[test]
fn workers_that_are_there_are_played_where_others_are_missing() {
    let worker = |rank: u32| {
        let layers = vec![Layer { name: "a".into(), ..Layer::default() }];
        let end = Stamp(50 + i64::from(rank));
        WorkerTrace {
            rank: Rank(rank),
            host: "here".to_string(),
            world: Some(4),
            layers,
            steps: vec![Step { number: 0, begin: Stamp(0), end }],
            ..WorkerTrace::default()
        }
    };
    let trace = Trace { workers: vec![worker(1), worker(3)], ..Trace::default() };
    let job = Job::from_trace(&trace, &Clocks::default()).unwrap();
    assert_eq!((job.graph.workers.len(), &job.measured[..]), (2, &[53][..]));
    assert_eq!((trace.world(), trace.missing()), (4, 2));
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

#[test]
fn operations_without_gradients_are_part_of_the_step_and_not_taken_for_buckets() {
    let job = job(false, |rank, step| {
        let number = |place: i64| Some((step * 3 + place) as u64);
        // Now the one, now the other is late.
        let late = 25 * ((rank + step) % 2);
        vec![
            ("loss", 5 + late, 40, numbered("all_reduce", None, 4, number(0))),
            ("wait", 8 + late, 42 + rank, Kind::Wait),
            // Who broadcasts is through before the other is there.
            (
                "buffers",
                70 + late * rank,
                80 + 29 * rank,
                numbered("broadcast", None, 120, number(1)),
            ),
            ("wait", 78 + late * rank, 80 + 30 * rank, Kind::Wait),
            ("a", 90 + 25 * rank, 118, FORWARD),
            ("b", 118, 120, FORWARD),
            ("b", 120, 130, BACKWARD),
            ("a", 130, 160 + late, BACKWARD),
            ("bucket", 160 + late, 240, numbered("all_reduce", None, 80, number(2))),
            ("wait", 165 + late, 250, Kind::Wait),
            ("update", 260, 280, UPDATE),
        ]
    });
    let layered = job.layered.as_ref().unwrap();
    assert_eq!((layered.groups.len(), layered.asides_of(0).len()), (1, 2));
    assert_eq!(layered.asides_of(0)[1].elements, 30);
    assert_takes_what_was_measured(&job);
    assert_eq!(job.problems, []);
}

#[test]
fn statistics_that_layers_exchange_inside_their_passes_are_part_of_the_step() {
    let job = job(false, |rank, step| {
        let number = |place: i64| Some((step * 3 + place) as u64);
        let late = 9 * ((rank + step) % 2);
        vec![
            ("a", 10, 80, FORWARD),
            ("statistics", 30 + late, 55, numbered("all_gather", None, 16, number(0))),
            ("wait", 32 + late, 60, Kind::Wait),
            ("b", 80, 100, FORWARD),
            ("b", 100, 130, BACKWARD),
            ("a", 130, 200, BACKWARD),
            ("statistics", 150 + late, 170, numbered("all_reduce", None, 16, number(1))),
            ("wait", 152 + late, 172, Kind::Wait),
            ("bucket", 200, 240, numbered("all_reduce", None, 80, number(2))),
            ("wait", 205, 250, Kind::Wait),
            ("update", 260, 280, UPDATE),
        ]
    });
    assert_eq!(job.layered.as_ref().unwrap().asides_of(3).len(), 2);
    assert_takes_what_was_measured(&job);
}

#[test]
fn what_a_program_sends_in_its_own_way_is_all_that_is_sent() {
    let job = job(false, |_, step| {
        let number = |place: i64| Some((step * 3 + place) as u64);
        vec![
            ("gather", 5, 20, numbered("all_gather", None, 20, number(0))),
            ("wait", 6, 22, Kind::Wait),
            ("a", 30, 80, FORWARD),
            ("b", 80, 100, FORWARD),
            ("b", 100, 130, BACKWARD),
            ("a", 130, 200, BACKWARD),
            ("scatter", 202, 240, numbered("reduce_scatter", None, 80, number(1))),
            ("wait", 205, 250, Kind::Wait),
            ("update", 260, 280, UPDATE),
        ]
    });
    assert_eq!(job.graph.operations.len(), 2 * STEPS as usize);
    assert_takes_what_was_measured(&job);
}

#[test]
fn operations_without_gradients_are_part_of_steps_that_are_crossed() {
    let job = job(true, |rank, step| {
        let late = 12 * ((rank + step) % 2);
        let number = Some(step as u64);
        vec![
            ("loss", 3 + late, 30, numbered("all_reduce", None, 4, number)),
            ("wait", 5 + late, 33 + rank, Kind::Wait),
            // Nobody knows what the first step waits for.
            ("a", 40, if step > 0 { 45 + rank } else { 40 }, Kind::Wait),
            ("a", 50, 60, FORWARD),
            ("b", 60, if step > 0 { 61 } else { 60 }, Kind::Wait),
            ("b", 70, 90, FORWARD),
            ("b", 90, 150, BACKWARD),
            ("b.w", 150, 200, numbered("all_reduce", Some("b.w"), 40, number)),
            ("a", 150, 190, BACKWARD),
            ("a.w", 190, 340, numbered("all_reduce", Some("a.w"), 40, number)),
        ]
    });
    assert_eq!(job.layered.as_ref().unwrap().asides_of(1).len(), 1);
    assert_takes_what_was_measured(&job);
}

#[test]
fn an_operation_that_one_worker_did_not_record_is_left_out_and_reported() {
    let job = job(false, |rank, step| {
        let number = |place: i64| Some((step * 2 + place) as u64);
        let mut doing = vec![
            ("a", 30, 80, FORWARD),
            ("b", 80, 100, FORWARD),
            ("b", 100, 130, BACKWARD),
            ("a", 130, 200, BACKWARD),
            ("bucket", 200, 240, numbered("all_reduce", None, 80, number(1))),
            ("wait", 205, 250, Kind::Wait),
            ("update", 260, 280, UPDATE),
        ];
        if rank == 0 || step > 0 {
            doing.push(("loss", 3, 10, numbered("all_reduce", None, 4, number(0))));
        }
        doing
    });
    let left_out: Vec<_> = job.problems.iter().map(|problem| problem.times).collect();
    assert_eq!(left_out, [1], "{:?}", job.problems);
    assert_takes_what_was_measured(&job);
}

#[test]
fn what_happens_before_the_wait_for_all_gradients_does_so_while_they_are_on_their_way() {
    let job = job(false, |rank, step| {
        let number = Some(step as u64);
        // Now the one, now the other is held up behind its last gradient; what others used is known before or after the last one.
        let late = 60 * ((rank + step) % 2);
        let known = if step % 2 == 0 { 230 } else { 241 };
        vec![
            ("a", 10, 20, FORWARD),
            ("b", 20, 30, FORWARD),
            ("b", 30, 50, BACKWARD),
            ("b.w", 50, 90, numbered("all_reduce", Some("b.w"), 40, number)),
            ("a", 50, 80, BACKWARD),
            ("a.w", 80, 240, numbered("all_reduce", Some("a.w"), 40, number)),
            ("used", 110 + late, known, numbered("all_reduce", Some("used"), 2, number)),
            ("wait", 115 + late, 242 + rank, Kind::Wait),
            ("update", 250, 270, UPDATE),
        ]
    });
    assert_eq!(job.layered.as_ref().unwrap().asides_of(1).len(), 1);
    assert_takes_what_was_measured(&job);
}

#[test]
fn a_second_wait_that_finds_everything_there_is_time_that_passes() {
    // As of a program that waits for gradients, clips them, and lets the optimizer wait once more.
    let job = job(false, |rank, step| {
        let number = Some(step as u64);
        let late = 60 * ((rank + step) % 2);
        vec![
            ("a", 10, 20, FORWARD),
            ("b", 20, 30, FORWARD),
            ("b", 30, 50, BACKWARD),
            ("b.w", 50, 90, numbered("all_reduce", Some("b.w"), 40, number)),
            ("a", 50, 80 + late, BACKWARD),
            ("a.w", 80 + late, 240, numbered("all_reduce", Some("a.w"), 40, number)),
            ("wait", 115 + late, 242 + rank, Kind::Wait),
            ("wait", 255 + 7 * rank, 258 + 7 * rank, Kind::Wait),
            ("update", 270, 290, UPDATE),
        ]
    });
    assert_takes_what_was_measured(&job);
    let after_the_wait: u64 =
        job.layered.unwrap().workers[0].steps[1].iter().map(|layer| layer.update).sum();
    assert_eq!(
        after_the_wait, 50,
        "whatever operations take, clipping and updates come after them"
    );
}

#[test]
fn a_last_step_that_was_cut_off_at_its_beginning_is_left_out_and_reported() {
    let worker = |last: i64| {
        let span = |begin: i64| Span {
            name: "kernel".into(),
            lane: LaneId(0),
            begin: Stamp(begin),
            length: 5,
            kind: FORWARD,
            after: Vec::new(),
        };
        let step = |number, begin, end| Step { number, begin: Stamp(begin), end: Stamp(end) };
        WorkerTrace {
            host: "here".to_string(),
            lanes: vec![Lane { name: "training".into(), kind: LaneKind::Thread }],
            spans: (0..50).map(|place| span(place * 20)).chain([span(1001)]).collect(),
            steps: vec![step(0, 0, 1000), step(1, 1000, 1000 + last)],
            ..WorkerTrace::default()
        }
    };
    let job = |last| {
        let trace = Trace { workers: vec![worker(last)], ..Trace::default() };
        Job::from_trace(&trace, &Clocks::default()).unwrap()
    };
    let cut = job(9);
    assert_eq!((cut.graph.steps, &cut.measured[..]), (1, &[1000][..]));
    assert!(cut.problems[0].text.contains("step 1, the last"), "{:?}", cut.problems);
    let whole = job(800);
    assert_eq!(
        (whole.graph.steps, whole.problems.len()),
        (2, 0),
        "a step that does little is whole"
    );
}
