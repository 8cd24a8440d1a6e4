//! What-if questions as the command line has them: changes joined by `+`, values separated by commas.

use crate::{
    carrier::Carrier,
    exit::UsageError,
    scenario::{self, Loaded, WireSource},
};
use anyhow::{Context, Result};
use paceline_job::graph::Graph;
use paceline_replay::graph::{Change, ChangeError, Network, Scenario, play};
use paceline_sync::{program::Semantics, strategy::by_name};
use serde::Serialize;
use std::{collections::HashSet, fmt, path::PathBuf, str::FromStr};

/// One or more cases that were asked for together.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// In the order of the command line.
    pub cases: Vec<Case>,
}

/// Conditions that differ from those of the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// Decides before the changes do.
    plan: Option<PathBuf>,
    changes: Vec<Change>,
}

/// What a step would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// What is different.
    pub what_if: String,
    /// A step then.
    pub step_ms: f64,
    /// Samples a second over those of the job as it is: a step of more workers, or of larger batches, has more.
    pub speed: f64,
    /// What a prediction says that takes each operation as one transfer of its bytes after another; not where one worker
    /// stands for all, nor where operations take as long as recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lumped_step_ms: Option<f64>,
}

impl FromStr for Question {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Question, ChangeError> {
        let mut cases = vec![Case::default()];
        let mut said = HashSet::new();
        for part in text.split('+') {
            let (name, values) =
                part.split_once('=').ok_or_else(|| ChangeError::Unknown(part.to_string()))?;
            let name = name.trim();
            if !said.insert(name) {
                return Err(ChangeError::Twice(name.to_string()));
            }
            let mut next = Vec::new();
            for value in values.split(',').map(str::trim) {
                for mut case in cases.iter().cloned() {
                    case.add(name, value)?;
                    next.push(case);
                }
            }
            cases = next;
        }
        Ok(Question { cases })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan.iter().map(|path| format!("plan={}", path.display()));
        let all: Vec<String> = plan.chain(self.changes.iter().map(Change::to_string)).collect();
        f.write_str(&all.join(" + "))
    }
}

impl Case {
    /// What would be if this plan were in force.
    pub fn of_plan(path: PathBuf) -> Case {
        Case { plan: Some(path), changes: Vec::new() }
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), ChangeError> {
        match name {
            "plan" if value.is_empty() => {
                let problem = "name a file, such as plan.toml".to_string();
                return Err(ChangeError::Value { name: name.to_string(), problem });
            }
            "plan" => self.plan = Some(value.into()),
            _ => self.changes.push(format!("{name}={value}").parse()?),
        }
        Ok(())
    }

    /// The job as the plan has it, if there is one, and what of the plan has no part in it.
    fn planned(&self, loaded: &Loaded) -> Result<(Scenario, Vec<String>)> {
        match &self.plan {
            Some(path) => scenario::planned(loaded, path),
            None => Ok((loaded.scenario.clone(), Vec::new())),
        }
    }

    /// What its asker should know about the plan.
    pub fn left_out(&self, loaded: &Loaded) -> Result<Vec<String>> {
        let (_, left_out) = self.planned(loaded)?;
        Ok(left_out.into_iter().map(|what| format!("{self}: {what}")).collect())
    }

    /// So many times as many samples are in a step.
    fn samples(&self, workers: f64) -> f64 {
        let of_batch = self.changes.iter().map(|change| match change {
            Change::Batch(factor) => *factor,
            _ => 1.0,
        });
        workers * of_batch.product::<f64>()
    }

    /// Play the job under these conditions, whose step takes `now` milliseconds without them; if workers are `alike`, one of them for all. Where nobody knows what carries
    /// operations, they take as long as recorded, which answers what does not concern them.
    pub fn ask(&self, loaded: &Loaded, skip: usize, alike: bool, now: f64) -> Result<Answer> {
        let what_if = self.to_string();
        let (step_ms, lumped_step_ms) = self.step_ms(loaded, skip, alike)?;
        let workers = self.workers(loaded) as f64 / present(loaded) as f64;
        let speed = self.samples(workers) * now / step_ms;
        Ok(Answer { what_if, step_ms, speed, lumped_step_ms })
    }

