//! Traces of real runs, recorded by workers on threads of this process and read back.

mod cluster;

use cluster::{WIRINGS, Wiring, run};
use paceline_job::{
    ByteSize, Dtype, Rank, ReduceOp, Settings, StrategyChoice,
    trace::{
        Direction, Kind, LaneKind, Layer, Message, Phase, Problem, Tensor, WorkerTrace,
        chrome::{Event, Reader},
        recorded,
    },
};
use paceline_net::{Activity, Description, NetError, TraceConfig, Worker, monotonic_nanoseconds};
use std::{collections::HashMap, path::Path};

const STEPS: u64 = 3;
const TENSORS: [(&str, usize); 3] = [("weight", 40_000), ("bias", 10), ("head \"quoted\"", 3_000)];

fn settings() -> Settings {
    Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize(16 << 10),
        credit: ByteSize(64 << 10),
        ..Settings::default()
    }
}

fn description() -> Description {
    let layer = |(name, elements): &(&str, usize)| Layer {
        name: (*name).into(),
        tensors: vec![Tensor {
            name: (*name).into(),
            elements: *elements as u64,
            dtype: Dtype::F32,
        }],
        activation_bytes: 7,
    };
    Description {
        layers: TENSORS.iter().map(layer).collect(),
        crosses_step: true,
        ..Description::default()
    }
}

/// Three steps of three tensors, with spans as a program would tell them.
fn train(worker: &Worker, config: &TraceConfig) -> paceline_net::Summary {
    let recording = worker.trace(config).unwrap();
    recording.switch(true);
    // Nobody sends before everybody records.
    worker.barrier("begin").unwrap();
    for step in 0..STEPS {
        let begin = monotonic_nanoseconds();
        for (layer, (name, elements)) in TENSORS.iter().enumerate() {
            let before = monotonic_nanoseconds();
            worker.all_reduce(name, &mut vec![1.0_f32; *elements], ReduceOp::Sum).unwrap();
            let after = monotonic_nanoseconds();
            recording.span(Activity::Wait, Some(layer as u32), before, after, None);
            recording.span(Activity::Forward, Some(layer as u32), after, after + 1, Some(0));
        }
        recording.step(step, begin, monotonic_nanoseconds());
    }
    // What others still send to this worker is a part of the steps.
    worker.barrier("end").unwrap();
    recording.finish(description());
    let summary = recording.wait().unwrap().unwrap();
    assert!(recording.wait().is_none());
    summary
}

fn read(path: &Path) -> (WorkerTrace, Vec<Problem>) {
    let (mut workers, problems) =
        recorded::read(Reader::open(path).unwrap(), &path.display().to_string());
    (workers.remove(0), problems)
}

/// What was combined by itself, with the tensor and chunk that it is of.
fn reductions(path: &Path) -> Vec<(String, i64, i64)> {
    let events = Reader::open(path).unwrap().filter(|event| event.cat == recorded::words::REDUCE);
    let part =
        |event: &Event, word| event.integer(word).expect("a reduction is a part of something");
    let words = (recorded::words::USE, recorded::words::CHUNK);
    let events = events.filter(|event| !is_barrier(&event.name));
    events.map(|it| (it.name.clone(), part(&it, words.0), part(&it, words.1))).collect()
}

fn messages(worker: &WorkerTrace, wanted: Direction) -> Vec<&Message> {
    let messages = worker.spans.iter().filter_map(|span| match &span.kind {
        Kind::Message(message) => Some(&**message),
        _ => None,
    });
    messages.filter(|message| message.direction == wanted && !is_barrier(&message.tensor)).collect()
}

fn is_barrier(name: &str) -> bool {
    ["begin", "end"].contains(&name)
}

#[test]
fn every_operation_has_its_post_and_end_and_messages_match_on_both_ends() {
    let mut combined = 0;
    for wiring in WIRINGS {
        let folder = tempfile::tempdir().unwrap();
        let config = TraceConfig::new(folder.path().join("made/on/demand"));
        let summaries = run(4, settings(), wiring, |worker| train(&worker, &config));
        let mut workers = Vec::new();
        for (rank, summary) in summaries.iter().enumerate() {
            assert_eq!(summary.path, config.directory.join(format!("worker-{rank}.json.gz")));
            assert_eq!(summary.dropped, 0);
            for (name, uses, chunk) in reductions(&summary.path) {
                let tensor = TENSORS.iter().find(|(tensor, _)| *tensor == name);
                let elements = tensor.unwrap_or_else(|| panic!("{name}")).1 as u64;
                let chunks = (elements * 4).div_ceil(settings().partition.0) as i64;
                assert!((0..STEPS as i64).contains(&uses) && (0..chunks).contains(&chunk));
                combined += 1;
            }
            let (worker, problems) = read(&summary.path);
            assert_eq!(problems, [], "{wiring:?}");
            workers.push(worker);
        }
        for (rank, worker) in workers.iter().enumerate() {
            check_worker(worker, rank as u32);
        }
        check_messages(&workers);
        let left = std::fs::read_dir(&config.directory).unwrap().count();
        assert_eq!(left, 4, "no temporary file is left");
    }
    assert!(combined > 0, "somewhere something is combined by itself");
}

