//! What a run was worth: against the best setting of each phase, the best single one, and what was in force at the
//! beginning. Pure arithmetic over samples.

use super::{ArenaError, Phase, Sample, Trial, Truth};
use crate::{Candidate, Space};
use serde::Serialize;

/// A setting is as good as found when its step is no longer than this many times the best.
const NEAR: f64 = 1.05;
/// The part of a phase whose speed is that of its end.
const END: f64 = 0.25;

/// What there was to gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Yardstick {
    /// The best setting of each phase.
    pub best: Vec<Candidate>,
    /// Seconds of its step.
    pub best_seconds: Vec<f64>,
    /// The best single setting of all phases together.
    pub static_best: Candidate,
    /// Steps of a run that always has the best setting of the phase.
    pub oracle_steps: f64,
    /// Steps of a run with the best single setting.
    pub static_steps: f64,
    /// Steps of a run that stays at what is in force at the beginning.
    pub default_steps: f64,
}

impl Yardstick {
    /// By grid, under every phase's conditions.
    pub fn of(
        truth: &mut Truth<'_>,
        phases: &[Phase],
        space: &Space,
    ) -> Result<Yardstick, ArenaError> {
        let mut best = Vec::with_capacity(phases.len());
        let mut best_seconds = Vec::with_capacity(phases.len());
        let mut oracle_steps = 0.0;
        for phase in phases {
            let best_of_phase = truth.best(&phase.weather, space);
            let (candidate, seconds) = best_of_phase.map_err(|error| phase.blamed(error))?;
            oracle_steps += phase.seconds() / seconds;
            best.push(candidate);
            best_seconds.push(seconds);
        }
        let default = Candidate::of(&truth.stage().settings);
        let mut steps_of = |candidate: &Candidate| -> Result<f64, ArenaError> {
            let steps = phases.iter().map(|phase| {
                let seconds = truth.seconds(&phase.weather, candidate);
                Ok(phase.seconds() / seconds.map_err(|error| phase.blamed(error))?)
            });
            steps.sum()
        };
        let mut static_best = (space.at(space.place(0)), 0.0);
        for candidate in space.candidates() {
            let steps = steps_of(&candidate)?;
            if steps > static_best.1 {
                static_best = (candidate, steps);
            }
        }
        let default_steps = steps_of(&default)?;
        let (static_best, static_steps) = static_best;
        Ok(Yardstick { best, best_seconds, static_best, oracle_steps, static_steps, default_steps })
    }

    /// What adapting can gain over the best single setting: 0.1 is 10 %.
    pub fn headroom(&self) -> f64 {
        self.oracle_steps / self.static_steps - 1.0
    }

    /// What there is to gain over what is in force at the beginning.
    pub fn headroom_over_default(&self) -> f64 {
        self.oracle_steps / self.default_steps - 1.0
    }
}

/// The end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseOutcome {
    /// Speed in the last quarter over that of the best setting.
    pub end_share: f64,
    /// Steps until the setting was near the best, and stayed there.
    pub steps_until_near: u64,
    /// Seconds more than the best setting would have taken until then.
    pub seconds_lost: f64,
    /// Whether it came near at all.
    pub found: bool,
}

/// What finding good settings cost, all phases together. One in which none was ever found counts whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Search {
    /// Steps until settings were near the best, and stayed there.
    pub steps: u64,
    /// Seconds more than the best settings would have taken until then.
    pub seconds_lost: f64,
    /// Phases in which no setting near the best was in force at the end.
    pub never: usize,
}

/// What a run was worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Steps, the last in part.
    pub steps: f64,
    /// Over what is in force at the beginning: 0.1 is 10 % more steps.
    pub over_default: f64,
    /// Over the best single setting.
    pub over_static: f64,
    /// The share of what adapting can gain over the best single setting; `None` where that is less than 1 %.
    pub recovered: Option<f64>,
    /// The share of what there is to gain over what is in force at the beginning; `None` where that is less than 1 %.
    pub recovered_over_default: Option<f64>,
    /// How often settings changed.
    pub switches: usize,
    /// What finding good settings cost.
    pub search: Search,
    /// Phase by phase.
    pub phases: Vec<PhaseOutcome>,
}

/// A gain below this is not shared out: it is within what replay can tell.
const LEAST_HEADROOM: f64 = 0.01;

