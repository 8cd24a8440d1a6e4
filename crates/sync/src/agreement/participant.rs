//! A worker's side of the agreement: what it has promised, which view is in force, and whether a step may begin. It
//! knows of other workers only what views say.

use super::{
    Agreed, Ballot, Change, Objection, Place, ToParticipant, ToRegistrar, message::is_step,
};
use paceline_job::{Membership, View, ViewVersion, WorkerId};
use std::sync::Arc;

/// Whether a step may begin.
#[derive(Clone, Debug, PartialEq)]
pub enum Begin {
    /// It has begun, under the view that was in force before.
    Same,
    /// It has begun, and from now on this view is in force.
    Enter(Arc<View>),
    /// A change that may come at or before this step is not decided: ask again when something was heard.
    Wait {
        /// The change's view.
        version: ViewVersion,
    },
    /// Workers come or go before this step: finish what is in progress, connect with everybody of this view, say so
    /// ([`Participant::gathered`]) and ask again.
    Gather(Arc<View>),
    /// It must not begin: the coordinator went before it said whether the change is made, and others may know.
    Doubt {
        /// The change's view.
        version: ViewVersion,
        /// From where it would be in force.
        step: u64,
    },
    /// It has begun before; `next` is the first that has not.
    Past {
        /// Begin this one, or a later one.
        next: u64,
    },
    /// The job goes on without this worker.
    Removed,
    /// The job does not go on: too few workers are left.
    Dissolved {
        /// So many.
        left: usize,
        /// So many were wanted.
        needed: usize,
    },
}

/// Why nothing could be proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotPropose {
    /// Wait for the outcome of the proposal before.
    Undecided,
    /// The coordinator is gone: settings stay as they are.
    Disconnected,
}

/// What a message told the worker, besides what it answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Nothing that anybody waits for.
    Nothing,
    /// Something that somebody may wait for: a step may be asked for again, and [`Participant::succeed`],
    /// [`Participant::gathering`] and [`Participant::is_dismissed`] may have an answer.
    Outcome,
    /// What became of this worker's proposal.
    Decision {
        /// Its number.
        proposal: u64,
        /// The outcome.
        outcome: Result<Agreed, Objection>,
    },
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Participant {
    me: WorkerId,
    /// In force.
    view: Arc<View>,
    /// The first step that has not begun.
    next: u64,
    /// Operations of all workers that were posted in the step before.
    posted: u64,
    /// The highest that was heard of.
    ballot: Ballot,
    /// At most one: the registrar prepares the next when this one is in force or has come to nothing.
    pending: Option<Pending>,
    /// In force as soon as nothing that was entered before is in the way; only the latest counts.
    successor: Option<Arc<View>>,
    /// Workers of the view that go no further than that. At most one entry for each.
    finished: Vec<(WorkerId, Place)>,
    /// The farthest that was asked for in spite of them.
    onward: Option<Place>,
    fate: Fate,
    connected: bool,
    proposals: u64,
    undecided: Option<u64>,
}

/// How far a worker's part in the job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Working,
    /// It begins no further step, and stays for the others.
    Finished,
    Dismissed,
    Removed,
    Dissolved {
        left: usize,
        needed: usize,
    },
}

#[derive(Debug)]
struct Pending {
    ballot: Ballot,
    step: u64,
    view: Arc<View>,
    of_members: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Promised,
    Committed,
    /// We have said that we have gathered.
    Gathered,
    /// All have.
    Entered,
}

impl Participant {
    /// The worker `me`, which has begun no step, with this view in force.
    pub fn new(me: WorkerId, view: Arc<View>) -> Participant {
        Participant {
            me,
            view,
            next: 0,
            posted: 0,
            ballot: Ballot::default(),
            pending: None,
            successor: None,
            finished: Vec::new(),
            onward: None,
            fate: Fate::Working,
            connected: true,
            proposals: 0,
            undecided: None,
        }
    }

    /// A worker that asked to join `job`, whose workers it does not know: it is in no view before it is invited.
    pub fn newcomer(me: WorkerId, job: View) -> Participant {
        let nobody = View { workers: Vec::new(), version: ViewVersion(0), ..job };
        Participant::new(me, Arc::new(nobody))
    }

