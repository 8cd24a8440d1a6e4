//! Changes of the network over time, for one network: a [script](paceline_job::script) whose every link is there. Lines
//! about workers are left to those who compute. It neither waits nor acts.

use crate::{
    error::{Error, Result},
    spec::{Spec, validate_rate},
};
use paceline_job::script::{Event, LinkChange, Script as Lines, Target};
use std::time::Duration;

/// One change of the network.
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
    /// Read a script for this network.
    ///
    /// # Errors
    /// [`Error::Script`] with the line that cannot be followed.
    pub fn parse(text: &str, spec: &Spec) -> Result<Script> {
        let refuse = |line: usize, reason: String| Error::Script { line, reason };
        let script: Lines = text
            .parse()
            .map_err(|error: paceline_job::script::ScriptError| refuse(error.line, error.reason))?;
        let mut events = Vec::with_capacity(script.lines.len());
        for line in script.lines {
            let Event::Link(target, change) = line.event else { continue };
            let wrong = |error: Error| refuse(line.number, error.to_string());
            spec.expect(target).map_err(wrong)?;
            if let LinkChange::Rate(rate) = change {
                validate_rate(rate).map_err(wrong)?;
            }
            events.push(ScriptEvent { at: line.at, target, change });
        }
        Ok(Script { events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Script> {
        let rate = "500mbit".parse().unwrap();
        Script::parse(text, &Spec { racks: 2, ..Spec::new(4, rate) })
    }

    #[test]
    fn lines_about_workers_are_left_to_those_who_compute() {
        let script = parse("6 host3 cut\n1 worker0 2x\n4 rack1 50mbit\n").unwrap();
        let targets: Vec<Target> = script.events.iter().map(|event| event.target).collect();
        assert_eq!(targets, [Target::Rack(1), Target::Host(3)]);
    }

    #[test]
    fn a_line_that_this_network_cannot_follow_is_named() {
        for (text, part) in [
            ("1 host0 10mbit\nsoon host0 cut", "line 2: `soon`"),
            ("1 host4 cut", "host0 to host3"),
            ("\n\n1 rack2 cut", "line 3: no rack2; the racks are rack0 to rack1"),
            ("1 host0 1kbit", "1mbit"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