fn check_worker(worker: &WorkerTrace, rank: u32) {
    assert_eq!((worker.rank, worker.world, worker.crosses_step), (Rank(rank), Some(4), true));
    assert_eq!(worker.layers, description().layers);
    let view = worker.view.as_ref().unwrap();
    assert_eq!(worker.host, view.workers[rank as usize].host);
    assert_eq!(view.settings.partition, settings().partition);
    assert_eq!(worker.steps.iter().map(|step| step.number).collect::<Vec<_>>(), [0, 1, 2]);
    let mut uses: HashMap<&str, Vec<u64>> = HashMap::new();
    for span in &worker.spans {
        let lane = &worker.lanes[span.lane.0 as usize];
        match &span.kind {
            Kind::Collective(operation) if !is_barrier(&span.name) => {
                let elements = TENSORS.iter().find(|(name, _)| *name == &*span.name).unwrap().1;
                assert_eq!(operation.tensor.as_deref(), Some(&*span.name));
                assert_eq!((&*operation.operation, lane.kind), ("all_reduce", LaneKind::Network));
                assert_eq!(
                    (operation.bytes, operation.dtype),
                    (elements as u64 * 4, Some(Dtype::F32))
                );
                let inside = worker
                    .steps
                    .iter()
                    .filter(|step| step.begin <= span.begin && span.end() <= step.end);
                assert_eq!(inside.count(), 1, "it begins and ends in its step");
                uses.entry(&*span.name).or_default().push(operation.sequence.unwrap());
            }
            Kind::Wait => {
                let [operation] = span.after[..] else { panic!("{:?}", span.after) };
                let operation = &worker.spans[operation.0 as usize];
                assert_eq!(operation.name, span.name);
                assert!(span.begin <= operation.begin && operation.end() <= span.end());
            }
            Kind::Work(phase) => {
                assert_eq!((*phase, lane.kind), (Phase::Forward, LaneKind::Stream))
            }
            _ => {}
        }
    }
    assert_eq!(uses.len(), TENSORS.len());
    assert!(uses.values().all(|uses| uses == &[0, 1, 2]), "{uses:?}");
}

fn check_messages(workers: &[WorkerTrace]) {
    type Ends = HashMap<(u32, u32, String, u64, u32, u32), u64>;
    let ends = |wanted| {
        let mut ends = Ends::new();
        for worker in workers {
            for message in messages(worker, wanted) {
                let (from, to) = match wanted {
                    Direction::Sent => (worker.rank.0, message.peer.0),
                    Direction::Received => (message.peer.0, worker.rank.0),
                };
                let name = message.tensor.to_string();
                let key = (from, to, name, message.use_number, message.chunk, message.part);
                assert_eq!(ends.insert(key, message.bytes), None, "a message is there once");
            }
        }
        ends
    };
    let (sent, received) = (ends(Direction::Sent), ends(Direction::Received));
    let only_sent: Vec<_> = sent.keys().filter(|key| !received.contains_key(*key)).collect();
    assert!(only_sent.is_empty(), "{only_sent:?}");
    assert!(sent == received);
    // A ring of n sends each byte 2 (n - 1) times, whoever the sender is.
    let payload: usize = TENSORS.iter().map(|(_, elements)| elements * 4).sum();
    assert_eq!(sent.values().sum::<u64>(), STEPS * 2 * 3 * payload as u64);
}

#[test]
fn what_does_not_fit_is_dropped_and_the_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = TraceConfig { limit_events: 50, ..TraceConfig::new(folder.path()) };
    let narrow = TraceConfig { ring_events: 2, ..TraceConfig::new(folder.path().join("narrow")) };
    for config in [tiny, narrow] {
        let summaries = run(2, settings(), Wiring::Tcp, |worker| train(&worker, &config));
        for summary in summaries {
            assert!(summary.dropped > 0 && summary.events <= 1000, "{summary:?}");
            let (worker, problems) = read(&summary.path);
            let lost = problems.iter().find(|problem| problem.text.contains("lost")).unwrap();
            assert_eq!(lost.times, summary.dropped);
            assert_eq!(worker.layers, description().layers, "the rest can be read");
        }
    }
}

#[test]
fn a_full_disk_and_a_forbidden_folder_cost_the_trace_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    // A folder that was taken away while it was used stands for a disk that is full: files cannot be made there.
    let vanishing = folder.path().join("vanishing");
    run(2, settings(), Wiring::Shared, |worker| {
        let error = worker.trace(&TraceConfig::new(file.join("inside"))).unwrap_err();
        assert!(matches!(error, NetError::Trace { .. }));
        assert!(error.to_string().contains("a file/inside"), "{error}");

        let config = TraceConfig::new(vanishing.join(worker.rank().to_string()));
        let recording = worker.trace(&config).unwrap();
        recording.switch(true);
        worker.all_reduce("a", &mut [1.0_f32; 100], ReduceOp::Sum).unwrap();
        std::fs::remove_dir(&config.directory).unwrap();
        let error = recording.wait().unwrap().unwrap_err();
        assert!(error.to_string().contains("vanishing"), "{error}");
        let mut data = [1.0_f32; 100];
        worker.all_reduce("a", &mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [2.0; 100], "training goes on");
    });
}
