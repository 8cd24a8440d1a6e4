//! What happened in a run of membership, and whether it may: which views there were, what each tensor of each step came
//! to, whose contributions are in it, and what survivors were told of the samples of those who are gone.

use super::Mode;
use paceline_job::{Settings, View, ViewVersion, WorkerId};
use paceline_sync::recovery::Account;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::Arc,
};

/// A contribution is a one in the digit of its worker, so that a sum shows who is in it, and how often.
const DIGIT_BITS: u64 = 4;

/// The most workers that a run may have, over all its views.
pub(super) const MOST_WORKERS: u64 = 64 / DIGIT_BITS - 1;

/// What a worker contributes to every element.
pub(super) fn contribution(worker: WorkerId) -> i64 {
    1 << (DIGIT_BITS * worker.0)
}

fn digit(value: i64, worker: WorkerId) -> i64 {
    value >> (DIGIT_BITS * worker.0) & ((1 << DIGIT_BITS) - 1)
}

/// How many contributions are in a sum.
pub(super) fn contributors(value: i64) -> u32 {
    (0..=MOST_WORKERS).map(|id| digit(value, WorkerId(id)) as u32).sum()
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Where tensors are mixed, workers need not have the same.
    mode: Mode,
    views: BTreeMap<ViewVersion, Arc<View>>,
    /// By step, tensor and worker: what it got. Only those who finish are compared: one that is gone may have had more
    /// than it could tell.
    results: BTreeMap<(u64, usize, WorkerId), Vec<i64>>,
    /// By step and tensor: the steps of whose samples it holds what workers made.
    samples: BTreeMap<(u64, usize), Range<u64>>,
    /// The last step that each worker began.
    begun: BTreeMap<WorkerId, u64>,
    /// Parameters after all steps.
    finals: BTreeMap<WorkerId, Vec<Vec<i64>>>,
    /// By step and worker: whom its program takes part with, and in which view's settings.
    companies: BTreeMap<(u64, WorkerId), (Vec<WorkerId>, ViewVersion, Settings)>,
    /// By worker that is gone: the step from which it is missed, as others are told.
    missed: BTreeSet<(WorkerId, u64, WorkerId)>,
    /// Of a worker's samples of a step, whether they are consumed, and who was told so.
    verdicts: BTreeSet<(WorkerId, u64, bool, WorkerId)>,
    /// Workers that were done with all steps.
    pub finished: usize,
    /// Workers that the job went on without.
    pub lost: usize,
    /// Times that a worker recovered.
    pub recoveries: usize,
    /// Tensors in which different ranges have different contributors.
    pub mixed: usize,
    /// Workers that joined.
    pub joined: usize,
    /// Times that a state had to come from another worker.
    pub shared_again: usize,
    /// Views that came after another.
    pub changes: usize,
    /// Times that a worker began a step with others than before, as planned.
    pub planned: usize,
    /// Coordinators that came after another.
    pub restarts: usize,
    /// Steps to which a worker began to listen.
    pub listened: usize,
    /// Of these, those that came after others to which it had listened.
    pub listened_on: usize,
    /// Times that the state of a step that is listened to had to be sent again.
    pub sent_again: usize,
    /// Samples that went back.
    pub returned: usize,
    /// Times that workers left because fewer were wanted.
    pub shrunk: usize,
    /// Wishes for fewer workers during which somebody was lost.
    pub shrunk_by_loss: usize,
    /// Times that somebody was stopped.
    pub stopped: usize,
    /// Workers that were lost because they were silent for too long.
    pub silent: usize,
    /// Coordinators that took the seat of one that was stopped.
    pub elected: usize,
    /// Times that the network fell into two halves.
    pub halves: usize,
    /// Workers that could not reach the coordinator and came to a standstill.
    pub stranded: usize,
    /// The most bytes of results that a worker kept, over the bytes of its parameters, in percent.
    pub retained_percent: usize,
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} workers finished, {} joined, {} were removed; {} changes of the view, {} planned ones met by a worker, {} \
             recoveries, {} tensors with ranges of different contributors, {} steps listened to ({} after others), to {} the state was sent \
             again, {} samples went back, {} states came from a second worker, {} coordinators restarted, {} wishes for \
             fewer workers came true by leaving and {} while somebody was lost; {} were stopped for a while, {} workers lost for their \
             silence, {} coordinators elected, {} networks fell into halves, {} workers stranded; results kept: at most {} % of the \
             parameters",
            self.finished,
            self.joined,
            self.lost,
            self.changes,
            self.planned,
            self.recoveries,
            self.mixed,
            self.listened,
            self.listened_on,
            self.sent_again,
            self.returned,
            self.shared_again,
            self.restarts,
            self.shrunk,
            self.shrunk_by_loss,
            self.stopped,
            self.silent,
            self.elected,
            self.halves,
            self.stranded,
            self.retained_percent,
        )
    }
}

