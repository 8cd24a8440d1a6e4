//! The coordinator's side of the agreement: which change is being decided, who has promised, which view is the latest.
//! It says what to send to whom, and never waits for anybody who is gone. Who comes and goes is in `members`.

mod members;

pub use members::Limits;

use super::{
    ATTEMPTS, Agreed, Ballot, Change, MAXIMUM_STEP, Objection, Place, ToParticipant, ToRegistrar,
};
use members::Gathering;
use paceline_job::{Measured, Membership, Rank, Topology, View, ViewVersion, Worker, WorkerId};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// A message and whom it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Summons {
    /// For this worker, if it can be reached.
    pub to: WorkerId,
    /// What to say.
    pub message: ToParticipant,
}

/// What a registrar must not forget. Write it down whenever it has changed, before anything is said: a registrar that is
/// [restored](Registrar::restore) from it contradicts nothing that anybody heard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Minutes {
    /// The latest view that is decided.
    pub view: View,
    /// From this step on it is in force.
    pub since: u64,
    /// Its workers are together since that view.
    pub together: ViewVersion,
    /// Counts registrars, so that ballots of two are never equal.
    pub term: u32,
    /// The next newcomer gets this name.
    pub next_id: u64,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Registrar {
    /// The latest that is decided.
    view: View,
    /// From this step on it is in force; a next one must be later.
    since: u64,
    /// The view since which its workers are together.
    together: ViewVersion,
    /// Whether what the links cost is part of the view, or nobody is going to say.
    ready: bool,
    /// Workers of the view that are not gone.
    workers: BTreeMap<WorkerId, Standing>,
    /// In a fixed job, the first that was lost: it may begin any step under the view it has, so there can be no other.
    lost: Option<Rank>,
    /// The first step that no worker that left had begun.
    left: u64,
    /// At most one for each worker and one of nobody's, in the order they came.
    waiting: VecDeque<Proposal>,
    /// Workers that want to join, in the order they came.
    newcomers: Vec<Worker>,
    /// Workers of the view that are to leave, whoever else does.
    retiring: Vec<WorkerId>,
    /// The last ones of the others leave, until no more than so many are left.
    shrinking: Option<usize>,
    /// Who left with the latest change that was planned.
    departed: Vec<WorkerId>,
    limits: Limits,
    /// More newcomers than it takes for so many workers wait until somebody is missing; without it all are let in.
    wanted: Option<usize>,
    attempt: Option<Attempt>,
    gathering: Option<Gathering>,
    /// Too few are left.
    dissolved: bool,
    ballot: Ballot,
    term: u32,
    next_id: u64,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug)]
struct Standing {
    /// The first step it was not known to have begun.
    next: u64,
    in_force: ViewVersion,
    /// The number of its latest proposal.
    proposal: u64,
    /// Whether it has been heard of since this registrar began.
    present: bool,
    /// Whether it begins no further step; then, how many operations it has posted in its last.
    finished: Option<u64>,
}

impl Standing {
    fn new(next: u64, in_force: ViewVersion) -> Standing {
        Standing { next, in_force, proposal: 0, present: true, finished: None }
    }

    /// As far as is known, unless it has finished: then that is where it ends.
    fn place(&self) -> Place {
        Place { next: self.next, posted: self.finished.unwrap_or(0) }
    }
}

#[derive(Clone, Debug)]
struct Proposal {
    /// Who made it and what it calls it; none for those who wait to join or are asked to leave, and for what whoever runs
    /// the job wants.
    by: Option<(WorkerId, u64)>,
    after: ViewVersion,
    change: Change,
}

impl Proposal {
    fn is_by(&self, worker: WorkerId) -> bool {
        self.by.is_some_and(|(by, _)| by == worker)
    }
}

#[derive(Debug)]
struct Attempt {
    proposal: Proposal,
    view: View,
    ballot: Ballot,
    step: u64,
    count: u32,
    /// Who has not answered.
    awaited: Vec<WorkerId>,
}

