//! What a tuner decided, until somebody asks for it. It decides nothing.

use crate::{Action, Candidate, Conditions, Decision};
use paceline_sync::metrics::JobMetrics;
use std::collections::VecDeque;

/// Decisions that are kept for somebody to ask for.
const MOST: usize = 4096;

/// A bounded list of decisions.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    method: String,
    decisions: VecDeque<Decision>,
}

/// What a decision is about.
#[derive(Clone, Copy)]
pub(super) struct Entry<'e> {
    pub seen: &'e JobMetrics,
    pub cause: &'e str,
    pub candidate: Option<&'e Candidate>,
    pub predicted: Option<f64>,
    pub measured: Option<f64>,
}

impl Journal {
    pub fn new(method: &str) -> Journal {
        Journal { method: method.to_string(), decisions: VecDeque::new() }
    }

    pub fn write(&mut self, action: Action, entry: Entry<'_>, back_off: u64) {
        if self.decisions.len() == MOST {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision {
            step: entry.seen.step,
            method: self.method.clone(),
            action,
            cause: entry.cause.to_string(),
            conditions: Conditions::of(entry.seen),
            present: Candidate::of(&entry.seen.settings),
            candidate: entry.candidate.cloned(),
            predicted_gain: entry.predicted,
            measured_gain: entry.measured,
            back_off,
        });
    }

    pub fn take(&mut self) -> Vec<Decision> {
        self.decisions.drain(..).collect()
    }
}
