//! A worker of a job whose workers come and go: how it enters a running job, how steps begin where others come or go
//! before them, and what it is told of those who are gone.

use super::Worker;
use crate::{
    control::{Begun, Turn},
    coordinator::WorkerMessage,
    error::{NetError, Result},
    runtime::{crew::Crew, driver::Driver, helm::lock},
    succession::Succession,
};
use paceline_job::{Rank, View, WorkerId};
use paceline_sync::{agreement::Ballot, recovery::Account};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What a worker of an elastic job has besides.
#[derive(Debug)]
pub(super) struct Elastic {
    me: WorkerId,
    pub(super) succession: Succession,
    accounts: Arc<Mutex<Vec<Account>>>,
    /// Whether it has not entered yet.
    outside: AtomicBool,
    /// Whether others entered with the step that it is in.
    newcomers: AtomicBool,
    gathering: Mutex<Option<Gathering>>,
}

/// What a worker waited for where others came or went before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// For operations of the steps before.
    pub settling: Duration,
    /// Then for all others, and until the step had begun: nothing of this worker's was in progress.
    pub still: Duration,
}

impl Elastic {
    pub(super) fn new(
        me: WorkerId,
        succession: Succession,
        accounts: Arc<Mutex<Vec<Account>>>,
        outside: bool,
    ) -> Elastic {
        let (outside, newcomers) = (AtomicBool::new(outside), AtomicBool::new(false));
        let gathering = Mutex::new(None);
        Elastic { me, succession, accounts, outside, newcomers, gathering }
    }
}

/// Where a worker that came to a running job takes part from.
#[derive(Clone, Debug)]
pub struct Entry {
    /// It is in this step now, as all others are.
    pub step: u64,
    /// With these workers.
    pub view: Arc<View>,
}

impl Worker {
    /// Whether workers of the job may come and go.
    pub fn is_elastic(&self) -> bool {
        self.elastic.is_some()
    }

