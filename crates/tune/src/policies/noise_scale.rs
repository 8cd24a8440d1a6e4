//! Batches that grow with the noise of the gradient (McCandlish et al.), and learning rates that follow them: while samples
//! mostly agree, small batches learn as much from fewer of them; when they disagree, large ones lose nothing. It does not know
//! how fast the job is.

use super::{Arguments, memory};
use paceline_sync::policy::{Moment, Policy, StateError, Wishes};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

const NAME: &str = "noise_scale";

/// Steps between two changes: estimates settle meanwhile.
const EVERY: u64 = 50;

/// How the learning rate follows the batch, which is so many times the one that the program began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// By what a larger batch gains (AdaScale): between 1 and as many times, as the noise has it, and anew in every step.
    AdaScale,
    /// As many times.
    Linear,
    /// The square root of it: for Adam and its relatives.
    SquareRoot,
}

impl Rule {
    /// The factor on the program's learning rate, with `times` its batch of `base` samples. A moment without statistics has
    /// none by AdaScale's.
    pub fn factor(self, times: f64, base: f64, moment: &Moment) -> Option<f64> {
        match self {
            Rule::Linear => Some(times),
            Rule::SquareRoot => Some(times.sqrt()),
            Rule::AdaScale => gain(times, base, moment),
        }
    }
}

impl FromStr for Rule {
    type Err = ();

    fn from_str(text: &str) -> Result<Rule, ()> {
        match text {
            "adascale" => Ok(Rule::AdaScale),
            "linear" => Ok(Rule::Linear),
            "sqrt" => Ok(Rule::SquareRoot),
            _ => Err(()),
        }
    }
}

/// How many steps with a batch of `base` samples one step with `times` as many is worth: from 1, where there is no noise, to
/// `times`, where there is nothing else. Never less than one step.
pub(super) fn gain(times: f64, base: f64, moment: &Moment) -> Option<f64> {
    let (squared, variance) = (moment.squared_norm?.max(0.0), moment.variance?.max(0.0) / base);
    let small = variance + squared;
    (small > 0.0).then(|| small / (variance / times + squared))
}

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct NoiseScale {
    most: u64,
    rule: Rule,
    every: u64,
    memory: Memory,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    /// A worker's batch, and that of all, when it was first seen.
    base: Option<(u64, f64)>,
    /// The step of the last change.
    changed: u64,
}

impl NoiseScale {
    /// Batches of up to `most` samples for a worker.
    pub fn new(most: u64, rule: Rule) -> NoiseScale {
        NoiseScale { most, rule, every: EVERY, memory: Memory::default() }
    }

    pub(super) fn from_arguments(arguments: &mut Arguments) -> Result<NoiseScale, String> {
        let most = arguments
            .take_number("most")?
            .ok_or("say how large a worker's batch may be: most=256")?;
        let rule = arguments.take("rule")?.unwrap_or(Rule::AdaScale);
        let every = arguments.take_number("every")?.unwrap_or(EVERY);
        Ok(NoiseScale { every, ..NoiseScale::new(most, rule) })
    }

    /// The batch to use: the base doubled as often as the noise scale has room for it.
    fn batch(&self, base: u64, moment: &Moment) -> Option<u64> {
        let wanted = moment.noise_scale()? / moment.size as f64;
        let mut batch = base;
        while batch * 2 <= self.most && (batch * 2) as f64 <= wanted {
            batch *= 2;
        }
        Some(batch)
    }
}

