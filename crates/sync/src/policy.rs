//! Who changes the settings of a running job, as the runtime knows it: something that is shown metrics and at times answers with a
//! proposal. How it comes to one, and how the workers agree on it, is not known here.

use crate::metrics::JobMetrics;
use paceline_job::Settings;

/// Settings that somebody wants to be in force. They are once every worker has promised to switch between the same two steps, and
/// [`JobMetrics::settings`] says so; until then, and if they are refused, those of the view before them are.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// All of them, also those that stay as they are.
    pub settings: Settings,
    /// Why, in one sentence for logs.
    pub reason: String,
}

/// Watches a job and changes its settings.
///
/// One worker asks it, on a thread that stands back behind the training: it may take its time. Metrics that come
/// meanwhile are left out, only the latest are shown next. It may neither sleep nor assume that steps come one by one.
pub trait Policy: Send {
    /// What the job shows now. `None`: leave it as it is.
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal>;

    /// Its last proposal will not be in force, because of `reason`.
    fn refused(&mut self, proposal: &Proposal, reason: &str) {
        let _ = (proposal, reason);
    }
}

/// Leaves everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchanged;

impl Policy for Unchanged {
    fn observe(&mut self, _: &JobMetrics) -> Option<Proposal> {
        None
    }
}
