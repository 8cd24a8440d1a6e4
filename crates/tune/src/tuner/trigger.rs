//! When to look for something better, when to follow, and how to judge what came of it: the constants, and the verdict
//! as a pure function.

use crate::{Action, Change, Conditions, Signal};

/// When a tuner looks and acts. Times are in observations: metrics come every few steps, and after every step that is long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trigger {
    /// A candidate is followed from this predicted gain on. AutoByte found 5 % enough against oscillation.
    pub threshold: f64,
    /// After this long look even if nothing seems to have changed, then after twice as long, and so on: looking is not free.
    pub heartbeat: u64,
    /// It does not double beyond this.
    pub slowest_heartbeat: u64,
    /// At the beginning and after a change of settings, how many observations may still speak of what was before.
    pub settle: u64,
    /// After a change of conditions, what is shown is waited for to stand still, but not for longer than this.
    pub most_settle: u64,
    /// A candidate that is far better or worse than what it is judged by is known from so many on.
    pub first_window: u64,
    /// What any other gives is known from so many on.
    pub window: u64,
    /// As long as noise leaves open what it gives it goes on being measured, but not for longer than this.
    pub most_window: u64,
    /// After being wrong, how long nothing is looked for. It doubles each time, and begins anew after being right.
    pub back_off: u64,
    /// It does not double beyond this.
    pub most_back_off: u64,
    /// A proposal that is not in force after so long never will be.
    pub patience: u64,
}

impl Default for Trigger {
    fn default() -> Trigger {
        Trigger {
            threshold: 0.05,
            heartbeat: 400,
            slowest_heartbeat: 6400,
            settle: 1,
            most_settle: 6,
            first_window: 2,
            window: 4,
            most_window: 16,
            back_off: 8,
            most_back_off: 1024,
            patience: 64,
        }
    }
}

/// A candidate that brings less than this is left again: what promised more was wrong about it, and may be as wrong about what it
/// gives when conditions change.
const WORTH: f64 = 0.025;
/// A candidate is as good as predicted if it brings this share of what it promised.
const KEPT_PROMISE: f64 = 0.5;

/// Computation does not depend on settings: this much more or less of it, and two times were compared, not two settings.
const OTHER_COMPUTATION: f64 = 1.15;
/// But less than this share of a step says nothing about the step, however much it is of the computation.
const MATTERS: f64 = 0.05;
/// What the slowest wire is seen to carry depends on settings a little, but not this much. What others are seen to carry
/// depends on how long they wait for it.
const OTHER_WIRE: f64 = 1.5;
/// A difference of fewer deviations is noise.
const DEVIATIONS: f64 = 3.0;
/// A job that is this much slower is slower by its settings, or by its wires.
const MUCH_WORSE: f64 = 0.95;
/// What changes by less than this factor makes nobody right who was wrong.
const MUCH_ELSE: f64 = 1.25;

/// What a job showed before its settings changed and after, each with its speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub before: Conditions,
    pub after: Conditions,
}

impl Comparison {
    /// The gain: 1 is none.
    pub fn measured(&self) -> f64 {
        self.after.speed / self.before.speed
    }

    /// What changed beside the settings, if anything did that makes the speeds incomparable. `noise` is the relative
    /// deviation of a signal.
    pub fn incomparable(&self, noise: impl Fn(Signal) -> f64) -> Option<Change> {
        let (from, to) = (self.before.slowest_wire, self.after.slowest_wire);
        self.other_computation(&noise)
            .or_else(|| differs(Signal::SlowestWire, OTHER_WIRE, from, to, noise))
    }

    /// How unlike the wires were when something was measured long ago, as the logarithm of a ratio; `None` if that says nothing
    /// about now.
    pub fn distance(&self, noise: impl Fn(Signal) -> f64) -> Option<f64> {
        let (before, after) = (self.before.slowest_wire, self.after.slowest_wire);
        let distance = if before == after { 0.0 } else { (after / before).ln().abs() };
        self.incomparable(noise).is_none().then_some(distance)
    }

