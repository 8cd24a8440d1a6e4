//! Plan files: decisions that planners write, people read and edit, and `paceline run --plan` applies.

use crate::{Settings, SettingsError};
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, num::NonZeroU32};

/// A plan file (TOML). Sections appear as planners learn to write them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// The settings of the first view.
    pub settings: Settings,
    /// What is sent together.
    #[serde(skip_serializing_if = "Fusion::is_empty")]
    pub fusion: Fusion,
    /// How the batch of a step is worked through.
    #[serde(skip_serializing_if = "Batch::is_whole")]
    pub batch: Batch,
    /// What would help and is not applied: changes of the program, for people to make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Suggestion>,
}

/// How the batch of a step is worked through. `DistributedOptimizer(accumulate=None)` follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Backward passes that make one step, each over its share of the batch.
    pub accumulate: NonZeroU32,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { accumulate: NonZeroU32::MIN }
    }
}

impl Batch {
    /// Whether one pass makes a step.
    pub fn is_whole(&self) -> bool {
        *self == Batch::default()
    }
}

/// A way to make a step shorter, or smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// Tensors are sent together.
    TensorFusion,
    /// Tensors are cut into chunks.
    TensorPartition,
    /// How all-reduces are programmed.
    Strategy,
    /// Bytes that are on their way at once.
    Credit,
    /// What is needed first goes first, and steps overlap.
    Scheduling,
    /// Operators are compiled into one.
    OpFusion,
    /// Forward passes are run again instead of keeping what they made.
    Recomputation,
    /// Several backward passes make one step.
    GradientAccumulation,
    /// Fewer bits for each number.
    MixedPrecision,
}

/// A change of the program that a planner suggests. Nothing applies it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suggestion {
    /// What kind of change.
    pub pass: Pass,
    /// In plain words, with how to do it.
    pub what: String,
    /// What a step is expected to take less with it; below zero if it costs.
    #[serde(default)]
    pub expected_gain_ms: f64,
    /// Layers that it is about, if not all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// Whether the runtime applies it: always false, and there so that readers of the file see it.
    #[serde(default)]
    pub applied: bool,
}

/// Bytes of all names of a plan, four for each besides its own. Plans travel in views, whose messages are bounded.
const MOST_NAME_BYTES: usize = 512 << 10;

/// Tensors that are sent together. The others are sent one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fusion {
    /// Names of tensors, each in one group at most.
    pub groups: Vec<Vec<String>>,
}

impl Fusion {
    /// Whether everything is sent one by one.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How the operation is called that sends so many tensors together, this one first.
    pub fn operation_name(first: &str, count: usize) -> String {
        if count > 1 { format!("{first} and {} more", count - 1) } else { first.to_string() }
    }

    /// Refuse what cannot be sent together.
    pub fn validate(&self) -> Result<(), PlanError> {
        let mut seen = HashSet::new();
        let names = self.groups.iter().flatten();
        if names.clone().map(|name| name.len() + 4).sum::<usize>() > MOST_NAME_BYTES {
            return Err(PlanError::TooManyNames);
        }
        if let Some(name) = names.clone().find(|name| name.chars().any(char::is_control)) {
            return Err(PlanError::StrangeName(name.clone()));
        }
        for group in &self.groups {
            if group.is_empty() {
                return Err(PlanError::EmptyGroup);
            }
            if let Some(name) = group.iter().find(|name| !seen.insert(name.as_str())) {
                return Err(PlanError::RepeatedTensor(name.clone()));
            }
        }
        Ok(())
    }
}

/// A plan file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, or an entry this version does not know: mend the line named.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// An entry that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Take the empty list out of `groups`, or name tensors in it.
    #[error("a group of [fusion] names no tensor")]
    EmptyGroup,
    /// Leave the tensor in one of its groups.
    #[error("[fusion] has tensor `{0}` twice; a tensor is sent once")]
    RepeatedTensor(String),
    /// Leave tensors out of `groups`: they are sent by themselves then.
    #[error(
        "[fusion] names more tensors than 512KiB hold; leave out the largest, which gain least"
    )]
    TooManyNames,
    /// Tensors are named as the model names its parameters.
    #[error("[fusion] has a tensor named {0:?}, with a control character in it")]
    StrangeName(String),
    /// Suggestions are for people: make the change in the program and take the line out.
    #[error(
        "[[advice]] cannot be applied: make the change in the program, and write `applied = false`"
    )]
    AppliedAdvice,
}

