//! Scripts that have names. Their phases are as long as so many steps of the job as it is at the beginning, so that every
//! phase weighs the same whatever the model and the rate; a short one weighs a tenth. What tuners make of them is not known
//! here.

use super::{ArenaError, Phase, Truth, Weather, phases};
use crate::Candidate;
use paceline_job::script::{Event, LinkChange, Script, ScriptLine, Target};
use std::{fmt, str::FromStr, time::Duration};

/// A script with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// Nothing ever changes.
    Still,
    /// All wires: to a tenth, to a half, to a fortieth, and back.
    Steps,
    /// All wires: down to a twentieth in eight steps, and up again.
    Ramp,
    /// All wires: to a tenth for short times.
    Bursts,
    /// One host's wire: to a tenth, and back.
    SlowHost,
    /// One rack's uplink: to a tenth of what one host's wire carries, and back.
    SlowRack,
    /// One worker computes twice as long, and recovers.
    Straggler,
    /// A second job comes to the hosts: wires carry half, and computation takes half as long again; then it leaves.
    SecondJob,
}

/// A script's sections: what changes at their beginning, and how long they are.
type Sections = Vec<(Vec<Event>, f64)>;

impl Named {
    /// All of them.
    pub const ALL: [Named; 8] = [
        Named::Still,
        Named::Steps,
        Named::Ramp,
        Named::Bursts,
        Named::SlowHost,
        Named::SlowRack,
        Named::Straggler,
        Named::SecondJob,
    ];

    /// As commands call it.
    pub fn name(self) -> &'static str {
        match self {
            Named::Still => "still",
            Named::Steps => "steps",
            Named::Ramp => "ramp",
            Named::Bursts => "bursts",
            Named::SlowHost => "slow-host",
            Named::SlowRack => "slow-rack",
            Named::Straggler => "straggler",
            Named::SecondJob => "second-job",
        }
    }

    /// The script and its phases, with `steps` steps to a phase of weight 1.
    pub fn script(
        self,
        truth: &mut Truth<'_>,
        steps: f64,
    ) -> Result<(Script, Vec<Phase>), ArenaError> {
        let stage = truth.stage();
        let default = Candidate::of(&stage.settings);
        let mut script = Script::default();
        let mut end = 0.0;
        for (events, weight) in self.sections(&stage.calm()) {
            let at = Duration::from_secs_f64(end);
            for event in events {
                let number = script.lines.len() + 1;
                script.lines.push(ScriptLine { number, at, event });
            }
            let until = Duration::from_secs_f64(end + 1.0);
            // A script that lasts some time has phases.
            let Some(last) = phases(stage, &script, until)?.pop() else { continue };
            let seconds = truth.seconds(&last.weather, &default);
            end += weight * steps * seconds.map_err(|error| last.blamed(error))?;
        }
        let phases = phases(stage, &script, Duration::from_secs_f64(end))?;
        Ok((script, phases))
    }

    fn sections(self, calm: &Weather) -> Sections {
        let host = |host: usize, share: f64| {
            let rate = calm.hosts[host].scaled(share);
            Event::Link(Target::Host(host), LinkChange::Rate(rate))
        };
        let all = |share: f64| -> Vec<Event> {
            (0..calm.hosts.len()).map(|place| host(place, share)).collect()
        };
        let last = calm.hosts.len() - 1;
        match self {
            // Long enough for a search that tries.
            Named::Still => vec![(Vec::new(), 6.0)],
            Named::Steps => [1.0, 0.1, 0.5, 0.025, 1.0].map(|share| (all(share), 1.0)).to_vec(),
            Named::Ramp => {
                let share = |place: i32| 20_f64.powf(-f64::from(8 - (8 - place).abs()) / 8.0);
                (0..=16).map(|place| (all(share(place)), 0.4)).collect()
            }
            Named::Bursts => {
                let pair = [(all(1.0), 1.0), (all(0.1), 0.1)];
                pair.iter().cycle().take(9).cloned().collect()
            }
            Named::SlowHost => [1.0, 0.1, 1.0].map(|share| (vec![host(last, share)], 1.0)).to_vec(),
            Named::SlowRack => {
                let rack = |rack: usize| {
                    let slow = calm.hosts[0].scaled(0.1);
                    Event::Link(Target::Rack(rack), LinkChange::Rate(slow))
                };
                let back = Event::Link(
                    Target::Rack(1),
                    LinkChange::Rate(calm.uplinks.get(1).copied().unwrap_or(calm.hosts[0])),
                );
                vec![(Vec::new(), 1.0), (vec![rack(1)], 1.0), (vec![back], 1.0)]
            }
            Named::Straggler => {
                [1.0, 2.0, 1.0].map(|factor| (vec![Event::Worker(last, factor)], 1.0)).to_vec()
            }
            Named::SecondJob => {
                let shared = |share: f64, factor: f64| {
                    let slower = (0..=last).map(|rank| Event::Worker(rank, factor));
                    (all(share).into_iter().chain(slower).collect(), 1.0)
                };
                vec![shared(1.0, 1.0), shared(0.5, 1.5), shared(1.0, 1.0)]
            }
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Use one of the names listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no script; known: still, steps, ramp, bursts, slow-host, slow-rack, straggler, second-job"
)]
pub struct UnknownScript(pub String);

impl FromStr for Named {
    type Err = UnknownScript;

    fn from_str(text: &str) -> Result<Named, UnknownScript> {
        let found = Named::ALL.into_iter().find(|named| named.name() == text);
        found.ok_or_else(|| UnknownScript(text.to_string()))
    }
}
