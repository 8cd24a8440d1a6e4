//! A tuner whose thoughts are timed, and whose decisions are kept. It decides nothing.

use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use paceline_tune::{Decision, Tuner};
use std::time::{Duration, Instant};

/// See the file's first paragraph.
pub struct Timed {
    tuner: Tuner,
    /// Everything that was decided.
    pub decisions: Vec<Decision>,
    /// All thoughts together.
    pub thought: Duration,
    /// The longest of them.
    pub longest: Duration,
}

impl Timed {
    /// Times this tuner.
    pub fn new(tuner: Tuner) -> Timed {
        Timed { tuner, decisions: Vec::new(), thought: Duration::ZERO, longest: Duration::ZERO }
    }
}

impl Policy for Timed {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let begin = Instant::now();
        let proposal = self.tuner.observe(metrics);
        let thought = begin.elapsed();
        self.thought += thought;
        self.longest = self.longest.max(thought);
        self.decisions.extend(self.tuner.take_decisions());
        proposal
    }

    fn refused(&mut self, proposal: &Proposal, reason: &str) {
        self.tuner.refused(proposal, reason);
    }
}