impl Plan {
    /// Read a plan and refuse what cannot work.
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        let plan: Plan = toml::from_str(text)?;
        plan.settings.validate()?;
        plan.fusion.validate()?;
        if plan.advice.iter().any(|suggestion| suggestion.applied) {
            return Err(PlanError::AppliedAdvice);
        }
        Ok(plan)
    }

    /// The file's text.
    ///
    /// # Panics
    /// Never: every field has a TOML form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field of a plan has a TOML form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;
    use std::time::Duration;

    #[test]
    fn a_plan_survives_its_file() {
        let mut plan = Plan::default();
        plan.settings.credit = ByteSize::UNLIMITED;
        assert_eq!(Plan::parse(&plan.to_toml()).unwrap(), plan);
        plan.settings.timeout = Duration::MAX;
        assert!(Plan::parse(&plan.to_toml()).is_ok());
    }

    #[test]
    fn tensors_that_are_sent_together_are_named_in_groups() {
        let text = "[fusion]\ngroups = [[\"b.weight\", \"b.bias\"], [\"a.weight\"]]\n";
        let plan = Plan::parse(text).unwrap();
        assert_eq!(plan.fusion.groups[0], ["b.weight", "b.bias"]);
        assert_eq!(Plan::parse(&plan.to_toml()).unwrap(), plan);
        assert!(!Plan::default().to_toml().contains("fusion"));
        for (groups, part) in [
            ("[[]]", "no tensor"),
            ("[[\"a\"], [\"a\"]]", "`a` twice"),
            ("[[\"a\\n\"]]", "control"),
        ] {
            let error = Plan::parse(&format!("[fusion]\ngroups = {groups}\n")).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn passes_over_the_batch_are_counted_and_suggestions_are_kept_apart() {
        let text = "[batch]\naccumulate = 4\n\n[[advice]]\npass = \"recomputation\"\nwhat = \"run `a` again\"\n\
                    expected_gain_ms = -0.5\nlayers = [\"a\"]\napplied = false\n";
        let plan = Plan::parse(text).unwrap();
        assert_eq!(plan.batch.accumulate.get(), 4);
        assert_eq!(plan.advice[0].pass, Pass::Recomputation);
        assert_eq!(Plan::parse(&plan.to_toml()).unwrap(), plan);
        let plain = Plan::default().to_toml();
        assert!(!plain.contains("batch") && !plain.contains("advice"), "{plain}");
        assert!(Plan::parse("[batch]\naccumulate = 0\n").is_err());
        let applied = Plan::parse(&text.replace("false", "true")).unwrap_err().to_string();
        assert!(applied.contains("applied = false"), "{applied}");
    }

    #[test]
    fn quantities_in_a_plan_are_what_people_write() {
        let text = Plan::default().to_toml();
        for line in ["partition = \"1MiB\"\n", "stall_report = \"10s\"\n", "timeout = \"30min\"\n"]
        {
            assert!(text.contains(line), "{text}");
        }
        let settings =
            |lines: &str| Plan::parse(&format!("[settings]\n{lines}\n")).unwrap().settings;
        assert_eq!(settings("stall_report = \"500ms\"").stall_report, Duration::from_millis(500));
        assert_eq!(settings("timeout = 90").timeout, Duration::from_secs(90));
        assert_eq!(settings("partition = 4096").partition, ByteSize::kib(4));
    }

    #[test]
    fn a_quantity_that_makes_no_sense_is_refused_with_its_line_and_an_example() {
        for line in [
            "timeout = \"soon\"",
            "timeout = -1",
            "timeout = 1.5",
            "timeout = { secs = 30, nanos = 0 }",
            "timeout = true",
        ] {
            let error = Plan::parse(&format!("[settings]\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("such as 30s, 500ms"), "{error}");
        }
        let error = Plan::parse("[settings]\npartition = true\n").unwrap_err().to_string();
        assert!(error.contains("such as 4096, 256KiB"), "{error}");
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let error = Plan::parse("[settings]\npartition = \"1B\"\n").unwrap_err().to_string();
        assert!(error.contains("at least 64 bytes"), "{error}");
        let error = Plan::parse("[settings]\ncredits = \"1MiB\"\n").unwrap_err().to_string();
        assert!(error.contains("credits"), "{error}");
    }
}