impl Ledger {
    /// Of a run whose tensors are mixed, or summed.
    pub(super) fn new(mode: Mode) -> Ledger {
        Ledger { mode, ..Ledger::default() }
    }

    /// Count another run with this one.
    pub fn add(&mut self, other: &Ledger) {
        for (sum, count) in [
            (&mut self.finished, other.finished),
            (&mut self.lost, other.lost),
            (&mut self.recoveries, other.recoveries),
            (&mut self.mixed, other.mixed),
            (&mut self.joined, other.joined),
            (&mut self.shared_again, other.shared_again),
            (&mut self.changes, other.changes),
            (&mut self.planned, other.planned),
            (&mut self.restarts, other.restarts),
            (&mut self.returned, other.returned),
            (&mut self.listened, other.listened),
            (&mut self.listened_on, other.listened_on),
            (&mut self.sent_again, other.sent_again),
            (&mut self.shrunk, other.shrunk),
            (&mut self.shrunk_by_loss, other.shrunk_by_loss),
            (&mut self.stopped, other.stopped),
            (&mut self.silent, other.silent),
            (&mut self.elected, other.elected),
            (&mut self.halves, other.halves),
            (&mut self.stranded, other.stranded),
        ] {
            *sum += count;
        }
        self.retained_percent = self.retained_percent.max(other.retained_percent);
    }

    pub(super) fn entered(&mut self, view: &Arc<View>) -> Result<(), String> {
        let known = self.views.entry(view.version).or_insert_with(|| view.clone());
        if known != view {
            return Err(format!("two views have version {}: {known:?} and {view:?}", view.version));
        }
        Ok(())
    }

    pub(super) fn result(
        &mut self,
        worker: WorkerId,
        step: u64,
        tensor: usize,
        values: &[i64],
        (samples, adds): (Range<u64>, bool),
    ) -> Result<(), String> {
        for value in values {
            let twice = (0..=MOST_WORKERS).map(WorkerId).find(|id| digit(*value, *id) > 1);
            if let Some(id) = twice {
                return Err(format!("worker {id} is twice in tensor {tensor} of step {step}"));
            }
            if digit(*value, worker) != i64::from(adds) {
                return Err(format!(
                    "worker {worker} has not its own part in tensor {tensor} of step {step}: {value:#x}"
                ));
            }
        }
        self.samples.insert((step, tensor), samples);
        self.results.insert((step, tensor, worker), values.to_vec());
        Ok(())
    }

    /// A program begins a step, and goes by this view.
    pub(super) fn goes_by(&mut self, worker: WorkerId, step: u64, view: &View) {
        let company = (view.ids().collect(), view.version, view.settings.clone());
        self.companies.insert((step, worker), company);
        self.begun.insert(worker, step);
    }

    pub(super) fn recovered(&mut self, by: WorkerId, account: &Account, steps: u64) {
        self.recoveries += 1;
        for worker in &account.gone {
            self.missed.extend(account.since.get(worker).map(|step| (*worker, *step, by)));
            for step in 0..steps {
                let consumed = account.is_consumed(*worker, step);
                self.verdicts.insert((*worker, step, consumed, by));
            }
        }
    }

    pub(super) fn is_done(&mut self, worker: WorkerId, parameters: Vec<Vec<i64>>) {
        self.finished += 1;
        self.finals.insert(worker, parameters);
    }

