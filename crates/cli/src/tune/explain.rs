//! `paceline tune explain`: the decisions of a tuner, in sentences. What led to them is in the log.

use anyhow::{Context, Result};
use clap::Args;
use paceline_tune::{Action, Decision};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs::File,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::ExitCode,
};

/// Print what a tuner decided and why, for people.
///
/// Reads the JSON lines that a job writes which tunes itself, or `paceline tune --log`. Lines that are no decisions are named,
/// and the others explained.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  explained; the last line may be cut, as while a job writes it
  1  the log cannot be read, or some line of it")]
pub struct ExplainArgs {
    /// The log.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Print JSON: decisions, how often each was made, and which lines are none.
    #[arg(long)]
    json: bool,
}

/// So many lines that cannot be read are named.
const NAMED: usize = 10;

/// A log, as far as it can be read.
#[derive(Debug, Default, Serialize)]
struct Reading {
    decisions: Vec<Decision>,
    /// How often each was done.
    counts: BTreeMap<&'static str, usize>,
    unreadable: Vec<Unreadable>,
}

/// A line that is no decision.
#[derive(Debug, Serialize)]
struct Unreadable {
    /// Counted from 1.
    line: usize,
    problem: String,
    /// Whether it is the last and has no end: a running job may be writing it.
    unfinished: bool,
}

/// Run the command.
pub fn run(arguments: &ExplainArgs) -> Result<ExitCode> {
    let path = arguments.log.display();
    let file = File::open(&arguments.log);
    let reading = file.and_then(|file| Reading::of(BufReader::new(file)));
    let reading = reading.with_context(|| format!("cannot read {path}"))?;
    if arguments.json {
        println!("{}", printable_json(&serde_json::to_string_pretty(&reading)?));
    } else {
        print!("{}", text(&reading.decisions));
    }
    for Unreadable { line, problem, unfinished } in reading.unreadable.iter().take(NAMED) {
        match unfinished {
            true => eprintln!("paceline: {path}, line {line} is not finished, and was left out"),
            false => {
                eprintln!("paceline: {path}, line {line}: no decision: {}", printable(problem))
            }
        }
    }
    if let more @ 1.. = reading.unreadable.len().saturating_sub(NAMED) {
        eprintln!("paceline: {path}: {more} more lines are no decisions");
    }
    let whole = reading.unreadable.iter().all(|line| line.unfinished);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Reading {
    fn of(mut log: impl BufRead) -> std::io::Result<Reading> {
        let mut reading = Reading::default();
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            if log.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match decision(&bytes) {
                Ok(decision) => reading.decisions.push(decision),
                Err(problem) => {
                    let unfinished = !bytes.ends_with(b"\n");
                    reading.unreadable.push(Unreadable { line, problem, unfinished });
                }
            }
        }
        for action in Action::ALL {
            reading.counts.insert(action.word(), count(&reading.decisions, action));
        }
        Ok(reading)
    }
}

fn decision(line: &[u8]) -> Result<Decision, String> {
    let decision: Decision = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    decision.problem().map_or(Ok(decision), |problem| Err(problem.to_string()))
}

fn count(decisions: &[Decision], action: Action) -> usize {
    decisions.iter().filter(|one| one.action == action).count()
}

/// Text of a log as a terminal may have it: what would move its cursor or change its colours is spelled out.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '"' | '\'' | '\\' => printable.push(one),
            other => printable.extend(other.escape_debug()),
        }
    }
    printable
}

/// The same of JSON, which remains what it is.
fn printable_json(json: &str) -> String {
    let mut printable = String::with_capacity(json.len());
    for one in json.chars() {
        if one == '\n' || !one.is_control() {
            printable.push(one);
        } else {
            let _ = write!(printable, "\\u{:04x}", u32::from(one));
        }
    }
    printable
}

fn text(decisions: &[Decision]) -> String {
    let mut text = String::new();
    let mut method = None;
    for decision in decisions {
        // A log may be of several tuners, one after another.
        if method != Some(&decision.method) {
            method = Some(&decision.method);
            let _ = writeln!(text, "Tuned by {}:", printable(&decision.method));
        }
        let seen = &decision.conditions;
        let _ = writeln!(text, "  {}", printable(&decision.to_string()));
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
    let count = |action| count(decisions, action);
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

    const LINE: &str = r#"{"step":40,"method":"replay","action":"switch","cause":"slow","conditions":{"speed":2.0,"slowest_wire":1e9,"usual_wire":1e9,"slowest_computation":0.1,"usual_computation":0.1},"present":{"strategy":"ring","partition":"1MiB","credit":"4MiB"}}"#;

    #[test]
    fn what_can_be_read_is_read_and_the_other_lines_are_named() {
        let speed = LINE.replace("2.0", "-1.0");
        let log = format!("{LINE}\n\nnothing\n{speed}\n{LINE}\n{}", &LINE[..50]);
        let reading = Reading::of(log.as_bytes()).unwrap();
        assert_eq!((reading.decisions.len(), reading.counts["switch"]), (2, 2));
        let lines: Vec<_> = reading.unreadable.iter().map(|it| (it.line, it.unfinished)).collect();
        assert_eq!(lines, [(3, false), (4, false), (6, true)]);
        assert!(reading.unreadable[1].problem.contains("below 0"));
        // A last line that is whole but for its end is one.
        assert_eq!(Reading::of(LINE.as_bytes()).unwrap().decisions.len(), 1);
        let latin = Reading::of(&b"\xff\n"[..]).unwrap();
        assert_eq!(latin.unreadable.len(), 1);
    }

    #[test]
    fn what_would_move_a_terminals_cursor_is_spelled_out() {
        let told = LINE.replace("slow\"", "\\u001b[2J\\u009bé\\n'fast'\"");
        let reading = Reading::of(told.as_bytes()).unwrap();
        let text = text(&reading.decisions);
        assert!(text.contains(r"\u{1b}[2J\u{9b}é\n'fast'"), "{text}");
        let json = printable_json(&serde_json::to_string(&reading).unwrap());
        assert!(json.contains(r"\u001b[2J\u009bé\n'fast'") && !json.contains('\u{9b}'), "{json}");
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }

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
