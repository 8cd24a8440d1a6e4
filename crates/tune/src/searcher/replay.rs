//! Replay search: the job that the metrics show is played in virtual time under other settings, along partitions and
//! credits of one strategy after another, and the one with the shortest step is taken. Nothing has to be tried on the job itself. Bounded in replays and
//! in what each may cost, whatever the job.

use super::{Answer, Question, Searcher, correction::Links};
use crate::{Candidate, Place, Space, Surroundings, wires::wires};
use paceline_job::{
    Dtype, Rate, Settings, Time, View,
    graph::layered::{LayerTimes, Layered, LayeredWorker, Tail},
    trace::{Layer, Tensor},
};
use paceline_replay::{
    ClusterConfig, ReplayError, WorkerConfig,
    graph::{Network, metrics, play},
};
use paceline_sync::{
    metrics::{JobMetrics, WorkerMetrics},
    strategy::CostModel,
};
use rustc_hash::FxHashMap;
use std::{sync::Arc, time::Duration};

/// Steps of a replay where tensors cross the step: the second finds what the first left.
const STEPS: usize = 2;
/// Steps of a replay of which it is compared with the job what wires carried.
const MEASURED: usize = 2;
/// How often links are corrected by that comparison at most, and the change from which on it is worth another look.
const CORRECTIONS: usize = 4;
const SETTLED: f64 = 0.02;
/// Rounds over partitions and credits: a walk that is not at rest after these is close enough.
const ROUNDS: usize = 2;
/// Partitions are looked at in steps of this power of two: what lies between gives what lies between.
const STRIDE: u32 = 2;
/// A place is better from here on: less is not worth a further look.
const BETTER: f64 = 1.01;
/// Workers and wires are alike that differ by no more than this share: noise that were taken for a difference would keep the others
/// waiting in every step.
const ALIKE: f64 = 0.1;
/// A job that takes longer than links explain by less than this factor says nothing of what messages cost.
const EXPLAINED: f64 = 1.05;
/// Messages cost no more than so many times what they usually do: who is slower still is slow for another reason.
const MOST_OVERHEAD: u32 = 4;
/// What an engine event takes to play.
const EVENT: Duration = Duration::from_nanos(500);
/// What is behind the best by this factor is not played to its end, nor is a strategy followed that begins so far behind.
const BEHIND: f64 = 1.2;

/// What a search may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Replays.
    pub replays: usize,
    /// Engine events of all of them. A candidate that exceeds what is left is passed over.
    pub events: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { replays: 80, events: 20_000_000 }
    }
}

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct ReplaySearch {
    surroundings: Surroundings,
    config: ClusterConfig,
    budget: Budget,
    /// Whether it was asked already, and knows what messages cost.
    begun: bool,
    /// Engine events of the last search.
    events: u64,
}

impl ReplaySearch {
    /// Searches for a job in these surroundings.
    pub fn new(surroundings: Surroundings, budget: Budget) -> ReplaySearch {
        let worker =
            WorkerConfig { per_frame: CostModel::USUAL_OVERHEAD, ..WorkerConfig::default() };
        let config = ClusterConfig { worker, ..ClusterConfig::default() };
        ReplaySearch { surroundings, config, budget, begun: false, events: 0 }
    }
}

impl Searcher for ReplaySearch {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn ask(&mut self, question: &Question<'_>) -> Answer {
        let Some(mut model) = Model::of(question.seen, &self.surroundings) else {
            return Answer::Nothing;
        };
        self.events = 0;
        if !std::mem::replace(&mut self.begun, true) {
            self.learn_overhead(&model, question);
        }
        self.events += model.correct(question.seen, &self.surroundings, &self.config);
        let present = question.present();
        let mut walk = Walk {
            model,
            config: self.config.clone(),
            question: *question,
            left: self.budget,
            seconds: FxHashMap::default(),
            best: (1.0, present.clone()),
            gains: vec![(1.0, present.clone())],
        };
        if walk.seconds(&present, None).is_infinite() {
            return Answer::Nothing;
        }
        walk.run(question.space, &present);
        self.events += self.budget.events - walk.left.events;
        question.best(&walk.gains)
    }

    fn thought(&self) -> Duration {
        EVENT * u32::try_from(self.events).unwrap_or(u32::MAX)
    }
}

impl ReplaySearch {
    /// What a message costs a worker's thread nobody measures. When a job begins links are as workers met them a moment ago, so that a step
    /// that takes longer than they explain takes as much longer because of its messages.
    fn learn_overhead(&mut self, model: &Model, question: &Question<'_>) {
        let mut model = model.clone();
        let Surroundings { met, hosts, .. } = &self.surroundings;
        let Some(met) = met.wire else { return };
        let _ = Links::at_their_fastest(&mut model.topology, Some(met.rate), hosts);
        let seen = question.present_speed().recip();
        let mut seconds = |overhead: Duration| {
            let worker = WorkerConfig { per_frame: overhead, ..self.config.worker.clone() };
            let most_events = self.budget.events / 4;
            let config = ClusterConfig { worker, most_events, ..self.config.clone() };
            let (seconds, events) = model.seconds(question.seen.settings.clone(), config, None);
            self.events += events;
            seconds
        };
        let usual = self.config.worker.per_frame;
        if seconds(usual).is_none_or(|seconds| seen < EXPLAINED * seconds) {
            return;
        }
        // Where messages are the limit a step takes as much longer as they cost more.
        let most = MOST_OVERHEAD * usual;
        if let Some(longest) = seconds(most).filter(|longest| *longest > seen) {
            self.config.worker.per_frame = most.mul_f64(seen / longest).max(usual);
        }
    }
}