impl Outcome {
    /// Of a run.
    pub fn of(trial: &Trial, phases: &[Phase], yardstick: &Yardstick) -> Outcome {
        let end = phases.last().map_or(0.0, |phase| phase.until);
        let steps: f64 = trial
            .samples
            .iter()
            .map(|sample| ((end - sample.at) / sample.seconds).clamp(0.0, 1.0))
            .sum();
        let share = |base: f64| {
            let whole = yardstick.oracle_steps - base;
            (whole > LEAST_HEADROOM * base).then(|| (steps - base) / whole)
        };
        let phases: Vec<PhaseOutcome> =
            phases.iter().map(|phase| phase_outcome(trial, phase)).collect();
        Outcome {
            steps,
            over_default: steps / yardstick.default_steps - 1.0,
            over_static: steps / yardstick.static_steps - 1.0,
            recovered: share(yardstick.static_steps),
            recovered_over_default: share(yardstick.default_steps),
            switches: trial.switches.len(),
            search: Search::of(&phases),
            phases,
        }
    }
}

impl Search {
    fn of(phases: &[PhaseOutcome]) -> Search {
        phases.iter().fold(Search::default(), |sum, phase| Search {
            steps: sum.steps + phase.steps_until_near,
            seconds_lost: sum.seconds_lost + phase.seconds_lost,
            never: sum.never + usize::from(!phase.found),
        })
    }
}

fn phase_outcome(trial: &Trial, phase: &Phase) -> PhaseOutcome {
    let from = trial.samples.partition_point(|sample| sample.at < phase.from);
    let until = trial.samples.partition_point(|sample| sample.at < phase.until);
    let samples = &trial.samples[from..until.max(from)];
    let near = |sample: &Sample| sample.expected <= NEAR * sample.best;
    let settled = samples.len() - samples.iter().rev().take_while(|sample| near(sample)).count();
    // Settings outside the grid may be a little better than its best.
    let lost = |sum: f64, sample: &Sample| sum + sample.expected - sample.best;
    let lost = samples[..settled].iter().fold(0.0, lost).max(0.0);
    let last = phase.until - END * phase.seconds();
    let at_end = samples.iter().filter(|sample| sample.at >= last);
    let (best, taken) = at_end
        .fold((0.0, 0.0), |(best, taken), sample| (best + sample.best, taken + sample.expected));
    PhaseOutcome {
        end_share: if taken > 0.0 { best / taken } else { 1.0 },
        steps_until_near: settled as u64,
        seconds_lost: lost,
        found: settled < samples.len() || samples.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Weather;
    use paceline_job::{Rate, Settings};

    fn phase(from: f64, until: f64) -> Phase {
        let hosts = vec![Rate::from_bytes_per_second(1e9)];
        let weather = Weather { hosts, uplinks: Vec::new(), slowness: vec![1.0] };
        Phase { from, until, weather, line: None }
    }

    fn steps(lengths: &[f64]) -> Trial {
        let mut at = 0.0;
        let sample = |&seconds: &f64| {
            let sample = Sample { at, seconds, best: 1.0, expected: seconds };
            at += seconds;
            sample
        };
        Trial { samples: lengths.iter().map(sample).collect(), ..Trial::default() }
    }

    #[test]
    fn what_is_lost_is_counted_until_the_setting_stays_near_the_best() {
        // Near, far again, then near for good.
        let trial = steps(&[2.0, 1.0, 2.0, 1.0, 1.04, 1.0]);
        let outcome = phase_outcome(&trial, &phase(0.0, 8.04));
        assert_eq!((outcome.steps_until_near, outcome.found), (3, true));
        assert!((outcome.seconds_lost - 2.0).abs() < 1e-9);
        let never = phase_outcome(&steps(&[2.0; 4]), &phase(0.0, 8.0));
        assert!(!never.found && (never.end_share - 0.5).abs() < 1e-9);
        // All phases together, the one in which it never was so whole.
        let search = Search::of(&[outcome, never]);
        assert_eq!((search.steps, search.never), (7, 1));
        assert!((search.seconds_lost - 6.0).abs() < 1e-9);
        // Nothing lost is no less than nothing, and neither is a setting that is better than the grid's best.
        for length in [1.0, 0.99] {
            let lost = phase_outcome(&steps(&[length; 4]), &phase(0.0, 4.0)).seconds_lost;
            assert!(lost == 0.0 && lost.is_sign_positive());
        }
    }

    #[test]
    fn a_run_half_way_between_the_best_single_setting_and_the_oracle_recovers_half() {
        let candidate = Candidate::of(&Settings::default());
        let yardstick = Yardstick {
            best: vec![candidate.clone()],
            best_seconds: vec![1.0],
            static_best: candidate,
            oracle_steps: 12.0,
            static_steps: 8.0,
            default_steps: 8.0,
        };
        let outcome = Outcome::of(&steps(&[1.2; 10]), &[phase(0.0, 12.0)], &yardstick);
        assert!((outcome.steps - 10.0).abs() < 1e-9);
        assert!((outcome.recovered.unwrap() - 0.5).abs() < 1e-9);
        assert!((yardstick.headroom() - 0.5).abs() < 1e-9);
    }
}
