//! Settings that change while a job runs, with real workers over loopback: all change at the same step, what the
//! engine does changes with them, and nothing stops when the coordinator does.

mod cluster;
mod joining_support;

use cluster::{WIRINGS, Wiring};
use joining_support::{framed, read_frame, secret};
use paceline_job::{ByteSize, Plan, Rank, ReduceOp, Settings, StrategyChoice, View, ViewVersion};
use paceline_net::{
    Coordinator, CoordinatorConfig, Encryption, JoinConfig, Log, Measuring, NetError, Record,
    Worker, WorkerConfig,
    coordinator::{
        CoordinatorMessage, JobId, WorkerMessage, decode_coordinator_message, decode_worker_message,
    },
    handshake::{self, Privacy, Purpose, Terms},
    join,
};
use paceline_sync::{
    agreement::{Agreed, Ballot, Change, Objection, ToParticipant, ToRegistrar},
    event::{Action, Event},
    frame::Kind,
};
use std::{
    collections::BTreeSet,
    io::Write,
    net::TcpListener,
    sync::{Arc, Mutex, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
const LENGTH: usize = 40_000;

fn settings(strategy: &str, partition: u64, credit: ByteSize) -> Settings {
    let strategy = StrategyChoice(strategy.to_string());
    Settings { strategy, partition: ByteSize::kib(partition), credit, ..Settings::default() }
}

/// One step of training: a tensor summed over all workers.
fn train(worker: &Worker) {
    let mut data = vec![worker.rank().0 as f32; LENGTH];
    worker.all_reduce("gradient", &mut data, ReduceOp::Sum).unwrap();
    let expected: u32 = (0..worker.size() as u32).sum();
    assert!(data.iter().all(|value| *value == expected as f32));
}

/// What a worker's engine did with the tensors that were posted in one view.
#[derive(Debug, Default)]
struct Doings {
    chunks: BTreeSet<u32>,
    receivers: BTreeSet<u32>,
    /// For each tensor, how many chunks began when it was posted.
    at_once: Vec<usize>,
}

fn doings(record: &Record, view: ViewVersion) -> Doings {
    let mut doings = Doings::default();
    for entry in &record.entries {
        let mut chunks = BTreeSet::new();
        for action in &entry.actions {
            if let Action::Send { to, header, .. } = action
                && header.kind == Kind::Data
                && header.key.view == view
            {
                chunks.insert(header.chunk);
                doings.receivers.insert(to.0);
            }
        }
        if matches!(entry.event, Event::Post(_)) && !chunks.is_empty() {
            doings.at_once.push(chunks.len());
        }
        doings.chunks.append(&mut chunks);
    }
    doings
}

#[test]
fn all_workers_change_at_the_announced_step_and_their_engines_follow() {
    for wiring in WIRINGS {
        let before = settings("ring", 16, ByteSize::kib(8));
        let after = settings("one_shot", 64, ByteSize::UNLIMITED);
        // What is recorded are the tensors of steps, not what workers tell each other of themselves.
        let measuring = Measuring::Off;
        let record = || WorkerConfig { record: true, measuring, ..WorkerConfig::default() };
        let runs = cluster::run_with(3, before.clone(), wiring, record, |worker| {
            let mut announced = None;
            let mut seen = Vec::new();
            for step in 0..10 {
                let view = worker.begin_step(step).unwrap();
                assert_eq!(*view, *worker.view());
                seen.push((view.version, view.settings.clone()));
                if (step, worker.rank()) == (3, Rank(1)) {
                    // The others wait for this worker's part of the step, and not for this.
                    let proposal = worker.propose(after.clone()).unwrap();
                    announced = Some(proposal.wait(PATIENCE).expect("it is decided").unwrap());
                }
                train(&worker);
            }
            (announced, seen, worker.leave_with_record().unwrap())
        });
        let agreed = runs[1].0.clone().expect("worker 1 proposed");
        assert_eq!(agreed, Agreed { version: ViewVersion(2), step: 5 });
        for (rank, (_, seen, record)) in runs.iter().enumerate() {
            for (step, (version, settings)) in seen.iter().enumerate() {
                let changed = step as u64 >= agreed.step;
                assert_eq!(*version, ViewVersion(1 + u32::from(changed)), "{rank} {step}");
                assert_eq!(settings, if changed { &after } else { &before });
            }
            // 160,000 bytes: ten chunks of 16 KiB around the ring, three of 64 KiB to everybody.
            let ring = doings(record, ViewVersion(1));
            assert_eq!((ring.at_once.len(), ring.chunks.len()), (5, 10));
            assert_eq!(ring.receivers, [(rank as u32 + 1) % 3].into());
            let one_shot = doings(record, ViewVersion(2));
            assert_eq!(one_shot.chunks.len(), 3);
            assert_eq!(one_shot.receivers.len(), 2);
            assert_eq!(one_shot.at_once, [3; 5], "no credit holds them back");
            assert_eq!(record.verify(), Ok(()), "worker {rank} over {wiring:?}");
        }
        for tensor in 0..5 {
            // Whoever posts first is moved by nobody's messages: two messages of a third of 16 KiB use its credit up.
            let ranks =
                runs.iter().map(|(.., record)| doings(record, ViewVersion(1)).at_once[tensor]);
            assert_eq!(ranks.min(), Some(2));
        }
    }
}

#[test]
fn a_change_needs_no_pause_and_ends_at_the_same_step_whenever_it_comes() {
    // Nobody waits for the proposal: steps go on while it is decided, many times over.
    let runs = cluster::run(3, settings("ring", 16, ByteSize::mib(1)), Wiring::Shared, |worker| {
        let (mut seen, mut open, mut made) = (Vec::new(), None, 0_u8);
        for step in 0.. {
            let view = worker.begin_step(step).unwrap();
            seen.push((view.version, view.settings.partition));
            train(&worker);
            if worker.rank() == Rank(2) && open.is_none() && made < 5 {
                let partition = ByteSize::kib(20 + u64::from(made));
                let settings = Settings { partition, ..view.settings.clone() };
                open = Some(worker.propose(settings).unwrap());
            }
            if let Some(outcome) = open.as_ref().and_then(|proposal| proposal.poll()) {
                let version = outcome.unwrap().version;
                if worker.view().version == version {
                    (open, made) = (None, made + 1);
                }
            }
            let mut over = [made];
            worker.all_reduce("over", &mut over, ReduceOp::Max).unwrap();
            if over == [5] {
                break;
            }
        }
        seen
    });
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2]);
    let last = runs[0].last().unwrap();
    assert_eq!(*last, (ViewVersion(6), ByteSize::kib(24)));
}

