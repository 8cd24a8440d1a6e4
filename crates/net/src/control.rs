//! A running worker's line to the coordinator, read while the job runs: a thread of its own sleeps until there is
//! news, answers it, and wakes whoever waits for an outcome. What is answered is the [`Participant`]'s to decide;
//! this file knows nothing of the engine.

mod comeback;

use comeback::Absence;
pub(crate) use comeback::{Comeback, WayBack};

use crate::{
    coordinator::{CoordinatorMessage, DECISION_BYTES, Fate, Pace, Sighting, WorkerMessage},
    error::{NetError, Result},
    handshake::{self, Wakened, Waker},
    join::ControlChannel,
    runtime::helm::lock,
    watching::Watching,
};
use paceline_job::{Rank, Time, View, ViewVersion, WorkerId};
use paceline_sync::{
    agreement::{
        Agreed, Ballot, Begin, CannotPropose, Change, Heard, Objection, Participant, ToRegistrar,
    },
    liveness::Heartbeat,
};
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Decisions that may wait to be sent.
const DECISIONS_AT_ONCE: usize = 16;

/// The shortest time that steps are counted in.
const PACE: Duration = Duration::from_secs(1);

/// How often a worker that the job has no need of yet looks whether it is to wait on.
const LOOK_ABOUT: Duration = Duration::from_millis(500);

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Control {
    desk: Arc<Desk>,
    line: Line,
}

/// Who holds the connection.
#[derive(Debug)]
enum Line {
    /// Nobody reads it yet: what comes waits in the socket.
    Idle(ControlChannel, Wakened),
    /// The thread, which gives the connection back unless it broke.
    Read(JoinHandle<Option<ControlChannel>>),
    Over,
}

/// What the thread shares with those who begin steps and propose.
struct Desk {
    state: Mutex<State>,
    /// An outcome was heard, or the coordinator is gone.
    changed: Condvar,
    waker: Waker,
    stop: AtomicBool,
    /// Where the coordinator is, for people.
    coordinator: String,
    /// In an elastic job, who is told that the view has changed under way.
    successor: OnceLock<SuccessorSink>,
    /// In an elastic job, the way back to a coordinator.
    comeback: OnceLock<Comeback>,
    /// In other jobs, who is told that the coordinator gave up a worker.
    abandoned: OnceLock<AbandonedSink>,
    /// Whether the program waits for others in an operation.
    in_wait: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Threads that wait here.
    waiting: AtomicU32,
    /// Told if somebody watches the job.
    watching: Arc<Watching>,
    /// Whether tuners rest.
    paused: AtomicBool,
    /// Why the job does not get the number of workers that the program wanted last.
    refused: Mutex<Option<String>>,
}

/// In an elastic job, what the coordinator's words mean for this worker's connections.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// This view is in force from now on.
    Follow(Arc<View>),
    /// All gather for this view, or nobody gathers any more.
    Gather(Option<(Ballot, Arc<View>)>),
    /// This worker takes no further part, and why.
    Apart(String),
}

/// Told of it.
pub(crate) type SuccessorSink = Box<dyn Fn(News) + Send + Sync>;

/// Told which worker the job ends without, and why.
pub(crate) type AbandonedSink = Box<dyn Fn(Rank, Fate) + Send + Sync>;

struct State {
    participant: Participant,
    /// What the thread is to send. At most one proposal and one view put in force wait at a time.
    outgoing: Vec<ToRegistrar>,
    /// What else. At most one of each kind in a second, but for decisions.
    remarks: Vec<WorkerMessage>,
    /// The step that this worker is in, and how many it makes in a second.
    pace: (u64, f64),
    /// When that was last worked out, and in which step.
    paced: (Instant, u64),
    /// Whether a view was entered that the driver does not have yet: what succeeds it has to wait.
    entering: bool,
    proposal: Option<(u64, Arc<OnceLock<Verdict>>)>,
    /// Workers of the view in force that cannot be reached, and the view that had brought us together: said again to a
    /// coordinator that may not have heard it. At most one entry for each.
    accused: Vec<(WorkerId, ViewVersion)>,
    /// Whether a way back to the coordinator is being looked for.
    returning: bool,
    /// Whether this worker came to a running job and has asked to be let in.
    ready: bool,
    /// Whether the coordinator said that the job needs nobody any more.
    over: bool,
}

