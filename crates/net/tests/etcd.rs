//! A job's seat and record in a real etcd: one coordinator at a time has it, another takes it over with what was written,
//! whoever has lost it writes nothing more, and workers outlive whichever of them has it.

mod elastic_support;
mod etcd_support;

use elastic_support::{Process, see_equal_ends, see_somebody_wait};
use etcd_support::Server;
use paceline_job::{Settings, View};
use paceline_net::{
    Secret,
    coordinator::{Answer, JobId, Question, ask},
    store::{EtcdStore, Record, Store, StoreError},
};
use paceline_sync::agreement::Registrar;
use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

fn record(workers: usize) -> Record {
    let view = View::local(workers, Settings::default());
    Record { job: JobId::random().unwrap(), minutes: Registrar::new(view, false).minutes() }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn a_seat_has_one_holder_and_whoever_follows_finds_what_was_written() {
    let Some(server) = Server::start() else { return };
    let etcd = server.etcd("job");
    assert_eq!(etcd.locate().unwrap(), None);

    let first = etcd.claim(address(1)).unwrap().expect("nobody has it");
    assert_eq!(etcd.locate().unwrap().as_deref(), Some("127.0.0.1:1"));
    assert!(etcd.claim(address(2)).unwrap().is_none());
    assert!(server.etcd("other").claim(address(3)).unwrap().is_some(), "each job has its own");
    let mut store = EtcdStore::new(first);
    assert_eq!(store.load().unwrap(), None);
    let written = record(3);
    store.save(&record(2)).unwrap();
    store.save(&written).unwrap();
    drop(store);

    let second = etcd.claim(address(2)).unwrap().expect("given back");
    let mut store = EtcdStore::new(second);
    assert_eq!(store.load().unwrap(), Some(written));
    store.forget().unwrap();
    assert_eq!(store.load().unwrap(), None);
}

#[test]
fn whoever_lost_the_seat_writes_nothing_more() {
    let Some(mut server) = Server::start() else { return };
    let etcd = server.etcd("job");
    let seat = etcd.claim(address(1)).unwrap().expect("nobody has it");
    let mut deposed = EtcdStore::new(seat);
    deposed.save(&record(2)).unwrap();

    // Nobody can renew a lease while etcd is away.
    server.kill();
    assert!(matches!(deposed.save(&record(3)), Err(StoreError::Unusable { .. })));
    let began = Instant::now();
    while !deposed.is_deposed() {
        assert!(began.elapsed() < Duration::from_secs(30), "it believes that it has the seat");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(server.restart());
    let seat = loop {
        // Leases that were open when etcd ended run for their whole time again.
        match etcd.claim(address(2)).unwrap() {
            Some(seat) => break seat,
            None => thread::sleep(Duration::from_millis(100)),
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the lease does not end");
    };
    let mut successor = EtcdStore::new(seat);
    assert!(matches!(deposed.save(&record(4)), Err(StoreError::Taken { .. })));
    assert_eq!(successor.load().unwrap().unwrap().minutes.view.size(), 2);
    successor.save(&record(5)).unwrap();
}

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

/// Start workers of which the first has the seat.
fn workers(server: &Server, size: usize) -> Vec<Process> {
    workers_with(server, &Secret::random().unwrap(), size)
}

fn workers_with(server: &Server, secret: &Secret, size: usize) -> Vec<Process> {
    let address = server.address("training");
    let start = || {
        let size = size.to_string();
        let size = ("JOB_SIZE", &*size);
        let variables = [size, ("JOB_MOST", size.1), ("JOB_TRANSPORT", "tcp"), ("JOB_PACE", "30")];
        Process::start("worker_of_an_elastic_job", &address, secret, &variables)
    };
    let mut workers = vec![start()];
    let began = Instant::now();
    while server.etcd("training").locate().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(20), "nobody takes the seat");
        thread::sleep(Duration::from_millis(20));
    }
    workers.extend((1..size).map(|_| start()));
    workers
}

#[test]
fn workers_outlive_the_one_that_has_the_seat() {
    let Some(server) = Server::start() else { return };
    let mut workers = workers(&server, 3);
    workers[1].read_until("step 10 ").unwrap();
    drop(workers.remove(0));
    see_equal_ends(workers.iter_mut(), 2);
    drop(workers);
    let etcd = server.etcd("training");
    let seat = etcd.claim(address(1)).unwrap().expect("given back");
    assert_eq!(EtcdStore::new(seat).load().unwrap(), None, "the job is over");
}

#[test]
fn whoever_waits_to_be_let_in_goes_to_the_successor_of_the_one_that_has_the_seat() {
    let Some(server) = Server::start() else { return };
    let secret = Secret::random().unwrap();
    let mut workers = workers_with(&server, &secret, 3);
    workers[1].read_until("step 2 ").unwrap();
    let address = server.address("training");
    let tcp = [("JOB_TRANSPORT", "tcp")];
    let mut newcomer = Process::start("newcomer_to_an_elastic_job", &address, &secret, &tcp);
    see_somebody_wait(&address, &secret);
    // With it there is room.
    drop(workers.remove(0));
    let entered = newcomer.read_until("entered with ");
    assert_eq!(entered.as_deref(), Some("3"), "{:?}", newcomer.said);
    see_equal_ends(workers.iter_mut(), 2);
}

#[test]
fn workers_go_on_without_the_one_that_has_the_seat_and_is_frozen() {
    let Some(server) = Server::start() else { return };
    let mut workers = workers(&server, 3);
    workers[1].read_until("step 10 ").unwrap();
    let holder = server.etcd("training").locate().unwrap();
    workers[0].signal(libc::SIGSTOP);
    // Another takes the seat when its lease is over, finds the others, and that the one before does not come.
    workers[1].read_until("with 2").expect("the job goes on");
    assert_ne!(server.etcd("training").locate().unwrap(), holder);
    workers[0].signal(libc::SIGCONT);
    let last_words = workers[0].read_until("failed: ").expect("it is out of the job");
    assert!(last_words.contains("the job goes on without this worker"), "{last_words}");
    workers.remove(0);
    see_equal_ends(workers.iter_mut(), 2);
}

#[test]
fn a_job_is_asked_where_etcd_says_that_it_is() {
    let Some(server) = Server::start() else { return };
    let secret = Secret::random().unwrap();
    let address = server.address("training");
    let nobody = ask(&address, &secret, Question::Status).unwrap_err().to_string();
    assert!(nobody.contains("no coordinator"), "{nobody}");

    let mut workers = workers_with(&server, &secret, 3);
    workers[1].read_until("step 10 ").unwrap();
    let Answer::Status(status) = ask(&address, &secret, Question::Status).unwrap() else {
        panic!("another answer")
    };
    let mut processes: Vec<u32> = status.members.iter().map(|member| member.process).collect();
    let mut expected: Vec<u32> = workers.iter().map(Process::number).collect();
    processes.sort_unstable();
    expected.sort_unstable();
    assert_eq!(processes, expected);

    assert_eq!(ask(&address, &secret, Question::Resize(2)).unwrap(), Answer::Begun);
    let leaves = status.members.last().unwrap().process;
    let mut retired = workers.remove(workers.iter().position(|it| it.number() == leaves).unwrap());
    let last_words = retired.read_until("failed: ").expect("it leaves");
    assert!(last_words.contains("was asked to leave"), "{last_words}");
    see_equal_ends(workers.iter_mut(), 2);
}

#[test]
fn workers_train_on_while_etcd_is_away() {
    let Some(mut server) = Server::start() else { return };
    let mut workers = workers(&server, 2);
    workers[0].read_until("step 10 ").unwrap();
    server.kill();
    workers[0].read_until("step 30 ").unwrap();
    assert!(server.restart());
    see_equal_ends(workers.iter_mut(), 2);
}
