//! Where a job's coordinator is to be found: at an address that does not change, or wherever etcd says that it is now. In
//! the second case every worker brings a [`Candidate`] for the seat, so that the job outlives any of its machines.

use crate::{
    coordinator::{Coordinator, CoordinatorConfig, Progress},
    error::{NetError, Result},
    handshake::{self, Waker},
    join,
    store::{Etcd, EtcdStore},
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The pause before a seat that another has is asked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a coordinator is looked after.
const GLANCE: Duration = Duration::from_millis(200);

/// How often it is seen whether a thread has ended that is about to.
const SOON: Duration = Duration::from_millis(5);

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub(crate) enum Rendezvous {
    Fixed(String),
    Etcd(Etcd),
}

impl Rendezvous {
    /// Read `host:port` or `etcd://HOST:PORT/JOB`.
    pub(crate) fn parse(text: &str) -> Result<Rendezvous> {
        if !text.starts_with(Etcd::SCHEME) {
            return Ok(Rendezvous::Fixed(text.to_string()));
        }
        let wrong = |problem| NetError::Environment {
            variable: "PACELINE_COORDINATOR",
            value: text.to_string(),
            problem,
        };
        Etcd::parse(text).map(Rendezvous::Etcd).map_err(wrong)
    }

    /// Where the coordinator may be now.
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>> {
        match self {
            Rendezvous::Fixed(name) => join::resolve(name),
            Rendezvous::Etcd(etcd) => match etcd.locate()? {
                Some(address) => join::resolve(&address),
                None => Err(NetError::NoCoordinator),
            },
        }
    }
}

/// Takes the job's seat whenever it is free, on a thread of its own, until it is dropped or the job is over.
#[derive(Debug)]
pub(crate) struct Candidate {
    wish: Arc<AtomicU8>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// What a candidate is to do: the higher, the sooner it ends.
mod wish {
    /// Take the seat whenever it is free.
    pub(super) const STAND: u8 = 0;
    /// Take it no more, and stay until the job is over if it is taken.
    pub(super) const FINISH: u8 = 1;
    /// Give it back at once.
    pub(super) const STOP: u8 = 2;
}

impl Candidate {
    /// `config.listen` is an address that other workers reach, with any port.
    pub(crate) fn start(etcd: Etcd, config: CoordinatorConfig) -> Result<Candidate> {
        let (waker, wakened) = Waker::pair()?;
        let shared = Arc::new(AtomicU8::new(wish::STAND));
        let wish = shared.clone();
        let run = move || {
            let wait = |limit| {
                wakened.drain();
                // If the system cannot wait, the next attempt comes sooner.
                let _ = handshake::wait(&mut [handshake::entry(&wakened, false)], Some(limit));
            };
            while wish.load(Ordering::Acquire) == wish::STAND {
                match preside(&etcd, &config) {
                    Ok(Some(coordinator)) => {
                        if !serve(&coordinator, &wish, &wait) {
                            return;
                        }
                    }
                    Ok(None) => wait(PAUSE),
                    Err(error) => {
                        config.log.line(&format!("cannot coordinate: {error}"));
                        wait(10 * PAUSE);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("paceline-candidate".to_string()).spawn(run)?;
        Ok(Candidate { wish: shared, waker, thread: Some(thread) })
    }

    /// The job is over here: if the seat is ours, stay until it is over everywhere, but no longer than `limit`.
    pub(crate) fn finish(self, limit: Duration) {
        self.wish.store(wish::FINISH, Ordering::Release);
        self.waker.wake();
        let began = Instant::now();
        let over = |thread: &JoinHandle<()>| thread.is_finished() || began.elapsed() > limit;
        while !self.thread.as_ref().is_none_or(over) {
            thread::sleep(SOON);
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.wish.store(wish::STOP, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been printed.
            let _ = thread.join();
        }
    }
}

/// Take the seat if it is free.
fn preside(etcd: &Etcd, config: &CoordinatorConfig) -> Result<Option<Coordinator>> {
    // Nobody is told an address at which nobody listens.
    let listener = handshake::listen(config.listen)?;
    let Some(seat) = etcd.claim(listener.local_addr()?)? else { return Ok(None) };
    let store = Box::new(EtcdStore::new(seat));
    Coordinator::start_on(listener, config.clone(), Some(store)).map(Some)
}

/// Whether the seat is to be asked for again: it was lost, and the job goes on.
fn serve(coordinator: &Coordinator, wish: &AtomicU8, wait: &impl Fn(Duration)) -> bool {
    loop {
        match coordinator.progress() {
            // A record of workers that are long gone ends so, too; then another job begins.
            Progress::Ended | Progress::Deposed => return true,
            Progress::Failed(_) => return false,
            Progress::Gathering { .. } | Progress::Running { .. } => {}
        }
        if wish.load(Ordering::Acquire) == wish::STOP {
            return false;
        }
        wait(GLANCE);
    }
}

/// The local address that leads to etcd leads to those who find us there.
pub(crate) fn address_towards(etcd: &Etcd) -> Result<IpAddr> {
    let mut last = NetError::NoCoordinator;
    for endpoint in etcd.endpoints() {
        for address in join::resolve(endpoint)? {
            match std::net::TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
                Ok(stream) => return Ok(stream.local_addr()?.ip()),
                Err(source) => last = NetError::Unreachable { waited: Duration::ZERO, source },
            }
        }
    }
    Err(last)
}
