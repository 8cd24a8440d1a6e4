//! What can be chosen while a job runs. It knows nothing of what that takes.

use paceline_job::{ByteSize, Settings, StrategyChoice};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Settings that a tuner chooses; the others stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Candidate {
    /// How all-reduces are programmed.
    pub strategy: StrategyChoice,
    /// The largest chunk.
    pub partition: ByteSize,
    /// Bytes in flight.
    pub credit: ByteSize,
}

impl Candidate {
    /// What is in force.
    pub fn of(settings: &Settings) -> Candidate {
        let Settings { strategy, partition, credit, .. } = settings.clone();
        Candidate { strategy, partition, credit }
    }

    /// The same as `base` but for what is chosen.
    pub fn settings(&self, base: &Settings) -> Settings {
        let Candidate { strategy, partition, credit } = self.clone();
        Settings { strategy, partition, credit, ..base.clone() }
    }

    /// How far two are apart in size: in doublings of partition and credit.
    pub(crate) fn distance(&self, other: &Candidate) -> f64 {
        let doublings = |one: ByteSize, other: ByteSize| {
            let [one, other] = [one, other].map(|size| (size.0.max(1) as f64).log2());
            (one - other).abs()
        };
        doublings(self.partition, other.partition) + doublings(self.credit, other.credit)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.strategy, self.partition, self.credit)
    }
}
