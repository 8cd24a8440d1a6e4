//! What happened in a run of agreements, and whether it may: who began which step under which view, what was announced,
//! who could not go on. It knows neither time nor messages' ways.

use paceline_job::{Rank, View, ViewVersion};
use paceline_sync::agreement::{Agreed, Objection, ToParticipant, ToRegistrar};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Ledger {
    /// The view of each step, as the first worker that began it had it.
    steps: BTreeMap<u64, (Rank, Arc<View>)>,
    /// The view of each version.
    views: BTreeMap<ViewVersion, Arc<View>>,
    /// By worker: its view, and the last step it began.
    workers: BTreeMap<Rank, (Arc<View>, Option<u64>)>,
    agreed: BTreeSet<(ViewVersion, u64)>,
    disconnected: BTreeSet<Rank>,
    in_doubt: BTreeSet<Rank>,
    undecided: BTreeSet<Rank>,
    first: Arc<View>,
    /// Changes that came into force somewhere.
    pub changes: usize,
    /// Answers that a step had begun already.
    pub refusals: usize,
    /// How often somebody stood at a step and waited for an outcome.
    pub waits: usize,
    /// Proposals that lost against another.
    pub overtaken: usize,
    /// Ballots that came to nothing.
    pub aborts: usize,
}

impl Ledger {
    pub(super) fn new(first: &Arc<View>) -> Ledger {
        Ledger {
            steps: BTreeMap::new(),
            views: [(first.version, first.clone())].into(),
            workers: BTreeMap::new(),
            agreed: BTreeSet::new(),
            disconnected: BTreeSet::new(),
            in_doubt: BTreeSet::new(),
            undecided: BTreeSet::new(),
            first: first.clone(),
            changes: 0,
            refusals: 0,
            waits: 0,
            overtaken: 0,
            aborts: 0,
        }
    }

    /// Workers that could not know an outcome.
    pub fn doubtful(&self) -> usize {
        self.in_doubt.len()
    }

    /// Proposals whose outcome nobody heard.
    pub fn undecided(&self) -> usize {
        self.undecided.len()
    }

    pub(super) fn begun(
        &mut self,
        rank: Rank,
        step: u64,
        view: &Arc<View>,
        entered: bool,
    ) -> Result<(), String> {
        let (before, last) = self
            .workers
            .insert(rank, (view.clone(), Some(step)))
            .unwrap_or((self.first.clone(), None));
        if last.is_some_and(|last| last >= step) {
            return Err(format!("worker {rank} began step {step} after step {last:?}"));
        }
        if view.version.0 != before.version.0 + u32::from(entered) {
            let (from, to) = (before.version, view.version);
            return Err(format!("worker {rank} went from view {from} to view {to}"));
        }
        let known = self.views.entry(view.version).or_insert_with(|| view.clone());
        if known != view {
            return Err(format!("two views have version {}: {known:?} and {view:?}", view.version));
        }
        let (first, theirs) = self.steps.entry(step).or_insert_with(|| (rank, view.clone()));
        if theirs != view {
            let (theirs, ours) = (theirs.version, view.version);
            return Err(format!(
                "step {step} began under view {theirs} on worker {first} and under view {ours} on worker {rank}"
            ));
        }
        self.changes += usize::from(entered);
        Ok(())
    }

    pub(super) fn proposed(&mut self, rank: Rank) {
        self.undecided.insert(rank);
    }

    pub(super) fn decided(
        &mut self,
        rank: Rank,
        outcome: Result<Agreed, Objection>,
    ) -> Result<(), String> {
        if !self.undecided.remove(&rank) {
            return Err(format!("worker {rank} heard of a proposal it had not made"));
        }
        match outcome {
            Ok(Agreed { version, step }) => _ = self.agreed.insert((version, step)),
            Err(Objection::Overtaken { .. }) => self.overtaken += 1,
            Err(_) => {}
        }
        Ok(())
    }

    pub(super) fn answered(&mut self, message: &ToRegistrar) {
        self.refusals += usize::from(matches!(message, ToRegistrar::Refuse { .. }));
    }

    pub(super) fn summoned(&mut self, message: &ToParticipant) {
        self.aborts += usize::from(matches!(message, ToParticipant::Abort { .. }));
    }

    pub(super) fn disconnected(&mut self, rank: Rank) {
        self.disconnected.insert(rank);
    }

    pub(super) fn doubts(&mut self, rank: Rank) -> Result<(), String> {
        self.in_doubt.insert(rank);
        if self.disconnected.contains(&rank) {
            return Ok(());
        }
        Err(format!("worker {rank} is in doubt, and could ask"))
    }

    pub(super) fn is_in_doubt(&self, rank: Rank) -> bool {
        self.in_doubt.contains(&rank)
    }

    /// What was announced is what came to pass.
    pub(super) fn check(&self) -> Result<(), String> {
        for (version, from) in &self.agreed {
            for (step, (rank, view)) in &self.steps {
                if (view.version >= *version) != (step >= from) {
                    let found = view.version;
                    return Err(format!(
                        "view {version} was announced for step {from}, but worker {rank} began step {step} under \
                         view {found}"
                    ));
                }
            }
        }
        Ok(())
    }
}
