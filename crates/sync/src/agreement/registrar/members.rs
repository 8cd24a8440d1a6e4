//! Who comes and goes: newcomers, workers that gather for a view, workers that are lost, done or back after the
//! coordinator was away. All of it is about elastic jobs.

use super::{Attempt, Proposal, Registrar, Standing, Summons};
use crate::agreement::{Agreed, Ballot, Change, MEMBERS_AT_ONCE, Objection, Place, ToParticipant};
use paceline_job::{View, ViewVersion, Worker, WorkerId};

/// How many workers an elastic job may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// With fewer it does not go on.
    pub least: usize,
    /// More are not let in: they wait until others are gone.
    pub most: usize,
}

impl Limits {
    /// From text such as `2:8`.
    pub fn parse(text: &str) -> Option<Limits> {
        let (least, most) = text.split_once(':')?;
        let (least, most) = (least.trim().parse().ok()?, most.trim().parse().ok()?);
        (0 < least && least <= most).then_some(Limits { least, most })
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { least: 1, most: MEMBERS_AT_ONCE }
    }
}

/// Everybody of two views waits before a step.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) proposal: Proposal,
    view: View,
    ballot: Ballot,
    step: u64,
    /// Who has not come.
    awaited: Vec<WorkerId>,
}

impl Registrar {
    /// Keep the number of workers within these.
    pub fn limited(self, limits: Limits) -> Registrar {
        Registrar { limits, ..self }
    }

    /// A name for somebody who will ask to join when it is ready. Given once.
    pub fn reserve(&mut self) -> WorkerId {
        let id = WorkerId(self.next_id);
        self.next_id += 1;
        id
    }

    /// A worker asks to join; the name it gets. It is invited when others can be asked.
    pub fn admit(&mut self, host: String, address: String, out: &mut Vec<Summons>) -> WorkerId {
        let id = self.reserve();
        self.welcome(Worker { id, host, address }, out);
        id
    }

    /// A worker with a [reserved](Registrar::reserve) name asks to join, perhaps not for the first time: the registrar before may
    /// have invited it. It is invited when others can be asked.
    pub fn welcome(&mut self, worker: Worker, out: &mut Vec<Summons>) {
        // One that was let in hears that when it says where it stands.
        if self.view.rank_of(worker.id).is_some() {
            return;
        }
        // First, so that no invitation of ours is taken for one that came to nothing.
        out.push(Summons { to: worker.id, message: self.latest() });
        self.newcomers.push(worker);
        self.take_next(out);
    }

    /// This worker is to leave as soon as all can be asked, beside those who [are to](Registrar::leaving) already.
    pub fn retire(&mut self, worker: WorkerId, out: &mut Vec<Summons>) -> Result<(), Objection> {
        let (retiring, shrinking) = (self.retiring.clone(), self.shrinking);
        if self.view.rank_of(worker).is_some() && !self.retiring.contains(&worker) {
            if !self.leaving().contains(&worker) {
                self.shrinking = self.shrinking.map(|size| size.saturating_sub(1));
            }
            self.retiring.push(worker);
        }
        self.let_go(retiring, shrinking, out)
    }

    /// No more than so many are to stay: the last ones of the view leave as soon as all can be asked. Who that is depends on
    /// who is there then: nobody leaves in place of one that is lost.
    pub fn shrink(&mut self, size: usize, out: &mut Vec<Summons>) -> Result<(), Objection> {
        let before = self.shrinking.replace(size);
        self.let_go(self.retiring.clone(), before, out)
    }

    /// Ask those who are to leave; if they cannot, it stays as it was.
    fn let_go(
        &mut self,
        retiring: Vec<WorkerId>,
        shrinking: Option<usize>,
        out: &mut Vec<Summons>,
    ) -> Result<(), Objection> {
        let (leave, join) = (self.leaving(), Vec::new());
        let (after, anybody) = (self.view.version, !leave.is_empty());
        let proposal = Proposal { by: None, after, change: Change::Members { leave, join } };
        if anybody && let Err(objection) = self.check(&proposal) {
            (self.retiring, self.shrinking) = (retiring, shrinking);
            return Err(objection);
        }
        self.forget_who_left();
        if self.asks_others_to_leave() {
            self.abandon(out);
        }
        self.take_next(out);
        Ok(())
    }