impl Policy for NoiseScale {
    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let (Some(now), Some(all)) = (moment.batch, moment.global_batch()) else { return };
        let (base, base_all) = *self.memory.base.get_or_insert((now, all as f64));
        let mut batch = now;
        if moment.step >= self.memory.changed.saturating_add(self.every)
            && let Some(better) = self.batch(base, moment).filter(|better| *better != now)
        {
            self.memory.changed = moment.step;
            batch = better;
            let scale = moment.noise_scale().unwrap_or_default();
            wishes.reason = format!("the noise scale is {scale:.0} samples");
            wishes.batch = Some(batch);
        }
        let times = (batch * moment.size as u64) as f64 / base_all;
        let factor = self.rule.factor(times, base_all, moment);
        // AdaScale's moves a little in every step; the others only with the batch.
        let moved = |factor: &f64| (factor / moment.learning_rate - 1.0).abs() > 1e-3;
        wishes.learning_rate = factor.filter(moved);
    }

    fn state(&self) -> Option<String> {
        memory::write(NAME, &self.memory)
    }

    fn restore(&mut self, state: &str) -> Result<(), StateError> {
        self.memory = memory::read(NAME, state, |memory: &Memory| memory::is_base(&memory.base))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(step: u64, batch: u64, squared: f64, variance: f64) -> Moment {
        Moment {
            step,
            size: 4,
            batch: Some(batch),
            learning_rate: 1.0,
            squared_norm: Some(squared),
            variance: Some(variance),
            ..Moment::default()
        }
    }

    fn wishes(policy: &mut NoiseScale, moment: &Moment) -> Wishes {
        let mut wishes = Wishes::default();
        policy.after_step(moment, &mut wishes);
        wishes
    }

    #[test]
    fn batches_double_up_to_the_noise_scale_and_no_further() {
        let mut policy = NoiseScale::new(1024, Rule::Linear);
        assert_eq!(wishes(&mut policy, &moment(10, 8, 1.0, 400.0)).batch, None);
        // A noise scale of 400 is 100 for each of four workers.
        let found = wishes(&mut policy, &moment(60, 8, 1.0, 400.0));
        assert_eq!((found.batch, found.learning_rate), (Some(64), Some(8.0)));
        assert!(found.reason.contains("400"));
        // Not again so soon, and back when the noise is gone.
        assert_eq!(wishes(&mut policy, &moment(70, 64, 1.0, 9e9)).batch, None);
        assert_eq!(wishes(&mut policy, &moment(110, 64, 1.0, 1.0)).batch, Some(8));
        assert_eq!(wishes(&mut policy, &moment(160, 8, 1.0, 9e9)).batch, Some(1024));
    }

    #[test]
    fn learning_rates_follow_their_rule() {
        let noisy = moment(0, 8, 0.0, 1.0);
        let quiet = moment(0, 8, 1.0, 0.0);
        let even = moment(0, 8, 1.0, 32.0);
        let factor = |rule: Rule, moment: &Moment| rule.factor(4.0, 32.0, moment).unwrap();
        assert_eq!((factor(Rule::Linear, &quiet), factor(Rule::SquareRoot, &quiet)), (4.0, 2.0));
        assert_eq!((factor(Rule::AdaScale, &noisy), factor(Rule::AdaScale, &quiet)), (4.0, 1.0));
        assert_eq!(factor(Rule::AdaScale, &even), 2.0 / 1.25);
    }

    #[test]
    fn one_that_comes_later_sets_the_rate_by_the_batch_of_the_beginning() {
        let mut first = NoiseScale::new(1024, Rule::Linear);
        wishes(&mut first, &moment(10, 8, 1.0, 400.0));
        assert_eq!(wishes(&mut first, &moment(60, 8, 1.0, 400.0)).batch, Some(64));
        let mut later = NoiseScale::new(1024, Rule::Linear);
        later.restore(&first.state().unwrap()).unwrap();
        // Half of the workers are gone by then.
        for (step, noise) in [(70, 9e9), (110, 9e9), (170, 1.0)] {
            let then = Moment { size: 2, ..moment(step, 64, 1.0, noise) };
            let found = wishes(&mut later, &then);
            assert_eq!(found, wishes(&mut first, &then), "step {step}");
            let times = found.batch.unwrap_or(64) as f64 * 2.0 / 32.0;
            assert_eq!(found.learning_rate.unwrap_or(1.0), times, "step {step}");
        }
        let mut blank = NoiseScale::new(1024, Rule::Linear);
        let then = Moment { size: 2, ..moment(70, 64, 1.0, 400.0) };
        assert_ne!(wishes(&mut blank, &then), wishes(&mut later, &then), "it tells something");
    }

    #[test]
    fn what_cannot_have_been_remembered_is_refused_and_changes_nothing() {
        let mut policy = NoiseScale::new(1024, Rule::Linear);
        wishes(&mut policy, &moment(10, 8, 1.0, 400.0));
        let before = policy.state();
        for base in ["[0,8.0]", "[8,0.0]", "[8,1e300]", "[18446744073709551615,1e19]", "[8]"] {
            let text = before.as_ref().unwrap().replace("[8,32.0]", base);
            assert!(policy.restore(&text).is_err(), "{text}");
            assert_eq!(policy.state(), before);
        }
    }

    #[test]
    fn without_statistics_or_batch_nothing_is_wished_for() {
        let mut policy = NoiseScale::new(1024, Rule::AdaScale);
        let unknown =
            Moment { batch: Some(8), size: 2, step: 100, learning_rate: 1.0, ..Moment::default() };
        assert_eq!(wishes(&mut policy, &unknown), Wishes::default());
        assert_eq!(wishes(&mut policy, &Moment { batch: None, ..unknown }), Wishes::default());
    }
}
