//! How good a meta-network is, for people and as JSON.

use crate::bench::table::NOTHING;
use paceline_learn::metanet::{Choice, MetaNetwork, Quality, Sample, judge};
use paceline_tune::metanet::Part;
use serde::Serialize;
use std::{
    fmt::Write,
    hint::black_box,
    time::{Duration, Instant},
};

/// Choices of the grid whose evaluation is timed: 12 partitions, 12 credits, 4 strategies.
const GRID: usize = 12 * 12 * 4;
/// How often it is timed.
const TIMES: usize = 21;

/// How good a meta-network is.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Steps that were replayed.
    replays: usize,
    replay_seconds: f64,
    training_seconds: f64,
    weights_bytes: usize,
    /// The middle of several evaluations of a whole grid.
    grid_milliseconds: f64,
    grid_choices: usize,
    parts: Vec<Judged>,
}

#[derive(Clone, Debug, Serialize)]
struct Judged {
    part: &'static str,
    /// Where what is in force is told, as in a running job.
    running: Quality,
    /// Where nothing is in force yet.
    before_start: Quality,
}

impl Report {
    /// Judge a network by all parts.
    pub fn of(
        network: &MetaNetwork,
        samples: &[Sample],
        replay: Duration,
        training: Duration,
    ) -> Report {
        let parts = Part::ALL.map(|part| {
            let of_part: Vec<Sample> = samples
                .iter()
                .filter(|sample| Part::of(sample.model, sample.network) == part)
                .cloned()
                .collect();
            Judged {
                part: name(part),
                running: judge(network, &of_part, |sample| Some(in_force(sample))),
                before_start: judge(network, &of_part, |_| None),
            }
        });
        Report {
            replays: samples.iter().map(|sample| sample.measured.len()).sum(),
            replay_seconds: replay.as_secs_f64(),
            training_seconds: training.as_secs_f64(),
            weights_bytes: network.to_bytes().len(),
            grid_milliseconds: grid_milliseconds(network, samples),
            grid_choices: GRID,
            parts: parts.to_vec(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} replays ({:.0} s), learned in {:.0} s, weights of {} KiB; {} choices are predicted in {:.2} ms\n\n",
            self.replays,
            self.replay_seconds,
            self.training_seconds,
            self.weights_bytes / 1024,
            self.grid_choices,
            self.grid_milliseconds,
        );
        let head = "                                              slower than the best choice\n\
                    jobs                  samples  error  order   mean  9 of 10  worst  unchanged\n";
        text.push_str(head);
        for Judged { part, running, before_start } in &self.parts {
            for (name, quality) in [(*part, running), ("  before the start", before_start)] {
                let judged = quality.samples > 0;
                let known = |text: String| if judged { text } else { NOTHING.to_string() };
                let percent = |value: f64| known(format!("{:.1}%", 100.0 * value));
                let unchanged = match name == *part {
                    true => percent(quality.regret_unchanged),
                    false => String::new(),
                };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{name:<22}{:>7}{:>7}{:>7}{:>7}{:>9}{:>7}{:>11}",
                    quality.samples,
                    percent(quality.error),
                    known(format!("{:.2}", quality.rank_correlation)),
                    percent(quality.regret),
                    percent(quality.regret_tenth),
                    percent(quality.regret_worst),
                    unchanged,
                );
            }
        }
        text
    }
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Training => "learned from",
        Part::NewNetwork => "new network",
        Part::NewModel => "new model",
        Part::BothNew => "both new",
    }
}

/// Any of the measurements, the same each time.
fn in_force(sample: &Sample) -> usize {
    (sample.model as usize * 31 + sample.network as usize * 17) % sample.measured.len().max(1)
}

fn grid_milliseconds(network: &MetaNetwork, samples: &[Sample]) -> f64 {
    let Some(sample) = samples.iter().max_by_key(|sample| sample.conditions.tensors.len()) else {
        return 0.0;
    };
    let choices: Vec<Choice> = (0..GRID)
        .map(|place| {
            let partition = f64::from(1 << (15 + place / 12 % 12));
            let credit = f64::from(1 << (15 + place % 12));
            Choice { strategy: 1 + place / 144, partition, credit }
        })
        .collect();
    let mut times: Vec<f64> = (0..TIMES)
        .map(|_| {
            let begin = Instant::now();
            if let Some(prepared) = network.prepare(black_box(&sample.conditions)) {
                black_box(network.seconds(&prepared, &choices));
            }
            1e3 * begin.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[TIMES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_parts_without_jobs() {
        let zero = Duration::ZERO;
        let report = Report::of(&MetaNetwork::shipped(), &[], zero, zero);
        let text = report.text();
        let rows: Vec<&str> = text.lines().filter(|line| line.contains(NOTHING)).collect();
        // Two for each part.
        assert_eq!(rows.len(), 2 * Part::ALL.len(), "{text}");
        assert!(!rows.iter().any(|row| row.contains('%') || row.contains("0.00")), "{text}");
    }
}
