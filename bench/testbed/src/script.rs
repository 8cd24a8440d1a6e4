//! Changes of the network over time, as a text that people write: one change a line, `TIME TARGET WHAT`.
//! It reads and orders them; it neither waits nor acts.
//!
//! ```text
//! # seconds  link   what
//! 2.5        host3  100mbit
//! 4          rack1  50mbit
//! 6          host3  cut
//! 7          host3  restore
//! ```

use crate::{
    error::{Error, Result},
    spec::{Spec, Target, validate_rate},
};
use paceline_job::Rate;
use std::{fmt, str::FromStr, time::Duration};

/// What happens to a link, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkChange {
    /// It carries this much from now on.
    Rate(Rate),
    /// It carries nothing, as if the cable were pulled.
    Cut,
    /// The cable is plugged in again; the rate is what it was.
    Restore,
}

impl fmt::Display for LinkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkChange::Rate(rate) => rate.fmt(f),
            LinkChange::Cut => f.pad("cut"),
            LinkChange::Restore => f.pad("restore"),
        }
    }
}

impl FromStr for LinkChange {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "cut" => Ok(LinkChange::Cut),
            "restore" => Ok(LinkChange::Restore),
            _ => text
                .parse()
                .map(LinkChange::Rate)
                .map_err(|_| format!("`{text}` is no rate such as 100mbit, nor cut or restore")),
        }
    }
}

/// One line of a script.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScriptEvent {
    /// Since the commands were started.
    pub at: Duration,
    /// Which link.
    pub target: Target,
    /// What happens to it.
    pub change: LinkChange,
}

/// Changes in the order of their times; those of one time in the order they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Sorted by time.
    pub events: Vec<ScriptEvent>,
}

impl Script {
    /// Read a script for this network. Empty lines, and everything after `#`, are left out.
    ///
    /// # Errors
    /// [`Error::Script`] with the line that cannot be followed.
    pub fn parse(text: &str, spec: &Spec) -> Result<Script> {
        let mut events = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let event = read_event(&words, spec);
            events.push(event.map_err(|reason| Error::Script { line: number + 1, reason })?);
        }
        events.sort_by_key(|event| event.at);
        Ok(Script { events })
    }
}

fn read_event(words: &[&str], spec: &Spec) -> std::result::Result<ScriptEvent, String> {
    let [time, target, change] = words else {
        return Err(format!(
            "expected `SECONDS LINK WHAT`, such as `2.5 host3 100mbit`, found {} words",
            words.len()
        ));
    };
    let at = time
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("`{time}` is no time in seconds"))?;
    let target: Target = target.parse()?;
    spec.expect(target).map_err(|error| error.to_string())?;
    let change: LinkChange = change.parse()?;
    if let LinkChange::Rate(rate) = change {
        validate_rate(rate).map_err(|error| error.to_string())?;
    }
    Ok(ScriptEvent { at, target, change })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Script> {
        let rate = "500mbit".parse().unwrap();
        Script::parse(text, &Spec { racks: 2, ..Spec::new(4, rate) })
    }

    #[test]
    fn a_script_is_read_in_the_order_of_its_times() {
        let text = "# a comment\n6 host3 cut\n\n2.5 host3 100mbit # slower\n4 rack1 50mbit\n6 host3 restore\n";
        let script = parse(text).unwrap();
        let lines: Vec<String> = script
            .events
            .iter()
            .map(|event| format!("{} {} {}", event.at.as_secs_f64(), event.target, event.change))
            .collect();
        assert_eq!(
            lines,
            ["2.5 host3 100mbit", "4 rack1 50mbit", "6 host3 cut", "6 host3 restore"]
        );
    }

    #[test]
    fn a_line_that_cannot_be_followed_is_named() {
        for (text, part) in [
            ("1 host0 10mbit\nsoon host0 cut", "line 2: `soon`"),
            ("-1 host0 cut", "`-1`"),
            ("inf host0 cut", "`inf`"),
            ("1 host4 cut", "host0 to host3"),
            ("1 rack2 cut", "rack0 to rack1"),
            ("1 host0", "found 2 words"),
            ("1 host0 fast", "`fast`"),
            ("1 host0 1kbit", "1mbit"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
