//! The coordinator: one thread that gathers the workers of a job, gives each its rank and all of them
//! the first view, and afterwards tells them who has gone and lets them agree on the next view (the
//! [`Registrar`] decides, this file carries). It reads nothing from anybody who has not
//! proved that it holds the job's secret, and it never waits for any one worker. It knows nothing of
//! tensors.

mod audience;
mod beginning;
mod choices;
mod door;
mod elastic;
mod log;
mod message;
mod notes;
mod roster;
mod sighting;
mod status;
mod terrain;
mod visit;

pub use audience::{Observation, Observer};
pub use elastic::{Census, Occasion, Resizer};
pub use log::Log;
pub use message::{
    COORDINATOR_MESSAGE_BYTES, CoordinatorMessage, Fate, HOST_NAME_BYTES, INTRODUCTION_BYTES,
    Introduction, IntroductionAnswer, JobId, Join, MAXIMUM_WORKERS, Outside, Pace, Refusal,
    Request, Return, WORKER_MESSAGE_BYTES, WorkerMessage, decode_coordinator_message,
    decode_introduction, decode_introduction_answer, decode_request, decode_worker_message,
};
pub(crate) use message::{DECISION_BYTES, encode};
pub use sighting::{
    SEEN_NAME, SEEN_OPERATIONS, SEEN_PEERS, SEEN_STEPS, SEEN_WAITS, SeenOperation, Sighting,
};
pub use status::{MemberStatus, Standing, Status};
pub use visit::{Answer, Question, ask};

use crate::{
    error::{NetError, Result},
    handshake::{self, Acceptor, Deadline, HANDSHAKE_TIMEOUT, MessageChannel, Waker},
    secret::Secret,
    store::{Record, Store},
};
use audience::Audience;
use door::{Arrival, Doorman};
use elastic::Ask;
use notes::{Kept, Notes};
use paceline_job::{Batch, Fusion, Rank, Settings, Time, View, Worker, WorkerId};
use paceline_sync::{
    agreement::{Limits, Registrar, Summons, ToRegistrar},
    liveness::{HEARTBEAT, PATIENCE, Progress as Stride, Pulse, Vigil},
};
use roster::{Roster, Ticket};
use std::{
    net::{Shutdown, SocketAddr, TcpListener},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long a coordinator waits for all workers if nothing else is said.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Workers that have proved themselves and wait for the coordinator's thread. When it is full, the
/// threads that greet them wait; there is a bounded number of those.
const ARRIVALS: usize = 64;

/// What a member may say before others have their turn. A worker has a few words to say at a time; one that goes on
/// for ever is cut off.
const MESSAGES_AT_ONCE: usize = 1024;

const NOT_ITS_TO_MEASURE: &str = "it measured what was not its to measure";

/// How long workers of a job may take to come back to a coordinator that was restarted, while it is awake itself. They try several
/// times a second.
const GRACE: Duration = Duration::from_secs(10);

/// What a coordinator needs to know.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// How many workers the job has.
    pub size: usize,
    /// What they prove to hold.
    pub secret: Secret,
    /// In force in the first view.
    pub settings: Settings,
    /// Sent together in the first view.
    pub fusion: Fusion,
    /// How the batch of a step is worked through in the first view.
    pub batch: Batch,
    /// How long to wait for all of them, from the start of the coordinator.
    pub join_timeout: Duration,
    /// How long one connection may take to prove itself and to ask to take part.
    pub handshake_timeout: Duration,
    /// A worker that was not heard for so long is lost: its process is stopped, or its machine cannot be reached. Time in
    /// which the coordinator itself was stopped does not count.
    pub patience: Duration,
    /// Who came, who was refused and why, who has gone.
    pub log: Log,
    /// How many workers the job may have if they come and go; none if a lost one ends the job.
    pub elastic: Option<Limits>,
    /// In an elastic job, who starts workers when more are wanted ([`Coordinator::resize`], or a worker's wish).
    pub resizer: Option<Resizer>,
    /// In an elastic job, whether those who come beyond the number that is wanted wait as spares until somebody is missing;
    /// otherwise all are let in, up to the limit.
    pub spares: bool,
    /// Told what happens in the job, if somebody watches it.
    pub observer: Option<Observer>,
    /// How long workers survey their links at most before the first step, if they are to; not in elastic jobs. A topology of the
    /// settings makes it needless.
    pub survey: Option<Duration>,
    /// Where to save what a survey finds.
    pub topology_out: Option<PathBuf>,
    /// Whether to keep to oneself what `auto` chose and what a survey found, once the workers have measured their links.
    pub quiet: bool,
}

