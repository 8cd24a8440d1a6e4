//! The batch, and where it may the number of workers, with the highest goodput, as Pollux has it: samples a second times what a
//! sample is worth. The first comes from a model of how long steps take, fitted to those that were seen, the second from the
//! noise of the gradient. It does not know what workers cost.

use super::{
    Arguments, memory,
    noise_scale::{Rule, gain},
};
use paceline_learn::{StepModel, StepSample};
use paceline_sync::{
    metrics::median,
    policy::{Moment, Policy, StateError, Wishes},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const NAME: &str = "goodput";

/// Steps between two decisions.
const EVERY: u64 = 50;

/// What must be gained for a change to be worth it.
const GAIN: f64 = 1.05;

/// Batches that are considered, evenly spread in ratio.
const CANDIDATES: u32 = 50;

/// Step times that are remembered of one size and batch: their median counts.
const REMEMBERED: usize = 21;

/// The first steps with another batch are of the one before, and wake up what slept.
const SETTLING: u64 = 5;

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Goodput {
    most: u64,
    /// The most workers to ask for; none if their number is not ours to choose.
    workers: Option<usize>,
    rule: Rule,
    every: u64,
    /// A worker's batch and that of all, when they were first seen.
    base: Option<(u64, f64)>,
    /// Times of steps, by workers and batch.
    seen: BTreeMap<(usize, u64), Vec<f64>>,
    /// What is measured now, and since when.
    current: (usize, u64),
    since: u64,
    /// Workers that were asked for last, if more than there were.
    asked: Option<usize>,
}

/// What it is to remember, as it is written: keys of maps are text there.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    base: Option<(u64, f64)>,
    seen: Vec<(usize, u64, Vec<f64>)>,
    current: (usize, u64),
    since: u64,
    workers: Option<usize>,
    asked: Option<usize>,
}

impl Memory {
    fn is_possible(&self) -> bool {
        let is_seen = |(workers, batch, times): &(usize, u64, Vec<f64>)| {
            (1..=memory::MOST_SAMPLES as usize).contains(workers)
                && (1..=memory::MOST_SAMPLES).contains(batch)
                && (1..=REMEMBERED).contains(&times.len())
                && times.iter().all(|seconds| memory::is_duration(*seconds))
        };
        memory::is_base(&self.base) && self.seen.iter().all(is_seen)
    }
}

/// A choice and what it promises.
struct Choice {
    workers: usize,
    batch: u64,
    goodput: f64,
}

impl Goodput {
    /// Batches of up to `most` samples for a worker; up to so many workers, if any may be asked for.
    pub fn new(most: u64, workers: Option<usize>, rule: Rule) -> Goodput {
        let (base, seen) = (None, BTreeMap::new());
        let (current, since, asked) = ((0, 0), 0, None);
        Goodput { most, workers, rule, every: EVERY, base, seen, current, since, asked }
    }

    pub(super) fn from_arguments(arguments: &mut Arguments) -> Result<Goodput, String> {
        let most = arguments
            .take_number("most")?
            .ok_or("say how large a worker's batch may be: most=256")?;
        let rule = arguments.take("rule")?.unwrap_or(Rule::AdaScale);
        let every = arguments.take_number("every")?.unwrap_or(EVERY);
        Ok(Goodput { every, ..Goodput::new(most, arguments.take_number("workers")?, rule) })
    }

    /// Samples a second, each counted as what it is worth against one in a batch of `base`.
    fn goodput(
        model: &StepModel,
        workers: usize,
        batch: u64,
        base: f64,
        moment: &Moment,
    ) -> Option<f64> {
        let all = batch as f64 * workers as f64;
        let worth = gain(all / base, base, moment)? / (all / base);
        Some(all / model.seconds(workers, batch as f64) * worth)
    }

