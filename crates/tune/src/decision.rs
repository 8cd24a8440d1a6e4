//! What a tuner did and why, as one line of JSON and as a sentence. It decides nothing.

use crate::{Candidate, Signal, detector::median};
use paceline_sync::metrics::JobMetrics;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Looked, and left it as it is.
    Keep,
    /// Proposed something that has to be tried.
    Try,
    /// Proposed what is predicted, or was measured, to be better.
    Switch,
    /// What was proposed is as fast as it was said to be, or nearly.
    Confirm,
    /// What was proposed is no slower than before, but not as fast as it was said to be.
    Disappoint,
    /// What was proposed is slower: went back.
    RollBack,
    /// Conditions changed before anything could be said about what was proposed.
    Void,
    /// A proposal did not come into force.
    Refused,
}

impl Action {
    /// All there are.
    pub const ALL: [Action; 8] = [
        Action::Keep,
        Action::Try,
        Action::Switch,
        Action::Confirm,
        Action::Disappoint,
        Action::RollBack,
        Action::Void,
        Action::Refused,
    ];

    /// As it stands in a log.
    pub fn word(self) -> &'static str {
        match self {
            Action::Keep => "keep",
            Action::Try => "try",
            Action::Switch => "switch",
            Action::Confirm => "confirm",
            Action::Disappoint => "disappoint",
            Action::RollBack => "roll_back",
            Action::Void => "void",
            Action::Refused => "refused",
        }
    }
}

/// What the job showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Steps a second.
    pub speed: f64,
    /// Bytes a second.
    pub slowest_wire: f64,
    /// Bytes a second.
    pub usual_wire: f64,
    /// Seconds of a step.
    pub slowest_computation: f64,
    /// Seconds of a step.
    pub usual_computation: f64,
}

impl Conditions {
    /// As metrics say.
    pub fn of(metrics: &JobMetrics) -> Conditions {
        Conditions {
            speed: Signal::Speed.of(metrics),
            slowest_wire: Signal::SlowestWire.of(metrics),
            usual_wire: Signal::UsualWire.of(metrics),
            slowest_computation: Signal::SlowestComputation.of(metrics),
            usual_computation: Signal::UsualComputation.of(metrics),
        }
    }

    /// Of several, each number for itself.
    pub(crate) fn median<'a>(all: impl IntoIterator<Item = &'a Conditions> + Clone) -> Conditions {
        let of = |pick: fn(&Conditions) -> f64| median(all.clone().into_iter().map(pick).collect());
        Conditions {
            speed: of(|one| one.speed),
            slowest_wire: of(|one| one.slowest_wire),
            usual_wire: of(|one| one.usual_wire),
            slowest_computation: of(|one| one.slowest_computation),
            usual_computation: of(|one| one.usual_computation),
        }
    }
}

/// One line of a decision log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When.
    pub step: u64,
    /// Who said what would be better.
    pub method: String,
    /// What was done.
    pub action: Action,
    /// Why now.
    pub cause: String,
    /// What the job showed.
    pub conditions: Conditions,
    /// In force when it was decided.
    pub present: Candidate,
    /// What it is about, where that is something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Candidate>,
    /// Predicted or expected gain of the candidate; 1 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_gain: Option<f64>,
    /// What came of it; 1 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_gain: Option<f64>,
    /// Observations during which nothing will be looked for, after this.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub back_off: u64,
}

impl Decision {
    /// What no tuner decides, if anything: a log may say what it likes.
    pub fn problem(&self) -> Option<&'static str> {
        let seen = &self.conditions;
        let wires = [seen.slowest_wire, seen.usual_wire];
        let computation = [seen.slowest_computation, seen.usual_computation];
        let number = |value: f64| (0.0..LARGEST).contains(&value);
        if !wires.into_iter().chain(computation).chain([seen.speed]).all(number) {
            Some("its conditions are below 0, or far too large")
        } else if ![self.predicted_gain, self.measured_gain].into_iter().flatten().all(number) {
            Some("a gain is below 0, or far too large")
        } else {
            None
        }
    }
}

/// Nothing that is measured is as large.
const LARGEST: f64 = 1e18;

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |gain: Option<f64>| match gain {
            Some(gain) => format!("{:+.1} %", 100.0 * (gain - 1.0)),
            None => "an unknown gain".to_string(),
        };
        let (predicted, measured) = (percent(self.predicted_gain), percent(self.measured_gain));
        let candidate = self.candidate.as_ref().unwrap_or(&self.present);
        write!(f, "step {}: ", self.step)?;
        match self.action {
            Action::Keep if self.candidate.is_none() => {
                write!(f, "kept {}: nothing better is known", self.present)
            }
            Action::Keep => {
                write!(f, "kept {}: {candidate} promises only {predicted}", self.present)
            }
            Action::Try => write!(f, "tries {candidate}"),
            Action::Switch => {
                write!(f, "from {} to {candidate}, expecting {predicted}", self.present)
            }
            Action::Confirm => {
                write!(f, "{candidate} brought {measured}, {predicted} expected")
            }
            Action::Disappoint => {
                write!(f, "{candidate} brought {measured} only, {predicted} expected; it stays")
            }
            Action::RollBack => {
                write!(f, "{} brought {measured}; back to {candidate}", self.present)
            }
            Action::Void => write!(f, "nothing can be said of {candidate}"),
            Action::Refused => write!(f, "{candidate} did not come into force"),
        }?;
        write!(f, " ({})", self.cause)?;
        if self.back_off > 0 {
            write!(f, "; looks again after {} observations", self.back_off)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_nobody_measures_are_a_problem() {
        let decision = |speed: f64, gain: f64| -> Decision {
            let present = Candidate::of(&paceline_job::Settings::default());
            Decision {
                step: 1,
                method: "replay".to_string(),
                action: Action::Confirm,
                cause: String::new(),
                conditions: Conditions { speed, ..Conditions::default() },
                present,
                candidate: None,
                predicted_gain: None,
                measured_gain: Some(gain),
                back_off: 0,
            }
        };
        assert_eq!(decision(2.0, 1.1).problem(), None);
        for (speed, gain) in [(-1.0, 1.1), (f64::NAN, 1.1), (2.0, 1e308), (2.0, -1.0)] {
            assert!(decision(speed, gain).problem().is_some(), "{speed} {gain}");
        }
    }

    #[test]
    fn words_are_those_of_logs() {
        for action in Action::ALL {
            assert_eq!(serde_json::to_value(action).unwrap(), action.word());
        }
    }
}