    /// Who it is.
    pub fn me(&self) -> WorkerId {
        self.me
    }

    /// The view in force.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The first step that has not begun.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether the registrar can still be reached.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether nobody needs this worker any more.
    pub fn is_dismissed(&self) -> bool {
        !matches!(self.fate, Fate::Working | Fate::Finished)
    }

    /// Whether the job goes on without this worker.
    pub fn is_removed(&self) -> bool {
        self.fate == Fate::Removed
    }

    /// Whether the job does not go on: how many workers are left, and how many it takes.
    pub fn dissolved(&self) -> Option<(usize, usize)> {
        match self.fate {
            Fate::Dissolved { left, needed } => Some((left, needed)),
            _ => None,
        }
    }

    /// The view that workers gather for: connect with everybody in it. Known as soon as it is agreed that there is one.
    pub fn gathering(&self) -> Option<(Ballot, u64, &Arc<View>)> {
        let agreed = |it: &&Pending| it.of_members && it.stage >= Stage::Committed;
        self.pending.as_ref().filter(agreed).map(|it| (it.ballot, it.step, &it.view))
    }

    /// Begin a step, if nothing speaks against it. Steps go forward and may be left out.
    pub fn begin(&mut self, step: u64, out: &mut Vec<ToRegistrar>) -> Begin {
        match self.fate {
            Fate::Working => {}
            Fate::Dissolved { left, needed } => return Begin::Dissolved { left, needed },
            Fate::Finished | Fate::Dismissed | Fate::Removed => return Begin::Removed,
        }
        if step < self.next || !is_step(step) {
            return Begin::Past { next: self.next };
        }
        let version = ViewVersion(self.view.version.0 + 1);
        let due = match &self.pending {
            Some(pending) if pending.step <= step => pending,
            _ if self.successor.is_some() || self.view.size() == 0 => {
                return Begin::Wait { version };
            }
            _ if self.goes_beyond_others(after(step)) => {
                self.ask_onward(after(step), out);
                return Begin::Wait { version };
            }
            _ => {
                (self.next, self.posted) = (step + 1, 0);
                return Begin::Same;
            }
        };
        let version = due.view.version;
        match (due.stage, due.of_members) {
            (Stage::Promised, _) if !self.connected && self.is_fixed() => {
                Begin::Doubt { version, step: due.step }
            }
            (Stage::Promised | Stage::Gathered, _) => Begin::Wait { version },
            (Stage::Committed, true) => Begin::Gather(due.view.clone()),
            (Stage::Committed, false) | (Stage::Entered, _) => self.enter(step, out),
        }
    }

    /// The caller posts an operation that all workers take part in, each in one as this or in the same. Whoever has said that
    /// it goes no further never will: it is not waited for.
    pub fn post(&mut self, out: &mut Vec<ToRegistrar>) {
        self.posted += 1;
        if self.fate == Fate::Working && self.goes_beyond_others(self.place()) {
            self.ask_onward(self.place(), out);
        }
    }

    /// All of what was in progress here is done, and this worker is connected with everybody of the view to come.
    pub fn gathered(&mut self, out: &mut Vec<ToRegistrar>) {
        let next = self.next;
        if let Some(pending) = &mut self.pending
            && pending.of_members
            && pending.stage == Stage::Committed
        {
            pending.stage = Stage::Gathered;
            out.push(ToRegistrar::Gathered { ballot: pending.ballot, next });
        }
    }

    /// The view that is in force from now on, in the middle of whatever step, because others are gone; if there is one.
    pub fn succeed(&mut self, out: &mut Vec<ToRegistrar>) -> Option<Arc<View>> {
        // What all have entered comes first: its step has to begin.
        if self.pending.as_ref().is_some_and(|pending| pending.stage == Stage::Entered) {
            return None;
        }
        // Only somebody who is no registrar of ours names two views alike.
        let view = self.successor.take().filter(|view| view.version > self.view.version)?;
        self.put_in_force(view.clone(), out);
        Some(view)
    }

