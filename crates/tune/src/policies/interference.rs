//! Another strategy when most workers find the job slowed down, as KungFu has it: each compares its steps with those of the
//! beginning and votes, and the majority decides. It does not know why steps are slow.

use super::Arguments;
use paceline_sync::policy::{Moment, Policy, Wishes};

/// Slower than this share of the speed at the beginning is a vote for a change.
const SHARE: f64 = 0.8;

/// Steps that make one judgement.
const WINDOW: usize = 10;

/// In which order strategies are tried, beginning after the one in force.
const STRATEGIES: [&str; 4] = ["ring", "double_tree", "recursive_doubling", "hierarchical"];

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Interference {
    share: f64,
    window: usize,
    strategies: Vec<String>,
    /// This worker's last steps, in seconds.
    steps: Vec<f64>,
    /// How long steps took in the first window under a strategy that nobody voted against.
    reference: Option<f64>,
    /// The step from which votes count again.
    rests_until: u64,
}

impl Interference {
    /// Votes for a change when steps are slower than `share` of the speed at the beginning, over `window` steps.
    pub fn new(share: f64, window: usize, strategies: Vec<String>) -> Interference {
        Interference {
            share,
            window: window.max(1),
            strategies,
            steps: Vec::new(),
            reference: None,
            rests_until: 0,
        }
    }

    pub(super) fn from_arguments(arguments: &mut Arguments) -> Result<Interference, String> {
        let share = arguments.take("share")?.unwrap_or(SHARE);
        let window = arguments.take("window")?.unwrap_or(WINDOW);
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

    fn next(&self, now: &str) -> Option<&String> {
        let place = self.strategies.iter().position(|name| name == now);
        let next = place.map_or(0, |place| (place + 1) % self.strategies.len().max(1));
        self.strategies.get(next).filter(|name| *name != now)
    }
}

impl Policy for Interference {
    fn vote(&mut self, own_seconds: f64) -> Option<f64> {
        if own_seconds <= 0.0 {
            return None;
        }
        self.steps.push(own_seconds);
        if self.steps.len() > self.window {
            self.steps.remove(0);
        }
        if self.steps.len() < self.window {
            return None;
        }
        let mut sorted = self.steps.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        let reference = *self.reference.get_or_insert(median);
        Some(if reference < self.share * median { 1.0 } else { 0.0 })
    }

    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        let most = moment.vote.is_some_and(|share| share > 0.5);
        if !most || moment.step < self.rests_until {
            return;
        }
        let Some(next) = self.next(&moment.strategy).cloned() else { return };
        // Votes on their way are of the strategy that is left. A full window under the next one must pass.
        self.rests_until = moment.step + 2 * self.window as u64;
        self.steps.clear();
        let share = moment.vote.unwrap_or_default() * 100.0;
        wishes.reason =
            format!("{share:.0} % of the workers are slowed down under {}", moment.strategy);
        wishes.strategy = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Interference {
        Interference::new(0.8, 3, vec!["ring".into(), "double_tree".into()])
    }

    #[test]
    fn a_worker_votes_when_its_steps_have_become_slower_than_at_the_beginning() {
        let mut policy = policy();
        assert_eq!([1.0, 1.1, 0.9].map(|step| policy.vote(step)), [None, None, Some(0.0)]);
        // One slow step is none, nor are steps that are a little slower; a window of slow ones is.
        assert_eq!([5.0, 1.2, 1.2].map(|step| policy.vote(step)), [Some(0.0); 3]);
        assert_eq!([2.0, 2.0, 2.0].map(|step| policy.vote(step))[2], Some(1.0));
    }

    #[test]
    fn the_majority_switches_once_and_then_gives_the_next_strategy_time() {
        let mut policy = policy();
        let mut at = |step: u64, vote: f64| {
            let strategy = "ring".to_string();
            let moment = Moment { step, vote: Some(vote), strategy, ..Moment::default() };
            let mut wishes = Wishes::default();
            policy.after_step(&moment, &mut wishes);
            wishes.strategy
        };
        assert_eq!(at(10, 0.5), None);
        assert_eq!(at(11, 0.75), Some("double_tree".to_string()));
        assert_eq!(at(12, 1.0), None);
        assert_eq!(at(17, 1.0), Some("double_tree".to_string()));
    }
}