impl Registrar {
    /// For the workers of the first view. `measuring`: whether they are about to measure their links, which makes the
    /// second view; nothing is agreed before [`Registrar::measured`] is told.
    pub fn new(view: View, measuring: bool) -> Registrar {
        let next_id = view.ids().map(|id| id.0 + 1).max().unwrap_or(0);
        let together = view.version;
        let minutes = Minutes { view, since: 0, together, term: 0, next_id };
        let mut registrar = Registrar::restore(minutes, Limits::default());
        registrar.ready = !measuring;
        registrar.workers.values_mut().for_each(|standing| standing.present = true);
        registrar
    }

    /// The one that follows another of which only this is known. Nothing is agreed before all workers are connected
    /// again or [known to be gone](Registrar::absent).
    pub fn restore(minutes: Minutes, limits: Limits) -> Registrar {
        let Minutes { view, since, together, term, next_id } = minutes;
        let standing = Standing { present: false, ..Standing::new(0, view.version) };
        Registrar {
            workers: view.ids().map(|id| (id, standing)).collect(),
            lost: None,
            left: 0,
            since,
            together,
            ready: true,
            waiting: VecDeque::new(),
            newcomers: Vec::new(),
            retiring: Vec::new(),
            shrinking: None,
            departed: Vec::new(),
            limits,
            wanted: None,
            attempt: None,
            gathering: None,
            dissolved: false,
            ballot: Ballot(u64::from(term + 1) << 32),
            term: term + 1,
            next_id,
            view,
        }
    }

    /// What must not be forgotten.
    pub fn minutes(&self) -> Minutes {
        Minutes {
            view: self.view.clone(),
            since: self.since,
            together: self.together,
            term: self.term,
            next_id: self.next_id,
        }
    }

    /// The latest view that is decided.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The workers have measured their links and made it part of the view, each by itself, before the first step.
    /// False if nobody was going to.
    pub fn measured(
        &mut self,
        measured: Measured,
        topology: Option<Arc<Topology>>,
        out: &mut Vec<Summons>,
    ) -> bool {
        let due = !std::mem::replace(&mut self.ready, true);
        if due {
            self.view = self.view.with_measured(measured, topology);
            for standing in self.workers.values_mut() {
                standing.in_force = self.view.version;
            }
            self.take_next(out);
        }
        due
    }

    /// From this step on it is in force.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Whoever runs the job wants a change. It takes the place of one that was wanted before and is not looked at yet.
    pub fn propose(&mut self, change: Change, out: &mut Vec<Summons>) -> Result<(), Objection> {
        let proposal = Proposal { by: None, after: self.view.version, change };
        self.check(&proposal)?;
        self.waiting.retain(|other| other.by.is_some());
        self.waiting.push_back(proposal);
        self.take_next(out);
        Ok(())
    }