impl CoordinatorConfig {
    /// A coordinator with the usual bounds that logs to standard error.
    pub fn new(listen: SocketAddr, size: usize, secret: Secret) -> CoordinatorConfig {
        CoordinatorConfig {
            listen,
            size,
            secret,
            settings: Settings::default(),
            fusion: Fusion::default(),
            batch: Batch::default(),
            join_timeout: JOIN_TIMEOUT,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            patience: PATIENCE,
            log: Log::default(),
            elastic: None,
            resizer: None,
            spares: false,
            observer: None,
            survey: None,
            topology_out: None,
            quiet: false,
        }
    }
}

/// How far a job has come, as its coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not all workers are here.
    Gathering {
        /// So many are.
        joined: usize,
    },
    /// The view is out.
    Running {
        /// So many workers have not left.
        workers: usize,
    },
    /// All workers have left.
    Ended,
    /// Another coordinator has the job.
    Deposed,
    /// The workers did not come in time; the text says who is missing.
    Failed(String),
}

/// A running coordinator. Dropping it stops it.
#[derive(Debug)]
pub struct Coordinator {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Listen, and gather workers on a thread of its own.
    pub fn start(config: CoordinatorConfig) -> Result<Coordinator> {
        Coordinator::start_with(config, None)
    }

    /// The same, with a store for what must not be forgotten. If it has a record, its job goes on: workers come back,
    /// and those who do not within a few seconds are lost. Only the workers of an elastic job do.
    pub fn start_with(
        config: CoordinatorConfig,
        store: Option<Box<dyn Store>>,
    ) -> Result<Coordinator> {
        let listener = handshake::listen(config.listen)?;
        Coordinator::start_on(listener, config, store)
    }

    /// The same, where somebody listens already.
    pub(crate) fn start_on(
        listener: TcpListener,
        config: CoordinatorConfig,
        store: Option<Box<dyn Store>>,
    ) -> Result<Coordinator> {
        if config.size == 0 {
            return Err(NetError::SizeZero);
        }
        if config.size > MAXIMUM_WORKERS {
            return Err(NetError::TooManyWorkers { size: config.size, limit: MAXIMUM_WORKERS });
        }
        config.settings.validate()?;
        config.fusion.validate()?;
        elastic::check(&config)?;
        let (job, registrar, store) = match store {
            None => (JobId::random()?, None, None),
            Some(mut store) => match store.load()? {
                None => (JobId::random()?, None, Some(store)),
                Some(Record { job, minutes }) => {
                    let limits = config.elastic.unwrap_or_default();
                    let size = minutes.view.size();
                    config.log.line(&format!(
                        "goes on with a job that began before: its {size} workers are to come back; for another job choose \
                         another store"
                    ));
                    (job, Some(Registrar::restore(minutes, limits)), Some(store))
                }
            },
        };
        let address = listener.local_addr()?;

        let (waker, wakened) = Waker::pair()?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            waker,
            progress: Mutex::new(Progress::Gathering { joined: 0 }),
            asks: Mutex::default(),
            changed: Condvar::new(),
        });
        let (sender, arrivals) = sync_channel(ARRIVALS);
        let doorman = Doorman::new(&config, sender, Arc::clone(&shared));
        let acceptor =
            Acceptor::start(listener, move |stream, address| doorman.greet(stream, address))?;
        let service = Service {
            notes: Notes::new(store, job.clone()),
            job,
            roster: Roster::new(config.size),
            phase: match registrar {
                Some(_) => Phase::Running,
                None => Phase::Gathering,
            },
            deadline: Deadline::after(config.join_timeout),
            grace: None,
            restored: registrar.is_some(),
            early: Vec::new(),
            members: Vec::new(),
            began: Instant::now(),
            vigil: Vigil::new(config.patience, Time::ZERO),
            registrar,
            audience: Audience::default(),
            census: Census { wanted: config.size, ..Census::default() },
            arrivals,
            wakened,
            shared: Arc::clone(&shared),
            _acceptor: acceptor,
            config,
        };
        let thread = thread::Builder::new()
            .name("paceline-coordinator".to_string())
            .spawn(move || service.run())?;
        Ok(Coordinator { address, shared, thread: Some(thread) })
    }

    /// Where it listens, with the port the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How far the job has come.
    pub fn progress(&self) -> Progress {
        self.shared.progress().clone()
    }

    /// Wait until all workers have left or the job could not start; the progress then, or after
    /// `limit`.
    pub fn wait(&self, limit: Duration) -> Progress {
        let over =
            |it: &mut Progress| matches!(it, Progress::Gathering { .. } | Progress::Running { .. });
        let (progress, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.progress(), limit, over)
            .unwrap_or_else(PoisonError::into_inner);
        progress.clone()
    }

    /// Stop. Workers see that the coordinator is gone.
    pub fn stop(self) {}
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been printed; it is stopped either way.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    waker: Waker,
    progress: Mutex<Progress>,
    /// What others want of the thread. Each waits for its answer, so there is one for each of them at most.
    asks: Mutex<Vec<Ask>>,
    changed: Condvar,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // A progress is replaced whole: a panic elsewhere cannot leave half of one.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_progress(&self, progress: Progress) {
        *self.progress() = progress;
        self.changed.notify_all();
    }
}

