//! How a worker joins a job: it proves itself to the coordinator, gets its rank and the first view,
//! and connects with every other worker. Everything is bounded in time, and an error names the rank
//! and the address that failed. This file knows nothing of tensors.

mod environment;
mod host;
pub(crate) mod mesh;

pub use environment::Variables;
pub(crate) use host::resolve;
pub use host::{host_identity, interface_address, tune};

use crate::{
    control::WayBack,
    coordinator::{
        COORDINATOR_MESSAGE_BYTES, Coordinator, CoordinatorConfig, CoordinatorMessage, Fate,
        JOIN_TIMEOUT, JobId, Join, Log, Outside, Return, WorkerMessage, decode_coordinator_message,
        encode,
    },
    error::{NetError, Result},
    handshake::{
        self, Connection, Deadline, Encryption, HANDSHAKE_TIMEOUT, MessageChannel, Purpose,
    },
    rendezvous::{self, Candidate, Rendezvous},
    secret::Secret,
};
use mesh::Place;
use paceline_job::{Membership, Plan, Rank, View, ViewVersion, Worker, WorkerId};
use paceline_sync::agreement::{Ballot, Limits};
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    os::fd::{AsRawFd, RawFd},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

/// The pause before a name that could not be resolved is asked for again.
const RESOLVE_PAUSE: Duration = Duration::from_millis(200);

/// How a worker is to join. [`JoinConfig::from_env`] reads it from the environment.
#[derive(Clone, Debug)]
pub struct JoinConfig {
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// The rank this worker must have; none lets the coordinator choose.
    pub rank: Option<Rank>,
    /// How many workers this one was told there are; checked against the coordinator.
    pub size: Option<usize>,
    /// The job's secret.
    pub secret: Secret,
    /// The local address, or the name of the interface, to listen on. None: loopback if the
    /// coordinator is there, otherwise the address that leads to it.
    pub interface: Option<String>,
    /// Ports to listen on. None: any.
    pub port_range: Option<RangeInclusive<u16>>,
    /// When to encrypt.
    pub encryption: Encryption,
    /// Connections to each peer, at least 1. The same on all workers.
    pub connections: usize,
    /// The bound on gathering all workers, and again on connecting with them.
    pub timeout: Duration,
    /// The name of this worker's host instead of [`host_identity`].
    pub host: Option<String>,
    /// Run the coordinator in this process, for a job that begins so: rank 0 does so where the launcher is not ours. Where
    /// coordinators are found through etcd, what a job begins with that this process is the first to coordinate.
    pub hosting: Option<Plan>,
    /// How long workers of a job that is hosted here survey their links before the first step, if they are to.
    pub survey: Option<Duration>,
    /// Where the hosted coordinator saves what they find.
    pub topology_out: Option<PathBuf>,
    /// How many workers a job may have whose coordinator is found through etcd: its workers come and go.
    pub limits: Limits,
    /// Where the hosted coordinator reports.
    pub log: Log,
}

impl JoinConfig {
    /// The usual way to join a coordinator: any rank, one connection to each peer.
    pub fn new(coordinator: impl Into<String>, secret: Secret) -> JoinConfig {
        JoinConfig {
            coordinator: coordinator.into(),
            rank: None,
            size: None,
            secret,
            interface: None,
            port_range: None,
            encryption: Encryption::default(),
            connections: 1,
            timeout: JOIN_TIMEOUT,
            host: None,
            hosting: None,
            survey: None,
            topology_out: None,
            limits: Limits::default(),
            log: Log::default(),
        }
    }

    fn host(&self) -> String {
        self.host.clone().unwrap_or_else(host_identity)
    }
}

/// A worker's part in a job that has all its workers.
#[derive(Debug)]
pub struct Joined {
    /// Our place in the view.
    pub rank: Rank,
    /// The first view.
    pub view: View,
    /// Indexed by rank, then by connection; empty for ourselves.
    pub peers: Vec<Vec<Connection>>,
    /// To the coordinator. Closing it without a word counts as death.
    pub control: ControlChannel,
    /// Where this worker hosts it. Dropping it ends the control of the whole job: wait for the
    /// others first ([`Coordinator::wait`]).
    pub coordinator: Option<Coordinator>,
    /// Where coordinators are found through etcd, this worker's candidate.
    pub(crate) candidate: Option<Candidate>,
    /// In an elastic job, what it takes to connect with others again.
    pub(crate) reunion: Option<Reunion>,
    /// Where the job was running already: the latest view, which is without this worker. `view` is then of this worker
    /// alone, and it takes part once it [enters](crate::Worker::enter).
    pub(crate) underway: Option<View>,
}

