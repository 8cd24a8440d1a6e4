//! The coordinator of an elastic job as a real process that is killed: workers train on without it, one that is restarted
//! where it was goes on with what was written down, and a worker that was lost meanwhile is out of the next view.

mod elastic_support;

use elastic_support::{Process, see_equal_ends, see_somebody_wait};
use paceline_net::{
    Log, Secret,
    coordinator::{Coordinator, CoordinatorConfig},
    store::DiskStore,
};
use paceline_sync::agreement::Limits;
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const WORKERS: usize = 3;

#[test]
#[ignore = "a process of the other tests"]
fn worker_of_an_elastic_job() {
    elastic_support::work();
}

#[test]
#[ignore = "a process of the other tests"]
fn newcomer_to_an_elastic_job() {
    elastic_support::wait_for_room();
}

#[test]
#[ignore = "a process of the other tests"]
fn coordinator_of_an_elastic_job() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let secret = Secret::from_text(&variable("JOB_SECRET"), "the test").unwrap();
    let store = DiskStore::open(Path::new(&variable("JOB_STORE"))).unwrap();
    let config = config(&variable("JOB_ADDRESS"), secret, Log::silent());
    let coordinator = Coordinator::start_with(config, Some(Box::new(store))).unwrap();
    println!("listening at {}", coordinator.address());
    println!("ended as {:?}", coordinator.wait(Duration::from_secs(120)));
}

fn config(address: &str, secret: Secret, log: Log) -> CoordinatorConfig {
    let listen = address.parse().unwrap();
    let elastic = Some(Limits { least: 1, most: WORKERS });
    CoordinatorConfig { elastic, log, ..CoordinatorConfig::new(listen, WORKERS, secret) }
}

fn coordinator(address: &str, secret: &Secret, folder: &Path) -> (Process, String) {
    let store = [("JOB_STORE", folder.to_str().unwrap())];
    let mut process = Process::start("coordinator_of_an_elastic_job", address, secret, &store);
    let address = process.read_until("listening at ").unwrap();
    (process, address)
}

/// Kill the coordinator in step 10, and perhaps a worker while it is away.
fn restart(losing: bool) {
    let secret = Secret::random().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (first, address) = coordinator("127.0.0.1:0", &secret, folder.path());
    let pace = Duration::from_millis(20);
    let mut workers: Vec<Process> =
        (0..WORKERS).map(|_| Process::worker(&address, &secret, "tcp", pace)).collect();
    workers[0].read_until("step 10 ").unwrap();
    drop(first);
    // Nobody needs it as long as nothing changes.
    workers[0].read_until("step 20 ").unwrap();
    if losing {
        drop(workers.pop());
    }
    let (mut second, _) = coordinator(&address, &secret, folder.path());
    let left = workers.len();
    see_equal_ends(workers.iter_mut(), left);
    assert_eq!(second.read_until("ended as ").as_deref(), Some("Ended"));
}

#[test]
fn a_coordinator_that_is_killed_and_restarted_has_its_workers_again() {
    restart(false);
}

#[test]
fn a_worker_that_is_lost_while_the_coordinator_is_away_is_out_of_the_next_view() {
    restart(true);
}

#[test]
fn whoever_waits_to_be_let_in_waits_with_the_restarted_coordinator_until_there_is_room() {
    let secret = Secret::random().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (first, address) = coordinator("127.0.0.1:0", &secret, folder.path());
    let pace = Duration::from_millis(150);
    let mut workers: Vec<Process> =
        (0..WORKERS).map(|_| Process::worker(&address, &secret, "tcp", pace)).collect();
    workers[0].read_until("step 2 ").unwrap();
    let tcp = [("JOB_TRANSPORT", "tcp")];
    let mut newcomer = Process::start("newcomer_to_an_elastic_job", &address, &secret, &tcp);
    see_somebody_wait(&address, &secret);
    drop(first);
    let (mut second, _) = coordinator(&address, &secret, folder.path());
    see_somebody_wait(&address, &secret);
    drop(workers.pop());
    let entered = newcomer.read_until("entered with ");
    assert_eq!(entered.as_deref(), Some("3"), "{:?}", newcomer.said);
    see_equal_ends(workers.iter_mut(), WORKERS - 1);
    assert_eq!(second.read_until("ended as ").as_deref(), Some("Ended"));
}

#[test]
fn whoever_waits_to_be_let_in_is_told_when_the_job_is_over() {
    let secret = Secret::random().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (mut only, address) = coordinator("127.0.0.1:0", &secret, folder.path());
    let pace = Duration::from_millis(30);
    let mut workers: Vec<Process> =
        (0..WORKERS).map(|_| Process::worker(&address, &secret, "tcp", pace)).collect();
    workers[0].read_until("step 2 ").unwrap();
    let tcp = [("JOB_TRANSPORT", "tcp")];
    let mut newcomer = Process::start("newcomer_to_an_elastic_job", &address, &secret, &tcp);
    see_somebody_wait(&address, &secret);
    see_equal_ends(workers.iter_mut(), WORKERS);
    let told = newcomer.read_until("failed: ");
    assert_eq!(told.as_deref(), Some("the job was over before this worker was let in"));
    assert_eq!(only.read_until("ended as ").as_deref(), Some("Ended"));
}

#[test]
fn a_coordinator_without_what_was_written_down_is_asked_once_a_second_until_the_right_one_is_back()
{
    let secret = Secret::random().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (first, address) = coordinator("127.0.0.1:0", &secret, folder.path());
    let pace = Duration::from_millis(50);
    let mut workers: Vec<Process> =
        (0..WORKERS).map(|_| Process::worker(&address, &secret, "tcp", pace)).collect();
    workers[0].read_until("step 10 ").unwrap();
    drop(first);
    let refused = Arc::new(Mutex::new(0));
    let (began, counted) = (Instant::now(), refused.clone());
    let log =
        Log::to(move |line| *counted.lock().unwrap() += usize::from(line.contains("refused")));
    let other = Coordinator::start(config(&address, secret.clone(), log)).unwrap();
    workers[0].read_until("step 40 ").unwrap();
    let (refused, seconds) = (*refused.lock().unwrap(), began.elapsed().as_secs() as usize);
    assert!(refused >= WORKERS && refused <= WORKERS * (2 + seconds), "{refused} in {seconds} s");
    drop(other);
    let (mut second, _) = coordinator(&address, &secret, folder.path());
    see_equal_ends(workers.iter_mut(), WORKERS);
    assert_eq!(second.read_until("ended as ").as_deref(), Some("Ended"));
}

#[test]
fn a_job_that_was_killed_as_a_whole_makes_room_for_one_that_begins_anew() {
    let secret = Secret::random().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (first, address) = coordinator("127.0.0.1:0", &secret, folder.path());
    let begin = |address: &str| -> Vec<Process> {
        let worker = || Process::worker(address, &secret, "tcp", Duration::from_millis(5));
        (0..WORKERS).map(|_| worker()).collect()
    };
    let mut workers = begin(&address);
    workers[0].read_until("step 10 ").unwrap();
    // The coordinator first, or it would see that the job is over.
    drop(first);
    drop(workers);
    // They come while those of the job before are still waited for.
    let (mut second, address) = coordinator(&address, &secret, folder.path());
    let mut workers = begin(&address);
    see_equal_ends(workers.iter_mut(), WORKERS);
    assert!(workers.iter().all(|worker| worker.said.iter().any(|line| line.contains("step 0 "))));
    assert_eq!(second.read_until("ended as ").as_deref(), Some("Ended"));
}