    /// Whether somebody is being asked to leave by an earlier wish, and is to stay by the latest.
    fn asks_others_to_leave(&self) -> bool {
        let attempted = self.attempt.as_ref().map(|it| &it.proposal);
        let open = attempted.or(self.gathering.as_ref().map(|it| &it.proposal));
        let leaving = self.leaving();
        open.filter(|proposal| proposal.by.is_none()).is_some_and(|proposal| {
            matches!(&proposal.change, Change::Members { leave, .. }
                if leave.iter().any(|id| !leaving.contains(id)))
        })
    }

    /// Who is to leave and is still there.
    pub fn leaving(&self) -> Vec<WorkerId> {
        let others = self.view.ids().filter(|id| !self.retiring.contains(id));
        let surplus = others.skip(self.shrinking.unwrap_or(usize::MAX));
        self.retiring.iter().copied().chain(surplus).collect()
    }

    /// Who left with the latest change that was planned.
    pub fn departed(&self) -> &[WorkerId] {
        &self.departed
    }

    fn forget_who_left(&mut self) {
        self.retiring.retain(|id| self.view.rank_of(*id).is_some());
        let others = self.view.size() - self.retiring.len();
        self.shrinking.take_if(|size| others <= *size);
    }

    /// The job is to have so many workers: newcomers are let in as far as some are missing, and the others wait until then.
    pub fn want(&mut self, size: usize, out: &mut Vec<Summons>) {
        self.wanted = Some(size);
        self.take_next(out);
    }

    /// How many newcomers there is room for.
    pub fn room(&self) -> usize {
        let bounds = [self.wanted, self.shrinking].into_iter().flatten();
        let most = bounds.fold(self.limits.most, usize::min);
        most.saturating_sub(self.view.size() - self.leaving().len())
    }

    /// Whether workers begin no further step: nobody comes any more.
    pub fn is_ending(&self) -> bool {
        self.workers.values().any(|standing| standing.finished.is_some())
    }

    /// Who asks to join, in the order they came.
    pub fn newcomers(&self) -> &[Worker] {
        &self.newcomers
    }

    /// Workers of the view that may come back: those that have not been heard of since this registrar began, and the last
    /// one that a job had. Whoever waits for them decides how long; then they are [gone](Registrar::gone).
    pub fn absent(&self) -> Vec<WorkerId> {
        let absent = self.workers.iter().filter(|(_, standing)| !standing.present);
        absent.map(|(id, _)| *id).collect()
    }

    /// Let those in who wait, as far as there is room, and those go who are asked to, if nobody is done.
    pub(super) fn invitation(&self) -> Option<Proposal> {
        let mut leave = self.leaving();
        let staying = self.view.size() - leave.len();
        let join: Vec<Worker> = self.newcomers.iter().take(self.room()).cloned().collect();
        if staying == 0 || staying + join.len() < self.limits.least {
            // Others were lost since they were asked.
            leave.clear();
        }
        let anybody = !leave.is_empty() || !join.is_empty();
        let (after, change) = (self.view.version, Change::Members { leave, join });
        (anybody && !self.is_ending()).then_some(Proposal { by: None, after, change })
    }

    pub(super) fn check_limits(&self, proposal: &Proposal) -> Result<(), Objection> {
        let Change::Members { leave, join } = &proposal.change else { return Ok(()) };
        let unusable = |reason: &str| Err(Objection::Unusable { reason: reason.to_string() });
        if proposal.by.is_some() && !join.is_empty() {
            return unusable("workers join by asking to; start them");
        }
        let size = self.view.ids().filter(|id| !leave.contains(id)).count() + join.len();
        if size < self.limits.least {
            return Err(Objection::Unusable {
                reason: format!("the job needs {} workers", self.limits.least),
            });
        }
        if self.is_ending() {
            return unusable("workers are done already; let the job end");
        }
        Ok(())
    }

    /// All have promised to stand before a step: those who join are invited there.
    pub(super) fn gather(&mut self, attempt: Attempt, out: &mut Vec<Summons>) {
        let Attempt { proposal, view, ballot, step, .. } = attempt;
        let Change::Members { join, .. } = &proposal.change else { return };
        let mut awaited: Vec<WorkerId> = self.workers.keys().copied().collect();
        for Worker { id, .. } in join {
            let message = ToParticipant::Invite { ballot, step, view: view.clone() };
            out.push(Summons { to: *id, message });
            awaited.push(*id);
        }
        self.gathering = Some(Gathering { proposal, view, ballot, step, awaited });
    }

