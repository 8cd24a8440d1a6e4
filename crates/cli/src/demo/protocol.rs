//! What the demo and its workers say to each other: lines of JSON, orders on a worker's standard input and reports on its
//! standard output. Data only.

use paceline_job::{Rate, Settings};
use paceline_tune::Decision;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a worker is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// See what a step takes without any communication.
    Measure,
    /// Take part in a job.
    Join(Invitation),
    /// Send no faster than this.
    Pace(Option<Rate>),
    /// What all workers do alike from some step on.
    Wish(Wish),
    /// Propose these settings to all; for one worker.
    Propose(Settings),
    /// Let a tuner watch; for one worker.
    Tune,
    /// See how many of the held-out images are recognised.
    Judge,
    /// End.
    Quit,
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// The job's secret, in hexadecimal.
    pub secret: String,
    /// Which rank to take, if not any.
    pub rank: Option<u32>,
    /// Which host to claim to be: workers of the demo stand for machines.
    pub host: String,
    /// Where traces go.
    pub traces: PathBuf,
}

/// What holds between two steps that are the same for all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Layers that the next forward pass needs first go first.
    pub in_order: bool,
    /// Write down what happens.
    pub record: bool,
    /// Leave the job.
    pub end: bool,
}

impl Wish {
    /// As a number that survives a sum with zeros.
    pub fn encode(self) -> f32 {
        let bits = [self.in_order, self.record, self.end];
        bits.iter().rev().fold(0, |number, bit| 2 * number + u8::from(*bit)).into()
    }

    /// From such a number.
    pub fn decode(number: f32) -> Wish {
        let bits = number as u8;
        Wish { in_order: bits & 1 != 0, record: bits & 2 != 0, end: bits & 4 != 0 }
    }
}

/// What a worker tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It has its data.
    Loaded,
    /// What a step takes without any communication.
    Measured {
        /// A fast one of several.
        seconds: f64,
    },
    /// It takes part in the job.
    Joined,
    /// A step is over.
    Step(StepReport),
    /// The tuner decided something.
    Decided(Box<Decision>),
    /// The trace is written.
    Recorded,
    /// It has left the job.
    Left,
    /// What became of the held-out images.
    Judged {
        /// Recognised.
        right: usize,
        /// Shown.
        of: usize,
    },
    /// It cannot go on.
    Failed(String),
}

/// A step, as one worker saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Its number in the job.
    pub step: u64,
    /// From its beginning to that of the next.
    pub seconds: f64,
    /// Of that, standing still until tensors had come.
    pub waited: f64,
    /// This worker's place.
    pub rank: u32,
    /// How many took part.
    pub workers: usize,
    /// Images of all workers, and what the network made of them, in the step before the last.
    pub images: f32,
    /// Mean of all workers.
    pub loss: f32,
    /// Settings that were in force, where they are others than in the step before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<Box<Settings>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_come_through_a_sum_as_they_were() {
        for bits in 0..8_u8 {
            let wish = Wish { in_order: bits & 1 != 0, record: bits & 2 != 0, end: bits & 4 != 0 };
            assert_eq!(Wish::decode(0.0 + wish.encode() + 0.0), wish);
        }
    }
}