/// What it takes to connect with the workers of another view.
#[derive(Debug)]
pub(crate) struct Reunion {
    pub(crate) job: JobId,
    pub(crate) listener: TcpListener,
    pub(crate) config: JoinConfig,
}

impl Reunion {
    fn outside(&self) -> Result<Outside> {
        Ok(Outside { host: self.config.host(), address: self.listener.local_addr()? })
    }
}

/// The way back to the job's coordinator, for a worker that has a place in it, or waits for one.
pub(crate) struct PlaceOf(pub(crate) Arc<Reunion>, pub(crate) WorkerId);

impl WayBack for PlaceOf {
    fn come_back(&self, outside: bool) -> Result<ControlChannel> {
        let PlaceOf(reunion, worker) = self;
        let JoinConfig { coordinator, secret, encryption, .. } = &reunion.config;
        let addresses = Rendezvous::parse(coordinator)?.resolve()?;
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        let connection =
            mesh::knock_once(&addresses, secret, Purpose::Coordinator, *encryption, deadline)?;
        let mut control = ControlChannel::new(connection)?;
        control.send(&WorkerMessage::Return(Return {
            job: reunion.job.clone(),
            worker: *worker,
            process: std::process::id(),
            outside: if outside { Some(reunion.outside()?) } else { None },
        }))?;
        Ok(control)
    }

    fn tell(&self, line: &str) {
        self.0.config.log.event(line);
    }

    fn is_elsewhere(&self, address: &str) -> bool {
        // One that has an address of its own may be stopped for a while; nobody takes its place.
        let Ok(Rendezvous::Etcd(etcd)) = Rendezvous::parse(&self.0.config.coordinator) else {
            return false;
        };
        matches!(etcd.locate(), Ok(Some(holder)) if holder != address)
    }
}

/// How the coordinator answers a join.
enum Answer {
    Welcome(Place),
    /// The job runs in this view, and this is what the worker is called in one to come.
    Underway(JobId, WorkerId, View),
}

/// Join a job.
pub fn join(config: JoinConfig) -> Result<Joined> {
    if config.connections == 0 {
        return Err(NetError::Environment {
            variable: "PACELINE_CONNECTIONS",
            value: "0".to_string(),
            problem: "leaves nothing to send over".to_string(),
        });
    }
    let deadline = Deadline::after(config.timeout);
    let at_coordinator = |error: NetError| error.with_coordinator(&config.coordinator);
    let interface = config.interface.as_deref().map(host::interface_address).transpose()?;
    let rendezvous = Rendezvous::parse(&config.coordinator)?;
    let candidate = stand(&rendezvous, &config, interface)?;
    let coordinator = match &config.hosting {
        Some(plan) if candidate.is_none() => Some(host_coordinator(&config, plan)?),
        _ => None,
    };
    let (mut control, listener, answer) = loop {
        let addresses = match &coordinator {
            Some(coordinator) => vec![coordinator.address()],
            None => resolve_until(&rendezvous, deadline).map_err(at_coordinator)?,
        };
        let may_change = matches!(rendezvous, Rendezvous::Etcd(_));
        match ask_to_join(&addresses, may_change, &config, interface, deadline) {
            // Another takes the seat, perhaps only when a lease is over.
            Err(error)
                if may_change
                    && (error.is_passing() || matches!(error, NetError::CoordinatorGone))
                    && deadline.remaining() > RESOLVE_PAUSE =>
            {
                thread::sleep(RESOLVE_PAUSE);
            }
            outcome => break outcome.map_err(at_coordinator)?,
        }
    };

    let place = match answer {
        Answer::Welcome(place) => place,
        Answer::Underway(job, id, underway) => {
            let address = listener.local_addr()?.to_string();
            let worker = Worker { id, host: config.host(), address };
            let view = View { version: ViewVersion(0), workers: vec![worker], ..underway.clone() };
            return Ok(Joined {
                rank: Rank(0),
                view,
                peers: vec![Vec::new()],
                control,
                coordinator,
                candidate,
                reunion: Some(Reunion { job, listener, config }),
                underway: Some(underway),
            });
        }
    };
    let deadline = Deadline::after(config.timeout);
    let later = match place.view.membership {
        Membership::Fixed => None,
        Membership::Elastic => Some(listener.try_clone()?),
    };
    let watch = |is_missing: &dyn Fn(Rank) -> bool| control.check_nobody_is_gone(is_missing);
    let peers = mesh::connect_all(&place, listener, &config, watch, deadline)?;
    let Place { job, rank, view, .. } = place;
    let reunion = later.map(|listener| Reunion { job, listener, config });
    let underway = None;
    Ok(Joined { rank, view, peers, control, coordinator, candidate, reunion, underway })
}

