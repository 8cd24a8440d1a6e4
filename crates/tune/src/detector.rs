//! When conditions are not what they were: a two-sided cumulative sum (Page's) over the logarithm of what the job shows,
//! against the median of what it showed at first. One far-off value moves it little, a lasting change of 10 % in a few
//! observations. It does not know what is done about it.

use crate::parts::{flows, parts};
use paceline_sync::metrics::JobMetrics;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, fmt};

/// Observations whose median is what the following are compared with, at least.
const REFERENCE: usize = 4;
/// More of them are taken as long as they are of fewer steps than this: what is seen of neighbouring steps is much the same.
const REFERENCE_STEPS: u64 = 16;
/// And of fewer than this while what is seen differs from it by no more than noise: a median of few noisy values is off itself.
const LONGEST_REFERENCE_STEPS: u64 = 128;
/// What is seen of steps less far apart than this differs by less than its noise, since it is smoothed.
const STEPS_APART: u64 = 5;
/// Observations whose differences from those before say how noisy a signal is.
const RECENT: usize = 24;
/// Below this relative difference nothing has changed, however often it is seen.
const SLACK: f64 = 0.04;
/// The sum of relative differences, each less the slack, at which something has.
const ALARM: f64 = 0.20;
/// The same in standard deviations of the noise, where it is the larger: with these a signal that only makes noise raises
/// an alarm about once in a million observations.
const SLACK_DEVIATIONS: f64 = 1.0;
const ALARM_DEVIATIONS: f64 = 6.0;
/// No single observation brings more than this share of the alarm: two in a row do, one does not.
const MOST_AT_ONCE: f64 = 0.5;
/// A signal stands still if it moves by no more than the slack, or this many deviations.
const STILL_DEVIATIONS: f64 = 3.0;
/// The median of the smaller of two: a value's difference from one before it, and from the line through two before it, each over its own
/// deviation; in standard deviations of a normal distribution.
const MEDIAN_DIFFERENCE: f64 = 0.466;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Steps a second.
    Speed,
    /// Bytes a second of the worker with the slowest wire, or of what lies between workers, where that is slower.
    SlowestWire,
    /// Bytes a second in the middle of all workers.
    UsualWire,
    /// Seconds of computation of the worker that computes longest.
    SlowestComputation,
    /// Seconds of computation in the middle of all workers.
    UsualComputation,
}

impl Signal {
    /// All of them; a bounded number, however many workers there are.
    pub const ALL: [Signal; 5] = [
        Signal::Speed,
        Signal::SlowestWire,
        Signal::UsualWire,
        Signal::SlowestComputation,
        Signal::UsualComputation,
    ];

    /// What it is now; 0 where the metrics do not say.
    pub fn of(self, metrics: &JobMetrics) -> f64 {
        let workers = metrics.workers.iter();
        let wires = || workers.clone().map(|worker| worker.upload.max(worker.download));
        let computations = || {
            workers.clone().map(|worker| {
                let layers = worker.layers.iter().map(|layer| layer.forward + layer.backward);
                layers.sum::<f64>() + worker.rest
            })
        };
        match self {
            Signal::Speed => metrics.speed(),
            Signal::SlowestWire => wires().chain(between(metrics)).reduce(f64::min).unwrap_or(0.0),
            Signal::UsualWire => median(wires().collect()),
            Signal::SlowestComputation => computations().fold(0.0, f64::max),
            Signal::UsualComputation => median(computations().collect()),
        }
    }
}

/// What slow links between workers carry, if there are any.
fn between(metrics: &JobMetrics) -> Vec<f64> {
    let found = parts(metrics.workers.len(), &flows(&metrics.workers, |rank| rank));
    found.map_or(Vec::new(), |parts| parts.between)
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Speed => "speed",
            Signal::SlowestWire => "the slowest wire",
            Signal::UsualWire => "the usual wire",
            Signal::SlowestComputation => "the longest computation",
            Signal::UsualComputation => "the usual computation",
        })
    }
}