    pub(super) fn gathered(&mut self, from: WorkerId, ballot: Ballot, out: &mut Vec<Summons>) {
        let Some(gathering) = self.gathering.as_mut().filter(|it| it.ballot == ballot) else {
            return;
        };
        gathering.awaited.retain(|id| *id != from);
        let Some(gathering) = self.gathering.take_if(|it| it.awaited.is_empty()) else { return };
        let Gathering { proposal, view, ballot, step, .. } = gathering;
        let agreed = Agreed { version: view.version, step };
        for id in view.ids() {
            // In force when it says so, which is when the step begins.
            self.workers.entry(id).or_insert(Standing::new(step, self.view.version));
        }
        (self.together, self.since) = (view.version, step);
        let before = std::mem::replace(&mut self.view, view);
        self.departed = before.ids().filter(|id| self.view.rank_of(*id).is_none()).collect();
        self.newcomers.retain(|worker| self.view.rank_of(worker.id).is_none());
        self.forget_who_left();
        self.tell_all(&ToParticipant::Enter { ballot }, out);
        self.decide(&proposal, Ok(agreed), out);
        self.workers.retain(|id, _| self.view.rank_of(*id).is_some());
        self.waiting
            .retain(|proposal| proposal.by.is_none_or(|(id, _)| self.workers.contains_key(&id)));
    }

    /// What is being agreed upon comes to nothing: somebody whom it needs is gone.
    fn abandon(&mut self, out: &mut Vec<Summons>) {
        let (proposal, ballot) = match (self.attempt.take(), self.gathering.take()) {
            (Some(Attempt { proposal, ballot, .. }), _)
            | (_, Some(Gathering { proposal, ballot, .. })) => (proposal, ballot),
            (None, None) => return,
        };
        self.tell_all(&ToParticipant::Abort { ballot }, out);
        if let Change::Members { join, .. } = &proposal.change {
            let joining = join.iter().filter(|it| self.newcomers.iter().any(|n| n.id == it.id));
            out.extend(
                joining.map(|worker| Summons {
                    to: worker.id,
                    message: ToParticipant::Abort { ballot },
                }),
            );
        }
        if proposal.by.is_some_and(|(id, _)| self.workers.contains_key(&id)) {
            self.waiting.push_front(proposal);
        }
    }

    /// A connection is gone: a newcomer's, a worker's, or one of somebody who is no longer in the view.
    pub(super) fn vanished(&mut self, id: WorkerId, out: &mut Vec<Summons>) {
        if self.newcomers.iter().any(|worker| worker.id == id) {
            self.newcomers.retain(|worker| worker.id != id);
            let invited = |proposal: &Proposal| {
                matches!(&proposal.change, Change::Members { join, .. }
                    if join.iter().any(|worker| worker.id == id))
            };
            let attempted = self.attempt.as_ref().is_some_and(|it| invited(&it.proposal));
            if attempted || self.gathering.as_ref().is_some_and(|it| invited(&it.proposal)) {
                self.abandon(out);
            }
            return self.take_next(out);
        }
        if self.workers.values().all(|standing| standing.finished.is_some()) {
            // All have been dismissed.
            self.remove(id);
        } else if self.is_alone(id) {
            self.abandon(out);
            self.workers.values_mut().for_each(|standing| standing.present = false);
        } else if self.workers.contains_key(&id) {
            self.go_on_without(&[id], out);
        }
    }

    /// Whether nobody could go on without this worker, so that it costs nothing to wait whether it comes back. Once: if it
    /// is said to be gone again, it is.
    fn is_alone(&self, id: WorkerId) -> bool {
        self.workers.len() == 1 && self.is_present(id)
    }

    /// A worker says that it cannot reach another. If they are together still, the one that is accused goes: of two that
    /// accuse each other, the later.
    pub(super) fn accused(
        &mut self,
        by: WorkerId,
        worker: WorkerId,
        version: ViewVersion,
        out: &mut Vec<Summons>,
    ) {
        let elastic = !self.view.membership.is_fixed();
        if elastic && self.newcomers.iter().any(|newcomer| newcomer.id == worker) {
            // It holds up all who gather.
            let message = ToParticipant::Without { view: self.view.clone() };
            out.push(Summons { to: worker, message });
            return self.vanished(worker, out);
        }
        if elastic && version >= self.together && by != worker && self.workers.contains_key(&worker)
        {
            self.go_on_without(&[worker], out);
        }
    }

