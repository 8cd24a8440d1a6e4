//! Another strategy when most workers find the job slowed down, as KungFu has it: each compares its steps with those of the
//! beginning and votes, and the majority decides. It does not know why steps are slow, so it tries one strategy after the other
//! until steps are as fast as they were; if none makes them so, it stays with the fastest and calls its speed the usual one.

use super::{Arguments, memory};
use paceline_sync::{
    metrics::{Pace, median},
    policy::{Moment, Policy, StateError, Wishes},
};
use serde::{Deserialize, Serialize};

const NAME: &str = "interference";

/// Steps that make one judgement, unless it is said: few, since a strategy that does not help is left again.
const WINDOW: usize = 4;

/// How many steps what is measured is behind ([`Moment`]).
const BEHIND: u64 = 2;

/// In which order strategies are tried, beginning after the one in force.
const STRATEGIES: [&str; 4] = ["ring", "double_tree", "recursive_doubling", "hierarchical"];

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Interference {
    strategies: Vec<String>,
    /// This worker's steps, against what is usual: the first window, and later that of a strategy that was settled on.
    pace: Pace,
    /// What is in force, and since which step.
    now: (String, u64),
    /// Steps of other workers or another batch take another time.
    under: (usize, Option<u64>),
    /// The last steps under it, in seconds, as all workers see them.
    seen: Vec<f64>,
    /// Since steps were last as usual: what was tried, and how long steps took, or would if it had come true.
    tried: Vec<(String, f64)>,
    /// The step from which votes count again.
    rests_until: u64,
}

/// What it is to remember, as it is written: what did not come true has no time.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    usual: Option<f64>,
    now: (String, u64),
    under: (usize, Option<u64>),
    seen: Vec<f64>,
    tried: Vec<(String, Option<f64>)>,
    rests_until: u64,
}

impl Memory {
    fn is_possible(&self) -> bool {
        let mut times =
            self.usual.iter().chain(&self.seen).chain(self.tried.iter().flat_map(|(_, time)| time));
        times.all(|seconds| memory::is_duration(*seconds))
    }
}

impl Interference {
    /// Votes for a change when steps are slower than `share` of the speed at the beginning, over `window` steps.
    pub fn new(share: f64, window: usize, strategies: Vec<String>) -> Interference {
        Interference {
            strategies,
            pace: Pace::new(share, window),
            now: (String::new(), 0),
            under: (0, None),
            seen: Vec::new(),
            tried: Vec::new(),
            rests_until: 0,
        }
    }

    pub(super) fn from_arguments(arguments: &mut Arguments) -> Result<Interference, String> {
        let share = arguments.take_number("share")?.unwrap_or(Pace::SHARE);
        if share > 1.0 {
            return Err("`share` is a part of the usual speed, such as 0.8".to_string());
        }
        let window = arguments.take_number("window")?.unwrap_or(WINDOW);
        let named: Option<String> = arguments.take("strategies")?;
        let strategies: Vec<String> = match named {
            None => STRATEGIES.map(str::to_string).to_vec(),
            Some(names) => names.split('+').map(str::to_string).collect(),
        };
        if let Some(unknown) =
            strategies.iter().find(|name| paceline_sync::strategy::find(name).is_err())
        {
            return Err(format!("`{unknown}` is no strategy; `paceline strategies` lists them"));
        }
        Ok(Interference::new(share, window, strategies))
    }

    /// How long steps take under what is in force; `None` until a window of them was seen.
    fn watch(&mut self, moment: &Moment) -> Option<f64> {
        let under = (moment.size, moment.batch);
        if self.under != under {
            self.under = under;
            self.pace.expect(None);
            self.tried.clear();
            self.now.0.clear();
        }
        if self.now.0 != moment.strategy {
            self.now = (moment.strategy.clone(), moment.step);
            self.seen.clear();
        }
        let window = self.pace.window();
        if moment.step >= self.now.1.saturating_add(BEHIND) {
            self.seen.extend(moment.seconds.filter(|seconds| memory::is_duration(*seconds)));
            let extra = self.seen.len().saturating_sub(window);
            self.seen.drain(..extra);
        }
        (self.seen.len() == window).then(|| median(&self.seen))
    }

    fn note(&mut self, strategy: &str, seconds: f64) {
        self.tried.retain(|(tried, _)| tried != strategy);
        self.tried.push((strategy.to_string(), seconds));
    }

