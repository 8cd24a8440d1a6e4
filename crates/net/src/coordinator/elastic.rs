//! The coordinator of a job whose workers come and go: newcomers, wishes for another number of workers, and how the job
//! stands. Who is in the next view is the registrar's to decide; starting processes is its owner's.

use super::{
    Coordinator, CoordinatorConfig, CoordinatorMessage, Fate, Join, MAXIMUM_WORKERS, Member,
    MemberStatus, Refusal, Seat, Service, Standing, Status, tell,
};
use crate::{
    error::{NetError, Result},
    handshake::MessageChannel,
    runtime::helm::lock,
};
use paceline_job::{Settings, Worker, WorkerId};
use paceline_sync::agreement::is_for_any_members;
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
const ANSWER: Duration = Duration::from_secs(10);

/// Told how many workers a job is to have, when that changes.
#[derive(Clone)]
pub struct Resizer(Arc<dyn Fn(usize) + Send + Sync>);

impl Resizer {
    /// Call this, on the coordinator's thread: it must not wait.
    pub fn new(told: impl Fn(usize) + Send + Sync + 'static) -> Resizer {
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
    Retired(SyncSender<Vec<u32>>),
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

    /// Processes that were asked to leave, over the whole job.
    pub fn retired(&self) -> Result<Vec<u32>> {
        self.ask(Ask::Retired)
    }

    pub(super) fn ask<T>(&self, ask: impl FnOnce(SyncSender<T>) -> Ask) -> Result<T> {
        let (sender, answer) = sync_channel(1);
        lock(&self.shared.asks).push(ask(sender));
        self.shared.waker.wake();
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
                Ask::Retired(answer) => drop(answer.try_send(self.retired.clone())),
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
        let Seat::Waiting(worker) = &member.seat else {
            return Some(Fate::Failed { reason: "it takes part already".to_string() });
        };
        let worker = worker.clone();
        member.seat = Seat::Taken(worker.id);
        self.register(|registrar, out| registrar.welcome(worker, out));
        None
    }

    /// A program wants another number of workers.
    pub(super) fn wish_for(&mut self, index: usize, size: usize) {
        if let Err(error) = self.resize(size) {
            let name = &self.members[index].name;
            self.config.log.line(&format!("{name} asked for {size} workers: {error}"));
        }
    }

    fn resize(&mut self, size: usize) -> Result<()> {
        let (Some(limits), Some(registrar)) = (self.config.elastic, &self.registrar) else {
            return Err(NetError::NotRunning);
        };
        if size < limits.least || size > limits.most {
            return Err(NetError::SizeLimits { least: limits.least, most: limits.most, size });
        }
        let view = registrar.view();
        let staying = view.ids().filter(|id| !registrar.retiring().contains(id));
        let staying: Vec<WorkerId> = staying.collect();
        let leave = staying.get(size..).unwrap_or_default().to_vec();
        if !leave.is_empty() {
            self.retire(&leave)?;
        }
        if let Some(Resizer(told)) = &self.config.resizer {
            told(size);
        }
        Ok(())
    }

    /// A worker wants to leave.
    pub(super) fn let_go(&mut self, index: usize, id: WorkerId) {
        let outcome = match self.config.elastic {
            Some(_) => self.retire(&[id]),
            None => Err(NetError::NotRunning),
        };
        let name = &self.members[index].name;
        match outcome {
            Ok(()) => self.config.log.line(&format!("{name} leaves by its own wish")),
            Err(error) => self.config.log.line(&format!("{name} wants to leave: {error}")),
        }
    }

    fn retire(&mut self, leave: &[WorkerId]) -> Result<()> {
        let mut outcome = Ok(());
        self.register(|registrar, out| outcome = registrar.retire(leave, out));
        outcome?;
        let among = |member: &&Member| member.id().is_some_and(|id| leave.contains(&id));
        self.retired.extend(self.members.iter().filter(among).map(|member| member.process));
        Ok(())
    }

    /// Nobody is left in the view: those who wait to be let in wait in vain.
    pub(super) fn turn_away_if_over(&mut self) {
        if self.config.elastic.is_some() && !self.is_anybody_left() {
            self.members.clear();
        }
    }

    fn status(&self) -> Status {
        let registrar = self.registrar.as_ref();
        let mut members: Vec<MemberStatus> =
            self.members.iter().map(|member| self.standing(member)).collect();
        members.sort_by_key(|member| (member.rank.is_none(), member.rank, member.id));
        let rates = self.members.iter().map(|member| member.pace.rate).filter(|rate| *rate > 0.0);
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
            (_, Some(registrar)) if among(registrar.retiring()) => Standing::Leaving,
            _ if rank.is_some() => Standing::Working,
            (Seat::Taken(id), Some(registrar)) => {
                match registrar.newcomers().iter().any(|worker| worker.id == *id) {
                    true => Standing::Joining,
                    false => Standing::Apart,
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
        let (process, step) = (member.process, member.pace.step);
        MemberStatus { id, rank, host, process, standing, step }
    }
}
