//! What candidates gave under conditions that have passed, for the day when these return: a host that was slow for a while is as
//! fast as before, and whoever was in force then was measured for longer than anything that is predicted now. It decides
//! nothing.

use super::trigger::Comparison;
use crate::{Candidate, Conditions, Signal, searcher::Known};
use std::collections::VecDeque;

/// Measurements that are kept; the oldest go first.
const MOST: usize = 64;

/// A bounded list of measurements, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Recollections(VecDeque<(Candidate, Conditions)>);

impl Recollections {
    /// This candidate was measured under these conditions, at their speed. It takes the place of what was measured of it under
    /// much the same.
    pub fn keep(
        &mut self,
        candidate: &Candidate,
        conditions: Conditions,
        noise: impl Fn(Signal) -> f64,
    ) {
        self.0.retain(|(other, before)| {
            let compared = Comparison { before: *before, after: conditions };
            other != candidate || compared.incomparable(&noise).is_some()
        });
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((candidate.clone(), conditions));
    }

    /// What candidates give, as far as they were measured under conditions not unlike these, each under those nearest to these: in
    /// proportion to what is in force, if that was measured then, too. Whatever else made it slower makes all slower.
    pub fn under(
        &self,
        conditions: Conditions,
        present: &Candidate,
        noise: impl Fn(Signal) -> f64,
    ) -> Vec<Known> {
        let mut nearest: Vec<(f64, Known)> = Vec::new();
        for (candidate, before) in self.0.iter().rev() {
            let compared = Comparison { before: *before, after: conditions };
            let Some(distance) = compared.distance(&noise) else { continue };
            let known = Known { candidate: candidate.clone(), speed: before.speed };
            match nearest.iter_mut().find(|(_, other)| other.candidate == *candidate) {
                Some(found) if distance < found.0 => *found = (distance, known),
                Some(_) => {}
                None => nearest.push((distance, known)),
            }
        }
        let mut found: Vec<Known> = nearest.into_iter().map(|(_, known)| known).collect();
        let then = found.iter().find(|known| known.candidate == *present);
        let factor = then.map_or(1.0, |then| conditions.speed / then.speed);
        found.iter_mut().for_each(|known| known.speed *= factor);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{ByteSize, StrategyChoice};

    fn candidate(name: &str) -> Candidate {
        let (partition, credit) = (ByteSize::mib(1), ByteSize::mib(1));
        Candidate { strategy: StrategyChoice(name.to_string()), partition, credit }
    }

    fn conditions(speed: f64, slowest_wire: f64) -> Conditions {
        Conditions {
            speed,
            slowest_wire,
            usual_wire: 1e9,
            slowest_computation: 0.01,
            usual_computation: 0.01,
        }
    }

    fn quiet(_: Signal) -> f64 {
        0.0
    }

    fn speeds(kept: &Recollections, now: Conditions, present: &str) -> Vec<(String, f64)> {
        let found = kept.under(now, &candidate(present), quiet).into_iter();
        found.map(|known| (known.candidate.strategy.0, known.speed)).collect()
    }

    #[test]
    fn what_was_measured_comes_back_with_its_conditions() {
        let mut kept = Recollections::default();
        kept.keep(&candidate("ring"), conditions(7.0, 1.3e9), quiet);
        kept.keep(&candidate("ring"), conditions(7.2, 1.3e9), quiet);
        kept.keep(&candidate("ring"), conditions(0.8, 1.2e8), quiet);
        kept.keep(&candidate("double_tree"), conditions(1.1, 1.2e8), quiet);
        let slow = speeds(&kept, conditions(1.0, 1.2e8), "shuffle");
        assert_eq!(slow, [("double_tree".to_string(), 1.1), ("ring".to_string(), 0.8)]);
        let healed = speeds(&kept, conditions(6.0, 1.1e9), "double_tree");
        assert_eq!(healed, [("ring".to_string(), 7.2)]);
    }

    #[test]
    fn of_one_candidate_the_nearest_conditions_count() {
        let mut kept = Recollections::default();
        kept.keep(&candidate("ring"), conditions(4.0, 6e8), quiet);
        kept.keep(&candidate("ring"), conditions(7.0, 1e9), quiet);
        let at = |wire| speeds(&kept, conditions(1.0, wire), "double_tree")[0].1;
        assert_eq!((at(7e8), at(8.5e8)), (4.0, 7.0));
    }

    #[test]
    fn what_makes_all_slower_makes_nothing_better() {
        let mut kept = Recollections::default();
        kept.keep(&candidate("ring"), conditions(8.0, 1e9), quiet);
        kept.keep(&candidate("double_tree"), conditions(6.0, 1e9), quiet);
        let now = speeds(&kept, conditions(4.0, 1e9), "ring");
        assert_eq!(now, [("double_tree".to_string(), 3.0), ("ring".to_string(), 4.0)]);
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let mut kept = Recollections::default();
        for place in 0..2 * MOST {
            kept.keep(&candidate(&format!("s{place}")), conditions(1.0, 1e9), quiet);
        }
        assert_eq!(kept.under(conditions(1.0, 1e9), &candidate("s0"), quiet).len(), MOST);
    }
}