#[derive(Clone, Debug)]
enum Verdict {
    Decided(Result<Agreed, Objection>),
    CoordinatorGone,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("coordinator", &self.coordinator).finish_non_exhaustive()
    }
}

/// Whether a step has begun.
pub(crate) enum Turn {
    Begun(Begun),
    /// Workers come or go before it: be idle and connected for this ballot, say so, and ask again.
    Gather(Ballot),
    /// Others are lost, and a view without them is in force that the caller's operations are not in: see that they are, and
    /// ask again.
    Behind,
    /// This worker came to a running job, which has no need of it yet: ask again.
    Unneeded,
}

/// A step that has begun.
pub(crate) struct Begun {
    pub(crate) step: u64,
    /// In force from now on.
    pub(crate) view: Arc<View>,
    /// Whether it was not before.
    pub(crate) entered: bool,
}

/// A step begins: how many that makes in a second, if they were last counted a while ago.
fn keep_pace(state: &mut State, step: u64) {
    state.pace.0 = step;
    let (since, before) = state.paced;
    let elapsed = since.elapsed();
    if elapsed < PACE {
        return;
    }
    state.paced = (Instant::now(), step);
    // The first is of no use: it does not know where this worker began.
    if before > 0 {
        state.pace.1 = step.saturating_sub(before) as f64 / elapsed.as_secs_f64();
    }
}

impl Control {
    /// Not read before [`Control::start`]: until then the view is the caller's to change.
    pub(crate) fn new(
        channel: ControlChannel,
        participant: Participant,
        watching: Arc<Watching>,
    ) -> Result<Control> {
        let (waker, wakened) = Waker::pair()?;
        let coordinator = channel.peer();
        let state = State {
            participant,
            outgoing: Vec::new(),
            remarks: Vec::new(),
            pace: (0, 0.0),
            paced: (Instant::now(), 0),
            entering: false,
            proposal: None,
            accused: Vec::new(),
            returning: false,
            ready: false,
            over: false,
        };
        let desk = Desk {
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker,
            stop: AtomicBool::new(false),
            coordinator,
            successor: OnceLock::new(),
            comeback: OnceLock::new(),
            abandoned: OnceLock::new(),
            in_wait: OnceLock::new(),
            waiting: AtomicU32::new(0),
            watching,
            paused: AtomicBool::new(false),
            refused: Mutex::default(),
        };
        Ok(Control { desk: Arc::new(desk), line: Line::Idle(channel, wakened) })
    }

    /// All workers put this view in force, before the first step and before the line is read.
    pub(crate) fn adopt(&mut self, view: Arc<View>) {
        debug_assert!(matches!(self.line, Line::Idle(..)), "from then on views are agreed upon");
        let participant = &mut self.desk.state().participant;
        *participant = Participant::new(participant.me(), view);
    }

    /// Say something before the line is read.
    pub(crate) fn send(&mut self, message: &WorkerMessage) -> Result<()> {
        match &mut self.line {
            Line::Idle(channel, _) => channel.send(message),
            Line::Read(_) | Line::Over => Err(NetError::CoordinatorGone),
        }
    }

    /// Read the line from now on.
    pub(crate) fn start(&mut self) -> Result<()> {
        let Line::Idle(channel, wakened) = std::mem::replace(&mut self.line, Line::Over) else {
            return Ok(());
        };
        let desk = self.desk.clone();
        let reader = thread::Builder::new()
            .name("paceline-control".to_string())
            .spawn(move || desk.attend(channel, &wakened))?;
        self.line = Line::Read(reader);
        Ok(())
    }

    /// The step that begins if none is named.
    pub(crate) fn next_step(&self) -> u64 {
        self.desk.state().participant.next().max(1)
    }

    /// The view in force.
    pub(crate) fn view(&self) -> Arc<View> {
        self.desk.state().participant.view().clone()
    }

