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
/// Observations whose differences say how noisy a signal is.
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
/// The median of the absolute difference of two values of a normal distribution, in standard deviations.
const MEDIAN_DIFFERENCE: f64 = 0.6745 * std::f64::consts::SQRT_2;

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
    /// The last observations, the first of them far enough from the newest to tell noise by.
    recent: VecDeque<(u64, f64)>,
    /// Absolute differences of such. They outlive a restart: noise stays what it is.
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

    /// With what was seen some steps ago.
    fn compare(&mut self, step: u64, value: f64) {
        let apart = |(other, _): &(u64, f64)| step.saturating_sub(*other) >= STEPS_APART;
        while self.recent.get(1).is_some_and(apart) {
            self.recent.pop_front();
        }
        if let Some((_, before)) = self.recent.front().copied().filter(apart) {
            if self.differences.len() == RECENT {
                self.differences.pop_front();
            }
            self.differences.push_back((value - before).abs());
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
