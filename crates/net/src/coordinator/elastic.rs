//! The coordinator of a job whose workers come and go: newcomers, wishes for another number of workers, and how the job
//! stands. Who is in the next view is the registrar's to decide; starting processes is its owner's.

use super::{
    Coordinator, CoordinatorConfig, CoordinatorMessage, Fate, Join, MAXIMUM_WORKERS, Member,
    MemberStatus, Refusal, Seat, Service, Shared, Standing, Status, tell,
};
use crate::{
    error::{NetError, Result},
    handshake::MessageChannel,
    runtime::helm::lock,
};
use paceline_job::{Settings, View, Worker, WorkerId};
use paceline_sync::{
    agreement::{Objection, Registrar, Summons, is_for_any_members},
    liveness::Progress as Stride,
};
use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

/// How long the coordinator's thread may take to answer. It never waits for anybody, so this is for a machine that is
/// stopped.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Whose processes are what to an elastic job, for whoever starts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// So many workers the job is to have.
    pub wanted: usize,
    /// Processes that take part or did. One number for each, over the whole job.
    pub entered: Vec<u32>,
    /// Those of them that left as they were asked to.
    pub retired: Vec<u32>,
    /// Processes of which nothing was heard for too long: whatever they do, the job goes on or ends without them.
    pub silent: Vec<u32>,
    /// Whether workers are done, so that nobody is needed any more.
    pub done: bool,
}

/// Told how many workers a job is to have, once the first view is out and when that changes; and when somebody has entered,
/// leaves by its own wish, or is silent.
#[derive(Clone)]
pub struct Resizer(Arc<dyn Fn(Occasion) + Send + Sync>);

/// What whoever starts workers may want to know. The [`Census`] says the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The job begins, or somebody asked for another number of workers.
    Wanted,
    /// The job is to have one worker less than before, because it leaves by its own wish: nobody asked for others.
    Fewer,
    /// Somebody takes part that did not before.
    Entered,
    /// Nothing was heard of somebody for too long.
    Silent,
}

impl Resizer {
    /// Call this, on the coordinator's thread: it must not wait.
    pub fn new(told: impl Fn(Occasion) + Send + Sync + 'static) -> Resizer {
        Resizer(Arc::new(told))
    }
}

impl fmt::Debug for Resizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resizer")
    }
}

/// What somebody wants of the coordinator's thread, and where the answer goes.
#[derive(Debug)]
pub(super) enum Ask {
    Status(SyncSender<Status>),
    Resize(usize, SyncSender<Result<()>>),
    Census(SyncSender<Census>),
    Settings(SyncSender<Option<Settings>>),
    Change(Settings, SyncSender<Result<()>>),
    Pause(bool, SyncSender<()>),
}

/// Refuse what an elastic job cannot be.
pub(super) fn check(config: &CoordinatorConfig) -> Result<()> {
    let Some(limits) = config.elastic else { return Ok(()) };
    let strategy = &config.settings.strategy;
    if !is_for_any_members(strategy) {
        return Err(NetError::StrategyNotElastic { strategy: strategy.to_string() });
    }
    if limits.least == 0 || limits.least > config.size || limits.most < config.size {
        let (least, most) = (limits.least, limits.most);
        return Err(NetError::SizeLimits { least, most, size: config.size });
    }
    Ok(())
}

impl Coordinator {
    /// How the job stands.
    pub fn status(&self) -> Result<Status> {
        self.ask(Ask::Status)
    }

    /// The job is to have so many workers. Those who are too many are asked to leave, the last ones first; for those
    /// who are missing the [`Resizer`] is told. Returns when that is begun.
    pub fn resize(&self, size: usize) -> Result<()> {
        self.ask(|answer| Ask::Resize(size, answer))?
    }

    /// Which processes take part, and which were asked to leave.
    pub fn census(&self) -> Result<Census> {
        self.ask(Ask::Census)
    }

    pub(super) fn ask<T>(&self, ask: impl FnOnce(SyncSender<T>) -> Ask) -> Result<T> {
        self.shared.ask(ask)
    }
}

impl Shared {
    pub(super) fn ask<T>(&self, ask: impl FnOnce(SyncSender<T>) -> Ask) -> Result<T> {
        let (sender, answer) = sync_channel(1);
        lock(&self.asks).push(ask(sender));
        self.waker.wake();
        answer.recv_timeout(ANSWER).map_err(|_| NetError::CoordinatorGone)
    }
}

impl Service {
    pub(super) fn answer_asks(&mut self) {
        let asks = std::mem::take(&mut *lock(&self.shared.asks));
        for ask in asks {
            // Whoever does not wait any more needs no answer.
            match ask {
                Ask::Status(answer) => drop(answer.try_send(self.status())),
                Ask::Resize(size, answer) => drop(answer.try_send(self.resize(size))),
                Ask::Census(answer) => {
                    let ends = |it: &Registrar| it.is_ending() || !self.is_anybody_left();
                    let done = self.registrar.as_ref().is_some_and(ends);
                    drop(answer.try_send(Census { done, ..self.census.clone() }));
                }
                Ask::Settings(answer) => {
                    let view = self.registrar.as_ref().map(|registrar| registrar.view());
                    drop(answer.try_send(view.map(|view| view.settings.clone())));
                }
                Ask::Change(settings, answer) => drop(answer.try_send(self.change(settings))),
                Ask::Pause(paused, answer) => {
                    self.pause(paused);
                    let _ = answer.try_send(());
                }
            }
        }
    }