    /// The next one in turn that was not tried.
    fn next(&self, now: &str) -> Option<String> {
        let after =
            self.strategies.iter().position(|name| name == now).map_or(0, |place| place + 1);
        let in_turn = self.strategies.iter().cycle().skip(after).take(self.strategies.len());
        in_turn.clone().find(|name| self.tried.iter().all(|(tried, _)| tried != *name)).cloned()
    }

    /// The fastest of those tried, whose speed is the usual one from now on.
    fn settle(&mut self) -> Option<String> {
        let (fastest, seconds) =
            self.tried.iter().min_by(|one, other| one.1.total_cmp(&other.1))?.clone();
        self.pace.expect(Some(seconds));
        self.tried.clear();
        Some(fastest)
    }
}

impl Policy for Interference {
    fn vote(&mut self, own_seconds: f64) -> Option<f64> {
        self.pace.slowed(own_seconds).map(|slowed| if slowed { 1.0 } else { 0.0 })
    }

    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let (seconds, Some(share)) = (self.watch(moment), moment.vote) else { return };
        let Some(seconds) = seconds.filter(|_| moment.step >= self.rests_until) else { return };
        if share <= 0.5 {
            self.tried.clear();
            return;
        }
        self.note(&moment.strategy, seconds);
        let (next, why) = match self.next(&moment.strategy) {
            Some(next) => {
                // If it is refused, it was tried.
                self.note(&next, f64::INFINITY);
                let why = format!("are slowed down under {}", moment.strategy);
                (Some(next), why)
            }
            None => {
                (self.settle(), "are slowed down under all strategies; this is the fastest".into())
            }
        };
        // Votes on their way are of the strategy that is left.
        self.rests_until = moment.step + 2 * self.pace.window() as u64;
        self.pace.begin_window();
        wishes.strategy = next.filter(|next| *next != moment.strategy);
        wishes.reason = format!("{:.0} % of the workers {why}", 100.0 * share);
    }

    fn state(&self) -> Option<String> {
        let finite = |time: &f64| Some(*time).filter(|time| time.is_finite());
        let tried = self.tried.iter().map(|(name, time)| (name.clone(), finite(time))).collect();
        let (usual, now, under) = (self.pace.usual(), self.now.clone(), self.under);
        let (seen, rests_until) = (self.seen.clone(), self.rests_until);
        memory::write(NAME, Memory { usual, now, under, seen, tried, rests_until })
    }

    fn restore(&mut self, state: &str) -> Result<(), StateError> {
        let Memory { usual, now, under, mut seen, tried, rests_until } =
            memory::read(NAME, state, Memory::is_possible)?;
        let extra = seen.len().saturating_sub(self.pace.window());
        seen.drain(..extra);
        self.pace.expect(usual);
        let tried = tried.into_iter().map(|(name, time)| (name, time.unwrap_or(f64::INFINITY)));
        self.tried = tried.collect();
        (self.now, self.under, self.seen, self.rests_until) = (now, under, seen, rests_until);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Interference {
        Interference::new(0.8, 3, vec!["ring".into(), "double_tree".into()])
    }

    /// Plays `steps` steps, each as long as `seconds` says of the strategy that is in force; what is wished for comes true three steps
    /// later. Says what was in force in each.
    fn played(
        policy: &mut Interference,
        from: u64,
        steps: u64,
        seconds: impl Fn(&str) -> f64,
    ) -> Vec<String> {
        let mut now =
            if policy.now.0.is_empty() { "ring".to_string() } else { policy.now.0.clone() };
        let mut coming: Option<(u64, String)> = None;
        let mut past: Vec<(f64, Option<f64>)> = Vec::new();
        let mut course = Vec::new();
        for step in from..from + steps {
            if let Some((_, next)) = coming.take_if(|(at, _)| *at == step) {
                now = next;
            }
            let length = seconds(&now);
            past.push((length, policy.vote(length)));
            course.push(now.clone());
            let (length, vote) = past[past.len().saturating_sub(1 + BEHIND as usize)];
            let mut wishes = Wishes::default();
            let moment = Moment {
                step,
                seconds: Some(length),
                vote,
                strategy: now.clone(),
                ..Moment::default()
            };
            policy.after_step(&moment, &mut wishes);
            coming = wishes.strategy.map(|next| (step + 3, next)).or(coming);
        }
        course
    }

    fn changes(course: &[String]) -> usize {
        course.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    #[test]
    fn a_strategy_that_is_as_fast_as_usual_is_kept() {
        let mut policy = policy();
        assert_eq!(changes(&played(&mut policy, 0, 20, |_| 1.0)), 0);
        let course =
            played(&mut policy, 20, 40, |strategy| if strategy == "ring" { 2.0 } else { 1.1 });
        assert_eq!(changes(&course), 1);
        assert!(course[10..].iter().all(|strategy| strategy == "double_tree"), "{course:?}");
    }

    #[test]
    fn one_that_comes_later_knows_what_is_usual_and_what_was_tried() {
        let mut first = policy();
        played(&mut first, 0, 20, |_| 1.0);
        let mut later = policy();
        later.restore(&first.state().unwrap()).unwrap();
        let slow = |strategy: &str| if strategy == "ring" { 2.0 } else { 1.1 };
        assert_eq!(changes(&played(&mut later, 20, 40, slow)), 1);
        // What did not come true is passed over as by the first.
        played(&mut first, 20, 40, |_| 2.0);
        first.note("hierarchical", f64::INFINITY);
        later.restore(&first.state().unwrap()).unwrap();
        assert_eq!(
            (later.tried.clone(), later.pace.usual()),
            (first.tried.clone(), first.pace.usual())
        );
        for nonsense in ["\"usual\":-1.0", "\"usual\":\"fast\"", "\"unusual\":1.0"] {
            let usual = format!("\"usual\":{:?}", first.pace.usual().unwrap());
            let text = first.state().unwrap().replace(&usual, nonsense);
            assert!(later.restore(&text).is_err(), "{text}");
        }
        assert_eq!(later.state(), first.state());
    }

    #[test]
    fn steps_of_another_batch_or_other_workers_are_not_slow() {
        let mut policy = policy();
        let mut wished = |step: u64, size: usize, batch: u64, seconds: f64| {
            let moment = Moment {
                step,
                size,
                batch: Some(batch),
                seconds: Some(seconds),
                vote: policy.vote(seconds),
                strategy: "ring".to_string(),
                ..Moment::default()
            };
            let mut wishes = Wishes::default();
            policy.after_step(&moment, &mut wishes);
            wishes.strategy
        };
        let conditions = |step: u64| match step {
            0..20 => (2, 8, 1.0),
            20..40 => (2, 16, 2.0),
            _ => (4, 16, 3.0),
        };
        for step in 0..80 {
            let (size, batch, seconds) = conditions(step);
            assert_eq!(wished(step, size, batch, seconds), None, "step {step}");
        }
        assert!((80..100).any(|step| wished(step, 4, 16, 6.0).is_some()));
    }

    #[test]
    fn where_all_are_slow_the_fastest_is_settled_on_until_it_is_slowed_down_too() {
        let strategies = ["ring", "double_tree", "hierarchical"].map(str::to_string).to_vec();
        let mut policy = Interference::new(0.8, 3, strategies);
        played(&mut policy, 0, 20, |_| 1.0);
        let slow = |strategy: &str| match strategy {
            "ring" => 3.0,
            "double_tree" => 2.0,
            _ => 4.0,
        };
        let course = played(&mut policy, 20, 100, slow);
        assert_eq!(changes(&course), 3, "{course:?}");
        assert!(course[40..].iter().all(|strategy| strategy == "double_tree"));
        // The neighbour leaves, and comes again.
        assert_eq!(changes(&played(&mut policy, 120, 20, |_| 1.0)), 0);
        let again =
            played(
                &mut policy,
                140,
                40,
                |strategy| if strategy == "hierarchical" { 1.0 } else { 2.0 },
            );
        assert_eq!((changes(&again), again[20].as_str()), (1, "hierarchical"));
    }

    #[test]
    fn one_that_is_refused_is_passed_over() {
        let strategies = ["ring", "double_tree", "hierarchical"].map(str::to_string).to_vec();
        let mut policy = Interference::new(0.8, 3, strategies);
        let mut wishes_at = |step: u64, seconds: f64| {
            let (vote, strategy) = (policy.vote(seconds), "ring".to_string());
            let moment =
                Moment { step, seconds: Some(seconds), vote, strategy, ..Moment::default() };
            let mut wishes = Wishes::default();
            policy.after_step(&moment, &mut wishes);
            wishes.strategy
        };
        let wished: Vec<String> =
            (0..60).filter_map(|step| wishes_at(step, if step < 10 { 1.0 } else { 2.0 })).collect();
        assert_eq!(wished, ["double_tree", "hierarchical"]);
    }
}
