//! What a step really takes: by replay, each setting under each condition once. Tuners are not told.

use super::{ArenaError, Stage, Weather};
use crate::{Candidate, Space};
use paceline_job::{Host, Link, Topology, View, graph::layered::Layered};
use paceline_replay::{
    ClusterConfig,
    graph::{Network, Shown, metrics, play},
};
use rustc_hash::FxHashMap;
use std::{rc::Rc, sync::Arc};

/// Steps that are played: the first finds nothing left over from one before, the others count.
const STEPS: usize = 3;
/// Steps that workers measure: they leave out the first ones.
const MEASURED: usize = 6;

/// Plays a job, and remembers.
#[derive(Debug)]
pub struct Truth<'s> {
    stage: &'s Stage,
    known: FxHashMap<(Vec<u64>, Candidate), f64>,
    shown: FxHashMap<(Vec<u64>, Candidate), Rc<Shown>>,
    replays: usize,
}

impl<'s> Truth<'s> {
    /// Of this job.
    pub fn of(stage: &'s Stage) -> Truth<'s> {
        Truth { stage, known: FxHashMap::default(), shown: FxHashMap::default(), replays: 0 }
    }

    /// The job.
    pub fn stage(&self) -> &'s Stage {
        self.stage
    }

    /// How many steps were replayed.
    pub fn replays(&self) -> usize {
        self.replays
    }

    /// Seconds of a step.
    pub fn seconds(&mut self, weather: &Weather, candidate: &Candidate) -> Result<f64, ArenaError> {
        let key = (weather.key(), candidate.clone());
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        self.replays += 1;
        let graph = self.layered(weather, STEPS).graph();
        let played = play(&graph, &self.network(weather, candidate, false))?;
        let seconds = played.step_ms(0) / 1e3;
        if seconds <= 0.0 {
            return Err(ArenaError::Idle);
        }
        self.known.insert(key, seconds);
        Ok(seconds)
    }

    /// What workers measure, by the rules of the runtime and without noise.
    pub fn shown(
        &mut self,
        weather: &Weather,
        candidate: &Candidate,
    ) -> Result<Rc<Shown>, ArenaError> {
        let key = (weather.key(), candidate.clone());
        if let Some(shown) = self.shown.get(&key) {
            return Ok(shown.clone());
        }
        self.replays += 1;
        let graph = self.layered(weather, MEASURED).graph();
        let played = play(&graph, &self.network(weather, candidate, true))?;
        let shown = Rc::new(metrics(&graph, &played)?);
        self.shown.insert(key, shown.clone());
        Ok(shown)
    }

    /// The fastest candidate of a space, and the seconds of its step.
    pub fn best(
        &mut self,
        weather: &Weather,
        space: &Space,
    ) -> Result<(Candidate, f64), ArenaError> {
        let mut best = (space.at(space.place(0)), f64::INFINITY);
        for candidate in space.candidates() {
            let seconds = self.seconds(weather, &candidate)?;
            if seconds < best.1 {
                best = (candidate, seconds);
            }
        }
        Ok(best)
    }

    fn layered(&self, weather: &Weather, steps: usize) -> Layered {
        let mut layered = self.stage.layered.clone().repeated(steps);
        for (worker, slowness) in layered.workers.iter_mut().zip(&weather.slowness) {
            for times in worker.steps.iter_mut().flatten() {
                *times = times.slower(*slowness);
            }
        }
        layered
    }

    fn network(&self, weather: &Weather, candidate: &Candidate, traffic: bool) -> Network {
        let stage = self.stage;
        let hosts = stage.layered.workers.iter().map(|worker| worker.host.clone());
        let link = |rate| Link { rate, latency: stage.latency };
        let topology = Topology {
            hosts: hosts
                .clone()
                .zip(&weather.hosts)
                .enumerate()
                .map(|(rank, (name, rate))| Host {
                    name,
                    rack: stage.rack_of(rank) as u32,
                    link: link(*rate),
                })
                .collect(),
            uplinks: weather
                .uplinks
                .iter()
                .map(|rate| Link { rate: *rate, latency: Default::default() })
                .collect(),
            memory: stage.memory,
        };
        let mut view = View::on_hosts(hosts.collect(), candidate.settings(&stage.settings));
        view.measured = stage.met();
        let config = Box::new(ClusterConfig { traffic, ..stage.config.clone() });
        Network::Engines { view: Arc::new(view), topology, config }
    }
}
