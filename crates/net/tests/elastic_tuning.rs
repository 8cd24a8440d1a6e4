//! An elastic job that is tuned while workers die and come, as real processes: all see the same of it, whoever is the first
//! asks a policy of its own, and everybody follows in the same step. The processes are this very program, asked for its one
//! ignored test.

mod elastic_support;

use elastic_support::Process;
use paceline_job::{ByteSize, ReduceOp};
use paceline_net::{
    JoinConfig, Log, Secret, Worker, WorkerConfig,
    coordinator::{Coordinator, CoordinatorConfig},
    join,
};
use paceline_sync::{
    agreement::Limits,
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use std::collections::BTreeMap;

/// A setting for each number of workers.
fn credit_of(workers: usize) -> ByteSize {
    ByteSize((workers as u64) << 22)
}

struct CreditBySize;

impl Policy for CreditBySize {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let credit = credit_of(metrics.workers.len());
        let mut settings = metrics.settings.clone();
        (std::mem::replace(&mut settings.credit, credit) != credit)
            .then(|| Proposal { settings, reason: "so many workers".to_string() })
    }
}

#[test]
#[ignore = "a process of the other test"]
fn worker_of_a_tuned_job() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let secret = Secret::from_text(&variable("JOB_SECRET"), "the test").unwrap();
    let joined = join(JoinConfig::new(variable("JOB_ADDRESS"), secret)).unwrap();
    let worker = Worker::start(joined, WorkerConfig::default()).unwrap();
    worker
        .tune(|view| {
            println!("made for {}", view.size());
            Some(Box::new(CreditBySize))
        })
        .unwrap();
    let mut value = vec![1.0_f32; 50_000];
    let (mut step, mut seen) = (0, None);
    // Whether a worker has been lost, which is how the newcomer's life begins.
    let mut was_two = worker.is_outside();
    if worker.is_outside() {
        step = worker.enter().unwrap().step;
        let regions = [(value.as_mut_ptr().cast(), size_of_val(&value[..]))];
        // SAFETY: memory of our own, untouched until it returns.
        unsafe { worker.share("value", &regions, false) }.unwrap();
        worker.all_reduce("gradient", &mut value, ReduceOp::Average).unwrap();
        step += 1;
    }
    loop {
        let view = worker.begin_step(step).unwrap();
        if worker.has_newcomers() {
            let regions = [(value.as_mut_ptr().cast(), size_of_val(&value[..]))];
            // SAFETY: as above.
            unsafe { worker.share("value", &regions, true) }.unwrap();
        }
        if let Some(metrics) = worker.metrics().filter(|it| Some(it.step) > seen) {
            seen = Some(metrics.step);
            let seconds: Vec<f64> = metrics.workers.iter().map(|worker| worker.seconds).collect();
            println!("metrics {} {:?} {:?}", metrics.step, metrics.view, seconds);
        }
        if view.settings.credit == credit_of(view.size()) {
            match view.size() {
                3 if was_two => break,
                3 if variable("JOB_DIES") == "yes" => std::process::abort(),
                2 if !was_two => {
                    println!("tuned for two");
                    was_two = true;
                }
                _ => {}
            }
        }
        worker.all_reduce("gradient", &mut value, ReduceOp::Average).unwrap();
        step += 1;
    }
    drop(worker);
    println!("over at {step}");
}

#[test]
fn whoever_is_the_first_tunes_and_all_see_and_follow_the_same() {
    let secret = Secret::random().unwrap();
    let coordinator = Coordinator::start(CoordinatorConfig {
        elastic: Some(Limits::default()),
        log: Log::silent(),
        ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), 3, secret.clone())
    })
    .unwrap();
    let address = coordinator.address().to_string();
    let start = |dies: &str| {
        Process::start("worker_of_a_tuned_job", &address, &secret, &[("JOB_DIES", dies)])
    };
    // Workers are seated in the order they come, so the first is the one that dies.
    let mut first = start("yes");
    while coordinator.status().unwrap().members.is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut others = vec![start(""), start("")];
    assert_eq!(first.read_until("never"), None, "it dies once it has tuned: {:?}", first.said);
    for other in &mut others {
        assert!(other.read_until("tuned for two").is_some(), "{:?}", other.said);
    }
    others.push(start(""));
    let ends: Vec<_> = others.iter_mut().map(|other| other.read_until("over at")).collect();
    let said: Vec<&Vec<String>> = others.iter().map(|other| &other.said).collect();
    assert!(ends[0].is_some() && ends.iter().all(|end| *end == ends[0]), "{ends:?}: {said:#?}");
    let all = || said.iter().copied().chain([&first.said]);
    let made =
        |size: usize| all().flatten().filter(|line| **line == format!("made for {size}")).count();
    assert_eq!((made(3), made(2)), (2, 1), "{said:#?}");
    assert!(first.said.contains(&"made for 3".to_string()), "{:?}", first.said);
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for line in all().flatten().filter_map(|line| line.strip_prefix("metrics ")) {
        let (step, metrics) = line.split_once(' ').unwrap();
        assert_eq!(*seen.entry(step).or_insert(metrics), metrics, "step {step}: {said:#?}");
    }
    assert!(!seen.is_empty());
}
