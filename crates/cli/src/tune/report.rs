//! What came out of a trial, as text, as data and as a drawing. It decides nothing.

use super::timed::Timed;
use crate::bench::table::{self, Style};
use paceline_job::Rate;
use paceline_tune::{
    Decision, Method,
    arena::{self, Outcome, Phase, Search, Series, Trial, Truth, Yardstick},
};
use serde::Serialize;
use std::fmt::Write;

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    name: String,
    workers: usize,
    racks: usize,
    bandwidth: Rate,
    script: String,
    /// Candidates of the grid.
    candidates: usize,
    /// Steps that were replayed for what is true.
    replays: usize,
    headroom: f64,
    headroom_over_default: f64,
    yardstick: Yardstick,
    /// Steps a second of a run that always has the best setting: seconds and speed at the corners of its line.
    oracle: Series,
    /// One for each method.
    pub runs: Vec<Run>,
}

/// What one method did.
#[derive(Debug, Serialize)]
pub struct Run {
    method: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
    /// In real time.
    thinking_seconds: f64,
    longest_thought_seconds: f64,
    /// Steps a second over time: seconds and speed, in so many equal stretches as bear drawing.
    series: Series,
    /// Everything that was decided.
    pub decisions: Vec<Decision>,
}

impl Run {
    /// Of one method.
    pub fn new(
        method: Method,
        outcome: Outcome,
        trial: &Trial,
        policy: Timed,
        phases: &[Phase],
    ) -> Run {
        Run {
            method: method.name(),
            outcome,
            thinking_seconds: policy.thought.as_secs_f64(),
            longest_thought_seconds: policy.longest.as_secs_f64(),
            series: arena::speeds(trial, phases),
            decisions: policy.decisions,
        }
    }
}

impl Report {
    /// Of all methods.
    pub fn new(
        name: String,
        truth: &Truth<'_>,
        script: String,
        phases: &[Phase],
        candidates: usize,
        yardstick: Yardstick,
        runs: Vec<Run>,
    ) -> Report {
        let stage = truth.stage();
        Report {
            name,
            workers: stage.workers(),
            racks: stage.racks,
            bandwidth: stage.rate,
            script,
            candidates,
            replays: truth.replays(),
            headroom: yardstick.headroom(),
            headroom_over_default: yardstick.headroom_over_default(),
            oracle: arena::oracle(phases, &yardstick.best_seconds),
            yardstick,
            runs,
        }
    }

    /// Speed over time.
    pub fn drawing(&self) -> String {
        let title =
            format!("{}, {} workers, {}: steps a second", self.name, self.workers, self.bandwidth);
        let lines: Vec<(&str, &Series)> =
            self.runs.iter().map(|run| (run.method, &run.series)).collect();
        arena::draw(&title, &self.oracle, &lines)
    }

    /// For people.
    pub fn text(&self, phases: &[Phase]) -> String {
        let mut text = String::new();
        let length = phases.last().map_or(0.0, |phase| phase.until);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}: {} workers, wires of {}; {} phases in {length:.0} s.\n\nThe best of {} settings in each phase:",
            self.name,
            self.workers,
            self.bandwidth,
            phases.len(),
            self.candidates,
        );
        let best = self.yardstick.best.iter().zip(&self.yardstick.best_seconds);
        for (phase, (candidate, seconds)) in phases.iter().zip(best) {
            let _ = writeln!(
                text,
                "  {:>6.0} to {:>6.0} s  {:<36} {} a step",
                phase.from,
                phase.until,
                candidate.to_string(),
                table::seconds(*seconds)
            );
        }
        let _ = writeln!(
            text,
            "\nHeadroom: {} over the best single setting ({}), {} over the beginning.\n",
            percent(self.headroom),
            self.yardstick.static_best,
            percent(self.headroom_over_default),
        );
        let header = [
            "method",
            "over beginning",
            "over best single",
            "recovered",
            "recovered from beginning",
            "worst end",
            "switches",
            "found after",
            "lost",
            "thinking",
        ]
        .map(String::from);
        let rows: Vec<Vec<String>> = self.runs.iter().map(row).collect();
        text.push_str(&table::draw(&header, &rows, Style::Plain));
        text
    }
}

fn row(run: &Run) -> Vec<String> {
    let outcome = &run.outcome;
    let share = |share: Option<f64>| {
        share.map_or_else(|| table::NOTHING.to_string(), |share| format!("{:.0} %", 100.0 * share))
    };
    let ends = outcome.phases.iter().map(|phase| phase.end_share);
    vec![
        run.method.to_string(),
        percent(outcome.over_default),
        percent(outcome.over_static),
        share(outcome.recovered),
        share(outcome.recovered_over_default),
        percent(ends.fold(f64::INFINITY, f64::min) - 1.0),
        outcome.switches.to_string(),
        found(outcome),
        table::seconds(outcome.search.seconds_lost),
        table::seconds(run.thinking_seconds),
    ]
}

/// Of all phases together; those in which nothing good was found count whole.
fn found(outcome: &Outcome) -> String {
    let Search { steps, never, .. } = outcome.search;
    match never {
        0 => format!("{steps} steps"),
        never => format!("{steps} steps, {never} of {} phases never", outcome.phases.len()),
    }
}

fn percent(share: f64) -> String {
    // What is rounded to nothing has no sign.
    format!("{:+.1} %", (1000.0 * share).round() / 10.0 + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_minus_before_it() {
        assert_eq!(
            [-0.0, -0.0004, 0.0, -0.01].map(percent),
            ["+0.0 %", "+0.0 %", "+0.0 %", "-1.0 %"]
        );
    }
}
