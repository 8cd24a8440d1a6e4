//! Who is slow: others wait for it. That may be right (it evaluates, or writes a checkpoint), so it is only reported, and
//! removing it is a policy's decision.

use super::{HEARTBEAT, Pulse, Vigil};
use std::time::Duration;

/// A step that takes so many times the usual is not merely noise.
const USUAL_STEPS: u32 = 4;

/// Whoever was not heard for so many heartbeats cannot be said to wait, whatever it said last.
const HEARTBEATS: u32 = 3;

/// What is known of a worker's progress.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The step that it is in.
    pub step: u64,
    /// Since when.
    pub since: Pulse,
    /// Steps in a second, lately; zero if that is not known.
    pub rate: f64,
    /// Whether its program waits for others.
    pub waits: bool,
    /// When it was last heard of.
    pub heard: Pulse,
}

impl Progress {
    /// Somebody is in step 0, or not in any.
    pub fn new(now: Pulse) -> Progress {
        Progress { step: 0, since: now, rate: 0.0, waits: false, heard: now }
    }

    /// It says where it is.
    pub fn hear(&mut self, now: Pulse, step: u64, rate: f64, waits: bool) {
        let since = if step == self.step { self.since } else { now };
        *self = Progress { step, since, rate, waits, heard: now };
    }

    /// Whether others wait for this one: they say that they wait, or are steps ahead, while it does not wait and is in one
    /// step for several times as long as the steps of `all` usually take.
    pub fn is_slow(&self, all: &[Progress], vigil: &Vigil) -> bool {
        let silent = |it: &Progress| vigil.silence(it.heard) > HEARTBEATS * HEARTBEAT;
        let waits = |it: &Progress| it.waits && !silent(it);
        let awaited = all.iter().any(|other| waits(other) || other.step > self.step);
        awaited && !waits(self) && vigil.silence(self.since) > USUAL_STEPS * usual(all)
    }
}

/// What a step of these workers takes, but no less than what heartbeats can tell apart.
fn usual(all: &[Progress]) -> Duration {
    let mut rates: Vec<f64> = all.iter().map(|it| it.rate).filter(|rate| *rate > 0.0).collect();
    rates.sort_by(f64::total_cmp);
    let step = rates.get(rates.len() / 2).map(|rate| Duration::try_from_secs_f64(1.0 / rate));
    // A rate of almost nothing is none.
    step.and_then(Result::ok).unwrap_or_default().clamp(HEARTBEAT, Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::PATIENCE;
    use paceline_job::Time;

    /// Three workers make a step in `step` seconds, then for `seconds` the last does what `last` says; who is slow then.
    fn slow_ones(step: f64, seconds: u32, last: impl Fn(&mut Progress, Pulse, u64)) -> Vec<bool> {
        let mut vigil = Vigil::new(PATIENCE, Time::ZERO);
        let mut all = [Progress::new(vigil.pulse()); 3];
        for second in 1..=20 + seconds {
            vigil.look(Time::ZERO.after(second * HEARTBEAT));
            let now = vigil.pulse();
            let held_up = second > 20;
            let at = (f64::from(second.min(20)) / step) as u64;
            for worker in &mut all[..2] {
                worker.hear(now, at, 1.0 / step, held_up);
            }
            match held_up {
                true => last(&mut all[2], now, at),
                false => all[2].hear(now, at, 1.0 / step, false),
            }
        }
        all.iter().map(|worker| worker.is_slow(&all, &vigil)).collect()
    }

    #[test]
    fn whoever_others_wait_for_is_slow_and_nobody_else() {
        let computes = |worker: &mut Progress, now, at| worker.hear(now, at, 10.0, false);
        assert_eq!(slow_ones(0.1, 10, computes), [false, false, true]);
        let frozen = |_: &mut Progress, _, _| {};
        assert_eq!(slow_ones(0.1, 10, frozen), [false, false, true]);
        let behind = |worker: &mut Progress, now, at| worker.hear(now, at - 1, 10.0, false);
        assert_eq!(slow_ones(0.1, 10, behind), [false, false, true]);
    }

    #[test]
    fn nobody_is_slow_where_all_wait_or_steps_take_as_long() {
        let waits = |worker: &mut Progress, now, at| worker.hear(now, at, 10.0, true);
        assert_eq!(slow_ones(0.1, 10, waits), [false; 3], "for a coordinator, perhaps");
        let computes = |worker: &mut Progress, now, at| worker.hear(now, at, 0.2, false);
        assert_eq!(slow_ones(5.0, 10, computes), [false; 3]);
        assert_eq!(slow_ones(5.0, 21, computes), [false, false, true]);
    }
}
