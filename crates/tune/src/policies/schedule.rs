//! What is to change at which step, from a file that somebody wrote. It looks at nothing but the number of the step.

use paceline_sync::policy::{Moment, Policy, Wishes};
use serde::Deserialize;

/// One entry: `[[at]]` in the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    /// After this step, counted from 0.
    step: u64,
    batch: Option<u64>,
    learning_rate: Option<f64>,
    size: Option<usize>,
    strategy: Option<String>,
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    at: Vec<At>,
}

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// By step.
    entries: Vec<At>,
}

impl Schedule {
    /// From text such as `[[at]]`, `step = 100`, `batch = 64`, `learning_rate = 2.0`.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        let File { mut at } = toml::from_str(text).map_err(|error| error.to_string())?;
        at.sort_by_key(|entry| entry.step);
        for entry in &at {
            let unusable = entry.batch == Some(0)
                || entry.size == Some(0)
                || entry.learning_rate.is_some_and(|factor| !(factor > 0.0 && factor.is_finite()));
            if unusable {
                return Err(format!("at step {}: numbers must be above 0", entry.step));
            }
        }
        Ok(Schedule { entries: at })
    }
}

impl Policy for Schedule {
    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let due = self.entries.iter().find(|entry| entry.step == moment.step);
        let Some(At { step, batch, learning_rate, size, strategy, mode }) = due.cloned() else {
            return;
        };
        let reason = format!("the schedule says so at step {step}");
        *wishes = Wishes { batch, learning_rate, size, strategy, mode, reason };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_followed_at_their_step() {
        let text =
            "[[at]]\nstep = 9\nsize = 2\n[[at]]\nstep = 5\nbatch = 64\nlearning_rate = 2.0\n";
        let mut schedule = Schedule::parse(text).unwrap();
        let found: Vec<Wishes> = (0..11)
            .map(|step| {
                let mut wishes = Wishes::default();
                schedule.after_step(&Moment { step, ..Moment::default() }, &mut wishes);
                wishes
            })
            .collect();
        assert_eq!(
            (found[5].batch, found[5].learning_rate, found[9].size),
            (Some(64), Some(2.0), Some(2))
        );
        assert_eq!(found.iter().filter(|wishes| **wishes != Wishes::default()).count(), 2);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for text in [
            "nonsense",
            "[[at]]\nbatch = 1\n",
            "[[at]]\nstep = 1\nbatch = 0\n",
            "[[at]]\nstep = 1\nday = 2\n",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
    }
}
