//! Policies in a program: when each of their hooks is called, and what becomes of what they want. What workers tell each other, and
//! so what policies read, is [`Talk`]'s.

mod exact;
mod memory;
mod talk;

pub use memory::MemoryError;
pub use talk::{EXCHANGE, Observed, Remembered, SettingsWish, Talk, URGENCY, VOTE, Wanted};

use crate::{
    metrics::JobMetrics,
    policy::{Policy, Wishes},
};
use paceline_job::{Settings, StrategyChoice};
use std::sync::Arc;

/// Where a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Before the first step.
    Training,
    /// When there is no further step.
    Trained,
    /// An epoch begins.
    Epoch,
    /// An epoch is over.
    EpochOver,
    /// A step begins.
    Step,
    /// A step is over.
    StepOver,
}

/// A worker among others, when a hook is called.
#[derive(Clone, Copy, Debug)]
pub struct Company<'a> {
    /// Its rank.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// In force.
    pub settings: &'a Settings,
}

/// What policies want at once, and not after all have heard of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// This worker is to propose these.
    pub settings: Option<Settings>,
    /// Why this worker is to leave.
    pub leaves: Option<String>,
    /// Why, as policies say.
    pub reasons: Vec<String>,
}

/// What is otherwise from the step on that begins, on all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// How workers stay together: the program's to follow.
    pub mode: Option<String>,
    /// So many workers are wanted.
    pub size: Option<usize>,
}

/// See the file's first paragraph.
pub struct Adaptation {
    policies: Vec<Box<dyn Policy>>,
    talk: Talk,
}

impl Adaptation {
    /// All workers have the same policies in the same order, and begin with the same batch of one worker, if the program has any.
    pub fn new(policies: Vec<Box<dyn Policy>>, batch: Option<u64>) -> Adaptation {
        let talk = Talk::new(policies.iter().flat_map(|policy| policy.metrics()), batch);
        Adaptation { policies, talk }
    }

    /// What workers know.
    pub fn talk(&self) -> &Talk {
        &self.talk
    }

    /// A number of this worker's step; `loss`, or one that a policy reads. Others are passed over.
    pub fn report(&mut self, name: &str, value: f64) {
        self.talk.report(name, value);
    }

    /// See [`Talk::report_norms`].
    pub fn report_norms(&mut self, own: f64, averaged: f64) {
        self.talk.report_norms(own, averaged);
    }

    /// What this worker says of the step that is over, to be summed over all.
    pub fn say(
        &mut self,
        seconds: f64,
        metrics: Option<Arc<JobMetrics>>,
        company: Company<'_>,
    ) -> Vec<f64> {
        self.talk.time(seconds, company.size);
        self.talk.say(company.rank, metrics)
    }

    /// See [`Talk::hear`].
    pub fn hear(&mut self, sums: &[f64]) {
        self.talk.hear(sums);
    }

    /// The next step begins: do what was agreed, on all workers between the same two steps.
    pub fn follow(&mut self) -> Followed {
        let Wanted { batch, learning_rate, size, mode, reason: _ } = self.talk.begin_step();
        if let Some(batch) = batch {
            self.talk.follow_batch(batch);
        }
        self.talk.learning_rate = learning_rate.unwrap_or(self.talk.learning_rate);
        if let Some(mode) = &mode {
            self.talk.mode.clone_from(mode);
        }
        Followed { mode, size }
    }

    /// An epoch begins.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.talk.epoch = epoch;
    }

    /// Call a hook of all policies.
    pub fn call(&mut self, edge: Edge, company: Company<'_>) -> Asked {
        let moment = self.talk.moment(company);
        let mut asked = Asked::default();
        for policy in &mut self.policies {
            let mut wishes = Wishes::default();
            match edge {
                Edge::Training => policy.before_train(&moment, &mut wishes),
                Edge::Trained => policy.after_train(&moment, &mut wishes),
                Edge::Epoch => policy.before_epoch(&moment, &mut wishes),
                Edge::EpochOver => policy.after_epoch(&moment, &mut wishes),
                Edge::Step => {
                    if let Some(vote) = policy.vote(self.talk.own_seconds()) {
                        self.talk.report(VOTE, vote);
                    }
                    asked.leaves = policy.leaves().or(asked.leaves);
                    policy.before_step(&moment, &mut wishes);
                }
                Edge::StepOver => policy.after_step(&moment, &mut wishes),
            }
            let Wishes { strategy, partition, credit, reason, .. } = &mut wishes;
            if strategy.is_some() || partition.is_some() || credit.is_some() {
                let strategy = strategy.take().map(StrategyChoice);
                self.talk.ask(SettingsWish { strategy, partition: *partition, credit: *credit });
            }
            if !reason.is_empty() {
                asked.reasons.push(std::mem::take(reason));
            }
            self.talk.want(wishes);
        }
        asked.settings = self.talk.due(company.rank, company.settings);
        asked
    }

    /// What worker 0 proposed will not be in force.
    pub fn refuse(&mut self, proposal: &crate::policy::Proposal, reason: &str) {
        for policy in &mut self.policies {
            policy.refused(proposal, reason);
        }
    }
}

#[cfg(test)]
mod tests;