    /// A step, and a step if each operation were one transfer, where that is known.
    fn step_ms(&self, loaded: &Loaded, skip: usize, alike: bool) -> Result<(f64, Option<f64>)> {
        let what_if = self.to_string();
        if self.asks_what_nobody_sent(loaded) {
            let text = format!(
                "--what-if {what_if}: this worker was alone and the trace names no layers, so nobody knows what it would send to others; \
                 give the traces of several workers, or record one with `paceline run --trace`"
            );
            return Err(UsageError::new(text).into());
        }
        let (mut changed, _) = self.planned(loaded)?;
        let scenario = &loaded.scenario;
        let mut workers = scenario.graph.workers.len();
        for change in &self.changes {
            match change {
                Change::Workers(count) if alike => workers = *count,
                change => changed = changed.with(change),
            }
        }
        if self.shares_the_host(loaded) {
            let host = scenario.graph.workers[0].host.clone();
            changed.graph.workers.iter_mut().for_each(|worker| worker.host.clone_from(&host));
        }
        let settings = changed.settings.validate();
        settings.with_context(|| format!("--what-if {what_if}"))?;
        let context = || format!("--what-if {what_if} cannot be played");
        let wires_are_known = self.knows_wires(loaded);
        let carrier = match self.carrier(loaded, &changed.graph) {
            Carrier::Missing(peers) => Carrier::Missing(peers),
            _ if alike => Carrier::Wires,
            carrier => carrier,
        };
        let known = carrier.is_known(loaded) || carrier == Carrier::Wires && wires_are_known;
        if !known {
            let concerns = |change: &Change| match change {
                Change::Bandwidth(_) | Change::Latency(_) => carrier != Carrier::Memory,
                change => concerns_operations(change),
            };
            if !alike && self.plan.is_none() && !self.changes.iter().any(concerns) {
                return as_recorded(&what_if, &changed.graph, skip);
            }
            let remedy = match carrier {
                Carrier::Memory => "; give --bandwidth to take memory as it usually is",
                _ => "",
            };
            let text = format!("--what-if {what_if}: {}{remedy}", carrier.why_unknown());
            return Err(UsageError::new(text).into());
        }
        if alike {
            let step_ms = changed.play_mirrored(workers).with_context(context)?.step_ms(skip);
            return Ok((step_ms, None));
        }
        let step_ms = changed.play().with_context(context)?.step_ms(skip);
        let lumped = play(&changed.graph, &Network::Lumped(carrier.link(&changed).rate));
        Ok((step_ms, Some(lumped.with_context(context)?.step_ms(skip))))
    }

    /// How many workers it is about.
    pub fn workers(&self, loaded: &Loaded) -> usize {
        let asked = self.changes.iter().rev().find_map(|change| match change {
            Change::Workers(count) => Some(*count),
            _ => None,
        });
        asked.unwrap_or(present(loaded))
    }

    /// What carries its operations. Who asks for a number of workers, where layers are known, has all of them: copies of those that
    /// are there.
    fn carrier(&self, loaded: &Loaded, graph: &Graph) -> Carrier {
        let asks = self.changes.iter().any(|change| matches!(change, Change::Workers(_)));
        match loaded.missing {
            Some(peers) if asks && peers.can_be_copied => Carrier::among(graph),
            _ => Carrier::of(loaded, graph),
        }
    }

    /// How many workers it is about, where one stands for all, and for how many operations of a step that is not exact.
    pub fn uneven(&self, loaded: &Loaded) -> (usize, usize) {
        let workers = self.workers(loaded);
        (workers, loaded.scenario.uneven(workers))
    }

