//! When to ask a searcher, whether to follow it, and what to make of the result: a state machine that is shown metrics
//! and at times proposes settings. It has no clock; observations are its time. Who searches, and how, it does not know.

mod journal;
mod recollection;
#[cfg(test)]
mod tests;
mod trigger;

pub use trigger::Trigger;

use crate::{
    Action, Candidate, Change, Conditions, Detector, Results, Signal, Space, Surroundings,
    searcher::{Answer, Frequency, Known, Question, Searcher},
    space,
};
use journal::{Entry, Journal};
use paceline_job::StrategyChoice;
use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use recollection::Recollections;
use std::{collections::VecDeque, time::Duration};
use trigger::{Comparison, is_gain, is_news, is_other, is_same, verdict};

/// Tunes one job.
pub struct Tuner {
    searcher: Box<dyn Searcher>,
    trigger: Trigger,
    hosts: Vec<String>,
    /// Strategies to choose from; those the hosts can use if `None`.
    strategies: Option<Vec<StrategyChoice>>,
    results: Results,
    /// Once the job's shape is known.
    space: Option<Space>,
    detector: Detector,
    /// Since conditions last changed.
    known: Vec<Known>,
    /// Before that.
    recollections: Recollections,
    /// What was shown lately under the present settings and conditions, at most the longest window of it.
    shown: VecDeque<Conditions>,
    state: State,
    /// Observations until it looks even so.
    heartbeat: u64,
    /// Observations during which nothing is looked for.
    quiet: u64,
    /// What `quiet` will be after the next mistake.
    back_off: u64,
    /// The gain that was promised in vain last.
    vain: f64,
    /// Seconds of thought that the job's time has not paid for yet.
    debt: f64,
    /// The step up to which it has, and the speed that was thought about last.
    paid: u64,
    considered: f64,
    /// Why the last proposal will not be in force.
    refusal: Option<String>,
    journal: Journal,
}

/// The share of a job's time for which a processor may think about it.
const THOUGHT: f64 = 0.004;
/// A job that is no longer as fast is thought about before its time has paid for that, up to so many of the latest thoughts.
const MOST_UNPAID: u32 = 4;

/// What the tuner is about.
#[derive(Clone, Debug)]
enum State {
    /// Nothing is under way. If something is to be looked at, it says why.
    Watching { since: u64, pending: Option<String> },
    /// What is shown may still be of the time before something changed: wait until it stands still, for `least` observations
    /// more in any case.
    Settling { waited: u64, least: u64, cause: String },
    /// A proposal is not in force yet.
    Awaiting { left: u64, target: Candidate, purpose: Purpose },
    /// It is, for so many observations; measure what it gives.
    Measuring { since: u64, purpose: Purpose },
    /// Nothing will be looked for any more.
    Finished,
}

/// Why something was proposed.
#[derive(Clone, Debug)]
enum Purpose {
    /// To measure it.
    Trial,
    /// It promised a gain over what was before it.
    Proof { from: Candidate, before: Conditions, shown: Box<JobMetrics>, gain: f64 },
    /// To be back at what was before, and to look again later. If what was tried may have been slow because conditions changed, it is
    /// there with the speed from before it: whoever is as fast again as then was not in other conditions.
    Return { cause: String, doubted: Option<Doubted> },
    /// It was measured to be the best, and the search is over.
    Rest,
}

/// A candidate that was measured, and what was in force before it.
#[derive(Clone, Debug)]
struct Doubted {
    candidate: Candidate,
    speed: f64,
    before: f64,
}

