//! Everything that can go wrong between processes, named. Each variant's line says what the user can
//! do about it. The errors know addresses and ranks; they do not know how anything is sent.

use paceline_job::{PlanError, Rank, SettingsError, ViewVersion};
use paceline_sync::{agreement::Objection, event::OpError, strategy::UnknownStrategy};
use std::{fmt, io, net::SocketAddr, ops::RangeInclusive, sync::Arc, time::Duration};

/// What this crate's functions return.
pub type Result<T, E = NetError> = std::result::Result<T, E>;

/// A failure between processes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// Give every process of the job the same secret; `paceline run` does so by itself.
    #[error(
        "the job has no secret: set PACELINE_SECRET (at least 16 characters) or PACELINE_SECRET_FILE \
         to the same value for every worker"
    )]
    SecretMissing,
    /// Use a longer secret, for example the output of `openssl rand -hex 32`.
    #[error("{origin} holds {characters} characters; a secret needs at least {minimum}")]
    SecretTooShort {
        /// The variable or file it came from.
        origin: String,
        /// How long it is.
        characters: usize,
        /// How long it must be.
        minimum: usize,
    },
    /// Make the file exist and readable for this user.
    #[error("PACELINE_SECRET_FILE={path} cannot be read: {source}")]
    SecretFile {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing to mend here: the system gave no random bytes.
    #[error("the system's random number generator failed")]
    NoRandomness,

    /// Correct the variable.
    #[error("{variable}={value} {problem}")]
    Environment {
        /// Which variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Start the program with `paceline run`, torchrun, mpirun or srun, or set the variable named.
    #[error("{missing} is not set: {remedy}")]
    EnvironmentMissing {
        /// Which variable.
        missing: &'static str,
        /// How to set it.
        remedy: &'static str,
    },
    /// Use an address or the name of an interface of this machine (`ip address` lists them).
    #[error(
        "`{name}` is neither an address nor an interface of this machine; `ls /sys/class/net` lists its interfaces"
    )]
    UnknownInterface {
        /// What was asked for.
        name: String,
    },
    /// Correct the name, or its entry in the name service.
    #[error("`{name}` cannot be resolved to an address: {source}")]
    Unresolved {
        /// What was asked for.
        name: String,
        /// What the resolver said.
        source: io::Error,
    },

    /// Start at least one worker.
    #[error("a job needs at least one worker; its size is 0: set WORLD_SIZE to 1 or more")]
    SizeZero,
    /// Choose a number between the two, or other limits.
    #[error("{size} workers are not within the limits of the job: {least} to {most}")]
    SizeLimits {
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
        /// What was asked for.
        size: usize,
    },
    /// Choose a strategy in which all take part, such as `ring` or `auto`.
    #[error(
        "in `{strategy}` some workers only serve, so workers cannot come and go; choose `auto`, `ring` or \
         another in which all take part"
    )]
    StrategyNotElastic {
        /// Its name.
        strategy: String,
    },
    /// Start the job as an elastic one.
    #[error("the job does not run with workers that come and go; start it with --elastic")]
    NotRunning,
    /// Wait until all its workers are there.
    #[error(
        "the job has not begun: its workers are still coming together; ask again when `paceline status` shows them"
    )]
    NotBegun,
    /// Start them as the others were started.
    #[error(
        "the job has {there} workers, and nobody here starts more, up to {size}: start them where they are to run, as the \
         others were started, such as `paceline run --rendezvous etcd://... --elastic -n 1 -- PROGRAM`; they join the running job"
    )]
    NobodyStarts {
        /// So many were wanted.
        size: usize,
        /// So many work, or wait to be let in.
        there: usize,
    },
    /// End the program: nothing is lost, and nobody waits for it.
    #[error("this worker was asked to leave, and has: its part in the job is done")]
    Retired,
    /// Enter the job before the first step.
    #[error(
        "this worker came to a running job and does not take part in it yet: it enters before its first step \
         (Worker::enter; in PyTorch pl.elastic(model=model, optimizer=optimizer, loader=loader))"
    )]
    Outside,
    /// Start the job again if more is to be trained.
    #[error("the job was over before this worker was let in")]
    JobOver,
    /// Start the job again from its last checkpoint.
    #[error(
        "all workers that had the state of the job are gone; start it again from its last checkpoint"
    )]
    StateLost,
    /// Report it: bytes changed on their way, or memory was written while it was shared.
    #[error(
        "after the state was shared, workers hold different bytes; start the job again from its last checkpoint"
    )]
    StateDiffers,
    /// Start fewer workers.
    #[error("a job of {size} workers is more than the {limit} that one coordinator serves")]
    TooManyWorkers {
        /// Asked for.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// Correct the setting named.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Groups of tensors that cannot be sent together: mend the plan.
    #[error("the plan cannot be used: {0}")]
    Plan(#[from] PlanError),

    /// Stop the process that holds the port, or choose another one.
    #[error("{address} is in use by another process; stop it or choose another port")]
    PortInUse {
        /// Where we wanted to listen.
        address: SocketAddr,
    },
    /// Widen `PACELINE_PORT_RANGE`, or stop what holds its ports.
    #[error(
        "every port of {}-{} on {address} is in use; give PACELINE_PORT_RANGE others",
        range.start(), range.end()
    )]
    PortRangeInUse {
        /// The local address.
        address: std::net::IpAddr,
        /// What was tried.
        range: RangeInclusive<u16>,
    },
    /// Listen on an address of this machine (`PACELINE_INTERFACE` chooses one).
    #[error("cannot listen on {address}: {}", SystemError(.source))]
    CannotListen {
        /// Where we wanted to listen.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Check that the other side runs and that no firewall is between.
    #[error(
        "no connection within {} s: {}; see whether it runs there, and whether a firewall is between",
        Seconds(*.waited), SystemError(.source)
    )]
    Unreachable {
        /// How long we tried.
        waited: Duration,
        /// The last attempt's error.
        source: io::Error,
    },

    /// Something else listens there: correct the address or the port.
    #[error(
        "the other side does not speak Paceline's protocol; another service has that address, choose \
         another"
    )]
    NotPaceline,
    /// Install the same version of Paceline on every machine of the job.
    #[error(
        "this side speaks version {ours} of the protocol, the other side version {theirs}; install \
         the same version of Paceline on every machine"
    )]
    OtherVersion {
        /// Spoken here.
        ours: u32,
        /// Spoken there.
        theirs: u32,
    },
    /// The address is that of the other service: correct it.
    #[error("the other side offers the {theirs} service, not the {ours} service")]
    OtherPurpose {
        /// Wanted here.
        ours: &'static str,
        /// Offered there.
        theirs: &'static str,
    },
    /// Give both sides the same `PACELINE_SECRET`.
    #[error(
        "wrong secret: the two sides do not hold the same job secret; set PACELINE_SECRET or \
         PACELINE_SECRET_FILE to one value everywhere"
    )]
    WrongSecret,
    /// The other side is stopping, or too many others knock at once: try again.
    #[error("the other side closed the connection before it said anything; try again")]
    TurnedAway,
    /// The other side hangs, or something else listens there.
    #[error(
        "the other side was silent for {} s while we waited for {awaited}; see whether it hangs, or \
         whether something else listens there",
        Seconds(*.waited)
    )]
    Silent {
        /// What should have come.
        awaited: &'static str,
        /// How long we waited.
        waited: Duration,
    },
    /// The other side ended; its own log says why.
    #[error("the other side closed the connection while we waited for {awaited}")]
    Closed {
        /// What should have come.
        awaited: &'static str,
    },
    /// The system's message says what failed.
    #[error("connection failed: {}", SystemError(.0))]
    Io(#[from] io::Error),
    /// Somebody altered, reordered or replayed bytes on the way: suspect the network.
    #[error("record {record} was altered, reordered or replayed on the way")]
    Tampered {
        /// Counted from zero, per direction.
        record: u64,
    },
    /// The other side is broken or hostile.
    #[error("malformed {what}: {problem}")]
    Malformed {
        /// Which message.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The other side is broken or hostile.
    #[error("{what} of {bytes} bytes; at most {limit} are allowed")]
    Oversized {
        /// Which message.
        what: &'static str,
        /// Announced length.
        bytes: u64,
        /// The bound.
        limit: usize,
    },

    /// Two workers were started with the same rank: start each rank once.
    #[error("rank {rank} is already taken by {holder}; start each rank once")]
    DuplicateRank {
        /// Asked for.
        rank: Rank,
        /// Who has it.
        holder: String,
    },
    /// Start ranks from 0 to size - 1.
    #[error("rank {rank} is out of range: the job has {size} workers; number them from 0")]
    RankOutOfRange {
        /// Asked for.
        rank: Rank,
        /// The job's size.
        size: usize,
    },
    /// Start all workers and the coordinator with the same size.
    #[error(
        "this worker was started for a job of {worker} workers, the coordinator for {job}; give all \
         the same WORLD_SIZE"
    )]
    SizeDiffers {
        /// What the worker believes.
        worker: usize,
        /// What the coordinator serves.
        job: usize,
    },
    /// The job has all its workers: this one was started too often or joined the wrong job.
    #[error("the job already has its {size} workers; start no more of them, or another job")]
    JobFull {
        /// The job's size.
        size: usize,
    },
    /// See why the missing workers did not start, or give them more time.
    #[error(
        "{joined} of {size} workers joined within {} s{}; see why the others did not start, or wait longer",
        Seconds(*.waited),
        Missing(.missing)
    )]
    JoinTimeout {
        /// How many came.
        joined: usize,
        /// How many should have.
        size: usize,
        /// How long the coordinator waited.
        waited: Duration,
        /// Ranks nobody claimed, where that is known.
        missing: Vec<Rank>,
    },
    /// The coordinator's log says why it ended.
    #[error("the coordinator is gone; look at what it said last, and start the job again")]
    CoordinatorGone,
    /// The other worker's log says why it ended.
    #[error("worker {rank} is gone: {fate}")]
    WorkerGone {
        /// Who.
        rank: Rank,
        /// How it ended.
        fate: String,
    },

    /// Make the coordinator's store writable again (its log says what is wrong with it), and join then.
    #[error(
        "the coordinator cannot write down who joins at the moment; look at what it said last, and try again"
    )]
    NotWritten,
    /// Wait, or see whether any worker of the job can reach etcd.
    #[error("the job has no coordinator at the moment")]
    NoCoordinator,
    /// Start the job with `--elastic`, if workers are to come and go.
    #[error("this job's workers do not change, so none of them comes back")]
    NotElastic,
    /// Mend what [`StoreError`](crate::store::StoreError) names.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The peer belongs to another job or an older view: it should end by itself.
    #[error("a peer introduced itself for job {theirs}; this is job {ours}")]
    OtherJob {
        /// The job here.
        ours: String,
        /// The peer's job.
        theirs: String,
    },
    /// The peer missed a change of view; it will be fenced.
    #[error("a peer introduced itself for view {theirs}; the view in force is {ours}")]
    OtherView {
        /// In force here.
        ours: ViewVersion,
        /// In force there.
        theirs: ViewVersion,
    },
    /// The peer is broken: only higher ranks connect, each to its own place.
    #[error(
        "a peer introduced itself as rank {rank}, connection {index}, which is not expected here"
    )]
    UnknownPeer {
        /// Claimed rank.
        rank: Rank,
        /// Claimed connection.
        index: u32,
    },
    /// See the logs of the ranks named; a firewall may block the ports workers listen on.
    #[error("within {} s no connection came{}{}", Seconds(*.waited), Missing(.missing), LastRefusal(.last_refusal))]
    PeersMissing {
        /// How long we waited.
        waited: Duration,
        /// Who did not connect.
        missing: Vec<Rank>,
        /// Why the last one that tried was turned away.
        last_refusal: Option<String>,
    },

    /// The machine has no memory left for shared buffers: free some, or use fewer workers per host.
    #[error(
        "no shared memory: {}; free memory on this host, or start fewer workers there",
        SystemError(.source)
    )]
    SharedMemory {
        /// What the system said.
        source: io::Error,
    },
    /// Only workers in a group may start its operations.
    #[error("`{name}`: this worker is not in the operation's group")]
    NotInGroup {
        /// The operation.
        name: Arc<str>,
    },
    /// Give input and output memory of their own.
    #[error("`{name}`: this collective cannot have its input and output in the same memory")]
    NotInPlace {
        /// The operation.
        name: Arc<str>,
    },
    /// Give buffers of the lengths named.
    #[error(
        "`{name}`: this worker gave {given_in} elements of input and {given_out} of output; the \
         collective takes {wanted_in} and {wanted_out}"
    )]
    BufferLength {
        /// The operation.
        name: Arc<str>,
        /// Elements it reads here.
        wanted_in: u64,
        /// Elements it writes here.
        wanted_out: u64,
        /// Elements given.
        given_in: usize,
        /// Elements of room given.
        given_out: usize,
    },
    /// The text says who and what to do.
    #[error(transparent)]
    Operation(#[from] Arc<OpError>),
    /// Begin steps in their order, each once.
    #[error(
        "step {step} cannot begin: the next that can is step {next}; begin steps upwards, each once"
    )]
    StepPast {
        /// What was to begin.
        step: u64,
        /// What can.
        next: u64,
    },
    /// Start the job again from its last checkpoint: workers may differ in whether the change is made.
    #[error(
        "the coordinator at {coordinator} went before it said whether view {version} is in force from step {step} on, \
         and other workers may know; start the job again from its last checkpoint"
    )]
    OutcomeUnknown {
        /// Where it was.
        coordinator: String,
        /// What was being agreed.
        version: ViewVersion,
        /// From where.
        step: u64,
    },
    /// It was taken for lost, or asked to leave; start another worker in its place.
    #[error("the job goes on without this worker; end it, and start another if one is wanted")]
    Removed,
    /// Start the job again, or with a smaller least number of workers.
    #[error(
        "{left} workers are left, and the job needs {needed}; start it again with enough of them"
    )]
    Dissolved {
        /// So many.
        left: usize,
        /// So many.
        needed: usize,
    },
    /// See whether the coordinator and all workers run: one that is stopped holds up the others.
    #[error(
        "step {step} cannot begin: for {} s the coordinator at {coordinator} has not said whether view {version} comes; \
         see whether it and all workers run",
        Seconds(*.waited)
    )]
    OutcomeLate {
        /// Where it is.
        coordinator: String,
        /// What is being agreed.
        version: ViewVersion,
        /// What was to begin.
        step: u64,
        /// How long we waited.
        waited: Duration,
    },
    /// The text says what to propose instead, or when.
    #[error("the proposal was not taken: {0}")]
    Proposal(#[from] Objection),
    /// Choose one of the strategies named.
    #[error(transparent)]
    Strategy(#[from] UnknownStrategy),

    /// See the cause.
    #[error("coordinator at {address}: {problem}")]
    Coordinator {
        /// As it was given to this worker.
        address: String,
        /// What happened.
        problem: Box<NetError>,
    },
    /// Name another folder for the trace, or make room there.
    #[error("the trace {} cannot be written: {source}", path.display())]
    Trace {
        /// The file, or its folder.
        path: std::path::PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// See the cause.
    #[error("worker {rank} at {address}: {problem}")]
    Peer {
        /// Who.
        rank: Rank,
        /// Where it listens.
        address: String,
        /// What happened.
        problem: Box<NetError>,
    },
}

impl NetError {
    /// The error itself, without the address and rank it was wrapped in.
    pub fn cause(&self) -> &NetError {
        match self {
            NetError::Coordinator { problem, .. } | NetError::Peer { problem, .. } => {
                problem.cause()
            }
            other => other,
        }
    }

    /// Say that this happened with the coordinator.
    pub(crate) fn with_coordinator(self, address: &str) -> NetError {
        NetError::Coordinator { address: address.to_string(), problem: Box::new(self) }
    }

    /// Whether the job needs nobody any more, as whoever came to it late was told.
    pub fn is_too_late(&self) -> bool {
        match self {
            NetError::JobOver | NetError::Retired => true,
            NetError::Coordinator { problem, .. } => problem.is_too_late(),
            _ => false,
        }
    }

    /// Say that this happened with another worker.
    pub(crate) fn with_peer(self, rank: Rank, address: &str) -> NetError {
        NetError::Peer { rank, address: address.to_string(), problem: Box::new(self) }
    }

    /// A failure of `bind` or `listen`.
    pub(crate) fn listening(address: SocketAddr, source: io::Error) -> NetError {
        if source.kind() == io::ErrorKind::AddrInUse {
            NetError::PortInUse { address }
        } else {
            NetError::CannotListen { address, source }
        }
    }

    /// Whether the same attempt may succeed a moment later, because the other side is not up yet or
    /// turned us away before it read anything.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            NetError::Unreachable { source, .. } => !lacks_files(source),
            NetError::Unresolved { .. } | NetError::TurnedAway | NetError::NoCoordinator => true,
            _ => false,
        }
    }
}