    /// Whether somebody who comes to the running job may wait to be let in.
    pub(super) fn admits(&self) -> Result<(), Refusal> {
        match self.config.elastic {
            Some(_) if !self.is_anybody_left() => Err(Refusal::JobOver),
            Some(_) if self.members.len() < MAXIMUM_WORKERS => Ok(()),
            _ => Err(Refusal::JobFull { size: self.config.size }),
        }
    }

    /// Whether a worker of the view is connected, or may come back.
    fn is_anybody_left(&self) -> bool {
        let Some(registrar) = &self.registrar else { return false };
        let in_view = |id: WorkerId| registrar.view().rank_of(id).is_some();
        let connected = self.members.iter().any(|member| member.id().is_some_and(in_view));
        connected || !registrar.absent().is_empty()
    }

    /// Somebody came to the running job. It is invited when it is ready, so that nobody waits for what it prepares.
    pub(super) fn seat_newcomer(
        &mut self,
        join: Join,
        channel: &mut MessageChannel,
    ) -> Result<Seat, Refusal> {
        let mut reserved = None;
        self.register(|registrar, _| {
            reserved = Some((registrar.reserve(), registrar.view().clone()));
        });
        // A name that could be forgotten would be given twice.
        let (id, view) = reserved.filter(|_| self.notes.is_safe()).ok_or(Refusal::NotWritten)?;
        let job = self.job.clone();
        tell(channel, &CoordinatorMessage::Underway { job, id, view });
        Ok(Seat::Waiting(Worker { id, host: join.host, address: join.address.to_string() }))
    }

    /// It is ready; how it is gone, if it has no business to be.
    pub(super) fn let_in(&mut self, index: usize) -> Option<Fate> {
        let member = &mut self.members[index];
        let worker = match &member.seat {
            Seat::Waiting(worker) => worker.clone(),
            // It says so to each coordinator that it comes to, also to one that finds it in the view.
            Seat::Taken(_) => return None,
            Seat::Gathering(_) => {
                return Some(Fate::Failed { reason: "the job has not begun".to_string() });
            }
        };
        member.seat = Seat::Taken(worker.id);
        self.register(|registrar, out| registrar.welcome(worker, out));
        None
    }

    /// A program wants another number of workers.
    pub(super) fn wish_for(&mut self, index: usize, size: usize) {
        if let Err(error) = self.resize(size) {
            let Member { name, channel, .. } = &mut self.members[index];
            self.config.log.line(&format!("{name} asked for {size} workers: {error}"));
            tell(channel, &CoordinatorMessage::WishRefused { reason: error.to_string() });
        }
    }

    fn resize(&mut self, size: usize) -> Result<()> {
        let limits = self.config.elastic.ok_or(NetError::NotRunning)?;
        let registrar = self.registrar.as_ref().ok_or(NetError::NotBegun)?;
        if size < limits.least || size > limits.most {
            return Err(NetError::SizeLimits { least: limits.least, most: limits.most, size });
        }
        let leaving = registrar.leaving();
        let staying = registrar.view().ids().filter(|id| !leaving.contains(id)).count();
        let ready = |seat: &Seat| match seat {
            Seat::Taken(id) => registrar.newcomers().iter().any(|newcomer| newcomer.id == *id),
            Seat::Waiting(_) => true,
            Seat::Gathering(_) => false,
        };
        let ready = self.members.iter().filter(|member| ready(&member.seat)).count();
        if self.config.resizer.is_none() && size > staying + ready {
            return Err(NetError::NobodyStarts { size, there: staying + ready });
        }
        self.want_and(Occasion::Wanted, size, |registrar, out| registrar.shrink(size, out))
    }

    /// The job is to have so many workers, and some are to leave for it.
    fn want_and(
        &mut self,
        why: Occasion,
        size: usize,
        leave: impl FnOnce(&mut Registrar, &mut Vec<Summons>) -> Result<(), Objection>,
    ) -> Result<()> {
        let before = self.census.wanted;
        // First, or spares would be let in in their place.
        self.want(why, size);
        let mut outcome = Ok(());
        self.register(|registrar, out| outcome = leave(registrar, out));
        Ok(outcome.inspect_err(|_| self.want(why, before))?)
    }

    /// The job is to have so many workers: those who wait are let in as far as some are missing.
    pub(super) fn want(&mut self, why: Occasion, size: usize) {
        self.census.wanted = size;
        if self.config.spares {
            self.register(|registrar, out| registrar.want(size, out));
        }
        self.tell_resizer(why);
    }

    pub(super) fn tell_resizer(&self, occasion: Occasion) {
        if let Some(Resizer(told)) = &self.config.resizer {
            told(occasion);
        }
    }