#[test]
fn of_proposals_made_at_once_one_is_taken_and_the_others_hear_why_not() {
    let runs = cluster::run(4, settings("ring", 16, ByteSize::mib(1)), Wiring::Shared, |worker| {
        worker.begin_step(0).unwrap();
        train(&worker);
        let view = worker.view();
        let partition = ByteSize::kib(20 + u64::from(worker.rank().0));
        let mine = Settings { partition, ..view.settings.clone() };
        let proposal = worker.propose(mine.clone()).unwrap();
        // Another's may have been taken already; while ours is undecided there is no second one.
        if !matches!(worker.propose(mine), Err(NetError::Proposal(Objection::Undecided))) {
            assert!(proposal.poll().is_some(), "a second proposal beside an undecided one");
        }
        // Before the others are looked at, all must have the first in force.
        for step in 1.. {
            worker.begin_step(step).unwrap();
            let mut undecided = [u8::from(proposal.poll().is_none())];
            worker.all_reduce("undecided", &mut undecided, ReduceOp::Max).unwrap();
            if undecided == [0] {
                break;
            }
        }
        (proposal.poll().expect("it is decided"), worker.view().settings.partition)
    });
    let winners: Vec<u64> = (0..4).filter(|rank| runs[*rank as usize].0.is_ok()).collect();
    assert_eq!(winners.len(), 1, "{runs:?}");
    for (outcome, partition) in &runs {
        assert_eq!(*partition, ByteSize::kib(20 + winners[0]));
        if let Err(error) = outcome {
            let overtaken = "it was made for view 1, but view 2 was agreed meanwhile";
            assert!(error.to_string().contains(overtaken), "{error}");
        }
    }
}

#[test]
fn where_links_are_measured_first_the_change_makes_the_third_view() {
    let runs = cluster::run(2, Settings::default(), Wiring::Tcp, |worker| {
        worker.begin_step(0).unwrap();
        if worker.rank() == Rank(1) {
            let settings = settings("ring", 32, ByteSize::mib(2));
            let agreed = worker.propose(settings).unwrap().wait(PATIENCE).unwrap().unwrap();
            assert_eq!(agreed.version, ViewVersion(3));
        }
        worker.barrier("it is agreed").unwrap();
        for step in 1..5 {
            worker.begin_step(step).unwrap();
            train(&worker);
        }
        worker.view()
    });
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0].settings.partition, ByteSize::kib(32));
    assert!(runs[0].measured.memory.is_some(), "what was measured stays");
}