/// Seconds as people write them: `60`, `1.5`.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0.as_secs_f64() * 10.0).round();
        write!(f, "{}", tenths / 10.0)
    }
}

/// What the system said, and what to do where that is known.
struct SystemError<'a>(&'a io::Error);

impl fmt::Display for SystemError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        if lacks_files(self.0) { f.write_str("; raise the limit with `ulimit -n`") } else { Ok(()) }
    }
}

fn lacks_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// At most this many ranks are spelled out.
const RANKS_NAMED: usize = 16;

struct Missing<'a>(&'a [Rank]);

impl fmt::Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing(ranks) = self;
        let named: Vec<String> = ranks.iter().take(RANKS_NAMED).map(Rank::to_string).collect();
        match ranks.len() {
            0 => Ok(()),
            1 => write!(f, "; missing rank {}", named[0]),
            count if count > RANKS_NAMED => {
                write!(f, "; missing ranks {} and {} more", named.join(", "), count - RANKS_NAMED)
            }
            _ => write!(f, "; missing ranks {}", named.join(", ")),
        }
    }
}

struct LastRefusal<'a>(&'a Option<String>);

impl fmt::Display for LastRefusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(reason) => write!(f, " (the last that was turned away: {reason})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_timeout_names_who_is_missing() {
        let timeout = |missing: Vec<u32>| {
            NetError::JoinTimeout {
                joined: 2,
                size: 4,
                waited: Duration::from_secs(60),
                missing: missing.into_iter().map(Rank).collect(),
            }
            .to_string()
        };
        let says = |missing, who: &str| {
            let remedy = "see why the others did not start, or wait longer";
            let expected = format!("2 of 4 workers joined within 60 s{who}; {remedy}");
            assert_eq!(timeout(missing), expected);
        };
        says(vec![1, 3], "; missing ranks 1, 3");
        says(vec![3], "; missing rank 3");
        says(vec![], "");
        assert!(timeout((0..40).collect()).contains("14, 15 and 24 more; see why"));
    }
}