/// Something is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// What.
    pub signal: Signal,
    /// What it was.
    pub from: f64,
    /// What it is.
    pub to: f64,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * (self.to / self.from - 1.0);
        write!(f, "{} changed by {percent:+.0} %", self.signal)
    }
}

/// Watches all signals of a job.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    gauges: [Gauge; Signal::ALL.len()],
}

impl Detector {
    /// What has changed since the last restart, if anything has: the signal that says so most clearly.
    pub fn observe(&mut self, metrics: &JobMetrics) -> Option<Change> {
        let mut loudest: Option<(f64, Change)> = None;
        for (gauge, signal) in self.gauges.iter_mut().zip(Signal::ALL) {
            let to = signal.of(metrics);
            let Some((alarm, from)) = gauge.observe(metrics.step, to) else { continue };
            if alarm >= 1.0 && loudest.is_none_or(|(other, _)| alarm > other) {
                loudest = Some((alarm, Change { signal, from, to }));
            }
        }
        loudest.map(|(_, change)| change)
    }

    /// Whether speed and wires were the same in the last two observations, but for noise: what is seen is smoothed, and on its
    /// way from what was before to what is.
    pub fn is_still(&self) -> bool {
        let signals = [Signal::Speed, Signal::SlowestWire, Signal::UsualWire];
        signals.into_iter().all(|signal| self.gauges[signal as usize].is_still())
    }

    /// Compare with what comes now.
    pub fn restart(&mut self) {
        self.gauges.iter_mut().for_each(Gauge::restart);
    }

    /// The relative standard deviation of a signal's noise, as far as it is known.
    pub fn noise(&self, signal: Signal) -> f64 {
        self.gauges[signal as usize].noise()
    }
}

/// Watches one signal, in logarithms.
#[derive(Clone, Debug, Default)]
struct Gauge {
    /// Steps and what was seen after them.
    reference: Vec<(u64, f64)>,
    level: f64,
    rise: f64,
    fall: f64,
    /// What was seen last, and by how much it differed from what was seen before it.
    last: Option<f64>,
    moved: f64,
    /// The last observations, as many as it takes to tell noise by.
    recent: VecDeque<(u64, f64)>,
    /// What values differed by from what was to be expected. It outlives a restart: noise stays what it is.
    differences: VecDeque<f64>,
}

impl Gauge {
    /// How near an alarm is (at 1 it is one), and what the signal was before; `None` while that is not known.
    fn observe(&mut self, step: u64, value: f64) -> Option<(f64, f64)> {
        if !(value.is_finite() && value > 0.0) {
            return None;
        }
        let value = value.ln();
        self.moved = self.last.replace(value).map_or(f64::INFINITY, |last| (value - last).abs());
        self.compare(step, value);
        let known = self.reference.len() >= REFERENCE;
        let first = self.reference.first().map_or(step, |(first, _)| *first);
        let usual = (value - self.level).abs() <= self.slack(STILL_DEVIATIONS);
        let steps = if usual { LONGEST_REFERENCE_STEPS } else { REFERENCE_STEPS };
        if !known || step.saturating_sub(first) < steps {
            self.reference.push((step, value));
            self.level = median(self.reference.iter().map(|(_, value)| *value).collect());
        }
        if !known {
            return None;
        }
        let alarm = ALARM.max(ALARM_DEVIATIONS * self.noise());
        let (slack, most) = (self.slack(SLACK_DEVIATIONS), MOST_AT_ONCE * alarm);
        let off = value - self.level;
        self.rise = (self.rise + (off - slack).min(most)).max(0.0);
        self.fall = (self.fall + (-off - slack).min(most)).max(0.0);
        Some((self.rise.max(self.fall) / alarm, self.level.exp()))
    }