    /// A worker said something.
    pub fn hear(&mut self, from: WorkerId, message: ToRegistrar, out: &mut Vec<Summons>) {
        if let ToRegistrar::Gathered { ballot, .. } = message {
            return self.gathered(from, ballot, out);
        }
        let Some(standing) = self.workers.get_mut(&from) else {
            let waits = self.newcomers.iter().any(|newcomer| newcomer.id == from);
            if let ToRegistrar::Resume { .. } = message
                && !waits
            {
                self.turn_away(from, out);
            }
            return;
        };
        standing.next = standing.next.max(message.next().min(MAXIMUM_STEP));
        match message {
            // One that comes a second time was answered the first time.
            ToRegistrar::Propose { proposal, .. } if proposal <= standing.proposal => {}
            ToRegistrar::Propose { proposal: number, after, change, .. } => {
                standing.proposal = number;
                let proposal = Proposal { by: Some((from, number)), after, change };
                let deciding = self.attempt.as_ref().map(|attempt| &attempt.proposal);
                let gathering = self.gathering.as_ref().map(|gathering| &gathering.proposal);
                let mut open = self.waiting.iter().chain(deciding).chain(gathering);
                if open.any(|other| other.is_by(from)) {
                    return self.decide(&proposal, Err(Objection::Undecided), out);
                }
                self.waiting.push_back(proposal);
                self.take_next(out);
            }
            ToRegistrar::Promise { ballot, .. } => {
                if let Some(attempt) = self.attempt.as_mut().filter(|it| it.ballot == ballot) {
                    attempt.awaited.retain(|id| *id != from);
                    self.commit_if_promised(out);
                }
            }
            ToRegistrar::Refuse { ballot, .. } => {
                if let Some(attempt) = self.attempt.take_if(|it| it.ballot == ballot) {
                    self.try_again(attempt, out);
                }
            }
            ToRegistrar::InForce { version, .. } => {
                if version > standing.in_force && version <= self.view.version {
                    standing.in_force = version;
                    self.take_next(out);
                }
            }
            ToRegistrar::Leave { posted, .. } => {
                let next = standing.next;
                match self.view.membership {
                    Membership::Fixed => self.leave(from, next, out),
                    Membership::Elastic => self.finished(from, posted, out),
                }
            }
            ToRegistrar::Lost { worker, version, .. } => self.accused(from, worker, version, out),
            ToRegistrar::Onward { to, .. } => self.go_beyond(to, out),
            ToRegistrar::Resume { version, finished, .. } => {
                self.resumed(from, version, finished, out);
            }
            ToRegistrar::Gathered { .. } => {}
        }
    }

    /// A worker's connection is gone. In an elastic job the others go on without it. In a fixed one, if it had not said
    /// that it leaves, it may live and begin any step under the view it has: then all keep the view that they have in
    /// common with it.
    pub fn gone(&mut self, id: WorkerId, out: &mut Vec<Summons>) {
        if self.view.membership == Membership::Elastic {
            return self.vanished(id, out);
        }
        let rank = self.view.rank_of(id);
        if self.remove(id).is_none() {
            return;
        }
        self.lost = self.lost.or(rank);
        if let Some(Attempt { proposal, ballot, .. }) = self.attempt.take() {
            self.tell_all(&ToParticipant::Abort { ballot }, out);
            self.waiting.push_front(proposal);
        }
        self.take_next(out);
    }

    /// A worker will begin no further step, which is as good as a promise, unless it has gone too far already.
    fn leave(&mut self, id: WorkerId, next: u64, out: &mut Vec<Summons>) {
        self.remove(id);
        self.left = self.left.max(next);
        match &mut self.attempt {
            Some(attempt) if attempt.step < next => {
                if let Some(attempt) = self.attempt.take() {
                    self.try_again(attempt, out);
                }
            }
            Some(attempt) => {
                attempt.awaited.retain(|awaited| *awaited != id);
                self.commit_if_promised(out);
            }
            None => {}
        }
        self.take_next(out);
    }

    fn remove(&mut self, id: WorkerId) -> Option<Standing> {
        self.waiting.retain(|proposal| !proposal.is_by(id));
        self.workers.remove(&id)
    }