impl Tuner {
    /// A tuner that asks this searcher.
    pub fn new(
        searcher: Box<dyn Searcher>,
        surroundings: &Surroundings,
        trigger: Trigger,
    ) -> Tuner {
        let state = match searcher.frequency() {
            Frequency::Never => State::Finished,
            Frequency::Once | Frequency::Always => State::begin(trigger.settle),
        };
        Tuner {
            journal: Journal::new(searcher.name()),
            searcher,
            trigger,
            hosts: surroundings.hosts.clone(),
            strategies: None,
            results: Results::Exact,
            space: None,
            detector: Detector::default(),
            known: Vec::new(),
            recollections: Recollections::default(),
            shown: VecDeque::new(),
            state,
            heartbeat: trigger.heartbeat,
            quiet: 0,
            back_off: trigger.back_off,
            vain: 1.0,
            debt: 0.0,
            paid: 0,
            considered: 0.0,
            refusal: None,
        }
    }

    /// Choose from these strategies only.
    pub fn with_strategies(mut self, strategies: Vec<StrategyChoice>) -> Tuner {
        self.strategies = Some(strategies);
        self
    }

    /// Choose also from strategies that average over steps, if the program says that it may.
    pub fn with_results(mut self, results: Results) -> Tuner {
        self.results = results;
        self
    }

    /// Choose from these candidates only.
    pub fn with_space(mut self, space: Space) -> Tuner {
        self.space = Some(space);
        self
    }

    /// What was decided since this was last asked, the oldest first. Of those that nobody asks for, the latest are kept.
    pub fn take_decisions(&mut self) -> Vec<crate::Decision> {
        self.journal.take()
    }