    /// Propose that the next view has this change; the number of the proposal.
    pub fn propose(
        &mut self,
        change: Change,
        out: &mut Vec<ToRegistrar>,
    ) -> Result<u64, CannotPropose> {
        if !self.connected {
            return Err(CannotPropose::Disconnected);
        }
        if self.undecided.is_some() {
            return Err(CannotPropose::Undecided);
        }
        self.proposals += 1;
        let (proposal, after) = (self.proposals, self.view.version);
        self.undecided = Some(proposal);
        out.push(ToRegistrar::Propose { proposal, after, change, next: self.next });
        Ok(proposal)
    }

    /// Contact with another worker is lost, which `version` had brought together with this one: the registrar decides
    /// what that means. In an older view than the latest it means that the other is further.
    pub fn lost(&self, worker: WorkerId, version: ViewVersion, out: &mut Vec<ToRegistrar>) {
        out.push(ToRegistrar::Lost { worker, version, next: self.next });
    }

    /// The registrar said something.
    pub fn hear(&mut self, message: ToParticipant, out: &mut Vec<ToRegistrar>) -> Heard {
        match message {
            ToParticipant::Prepare { ballot, step, version, change } => {
                if ballot <= self.ballot {
                    return Heard::Nothing;
                }
                self.ballot = ballot;
                let promises = self.prepare(ballot, step, version, &change);
                let next = self.next;
                out.push(match promises {
                    true => ToRegistrar::Promise { ballot, next },
                    false => ToRegistrar::Refuse { ballot, next },
                });
                // The ballot before, if one was promised, has come to nothing.
                Heard::Outcome
            }
            ToParticipant::Commit { ballot } => self.advance(ballot, Stage::Committed),
            ToParticipant::Enter { ballot } => self.advance(ballot, Stage::Entered),
            ToParticipant::Abort { ballot } => {
                let undone = |it: &mut Pending| {
                    it.ballot == ballot
                        && (it.stage < Stage::Committed
                            || it.of_members && it.stage < Stage::Entered)
                };
                self.pending.take_if(undone).map_or(Heard::Nothing, |_| Heard::Outcome)
            }
            ToParticipant::Decided { proposal, outcome } => {
                match self.undecided.take_if(|number| *number == proposal) {
                    Some(proposal) => Heard::Decision { proposal, outcome },
                    None => Heard::Nothing,
                }
            }
            ToParticipant::Invite { ballot, step, view } => {
                if self.view.size() > 0 || ballot <= self.ballot || view.rank_of(self.me).is_none()
                {
                    return Heard::Nothing;
                }
                self.ballot = ballot;
                self.next = step;
                let (view, stage) = (Arc::new(view), Stage::Committed);
                self.pending = Some(Pending { ballot, step, view, of_members: true, stage });
                Heard::Outcome
            }
            ToParticipant::Without { view } => self.go_on_in(view, out),
            ToParticipant::Latest { view, since } => self.catch_up(view, since, out),
            ToParticipant::Finished { worker, at } => {
                self.finished.retain(|(other, _)| *other != worker);
                if self.view.rank_of(worker).is_some() || self.pending.is_some() {
                    self.finished.push((worker, at));
                }
                // What was asked before was perhaps asked of somebody who did not know this.
                let to = self.onward.take().unwrap_or_default().max(self.place());
                if to > at && self.fate == Fate::Working {
                    self.ask_onward(to, out);
                }
                Heard::Nothing
            }
            ToParticipant::Dismissed => {
                if self.fate == Fate::Finished {
                    self.fate = Fate::Dismissed;
                }
                Heard::Outcome
            }
            ToParticipant::Dissolved { left, needed } => {
                self.fate = Fate::Dissolved { left, needed };
                Heard::Outcome
            }
        }
    }

    /// No further step is begun, and nothing more is posted: what to say. In an elastic job the worker stays until it
    /// [is dismissed](Participant::is_dismissed), for others may need what it has.
    pub fn leave(&mut self) -> ToRegistrar {
        if self.fate == Fate::Working {
            self.fate = Fate::Finished;
        }
        ToRegistrar::Leave { posted: self.posted, next: self.next }
    }