    /// With what was seen some steps ago, and with where that was going from some more steps ago: neither stairs nor ramps are noise.
    fn compare(&mut self, step: u64, value: f64) {
        let before = |step: u64| {
            let apart = move |(other, _): &&(u64, f64)| step.saturating_sub(*other) >= STEPS_APART;
            self.recent.iter().rev().find(apart).copied()
        };
        let between = before(step);
        let first = between.and_then(|(step, _)| before(step));
        if let (Some((_, between)), Some((since, first))) = (between, first) {
            if self.differences.len() == RECENT {
                self.differences.pop_front();
            }
            let moved = (value - between).abs() / 2_f64.sqrt();
            let turned = (value - 2.0 * between + first).abs() / 6_f64.sqrt();
            self.differences.push_back(moved.min(turned));
            self.recent.retain(|(step, _)| *step >= since);
        }
        self.recent.push_back((step, value));
    }

    fn is_still(&self) -> bool {
        self.last.is_none() || self.moved <= self.slack(STILL_DEVIATIONS)
    }

    /// What is no difference: so many deviations of the noise, or a little where there is less.
    fn slack(&self, deviations: f64) -> f64 {
        SLACK.max(deviations * self.noise())
    }

    fn restart(&mut self) {
        self.reference.clear();
        self.rise = 0.0;
        self.fall = 0.0;
        self.recent.clear();
    }

    fn noise(&self) -> f64 {
        median(self.differences.iter().copied().collect()) / MEDIAN_DIFFERENCE
    }
}

/// The value in the middle; 0 of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => (values[even / 2 - 1] + values[even / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_replay::Random;

    /// A gauge that was shown a value after each of so many steps.
    fn shown(steps: u64, mut value: impl FnMut(u64) -> f64) -> Gauge {
        let mut gauge = Gauge::default();
        for step in 1..=steps {
            gauge.observe(step, value(step));
        }
        gauge
    }

    /// Between 1 - `most` and 1 + `most`, each as likely.
    fn even(random: &mut Random, most: f64) -> f64 {
        1.0 + most * (random.below(2001) as f64 / 1000.0 - 1.0)
    }

    #[test]
    fn noise_is_told_from_a_ramp() {
        let mut random = Random::new(1);
        // The standard deviation of such a value is its most over the root of three.
        let noisy = shown(200, |_| even(&mut random, 0.1));
        assert!((0.03..0.1).contains(&noisy.noise()), "{}", noisy.noise());
        let ramp = shown(60, |step| 0.95_f64.powi(step as i32));
        assert!(ramp.noise() < 1e-9, "{}", ramp.noise());
        let stairs = shown(60, |step| 0.8_f64.powi(step as i32 / 12));
        assert!(stairs.noise() < 1e-9, "{}", stairs.noise());
    }

    #[test]
    fn noise_raises_hardly_any_alarm_and_a_change_does_at_once() {
        let mut alarms = 0;
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut gauge = Gauge::default();
            for step in 1..=500 {
                let alarm = gauge.observe(step, even(&mut random, 0.2));
                if alarm.is_some_and(|(alarm, _)| alarm >= 1.0) {
                    alarms += 1;
                    gauge.restart();
                }
            }
            let mut slow = (1..=8).map(|step| gauge.observe(500 + step, 0.25));
            let alarm = slow.position(|alarm| alarm.is_some_and(|(alarm, _)| alarm >= 1.0));
            assert!(alarm.is_some_and(|after| after <= 3), "seed {seed}: {alarm:?}");
        }
        assert!(alarms < 150, "{alarms} in 50,000 observations");
    }

    #[test]
    fn a_slow_ramp_is_a_change_however_long_the_reference_is() {
        let mut gauge = shown(100, |_| 1.0);
        let alarm = (1..200).find(|step| {
            let value = 0.995_f64.powi(*step as i32);
            gauge.observe(100 + step, value).is_some_and(|(alarm, _)| alarm >= 1.0)
        });
        assert!(alarm.is_some_and(|step| step < 40), "{alarm:?}");
    }
}