    /// Whether it asks for other numbers of workers that all share a host, and nothing is known of a network between copies of it: then
    /// the others are on that host as well.
    pub fn shares_the_host(&self, loaded: &Loaded) -> bool {
        let asks = self.changes.iter().any(|change| matches!(change, Change::Workers(_)));
        let one_host = Carrier::of(loaded, &loaded.scenario.graph) == Carrier::Memory;
        let more = self.workers(loaded) > loaded.scenario.graph.workers.len();
        asks && more && one_host && !self.knows_wires(loaded)
    }

    /// Whether it asks for a strategy after which workers do not all have the same.
    pub fn averages_in_groups(&self) -> bool {
        let averages = |change: &Change| match change {
            Change::Strategy(choice) => by_name(&choice.to_string())
                .is_some_and(|strategy| strategy.semantics() != Semantics::Reduce),
            _ => false,
        };
        self.changes.iter().any(averages)
    }

    /// Whether it asks for company for a worker that was alone, of which it is not known what it would send.
    fn asks_what_nobody_sent(&self, loaded: &Loaded) -> bool {
        let (graph, layered) = (&loaded.scenario.graph, &loaded.job.layered);
        let sends_nothing = graph.workers.len() == 1 && graph.operations.is_empty();
        sends_nothing && layered.is_none() && self.workers(loaded) > 1
    }

    /// Whether it is known what wires carry.
    fn knows_wires(&self, loaded: &Loaded) -> bool {
        let given = self.changes.iter().any(|change| matches!(change, Change::Bandwidth(_)));
        given || loaded.wire != WireSource::Nowhere
    }

    /// Whether it changes wires where there are none, because all workers are on one host.
    pub fn asks_for_absent_wires(&self, loaded: &Loaded) -> bool {
        let of_wires =
            |change: &Change| matches!(change, Change::Bandwidth(_) | Change::Latency(_));
        let workers = self.changes.iter().fold(loaded.scenario.clone(), |scenario, change| {
            if let Change::Workers(_) = change { scenario.with(change) } else { scenario }
        });
        self.changes.iter().any(of_wires) && self.carrier(loaded, &workers.graph) == Carrier::Memory
    }
}

/// How many workers the job has as it is.
fn present(loaded: &Loaded) -> usize {
    let there = loaded.scenario.graph.workers.len();
    loaded.missing.and_then(|peers| peers.wanted).unwrap_or(there)
}

/// Whether what operations take depends on it.
fn concerns_operations(change: &Change) -> bool {
    match change {
        Change::Batch(_) | Change::Device(_) | Change::Straggler => false,
        Change::Bandwidth(_)
        | Change::Latency(_)
        | Change::Workers(_)
        | Change::Strategy(_)
        | Change::Partition(_)
        | Change::Credit(_)
        | Change::Precision(_)
        | Change::FirstCome => true,
    }
}

fn as_recorded(what_if: &str, graph: &Graph, skip: usize) -> Result<(f64, Option<f64>)> {
    let played = play(graph, &Network::Recorded);
    let played = played.with_context(|| format!("--what-if {what_if} cannot be played"))?;
    Ok((played.step_ms(skip), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Vec<String> {
        let question: Question = text.parse().unwrap();
        question.cases.iter().map(|case| case.to_string().replace(' ', "")).collect()
    }

    #[test]
    fn commas_make_a_sweep_and_plus_joins() {
        assert_eq!(asked("partition=256KiB,1MiB"), ["partition=256KiB", "partition=1MiB"]);
        assert_eq!(asked("workers=8+bandwidth=1gbit"), ["workers=8+bandwidth=1gbit"]);
        assert_eq!(asked("workers=2,4+batch=2x,3x").len(), 4);
        assert_eq!(asked("plan=a.toml,b.toml+workers=8").len(), 2);
        assert!("plan=".parse::<Question>().is_err());
        assert!("bandwidth".parse::<Question>().is_err());
        let twice = "bandwidth=1gbit+bandwidth=2gbit".parse::<Question>().unwrap_err();
        assert!(twice.to_string().contains("bandwidth is said twice"), "{twice}");
        assert!("bandwidth=1gbit,fast".parse::<Question>().is_err());
    }
}
