//! Changes of a job's conditions over time, as a text that people write: one change a line, `SECONDS WHAT HOW`. It
//! reads and orders them; it neither waits nor acts, and does not know which hosts and workers there are.
//!
//! ```text
//! # seconds  what     how
//! 2.5        host3    100mbit
//! 4          rack1    50mbit
//! 6          host3    cut
//! 7          host3    restore
//! 8          worker2  1.5x      # its computation takes half as long again
//! ```

use crate::Rate;
use std::{fmt, str::FromStr, time::Duration};

/// One link of a network. Written `host3` or `rack1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The wire between a host and its rack.
    Host(usize),
    /// The uplink of a rack.
    Rack(usize),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Host(host) => write!(f, "host{host}"),
            Target::Rack(rack) => write!(f, "rack{rack}"),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let host = numbered(text, "host").map(Target::Host);
        let rack = || numbered(text, "rack").map(Target::Rack);
        host.or_else(rack).ok_or_else(|| format!("`{text}` is no link such as host3 or rack1"))
    }
}

fn numbered(text: &str, kind: &str) -> Option<usize> {
    text.strip_prefix(kind)?.parse().ok()
}

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

    fn from_str(text: &str) -> Result<Self, Self::Err> {
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

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A link.
    Link(Target, LinkChange),
    /// A worker's computation takes so many times as long as at the beginning.
    Worker(usize, f64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Link(target, change) => write!(f, "{target} {change}"),
            Event::Worker(rank, factor) => write!(f, "worker{rank} {factor}x"),
        }
    }
}

/// By how much computation may differ from the beginning: what differs by more is a slip of the pen.
const FACTORS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

/// One line of a script.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScriptLine {
    /// Counted from 1.
    pub number: usize,
    /// Since the beginning.
    pub at: Duration,
    /// What happens then.
    pub event: Event,
}

/// A line that cannot be followed: mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("script, line {line}: {reason}")]
pub struct ScriptError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// Changes in the order of their times; those of one time in the order they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Sorted by time.
    pub lines: Vec<ScriptLine>,
}

impl FromStr for Script {
    type Err = ScriptError;

    /// Empty lines, and everything after `#`, are left out.
    fn from_str(text: &str) -> Result<Script, ScriptError> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let content = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let (at, event) =
                read(&words).map_err(|reason| ScriptError { line: number, reason })?;
            lines.push(ScriptLine { number, at, event });
        }
        lines.sort_by_key(|line| line.at);
        Ok(Script { lines })
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{} {}", line.at.as_secs_f64(), line.event)?;
        }
        Ok(())
    }
}

fn read(words: &[&str]) -> Result<(Duration, Event), String> {
    let [time, what, how] = words else {
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
    if let Some(worker) = numbered(what, "worker") {
        let factor = how.strip_suffix('x').and_then(|factor| factor.parse().ok());
        let fits = factor.filter(|factor: &f64| FACTORS.contains(factor));
        let factor = fits.ok_or_else(|| {
            format!(
                "`{how}` is no factor from {}x to {}x, such as 2x",
                FACTORS.start(),
                FACTORS.end()
            )
        })?;
        return Ok((at, Event::Worker(worker, factor)));
    }
    Ok((at, Event::Link(what.parse()?, how.parse()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_in_the_order_of_its_times_and_written_as_it_is_read() {
        let text = "# a comment\n6 host3 cut\n\n2.5 host3 100mbit # slower\n4 rack1 50mbit\n6 host3 restore\n8 worker2 1.5x\n";
        let script: Script = text.parse().unwrap();
        let expected =
            "2.5 host3 100mbit\n4 rack1 50mbit\n6 host3 cut\n6 host3 restore\n8 worker2 1.5x\n";
        assert_eq!(script.to_string(), expected);
        assert_eq!(script.lines[0].number, 4);
        let again: Script = expected.parse().unwrap();
        assert_eq!(again.to_string(), expected);
    }

    #[test]
    fn a_line_that_cannot_be_followed_is_named() {
        for (text, part) in [
            ("1 host0 10mbit\nsoon host0 cut", "line 2: `soon`"),
            ("-1 host0 cut", "`-1`"),
            ("inf host0 cut", "`inf`"),
            ("1 host0", "found 2 words"),
            ("1 host0 fast", "`fast`"),
            ("1 switch0 cut", "`switch0`"),
            ("1 worker0 2", "`2` is no factor"),
            ("1 worker0 0x", "`0x` is no factor"),
            (
                "1 host0 1mbit\n1 worker0 1e300x",
                "line 2: `1e300x` is no factor from 0.001x to 1000x",
            ),
            ("1 worker0 nanx", "`nanx` is no factor"),
        ] {
            let error = text.parse::<Script>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn links_are_written_as_they_are_read() {
        for target in [Target::Host(0), Target::Rack(12)] {
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        for wrong in ["", "host", "host-1", "rack1x", "switch0"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
