//! Real workers for tests: threads of this process that join a real coordinator over loopback and are
//! linked by real connections or shared memory.

use paceline_job::{Rank, Settings};
use paceline_net::{
    Coordinator, CoordinatorConfig, JoinConfig, Log, Secret, Transport, Worker, WorkerConfig, join,
};
use std::thread;

/// How the workers of a test are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// One host, shared memory.
    Shared,
    /// One host, TCP, one connection per pair.
    Tcp,
    /// One host, TCP, three connections per pair.
    TcpStriped,
    /// Two workers per host; shared memory inside, TCP between.
    Hosts,
}

pub const WIRINGS: [Wiring; 4] = [Wiring::Shared, Wiring::Tcp, Wiring::TcpStriped, Wiring::Hosts];

/// Run `body` on every worker of a job of `size`; results in rank order.
pub fn run<R: Send>(
    size: usize,
    settings: Settings,
    wiring: Wiring,
    body: impl Fn(Worker) -> R + Sync,
) -> Vec<R> {
    run_with(size, settings, wiring, WorkerConfig::default, body)
}

/// The same with a configuration for each worker; its transport follows from the wiring.
pub fn run_with<R: Send>(
    size: usize,
    settings: Settings,
    wiring: Wiring,
    config: impl Fn() -> WorkerConfig + Sync,
    body: impl Fn(Worker) -> R + Sync,
) -> Vec<R> {
    let secret = Secret::random().unwrap();
    let coordinator = Coordinator::start(CoordinatorConfig {
        settings,
        log: Log::silent(),
        ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), size, secret.clone())
    })
    .unwrap();
    let address = coordinator.address().to_string();
    let work = |rank: usize| {
        let host = match wiring {
            Wiring::Hosts => format!("host-{}", rank / 2),
            _ => "one-host".to_string(),
        };
        let joined = join(JoinConfig {
            rank: Some(Rank(rank as u32)),
            host: Some(host),
            connections: if wiring == Wiring::TcpStriped { 3 } else { 1 },
            ..JoinConfig::new(&address, secret.clone())
        })
        .unwrap();
        let transport = match wiring {
            Wiring::Shared | Wiring::Hosts => Transport::Auto,
            Wiring::Tcp | Wiring::TcpStriped => Transport::Tcp,
        };
        body(Worker::start(joined, WorkerConfig { transport, ..config() }).unwrap())
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..size).map(|rank| scope.spawn(move || work(rank))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}