    fn other_computation(&self, noise: impl Fn(Signal) -> f64) -> Option<Change> {
        use Signal::{SlowestComputation, UsualComputation};
        let Comparison { before, after } = self;
        let fastest = before.speed.max(after.speed);
        let matters = |change: &Change| (change.to - change.from).abs() * fastest > MATTERS;
        let computation = |signal: Signal, from: f64, to: f64| {
            differs(signal, OTHER_COMPUTATION, from, to, &noise).filter(matters)
        };
        computation(UsualComputation, before.usual_computation, after.usual_computation).or_else(
            || {
                computation(
                    SlowestComputation,
                    before.slowest_computation,
                    after.slowest_computation,
                )
            },
        )
    }

    /// Whether the job is slower by more than longer computation explains. Then settings that keep wires waiting are as likely
    /// as slow wires to be why, and going back from slow wires costs little.
    pub fn may_be_settings(&self) -> bool {
        let Comparison { before, after } = self;
        let longer = (after.usual_computation - before.usual_computation)
            .max(after.slowest_computation - before.slowest_computation)
            .max(0.0);
        before.speed.recip() < MUCH_WORSE * (after.speed.recip() - longer)
    }
}

/// Deviations of the noise of a speed by which a measured gain may be off: both speeds are noisy.
const MARGIN_DEVIATIONS: f64 = 2.0;
/// By how much more a gain may be off that was measured in a few observations: the first steps may share wires with those before.
const EARLY_MARGIN: f64 = 0.15;

impl Trigger {
    /// Whether a candidate has been measured for long enough, after so many observations: noise of this deviation does not
    /// leave open what to make of it, or it never will be clear.
    pub(super) fn is_clear(&self, promised: f64, measured: f64, noise: f64, after: u64) -> bool {
        if after < self.first_window || after >= self.most_window {
            return after >= self.most_window;
        }
        let early = if after < self.window { EARLY_MARGIN } else { 0.0 };
        is_sure(promised, measured, early + MARGIN_DEVIATIONS * noise)
    }
}

/// Whether a gain that is off by this share would be judged no otherwise.
fn is_sure(promised: f64, measured: f64, margin: f64) -> bool {
    let [least, most] = [1.0 - margin, 1.0 + margin].map(|off| verdict(promised, measured * off));
    least == most
}

/// Whether so much is otherwise that whoever was wrong about it may be right now.
pub(super) fn is_news(change: &Change) -> bool {
    let ratio = change.to / change.from;
    change.signal != Signal::Speed && !(MUCH_ELSE.recip()..=MUCH_ELSE).contains(&ratio)
}

/// Whether a gain is more than noise of this deviation.
pub(super) fn is_gain(measured: f64, noise: f64) -> bool {
    measured - 1.0 > WORTH.max(MARGIN_DEVIATIONS * noise)
}

/// Whether two speeds of one setting are of the same conditions.
pub(super) fn is_same(speed: f64, other: f64) -> bool {
    (MUCH_WORSE..=1.0 / MUCH_WORSE).contains(&(speed / other))
}

/// Whether a job is faster or slower than it was by more than noise of this deviation.
pub(super) fn is_other(speed: f64, before: f64, noise: f64) -> bool {
    !is_same(speed, before) && (speed / before).ln().abs() > DEVIATIONS * noise
}

/// The change of a signal by more than a factor, and by more than its noise.
fn differs(
    signal: Signal,
    factor: f64,
    from: f64,
    to: f64,
    noise: impl Fn(Signal) -> f64,
) -> Option<Change> {
    let known = from > 0.0 && to > 0.0;
    let ratio = (to / from).max(from / to);
    let differs = known && ratio > factor && ratio.ln() > DEVIATIONS * noise(signal);
    differs.then_some(Change { signal, from, to })
}

