//! A worker's side of the agreement: what it has promised, which view is in force, and whether a step may begin. It
//! knows no other worker.

use super::{Agreed, Ballot, Change, Objection, ToParticipant, ToRegistrar};
use paceline_job::{View, ViewVersion};
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
    /// Whether a change comes: a step that waited may be asked for again.
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
    /// In force.
    view: Arc<View>,
    /// The first step that has not begun.
    next: u64,
    /// The highest that was heard of.
    ballot: Ballot,
    /// At most one: the registrar prepares the next when this one is in force or has come to nothing.
    pending: Option<Pending>,
    connected: bool,
    proposals: u64,
    undecided: Option<u64>,
}

#[derive(Debug)]
struct Pending {
    ballot: Ballot,
    step: u64,
    view: Arc<View>,
    committed: bool,
}

impl Participant {
    /// A worker that has begun no step, with this view in force.
    pub fn new(view: Arc<View>) -> Participant {
        Participant {
            view,
            next: 0,
            ballot: Ballot::default(),
            pending: None,
            connected: true,
            proposals: 0,
            undecided: None,
        }
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

    /// Begin a step, if nothing speaks against it. Steps go forward and may be left out.
    pub fn begin(&mut self, step: u64, out: &mut Vec<ToRegistrar>) -> Begin {
        if step < self.next || !super::is_step(step) {
            return Begin::Past { next: self.next };
        }
        let due = match &self.pending {
            Some(pending) if pending.step <= step => pending,
            _ => {
                self.next = step + 1;
                return Begin::Same;
            }
        };
        let version = due.view.version;
        match (due.committed, self.connected) {
            (false, true) => Begin::Wait { version },
            (false, false) => Begin::Doubt { version, step: due.step },
            (true, _) => {
                self.view = due.view.clone();
                self.pending = None;
                self.next = step + 1;
                out.push(ToRegistrar::InForce { version, next: self.next });
                Begin::Enter(self.view.clone())
            }
        }
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
            ToParticipant::Commit { ballot } => match &mut self.pending {
                Some(pending) if pending.ballot == ballot => {
                    pending.committed = true;
                    Heard::Outcome
                }
                _ => Heard::Nothing,
            },
            ToParticipant::Abort { ballot } => {
                let ended = self.pending.take_if(|it| it.ballot == ballot && !it.committed);
                ended.map_or(Heard::Nothing, |_| Heard::Outcome)
            }
            ToParticipant::Decided { proposal, outcome } => {
                match self.undecided.take_if(|number| *number == proposal) {
                    Some(proposal) => Heard::Decision { proposal, outcome },
                    None => Heard::Nothing,
                }
            }
        }
    }

    /// What to say before leaving: no further step is begun.
    pub fn leave(&self) -> ToRegistrar {
        ToRegistrar::Leave { next: self.next }
    }

    /// The registrar is gone, for good. A proposal that is undecided stays so.
    pub fn disconnect(&mut self) {
        self.connected = false;
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
        if self.pending.as_ref().is_some_and(|pending| pending.committed) {
            return false;
        }
        self.pending = None;
        let follows = version.0 == self.view.version.0 + 1 && change.check(&self.view).is_ok();
        if step < self.next || !follows {
            return false;
        }
        let view = Arc::new(change.apply(&self.view));
        self.pending = Some(Pending { ballot, step, view, committed: false });
        true
    }
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
        (Participant::new(view), Vec::new())
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
