//! Which steps workers report: so often that a change is known soon, so seldom that telling costs next to nothing. The answer
//! follows from the numbers of steps and from what all workers heard alike, and is the same on all of them; there is no clock here.

use super::JobMetrics;

/// Before anything is known of steps, one of so many is reported.
pub const FIRST_INTERVAL: u64 = 5;

/// However short steps are, one of so many is.
pub const LONGEST_INTERVAL: u64 = 10;

/// Seconds between two reports for each worker: a report costs everybody a message to and from each other worker, some 20 µs of
/// a thread, and is to cost less than half a percent of it.
const SECONDS_FOR_EACH_WORKER: f64 = 0.01;

/// See the file's first paragraph.
///
/// How far it is from one report to the next follows from what the former said. No interval is less than half of the one before
/// it: so what a report said has half an interval to arrive, and nobody has to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    /// The last step that was reported; at first, the first step.
    last: Option<u64>,
    interval: u64,
    /// Whether the interval is that which the last report calls for.
    heard: bool,
}

impl Default for Cadence {
    fn default() -> Cadence {
        Cadence { last: None, interval: FIRST_INTERVAL, heard: true }
    }
}

impl Cadence {
    /// Whether what the last report said has to be [heard](Cadence::hear) before it can be told if this step is due.
    pub fn must_hear(&self, step: u64) -> bool {
        !self.heard && self.is_past(step, self.interval.div_ceil(2))
    }

    /// What the last report said to all workers; `None` if they did not agree, which they all know.
    pub fn hear(&mut self, metrics: Option<&JobMetrics>) {
        if self.heard {
            return;
        }
        self.heard = true;
        if let Some(metrics) = metrics {
            self.interval = interval(metrics).max(self.interval.div_ceil(2));
        }
    }

    /// Whether this step is to be reported when it begins. It is taken to be, then.
    pub fn is_due(&mut self, step: u64) -> bool {
        if self.last.is_none() {
            self.last = Some(step);
        }
        let due = self.heard && self.is_past(step, self.interval);
        if due {
            (self.last, self.heard) = (Some(step), false);
        }
        due
    }

    fn is_past(&self, step: u64, distance: u64) -> bool {
        self.last.is_some_and(|last| step.saturating_sub(last) >= distance)
    }
}

/// Steps from one report to the next in a job that shows this.
fn interval(metrics: &JobMetrics) -> u64 {
    let seconds = SECONDS_FOR_EACH_WORKER * metrics.workers.len() as f64;
    // Conversion saturates: no speed is so great that it matters.
    ((seconds * metrics.speed()).ceil() as u64).clamp(1, LONGEST_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::WorkerMetrics;
    use paceline_job::{Settings, ViewVersion};
    use proptest::prelude::*;

    fn shown(seconds: f64) -> JobMetrics {
        JobMetrics {
            step: 0,
            view: ViewVersion(1),
            settings: Settings::default(),
            shape: Default::default(),
            workers: vec![WorkerMetrics { seconds, ..WorkerMetrics::default() }; 4],
        }
    }

    /// The steps that are reported in a job whose steps take so long, where reports are heard after so many steps.
    fn reported(seconds: impl Fn(u64) -> f64, steps: u64, delay: u64) -> Vec<u64> {
        let (mut cadence, mut underway) = (Cadence::default(), None);
        let mut reported = Vec::new();
        for step in 0..steps {
            if let Some((since, said)) = underway
                && (cadence.must_hear(step) || step >= since + delay)
            {
                cadence.hear(Some(&shown(said)));
                underway = None;
            }
            if cadence.is_due(step) {
                reported.push(step);
                underway = Some((step, seconds(step)));
            }
        }
        reported
    }

    #[test]
    fn long_steps_are_reported_each_and_short_ones_seldom() {
        assert_eq!(reported(|_| 0.5, 11, 0), [5, 8, 10]);
        assert_eq!(&reported(|_| 0.5, 100, 0)[3..], (11..100).collect::<Vec<u64>>());
        assert_eq!(reported(|_| 1e-4, 36, 0), [5, 15, 25, 35]);
        assert_eq!(reported(|_| 0.0, 36, 0), reported(|_| 10.0, 36, 0));
    }

    #[test]
    fn steps_that_become_long_are_reported_sooner_and_sooner() {
        let seconds = |step| if step < 20 { 0.004 } else { 1.0 };
        assert_eq!(reported(seconds, 40, 0)[..7], [5, 15, 25, 30, 33, 35, 36]);
    }

    #[test]
    fn a_job_that_goes_on_at_a_later_step_begins_like_any_other() {
        let mut cadence = Cadence::default();
        let due: Vec<u64> = (1000..1008).filter(|step| cadence.is_due(*step)).collect();
        assert_eq!(due, [1005]);
    }

    #[test]
    fn workers_who_do_not_agree_go_on_as_before() {
        let mut cadence = Cadence::default();
        let mut due = Vec::new();
        for step in 0..20 {
            cadence.hear(None);
            due.extend(cadence.is_due(step).then_some(step));
        }
        assert_eq!(due, [5, 10, 15]);
    }

    proptest! {
        #[test]
        fn whoever_hears_later_reports_the_same_steps(
            lengths in prop::collection::vec(1e-4..2.0_f64, 200),
            delays in prop::collection::vec(0..20_u64, 2),
        ) {
            let seconds = |step: u64| lengths[step as usize];
            prop_assert_eq!(reported(seconds, 200, delays[0]), reported(seconds, 200, delays[1]));
        }
    }
}