/// One search.
struct Walk<'q> {
    model: Model,
    config: ClusterConfig,
    question: Question<'q>,
    left: Budget,
    /// By replay; infinite for what cannot be played, or takes far longer than the best.
    seconds: FxHashMap<Candidate, f64>,
    /// Until now, and how many times as fast as what is in force it is.
    best: (f64, Candidate),
    /// Of all that were looked at.
    gains: Vec<(f64, Candidate)>,
}

impl Walk<'_> {
    /// Walk under each strategy: what is best with one is often not with another, so that no walk along one coordinate leads from
    /// the best place of the one to that of the other.
    fn run(&mut self, space: &Space, present: &Candidate) {
        let from = space.nearest(present);
        let others = (0..space.extent().strategy).filter(|strategy| *strategy != from.strategy);
        let strategies: Vec<usize> = std::iter::once(from.strategy).chain(others).collect();
        for strategy in strategies {
            let begin = Place { strategy, ..space.nearest(&self.best.1) };
            if self.gain(&space.at(begin)) * BEHIND >= self.best.0 {
                self.walk(space, begin);
            }
        }
    }

    /// Along partitions and credits in turn, until both are at rest.
    fn walk(&mut self, space: &Space, mut here: Place) {
        let extent = space.extent();
        for _ in 0..ROUNDS {
            let before = here;
            let power =
                |partition| space.at(Place { partition, ..before }).partition.0.trailing_zeros();
            let apart =
                |one: usize| power(one).abs_diff(power(before.partition)).is_multiple_of(STRIDE);
            let partitions = (0..extent.partition).filter(|one| apart(*one));
            here =
                self.climb(space, partitions.map(|partition| Place { partition, ..before }), here);
            let credits = (0..extent.credit).map(|credit| Place { credit, ..here });
            here = self.climb(space, credits, here);
            if here == before {
                break;
            }
        }
    }

    /// The best place of a line, from one of it as far in both directions as it gets better.
    fn climb(&mut self, space: &Space, line: impl Iterator<Item = Place>, from: Place) -> Place {
        let line: Vec<Place> = line.collect();
        let middle = line.iter().position(|place| *place == from).unwrap_or(0);
        let (downwards, upwards) = line.split_at(middle);
        let mut best = (self.gain(&space.at(from)), from);
        let mut go = |place: &Place| {
            let gain = self.gain(&space.at(*place));
            let better = gain > BETTER * best.0;
            if better {
                best = (gain, *place);
            }
            better
        };
        let _ = upwards.iter().skip(1).all(&mut go);
        let _ = downwards.iter().rev().all(&mut go);
        best.1
    }

    /// How many times as fast as what is in force: as measured, or else by replay; 0 if that cannot be said, or is far less than the
    /// best.
    fn gain(&mut self, candidate: &Candidate) -> f64 {
        let question = self.question;
        if *candidate == question.present() {
            return 1.0;
        }
        // If its step took a second.
        let unit = question.gain(candidate, |other| match other == candidate {
            true => 1.0,
            false => self.seconds(other, None).recip(),
        });
        let gain = match question.known(candidate) {
            Some(_) => unit,
            None => unit / self.seconds(candidate, Some(BEHIND * unit / self.best.0)),
        };
        if gain > self.best.0 {
            self.best = (gain, candidate.clone());
        }
        self.gains.push((gain, candidate.clone()));
        gain
    }

    /// By replay; infinite if it cannot be played, or takes longer than `most`.
    fn seconds(&mut self, candidate: &Candidate, most: Option<f64>) -> f64 {
        if let Some(seconds) = self.seconds.get(candidate) {
            return *seconds;
        }
        let seconds = self.replay(candidate, most).unwrap_or(f64::INFINITY);
        self.seconds.insert(candidate.clone(), seconds);
        seconds
    }

    fn replay(&mut self, candidate: &Candidate, most: Option<f64>) -> Option<f64> {
        if self.left.replays == 0 || self.left.events == 0 {
            return None;
        }
        self.left.replays -= 1;
        let config = ClusterConfig { most_events: self.left.events, ..self.config.clone() };
        let settings = candidate.settings(&self.question.seen.settings);
        let (seconds, events) = self.model.seconds(settings, config, most);
        self.left.events = self.left.events.saturating_sub(events);
        seconds
    }
}

/// A job as its metrics show it.
#[derive(Clone)]
struct Model {
    layered: Layered,
    view: View,
    topology: paceline_job::Topology,
}