    /// The registrar is gone. A proposal that is undecided stays so.
    pub fn disconnect(&mut self) {
        self.connected = false;
        self.undecided = None;
    }

    /// There is a registrar again, perhaps another one: it says where things stand.
    pub fn reconnect(&mut self, out: &mut Vec<ToRegistrar>) {
        self.connected = true;
        // Nobody may have heard it.
        self.onward = None;
        let finished = (self.fate == Fate::Finished).then_some(self.posted);
        let version = self.successor.as_ref().unwrap_or(&self.view).version;
        out.push(ToRegistrar::Resume { version, finished, next: self.next });
    }

    fn is_fixed(&self) -> bool {
        self.view.membership == Membership::Fixed
    }

    fn place(&self) -> Place {
        Place { next: self.next, posted: self.posted }
    }

    fn goes_beyond_others(&self, to: Place) -> bool {
        let ends =
            |(worker, at): &(WorkerId, Place)| *at < to && self.view.rank_of(*worker).is_some();
        self.finished.iter().any(ends)
    }

    fn ask_onward(&mut self, to: Place, out: &mut Vec<ToRegistrar>) {
        if self.onward.is_none_or(|asked| asked < to) {
            self.onward = Some(to);
            out.push(ToRegistrar::Onward { to, next: self.next });
        }
    }

    fn enter(&mut self, step: u64, out: &mut Vec<ToRegistrar>) -> Begin {
        let Some(Pending { view, .. }) = self.pending.take() else {
            return Begin::Wait { version: self.view.version };
        };
        (self.next, self.posted) = (step + 1, 0);
        self.put_in_force(view.clone(), out);
        if self.fate == Fate::Removed { Begin::Removed } else { Begin::Enter(view) }
    }

    fn put_in_force(&mut self, view: Arc<View>, out: &mut Vec<ToRegistrar>) {
        self.view = view;
        self.finished.retain(|(worker, _)| self.view.rank_of(*worker).is_some());
        self.onward = None;
        if self.view.rank_of(self.me).is_none() {
            self.fate = Fate::Removed;
            return;
        }
        out.push(ToRegistrar::InForce { version: self.view.version, next: self.next });
    }

    fn advance(&mut self, ballot: Ballot, to: Stage) -> Heard {
        match &mut self.pending {
            Some(pending) if pending.ballot == ballot && pending.stage < to => {
                pending.stage = to;
                Heard::Outcome
            }
            _ => Heard::Nothing,
        }
    }

    /// The registrar has decided on a view without somebody.
    fn go_on_in(&mut self, view: View, out: &mut Vec<ToRegistrar>) -> Heard {
        let newest = self.successor.as_ref().unwrap_or(&self.view).version;
        if view.version <= newest {
            return Heard::Nothing;
        }
        // What was prepared or gathered for is over; what all have entered is not.
        self.pending.take_if(|pending| pending.stage < Stage::Entered);
        if view.rank_of(self.me).is_none() {
            // Nothing can be asked of this worker any more, so nothing is in the way.
            self.pending = None;
            self.put_in_force(Arc::new(view), out);
        } else if self.view.size() > 0 || self.pending.is_some() {
            self.successor = Some(Arc::new(view));
        }
        Heard::Outcome
    }

    /// A registrar that may remember less than the one before says which view is the latest.
    fn catch_up(&mut self, view: View, since: u64, out: &mut Vec<ToRegistrar>) -> Heard {
        if self.view.size() == 0 && view.rank_of(self.me).is_none() {
            // What this worker was invited to was not decided, or others have gone on without it: it waits as before.
            self.pending = None;
            return Heard::Outcome;
        }
        // It was decided, and written down, before anybody was told. The same workers may also be left because others are
        // gone: then it is not of the planned step.
        let made =
            |pending: &Pending| pending.step == since && pending.view.version <= view.version;
        match &mut self.pending {
            Some(pending) if made(pending) && (pending.of_members || *pending.view == view) => {
                pending.stage = match pending.of_members {
                    true => Stage::Entered,
                    false => Stage::Committed,
                };
                if pending.view.version < view.version {
                    self.go_on_in(view, out);
                }
                Heard::Outcome
            }
            _ if view.version > self.view.version => self.go_on_in(view, out),
            _ => {
                self.pending.take_if(|pending| pending.stage < Stage::Entered);
                Heard::Outcome
            }
        }
    }

