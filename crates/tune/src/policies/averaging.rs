//! Few workers average every gradient; many, whose slowest would be waited for in every step, average models. It looks at
//! nothing but how many workers there are.

use super::{Arguments, memory};
use paceline_sync::policy::{Moment, Policy, StateError, Wishes, check_mode};

const NAME: &str = "averaging";

const SYNCHRONOUS: &str = "synchronous";

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Averaging {
    /// From so many workers on.
    at: usize,
    /// How copies are averaged then.
    mode: String,
    /// What it wished for last.
    wished: Option<String>,
}

impl Averaging {
    pub(super) fn from_arguments(arguments: &mut Arguments) -> Result<Averaging, String> {
        let at = arguments.take_number("at")?.ok_or("say from how many workers on: at=16")?;
        let mode = arguments.take("mode")?.unwrap_or_else(|| "averaging".to_string());
        check_mode(&mode).map_err(|error| error.to_string())?;
        Ok(Averaging { at, mode, wished: None })
    }
}

impl Policy for Averaging {
    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let many = moment.size >= self.at;
        let wanted = if many { self.mode.as_str() } else { SYNCHRONOUS };
        let mode = if moment.mode.is_empty() { SYNCHRONOUS } else { &moment.mode };
        // What was wished for is in force a few steps later, or was refused.
        if mode != wanted && self.wished.as_deref() != Some(wanted) {
            self.wished = Some(wanted.to_string());
            wishes.mode = self.wished.clone();
            let (size, at) = (moment.size, self.at);
            wishes.reason = match many {
                true => format!("{size} workers are {at} or more"),
                false => format!("{size} workers are fewer than {at}"),
            };
        }
    }

    fn state(&self) -> Option<String> {
        memory::write(NAME, &self.wished)
    }

    fn restore(&mut self, state: &str) -> Result<(), StateError> {
        self.wished = memory::read(NAME, state, |_: &Option<String>| true)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_the_number_of_workers_and_is_wished_for_once() {
        let mut policy = Averaging { at: 8, mode: "averaging".to_string(), wished: None };
        let moments =
            [(2, ""), (8, ""), (8, ""), (9, "averaging"), (4, "averaging"), (4, "averaging")];
        let many = || Some("averaging".to_string());
        let expected = [None, many(), None, None, Some(SYNCHRONOUS.to_string()), None];
        assert_eq!(moments.map(|moment| wish(&mut policy, moment)), expected);
    }

    #[test]
    fn a_worker_that_came_when_models_were_averaged_ends_it_as_well() {
        let mut policy = Averaging { at: 8, mode: "averaging".to_string(), wished: None };
        assert_eq!(wish(&mut policy, (9, "averaging")), None);
        assert_eq!(wish(&mut policy, (4, "averaging")), Some(SYNCHRONOUS.to_string()));
    }

    #[test]
    fn what_was_wished_for_is_not_wished_for_again_by_those_who_come() {
        let policy = || Averaging { at: 8, mode: "averaging".to_string(), wished: None };
        let (mut first, mut later) = (policy(), policy());
        assert!(wish(&mut first, (8, "")).is_some());
        later.restore(&first.state().unwrap()).unwrap();
        assert_eq!(wish(&mut later, (8, "")), None);
    }

    fn wish(policy: &mut Averaging, (size, mode): (usize, &str)) -> Option<String> {
        let mut wishes = Wishes::default();
        let moment = Moment { size, mode: mode.to_string(), ..Moment::default() };
        policy.after_step(&moment, &mut wishes);
        wishes.mode
    }
}