/// Ask the coordinator at one of these addresses to take part, and wait until everybody else has.
/// If the coordinator's address `may_change`, it is tried once.
fn ask_to_join(
    addresses: &[SocketAddr],
    may_change: bool,
    config: &JoinConfig,
    interface: Option<IpAddr>,
    deadline: Deadline,
) -> Result<(ControlChannel, TcpListener, Answer)> {
    let JoinConfig { secret, encryption, .. } = config;
    let knock = if may_change { mesh::knock_once } else { mesh::knock };
    let connection = knock(addresses, secret, Purpose::Coordinator, *encryption, deadline)?;
    // The way to the coordinator is the way to the other workers, unless the user knows better.
    let local = match interface {
        Some(address) => address,
        None => connection.stream.local_addr()?.ip(),
    };
    let listener = host::listen_within(local, config.port_range.as_ref())?;
    let ask = Join {
        rank: config.rank,
        size: config.size,
        host: config.host(),
        address: listener.local_addr()?,
        process: std::process::id(),
    };
    let mut control = ControlChannel::new(connection)?;
    // The coordinator's own time limit is the better judge: it knows who is missing.
    let patience = Deadline::after(deadline.remaining() + HANDSHAKE_TIMEOUT);
    let answer = control.ask(ask, patience)?;
    Ok((control, listener, answer))
}

/// Where coordinators are found through etcd, stand for the seat.
fn stand(
    rendezvous: &Rendezvous,
    config: &JoinConfig,
    interface: Option<IpAddr>,
) -> Result<Option<Candidate>> {
    // Whoever does not know how many workers there are gathers none.
    let (Rendezvous::Etcd(etcd), Some(size)) = (rendezvous, config.size) else { return Ok(None) };
    let address = match interface {
        Some(address) => address,
        None => rendezvous::address_towards(etcd)?,
    };
    let Plan { settings, fusion, batch, advice: _ } = config.hosting.clone().unwrap_or_default();
    let coordinator = CoordinatorConfig {
        settings,
        fusion,
        batch,
        join_timeout: config.timeout,
        log: config.log.clone(),
        elastic: Some(config.limits),
        ..CoordinatorConfig::new(SocketAddr::new(address, 0), size, config.secret.clone())
    };
    Candidate::start(etcd.clone(), coordinator).map(Some)
}

/// Run the coordinator here, on the first of the addresses that the other workers were told that is
/// ours.
fn host_coordinator(config: &JoinConfig, plan: &Plan) -> Result<Coordinator> {
    let size = config.size.ok_or(NetError::EnvironmentMissing {
        missing: "WORLD_SIZE",
        remedy: "whoever hosts the coordinator must know how many workers there are",
    })?;
    let mut outcome = Err(NetError::CoordinatorGone);
    for listen in host::resolve(&config.coordinator)? {
        let mut coordinator = CoordinatorConfig::new(listen, size, config.secret.clone());
        coordinator.settings = plan.settings.clone();
        coordinator.fusion = plan.fusion.clone();
        coordinator.batch = plan.batch;
        coordinator.join_timeout = config.timeout;
        coordinator.survey = config.survey;
        coordinator.topology_out = config.topology_out.clone();
        coordinator.log = config.log.clone();
        outcome = Coordinator::start(coordinator);
        if !matches!(outcome, Err(NetError::CannotListen { .. })) {
            if listen.ip().is_loopback() && !host::names_loopback(&config.coordinator) {
                config.log.line(&format!(
                    "{} is {listen} on this machine, which other machines cannot reach; if the job \
                     spans machines, name an address instead",
                    config.coordinator
                ));
            }
            break;
        }
    }
    outcome.map_err(|error| error.with_coordinator(&config.coordinator))
}