    /// Whether to promise.
    fn prepare(
        &mut self,
        ballot: Ballot,
        step: u64,
        version: ViewVersion,
        change: &Change,
    ) -> bool {
        // A registrar prepares nothing while an agreed view is not in force everywhere.
        if self.pending.as_ref().is_some_and(|pending| pending.stage > Stage::Promised)
            || self.successor.is_some()
        {
            return false;
        }
        self.pending = None;
        let follows = version.0 == self.view.version.0 + 1 && change.check(&self.view).is_ok();
        if step < self.next || !follows {
            return false;
        }
        let view = Arc::new(change.apply(&self.view));
        let (of_members, stage) = (change.is_of_members(), Stage::Promised);
        self.pending = Some(Pending { ballot, step, view, of_members, stage });
        true
    }
}

/// Where a worker is that has begun this step.
fn after(step: u64) -> Place {
    Place { next: step + 1, posted: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{ByteSize, Settings};

    fn change(partition: u64) -> Change {
        Change::Settings(Settings { partition: ByteSize::kib(partition), ..Settings::default() })
    }

    fn prepare(ballot: u64, step: u64, version: u32) -> ToParticipant {
        let (ballot, version) = (Ballot(ballot), ViewVersion(version));
        ToParticipant::Prepare { ballot, step, version, change: change(8) }
    }

    fn participant() -> (Participant, Vec<ToRegistrar>) {
        let view = Arc::new(View::local(2, Settings::default()));
        (Participant::new(WorkerId(0), view), Vec::new())
    }

    #[test]
    fn a_promised_step_waits_for_its_outcome_and_begins_under_the_new_view() {
        let (mut worker, mut said) = participant();
        assert_eq!(worker.begin(0, &mut said), Begin::Same);
        worker.hear(prepare(1, 2, 2), &mut said);
        assert_eq!(said, [ToRegistrar::Promise { ballot: Ballot(1), next: 1 }]);
        assert_eq!(worker.begin(1, &mut said), Begin::Same);
        assert_eq!(worker.begin(2, &mut said), Begin::Wait { version: ViewVersion(2) });
        assert_eq!(
            worker.hear(ToParticipant::Commit { ballot: Ballot(1) }, &mut said),
            Heard::Outcome
        );
        let Begin::Enter(view) = worker.begin(2, &mut said) else { panic!("it was committed") };
        assert_eq!((view.version, view.settings.partition), (ViewVersion(2), ByteSize::kib(8)));
        assert_eq!(said[1], ToRegistrar::InForce { version: ViewVersion(2), next: 3 });
        assert_eq!(worker.begin(2, &mut said), Begin::Past { next: 3 });
    }

    #[test]
    fn a_step_that_was_left_out_is_reached_by_the_next() {
        let (mut worker, mut said) = participant();
        worker.hear(prepare(1, 2, 2), &mut said);
        worker.hear(ToParticipant::Commit { ballot: Ballot(1) }, &mut said);
        assert!(matches!(worker.begin(7, &mut said), Begin::Enter(_)));
        assert_eq!(worker.next(), 8);
    }

    #[test]
    fn a_step_that_has_begun_is_refused() {
        let (mut worker, mut said) = participant();
        worker.begin(4, &mut said);
        worker.hear(prepare(1, 4, 2), &mut said);
        assert_eq!(said, [ToRegistrar::Refuse { ballot: Ballot(1), next: 5 }]);
        assert_eq!(worker.begin(5, &mut said), Begin::Same);
    }

    #[test]
    fn late_and_repeated_messages_change_nothing() {
        let (mut worker, mut said) = participant();
        worker.hear(prepare(3, 1, 2), &mut said);
        worker.hear(ToParticipant::Commit { ballot: Ballot(3) }, &mut said);
        said.clear();
        for old in [prepare(3, 1, 2), prepare(2, 9, 2), ToParticipant::Abort { ballot: Ballot(3) }]
        {
            assert_eq!(worker.hear(old, &mut said), Heard::Nothing);
        }
        worker.hear(ToParticipant::Commit { ballot: Ballot(2) }, &mut said);
        assert_eq!(said, []);
        assert!(matches!(worker.begin(1, &mut said), Begin::Enter(_)));
        // A view that is not the next one is not promised, whatever its ballot.
        said.clear();
        worker.hear(prepare(4, 9, 2), &mut said);
        worker.hear(prepare(5, 9, 4), &mut said);
        assert!(said.iter().all(|it| matches!(it, ToRegistrar::Refuse { .. })), "{said:?}");
    }

    #[test]
    fn a_later_ballot_and_an_abort_end_a_promise() {
        let (mut worker, mut said) = participant();
        worker.hear(prepare(1, 1, 2), &mut said);
        worker.hear(prepare(2, 5, 2), &mut said);
        assert_eq!(worker.begin(1, &mut said), Begin::Same);
        worker.hear(ToParticipant::Abort { ballot: Ballot(2) }, &mut said);
        assert_eq!(worker.begin(5, &mut said), Begin::Same);
    }

    #[test]
    fn without_the_registrar_steps_begin_unless_one_was_promised() {
        let (mut worker, mut said) = participant();
        worker.hear(prepare(1, 2, 2), &mut said);
        worker.disconnect();
        assert_eq!(worker.begin(1, &mut said), Begin::Same);
        let doubt = Begin::Doubt { version: ViewVersion(2), step: 2 };
        assert_eq!(worker.begin(3, &mut said), doubt);
        assert_eq!(worker.propose(change(1), &mut said), Err(CannotPropose::Disconnected));

        let (mut committed, mut said) = participant();
        committed.hear(prepare(1, 2, 2), &mut said);
        committed.hear(ToParticipant::Commit { ballot: Ballot(1) }, &mut said);
        committed.disconnect();
        assert!(matches!(committed.begin(2, &mut said), Begin::Enter(_)));
        assert_eq!(committed.begin(3, &mut said), Begin::Same);
    }

    #[test]
    fn who_goes_no_further_is_not_waited_for_by_whoever_posts_what_it_never_will() {
        let (mut worker, mut said) = participant();
        worker.begin(3, &mut said);
        worker.post(&mut said);
        // The other has posted as much, and is merely done earlier.
        let at = |posted| Place { next: 4, posted };
        let finished = |posted| ToParticipant::Finished { worker: WorkerId(1), at: at(posted) };
        worker.hear(finished(1), &mut said);
        assert_eq!(said, []);
        worker.post(&mut said);
        let onward = |posted| ToRegistrar::Onward { to: at(posted), next: 4 };
        assert_eq!(said, [onward(2)]);

        // It may also be heard when others wait already.
        let (mut waiting, mut said) = participant();
        waiting.begin(3, &mut said);
        waiting.post(&mut said);
        waiting.hear(finished(0), &mut said);
        assert_eq!(said, [onward(1)]);
        let ToRegistrar::Leave { posted: 1, next: 4 } = waiting.leave() else { panic!() };
    }

    #[test]
    fn a_worker_proposes_one_thing_at_a_time_and_hears_of_it_once() {
        let (mut worker, mut said) = participant();
        let first = worker.propose(change(1), &mut said).unwrap();
        assert_eq!(worker.propose(change(2), &mut said), Err(CannotPropose::Undecided));
        let outcome = Err(Objection::Outrun { attempts: 3 });
        let decided = ToParticipant::Decided { proposal: first, outcome: outcome.clone() };
        let heard = worker.hear(decided.clone(), &mut said);
        assert_eq!(heard, Heard::Decision { proposal: first, outcome });
        assert_eq!(worker.hear(decided, &mut said), Heard::Nothing);
        assert_ne!(worker.propose(change(2), &mut said), Ok(first));
    }
}
