//! What came out of planning, for people and for files.

use paceline_job::{ByteSize, Pass, Plan, Suggestion};
use serde::Serialize;
use std::sync::Arc;

/// A plan, and what it is expected to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// To be written to a file and applied.
    pub plan: Plan,
    /// What was decided, in the order it was decided in.
    pub decisions: Vec<Decision>,
    /// What the runtime cannot apply by itself.
    pub advice: Vec<Advice>,
    /// A step as it is, replayed.
    pub before_ms: f64,
    /// A step with the plan, replayed.
    pub after_ms: f64,
    /// What each engine would have answered by itself, as confirmed.
    pub engines: Vec<(&'static str, f64)>,
    /// What a worker needs, where it is known.
    pub memory: Option<MemoryUse>,
    /// Whole replays that it took.
    pub replays: usize,
    /// What partial replay did instead.
    pub partial: PartialUse,
    /// Engine events in them.
    pub events: u64,
}

/// Partial replay: while some tensors are decided about, only those are played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartialUse {
    /// Tensors that were played by themselves.
    pub tensors: usize,
    /// Steps that were put together from them.
    pub estimates: usize,
    /// Whole replays that were not needed, because those said that nothing is to be gained.
    pub spared: usize,
}

/// Something that the plan changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// What kind of change.
    pub pass: Pass,
    /// In plain words.
    pub what: String,
    /// What a step is expected to take less.
    pub expected_gain_ms: f64,
    /// Whether whoever applies the plan applies it; otherwise the program must be changed, and the plan file has it as a
    /// suggestion.
    pub applied: bool,
}

/// Something that would help and that a plan file cannot do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What kind of change.
    pub pass: Pass,
    /// In plain words, with how to do it.
    pub what: String,
    /// What a step is expected to take less, with the plan applied.
    pub expected_gain_ms: f64,
    /// What it takes for granted, or costs elsewhere.
    pub condition: String,
}

impl Outcome {
    /// What people have to do themselves, for the plan file.
    pub(crate) fn suggestions(
        decisions: &[Decision],
        recomputed: &[Arc<str>],
        advice: &[Advice],
    ) -> Vec<Suggestion> {
        let suggestion = |pass, what: &str, expected_gain_ms: f64| {
            let about = if pass == Pass::Recomputation { recomputed } else { &[] };
            let layers = about.iter().map(ToString::to_string).collect();
            let what = what.to_string();
            // Files are for people too; a microsecond is more than anybody can promise.
            let expected_gain_ms = (expected_gain_ms * 1e3_f64).round() / 1e3;
            Suggestion { pass, what, expected_gain_ms, layers, applied: false }
        };
        let needed = decisions.iter().filter(|decision| !decision.applied);
        let needed = needed.map(|one| suggestion(one.pass, &one.what, one.expected_gain_ms));
        let possible = advice.iter().map(|one| {
            let what = match one.condition.as_str() {
                "none" => one.what.clone(),
                condition => format!("{}; but: {condition}", one.what),
            };
            suggestion(one.pass, &what, one.expected_gain_ms)
        });
        needed.chain(possible).collect()
    }
}

/// What a worker needs at its fullest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryUse {
    /// As the job is.
    pub before: ByteSize,
    /// With what was decided.
    pub after: ByteSize,
    /// What there is.
    pub limit: Option<ByteSize>,
    /// Layers whose forward pass is run again for the backward pass.
    pub recomputed: Vec<Arc<str>>,
    /// Backward passes that make one step.
    pub passes: u32,
}
