//! What came out of a trial, as text, as data and as a drawing. It decides nothing.

use super::timed::Timed;
use crate::bench::table::{self, Style};
use paceline_job::Rate;
use paceline_tune::{
    Decision, Method,
    arena::{self, Outcome, Phase, Stage, Trial, Yardstick},
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
    /// Everything that was decided.
    pub decisions: Vec<Decision>,
    #[serde(skip)]
    trial: Trial,
}

impl Run {
    /// Of one method.
    pub fn new(method: Method, outcome: Outcome, trial: Trial, policy: Timed) -> Run {
        Run {
            method: method.name(),
            outcome,
            thinking_seconds: policy.thought.as_secs_f64(),
            longest_thought_seconds: policy.longest.as_secs_f64(),
            decisions: policy.decisions,
            trial,
        }
    }
}

impl Report {
    /// Of all methods.
    pub fn new(
        name: String,
        stage: &Stage,
        script: String,
        candidates: usize,
        replays: usize,
        yardstick: Yardstick,
        runs: Vec<Run>,
    ) -> Report {
        Report {
            name,
            workers: stage.workers(),
            racks: stage.racks,
            bandwidth: stage.rate,
            script,
            candidates,
            replays,
            headroom: yardstick.headroom(),
            headroom_over_default: yardstick.headroom_over_default(),
            yardstick,
            runs,
        }
    }

    /// Speed over time.
    pub fn drawing(&self, phases: &[Phase]) -> String {
        let title =
            format!("{}, {} workers, {}: steps a second", self.name, self.workers, self.bandwidth);
        let trials: Vec<(&str, &Trial)> =
            self.runs.iter().map(|run| (run.method, &run.trial)).collect();
        arena::draw(&title, phases, &self.yardstick.best_seconds, &trials)
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
    let search = outcome.search();
    let found = search.filter(|search| search.found);
    let steps = |search: &arena::Search| format!("{} steps", search.steps_until_near);
    vec![
        run.method.to_string(),
        percent(outcome.over_default),
        percent(outcome.over_static),
        share(outcome.recovered),
        share(outcome.recovered_over_default),
        percent(ends.fold(f64::INFINITY, f64::min) - 1.0),
        outcome.switches.to_string(),
        found.map_or_else(|| "never".to_string(), steps),
        search.map_or_else(String::new, |search| table::seconds(search.seconds_lost)),
        table::seconds(run.thinking_seconds),
    ]
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}