    /// Whether this worker came to a running job and has not [entered](Worker::enter) it. Until then it is alone: rank 0
    /// of one.
    pub fn is_outside(&self) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.outside.load(Ordering::Relaxed))
    }

    /// Enter the running job: returns when all others have come to the step that this worker takes part from. They wait
    /// there for it, so prepare everything before; what they have, and this worker lacks, comes with [`Worker::share`]
    /// or [`Worker::begin_share`], which all call next.
    pub fn enter(&self) -> Result<Entry> {
        self.enter_unless(|| false)
    }

    /// The same, unless `gives_up` says, while the job has no need of this worker, that it is to wait no longer: it is asked
    /// twice a second. Then this worker is [retired](NetError::Retired).
    pub fn enter_unless(&self, gives_up: impl FnMut() -> bool) -> Result<Entry> {
        let Some(elastic) = self.elastic.as_ref().filter(|_| self.is_outside()) else {
            return Err(NetError::NotRunning);
        };
        self.control.ask_to_enter();
        let begun = self.begin_elastic(elastic, None, || (), gives_up)?;
        elastic.outside.store(false, Ordering::Relaxed);
        self.measure_step(&begun);
        Ok(Entry { step: begun.step, view: begun.view })
    }

    /// Whether workers entered the job with the step that this worker is in: then all [share](Worker::share) the state
    /// before anything else.
    pub fn has_newcomers(&self) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.newcomers.load(Ordering::Relaxed))
    }

    /// What this worker waited for where others last came or went, if they did.
    pub fn last_gathering(&self) -> Option<Gathering> {
        self.elastic.as_ref().and_then(|elastic| *lock(&elastic.gathering))
    }

    /// In this step these workers only listen: they take part in operations of all workers and add nothing, and averages are
    /// over the others. All workers of the view say so between the same two operations; the next step is everybody's.
    pub fn listen(&self, ranks: &[Rank]) {
        let view = self.view();
        let ids = ranks.iter().filter_map(|rank| view.workers.get(rank.index()));
        let ids: Arc<[WorkerId]> = ids.map(|worker| worker.id).collect();
        self.helm.with(|driver| {
            if let Some(crew) = driver.crew() {
                crew.keeper().listen(ids);
            }
        });
    }

    /// From the step that this worker is in on, workers train copies of their own, or they do not any more. All workers say so in
    /// the same step. Then samples count where an operation [holds](super::Operation::holds) a copy.
    pub fn train_apart(&self, apart: bool) {
        self.helm.with(|driver| {
            if let Some(crew) = driver.crew() {
                crew.keeper().train_apart(apart);
            }
        });
    }

    /// Ask for another number of workers: those that are too many leave, and more are started where somebody can start
    /// them. Each is a change of members at some step soon after.
    pub fn propose_members(&self, size: usize) -> Result<()> {
        if self.elastic.is_none() {
            return Err(NetError::NotRunning);
        }
        self.control.remark(WorkerMessage::Resize { size });
        Ok(())
    }

    /// Why the job does not get the number of workers that was [asked for](Worker::propose_members) here; said once.
    pub fn take_refusal(&self) -> Option<String> {
        self.control.take_refusal()
    }

    /// Ask to leave the job: beginning some step soon after is refused with [`NetError::Retired`], and the others go on
    /// without this worker. It goes on as it is where the job needs it.
    pub fn ask_to_leave(&self) -> Result<()> {
        if self.elastic.is_none() {
            return Err(NetError::NotRunning);
        }
        self.control.remark(WorkerMessage::Retire);
        Ok(())
    }

    /// In an elastic job: what became of the samples of workers that this worker's program takes part without since the
    /// step that it is in, or an earlier one. Asked after each beginning of a step, it is told in the same step on all
    /// workers ([`Account::since`]). Samples count where something is left that [holds](super::Operation::holds) them: say of
    /// gradients that they do.
    pub fn take_losses(&self) -> Vec<Account> {
        let Some(elastic) = &self.elastic else { return Vec::new() };
        let known = self.view();
        let mut accounts = lock(&elastic.accounts);
        let due =
            |account: &mut Account| account.gone.iter().all(|id| known.rank_of(*id).is_none());
        accounts.extract_if(.., due).collect()
    }

    /// Workers are at most two steps apart, and ranks change between steps only.
    pub(super) fn begin_elastic(
        &self,
        elastic: &Elastic,
        step: Option<u64>,
        settle: impl FnOnce(),
        mut gives_up: impl FnMut() -> bool,
    ) -> Result<Begun> {
        let mut settle = Some(settle);
        let since = Instant::now();
        let mut idle = None;
        // Each turn begins a step or gathers for a view that was agreed on; waits are bounded there.
        loop {
            let next = step.unwrap_or_else(|| self.control.next_step());
            let latest = self.control.view().version;
            self.drive_until(None, |crew| crew.is_in(latest) && crew.may_begin(next));
            let wanted = if self.is_outside() { None } else { Some(next) };
            match self.control.begin(wanted, Some(latest))? {
                // Others are lost: what is agreed on then, such as settings, is to be known before the step begins.
                Turn::Behind => {}
                Turn::Unneeded if gives_up() => return Err(NetError::Retired),
                Turn::Unneeded => {}
                Turn::Gather(ballot) => {
                    if let Some(settle) = settle.take() {
                        settle();
                    }
                    idle = self.gather(elastic, ballot, since);
                }
                Turn::Begun(begun) => {
                    if let Some(settle) = settle.take().filter(|_| begun.entered) {
                        settle();
                    }
                    let begun = self.put_in_force(elastic, begun)?;
                    if let Some(idle) = idle {
                        let (settling, still) = (idle - since, idle.elapsed());
                        *lock(&elastic.gathering) = Some(Gathering { settling, still });
                    }
                    return Ok(begun);
                }
            }
        }
    }

    /// Be idle and connected, and say so: since when it is idle, if not since `before`. Or find that it came to nothing.
    fn gather(&self, elastic: &Elastic, ballot: Ballot, before: Instant) -> Option<Instant> {
        let limit = self.view().settings.timeout;
        let is_idle = |driver: &mut Driver| driver.crew().is_none_or(|crew| crew.is_idle());
        let was_idle = self.helm.with(is_idle);
        elastic.succession.is_rigged(ballot, limit).then(|| {
            // A loss before may be recovered from only now: connections of that view came first.
            self.drive_until(None, |crew| crew.is_idle());
            let idle = if was_idle { before } else { Instant::now() };
            self.control.gathered(ballot);
            idle
        })
    }

    fn put_in_force(&self, elastic: &Elastic, mut begun: Begun) -> Result<Begun> {
        let (step, view) = (begun.step, begun.view.clone());
        let known = self.helm.with(|driver| driver.crew().map(|crew| crew.keeper().view().clone()));
        let same = known.as_ref().is_none_or(|known| known.ids().eq(view.ids()));
        let is_new = |id: WorkerId| known.as_ref().is_some_and(|known| known.rank_of(id).is_none());
        elastic.newcomers.store(begun.entered && view.ids().any(is_new), Ordering::Relaxed);
        if begun.entered && !same {
            let rigging = elastic.succession.take_rigging(&view);
            let rigging = rigging.ok_or(NetError::Removed)?;
            // At once, so that nothing that follows this view comes in between.
            let relics = self.helm.with(|driver| {
                let relics = driver.replace(rigging, step);
                begin(driver, step);
                relics
            });
            self.helm.stir();
            self.control.entered();
            elastic.succession.leave_behind(relics);
        } else {
            if begun.entered {
                self.install(&view, step);
            }
            self.begin_when_recovered(step);
        }
        begun.view = self.view();
        let rank = begun.view.rank_of(elastic.me).ok_or(NetError::Removed)?;
        self.rank.store(rank.0, Ordering::Relaxed);
        Ok(begun)
    }

    /// Other settings for the workers that were left when it was agreed: if the driver is not as far, it gets there.
    fn install(&self, view: &Arc<View>, step: u64) {
        let overtaken = || self.control.view().version > view.version;
        self.drive_until(None, |crew| {
            crew.keeper().view().version.0 + 1 >= view.version.0 || overtaken()
        });
        self.helm.with(|driver| driver.install(view.clone(), step));
    }

    /// Somebody may be lost at any moment, and by what view the program goes in this step is then to be found out first.
    fn begin_when_recovered(&self, step: u64) {
        loop {
            self.drive_until(None, |crew| crew.may_begin(step));
            let begun = self.helm.with(|driver| {
                let may = driver.crew().is_none_or(|crew| crew.may_begin(step));
                if may {
                    begin(driver, step);
                }
                may
            });
            if begun {
                return;
            }
        }
    }

    /// Drive until the operations of an elastic job are so far, or time is up.
    pub(super) fn drive_until(&self, deadline: Option<Instant>, is_so: impl Fn(&mut Crew) -> bool) {
        let so_far = |driver: &mut Driver| driver.crew().is_none_or(&is_so);
        self.helm.drive(deadline, || self.helm.with(so_far).then_some(()));
    }
}

fn begin(driver: &mut Driver, step: u64) {
    if let Some(crew) = driver.crew() {
        crew.keeper().begin(step);
    }
}
