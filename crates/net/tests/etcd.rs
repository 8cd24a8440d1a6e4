//! A job's seat and record in a real etcd: one coordinator at a time has it, another takes it over with what was written,
//! and whoever has lost it writes nothing more.

mod etcd_support;

use etcd_support::Server;
use paceline_job::{Settings, View};
use paceline_net::{
    coordinator::JobId,
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
    assert_eq!(EtcdStore::new(second).load().unwrap(), Some(written));
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