    /// Look at proposals until one is worth an attempt. Bounded by those that wait.
    fn take_next(&mut self, out: &mut Vec<Summons>) {
        if let Some(worker) = self.lost {
            for proposal in std::mem::take(&mut self.waiting) {
                self.decide(&proposal, Err(Objection::WorkerLost { worker }), out);
            }
            return;
        }
        let settled = |standing: &Standing| {
            standing.present
                && (standing.finished.is_some() || standing.in_force == self.view.version)
        };
        let busy = self.attempt.is_some() || self.gathering.is_some() || self.dissolved;
        if !self.ready || busy || !self.workers.values().all(settled) {
            return;
        }
        // Newcomers are asked about once: they stay, and are asked about again after the next message.
        let mut invitation = self.invitation();
        while let Some(proposal) = self.waiting.pop_front().or_else(|| invitation.take()) {
            let (after, by) = (proposal.after, self.view.version);
            // Whoever runs the job wants it whatever came in between.
            if after != by && proposal.by.is_some() {
                let overtaken = Objection::Overtaken { made_for: after, by };
                self.decide(&proposal, Err(overtaken), out);
            } else if let Err(objection) = self.check(&proposal) {
                self.decide(&proposal, Err(objection), out);
            } else if proposal.change.is_made(&self.view) {
                let agreed = Agreed { version: by, step: self.since };
                self.decide(&proposal, Ok(agreed), out);
            } else if let Some(step) = self.free_step(1) {
                let view = proposal.change.apply(&self.view);
                return self.attempt(proposal, view, step, 1, out);
            } else {
                self.decide(&proposal, Err(Objection::Outrun { attempts: 0 }), out);
            }
        }
    }

    fn check(&self, proposal: &Proposal) -> Result<(), Objection> {
        proposal.change.check(&self.view)?;
        self.check_limits(proposal)
    }

    /// A step for the attempt of this number that nobody is known to have begun, if there is one. What is known of where workers are
    /// may be old the first time.
    fn free_step(&self, count: u32) -> Option<u64> {
        let present = self.workers.values().map(|standing| standing.next);
        let known = present.fold(self.left.max(self.since + 1), u64::max);
        let step = known + (1 << count.saturating_sub(2));
        (count <= ATTEMPTS && step <= MAXIMUM_STEP).then_some(step)
    }

    fn attempt(
        &mut self,
        proposal: Proposal,
        view: View,
        step: u64,
        count: u32,
        out: &mut Vec<Summons>,
    ) {
        self.ballot.0 += 1;
        let ballot = self.ballot;
        let (version, change) = (view.version, proposal.change.clone());
        let awaited = self.workers.keys().copied().collect();
        self.tell_all(&ToParticipant::Prepare { ballot, step, version, change }, out);
        self.attempt = Some(Attempt { proposal, view, ballot, step, count, awaited });
    }

    fn try_again(&mut self, attempt: Attempt, out: &mut Vec<Summons>) {
        let Attempt { proposal, view, ballot, count, .. } = attempt;
        if let Some(step) = self.free_step(count + 1) {
            // Whoever promised is told by the next ballot that this one is over.
            return self.attempt(proposal, view, step, count + 1, out);
        }
        self.tell_all(&ToParticipant::Abort { ballot }, out);
        self.decide(&proposal, Err(Objection::Outrun { attempts: count }), out);
        // Newcomers would be asked for again at once, and workers are too fast: the next message tries anew.
        if proposal.by.is_some() {
            self.take_next(out);
        }
    }

    fn commit_if_promised(&mut self, out: &mut Vec<Summons>) {
        let Some(attempt) = self.attempt.take_if(|attempt| attempt.awaited.is_empty()) else {
            return;
        };
        let ballot = attempt.ballot;
        if attempt.proposal.change.is_of_members() {
            self.tell_all(&ToParticipant::Commit { ballot }, out);
            return self.gather(attempt, out);
        }
        let Attempt { proposal, view, step, .. } = attempt;
        let agreed = Agreed { version: view.version, step };
        (self.view, self.since) = (view, step);
        self.tell_all(&ToParticipant::Commit { ballot }, out);
        self.decide(&proposal, Ok(agreed), out);
    }

    fn decide(
        &self,
        proposal: &Proposal,
        outcome: Result<Agreed, Objection>,
        out: &mut Vec<Summons>,
    ) {
        if let Some((to, proposal)) = proposal.by
            && self.workers.contains_key(&to)
        {
            out.push(Summons { to, message: ToParticipant::Decided { proposal, outcome } });
        }
    }

