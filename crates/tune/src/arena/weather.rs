//! What wires carry and how slow workers are, from one change of a script to the next. What that does to a step is not
//! known here.

use super::{ArenaError, Stage};
use paceline_job::{
    Rate,
    script::{Event, LinkChange, Script, Target},
};
use paceline_replay::ReplayError;
use std::time::Duration;

/// Conditions that hold for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Weather {
    /// What each host's wire carries.
    pub hosts: Vec<Rate>,
    /// What each rack's uplink carries; empty if there is one rack.
    pub uplinks: Vec<Rate>,
    /// How many times as long each worker computes.
    pub slowness: Vec<f64>,
}

impl Weather {
    /// The same numbers as bits, to look up what is known of them.
    pub(super) fn key(&self) -> Vec<u64> {
        let rates = self.hosts.iter().chain(&self.uplinks).map(|rate| rate.bytes_per_second());
        rates.chain(self.slowness.iter().copied()).map(f64::to_bits).collect()
    }

    fn apply(&mut self, line: usize, event: Event) -> Result<(), ArenaError> {
        let missing = |what: String, kind: &str, count: usize| ArenaError::Missing {
            line,
            what,
            there: match count {
                0 => format!("there are no {kind}s: with one rack there is no uplink"),
                count => format!("there are {kind}0 to {kind}{}", count - 1),
            },
        };
        let (hosts, racks, workers) = (self.hosts.len(), self.uplinks.len(), self.slowness.len());
        match event {
            Event::Worker(rank, factor) => {
                let slowness = self.slowness.get_mut(rank);
                *slowness.ok_or_else(|| missing(format!("worker{rank}"), "worker", workers))? =
                    factor;
            }
            Event::Link(target, LinkChange::Rate(rate)) => {
                let (link, kind, count) = match target {
                    Target::Host(host) => (self.hosts.get_mut(host), "host", hosts),
                    Target::Rack(rack) => (self.uplinks.get_mut(rack), "rack", racks),
                };
                *link.ok_or_else(|| missing(target.to_string(), kind, count))? = rate;
            }
            Event::Link(target, LinkChange::Cut) => return Err(ArenaError::Cut { line, target }),
            // Nothing was cut.
            Event::Link(_, LinkChange::Restore) => {}
        }
        Ok(())
    }
}

/// A stretch of time in which conditions hold, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// From when on.
    pub from: f64,
    /// Until when.
    pub until: f64,
    /// What holds.
    pub weather: Weather,
    /// The script's line it begins with; none at the beginning.
    pub line: Option<usize>,
}

impl Phase {
    /// How long it lasts.
    pub fn seconds(&self) -> f64 {
        self.until - self.from
    }

    /// An error met while the job was played in this phase, with the line that led to it.
    pub fn blamed(&self, error: ArenaError) -> ArenaError {
        match error {
            ArenaError::Replay(ReplayError::Operation { .. }) => ArenaError::Stalled {
                place: match self.line {
                    Some(line) => format!("script, line {line}"),
                    None => "from the beginning".to_string(),
                },
            },
            other => other,
        }
    }
}

/// The phases of a script that lasts so long.
pub fn phases(stage: &Stage, script: &Script, length: Duration) -> Result<Vec<Phase>, ArenaError> {
    let mut weather = stage.calm();
    let mut phases: Vec<Phase> = Vec::new();
    let (mut from, mut begun_by) = (0.0, None);
    let end = length.as_secs_f64();
    for line in &script.lines {
        let at = line.at.as_secs_f64().min(end);
        let before = weather.clone();
        weather.apply(line.number, line.event)?;
        if at > from && weather != before {
            phases.push(Phase { from, until: at, weather: before.clone(), line: begun_by });
            from = at;
        }
        if weather != before {
            begun_by = Some(line.number);
        }
    }
    if end > from {
        phases.push(Phase { from, until: end, weather, line: begun_by });
    }
    if phases.is_empty() { Err(ArenaError::NoTime) } else { Ok(phases) }
}
