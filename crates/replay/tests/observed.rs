//! Profilers' traces of several workers that do not agree about their operations are played all the same.

use paceline_job::{
    Dtype, Link, Measured, Rank, Rate, Settings, Time, Topology, View,
    graph::{Clocks, Graph, Job, OperationKind},
    trace::{
        Collective, Kind, Lane, LaneId, LaneKind, Phase, Span, SpanId, Stamp, Step, Trace,
        WorkerTrace,
    },
};
use paceline_replay::graph::{Network, Piece, critical_path, play, play_out};
use std::{sync::Arc, time::Duration};

/// Collectives of a worker: stream, begin, end, what is done, and bytes.
type Doing<'a> = (u32, i64, i64, &'a str, u64);

/// A step of 1000 ns in which a thread waits for the first collective of `doing`.
fn worker(rank: u32, doing: &[Doing<'_>]) -> WorkerTrace {
    let lane = |name: &str, kind| Lane { name: name.to_string(), kind };
    let span = |lane: u32, begin: i64, end: i64, kind: Kind| Span {
        name: "span".into(),
        lane: LaneId(lane),
        begin: Stamp(begin),
        length: (end - begin) as u64,
        kind,
        after: Vec::new(),
    };
    let collective = |(stream, begin, end, operation, bytes): &Doing<'_>| {
        let collective = Collective {
            operation: (*operation).into(),
            group: "".into(),
            members: Vec::new(),
            sequence: None,
            tensor: None,
            bytes: *bytes,
            dtype: Some(if *bytes == 0 { Dtype::U8 } else { Dtype::F32 }),
            priority: 0,
        };
        span(*stream, *begin, *end, Kind::Collective(Box::new(collective)))
    };
    let mut spans: Vec<Span> = doing.iter().map(collective).collect();
    spans.push(span(0, 0, 50, Kind::Work(Phase::Forward)));
    spans.push(span(0, 60, 900, Kind::Wait));
    spans.push(span(0, 900, 990, Kind::Work(Phase::Update)));
    spans.sort_by_key(|span| span.begin);
    let first = spans.iter().position(|span| matches!(span.kind, Kind::Collective(_)));
    let wait = spans.iter().position(|span| span.kind == Kind::Wait).expect("it is there");
    spans[wait].after = first.map(|first| SpanId(first as u32)).into_iter().collect();
    WorkerTrace {
        rank: Rank(rank),
        host: format!("host{rank}"),
        lanes: vec![
            lane("main", LaneKind::Thread),
            lane("stream 1", LaneKind::Stream),
            lane("stream 2", LaneKind::Stream),
        ],
        spans,
        steps: vec![Step { number: 0, begin: Stamp(0), end: Stamp(1000) }],
        ..WorkerTrace::default()
    }
}

fn job(doing: [&[Doing<'_>]; 2]) -> Job {
    let workers = doing.iter().zip(0..).map(|(doing, rank)| worker(rank, doing)).collect();
    let trace = Trace { workers, problems: Vec::new() };
    Job::from_trace(&trace, &Clocks::agreeing()).expect("it has a step")
}

fn engines(graph: &Graph) -> Network {
    let hosts = graph.workers.iter().map(|worker| worker.host.clone()).collect();
    let link = Link { rate: Rate::from_bytes_per_second(1e9), latency: Duration::from_micros(5) };
    let view = View {
        measured: Measured { memory: Some(link), wire: Some(link) },
        ..View::on_hosts(hosts, Settings::default())
    };
    let topology = Topology::uniform(&view, link, link);
    Network::Engines { view: Arc::new(view), topology, config: Box::default() }
}

#[test]
fn operations_of_several_streams_meet_whatever_their_order_on_each_worker() {
    let gather = (1, 100, 300, "all_gather", 40_000);
    let exchange = (2, 110, 320, "all_to_all", 80_000);
    let later = |(stream, begin, end, operation, bytes): Doing<'static>| {
        (stream, begin + 50, end + 50, operation, bytes)
    };
    let job = job([&[gather, exchange], &[exchange, later(gather)]]);
    let operations = job.graph.operations.iter();
    let operations: Vec<_> =
        operations.map(|one| (one.kind, one.elements, one.members.len())).collect();
    let expected = [(OperationKind::AllGather, 10_000, 0), (OperationKind::AllToAll, 20_000, 0)];
    assert_eq!(operations, expected);
    play(&job.graph, &engines(&job.graph)).expect("each is played with its like");
}

#[test]
fn a_size_that_one_worker_lacks_is_that_of_the_other() {
    let job = job([&[(1, 100, 300, "all_reduce", 0)], &[(1, 100, 300, "all_reduce", 4000)]]);
    let [operation] = &job.graph.operations[..] else { panic!("{:?}", job.graph.operations) };
    assert_eq!((operation.elements, operation.dtype), (1000, Dtype::F32));
    play(&job.graph, &engines(&job.graph)).expect("both have the same size");
}

#[test]
fn orders_that_contradict_each_other_are_reported_and_played_as_recorded() {
    // On one stream each, so neither worker could ever go on.
    let one: [Doing<'_>; 2] = [(1, 100, 300, "all_reduce", 4000), (1, 300, 400, "broadcast", 400)];
    let other: [Doing<'_>; 2] =
        [(1, 100, 200, "broadcast", 400), (1, 200, 400, "all_reduce", 4000)];
    let job = job([&one, &other]);
    assert!(
        job.problems.iter().any(|it| it.text.contains("different orders")),
        "{:?}",
        job.problems
    );
    for network in [Network::Recorded, engines(&job.graph)] {
        let played = play(&job.graph, &network).expect("nobody waits for ever");
        assert_eq!(played.steps[0].iter().max(), Some(&Time(1000)));
    }
}

#[test]
fn the_critical_path_ends_with_the_step_and_not_with_what_nobody_waits_for() {
    let doing: &[Doing<'_>] =
        &[(1, 100, 300, "all_reduce", 4000), (2, 400, 990, "all_gather", 40_000_000)];
    let job = job([doing, doing]);
    let network = engines(&job.graph).watched();
    let played = play_out(&job.graph, &network).expect("it can be played");
    let step = played.steps[0].iter().max().copied().expect("there are workers");
    let path = critical_path(&job.graph, &played, Time::ZERO);
    let ends = path.iter().map(|piece| match piece {
        Piece::Node { to, .. } | Piece::Operation { to, .. } => *to,
    });
    assert_eq!(ends.max(), Some(step));
}

#[test]
fn workers_that_nothing_joins_are_measured_by_their_own_clocks() {
    let mut late = worker(1, &[]);
    late.spans.iter_mut().for_each(|span| span.begin.0 += 300);
    late.steps[0] = Step { number: 0, begin: Stamp(300), end: Stamp(1290) };
    let trace = Trace { workers: vec![worker(0, &[]), late], ..Trace::default() };
    let job = Job::from_trace(&trace, &Clocks::agreeing()).unwrap();
    let played = play(&job.graph, &Network::Recorded).unwrap();
    let end = played.steps[0].iter().max().unwrap().0;
    assert_eq!((&job.measured[..], end), (&[1000][..], 1000));
}