impl Model {
    /// `None` if the metrics do not show enough.
    fn of(seen: &JobMetrics, surroundings: &Surroundings) -> Option<Model> {
        let workers = seen.workers.len();
        if workers < 2 || surroundings.hosts.len() != workers || seen.shape.tensors.is_empty() {
            return None;
        }
        let layers = seen.shape.tensors.iter().map(|tensor| Layer {
            name: tensor.name.clone(),
            tensors: vec![Tensor {
                name: tensor.name.clone(),
                elements: tensor.bytes.div_ceil(Dtype::F32.size() as u64),
                dtype: Dtype::F32,
            }],
            activation_bytes: 0,
        });
        let layers: Vec<Layer> = layers.collect();
        let steps = if surroundings.crosses_step { STEPS } else { 1 };
        let part = |(worker, host): (&WorkerMetrics, &String)| LayeredWorker {
            host: host.clone(),
            steps: vec![times(worker, layers.len()); steps],
            tails: vec![Tail { rest: nanoseconds(worker.rest), ..Tail::default() }; steps],
            marks: Vec::new(),
        };
        let seconds: Vec<f64> = seen.workers.iter().map(computation).collect();
        let workers = alike(&seconds).into_iter().map(|rank| &seen.workers[rank]);
        let parts = workers.zip(&surroundings.hosts).map(part).collect();
        let layered = Layered {
            layers,
            workers: parts,
            crosses_step: surroundings.crosses_step,
            scheduled: seen.shape.scheduled,
            ..Layered::default()
        };
        let topology = wires(seen, surroundings)?;
        let mut view = View::on_hosts(surroundings.hosts.clone(), seen.settings.clone());
        view.measured = surroundings.met;
        Some(Model { layered, view, topology })
    }

    /// Give links the rates with which the job would show what was seen. The events that it took.
    fn correct(
        &mut self,
        seen: &JobMetrics,
        surroundings: &Surroundings,
        config: &ClusterConfig,
    ) -> u64 {
        let mut events = 0;
        let steps = self.layered.clone().repeated(MEASURED).graph();
        let config = ClusterConfig { traffic: true, ..config.clone() };
        let Surroundings { met, hosts, .. } = surroundings;
        let met = met.wire.map(|wire| wire.rate);
        let links = Links::at_their_fastest(&mut self.topology, met, hosts);
        for _ in 0..CORRECTIONS {
            let network = self.network(seen.settings.clone(), config.clone());
            let Ok(played) = play(&steps, &network) else { break };
            events += played.events;
            let Ok(shown) = metrics(&steps, &played) else { break };
            if links.correct(&mut self.topology, seen, &shown.workers) < SETTLED {
                break;
            }
        }
        let rates: Vec<Rate> = self.topology.hosts.iter().map(|host| host.link.rate).collect();
        let numbers: Vec<f64> = rates.iter().map(|rate| rate.bytes_per_second()).collect();
        for (host, place) in self.topology.hosts.iter_mut().zip(alike(&numbers)) {
            host.link.rate = rates[place];
        }
        events
    }

    fn network(&self, settings: Settings, config: ClusterConfig) -> Network {
        let view = Arc::new(View { settings, ..self.view.clone() });
        Network::Engines { view, topology: self.topology.clone(), config: Box::new(config) }
    }

    /// Seconds of a step, if it does not take longer than `most`, and the events that it took to know.
    fn seconds(
        &self,
        settings: Settings,
        config: ClusterConfig,
        most: Option<f64>,
    ) -> (Option<f64>, u64) {
        let graph = self.layered.graph();
        let until = most.map_or(config.until, |most| Time(nanoseconds(most * graph.steps as f64)));
        match play(&graph, &self.network(settings, ClusterConfig { until, ..config })) {
            Ok(played) => {
                (Some(played.step_ms(0) / 1e3).filter(|seconds| *seconds > 0.0), played.events)
            }
            Err(ReplayError::Halted { events, .. }) => (None, events),
            Err(_) => (None, 0),
        }
    }
}

/// Of each one of several its own place, or that of the one in the middle where it differs by no more than noise.
fn alike(values: &[f64]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..values.len()).collect();
    sorted.sort_by(|one, other| values[*one].total_cmp(&values[*other]));
    let Some(&usual) = sorted.get(sorted.len() / 2) else { return sorted };
    let is_near = |value: f64| (value - values[usual]).abs() <= ALIKE * values[usual];
    (0..values.len()).map(|place| if is_near(values[place]) { usual } else { place }).collect()
}

fn computation(worker: &WorkerMetrics) -> f64 {
    worker.rest + worker.layers.iter().map(|layer| layer.forward + layer.backward).sum::<f64>()
}

fn times(worker: &WorkerMetrics, layers: usize) -> Vec<LayerTimes> {
    let mut times: Vec<LayerTimes> = worker
        .layers
        .iter()
        .map(|layer| LayerTimes {
            forward: nanoseconds(layer.forward),
            backward: nanoseconds(layer.backward),
            ..LayerTimes::default()
        })
        .collect();
    times.resize(layers, LayerTimes::default());
    times
}

fn nanoseconds(seconds: f64) -> u64 {
    // A day and more is no layer's: nothing overflows.
    (seconds.clamp(0.0, 1e5) * 1e9) as u64
}
