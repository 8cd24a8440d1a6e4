//! What the tests of trouble share: a job whose workers are joined one by one, so that a test can play some of
//! them itself, and the proof that nothing panicked on a thread nobody looks at.

#![allow(dead_code)] // Each test binary uses its part.

use paceline_job::{ByteSize, Rank, ReduceOp, Settings, StrategyChoice};
use paceline_net::{
    Coordinator, CoordinatorConfig, JoinConfig, Joined, Log, NetError, Operation, ReportSink,
    Secret, Transport, Worker, WorkerConfig, join,
};
use paceline_sync::collective::Collective;
use std::{
    panic,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long anything may take. It only bounds a failing test; none measures time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A strategy by name, so that workers do not measure their links first; small bounds.
pub fn settings() -> Settings {
    Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize::kib(64),
        credit: ByteSize::kib(256),
        eager: ByteSize::kib(64),
        stall_report: PATIENCE,
        timeout: PATIENCE,
        ..Settings::default()
    }
}

/// A coordinator that waits for its workers.
pub struct Job {
    secret: Secret,
    coordinator: Coordinator,
}

impl Job {
    pub fn new(size: usize, settings: Settings) -> Job {
        let secret = Secret::random().unwrap();
        let coordinator = Coordinator::start(CoordinatorConfig {
            settings,
            log: Log::silent(),
            ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), size, secret.clone())
        })
        .unwrap();
        Job { secret, coordinator }
    }

    pub fn join_config(&self, rank: u32, host: &str) -> JoinConfig {
        JoinConfig {
            rank: Some(Rank(rank)),
            host: Some(host.to_string()),
            ..JoinConfig::new(self.coordinator.address().to_string(), self.secret.clone())
        }
    }

    /// Returns when all workers have joined.
    pub fn join(&self, rank: u32, host: &str) -> Joined {
        join(self.join_config(rank, host)).unwrap()
    }

    /// A worker over TCP, with its reports.
    pub fn worker(&self, rank: u32, host: &str) -> (Worker, Reports) {
        self.start(rank, host, Transport::Tcp)
    }

    pub fn start(&self, rank: u32, host: &str, transport: Transport) -> (Worker, Reports) {
        let reports = Reports::default();
        let report = Some(reports.sink());
        let config = WorkerConfig { transport, report, ..WorkerConfig::default() };
        (Worker::start(self.join(rank, host), config).unwrap(), reports)
    }
}

/// What a worker said about slowness.
#[derive(Clone, Default)]
pub struct Reports(Arc<Mutex<Vec<String>>>);

impl Reports {
    pub fn sink(&self) -> ReportSink {
        let lines = self.0.clone();
        Box::new(move |_, report| lines.lock().unwrap().push(report.to_string()))
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// A report that contains all of `words` was given, or is soon.
    pub fn expect(&self, words: &[&str]) {
        let found = || self.lines().iter().any(|line| words.iter().all(|word| line.contains(word)));
        eventually(found, || format!("no report has {words:?}: {:#?}", self.lines()));
    }
}

/// Wait for a condition.
pub fn eventually(condition: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", otherwise());
        thread::sleep(Duration::from_millis(5));
    }
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Workers have threads of their own, whose panics would go unseen.
pub fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let ours = thread::current().name().is_some_and(|name| name.starts_with("paceline"));
            PANICS.fetch_add(usize::from(ours), Ordering::Relaxed);
            print(info);
        }));
    });
}

pub fn assert_no_panics() {
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "something panicked; see above");
}

/// The text of a failure, which must name the worker and contain the words.
pub fn assert_names<T>(result: Result<T, NetError>, peer: u32, words: &[&str]) -> String {
    let text = match result {
        Ok(_) => panic!("this cannot have succeeded"),
        Err(error) => error.to_string(),
    };
    assert!(text.contains(&format!("worker {peer} ")), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
    text
}

/// The rank that a test plays, in a job of three.
pub const BROKEN: u32 = 2;

/// What a worker saw: an all-reduce with the broken peer, and one without it.
pub type Seen = (Result<(), NetError>, Result<(), NetError>);

/// For workers 0 and 1.
pub fn see(worker: &Worker) -> Seen {
    let with = worker.all_reduce("with all", &mut [1_f32; 30_000], ReduceOp::Sum);
    let mut data = [1_f32; 30_000];
    let group = [Rank(0), Rank(1)].into();
    let operation =
        Operation::new("without it", Collective::AllReduce { len: 30_000 }).group(group);
    let without = worker.run_in_place(operation, &mut data);
    if without.is_ok() {
        assert_eq!(data, [2_f32; 30_000]);
    }
    (with, without)
}

/// Both workers must name the peer, the first must say what was wrong, and both go on without it.
pub fn assert_parted(seen: [Seen; 2], words: &[&str]) {
    let [(first, first_alone), (second, second_alone)] = seen;
    assert_names(first, BROKEN, words);
    assert_names(second, BROKEN, &[]);
    first_alone.unwrap();
    second_alone.unwrap();
}
