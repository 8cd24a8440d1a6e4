//! What is to change at which step, from a file that somebody wrote. It looks at nothing but the number of the step. Where steps
//! are passed over, or it comes in the middle of a job, everything counts that should have happened by then.

use super::memory;
use paceline_job::{ByteSize, Settings};
use paceline_sync::{
    policy::{Moment, Policy, StateError, Wishes, check_mode},
    strategy,
};
use serde::Deserialize;

const NAME: &str = "schedule";

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
    partition: Option<ByteSize>,
    credit: Option<ByteSize>,
    mode: Option<String>,
}

impl At {
    fn check(&self) -> Result<(), String> {
        let is_zero = self.batch == Some(0)
            || self.size == Some(0)
            || self.learning_rate.is_some_and(|factor| !(factor > 0.0 && factor.is_finite()));
        if is_zero {
            return Err("numbers must be above 0".to_string());
        }
        let usual = Settings::default();
        if let Some(name) = self.strategy.as_ref().filter(|name| *name != "auto") {
            strategy::find(name).map_err(|error| error.to_string())?;
        }
        if let Some(mode) = &self.mode {
            check_mode(mode).map_err(|error| error.to_string())?;
        }
        let partition = self.partition.unwrap_or(usual.partition);
        let credit = self.credit.unwrap_or(usual.credit);
        Settings { partition, credit, ..usual }.validate().map_err(|error| error.to_string())
    }

    /// Wish for what is in it, whatever was wished for before.
    fn add_to(self, wishes: &mut Wishes) {
        let At { step: _, batch, learning_rate, size, strategy, partition, credit, mode } = self;
        wishes.batch = batch.or(wishes.batch);
        wishes.learning_rate = learning_rate.or(wishes.learning_rate);
        wishes.size = size.or(wishes.size);
        wishes.strategy = strategy.or(wishes.strategy.take());
        wishes.partition = partition.or(wishes.partition);
        wishes.credit = credit.or(wishes.credit);
        wishes.mode = mode.or(wishes.mode.take());
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    at: Vec<At>,
}

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// By step; of one step in the order of the file.
    entries: Vec<At>,
    /// The last step that was followed.
    followed: Option<u64>,
}

impl Schedule {
    /// From text such as `[[at]]`, `step = 100`, `batch = 64`, `learning_rate = 2.0`.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        let File { mut at } = toml::from_str(text).map_err(|error| error.to_string())?;
        at.sort_by_key(|entry| entry.step);
        for entry in &at {
            entry.check().map_err(|problem| format!("at step {}: {problem}", entry.step))?;
        }
        Ok(Schedule { entries: at, followed: None })
    }
}

impl Policy for Schedule {
    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let is_due = |entry: &&At| {
            entry.step <= moment.step && self.followed.is_none_or(|step| entry.step > step)
        };
        let due: Vec<At> = self.entries.iter().filter(is_due).cloned().collect();
        self.followed = self.followed.max(Some(moment.step));
        if let Some(At { step, .. }) = due.last() {
            wishes.reason = format!("the schedule says so at step {step}");
        }
        for entry in due {
            entry.add_to(wishes);
        }
    }

    fn state(&self) -> Option<String> {
        memory::write(NAME, self.followed)
    }

    fn restore(&mut self, state: &str) -> Result<(), StateError> {
        self.followed = memory::read(NAME, state, |_: &Option<u64>| true)?;
        Ok(())
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
        let found: Vec<Wishes> = (0..11).map(|step| wishes(&mut schedule, step)).collect();
        assert_eq!(
            (found[5].batch, found[5].learning_rate, found[9].size),
            (Some(64), Some(2.0), Some(2))
        );
        assert_eq!(found.iter().filter(|wishes| **wishes != Wishes::default()).count(), 2);
    }

    fn wishes(schedule: &mut Schedule, step: u64) -> Wishes {
        let mut wishes = Wishes::default();
        schedule.after_step(&Moment { step, ..Moment::default() }, &mut wishes);
        wishes
    }

    #[test]
    fn of_several_entries_of_a_step_all_count_and_the_last_word_holds() {
        let text = "[[at]]\nstep = 5\nbatch = 64\npartition = \"64KiB\"\n[[at]]\nstep = 5\nbatch = 32\ncredit = 65536\n";
        let mut schedule = Schedule::parse(text).unwrap();
        let found = wishes(&mut schedule, 5);
        assert_eq!(found.batch, Some(32));
        assert_eq!(
            (found.partition, found.credit),
            (Some(ByteSize::kib(64)), Some(ByteSize::kib(64)))
        );
    }

    #[test]
    fn steps_that_are_passed_over_count_once_also_for_those_who_come_later() {
        let text = "[[at]]\nstep = 3\nbatch = 64\n[[at]]\nstep = 4\nlearning_rate = 2.0\n[[at]]\nstep = 9\nsize = 2\n";
        let mut schedule = Schedule::parse(text).unwrap();
        assert_eq!(wishes(&mut schedule, 0), Wishes::default());
        // Every fifth step.
        let found = wishes(&mut schedule, 5);
        assert_eq!((found.batch, found.learning_rate, found.size), (Some(64), Some(2.0), None));
        let mut later = Schedule::parse(text).unwrap();
        later.restore(&schedule.state().unwrap()).unwrap();
        for one in [&mut schedule, &mut later] {
            assert_eq!(wishes(one, 6), Wishes::default());
            assert_eq!((wishes(one, 10).size, wishes(one, 11).size), (Some(2), None));
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for text in [
            "nonsense",
            "[[at]]\nbatch = 1\n",
            "[[at]]\nstep = 1\nbatch = 0\n",
            "[[at]]\nstep = 1\nday = 2\n",
            "[[at]]\nstep = 1\ncredit = 0\n",
            "[[at]]\nstep = 1\npartition = \"much\"\n",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
    }
}
