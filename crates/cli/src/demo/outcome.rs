//! What the demo measures, stage by stage. Data only.

use super::{course::Speed, prediction::Prediction};
use paceline_job::Rate;
use paceline_tune::{Candidate, Decision};
use serde::Serialize;

/// Steps under the same settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// In force.
    pub settings: Candidate,
    pub speed: Speed,
}

/// What was measured.
pub struct Outcome {
    /// A step of one worker without communication, all computing at once.
    pub compute_seconds: f64,
    pub gradient_bytes: usize,
    pub rate: Rate,
    pub slow_rate: Rate,
    pub first_come: Speed,
    pub scheduled: Speed,
    /// With a tuner that watches, before a link slows down.
    pub watched: Span,
    /// After it slowed down and before anything was answered.
    pub slow: Span,
    /// After the tuner's last word; none if it said none.
    pub tuned: Option<Span>,
    pub decisions: Vec<Decision>,
    pub whole: Speed,
    /// With one worker less.
    pub without: Speed,
    /// The longest step after it was killed.
    pub longest_seconds: f64,
    /// With another one.
    pub together: Speed,
    /// From starting it to the end of its first step.
    pub joining_seconds: f64,
    /// The longest step of the others meanwhile.
    pub longest_joining_seconds: f64,
    pub recorded: Prediction,
    pub predicted_first_come: Prediction,
    pub predicted_slow: Prediction,
    pub predicted_tuned: Option<Prediction>,
    pub right: usize,
    pub judged: usize,
    pub steps: u64,
}
