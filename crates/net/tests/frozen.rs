//! Processes that are stopped while their connections stay open: a worker that is, for longer than heartbeats may be lost,
//! is lost, and finds that out when it goes on; a whole job that is stopped goes on as if nothing had been.

mod elastic_support;

use elastic_support::{Process, see_equal_ends};
use paceline_net::{
    Log, Secret,
    coordinator::{Coordinator, CoordinatorConfig, Progress, Standing},
};
use paceline_sync::agreement::Limits;
use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

const WORKERS: usize = 3;

/// Shorter than in real jobs, and longer than a busy machine holds up a thread.
const PATIENCE: Duration = Duration::from_secs(4);

#[test]
#[ignore = "a process of the other tests"]
fn worker_of_an_elastic_job() {
    elastic_support::work();
}

/// A job of three whose worker that joined last is stopped in step 10; what the coordinator says of it.
fn freeze(
    elastic: Option<Limits>,
    patience: Duration,
    transport: &str,
) -> (Coordinator, Vec<Process>, Receiver<String>) {
    let secret = Secret::random().unwrap();
    let (sender, log) = channel();
    let coordinator = Coordinator::start(CoordinatorConfig {
        elastic,
        patience,
        log: Log::to(move |line| drop(sender.send(line.to_string()))),
        quiet: true,
        ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), WORKERS, secret.clone())
    })
    .unwrap();
    let address = coordinator.address().to_string();
    let pace = Duration::from_millis(50);
    let start = |_| Process::worker(&address, &secret, transport, pace);
    let mut workers: Vec<Process> = (0..WORKERS).map(start).collect();
    workers[0].read_until("step 10 ").unwrap();
    workers[WORKERS - 1].signal(libc::SIGSTOP);
    (coordinator, workers, log)
}

/// The job goes on, and the frozen worker wakes up while it does.
fn see_others_go_on(transport: &str) {
    let (coordinator, mut workers, log) = freeze(Some(Limits::default()), PATIENCE, transport);
    workers[0].read_until("with 2").expect("the job goes on");
    let line = log.recv().unwrap();
    assert!(line.contains("nothing was heard of it for 4 s"), "{line}");

    let mut frozen = workers.pop().unwrap();
    frozen.signal(libc::SIGCONT);
    let last_words = frozen.read_until("failed: ").expect("it is out of the job");
    assert!(last_words.contains("the job goes on without this worker"), "{last_words}");
    see_equal_ends(workers.iter_mut(), WORKERS - 1);
    assert_eq!(coordinator.wait(Duration::from_secs(30)), Progress::Ended);
}

#[test]
fn an_elastic_job_goes_on_without_a_worker_that_is_frozen_in_shared_memory() {
    see_others_go_on("auto");
}

#[test]
fn an_elastic_job_goes_on_without_a_worker_that_is_frozen_over_tcp() {
    see_others_go_on("tcp");
}

#[test]
fn a_worker_that_is_stopped_for_a_while_is_slow_and_not_lost() {
    let patience = Duration::from_secs(600);
    let (coordinator, mut workers, _log) = freeze(Some(Limits::default()), patience, "auto");
    let slow = || -> Vec<u32> {
        let members = coordinator.status().unwrap().members;
        let slow = members.iter().filter(|member| member.standing == Standing::Slow);
        slow.map(|member| member.process).collect()
    };
    let until = |expected: &[u32]| {
        let began = Instant::now();
        while slow() != expected {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", coordinator.status());
            thread::sleep(Duration::from_millis(50));
        }
    };
    let frozen = workers.last().unwrap();
    until(&[frozen.number()]);
    let status = coordinator.status().unwrap();
    let member = status.members.iter().find(|it| it.process == frozen.number()).unwrap();
    assert!(member.heard > Some(3), "{status:?}");
    frozen.signal(libc::SIGCONT);
    until(&[]);
    see_equal_ends(workers.iter_mut(), WORKERS);
}

#[test]
fn another_job_ends_with_an_error_that_names_the_frozen_worker() {
    for transport in ["auto", "tcp"] {
        let (_coordinator, mut workers, log) = freeze(None, PATIENCE, transport);
        let line = log.recv().unwrap();
        let (name, _) = line.split_once(" is gone: ").expect(&line);
        let mut frozen = workers.pop().unwrap();
        for worker in &mut workers {
            let last_words = worker.read_until("failed: ").expect("the job ends");
            assert!(last_words.contains(name), "{name}: {last_words}");
            assert!(last_words.contains("nothing was heard of it for 4 s"), "{last_words}");
        }
        frozen.signal(libc::SIGCONT);
        frozen.read_until("failed: ").expect("it is not left waiting");
    }
}

#[test]
#[ignore = "a process of the other tests"]
fn coordinator_of_an_elastic_job() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let secret = Secret::from_text(&variable("JOB_SECRET"), "the test").unwrap();
    let coordinator = Coordinator::start(CoordinatorConfig {
        elastic: Some(Limits::default()),
        patience: PATIENCE,
        ..CoordinatorConfig::new(variable("JOB_ADDRESS").parse().unwrap(), WORKERS, secret)
    })
    .unwrap();
    println!("listening at {}", coordinator.address());
    println!("ended as {:?}", coordinator.wait(Duration::from_secs(120)));
}

#[test]
fn a_job_that_is_stopped_as_a_whole_loses_nobody() {
    let secret = Secret::random().unwrap();
    let test = "coordinator_of_an_elastic_job";
    let mut coordinator = Process::start(test, "127.0.0.1:0", &secret, &[]);
    let address = coordinator.read_until("listening at ").unwrap();
    let pace = Duration::from_millis(50);
    let start = |_| Process::worker(&address, &secret, "tcp", pace);
    let mut workers: Vec<Process> = (0..WORKERS).map(start).collect();
    workers[0].read_until("step 10 ").unwrap();
    // The coordinator first, as it would count while others are stopped already; and it goes on first.
    let all = || std::iter::once(&coordinator).chain(&workers);
    all().for_each(|process| process.signal(libc::SIGSTOP));
    thread::sleep(PATIENCE + Duration::from_secs(2));
    all().for_each(|process| process.signal(libc::SIGCONT));
    see_equal_ends(workers.iter_mut(), WORKERS);
    assert_eq!(coordinator.read_until("ended as ").as_deref(), Some("Ended"));
}
