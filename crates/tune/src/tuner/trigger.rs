//! When to look for something better, when to follow, and how to judge what came of it: the constants, and the verdict
//! as a pure function.

use crate::{Action, Change, Conditions, Signal};

/// When a tuner looks and acts. Times are in observations: metrics come every few steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trigger {
    /// A candidate is followed from this predicted gain on. AutoByte found 5 % enough against oscillation.
    pub threshold: f64,
    /// After this long look even if nothing seems to have changed, then after twice as long, and so on: looking is not free.
    pub heartbeat: u64,
    /// It does not double beyond this.
    pub slowest_heartbeat: u64,
    /// After a change of conditions or settings, how many observations may still speak of what was before.
    pub settle: u64,
    /// A speed is the median of so many.
    pub window: usize,
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
            heartbeat: 100,
            slowest_heartbeat: 1600,
            settle: 1,
            window: 4,
            back_off: 8,
            most_back_off: 1024,
            patience: 64,
        }
    }
}

/// A candidate this much slower than what was before it is left again.
const WORSE: f64 = 0.01;
/// A candidate is as good as predicted if it brings this share of what it promised.
const KEPT_PROMISE: f64 = 0.5;

/// Computation does not depend on settings: this much more or less of it, and two times were compared, not two settings.
const OTHER_COMPUTATION: f64 = 1.15;
/// What the slowest wire is seen to carry depends on settings a little, but not this much. What others are seen to carry
/// depends on how long they wait for it.
const OTHER_WIRE: f64 = 1.5;
/// A job that is this much slower is slower by its settings, or by its wires.
const MUCH_WORSE: f64 = 0.95;

/// Whether settings that keep wires waiting are as likely as slow wires to be why: going back from slow wires costs little.
pub(super) fn may_be_settings(change: &Change, measured: f64) -> bool {
    change.signal == Signal::SlowestWire && measured < MUCH_WORSE
}

/// What changed beside the settings, if anything did that makes speeds before and after incomparable.
pub(super) fn incomparable(before: &Conditions, after: &Conditions) -> Option<Change> {
    use Signal::{SlowestComputation, SlowestWire, UsualComputation};
    let pairs = [
        (UsualComputation, OTHER_COMPUTATION, before.usual_computation, after.usual_computation),
        (
            SlowestComputation,
            OTHER_COMPUTATION,
            before.slowest_computation,
            after.slowest_computation,
        ),
        (SlowestWire, OTHER_WIRE, before.slowest_wire, after.slowest_wire),
    ];
    let differs = |(_, factor, from, to): &(Signal, f64, f64, f64)| {
        let known = *from > 0.0 && *to > 0.0;
        known && (to / from).max(from / to) > *factor
    };
    let changed = pairs.into_iter().find(differs);
    changed.map(|(signal, _, from, to)| Change { signal, from, to })
}

/// What to make of a candidate that promised a gain and was then measured: confirm, disappoint or roll back.
pub(super) fn verdict(promised: f64, measured: f64) -> Action {
    if measured < 1.0 - WORSE {
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

    #[test]
    fn slow_wires_are_no_excuse_for_a_slow_setting() {
        let before = Conditions { slowest_wire: 1e9, usual_computation: 0.1, ..Default::default() };
        let slower = incomparable(&before, &Conditions { slowest_wire: 1e8, ..before }).unwrap();
        assert!(may_be_settings(&slower, 0.7));
        assert!(!may_be_settings(&slower, 1.1));
        // Computation does not depend on settings.
        let busy = incomparable(&before, &Conditions { usual_computation: 0.2, ..before }).unwrap();
        assert!(!may_be_settings(&busy, 0.7));
    }

    #[test]
    fn what_is_slower_is_left_and_what_keeps_half_its_promise_is_right() {
        assert_eq!(verdict(1.2, 0.98), Action::RollBack);
        assert_eq!(verdict(1.2, 0.995), Action::Disappoint);
        assert_eq!(verdict(1.2, 1.05), Action::Disappoint);
        assert_eq!(verdict(1.2, 1.11), Action::Confirm);
        assert_eq!(verdict(1.2, 1.5), Action::Confirm);
    }
}