    /// The next view is without these, at once. Those of them who live are told as well.
    fn go_on_without(&mut self, gone: &[WorkerId], out: &mut Vec<Summons>) {
        let change = Change::Members { leave: gone.to_vec(), join: Vec::new() };
        let view = change.apply(&self.view);
        for id in gone {
            self.remove(*id);
        }
        self.abandon(out);
        let (left, needed) = (view.size(), self.limits.least.max(1));
        if left < needed {
            self.dissolved = true;
            return self.tell_all(&ToParticipant::Dissolved { left, needed }, out);
        }
        self.together = view.version;
        self.view = view;
        self.forget_who_left();
        let message = ToParticipant::Without { view: self.view.clone() };
        self.tell_all(&message, out);
        out.extend(gone.iter().map(|to| Summons { to: *to, message: message.clone() }));
        self.dismiss_if_all_finished(out);
        self.take_next(out);
    }

    /// A worker begins no further step, and has posted so many operations in its last. It stays until all are done, or the
    /// others go on without it.
    pub(super) fn finished(&mut self, id: WorkerId, posted: u64, out: &mut Vec<Summons>) {
        let Some(standing) = self.workers.get_mut(&id) else { return };
        if standing.finished.replace(posted).is_some() {
            return;
        }
        let at = standing.place();
        // It will not gather.
        let of_members = self.attempt.as_ref().is_some_and(|it| it.proposal.change.is_of_members());
        if of_members || self.gathering.is_some() {
            self.abandon(out);
        }
        self.tell_all(&ToParticipant::Finished { worker: id, at }, out);
        let farthest = self.workers.values().map(Standing::place).max();
        if let Some(to) = farthest.filter(|to| *to > at) {
            return self.go_beyond(to, out);
        }
        self.dismiss_if_all_finished(out);
        self.take_next(out);
    }

    /// Somebody goes farther than others are going to: it goes there without them.
    pub(super) fn go_beyond(&mut self, to: Place, out: &mut Vec<Summons>) {
        let ends_before = |it: &Standing| it.finished.is_some() && it.place() < to;
        let done = self.workers.iter().filter(|(_, it)| ends_before(it));
        let done: Vec<WorkerId> = done.map(|(id, _)| *id).collect();
        if !done.is_empty() {
            self.go_on_without(&done, out);
        }
    }

    fn dismiss_if_all_finished(&mut self, out: &mut Vec<Summons>) {
        if self.workers.values().all(|standing| standing.finished.is_some()) {
            self.tell_all(&ToParticipant::Dismissed, out);
        }
    }

    /// Whether a worker takes part and is there. If it comes again, its connection before is not known to be gone yet.
    pub fn is_present(&self, id: WorkerId) -> bool {
        self.workers.get(&id).is_some_and(|standing| standing.present)
    }

    fn latest(&self) -> ToParticipant {
        ToParticipant::Latest { view: self.view.clone(), since: self.since }
    }

    /// Somebody comes back who is not needed: the others have gone on, or all are done.
    pub(super) fn turn_away(&self, id: WorkerId, out: &mut Vec<Summons>) {
        let (left, needed) = (self.workers.len(), self.limits.least.max(1));
        let message = match self.view.rank_of(id) {
            Some(_) if self.dissolved => ToParticipant::Dissolved { left, needed },
            Some(_) => ToParticipant::Dismissed,
            None => self.latest(),
        };
        out.push(Summons { to: id, message });
    }

    /// A worker is connected again, with a registrar that may not know what the one before was about.
    pub(super) fn resumed(
        &mut self,
        id: WorkerId,
        version: ViewVersion,
        finished: Option<u64>,
        out: &mut Vec<Summons>,
    ) {
        let Some(standing) = self.workers.get_mut(&id) else { return };
        standing.present = true;
        standing.in_force = version.min(self.view.version);
        out.push(Summons { to: id, message: self.latest() });
        for (other, standing) in &self.workers {
            if standing.finished.is_some() {
                let (worker, at) = (*other, standing.place());
                out.push(Summons { to: id, message: ToParticipant::Finished { worker, at } });
            }
        }
        if let Some(posted) = finished {
            self.finished(id, posted, out);
        }
        self.take_next(out);
    }
}