    /// Whether it will never propose anything again.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    fn go_on(&mut self, seen: &JobMetrics, change: Option<Change>) -> Option<Proposal> {
        match std::mem::replace(&mut self.state, State::idle()) {
            State::Finished => {
                self.state = State::Finished;
                None
            }
            State::Watching { since, pending } => self.watch(seen, change, since, pending),
            State::Settling { waited, least, cause } => {
                let still = waited >= least && self.detector.is_still();
                if still || waited >= self.trigger.most_settle {
                    return self.look(seen, cause);
                }
                self.state = State::Settling { waited: waited + 1, least, cause };
                None
            }
            State::Awaiting { target, left, purpose } => {
                self.wait(seen, change, left, target, purpose);
                None
            }
            State::Measuring { since, purpose } => {
                self.measure(seen, change.is_some(), since, purpose)
            }
        }
    }

    fn watch(
        &mut self,
        seen: &JobMetrics,
        change: Option<Change>,
        since: u64,
        pending: Option<String>,
    ) -> Option<Proposal> {
        let mut pending = pending;
        if let Some(change) = change {
            self.forget(change);
            pending = Some(change.to_string());
            self.heartbeat = self.trigger.heartbeat;
        } else if pending.is_none() && since >= self.heartbeat {
            pending = Some("heartbeat".to_string());
            self.heartbeat = (2 * self.heartbeat).min(self.trigger.slowest_heartbeat);
        }
        match pending {
            Some(cause) if self.quiet == 0 && self.may_think(seen) => {
                self.state = State::Settling { waited: 0, least: 0, cause };
                self.go_on(seen, None)
            }
            pending => {
                self.state = State::Watching { since: since + 1, pending };
                None
            }
        }
    }

    /// Thinking has its share of the job's time, and a little in advance for a job that is no longer as fast as it was.
    fn may_think(&self, seen: &JobMetrics) -> bool {
        let noise = self.detector.noise(Signal::Speed);
        let most = match is_other(self.speed(seen), self.considered, noise) {
            true => MOST_UNPAID * self.searcher.thought(),
            false => Duration::ZERO,
        };
        self.debt <= most.as_secs_f64()
    }

    /// A proposal is not in force yet. What is seen meanwhile is what it will be compared with.
    fn wait(
        &mut self,
        seen: &JobMetrics,
        change: Option<Change>,
        left: u64,
        target: Candidate,
        mut purpose: Purpose,
    ) {
        if Candidate::of(&seen.settings) == target {
            // What was shown until now is of other settings.
            self.forget_speed();
            self.state = State::Measuring { since: 0, purpose };
            return;
        }
        if left == 0 {
            self.give_up(seen, &target);
            return;
        }
        if change.is_some() {
            self.forget_speed();
        }
        if let Purpose::Proof { before, shown, .. } = &mut purpose {
            *before = self.conditions(seen);
            **shown = at_speed(seen, before.speed);
        }
        self.state = State::Awaiting { left: left - 1, target, purpose };
    }

    /// Ask the searcher, and act if it pays.
    fn look(&mut self, seen: &JobMetrics, cause: String) -> Option<Proposal> {
        let present = Candidate::of(&seen.settings);
        let now = self.conditions(seen);
        let speed = now.speed;
        let known = self.all_known(&present, now);
        let space = self.space.get_or_insert_with(|| {
            let all = || space::strategies(&self.hosts, &seen.settings, self.results);
            Space::of(&seen.shape, self.strategies.clone().unwrap_or_else(all))
        });
        let answer = self.searcher.ask(&Question { space, seen, known: &known });
        self.debt += self.searcher.thought().as_secs_f64();
        self.considered = speed;
        let entry = Entry { seen, cause: &cause, candidate: None, predicted: None, measured: None };
        match answer {
            Answer::Try(candidate) => {
                let about = Entry { candidate: Some(&candidate), ..entry };
                self.journal.write(Action::Try, about, 0);
                self.propose(seen, candidate, Purpose::Trial, "it is tried".to_string())
            }
            Answer::Predict { candidate, gain } => {
                let pays = candidate != present && gain >= self.least_gain();
                let other = (candidate != present).then_some(&candidate);
                let about = Entry { candidate: other, predicted: other.map(|_| gain), ..entry };
                if !pays {
                    self.journal.write(Action::Keep, about, self.quiet);
                    let pending = (self.quiet > 0).then_some(cause);
                    self.state = State::Watching { since: 0, pending };
                    return None;
                }
                self.journal.write(Action::Switch, about, 0);
                let reason = format!("{cause}; {:+.1} % expected", 100.0 * (gain - 1.0));
                let shown = Box::new(at_speed(seen, speed));
                let purpose = Purpose::Proof { from: present, before: now, shown, gain };
                self.propose(seen, candidate, purpose, reason)
            }
            Answer::Best(candidate) => {
                let known = known.iter().find(|known| known.candidate == candidate);
                let predicted = known.map(|known| known.speed / speed);
                let about = Entry { candidate: Some(&candidate), predicted, ..entry };
                self.journal.write(Action::Switch, about, 0);
                self.propose(seen, candidate, Purpose::Rest, "the search is over".to_string())
            }
            Answer::Nothing => {
                self.journal.write(Action::Keep, entry, 0);
                if self.searcher.frequency() == Frequency::Once {
                    self.state = State::Finished;
                }
                None
            }
        }
    }

    /// The predicted gain from which on a candidate is followed. Whoever was just wrong has to promise more than was promised in vain,
    /// until the back-off is over.
    fn least_gain(&self) -> f64 {
        let usual = 1.0 + self.trigger.threshold;
        if self.quiet > 0 { usual.max(self.vain) } else { usual }
    }

    fn propose(
        &mut self,
        seen: &JobMetrics,
        target: Candidate,
        purpose: Purpose,
        reason: String,
    ) -> Option<Proposal> {
        let settings = target.settings(&seen.settings);
        let present = target == Candidate::of(&seen.settings);
        let rests = matches!(purpose, Purpose::Rest);
        self.state = match present {
            true if rests => State::Finished,
            true => State::Measuring { since: self.trigger.settle, purpose },
            false => State::Awaiting { left: self.trigger.patience, target, purpose },
        };
        (!present).then_some(Proposal { settings, reason })
    }

    /// A proposal is in force: wait, measure, judge. If conditions change meanwhile, there is no use in waiting longer.
    fn measure(
        &mut self,
        seen: &JobMetrics,
        changed: bool,
        since: u64,
        purpose: Purpose,
    ) -> Option<Proposal> {
        let since = since + 1;
        if since <= self.trigger.settle {
            self.forget_speed();
        }
        let measured = since.saturating_sub(self.trigger.settle);
        let present = Candidate::of(&seen.settings);
        let enough = match &purpose {
            Purpose::Proof { .. } if changed => true,
            Purpose::Proof { before, gain, .. } => {
                let noise = self.detector.noise(Signal::Speed);
                self.trigger.is_clear(*gain, self.speed(seen) / before.speed, noise, measured)
            }
            _ => measured >= self.trigger.window,
        };
        if !enough {
            self.state = State::Measuring { since, purpose };
            return None;
        }
        match purpose {
            Purpose::Rest => {
                self.state = State::Finished;
                None
            }
            Purpose::Return { cause, doubted } => {
                let again = self.speed(seen);
                if let Some(doubted) = doubted.filter(|it| is_same(again, it.before)) {
                    let conditions = Conditions { speed: doubted.speed, ..self.conditions(seen) };
                    self.know(&doubted.candidate, conditions);
                }
                self.state = State::Watching { since: 0, pending: Some(cause) };
                None
            }
            Purpose::Trial => {
                let now = self.conditions(seen);
                self.know(&present, now);
                self.searcher.tell(&at_speed(seen, now.speed));
                self.look(seen, "searching".to_string())
            }
            Purpose::Proof { from, before, shown, gain } => {
                self.judge(seen, from, before, &shown, gain)
            }
        }
    }

    fn judge(
        &mut self,
        seen: &JobMetrics,
        from: Candidate,
        before: Conditions,
        shown: &JobMetrics,
        gain: f64,
    ) -> Option<Proposal> {
        let present = Candidate::of(&seen.settings);
        let after = self.conditions(seen);
        let speed = after.speed;
        let compared = Comparison { before, after };
        let measured = compared.measured();
        let changed = compared.incomparable(|signal| self.detector.noise(signal));
        let doubt = changed.filter(|_| compared.may_be_settings());
        if let Some(change) = changed.filter(|_| doubt.is_none()) {
            let cause = change.to_string();
            let candidate = Some(&present);
            let predicted = Some(gain);
            let entry = Entry { seen, cause: &cause, candidate, predicted, measured: None };
            self.journal.write(Action::Void, entry, 0);
            self.forget(change);
            self.state = State::Settling { waited: 0, least: self.trigger.settle, cause };
            return None;
        }
        match doubt {
            None => {
                self.know(&from, before);
                self.know(&present, after);
                self.searcher.tell(shown);
                self.searcher.tell(&at_speed(seen, speed));
            }
            // Some of what was measured may be of before.
            Some(change) => self.forget(change),
        }
        let action = verdict(gain, measured);
        self.considered = if action == Action::RollBack { before.speed } else { speed };
        if action == Action::Confirm {
            if is_gain(measured, self.detector.noise(Signal::Speed)) {
                self.back_off = self.trigger.back_off;
            }
        } else {
            (self.quiet, self.vain) = (self.back_off, gain);
            self.back_off = (2 * self.back_off).min(self.trigger.most_back_off);
        }
        let back = action == Action::RollBack;
        let entry = Entry {
            seen,
            cause: "measured",
            candidate: Some(if back { &from } else { &present }),
            predicted: Some(gain),
            measured: Some(measured),
        };
        self.journal.write(action, entry, self.quiet);
        self.detector.restart();
        // What was learned may lead to something better.
        let cause =
            doubt.map_or_else(|| "the last was wrong".to_string(), |change| change.to_string());
        if action == Action::Disappoint {
            return self.look(seen, cause);
        }
        if !back {
            return None;
        }
        let reason = format!("{:+.1} % measured: back", 100.0 * (measured - 1.0));
        let doubted = doubt.map(|_| Doubted { candidate: present, speed, before: before.speed });
        self.propose(seen, from, Purpose::Return { cause, doubted }, reason)
    }

    fn give_up(&mut self, seen: &JobMetrics, target: &Candidate) {
        self.quiet = self.back_off;
        self.back_off = (2 * self.back_off).min(self.trigger.most_back_off);
        let refusal = self.refusal.take();
        let cause = refusal.as_deref().unwrap_or("it was not in force in time");
        let candidate = Some(target);
        let entry = Entry { seen, cause, candidate, predicted: None, measured: None };
        self.journal.write(Action::Refused, entry, self.quiet);
        // What spoke for it may still do so when the back-off is over.
        self.state =
            State::Watching { since: 0, pending: Some("the last was refused".to_string()) };
    }

    /// Conditions are others. Whoever was wrong before may be right now, so that a long back-off ends; but not at once,
    /// lest a network that never rests keeps the tuner from resting, too.
    fn forget(&mut self, change: Change) {
        self.known.clear();
        self.searcher.begin();
        self.forget_speed();
        if is_news(&change) {
            self.quiet = self.quiet.min(self.trigger.back_off);
        }
    }

    fn forget_speed(&mut self) {
        self.shown.clear();
        self.detector.restart();
    }

    /// The speed under present settings and conditions.
    fn speed(&self, seen: &JobMetrics) -> f64 {
        self.conditions(seen).speed
    }

    /// Present conditions, and the speed under them: medians of the same observations, lest the speed of one time be compared
    /// by the wires of another.
    fn conditions(&self, seen: &JobMetrics) -> Conditions {
        if self.shown.is_empty() { Conditions::of(seen) } else { Conditions::median(&self.shown) }
    }

    /// What is known of candidates under the present conditions, what is in force included: as measured since they last changed, or
    /// else as it is remembered.
    fn all_known(&mut self, present: &Candidate, now: Conditions) -> Vec<Known> {
        // Before what is in force takes the place of what is remembered of it.
        let recalled = self.recollections.under(now, present, |signal| self.detector.noise(signal));
        if self.detector.is_still() {
            self.know(present, now);
        }
        let mut known = self.known.clone();
        let present = Known { candidate: present.clone(), speed: now.speed };
        for other in std::iter::once(present).chain(recalled) {
            if known.iter().all(|one| one.candidate != other.candidate) {
                known.push(other);
            }
        }
        known
    }

    /// A candidate was measured, under these conditions and at their speed.
    fn know(&mut self, candidate: &Candidate, conditions: Conditions) {
        self.known.retain(|known| known.candidate != *candidate);
        self.known.push(Known { candidate: candidate.clone(), speed: conditions.speed });
        let noise = |signal| self.detector.noise(signal);
        self.recollections.keep(candidate, conditions, noise);
    }
}

