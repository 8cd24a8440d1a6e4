//! A running worker's line to the coordinator, read while the job runs: a thread of its own sleeps until there is
//! news, answers it, and wakes whoever waits for an outcome. What is answered is the [`Participant`]'s to decide;
//! this file knows nothing of the engine.

mod comeback;

pub(crate) use comeback::Comeback;

use crate::{
    coordinator::{CoordinatorMessage, Fate, WorkerMessage},
    error::{NetError, Result},
    handshake::{self, Wakened, Waker},
    join::ControlChannel,
    runtime::helm::lock,
};
use paceline_job::{View, ViewVersion, WorkerId};
use paceline_sync::agreement::{
    Agreed, Begin, CannotPropose, Change, Heard, Objection, Participant, ToRegistrar,
};
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

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
}

/// Told in an elastic job which view is in force from now on, or why this worker takes no further part.
pub(crate) type SuccessorSink = Box<dyn Fn(Result<Arc<View>, String>) + Send + Sync>;

struct State {
    participant: Participant,
    /// What the thread is to send. At most one proposal and one view put in force wait at a time.
    outgoing: Vec<ToRegistrar>,
    proposal: Option<(u64, Arc<OnceLock<Verdict>>)>,
    /// Workers of the view in force that cannot be reached, and the view that had brought us together: said again to a
    /// coordinator that may not have heard it. At most one entry for each.
    accused: Vec<(WorkerId, ViewVersion)>,
    /// Whether a way back to the coordinator is being looked for.
    returning: bool,
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

/// A step that has begun.
pub(crate) struct Begun {
    pub(crate) step: u64,
    /// In force from now on.
    pub(crate) view: Arc<View>,
    /// Whether it was not before.
    pub(crate) entered: bool,
}

impl Control {
    /// Not read before [`Control::start`]: until then the view is the caller's to change.
    pub(crate) fn new(channel: ControlChannel, me: WorkerId, view: Arc<View>) -> Result<Control> {
        let (waker, wakened) = Waker::pair()?;
        let coordinator = channel.peer();
        let participant = Participant::new(me, view);
        let (outgoing, accused) = (Vec::new(), Vec::new());
        let state = State { participant, outgoing, proposal: None, accused, returning: false };
        let desk = Desk {
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker,
            stop: AtomicBool::new(false),
            coordinator,
            successor: OnceLock::new(),
            comeback: OnceLock::new(),
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

    /// Begin a step, or the next if none is named: step 1 if none has begun, since what was done before is step 0. Waits only for the outcome of a change that was promised.
    pub(crate) fn begin(&self, step: Option<u64>) -> Result<Begun> {
        let mut waiting = None;
        let mut state = self.desk.state();
        // Each turn ends the wait, or follows news of the coordinator's; it is bounded by the time that operations have.
        loop {
            let State { participant, outgoing, .. } = &mut *state;
            let step = step.unwrap_or(participant.next().max(1));
            let begin = participant.begin(step, outgoing);
            let coordinator = || self.desk.coordinator.clone();
            match begin {
                Begin::Same => {
                    let view = participant.view().clone();
                    return Ok(Begun { step, view, entered: false });
                }
                Begin::Enter(view) => {
                    self.desk.waker.wake();
                    return Ok(Begun { step, view, entered: true });
                }
                Begin::Removed | Begin::Gather(_) => return Err(NetError::Removed),
                Begin::Dissolved { left, needed } => {
                    return Err(NetError::Dissolved { left, needed });
                }
                Begin::Past { next } => return Err(NetError::StepPast { step, next }),
                Begin::Doubt { version, step } => {
                    let coordinator = coordinator();
                    return Err(NetError::OutcomeUnknown { coordinator, version, step });
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
#[derive(Debug)]
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
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn gone(&self) -> NetError {
        NetError::CoordinatorGone.with_coordinator(&self.coordinator)
    }

    /// The thread: read and write until told to stop or the connection ends.
    fn attend(&self, mut channel: ControlChannel, wakened: &Wakened) -> Option<ControlChannel> {
        while !self.stop.load(Ordering::Acquire) {
            wakened.drain();
            let mut entries = match self.exchange(&mut channel) {
                Ok(unsent) => {
                    [handshake::entry(wakened, false), handshake::entry(&channel, unsent)]
                }
                Err(_) => {
                    // Whatever it was, nothing more comes of this connection; who needs it is told.
                    channel = self.come_back(wakened)?;
                    continue;
                }
            };
            if handshake::wait(&mut entries, None).is_err() {
                self.disconnect(false);
                return None;
            }
        }
        Some(channel)
    }

    /// Hear all that has come, and send all that is to be sent; whether some of that has to wait.
    fn exchange(&self, channel: &mut ControlChannel) -> Result<bool> {
        loop {
            let mut state = self.state();
            for message in std::mem::take(&mut state.outgoing) {
                channel.queue(&WorkerMessage::Agreement(message))?;
            }
            drop(state);
            // A failure to write shows as a closed connection when it is read, after the last words that came.
            let unsent = channel.flush().unwrap_or(false);
            match channel.try_receive()? {
                None => return Ok(unsent),
                Some(CoordinatorMessage::Agreement(message)) => {
                    let mut state = self.state();
                    let State { participant, outgoing, proposal, accused, .. } = &mut *state;
                    let heard = participant.hear(message, outgoing);
                    if let Some(sink) = self.successor.get() {
                        if let Some(view) = participant.succeed(outgoing) {
                            accused.retain(|(worker, _)| view.rank_of(*worker).is_some());
                            sink(Ok(view));
                        }
                        if participant.is_removed() {
                            sink(Err("the job goes on without this worker".to_string()));
                        }
                    }
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
                // The engine hears from the peers themselves who is gone.
                Some(CoordinatorMessage::Gone { .. }) => {}
                Some(CoordinatorMessage::Welcome { .. } | CoordinatorMessage::Refused(_)) => {
                    return Err(NetError::Malformed {
                        what: "coordinator's message",
                        problem: "an answer to a join in the middle of a job".to_string(),
                    });
                }
            }
        }
    }

    /// Another worker cannot be reached: the coordinator says how to go on, if it can.
    fn lost(&self, worker: WorkerId, version: ViewVersion) {
        let mut state = self.state();
        let State { participant, outgoing, accused, .. } = &mut *state;
        // Otherwise the coordinator has said so already, and the other has gone on.
        if version >= participant.view().version {
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
            sink(Err(format!(
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