    fn best(&self, model: &StepModel, least: u64, base: f64, moment: &Moment) -> Option<Choice> {
        let ratio =
            (self.most.max(least) as f64 / least as f64).powf(f64::from(CANDIDATES - 1).recip());
        let batches = (0..CANDIDATES)
            .map(|place| (least as f64 * ratio.powi(place as i32)).round() as u64)
            .map(|batch| batch.clamp(least, self.most.max(least)));
        let sizes = match self.workers {
            None => moment.size..=moment.size,
            Some(most) => 1..=most.max(moment.size),
        };
        let choices = batches.flat_map(|batch| sizes.clone().map(move |workers| (workers, batch)));
        choices
            .filter_map(|(workers, batch)| {
                let goodput = Goodput::goodput(model, workers, batch, base, moment)?;
                Some(Choice { workers, batch, goodput })
            })
            .max_by(|one, other| one.goodput.total_cmp(&other.goodput))
    }

    /// Remember how long a step took, once the last change has settled.
    fn remember(&mut self, moment: &Moment, batch: u64) {
        let current = (moment.size, batch);
        if current != self.current {
            (self.current, self.since) = (current, moment.step);
        }
        if moment.step >= self.since.saturating_add(SETTLING)
            && let Some(seconds) = moment.seconds.filter(|seconds| *seconds > 0.0)
        {
            let times = self.seen.entry(current).or_default();
            times.push(seconds);
            if times.len() > REMEMBERED {
                times.remove(0);
            }
        }
    }

    fn model(&self) -> Option<StepModel> {
        let samples: Vec<StepSample> = self
            .seen
            .iter()
            .map(|((workers, batch), times)| {
                let seconds = median(times);
                StepSample { workers: *workers, batch: *batch as f64, seconds }
            })
            .collect();
        StepModel::fit(&samples)
    }
}