    /// What only shows when all is over. `joined`: the first step of each worker.
    pub(super) fn check(&mut self, joined: &BTreeMap<WorkerId, u64>) -> Result<(), String> {
        let mut finals = self.finals.iter();
        if let Some((first, parameters)) = finals.next() {
            for (worker, theirs) in finals {
                if theirs != parameters {
                    return Err(format!("workers {first} and {worker} end with other parameters"));
                }
            }
        }
        self.results.retain(|(_, _, worker), _| self.finals.contains_key(worker));
        self.verdicts.retain(|(_, _, _, by)| self.finals.contains_key(by));
        self.changes = self.views.len() - 1;
        self.check_results()?;
        self.check_companies()?;
        self.check_samples(joined)
    }

    fn check_results(&mut self) -> Result<(), String> {
        if matches!(self.mode, Mode::Groups | Mode::Pairs) {
            self.mixed += self
                .results
                .values()
                .filter(|values| values.iter().any(|value| *value != values[0]))
                .count();
            return Ok(());
        }
        let mut before: Option<(u64, usize, WorkerId, &[i64])> = None;
        for ((step, tensor, worker), values) in &self.results {
            let same = before.filter(|(s, t, ..)| (s, t) == (step, tensor));
            if let Some((_, _, other, theirs)) = same
                && theirs != values
            {
                return Err(format!(
                    "tensor {tensor} of step {step} is {theirs:x?} on worker {other} and {values:x?} on worker \
                     {worker}"
                ));
            }
            let mixed = values.iter().any(|value| *value != values[0]);
            self.mixed += usize::from(mixed && same.is_none());
            before = Some((*step, *tensor, *worker, values));
        }
        Ok(())
    }

    /// In one step, all programs share the samples among the same workers, and go by the same settings.
    fn check_companies(&mut self) -> Result<(), String> {
        self.companies.retain(|(_, worker), _| self.finals.contains_key(worker));
        self.missed.retain(|(_, _, by)| self.finals.contains_key(by));
        let companies: Vec<_> = self.companies.iter().collect();
        for pair in companies.windows(2) {
            let (((step, one), ours), ((other_step, other), theirs)) = (pair[0], pair[1]);
            if step == other_step && ours != theirs {
                return Err(format!(
                    "in step {step} worker {one} goes by {ours:?} and worker {other} by {theirs:?}"
                ));
            }
        }
        let missed: Vec<_> = self.missed.iter().collect();
        for pair in missed.windows(2) {
            if pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1 {
                return Err(format!("one worker is missed from two steps on: {pair:?}"));
            }
        }
        Ok(())
    }

    fn check_samples(&mut self, joined: &BTreeMap<WorkerId, u64>) -> Result<(), String> {
        let verdicts: Vec<_> = self.verdicts.iter().collect();
        for pair in verdicts.windows(2) {
            let ((one, step, consumed, by), (other, at, otherwise, and)) = (pair[0], pair[1]);
            if (one, step) == (other, at) && consumed != otherwise {
                return Err(format!(
                    "of samples of worker {one} in step {step} worker {by} and worker {and} are told otherwise"
                ));
            }
        }
        if self.mode == Mode::Groups {
            return Ok(());
        }
        let mut before: Option<(WorkerId, u64)> = None;
        for (worker, step, consumed, by) in &self.verdicts {
            let holds = |at: &u64, tensor: &usize| self.samples[&(*at, *tensor)].contains(step);
            let results = self.results.iter().filter(|((at, tensor, _), _)| holds(at, tensor));
            let mut values = results.flat_map(|(_, values)| values);
            let contributed = values.any(|value| digit(*value, *worker) == 1);
            let is_there = |id: &WorkerId| joined.get(id).is_some_and(|first| first <= step);
            // Nobody who finished may have been there then.
            if !self.finals.keys().any(is_there) || !is_there(worker) {
                continue;
            }
            // What some averaged among themselves may have been lost with them.
            let known = self.mode == Mode::Pairs && *consumed;
            let begun = self.begun.get(worker).is_some_and(|last| step <= last);
            if contributed != *consumed && !(known && begun) {
                let fate = if *consumed { "are lost: they count" } else { "went back" };
                let truth = if contributed { "are in the parameters" } else { "are in nothing" };
                return Err(format!(
                    "samples of worker {worker} in step {step} {fate}, says worker {by}, and {truth}"
                ));
            }
            let first = before.replace((*worker, *step)) != Some((*worker, *step));
            self.returned += usize::from(first && !consumed);
        }
        Ok(())
    }
}