impl State {
    fn begin(least: u64) -> State {
        State::Settling { waited: 0, least, cause: "the job begins".to_string() }
    }

    fn idle() -> State {
        State::Watching { since: 0, pending: None }
    }
}

impl Policy for Tuner {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let speed = metrics.speed();
        if !(speed.is_finite() && speed > 0.0) {
            return None;
        }
        let change = self.detector.observe(metrics);
        self.quiet = self.quiet.saturating_sub(1);
        let steps = metrics.step.saturating_sub(std::mem::replace(&mut self.paid, metrics.step));
        self.debt = (self.debt - THOUGHT * steps as f64 / speed).max(0.0);
        if self.shown.len() as u64 == self.trigger.most_window {
            self.shown.pop_front();
        }
        self.shown.push_back(Conditions::of(metrics));
        self.go_on(metrics, change)
    }

    fn refused(&mut self, proposal: &Proposal, reason: &str) {
        let target = Candidate::of(&proposal.settings);
        // What is shown next says what is in force instead.
        if let State::Awaiting { target: awaited, left, .. } = &mut self.state
            && *awaited == target
        {
            *left = 0;
            self.refusal = Some(reason.to_string());
        }
    }
}

/// The same metrics at another speed: that of several observations.
fn at_speed(seen: &JobMetrics, speed: f64) -> JobMetrics {
    let mut seen = seen.clone();
    let factor = seen.speed() / speed;
    if factor.is_finite() {
        seen.workers.iter_mut().for_each(|worker| worker.seconds *= factor);
    }
    seen
}
