//! Real workers on loopback that survey their links when they meet: all have the same finding in their second view, the coordinator
//! says and saves it, and the job goes on by it.

use paceline_job::{Rank, ReduceOp, Settings, StrategyChoice, Topology, ViewVersion};
use paceline_net::{
    Coordinator, CoordinatorConfig, JoinConfig, Log, Secret, Worker, WorkerConfig, join, survey,
};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// The workers' topologies and what the coordinator said.
fn job(
    hosts: &[&str],
    config: impl FnOnce(CoordinatorConfig) -> CoordinatorConfig,
    body: impl Fn(&Worker) + Sync,
) -> (Vec<Option<Arc<Topology>>>, Vec<String>) {
    let secret = Secret::random().unwrap();
    let said = Arc::<Mutex<Vec<String>>>::default();
    let sink = said.clone();
    let log = Log::to(move |line| sink.lock().unwrap().push(line.to_string()));
    let usual = CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), hosts.len(), secret.clone());
    let coordinator = Coordinator::start(config(CoordinatorConfig { log, ..usual })).unwrap();
    let address = coordinator.address().to_string();
    let work = |(rank, host): (u32, &&str)| {
        let joined = join(JoinConfig {
            rank: Some(Rank(rank)),
            host: Some(host.to_string()),
            ..JoinConfig::new(&address, secret.clone())
        });
        let worker = Worker::start(joined.unwrap(), WorkerConfig::default()).unwrap();
        let topology = worker.view().settings.topology.clone();
        let mut sum = vec![1.0_f32; 1000];
        worker.all_reduce("sum", &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, vec![hosts.len() as f32; 1000]);
        body(&worker);
        topology
    };
    let topologies = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip(hosts).map(|each| scope.spawn(move || work(each))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    coordinator.wait(Duration::from_secs(60));
    let said = said.lock().unwrap().clone();
    (topologies, said)
}

const HOSTS: [&str; 6] = ["a", "b", "b", "c", "d", "e"];

fn assert_agreed(topologies: &[Option<Arc<Topology>>]) -> &Topology {
    let first = topologies[0].as_ref().expect("there was a survey");
    assert!(topologies.iter().all(|other| other.as_ref() == Some(first)), "{topologies:?}");
    let names: Vec<&str> = first.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    first.check().unwrap();
    first
}

#[test]
fn all_workers_have_what_they_found_in_their_second_view() {
    for strategy in ["auto", "shuffle:4", "hierarchical:racks"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("net.toml");
        let config = |config: CoordinatorConfig| CoordinatorConfig {
            survey: Some(Duration::from_millis(500)),
            topology_out: Some(file.clone()),
            settings: Settings {
                strategy: StrategyChoice(strategy.to_string()),
                ..Settings::default()
            },
            ..config
        };
        let (topologies, said) = job(&HOSTS, config, |worker| {
            assert_eq!(worker.view().version, ViewVersion(2));
        });
        let agreed = assert_agreed(&topologies);
        let saved = Topology::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(&saved, agreed);
        let line = said.iter().find(|line| line.starts_with("surveyed 5 hosts"));
        assert!(line.is_some_and(|line| line.contains("net.toml")), "{said:?}");
    }
}

#[test]
fn a_job_that_has_a_topology_or_one_host_surveys_nothing() {
    let asked = |config: CoordinatorConfig| CoordinatorConfig {
        survey: Some(Duration::from_millis(300)),
        ..config
    };
    let (topologies, said) = job(&["a", "a"], asked, |_| {});
    assert_eq!(topologies, [None, None]);
    assert!(said.iter().any(|line| line.contains("one host")), "{said:?}");

    let link =
        paceline_job::Link { rate: "1gbit".parse().unwrap(), latency: Duration::from_micros(50) };
    let given = Arc::new(Topology::racked(2, 2, link, link, link));
    let (topologies, said) = job(
        &["host0", "elsewhere"],
        |config| {
            let topology = Some(given.clone());
            asked(CoordinatorConfig {
                settings: Settings { topology, ..Settings::default() },
                ..config
            })
        },
        |_| {},
    );
    assert_eq!(topologies, [Some(given.clone()), Some(given.clone())]);
    assert!(!said.iter().any(|line| line.starts_with("surveyed")), "{said:?}");
    assert!(said.iter().any(|line| line.ends_with(": elsewhere")), "{said:?}");
}

#[test]
fn a_running_job_can_survey_as_often_as_it_likes() {
    let found = Mutex::new(Vec::new());
    job(
        &HOSTS,
        |config| config,
        |worker| {
            for _ in 0..2 {
                let finding = survey(worker, Duration::from_millis(300)).unwrap();
                if worker.rank() == Rank(0) {
                    assert!(finding.rounds > 0 && finding.took > Duration::ZERO);
                }
                found.lock().unwrap().push((worker.rank(), finding));
            }
        },
    );
    let found = found.into_inner().unwrap();
    let of = |rank: Rank| found.iter().filter(move |(of, _)| *of == rank).map(|(_, it)| it);
    let first: Vec<_> = of(Rank(0)).collect();
    for rank in 1..HOSTS.len() as u32 {
        assert_eq!(of(Rank(rank)).collect::<Vec<_>>(), first);
    }
}