    /// Begin a step, or the next if none is named: step 1 if none has begun, since what was done before is step 0. Waits only
    /// for the outcome of a change that was promised. `latest`: in an elastic job, the view that operations are in.
    pub(crate) fn begin(&self, step: Option<u64>, latest: Option<ViewVersion>) -> Result<Turn> {
        let (mut waiting, mut asked) = (None, false);
        let mut state = self.desk.state();
        // Each turn ends the wait, or follows news of the coordinator's; it is bounded by the time that operations have.
        loop {
            let State { participant, outgoing, entering, accused, returning, over, .. } =
                &mut *state;
            if participant.view().size() == 0 && !participant.is_connected() && !*returning {
                return Err(if *over { NetError::JobOver } else { self.desk.gone() });
            }
            if latest.is_some_and(|latest| participant.view().version > latest) {
                return Ok(Turn::Behind);
            }
            let step = step.unwrap_or(participant.next().max(1));
            let gathering = participant.gathering().map(|(ballot, _, view)| (ballot, view.clone()));
            let begin = participant.begin(step, outgoing);
            let coordinator = || self.desk.coordinator.clone();
            match begin {
                Begin::Same => {
                    let view = participant.view().clone();
                    keep_pace(&mut state, step);
                    return Ok(Turn::Begun(Begun { step, view, entered: false }));
                }
                Begin::Enter(view) => {
                    *entering = gathering.is_some();
                    // Of the view before: there others have merely gone on.
                    accused.retain(|(_, version)| *version >= view.version);
                    keep_pace(&mut state, step);
                    self.desk.waker.wake();
                    return Ok(Turn::Begun(Begun { step, view, entered: true }));
                }
                Begin::Gather(_) => match gathering {
                    Some((ballot, _)) => return Ok(Turn::Gather(ballot)),
                    None => return Err(NetError::Removed),
                },
                Begin::Removed => {
                    self.desk.waker.wake();
                    let me = participant.me();
                    // By a plan, where everybody had gathered; otherwise it was taken for lost.
                    return Err(match gathering {
                        Some((_, view)) if view.rank_of(me).is_none() => NetError::Retired,
                        _ => NetError::Removed,
                    });
                }
                Begin::Dissolved { left, needed } => {
                    return Err(NetError::Dissolved { left, needed });
                }
                Begin::Past { next } => return Err(NetError::StepPast { step, next }),
                Begin::Doubt { version, step } => {
                    let coordinator = coordinator();
                    return Err(NetError::OutcomeUnknown { coordinator, version, step });
                }
                Begin::Wait { .. } if participant.view().size() == 0 => {
                    // A spare may be needed late, or never; it hears if the job is over.
                    if asked {
                        return Ok(Turn::Unneeded);
                    }
                    asked = true;
                    state = self.desk.wait(state, LOOK_ABOUT);
                }
                Begin::Wait { version } => {
                    let timeout = participant.view().settings.timeout;
                    let since = *waiting.get_or_insert_with(Instant::now);
                    let left = timeout.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        let (coordinator, waited) = (coordinator(), timeout);
                        return Err(NetError::OutcomeLate { coordinator, version, step, waited });
                    }
                    state = self.desk.wait(state, left);
                }
            }
        }
    }

    /// In an elastic job: an operation of all workers is about to be posted.
    pub(crate) fn posted(&self) {
        let mut state = self.desk.state();
        let State { participant, outgoing, .. } = &mut *state;
        let before = outgoing.len();
        participant.post(outgoing);
        if outgoing.len() > before {
            self.desk.waker.wake();
        }
    }

    /// Show this to whoever watches, instead of what could not be sent yet.
    pub(crate) fn show(&self, seen: Sighting) {
        let mut state = self.desk.state();
        state.remarks.retain(|remark| !matches!(remark, WorkerMessage::Seen(_)));
        state.remarks.push(WorkerMessage::Seen(Box::new(seen)));
        self.desk.waker.wake();
    }

    /// This worker is idle and connected for what is gathered for, if that still is so.
    pub(crate) fn gathered(&self, ballot: Ballot) {
        let mut state = self.desk.state();
        let State { participant, outgoing, .. } = &mut *state;
        if participant.gathering().is_some_and(|(current, ..)| current == ballot) {
            participant.gathered(outgoing);
            self.desk.waker.wake();
        }
    }

    /// The view that was entered is in force here: what succeeds it may follow.
    pub(crate) fn entered(&self) {
        let mut state = self.desk.state();
        state.entering = false;
        self.desk.tell_succession(&mut state);
        self.desk.waker.wake();
    }

    /// Ask to be let into the running job.
    pub(crate) fn ask_to_enter(&self) {
        self.desk.state().ready = true;
        self.remark(WorkerMessage::Enter);
    }

    /// Say something that is no part of the agreement.
    pub(crate) fn remark(&self, message: WorkerMessage) {
        self.desk.state().remarks.push(message);
        self.desk.waker.wake();
    }

    /// Why the job does not get the number of workers that was last wanted here, once.
    pub(crate) fn take_refusal(&self) -> Option<String> {
        lock(&self.desk.refused).take()
    }

    /// Tell this of every view that comes in force in the middle of a step.
    pub(crate) fn on_succession(&self, sink: SuccessorSink) {
        let again = self.desk.successor.set(sink).is_err();
        debug_assert!(!again, "said once, before the line is read");
    }

    /// Take this way back if the coordinator is gone.
    pub(crate) fn on_loss(&self, comeback: Comeback) {
        let again = self.desk.comeback.set(comeback).is_err();
        debug_assert!(!again, "said once, before the line is read");
    }

    /// In a job that is not elastic, tell this of a worker that the coordinator gave up.
    pub(crate) fn on_abandoned(&self, sink: AbandonedSink) {
        let again = self.desk.abandoned.set(sink).is_err();
        debug_assert!(!again, "said once, before the line is read");
    }

    /// Ask this whether the program waits for others in an operation.
    pub(crate) fn while_waiting(&self, in_wait: impl Fn() -> bool + Send + Sync + 'static) {
        let again = self.desk.in_wait.set(Box::new(in_wait)).is_err();
        debug_assert!(!again, "said once, before the line is read");
    }

    /// For whoever finds out that another worker cannot be reached.
    pub(crate) fn accuser(&self) -> impl Fn(WorkerId, ViewVersion) + Send + use<> {
        let desk = self.desk.clone();
        move |worker, version| desk.lost(worker, version)
    }

    /// In an elastic job: no further step is begun here. Returns when nobody needs this worker any more, or after
    /// `limit`.
    pub(crate) fn finish(&self, limit: Duration) {
        let since = Instant::now();
        let mut state = self.desk.state();
        let leave = state.participant.leave();
        state.outgoing.push(leave);
        self.desk.waker.wake();
        while !state.participant.is_dismissed()
            && (state.participant.is_connected() || state.returning)
        {
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            state = self.desk.wait(state, left);
        }
    }

    /// Whether the job goes on without this worker.
    pub(crate) fn is_removed(&self) -> bool {
        self.desk.state().participant.is_removed()
    }

    /// Propose a change; its outcome is known later.
    pub(crate) fn propose(&self, change: Change) -> Result<Proposal> {
        self.proposer().propose(change)
    }

    /// For those who propose on a thread of their own.
    pub(crate) fn proposer(&self) -> Proposer {
        Proposer(self.desk.clone())
    }

    /// Say good-bye. Whether the coordinator hears it or is gone already makes no difference to us.
    pub(crate) fn leave(&mut self, fate: Fate) {
        let channel = match std::mem::replace(&mut self.line, Line::Over) {
            Line::Idle(channel, _) => Some(channel),
            Line::Read(reader) => {
                self.desk.stop.store(true, Ordering::Release);
                self.desk.waker.wake();
                // If it panicked, that has been printed, and the connection is closed.
                reader.join().ok().flatten()
            }
            Line::Over => None,
        };
        if let Some(mut channel) = channel {
            let next = self.desk.state().participant.leave();
            let _ = channel.send(&WorkerMessage::Agreement(next));
            let _ = channel.leave(fate);
        }
        self.desk.disconnect(false);
    }
}