/// A name may become known a moment after the job starts.
fn resolve_until(rendezvous: &Rendezvous, deadline: Deadline) -> Result<Vec<SocketAddr>> {
    loop {
        match rendezvous.resolve() {
            Err(error) if error.is_passing() && deadline.remaining() > RESOLVE_PAUSE => {
                thread::sleep(RESOLVE_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// A worker's connection to the coordinator. It never blocks unless told to, so that a loop over
/// several sockets can include it (it is readable when there is news).
#[derive(Debug)]
pub struct ControlChannel {
    channel: MessageChannel,
    /// News that was looked at and not yet taken. Each other worker goes once, so it is bounded by
    /// the job's size; see [`ControlChannel::peek_all`].
    news: VecDeque<CoordinatorMessage>,
}

impl ControlChannel {
    fn new(connection: Connection) -> Result<ControlChannel> {
        let channel = MessageChannel::new(connection, COORDINATOR_MESSAGE_BYTES)?;
        Ok(ControlChannel { channel, news: VecDeque::new() })
    }

    /// The next message, if it is here.
    pub fn try_receive(&mut self) -> Result<Option<CoordinatorMessage>> {
        if let Some(message) = self.news.pop_front() {
            return Ok(Some(message));
        }
        self.read_message()
    }

    /// Wait for the next message, but no longer than `limit`.
    pub fn receive(&mut self, limit: Duration) -> Result<Option<CoordinatorMessage>> {
        let deadline = Deadline::after(limit);
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(Some(message));
            }
            if deadline.remaining().is_zero() {
                return Ok(None);
            }
            let mut entries = [handshake::entry(&self.channel, self.channel.has_outgoing())];
            handshake::wait(&mut entries, Some(deadline.remaining()))?;
        }
    }

    /// Send a message, waiting for the socket if need be.
    pub fn send(&mut self, message: &WorkerMessage) -> Result<()> {
        self.channel
            .send(&encode(message), Deadline::after(HANDSHAKE_TIMEOUT))
            .map_err(coordinator_gone)
    }

    /// Put a message behind those that wait to be written; [`ControlChannel::flush`] writes them.
    pub(crate) fn queue(&mut self, message: &WorkerMessage) -> Result<()> {
        self.channel.queue(&encode(message))
    }

    /// Write what the socket takes now; whether something is left.
    pub(crate) fn flush(&mut self) -> Result<bool> {
        self.channel.flush().map_err(coordinator_gone)?;
        Ok(self.channel.has_outgoing())
    }

    /// The coordinator's address, as far as the system knows it still.
    pub(crate) fn peer(&self) -> String {
        let address = self.channel.stream().peer_addr();
        address.map_or_else(|_| "an address that is gone".to_string(), |it| it.to_string())
    }

    /// Say good-bye, so that the others need not wonder.
    pub fn leave(mut self, fate: Fate) -> Result<()> {
        self.send(&WorkerMessage::Leave { fate })
    }

    /// Fail if somebody who is missing still will not come.
    fn check_nobody_is_gone(&mut self, is_missing: &dyn Fn(Rank) -> bool) -> Result<()> {
        for message in self.peek_all()? {
            // Whoever has finished had connected; that news may merely have overtaken the connection.
            if let CoordinatorMessage::Gone { rank, fate } = message
                && *fate != Fate::Finished
                && is_missing(*rank)
            {
                return Err(NetError::WorkerGone { rank: *rank, fate: fate.to_string() });
            }
        }
        Ok(())
    }

    /// All news that has come, without taking it.
    fn peek_all(&mut self) -> Result<&VecDeque<CoordinatorMessage>> {
        while let Some(message) = self.read_message()? {
            if self.news.len() >= crate::coordinator::MAXIMUM_WORKERS {
                return Err(NetError::Malformed {
                    what: "coordinator's message",
                    problem: "more news than there are workers".to_string(),
                });
            }
            self.news.push_back(message);
        }
        Ok(&self.news)
    }

    fn read_message(&mut self) -> Result<Option<CoordinatorMessage>> {
        match self.channel.try_receive("the coordinator's message").map_err(coordinator_gone)? {
            Some(bytes) => Ok(Some(decode_coordinator_message(&bytes)?)),
            None => Ok(None),
        }
    }

    /// Ask to take part, and wait until everybody else has.
    fn ask(&mut self, join: Join, deadline: Deadline) -> Result<Answer> {
        self.channel
            .send(&encode(&WorkerMessage::Join(join)), deadline)
            .map_err(coordinator_gone)?;
        let awaited = "the other workers to join";
        let answer = self.channel.receive(awaited, deadline).map_err(coordinator_gone)?;
        match decode_coordinator_message(&answer)? {
            CoordinatorMessage::Welcome { job, rank, view } => {
                Ok(Answer::Welcome(Place { job, rank, view, attempt: Ballot(0) }))
            }
            CoordinatorMessage::Underway { job, id, view } => Ok(Answer::Underway(job, id, view)),
            CoordinatorMessage::Refused(refusal) => Err(refusal.into()),
            _ => Err(NetError::Malformed {
                what: "coordinator's message",
                problem: "the first message must answer our join".to_string(),
            }),
        }
    }
}

impl AsRawFd for ControlChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

fn coordinator_gone(error: NetError) -> NetError {
    match error {
        NetError::Closed { .. } => NetError::CoordinatorGone,
        other => other,
    }
}