    /// Remember who takes part in a view.
    pub(super) fn count(&mut self, view: &View) {
        let before = self.census.entered.len();
        for member in &self.members {
            let inside = member.id().is_some_and(|id| view.rank_of(id).is_some());
            if inside && !self.census.entered.contains(&member.process) {
                self.census.entered.push(member.process);
            }
        }
        let departed = self.registrar.as_ref().map_or(&[][..], Registrar::departed);
        for member in &self.members {
            let left = member.id().is_some_and(|id| departed.contains(&id));
            if left && !self.census.retired.contains(&member.process) {
                self.census.retired.push(member.process);
            }
        }
        if self.census.entered.len() > before {
            self.tell_resizer(Occasion::Entered);
        }
    }

    /// A worker wants to leave. Nobody comes in its place: the job is to have one less, unless this is one too many already.
    pub(super) fn let_go(&mut self, index: usize, id: WorkerId) {
        let outcome = match (self.config.elastic, &self.registrar) {
            (Some(_), Some(registrar)) => {
                let counted = usize::from(!registrar.leaving().contains(&id));
                let wanted = self.census.wanted.saturating_sub(counted);
                self.want_and(Occasion::Fewer, wanted, |registrar, out| registrar.retire(id, out))
            }
            _ => Err(NetError::NotRunning),
        };
        let name = &self.members[index].name;
        match outcome {
            Ok(()) => self.config.log.line(&format!("{name} leaves by its own wish")),
            Err(error) => self.config.log.line(&format!("{name} wants to leave: {error}")),
        }
    }

    /// Nobody is left in the view: those who wait to be let in wait in vain, and are told so. Otherwise they would look for another
    /// coordinator.
    pub(super) fn turn_away_if_over(&mut self) {
        if self.config.elastic.is_some() && !self.is_anybody_left() {
            for mut member in std::mem::take(&mut self.members) {
                tell(&mut member.channel, &CoordinatorMessage::Refused(Refusal::JobOver));
            }
        }
    }

    fn status(&self) -> Status {
        let registrar = self.registrar.as_ref();
        let mut members: Vec<MemberStatus> =
            self.members.iter().map(|member| self.standing(member)).collect();
        members.sort_by_key(|member| (member.rank.is_none(), member.rank, member.id));
        let strides = self.members.iter().filter_map(|member| member.stride);
        let rates = strides.map(|stride| stride.rate).filter(|rate| *rate > 0.0);
        Status {
            job: self.job.to_string(),
            view: registrar.map(|registrar| registrar.view().version),
            step: members.iter().map(|member| member.step).max().unwrap_or(0),
            steps_per_second: rates.reduce(f64::min),
            limits: self.config.elastic.map(|limits| (limits.least, limits.most)),
            members,
        }
    }

    fn standing(&self, member: &Member) -> MemberStatus {
        let registrar = self.registrar.as_ref();
        let id = member.id();
        let rank = id.and_then(|id| registrar?.view().rank_of(id)).map(|rank| rank.0);
        let among = |ids: &[WorkerId]| id.is_some_and(|id| ids.contains(&id));
        let standing = match (&member.seat, registrar) {
            (Seat::Gathering(_), _) | (_, None) => Standing::Gathering,
            (Seat::Waiting(_), _) => Standing::Preparing,
            (_, Some(registrar)) if among(&registrar.leaving()) => Standing::Leaving,
            _ if rank.is_some() && self.is_slow(member) => Standing::Slow,
            _ if rank.is_some() => Standing::Working,
            (Seat::Taken(id), Some(registrar)) => {
                match registrar.newcomers().iter().position(|worker| worker.id == *id) {
                    Some(place) if place < registrar.room() => Standing::Joining,
                    Some(_) => Standing::Spare,
                    None => Standing::Apart,
                }
            }
        };
        let host = match (&member.seat, registrar) {
            (Seat::Waiting(worker), _) => worker.host.clone(),
            (Seat::Taken(id), Some(registrar)) => {
                let mut known = registrar.view().workers.iter().chain(registrar.newcomers());
                let found = known.find(|worker| worker.id == *id);
                found.map(|worker| worker.host.clone()).unwrap_or_default()
            }
            _ => String::new(),
        };
        let (process, step) = (member.process, member.stride.map_or(0, |stride| stride.step));
        let heard = member.stride.map(|stride| self.vigil.silence(stride.heard).as_secs());
        MemberStatus { id, rank, host, process, standing, step, heard }
    }

    /// Whether other workers of the view wait for this one.
    fn is_slow(&self, member: &Member) -> bool {
        let Some(view) = self.registrar.as_ref().map(Registrar::view) else { return false };
        let inside = |member: &&Member| member.id().is_some_and(|id| view.rank_of(id).is_some());
        let strides = self.members.iter().filter(inside).filter_map(|member| member.stride);
        let strides: Vec<Stride> = strides.collect();
        member.stride.is_some_and(|stride| stride.is_slow(&strides, &self.vigil))
    }
}
