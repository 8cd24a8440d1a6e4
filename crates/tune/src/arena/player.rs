//! One run of a job under a policy: steps follow each other, metrics are shown when the runtime would show them, and what is proposed is
//! in force a few steps later. It judges nothing.

use super::{ArenaError, Phase, Truth, meter::Meter};
use crate::Candidate;
use paceline_sync::{metrics::Cadence, policy::Policy};
use std::ops::ControlFlow;

/// Steps from a proposal until it is in force: every worker has to promise first.
const AGREEMENT: u64 = 3;

/// How what is measured differs from what is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Relative standard deviation of a step and of a worker's computation.
    pub step: f64,
    /// Relative standard deviation of a rate.
    pub wire: f64,
    /// What chance follows from.
    pub seed: u64,
}

impl Default for Noise {
    fn default() -> Noise {
        Noise { step: 0.03, wire: 0.05, seed: 1 }
    }
}

/// A step that was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When it began, in seconds.
    pub at: f64,
    /// How long it took.
    pub seconds: f64,
    /// Seconds of a step of the best setting at that time.
    pub best: f64,
    /// Seconds of a step of the setting in force, without its noise.
    pub expected: f64,
}

/// A change of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// When it was in force, in seconds.
    pub at: f64,
    /// From which step on.
    pub step: u64,
    /// What was in force then.
    pub candidate: Candidate,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    /// Every step.
    pub samples: Vec<Sample>,
    /// Every change of settings.
    pub switches: Vec<Switch>,
}

/// Run a job under a policy, from the first phase to the end of the last. `best` has the seconds of a step of each phase's
/// best setting. `progress` hears how far it is, between 0 and 1, and ends it early by breaking off.
pub fn play(
    truth: &mut Truth<'_>,
    phases: &[Phase],
    best: &[f64],
    policy: &mut dyn Policy,
    noise: Noise,
    progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Trial, ArenaError> {
    let stage = truth.stage();
    let mut settings = stage.settings.clone();
    let mut meter = Meter::new(noise);
    let mut cadence = Cadence::default();
    let mut trial = Trial::default();
    let mut coming = None;
    let (mut now, mut step, mut phase) = (0.0, 0_u64, 0);
    let end = phases.last().map_or(0.0, |phase| phase.until);
    while now < end {
        while phases[phase].until <= now && phase + 1 < phases.len() {
            phase += 1;
        }
        if let Some((due, next)) = coming.take() {
            if due <= step {
                settings = next;
                meter.switch();
                let candidate = Candidate::of(&settings);
                trial.switches.push(Switch { at: now, step, candidate });
            } else {
                coming = Some((due, next));
            }
        }
        let (weather, blamed) = (&phases[phase].weather, |error| phases[phase].blamed(error));
        let present = Candidate::of(&settings);
        let expected = truth.seconds(weather, &present).map_err(blamed)?;
        let shown = truth.shown(weather, &present).map_err(blamed)?;
        let seconds = meter.noisy(expected);
        let best = best.get(phase).copied().unwrap_or(expected);
        trial.samples.push(Sample { at: now, seconds, best, expected });
        now += seconds;
        step += 1;
        meter.step(&shown, seconds);
        if !cadence.is_due(step) {
            continue;
        }
        let shown = meter.shown(step, &settings);
        cadence.hear(shown.as_ref());
        if let Some(shown) = shown
            && let Some(proposal) = policy.observe(&shown)
        {
            coming = Some((step + AGREEMENT, proposal.settings));
        }
        if progress(now / end).is_break() {
            break;
        }
    }
    Ok(trial)
}