/// The job's life, one way only.
enum Phase {
    Gathering,
    Running,
    Failed(Refusal),
}

struct Member {
    channel: MessageChannel,
    name: String,
    /// Its process on its host, if it said.
    process: u32,
    /// None before its first heartbeat: until then it prepares, and time limits of joining hold.
    stride: Option<Stride>,
    seat: Seat,
}

/// What a member is to the job.
enum Seat {
    /// The first view is not out.
    Gathering(Ticket),
    /// It came later, and is not ready to be invited.
    Waiting(Worker),
    /// In the view, invited to it, or back in the job.
    Taken(WorkerId),
}

impl Member {
    /// Who it is in views, if it takes part or has asked to.
    fn id(&self) -> Option<WorkerId> {
        match &self.seat {
            Seat::Taken(id) => Some(*id),
            Seat::Gathering(_) | Seat::Waiting(_) => None,
        }
    }
}

/// The coordinator's thread.
struct Service {
    config: CoordinatorConfig,
    job: JobId,
    roster: Roster,
    phase: Phase,
    deadline: Deadline,
    /// At most `config.size`, or [`MAXIMUM_WORKERS`] where they come and go.
    members: Vec<Member>,
    began: Instant,
    /// Over members that have heartbeats.
    vigil: Vigil,
    /// Once the first view is out.
    registrar: Option<Registrar>,
    audience: Audience,
    notes: Notes,
    /// Since when those who are absent are waited for.
    grace: Option<Pulse>,
    /// Whether the job was found in the store, and none of its workers has come back yet.
    restored: bool,
    /// Who came to it meanwhile. At most [`MAXIMUM_WORKERS`].
    early: Vec<Arrival>,
    census: Census,
    arrivals: Receiver<Arrival>,
    wakened: handshake::Wakened,
    shared: Arc<Shared>,
    _acceptor: Acceptor,
}

impl Service {
    fn run(mut self) {
        // A coordinator that follows another writes down that it does, before it hears anybody.
        self.register(|_, _| {});
        while !self.shared.stop.load(Ordering::Acquire) {
            self.take_arrivals();
            self.call_the_roll();
            if matches!(self.phase, Phase::Gathering) {
                if self.roster.is_complete() {
                    self.give_view();
                } else if self.deadline.remaining().is_zero() {
                    self.give_up();
                }
            }
            let mut entries = vec![handshake::entry(&self.wakened, false)];
            entries.extend(
                self.members
                    .iter()
                    .map(|member| handshake::entry(&member.channel, member.channel.has_outgoing())),
            );
            let gathering = matches!(self.phase, Phase::Gathering).then_some(self.deadline);
            let limits = gathering.map(|it| it.remaining()).into_iter().chain(self.notes.due());
            let watching =
                self.grace.is_some() || self.members.iter().any(|it| it.stride.is_some());
            let limit = limits.chain(watching.then_some(HEARTBEAT)).min();
            if let Err(error) = handshake::wait(&mut entries, limit) {
                self.config.log.line(&format!("coordinator stops: {error}"));
                return;
            }
            self.wakened.drain();
            if self.notes.due().is_some() {
                self.register(|_, _| {});
            }
            self.answer_asks();
            let departed = self.serve(&entries[1..]);
            // From the back, so that the indices before stay right.
            for (index, fate) in departed.into_iter().rev() {
                self.bury(index, fate);
            }
            self.give_up_the_silent();
        }
    }

