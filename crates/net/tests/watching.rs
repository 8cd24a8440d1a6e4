//! What people see who watch a job of real workers, and what they may change of it.

use paceline_job::{ByteSize, ReduceOp, Settings};
use paceline_net::{
    Coordinator, CoordinatorConfig, JoinConfig, Log, Secret, Worker, WorkerConfig,
    coordinator::{Observation, Observer, Sighting},
    join,
};
use paceline_sync::{
    agreement::Limits,
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Two workers train until the caller has seen enough.
fn watched(
    elastic: Option<Limits>,
    watches: bool,
    act: impl FnOnce(&Coordinator, &Mutex<Vec<Observation>>),
) {
    watched_with(elastic, watches, |_| (), act);
}

/// The same, where worker 0 does something first.
fn watched_with(
    elastic: Option<Limits>,
    watches: bool,
    first: impl Fn(&Worker) + Clone + Send + 'static,
    act: impl FnOnce(&Coordinator, &Mutex<Vec<Observation>>),
) {
    let seen = Arc::<Mutex<Vec<Observation>>>::default();
    let told = seen.clone();
    let observer = Observer::new(move |it| told.lock().unwrap().push(it));
    let secret = Secret::random().unwrap();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let coordinator = Coordinator::start(CoordinatorConfig {
        elastic,
        observer: watches.then_some(observer),
        log: Log::silent(),
        ..CoordinatorConfig::new(listen, 2, secret.clone())
    })
    .unwrap();
    let address = coordinator.address().to_string();
    let over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (config, over) = (JoinConfig::new(&address, secret.clone()), over.clone());
            let first = first.clone();
            thread::spawn(move || {
                let worker = Worker::start(join(config).unwrap(), WorkerConfig::default()).unwrap();
                if worker.rank().0 == 0 {
                    first(&worker);
                    // Nobody may be told yet that the job is watched.
                    let decided = worker.decisions();
                    thread::spawn(move || {
                        for _ in 0..50 {
                            thread::sleep(Duration::from_millis(20));
                            decided("it was decided".to_string());
                        }
                    });
                }
                for step in 0.. {
                    worker.begin_step(step).unwrap();
                    worker.tell(Some(0.5), Some(4));
                    thread::sleep(Duration::from_millis(10));
                    let mut data = vec![f32::from(over.load(Ordering::Relaxed)); 10_000];
                    worker.all_reduce("layer", &mut data, ReduceOp::Max).unwrap();
                    // All leave after the same step.
                    if data[0] > 0.0 {
                        return;
                    }
                }
            })
        })
        .collect();
    act(&coordinator, &seen);
    over.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

fn wait_for<T>(
    seen: &Mutex<Vec<Observation>>,
    mut wanted: impl FnMut(&Observation) -> Option<T>,
) -> T {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(found) = seen.lock().unwrap().iter().find_map(&mut wanted) {
            return found;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it was not seen: {:?}", seen.lock().unwrap());
}

#[test]
fn steps_of_every_worker_are_seen_whether_they_may_come_and_go_or_not() {
    for elastic in [None, Some(Limits::default())] {
        watched(elastic, true, |coordinator, seen| {
            for wanted in [0, 1] {
                let sighting: Box<Sighting> = wait_for(seen, |it| match it {
                    Observation::Seen { sighting, .. }
                        if sighting.rank.0 == wanted && sighting.step > 5 =>
                    {
                        Some(sighting.clone())
                    }
                    _ => None,
                });
                assert!(sighting.is_sound());
                let one = &sighting.operations[0];
                assert_eq!((&*one.name, one.bytes), ("layer", 40_000));
                assert!(one.started.is_some() && one.ended.is_some(), "{one:?}");
                assert_eq!(sighting.loss, Some(0.5));
                assert_eq!(sighting.sent.len(), 1);
                assert_eq!(sighting.sent[0].0.0, 1 - wanted);
                assert!(!sighting.waits.is_empty() && sighting.speed > 0.0);
            }
            wait_for(seen, |it| match it {
                Observation::Decided { text, .. } => (text == "it was decided").then_some(()),
                _ => None,
            });
            let status = coordinator.status().unwrap();
            assert!(status.step > 0 && status.members.len() == 2);
        });
    }
}

#[test]
fn whoever_watches_may_change_settings() {
    for elastic in [None, Some(Limits::default())] {
        watched(elastic, true, |coordinator, seen| {
            wait_for(seen, |it| matches!(it, Observation::Seen { .. }).then_some(()));
            let before = coordinator.settings().unwrap().expect("the job runs");
            let partition = ByteSize::kib(4);
            coordinator.change(Settings { partition, ..before.clone() }).unwrap();
            let since = wait_for(seen, |it| match it {
                Observation::View { view, since } if view.settings.partition == partition => {
                    Some(*since)
                }
                _ => None,
            });
            assert!(since > 0);
            let none = Settings { credit: ByteSize(0), ..before };
            assert!(coordinator.change(none).is_err());
            coordinator.pause_tuning(true).unwrap();
            coordinator.pause_tuning(false).unwrap();
        });
    }
}

/// Counts what it is shown.
struct Counter(Arc<AtomicU64>);

impl Policy for Counter {
    fn observe(&mut self, _: &JobMetrics) -> Option<Proposal> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[test]
fn a_tuner_that_rests_is_shown_nothing_until_it_goes_on() {
    let count = Arc::<AtomicU64>::default();
    let shown = || count.load(Ordering::Relaxed);
    let wait_until = |so: &mut dyn FnMut() -> bool| {
        let begin = Instant::now();
        while !so() {
            assert!(begin.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
    };
    let tuned = count.clone();
    let tune = move |worker: &Worker| {
        let tuned = tuned.clone();
        worker.tune(move |_| Some(Box::new(Counter(tuned.clone())))).unwrap();
    };
    watched_with(None, true, tune, |coordinator, _| {
        wait_until(&mut || shown() > 2);
        coordinator.pause_tuning(true).unwrap();
        // What was on its way may still be shown; then nothing is for as long as some reports take.
        wait_until(&mut || {
            let before = shown();
            thread::sleep(Duration::from_millis(600));
            shown() == before
        });
        let before = shown();
        coordinator.pause_tuning(false).unwrap();
        wait_until(&mut || shown() > before);
    });
}

#[test]
fn nobody_shows_anything_where_nobody_watches() {
    watched(None, false, |_, seen| {
        thread::sleep(Duration::from_millis(500));
        assert!(seen.lock().unwrap().is_empty());
    });
}