/// Proposes changes for a worker, as long as that is there.
#[derive(Clone, Debug)]
pub(crate) struct Proposer(Arc<Desk>);

impl Proposer {
    /// Propose a change; its outcome is known later.
    pub(crate) fn propose(&self, change: Change) -> Result<Proposal> {
        let mut state = self.0.state();
        let State { participant, outgoing, proposal, .. } = &mut *state;
        change.check(participant.view())?;
        match participant.propose(change, outgoing) {
            Ok(number) => {
                let verdict = Arc::<OnceLock<Verdict>>::default();
                *proposal = Some((number, verdict.clone()));
                self.0.waker.wake();
                Ok(Proposal { desk: self.0.clone(), verdict })
            }
            Err(CannotPropose::Undecided) => Err(Objection::Undecided.into()),
            Err(CannotPropose::Disconnected) => Err(self.0.gone()),
        }
    }
}

impl Proposer {
    /// Whether tuners rest.
    pub(crate) fn is_paused(&self) -> bool {
        self.0.paused.load(Ordering::Relaxed)
    }

    /// Tell whoever watches what was decided. What is too long, or too much at a time, is left out.
    pub(crate) fn decided(&self, text: String) {
        let mut state = self.0.state();
        let decided = |remark: &&WorkerMessage| matches!(remark, WorkerMessage::Decided { .. });
        if self.0.watching.is_on()
            && text.len() <= DECISION_BYTES
            && state.remarks.iter().filter(decided).count() < DECISIONS_AT_ONCE
        {
            state.remarks.push(WorkerMessage::Decided { text });
            self.0.waker.wake();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.leave(Fate::Finished);
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.changed.wait_timeout(state, limit);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn gone(&self) -> NetError {
        NetError::CoordinatorGone.with_coordinator(&self.coordinator)
    }

    /// The thread: read and write until told to stop or the connection ends.
    fn attend(&self, mut channel: ControlChannel, wakened: &Wakened) -> Option<ControlChannel> {
        let began = Instant::now();
        let now = || Time::ZERO.after(began.elapsed());
        let (mut pulse, mut absence) = (Heartbeat::new(now()), None);
        // Where something that was said before is not written yet, there is no need to say more.
        let mut unsent = false;
        while !self.stop.load(Ordering::Acquire) {
            wakened.drain();
            if pulse.is_due(now()) && !unsent {
                let pace = self.pace();
                self.state().remarks.push(WorkerMessage::Alive(pace));
            }
            let exchanged = self.exchange(&mut channel, &mut pulse, &mut absence);
            unsent = match exchanged {
                Ok(unsent) if !(pulse.is_in_doubt(now()) && self.is_succeeded(&channel)) => unsent,
                gone => {
                    // Nothing more comes of this connection; who needs it is told.
                    channel = self.come_back(wakened, gone.err(), &mut absence)?;
                    (pulse, unsent) = (Heartbeat::new(now()), false);
                    continue;
                }
            };
            let mut entries =
                [handshake::entry(wakened, false), handshake::entry(&channel, unsent)];
            if handshake::wait(&mut entries, Some(pulse.rest(now()))).is_err() {
                self.disconnect(false);
                return None;
            }
        }
        Some(channel)
    }

    fn pace(&self) -> Pace {
        let (step, rate) = self.state().pace;
        let in_operation = self.in_wait.get().is_some_and(|in_wait| in_wait());
        Pace { step, rate, waits: in_operation || self.waiting.load(Ordering::Relaxed) > 0 }
    }

    /// Whether another coordinator has the job than the one that this worker is connected with.
    fn is_succeeded(&self, channel: &ControlChannel) -> bool {
        self.comeback.get().is_some_and(|comeback| comeback.is_elsewhere(&channel.peer()))
    }

    /// Hear all that has come, and send all that is to be sent; whether some of that has to wait.
    fn exchange(
        &self,
        channel: &mut ControlChannel,
        pulse: &mut Heartbeat,
        absence: &mut Option<Absence>,
    ) -> Result<bool> {
        loop {
            let mut state = self.state();
            for message in std::mem::take(&mut state.remarks) {
                channel.queue(&message)?;
            }
            for message in std::mem::take(&mut state.outgoing) {
                channel.queue(&WorkerMessage::Agreement(message))?;
            }
            drop(state);
            // A failure to write shows as a closed connection when it is read, after the last words that came.
            let unsent = channel.flush().unwrap_or(false);
            let received = channel.try_receive()?;
            if let Some(message) = &received {
                pulse.hear();
                if !matches!(message, CoordinatorMessage::Refused(_)) {
                    *absence = None;
                }
            }
            match received {
                None => return Ok(unsent),
                Some(CoordinatorMessage::Alive) => {}
                Some(CoordinatorMessage::Agreement(message)) => {
                    let mut state = self.state();
                    let State { participant, outgoing, .. } = &mut *state;
                    let heard = participant.hear(message, outgoing);
                    self.tell_succession(&mut state);
                    let proposal = &mut state.proposal;
                    match heard {
                        Heard::Nothing => {}
                        Heard::Outcome => self.changed.notify_all(),
                        Heard::Decision { proposal: number, outcome } => {
                            let open = proposal.take_if(|(open, _)| *open == number);
                            if let Some((_, verdict)) = open {
                                // Set once: a proposal is decided once.
                                let _ = verdict.set(Verdict::Decided(outcome));
                            }
                            self.changed.notify_all();
                        }
                    }
                }
                Some(CoordinatorMessage::Gone { rank, fate: fate @ Fate::Silent { .. } }) => {
                    if let Some(abandoned) = self.abandoned.get() {
                        abandoned(rank, fate);
                    }
                }
                // The engine hears from the peers themselves who is gone.
                Some(CoordinatorMessage::Gone { .. }) => {}
                Some(CoordinatorMessage::Watch) => self.watching.begin(),
                Some(CoordinatorMessage::Tuning { paused }) => {
                    self.paused.store(paused, Ordering::Relaxed);
                }
                Some(CoordinatorMessage::WishRefused { reason }) => {
                    *lock(&self.refused) = Some(reason);
                }
                Some(CoordinatorMessage::Refused(refusal)) => return Err(refusal.into()),
                Some(
                    CoordinatorMessage::Welcome { .. }
                    | CoordinatorMessage::Underway { .. }
                    | CoordinatorMessage::Answer(_),
                ) => {
                    return Err(NetError::Malformed {
                        what: "coordinator's message",
                        problem: "an answer to a join in the middle of a job".to_string(),
                    });
                }
            }
        }
    }

    /// Let connections follow what was heard.
    fn tell_succession(&self, state: &mut State) {
        let Some(sink) = self.successor.get() else { return };
        let State { participant, outgoing, entering, accused, .. } = state;
        if *entering {
            return;
        }
        if let Some(view) = participant.succeed(outgoing) {
            accused.retain(|(worker, _)| view.rank_of(*worker).is_some());
            sink(News::Follow(view));
        }
        if participant.is_removed() {
            return sink(News::Apart("the job goes on without this worker".to_string()));
        }
        if let Some((left, needed)) = participant.dissolved() {
            return sink(News::Apart(NetError::Dissolved { left, needed }.to_string()));
        }
        let gathering = participant.gathering();
        sink(News::Gather(gathering.map(|(ballot, _, view)| (ballot, view.clone()))));
    }

    /// Another worker cannot be reached: the coordinator says how to go on, if it can.
    fn lost(&self, worker: WorkerId, version: ViewVersion) {
        let mut state = self.state();
        let State { participant, outgoing, accused, .. } = &mut *state;
        // Otherwise the coordinator has said so already, and the other has gone on.
        let view = participant.view();
        if version >= view.version && view.rank_of(worker).is_some() {
            accused.retain(|(other, _)| *other != worker);
            accused.push((worker, version));
        }
        participant.lost(worker, version, outgoing);
        self.waker.wake();
        self.give_up_if_alone(&state);
    }

    /// Without a coordinator nobody can say who is left.
    fn give_up_if_alone(&self, state: &State) {
        if let Some(sink) = self.successor.get()
            && !state.accused.is_empty()
            && !state.participant.is_connected()
            && !state.returning
        {
            sink(News::Apart(format!(
                "a worker is lost, and so is the coordinator at {}",
                self.coordinator
            )));
        }
    }

    /// The coordinator is gone. `returning`: whether a way back is looked for.
    fn disconnect(&self, returning: bool) {
        let mut state = self.state();
        state.participant.disconnect();
        state.returning = returning;
        self.give_up_if_alone(&state);
        if let Some(sink) = self.successor.get()
            && state.participant.view().size() == 0
            && !returning
        {
            // What it was invited to comes to nothing.
            sink(News::Gather(None));
        }
        if let Some((_, verdict)) = state.proposal.take() {
            let _ = verdict.set(Verdict::CoordinatorGone);
        }
        self.changed.notify_all();
    }
}

/// A change that this worker proposed. Dropping it does not take the proposal back.
#[derive(Clone, Debug)]
pub struct Proposal {
    desk: Arc<Desk>,
    verdict: Arc<OnceLock<Verdict>>,
}

impl Proposal {
    /// What came of it, if that is known: the view that has the change and the step from which it is in force, or why
    /// there is none.
    pub fn poll(&self) -> Option<Result<Agreed>> {
        Some(match self.verdict.get()?.clone() {
            Verdict::Decided(outcome) => outcome.map_err(NetError::from),
            Verdict::CoordinatorGone => Err(self.desk.gone()),
        })
    }

    /// Wait for the outcome, but no longer than `limit`. While a view before is not in force on all workers, the
    /// proposal is not looked at: do not wait where this worker would begin its next step.
    pub fn wait(&self, limit: Duration) -> Option<Result<Agreed>> {
        let since = Instant::now();
        let mut state = self.desk.state();
        while self.verdict.get().is_none() {
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                break;
            }
            state = self.desk.wait(state, left);
        }
        drop(state);
        self.poll()
    }
}
