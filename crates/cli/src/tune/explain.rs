//! `paceline tune explain`: the decisions of a tuner, in sentences. What led to them is in the log.

use anyhow::{Context, Result};
use clap::Args;
use paceline_tune::{Action, Decision};
use std::{
    fmt::Write,
    fs::File,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::ExitCode,
};

/// Print what a tuner decided and why, for people.
///
/// Reads the JSON lines that a job writes which tunes itself, or `paceline tune --log`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The log.
    #[arg(value_name = "LOG")]
    log: PathBuf,
}

/// Run the command.
pub fn run(arguments: &ExplainArgs) -> Result<ExitCode> {
    let path = &arguments.log;
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut decisions = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        if line.trim().is_empty() {
            continue;
        }
        let decision: Decision = serde_json::from_str(&line)
            .with_context(|| format!("{}, line {number}: no decision", path.display()))?;
        decisions.push(decision);
    }
    print!("{}", text(&decisions));
    Ok(ExitCode::SUCCESS)
}

fn text(decisions: &[Decision]) -> String {
    let mut text = String::new();
    let mut method = None;
    for decision in decisions {
        // A log may be of several tuners, one after another.
        if method != Some(&decision.method) {
            method = Some(&decision.method);
            let _ = writeln!(text, "Tuned by {}:", decision.method);
        }
        let seen = &decision.conditions;
        let _ = writeln!(text, "  {decision}");
        let _ = writeln!(
            text,
            "      {:.3} steps/s, wires {:.2} gbit/s (slowest {:.2}), computing {:.1} ms (longest {:.1})",
            seen.speed,
            seen.usual_wire * 8e-9,
            seen.slowest_wire * 8e-9,
            seen.usual_computation * 1e3,
            seen.slowest_computation * 1e3,
        );
    }
    let count = |action: Action| decisions.iter().filter(|one| one.action == action).count();
    let _ = writeln!(
        text,
        "{} decisions: {} switches, {} tries; {} confirmed, {} disappointing, {} rolled back, {} void, {} refused.",
        decisions.len(),
        count(Action::Switch),
        count(Action::Try),
        count(Action::Confirm),
        count(Action::Disappoint),
        count(Action::RollBack),
        count(Action::Void),
        count(Action::Refused),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_told_with_its_prediction_and_its_outcome() {
        let line = r#"{"step":40,"method":"replay","action":"confirm","cause":"measured","conditions":{"speed":2.0,
            "slowest_wire":1e9,"usual_wire":1e9,"slowest_computation":0.1,"usual_computation":0.1},
            "present":{"strategy":"ring","partition":"1MiB","credit":"4MiB"},"predicted_gain":1.2,"measured_gain":1.18}"#;
        let decision: Decision = serde_json::from_str(line).unwrap();
        let text = text(&[decision]);
        assert!(
            text.contains("step 40: ring 1MiB/4MiB brought +18.0 %, +20.0 % expected"),
            "{text}"
        );
        assert!(text.contains("1 confirmed"), "{text}");
    }
}
