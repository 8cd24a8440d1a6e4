//! What `paceline optimize` says, as text, as data, and at the head of the plan file. It decides nothing.

use super::verify::{Verdict, Verified};
use crate::{carrier::hosts, handing::Handing, scenario::Loaded};
use paceline_job::Rate;
use paceline_plan::{Outcome, Task};
use serde::Serialize;
use std::{fmt::Write, path::Path, time::Duration};

/// Problems of a trace that are shown; `paceline trace` shows all.
const MOST_PROBLEMS: usize = 5;

/// Everything that came out.
#[derive(Debug, Serialize)]
pub struct Report {
    workers: usize,
    one_host: bool,
    /// What wires carry, where there are any.
    bandwidth: Option<Rate>,
    /// What memory carries, where all workers are on one host.
    memory_rate: Option<Rate>,
    seconds: f64,
    /// What handing an operation over is taken to take, in microseconds, and how that is known.
    post_us: f64,
    post: Handing,
    #[serde(flatten)]
    outcome: Outcome,
    /// What happened in real time, if it was asked.
    pub verified: Option<Verified>,
    /// Why not to rely on it, if there is a reason.
    pub doubt: Option<String>,
    problems: Vec<String>,
}

impl Report {
    /// Of a plan that took so long to find.
    pub fn new(
        loaded: &Loaded,
        task: &Task,
        handing: Handing,
        outcome: Outcome,
        took: Duration,
    ) -> Report {
        let scenario = &task.scenario;
        let one_host = hosts(&scenario.graph) < 2;
        Report {
            workers: scenario.graph.workers.len(),
            one_host,
            bandwidth: (!one_host).then_some(scenario.wire.rate),
            memory_rate: one_host.then_some(scenario.memory.rate),
            seconds: took.as_secs_f64(),
            post_us: handing.time().as_secs_f64() * 1e6,
            post: handing,
            outcome,
            verified: None,
            doubt: None,
            problems: loaded.problems.iter().map(ToString::to_string).collect(),
        }
    }

    fn gain(&self) -> f64 {
        100.0 * (1.0 - self.outcome.after_ms / self.outcome.before_ms)
    }

    /// The plan file, with the reasons as comments.
    pub fn file(&self) -> String {
        let Outcome { before_ms, after_ms, .. } = self.outcome;
        let mut text = format!(
            "# By `paceline optimize`: a step of {before_ms:.2} ms on {} workers is predicted to take {after_ms:.2} ms.\n",
            self.workers
        );
        for decision in &self.outcome.decisions {
            // A name of the program's could hold anything, but no comment may end early.
            let what = decision.what.replace(['\n', '\r'], " ");
            let _ = writeln!(text, "#   {:+.2} ms: {what}", -decision.expected_gain_ms);
        }
        if !self.outcome.plan.advice.is_empty() {
            text.push_str(
                "# What [[advice]] says is not applied: these are changes of the program.\n",
            );
        }
        text.push('\n');
        text + &self.outcome.plan.to_toml()
    }

    /// For people.
    pub fn text(&self, loaded: &Loaded, output: Option<&Path>) -> String {
        let mut text = String::new();
        let outcome = &self.outcome;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} workers, {}.\nA step takes {:.2} ms in replay, and {:.2} ms with the plan ({:.1}% {}). \
             {} replays in {:.1} s; {} more were spared by playing tensors by themselves.",
            self.workers,
            match (self.bandwidth, self.memory_rate) {
                (Some(rate), _) => format!("wires of {rate} ({})", loaded.wire),
                (None, Some(rate)) =>
                    format!("all on one host with memory of {rate} ({})", loaded.memory),
                (None, None) => "all on one host".to_string(),
            },
            outcome.before_ms,
            outcome.after_ms,
            self.gain().abs(),
            if self.gain() < 0.0 { "more, to fit into memory" } else { "less" },
            outcome.replays,
            self.seconds,
            outcome.partial.spared,
        );
        let _ = writeln!(text, "{}", self.post);
        if let [_, _, ..] = outcome.engines.as_slice() {
            let each = outcome.engines.iter().map(|(name, ms)| format!("{name} {ms:.2} ms"));
            let _ = writeln!(text, "Engines: {}.", each.collect::<Vec<_>>().join(", "));
        }
        if let Some(memory) = &outcome.memory {
            let limit = memory.limit.map_or(String::new(), |limit| format!(" (limit {limit})"));
            let (before, after) = (memory.before.rounded(), memory.after.rounded());
            let _ = if before == after {
                writeln!(text, "Memory: {before}{limit}.")
            } else {
                writeln!(text, "Memory: {before}, with the plan {after}{limit}.")
            };
        }
        if outcome.decisions.is_empty() {
            text.push_str("\nNothing that was tried is better than what is in force.\n");
        } else {
            text.push_str("\nDecisions, and what a step is expected to take less or more:\n");
        }
        for decision in &outcome.decisions {
            let _ = writeln!(text, "  {:>+9.2} ms  {}", -decision.expected_gain_ms, decision.what);
            if !decision.applied {
                text.push_str("                not applied by the plan: change the program\n");
            }
        }
        if !outcome.advice.is_empty() {
            text.push_str("\nAdvice, which a plan cannot apply:\n");
        }
        for advice in &outcome.advice {
            let _ = writeln!(text, "  {:>+9.2} ms  {}", -advice.expected_gain_ms, advice.what);
            if advice.condition != "none" {
                let _ = writeln!(text, "                but: {}", advice.condition);
            }
        }
        if let Some(verified) = &self.verified {
            let _ = write!(text, "\n{}", verified.text());
        }
        match output {
            Some(path) => {
                let path = path.display();
                let command = format!("paceline run -n {} --plan {path} -- PROGRAM", self.workers);
                let _ = match self.verified.as_ref().map(Verified::verdict) {
                    None | Some(Verdict::Faster) => {
                        writeln!(text, "\nWritten to {path}. Apply it: {command}")
                    }
                    Some(Verdict::Unclear) => writeln!(
                        text,
                        "\nWritten to {path}. These runs do not show that it is worth applying; to apply it: {command}"
                    ),
                    Some(Verdict::Slower) => writeln!(
                        text,
                        "\nWritten to {path}, but it made steps longer: do not apply it. Record a trace on a machine as busy as it \
                         usually is, and plan again."
                    ),
                };
            }
            None => {
                let _ = write!(text, "\n{}", self.file());
            }
        }
        if let Some(doubt) = &self.doubt {
            let _ = writeln!(text, "note: {doubt}");
        }
        for problem in self.problems.iter().take(MOST_PROBLEMS) {
            let _ = writeln!(text, "note: {problem}");
        }
        if self.problems.len() > MOST_PROBLEMS {
            let _ = writeln!(
                text,
                "note: {} more; see `paceline trace`",
                self.problems.len() - MOST_PROBLEMS
            );
        }
        text
    }
}