    /// All that had come is read: whoever still was not heard for too long is lost.
    fn give_up_the_silent(&mut self) {
        self.vigil.look(Time::ZERO.after(self.began.elapsed()));
        for index in (0..self.members.len()).rev() {
            let heard = self.members[index].stride.map(|stride| stride.heard);
            if let Some(heard) = heard.filter(|heard| self.vigil.is_lost(*heard)) {
                let fate = Fate::Silent { seconds: self.vigil.silence(heard).as_secs() };
                self.dismiss(index, &fate);
                self.census.silent.push(self.members[index].process);
                self.bury(index, fate);
                self.tell_resizer(Occasion::Silent);
            }
        }
    }

    /// Whatever stopped it, it may go on one day: then it finds that it is out of the job, and why.
    fn dismiss(&mut self, index: usize, fate: &Fate) {
        let id = self.members[index].id();
        if let Some(rank) = id.and_then(|id| self.rank_of(id)) {
            let gone = CoordinatorMessage::Gone { rank, fate: fate.clone() };
            tell(&mut self.members[index].channel, &gone);
        }
    }

    /// Read and write what is ready; who has gone, and how.
    fn serve(&mut self, entries: &[libc::pollfd]) -> Vec<(usize, Fate)> {
        let mut departed = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            if entry.revents == 0 {
                continue;
            }
            // A failure to write shows as a closed connection when it is read.
            let _ = self.members[index].channel.flush();
            let mut heard = 0;
            let fate = loop {
                let said = match next_message(&mut self.members[index].channel) {
                    Ok(None) => break None,
                    Ok(Some(_)) if heard == MESSAGES_AT_ONCE => {
                        let reason = "it talks without end".to_string();
                        break Some(Fate::Failed { reason });
                    }
                    Ok(Some(message)) => self.hear(index, message),
                    Err(NetError::Closed { .. }) => Some(Fate::Lost),
                    Err(error) => Some(Fate::Failed { reason: error.to_string() }),
                };
                if said.is_some() {
                    break said;
                }
                heard += 1;
            };
            departed.extend(fate.map(|fate| (index, fate)));
        }
        departed
    }

    /// A member said something; how it is gone, if that is what it means.
    fn hear(&mut self, index: usize, message: WorkerMessage) -> Option<Fate> {
        let failed = |reason: &str| Some(Fate::Failed { reason: reason.to_string() });
        let id = self.members[index].id();
        match (message, id) {
            (WorkerMessage::Leave { fate }, _) => return Some(fate),
            (WorkerMessage::Join(_) | WorkerMessage::Return(_), _) => {
                return failed("it asked to join twice");
            }
            (WorkerMessage::Ask(_), _) => return failed("it is no visitor"),
            (WorkerMessage::Measured(measured), Some(id)) => {
                if !self.measured(id, measured, None) {
                    return failed(NOT_ITS_TO_MEASURE);
                }
            }
            (WorkerMessage::Surveyed { measured, finding }, Some(id)) => {
                if !self.measured(id, measured, Some(*finding)) {
                    return failed(NOT_ITS_TO_MEASURE);
                }
            }
            (WorkerMessage::Measured(_) | WorkerMessage::Surveyed { .. }, None) => {
                return failed(NOT_ITS_TO_MEASURE);
            }
            (WorkerMessage::Agreement(message), Some(id)) => {
                let accused = match &message {
                    ToRegistrar::Lost { worker, .. } => Some(*worker),
                    _ => None,
                };
                let before = accused.and_then(|worker| self.rank_of(worker));
                self.register(|registrar, out| registrar.hear(id, message, out));
                let after = accused.and_then(|worker| self.rank_of(worker));
                if let Some(rank) = before.filter(|_| after.is_none()) {
                    let accuser = &self.members[index].name;
                    let text = format!("worker {rank} is gone: it cannot be reached by {accuser}");
                    self.config.log.event(&text);
                }
            }
            (WorkerMessage::Agreement(_), None) => return failed("it has no view to change yet"),
            (WorkerMessage::Enter, _) => return self.let_in(index),
            (WorkerMessage::Resize { size }, _) => self.wish_for(index, size),
            (WorkerMessage::Retire, Some(id)) => self.let_go(index, id),
            (WorkerMessage::Retire, None) => return failed("it has no view to leave yet"),
            (WorkerMessage::Alive(Pace { step, rate, waits }), _) => {
                let now = self.vigil.pulse();
                let Member { stride, channel, .. } = &mut self.members[index];
                stride.get_or_insert(Stride::new(now)).hear(now, step, rate, waits);
                tell(channel, &CoordinatorMessage::Alive);
            }
            (WorkerMessage::Seen(sighting), Some(id)) => {
                // Sooner than with the next heartbeat.
                if let Some(stride) = &mut self.members[index].stride {
                    let step = sighting.step + sighting.ends.len() as u64;
                    stride.hear(self.vigil.pulse(), step, sighting.speed, stride.waits);
                }
                self.observe(|| Observation::Seen { id, sighting });
            }
            (WorkerMessage::Decided { text }, Some(id)) => {
                self.observe(|| Observation::Decided { id, text });
            }
            (WorkerMessage::Seen(_) | WorkerMessage::Decided { .. }, None) => {
                return failed("it is in no step yet");
            }
        }
        None
    }

    /// Let the registrar act, write down what it decided, and pass on what it says.
    fn register(&mut self, act: impl FnOnce(&mut Registrar, &mut Vec<Summons>)) {
        let Some(registrar) = &mut self.registrar else { return };
        let mut summons = Vec::new();
        act(registrar, &mut summons);
        match self.notes.keep(registrar, summons) {
            Kept::Safe(summons) => {
                self.summon(summons);
                self.observe_view();
            }
            Kept::Held(None) => {}
            Kept::Held(Some(problem)) => {
                self.config
                    .log
                    .line(&format!("no view changes until it can be written down: {problem}"));
            }
            Kept::Deposed => {
                self.config.log.line("another coordinator has this job; this one is done");
                // Connections close with the thread: whoever serves them now still counts them.
                self.shared.stop.store(true, Ordering::Release);
                self.shared.set_progress(Progress::Deposed);
            }
        }
    }

    fn summon(&mut self, summons: Vec<Summons>) {
        for Summons { to, message } in summons {
            if let Some(member) = self.members.iter_mut().find(|member| member.id() == Some(to)) {
                tell(&mut member.channel, &CoordinatorMessage::Agreement(message));
            }
        }
    }

    /// A worker has gone: free its place, or tell the others.
    fn bury(&mut self, index: usize, fate: Fate) {
        let member = self.members.remove(index);
        let Some(id) = member.id() else {
            if let Seat::Gathering(ticket) = member.seat {
                self.roster.withdraw(ticket);
            }
            self.tell_progress();
            self.config.log.line(&format!("{} left before it took part: {fate}", member.name));
            return;
        };
        let rank = self.rank_of(id);
        self.observe(|| Observation::Gone { id, rank, fate: fate.clone() });
        // Whoever is not in the view any more was spoken of when it left.
        if let Some(rank) = rank {
            if fate != Fate::Finished {
                self.config.log.event(&format!("worker {rank} is gone: {fate} ({})", member.name));
            }
            for other in self.members.iter_mut().filter(|other| other.id().is_some()) {
                tell(&mut other.channel, &CoordinatorMessage::Gone { rank, fate: fate.clone() });
            }
        }
        self.register(|registrar, out| registrar.gone(id, out));
        self.turn_away_if_over();
        let awaited = self.registrar.as_ref().is_some_and(|it| !it.absent().is_empty());
        match self.members.len() {
            0 if !awaited => self.end(),
            _ => self.tell_progress(),
        }
    }

    /// In the latest view.
    fn rank_of(&self, id: WorkerId) -> Option<Rank> {
        self.registrar.as_ref().and_then(|registrar| registrar.view().rank_of(id))
    }

    fn tell_progress(&self) {
        self.shared.set_progress(match self.phase {
            Phase::Gathering => Progress::Gathering { joined: self.roster.joined() },
            _ => Progress::Running { workers: self.members.len() },
        });
    }

    fn end(&mut self) {
        self.notes.forget();
        self.shared.set_progress(Progress::Ended);
    }
}

fn next_message(channel: &mut MessageChannel) -> Result<Option<WorkerMessage>> {
    match channel.try_receive("a worker's message")? {
        Some(bytes) => Ok(Some(decode_worker_message(&bytes)?)),
        None => Ok(None),
    }
}

fn tell_choices(config: &CoordinatorConfig, view: &View) {
    if !config.quiet {
        choices::lines(view).iter().for_each(|line| config.log.line(line));
    }
}

/// Send without waiting. Whoever does not read, or cannot be written to, is cut off; that shows as a
/// closed connection when it is next read.
fn tell(channel: &mut MessageChannel, message: &CoordinatorMessage) {
    let told = channel.queue(&encode(message)).and_then(|()| channel.flush());
    if told.is_err() {
        channel.shutdown(Shutdown::Both);
    }
}

/// For as long as a worker prepares, and has no heartbeats of its own.
fn keep_alive(channel: &MessageChannel) {
    // Where the system refuses, a vanished machine is noticed later.
    let _ = handshake::keep_alive(channel.stream());
}