    /// Whoever is not back yet is told where things stand when it is: before that it would misunderstand.
    fn tell_all(&self, message: &ToParticipant, out: &mut Vec<Summons>) {
        let present = self.workers.iter().filter(|(_, standing)| standing.present);
        out.extend(present.map(|(to, _)| Summons { to: *to, message: message.clone() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{ByteSize, Settings, StrategyChoice};

    fn settings(partition: u64) -> Settings {
        Settings { partition: ByteSize::kib(partition), ..Settings::default() }
    }

    fn propose(number: u64, after: u32, settings: Settings, next: u64) -> ToRegistrar {
        let change = Change::Settings(settings);
        ToRegistrar::Propose { proposal: number, after: ViewVersion(after), change, next }
    }

    fn registrar(size: usize) -> (Registrar, Vec<Summons>) {
        (Registrar::new(View::local(size, Settings::default()), false), Vec::new())
    }

    /// The ballot and step that workers were asked for last.
    fn prepared(said: &[Summons]) -> (Ballot, u64) {
        let asked = said.iter().rev().find_map(|summons| match &summons.message {
            ToParticipant::Prepare { ballot, step, .. } => Some((*ballot, *step)),
            _ => None,
        });
        asked.expect("somebody was asked to prepare")
    }

    fn outcomes(said: &[Summons]) -> Vec<(WorkerId, Result<Agreed, Objection>)> {
        let decided = |summons: &Summons| match &summons.message {
            ToParticipant::Decided { outcome, .. } => Some((summons.to, outcome.clone())),
            _ => None,
        };
        said.iter().filter_map(decided).collect()
    }

    fn promise_all(registrar: &mut Registrar, ids: &[u64], said: &mut Vec<Summons>) {
        let (ballot, step) = prepared(said);
        for id in ids {
            registrar.hear(WorkerId(*id), ToRegistrar::Promise { ballot, next: step - 1 }, said);
        }
    }

    #[test]
    fn a_change_is_made_when_all_have_promised_and_not_before() {
        let (mut registrar, mut said) = registrar(3);
        registrar.hear(WorkerId(1), propose(7, 1, settings(8), 10), &mut said);
        assert_eq!(prepared(&said).1, 11, "one step beyond what is known to have begun");
        promise_all(&mut registrar, &[0, 2, 0], &mut said);
        assert_eq!(registrar.view().version, ViewVersion(1));
        promise_all(&mut registrar, &[1], &mut said);
        assert_eq!(registrar.view().settings, settings(8));
        let agreed = Agreed { version: ViewVersion(2), step: 11 };
        assert_eq!(outcomes(&said), [(WorkerId(1), Ok(agreed))]);
    }

    #[test]
    fn whoever_runs_the_job_may_want_a_change_and_the_last_wish_counts() {
        let (mut registrar, mut said) = registrar(2);
        let wish = |partition| Change::Settings(settings(partition));
        registrar.hear(WorkerId(1), propose(1, 1, settings(8), 10), &mut said);
        registrar.propose(wish(16), &mut said).unwrap();
        registrar.propose(wish(32), &mut said).unwrap();
        promise_all(&mut registrar, &[0, 1], &mut said);
        assert_eq!(registrar.view().settings, settings(8), "the first came first");
        for id in [0, 1] {
            let in_force = ToRegistrar::InForce { version: ViewVersion(2), next: 12 };
            registrar.hear(WorkerId(id), in_force, &mut said);
        }
        promise_all(&mut registrar, &[0, 1], &mut said);
        assert_eq!(registrar.view().settings, settings(32));
        assert!(registrar.since() > 12);
        let none = Settings { credit: ByteSize(0), ..Settings::default() };
        assert!(registrar.propose(Change::Settings(none), &mut said).is_err());
    }

    #[test]
    fn a_refusal_leads_to_a_later_step_at_a_greater_distance_until_it_is_enough() {
        let (mut registrar, mut said) = registrar(2);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        let mut last = prepared(&said).1;
        for count in 2..=u64::from(ATTEMPTS) {
            let (ballot, step) = prepared(&said);
            let next = step + 5;
            registrar.hear(WorkerId(1), ToRegistrar::Refuse { ballot, next }, &mut said);
            let (_, step) = prepared(&said);
            assert_eq!(step, next + (1 << (count - 2)));
            assert!(step > last);
            last = step;
        }
        let (ballot, step) = prepared(&said);
        said.clear();
        registrar.hear(WorkerId(1), ToRegistrar::Refuse { ballot, next: step + 1 }, &mut said);
        assert!(
            said.contains(&Summons { to: WorkerId(1), message: ToParticipant::Abort { ballot } })
        );
        let outrun = Objection::Outrun { attempts: ATTEMPTS };
        assert_eq!(outcomes(&said), [(WorkerId(0), Err(outrun))]);
        assert_eq!(registrar.view().version, ViewVersion(1));
    }

    #[test]
    fn of_two_proposals_for_one_view_the_later_is_told_that_it_lost() {
        let (mut registrar, mut said) = registrar(2);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        registrar.hear(WorkerId(1), propose(1, 1, settings(9), 0), &mut said);
        registrar.hear(WorkerId(1), propose(2, 1, settings(10), 0), &mut said);
        assert_eq!(outcomes(&said), [(WorkerId(1), Err(Objection::Undecided))]);
        promise_all(&mut registrar, &[0, 1], &mut said);
        // It is looked at when the view before is in force everywhere.
        assert_eq!(outcomes(&said).len(), 2);
        for rank in [0, 1].map(WorkerId) {
            let in_force = ToRegistrar::InForce { version: ViewVersion(2), next: 9 };
            registrar.hear(rank, in_force, &mut said);
        }
        let overtaken = Objection::Overtaken { made_for: ViewVersion(1), by: ViewVersion(2) };
        assert_eq!(outcomes(&said)[2], (WorkerId(1), Err(overtaken)));
        assert_eq!(registrar.view().settings, settings(8));
    }

    #[test]
    fn after_a_worker_was_lost_nothing_changes_and_proposers_hear_why() {
        let (mut registrar, mut said) = registrar(3);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        registrar.hear(WorkerId(1), propose(1, 1, settings(9), 0), &mut said);
        promise_all(&mut registrar, &[0, 1], &mut said);
        let (ballot, _) = prepared(&said);
        said.clear();
        registrar.gone(WorkerId(2), &mut said);
        let lost = Err(Objection::WorkerLost { worker: Rank(2) });
        assert_eq!(outcomes(&said), [(WorkerId(0), lost.clone()), (WorkerId(1), lost.clone())]);
        for to in [0, 1].map(WorkerId) {
            assert!(said.contains(&Summons { to, message: ToParticipant::Abort { ballot } }));
        }
        said.clear();
        registrar.hear(WorkerId(1), propose(2, 1, settings(9), 0), &mut said);
        assert_eq!(outcomes(&said), [(WorkerId(1), lost)]);
        assert_eq!(registrar.view().version, ViewVersion(1));
    }

    #[test]
    fn nobody_waits_for_a_worker_that_left() {
        let (mut registrar, mut said) = registrar(3);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        promise_all(&mut registrar, &[0, 1], &mut said);
        registrar.hear(WorkerId(2), ToRegistrar::Leave { posted: 0, next: 1 }, &mut said);
        registrar.gone(WorkerId(2), &mut said);
        assert_eq!(registrar.view().version, ViewVersion(2));
        assert!(!said.iter().any(|summons| summons.to == WorkerId(2)
            && matches!(summons.message, ToParticipant::Commit { .. })));
        // Nor for its proposal, nor until it puts a view in force.
        registrar.hear(
            WorkerId(0),
            ToRegistrar::InForce { version: ViewVersion(2), next: 5 },
            &mut said,
        );
        registrar.hear(WorkerId(1), propose(1, 2, settings(9), 5), &mut said);
        registrar.hear(WorkerId(0), ToRegistrar::Leave { posted: 0, next: 50 }, &mut said);
        registrar.gone(WorkerId(0), &mut said);
        registrar.hear(
            WorkerId(1),
            ToRegistrar::InForce { version: ViewVersion(2), next: 6 },
            &mut said,
        );
        assert_eq!(prepared(&said).1, 51, "beyond what those who left had begun");
        promise_all(&mut registrar, &[1], &mut said);
        assert_eq!(registrar.view().version, ViewVersion(3));
    }

    #[test]
    fn a_worker_that_leaves_beyond_the_step_has_as_good_as_refused_it() {
        let (mut registrar, mut said) = registrar(2);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        registrar.hear(WorkerId(1), ToRegistrar::Leave { posted: 0, next: 30 }, &mut said);
        assert_eq!(prepared(&said).1, 31);
        promise_all(&mut registrar, &[0], &mut said);
        assert_eq!(registrar.view().version, ViewVersion(2));
    }

    #[test]
    fn answers_to_an_earlier_ballot_and_repeated_proposals_count_for_nothing() {
        let (mut registrar, mut said) = registrar(2);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        let (old, step) = prepared(&said);
        registrar.hear(WorkerId(0), ToRegistrar::Promise { ballot: old, next: 0 }, &mut said);
        registrar.hear(WorkerId(1), ToRegistrar::Refuse { ballot: old, next: step + 1 }, &mut said);
        registrar.hear(WorkerId(1), ToRegistrar::Promise { ballot: old, next: 0 }, &mut said);
        registrar.hear(WorkerId(0), ToRegistrar::Refuse { ballot: old, next: 0 }, &mut said);
        registrar.hear(WorkerId(0), propose(1, 1, settings(8), 0), &mut said);
        assert_eq!(registrar.view().version, ViewVersion(1));
        assert_eq!(outcomes(&said), []);
        promise_all(&mut registrar, &[1, 0], &mut said);
        assert_eq!(registrar.view().version, ViewVersion(2));
    }

    #[test]
    fn what_cannot_follow_is_refused_with_the_remedy() {
        let (mut registrar, mut said) = registrar(4);
        let strategy = |name: &str| StrategyChoice(name.to_string());
        let eager = Settings { eager: ByteSize(1), ..Settings::default() };
        let unknown = Settings { strategy: strategy("rong"), ..Settings::default() };
        let serving =
            Settings { strategy: strategy("parameter_server:1:apart"), ..Settings::default() };
        let refused = [
            (settings(0), "at least 64 bytes"),
            (eager, "leave it as it is"),
            (unknown, "unknown strategy `rong`"),
            (serving, "start the job with it"),
        ];
        for (number, (settings, words)) in (1..).zip(refused) {
            said.clear();
            registrar.hear(WorkerId(0), propose(number, 1, settings, 0), &mut said);
            let [(WorkerId(0), Err(objection))] = &outcomes(&said)[..] else { panic!("{said:?}") };
            assert!(objection.to_string().contains(words), "{objection}");
        }
        // What is so already needs no agreement.
        said.clear();
        registrar.hear(WorkerId(0), propose(9, 1, Settings::default(), 0), &mut said);
        let agreed = Agreed { version: ViewVersion(1), step: 0 };
        assert_eq!(outcomes(&said), [(WorkerId(0), Ok(agreed))]);
    }

    #[test]
    fn proposals_wait_until_links_are_measured() {
        let mut registrar = Registrar::new(View::local(2, Settings::default()), true);
        let mut said = Vec::new();
        registrar.hear(WorkerId(1), propose(1, 2, settings(8), 0), &mut said);
        assert_eq!(said, []);
        assert!(registrar.measured(Measured::default(), None, &mut said));
        assert!(!registrar.measured(Measured::default(), None, &mut said), "once");
        assert_eq!(registrar.view().version, ViewVersion(2));
        promise_all(&mut registrar, &[0, 1], &mut said);
        assert_eq!(registrar.view().version, ViewVersion(3));
    }
}