impl Policy for Goodput {
    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let (Some(now), Some(all)) = (moment.batch, moment.global_batch()) else { return };
        let (least, base) = *self.base.get_or_insert((now, all as f64));
        self.remember(moment, now);
        let (mut batch, mut workers) = (now, moment.size);
        if moment.step >= self.since.saturating_add(self.every) && moment.noise_scale().is_some() {
            if let Some(asked) = self.asked.take().filter(|asked| *asked > moment.size) {
                // Nobody gave so many.
                self.workers = Some(asked - 1);
            }
            // One batch alone does not tell what computes whatever the batch: look at another once.
            let batches = self.seen.keys().filter(|(size, _)| *size == moment.size).count();
            if batches < 2 && 2 * now <= self.most {
                batch = 2 * now;
                wishes.reason = "to see how long steps with another batch take".to_string();
            } else if let Some(model) = self.model()
                && let Some(best) = self.best(&model, least, base, moment)
                && let Some(today) = Goodput::goodput(&model, moment.size, now, base, moment)
                && best.goodput > GAIN * today
            {
                (batch, workers) = (best.batch, best.workers);
                let gain = 100.0 * (best.goodput / today - 1.0);
                wishes.reason = format!("goodput is expected to grow by {gain:.0} %");
            }
            self.since = moment.step;
        }
        wishes.batch = (batch != now).then_some(batch);
        wishes.size = (workers != moment.size).then_some(workers);
        self.asked = wishes.size.filter(|wanted| *wanted > moment.size).or(self.asked);
        // With the workers there are: others come later, if at all.
        let times = (batch * moment.size as u64) as f64 / base;
        let moved = |factor: &f64| (factor / moment.learning_rate - 1.0).abs() > 1e-3;
        wishes.learning_rate = self.rule.factor(times, base, moment).filter(moved);
    }

    fn state(&self) -> Option<String> {
        let seen =
            self.seen.iter().map(|((workers, batch), times)| (*workers, *batch, times.clone()));
        let memory = Memory {
            base: self.base,
            seen: seen.collect(),
            current: self.current,
            since: self.since,
            workers: self.workers,
            asked: self.asked,
        };
        memory::write(NAME, memory)
    }

    fn restore(&mut self, state: &str) -> Result<(), StateError> {
        let Memory { base, seen, current, since, workers, asked } =
            memory::read(NAME, state, Memory::is_possible)?;
        (self.base, self.current, self.since) = (base, current, since);
        self.workers = self.workers.map(|most| workers.map_or(most, |kept| most.min(kept)));
        self.asked = asked;
        self.seen =
            seen.into_iter().map(|(workers, batch, times)| ((workers, batch), times)).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: StepModel =
        StepModel { fixed: 0.01, per_sample: 0.001, sync: 0.1, per_worker: 0.0, overlap: 1.0 };

    /// A job that follows what the policy wishes for at once, but for workers; which numbers of those it asked for.
    fn batch_after(steps: u64, noise: f64, policy: &mut Goodput) -> (u64, Vec<usize>) {
        let (mut batch, mut asked) = (16, Vec::new());
        for step in 0..steps {
            let moment = Moment {
                step,
                size: 4,
                batch: Some(batch),
                learning_rate: 1.0,
                seconds: Some(TRUTH.seconds(4, batch as f64)),
                squared_norm: Some(1.0),
                variance: Some(noise),
                ..Moment::default()
            };
            let mut wishes = Wishes::default();
            policy.after_step(&moment, &mut wishes);
            batch = wishes.batch.unwrap_or(batch);
            asked.extend(wishes.size);
        }
        (batch, asked)
    }

    #[test]
    fn batches_are_as_large_as_noise_and_network_make_worth_while() {
        let chosen =
            |noise: f64| batch_after(400, noise, &mut Goodput::new(4096, None, Rule::AdaScale)).0;
        for noise in [10.0, 1e3, 1e5] {
            let batch = chosen(noise);
            let moment = Moment {
                size: 4,
                squared_norm: Some(1.0),
                variance: Some(noise),
                ..Moment::default()
            };
            let goodput = |batch: u64| Goodput::goodput(&TRUTH, 4, batch, 64.0, &moment).unwrap();
            let best = (16..4096).map(goodput).max_by(f64::total_cmp).unwrap();
            assert!(goodput(batch) > 0.9 * best, "noise {noise}: {batch}");
        }
        assert!(chosen(10.0) < chosen(1e3) && chosen(1e3) < chosen(1e5));
    }

    #[test]
    fn one_that_comes_later_knows_the_steps_that_were_seen_and_the_first_batch() {
        let policy = || Goodput::new(4096, None, Rule::AdaScale);
        let mut first = policy();
        let (batch, _) = batch_after(400, 1e3, &mut first);
        let mut later = policy();
        later.restore(&first.state().unwrap()).unwrap();
        let moment = Moment {
            step: 460,
            size: 2,
            batch: Some(batch),
            learning_rate: 1.0,
            seconds: Some(0.5),
            squared_norm: Some(1.0),
            variance: Some(1e5),
            ..Moment::default()
        };
        let [by_first, by_later, by_blank] =
            [&mut first, &mut later, &mut policy()].map(|policy| {
                let mut wishes = Wishes::default();
                policy.after_step(&moment, &mut wishes);
                wishes
            });
        assert_eq!(by_later, by_first);
        assert_ne!(by_blank, by_first, "it tells something");
        let before = later.state();
        for (one, other) in
            [("\"base\":[16,64.0]", "\"base\":[0,64.0]"), (",[0.", ",[-0."), ("[[4,16,", "[[0,16,")]
        {
            let text = before.as_ref().unwrap().replace(one, other);
            assert_ne!(Some(&text), before.as_ref(), "{one}");
            assert!(later.restore(&text).is_err(), "{text}");
        }
        assert_eq!(later.state(), before);
    }

    #[test]
    fn workers_are_asked_for_only_where_that_was_allowed() {
        assert!(batch_after(400, 1e5, &mut Goodput::new(64, None, Rule::Linear)).1.is_empty());
    }

    #[test]
    fn where_nobody_gives_so_many_workers_fewer_are_asked_for_until_none_are() {
        let mut policy = Goodput::new(64, Some(8), Rule::Linear);
        assert_eq!(batch_after(1000, 1e5, &mut policy).1, [8, 7, 6, 5]);
    }
}
