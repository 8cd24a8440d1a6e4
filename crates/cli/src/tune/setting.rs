//! The stage of a trial, of what a trace shows and the command line says, and the script that is played on it.

use crate::{
    exit::UsageError,
    scenario::{Loaded, WireSource},
};
use anyhow::{Context, Result};
use paceline_job::{Rate, graph::layered::LayerTimes, script::Script};
use paceline_replay::{ClusterConfig, WorkerConfig};
use paceline_tune::arena::{Named, Stage};
use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// What a message costs a worker's thread. Tuners do not know it; replay search takes the usual 5 µs.
const PER_MESSAGE: Duration = Duration::from_micros(8);

/// Where a script comes from. A name is one unless there is a file of that name.
#[derive(Clone, Debug)]
pub enum Source {
    /// Made for the job.
    Named(Named),
    /// Read.
    File(PathBuf),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        let path = PathBuf::from(text);
        if path.is_file() {
            return Ok(Source::File(path));
        }
        text.parse()
            .map(Source::Named)
            .map_err(|error: paceline_tune::arena::UnknownScript| format!("{error}, nor a file"))
    }
}

/// Read a script.
pub fn read(path: &Path) -> Result<Script> {
    let name = || format!("the script {}", path.display());
    let text = std::fs::read_to_string(path).with_context(name)?;
    text.parse::<Script>().with_context(name)
}

/// Until the last change, and half of that again.
pub fn usual_length(script: &Script) -> Duration {
    let last = script.lines.last().map_or(Duration::ZERO, |line| line.at);
    (last + last / 2).max(Duration::from_secs(60))
}

/// What the command line says of the stage.
pub struct Staging {
    /// Like the first of the trace.
    pub workers: Option<usize>,
    /// Of hosts.
    pub racks: usize,
    /// Of each rack.
    pub uplink: Option<Rate>,
    /// How many times as long computation takes.
    pub slow: f64,
}

impl Staging {
    /// A job, and the network it runs on.
    pub fn stage(&self, loaded: &Loaded) -> Result<Stage> {
        let refuse = |text: &str| -> anyhow::Error { UsageError::new(text.to_string()).into() };
        let Some(mut layered) = loaded.job.layered.clone() else {
            return Err(refuse("tuning needs a trace that names layers"));
        };
        if let (Some(peers), None) = (loaded.missing, self.workers) {
            return Err(peers.not_enough_for("settings").into());
        }
        if loaded.wire == WireSource::Nowhere {
            return Err(refuse(
                "this trace does not show what the network carries; give --bandwidth",
            ));
        }
        if !(self.slow.is_finite() && self.slow > 0.0) {
            return Err(refuse("--slow is a factor above 0, such as 2"));
        }
        if let Some(count) = self.workers {
            layered = layered.like_first(count);
        }
        if layered.workers.len() < 2 {
            return Err(refuse("one worker sends nothing; give --workers N, such as 4"));
        }
        let mut hosts: Vec<&str> =
            layered.workers.iter().map(|worker| worker.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() < layered.workers.len() {
            return Err(refuse(
                "some workers share a host; give --workers N to have each on a host of its own",
            ));
        }
        if self.racks == 0 || self.racks > layered.workers.len() {
            return Err(refuse("every rack needs a host; give fewer --racks"));
        }
        layered = layered.with_steps(0..1);
        layered.forget_recorded();
        for worker in &mut layered.workers {
            worker.steps.iter_mut().flatten().for_each(|times| *times = self.slowed(*times));
        }
        let scenario = &loaded.scenario;
        Ok(Stage {
            layered,
            racks: self.racks,
            rate: scenario.wire.rate,
            uplink: self.uplink,
            latency: scenario.wire.latency,
            memory: scenario.memory,
            config: ClusterConfig {
                worker: WorkerConfig { per_frame: PER_MESSAGE, ..WorkerConfig::default() },
                ..ClusterConfig::default()
            },
            settings: scenario.settings.clone(),
        })
    }

    fn slowed(&self, times: LayerTimes) -> LayerTimes {
        times.slower(self.slow)
    }
}