/// What to make of a candidate that promised a gain and was then measured: confirm, disappoint or roll back.
pub(super) fn verdict(promised: f64, measured: f64) -> Action {
    if measured < 1.0 + WORTH {
        Action::RollBack
    } else if measured - 1.0 < KEPT_PROMISE * (promised - 1.0) {
        Action::Disappoint
    } else {
        Action::Confirm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of a step is computed.
    fn at(speed: f64, slowest_wire: f64, computation: f64) -> Conditions {
        Conditions {
            speed,
            slowest_wire,
            usual_wire: 1e9,
            slowest_computation: computation,
            usual_computation: computation,
        }
    }

    fn quiet(_: Signal) -> f64 {
        0.0
    }

    #[test]
    fn slow_wires_are_no_excuse_for_a_slow_setting() {
        let compared = |speed| Comparison { before: at(5.0, 1e9, 0.1), after: at(speed, 1e8, 0.1) };
        assert_eq!(compared(3.5).incomparable(quiet).unwrap().signal, Signal::SlowestWire);
        assert!(compared(3.5).may_be_settings());
        assert!(!compared(5.5).may_be_settings());
    }

    #[test]
    fn long_computation_is_an_excuse_for_as_much_as_it_is_longer() {
        let compared = |speed| Comparison { before: at(5.0, 1e9, 0.1), after: at(speed, 1e9, 0.2) };
        assert_eq!(compared(3.3).incomparable(quiet).unwrap().signal, Signal::UsualComputation);
        assert!(!compared(3.3).may_be_settings());
        assert!(compared(2.5).may_be_settings());
    }

    #[test]
    fn computation_that_hardly_matters_to_the_step_is_no_excuse() {
        // A step of half a second, a few hundredths of which are computed.
        let compared = Comparison { before: at(1.7, 1e9, 0.032), after: at(1.6, 1e9, 0.027) };
        assert_eq!(compared.incomparable(quiet), None);
    }

    #[test]
    fn what_always_jumps_about_is_no_excuse_either() {
        let compared = Comparison { before: at(5.0, 1e9, 0.1), after: at(5.0, 1e9, 0.14) };
        assert!(compared.incomparable(quiet).is_some());
        assert_eq!(compared.incomparable(|_| 0.2), None);
    }

    #[test]
    fn nothing_is_said_while_noise_leaves_it_open() {
        let is_clear =
            |measured, noise, after| Trigger::default().is_clear(1.2, measured, noise, after);
        assert!(is_clear(0.9, 0.02, 4) && is_clear(1.2, 0.02, 4));
        assert!(!is_clear(1.02, 0.02, 4) && !is_clear(1.02, 0.02, 15) && is_clear(1.02, 0.02, 16));
        // What is far off is known sooner, but not from a single observation.
        assert!(!is_clear(0.6, 0.02, 1) && is_clear(0.6, 0.02, 2) && !is_clear(0.9, 0.02, 3));
    }

    #[test]
    fn noise_is_no_gain_and_makes_no_job_slower() {
        assert!(is_gain(1.06, 0.02) && !is_gain(1.06, 0.04) && !is_gain(1.02, 0.0));
        assert!(is_other(0.9, 1.0, 0.02) && !is_other(0.9, 1.0, 0.05) && !is_other(0.97, 1.0, 0.0));
        assert!(is_other(1.0, 0.0, 0.05));
    }

    #[test]
    fn what_brings_nothing_is_left_and_what_keeps_half_its_promise_is_right() {
        assert_eq!(verdict(1.2, 0.98), Action::RollBack);
        assert_eq!(verdict(1.2, 1.02), Action::RollBack);
        assert_eq!(verdict(1.05, 1.02), Action::RollBack);
        assert_eq!(verdict(1.05, 1.03), Action::Confirm);
        assert_eq!(verdict(1.2, 1.05), Action::Disappoint);
        assert_eq!(verdict(1.2, 1.11), Action::Confirm);
        assert_eq!(verdict(1.2, 1.5), Action::Confirm);
    }
}
