//! Jobs that cannot be planned.

use paceline_job::ByteSize;
use paceline_replay::ReplayError;

/// A job that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// What was recorded cannot be played: mend the trace, or record it again.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Give more memory, or fewer parameters: no batch is small enough.
    #[error(
        "parameters, gradients and the optimizer's state need {needed} by themselves, and the limit is {limit}",
        needed = .needed.rounded(),
        limit = .limit.rounded()
    )]
    TooLarge {
        /// What is needed.
        needed: ByteSize,
        /// What there is.
        limit: ByteSize,
    },
    /// Record the job with `paceline run --trace`, which notes what layers keep, or leave the limit out.
    #[error(
        "a memory limit needs to know what each layer keeps for its backward pass, and the trace does not say it"
    )]
    UnknownMemory,
}
