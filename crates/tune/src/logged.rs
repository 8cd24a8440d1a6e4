//! A tuner whose decisions are written down as JSON lines, wherever that is. It decides nothing.

use crate::Tuner;
use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use std::io::Write;

/// Writes each decision as a line. What cannot be written is left out: a full disk must not end a job.
pub struct Logged<W> {
    tuner: Tuner,
    log: W,
}

impl<W: Write + Send> Logged<W> {
    /// Write the decisions of `tuner` to `log`.
    pub fn new(tuner: Tuner, log: W) -> Logged<W> {
        Logged { tuner, log }
    }

    fn write(&mut self) {
        for decision in self.tuner.take_decisions() {
            let Ok(mut line) = serde_json::to_string(&decision) else { continue };
            line.push('\n');
            let _ = self.log.write_all(line.as_bytes()).and_then(|()| self.log.flush());
        }
    }
}

impl<W: Write + Send> Policy for Logged<W> {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let proposal = self.tuner.observe(metrics);
        self.write();
        proposal
    }

    fn refused(&mut self, proposal: &Proposal, reason: &str) {
        self.tuner.refused(proposal, reason);
        self.write();
    }
}