#[test]
fn proposals_that_cannot_work_are_refused_at_once_and_steps_go_upwards() {
    cluster::run(1, settings("ring", 16, ByteSize::mib(1)), Wiring::Shared, |worker| {
        let now = worker.view().settings.clone();
        let refused = [
            (Settings { credit: ByteSize(0), ..now.clone() }, "credit is 0"),
            (settings("rong", 16, ByteSize::mib(1)), "unknown strategy `rong`"),
            (Settings { eager: ByteSize(5), ..now.clone() }, "leave it as it is"),
        ];
        for (settings, words) in refused {
            let error = worker.propose(settings).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        worker.begin_step(3).unwrap();
        let error = worker.begin_step(3).unwrap_err().to_string();
        assert!(error.contains("the next that can is step 4"), "{error}");
        assert_eq!(worker.begin_next_step(|| panic!("no view came")).unwrap(), 4);
        // Alone, a worker agrees with itself.
        let other = Settings { partition: ByteSize::kib(99), ..now };
        let agreed = worker.propose(other).unwrap().wait(PATIENCE).unwrap().unwrap();
        assert_eq!(agreed, Agreed { version: ViewVersion(2), step: 6 });
        let mut settled = false;
        assert_eq!(worker.begin_next_step(|| settled = true).unwrap(), 5);
        assert!(!settled && worker.view().version == ViewVersion(1));
        worker.begin_next_step(|| settled = true).unwrap();
        assert!(settled && worker.view().settings.partition == ByteSize::kib(99));
    });
}

#[test]
fn without_the_coordinator_training_goes_on_and_proposals_say_why_nothing_changes() {
    let secret = secret();
    let coordinator = Coordinator::start(CoordinatorConfig {
        settings: settings("ring", 16, ByteSize::mib(1)),
        log: Log::silent(),
        ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), 2, secret.clone())
    })
    .unwrap();
    let address = coordinator.address().to_string();
    let coordinator = Mutex::new(Some(coordinator));
    let work = |rank: u32| {
        let mut config = JoinConfig::new(&address, secret.clone());
        config.rank = Some(Rank(rank));
        let worker = Worker::start(join(config).unwrap(), WorkerConfig::default()).unwrap();
        worker.begin_step(0).unwrap();
        train(&worker);
        if rank == 0 {
            drop(coordinator.lock().unwrap().take());
        }
        worker.barrier("it is gone").unwrap();
        for step in 1..20 {
            worker.begin_step(step).unwrap();
            train(&worker);
        }
        let other = settings("ring", 32, ByteSize::mib(1));
        // The end of the connection may still be on its way here.
        let error = match worker.propose(other.clone()) {
            Ok(proposal) => proposal.wait(PATIENCE).expect("it is decided").unwrap_err(),
            Err(error) => error,
        };
        let text = error.to_string();
        assert!(text.contains(&address) && text.contains("coordinator"), "{text}");
        assert!(worker.propose(other).is_err());
        worker.begin_step(20).unwrap();
        train(&worker);
    };
    thread::scope(|scope| {
        let workers = [0, 1].map(|rank| scope.spawn(move || work(rank)));
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn rank_0_that_hosts_the_coordinator_serves_proposals_too() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let work = |rank: u32| {
        let mut config = JoinConfig::new(format!("127.0.0.1:{port}"), secret());
        (config.rank, config.size) = (Some(Rank(rank)), Some(2));
        let plan = Plan { settings: settings("ring", 16, ByteSize::mib(1)), ..Plan::default() };
        config.hosting = (rank == 0).then_some(plan);
        let worker = Worker::start(join(config).unwrap(), WorkerConfig::default()).unwrap();
        worker.begin_step(0).unwrap();
        if rank == 1 {
            let other = settings("double_tree", 32, ByteSize::mib(2));
            worker.propose(other).unwrap().wait(PATIENCE).unwrap().unwrap();
        }
        worker.barrier("agreed").unwrap();
        for step in 1..4 {
            worker.begin_step(step).unwrap();
            train(&worker);
        }
        assert_eq!(worker.view().settings.strategy.0, "double_tree");
    };
    thread::scope(|scope| {
        let workers = [0, 1].map(|rank| scope.spawn(move || work(rank)));
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
#[ignore = "a measurement"]
fn what_beginning_a_step_costs() {
    cluster::run(1, settings("ring", 16, ByteSize::mib(1)), Wiring::Shared, |worker| {
        const STEPS: u64 = 1_000_000;
        for round in 0..5 {
            let since = Instant::now();
            for step in 0..STEPS {
                std::hint::black_box(worker.begin_step(round * STEPS + step).unwrap());
            }
            println!("{:.1} ns a step", since.elapsed().as_nanos() as f64 / STEPS as f64);
        }
    });
}

/// A coordinator of one worker that asks it to prepare step 2, hears its promise and then says `then`, or dies.
fn coordinator_that(then: Option<ToParticipant>) -> Worker {
    let (promised, promise) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let first = settings("ring", 16, ByteSize::mib(1));
    let first = Settings { timeout: Duration::from_millis(300), ..first };
    let other = Settings { partition: ByteSize::kib(32), ..first.clone() };
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let secret = secret();
        let terms = Terms {
            secret: &secret,
            purpose: Purpose::Coordinator,
            privacy: Privacy::for_stream(&stream, Encryption::BetweenMachines).unwrap(),
            timeout: PATIENCE,
        };
        let mut stream = handshake::respond(stream, terms).unwrap().stream;
        read_frame(&mut stream);
        let mut say = |message: &CoordinatorMessage| {
            let body = serde_json::to_vec(message).unwrap();
            decode_coordinator_message(&body).unwrap();
            stream.write_all(&framed(&body)).unwrap();
        };
        let job: JobId = serde_json::from_str("\"a job\"").unwrap();
        say(&CoordinatorMessage::Welcome { job, rank: Rank(0), view: View::local(1, first) });
        let (ballot, version) = (Ballot(1), ViewVersion(2));
        let change = Change::Settings(other);
        let prepare = ToParticipant::Prepare { ballot, step: 2, version, change };
        say(&CoordinatorMessage::Agreement(prepare));
        let mut next = || decode_worker_message(&read_frame(&mut stream)).unwrap();
        let first = next();
        assert!(matches!(first, WorkerMessage::Alive(_)), "{first:?}");
        let answer = next();
        let promise = ToRegistrar::Promise { ballot, next: 0 };
        assert_eq!(answer, WorkerMessage::Agreement(promise));
        promised.send(()).unwrap();
        if let Some(then) = then {
            let body = serde_json::to_vec(&CoordinatorMessage::Agreement(then)).unwrap();
            stream.write_all(&framed(&body)).unwrap();
            // Stay until the worker leaves.
            let alive = |said: &WorkerMessage| matches!(said, WorkerMessage::Alive(_));
            while alive(&decode_worker_message(&read_frame(&mut stream)).unwrap()) {}
            thread::sleep(Duration::from_secs(2));
        }
    });
    let joined = join(JoinConfig::new(address.to_string(), secret())).unwrap();
    let worker = Worker::start(joined, WorkerConfig::default()).unwrap();
    promise.recv().unwrap();
    worker
}

/// Steps begin until one was promised.
fn reach_the_promise(worker: &Worker) -> Result<Arc<View>, NetError> {
    worker.begin_step(0).unwrap();
    worker.begin_step(1).unwrap();
    worker.begin_step(2)
}

#[test]
fn a_worker_that_cannot_know_the_outcome_does_not_begin_the_step() {
    let worker = coordinator_that(None);
    let error = reach_the_promise(&worker).unwrap_err();
    assert!(matches!(error, NetError::OutcomeUnknown { version: ViewVersion(2), step: 2, .. }));
    assert!(error.to_string().contains("start the job again"), "{error}");
}

#[test]
fn a_worker_waits_for_an_outcome_no_longer_than_for_an_operation() {
    // What it hears is not about its ballot.
    let worker = coordinator_that(Some(ToParticipant::Commit { ballot: Ballot(9) }));
    let error = reach_the_promise(&worker).unwrap_err();
    assert!(matches!(error, NetError::OutcomeLate { version: ViewVersion(2), step: 2, .. }));
    assert!(error.to_string().contains("see whether it and all workers run"), "{error}");
}

#[test]
fn an_outcome_lets_the_step_begin_under_the_view_it_says() {
    for (then, version) in [
        (ToParticipant::Commit { ballot: Ballot(1) }, ViewVersion(2)),
        (ToParticipant::Abort { ballot: Ballot(1) }, ViewVersion(1)),
    ] {
        let worker = coordinator_that(Some(then));
        assert_eq!(reach_the_promise(&worker).unwrap().version, version);
    }
}
