//! Replay search: the job that the metrics show is played in virtual time under other settings, along partitions and
//! credits of one strategy after another, and the one with the shortest step is taken. Nothing has to be tried on the job itself. Bounded in replays and
//! in what each may cost, whatever the job.

use super::{Answer, Question, Searcher, correction::Links};
use crate::{Candidate, Place, Space, Surroundings, wires::wires};
use paceline_job::{
    Dtype, Settings, View,
    graph::layered::{LayerTimes, Layered, LayeredWorker, Tail},
    trace::{Layer, Tensor},
};
use paceline_replay::{
    ClusterConfig, WorkerConfig,
    graph::{Network, metrics, play},
};
use paceline_sync::{
    metrics::{JobMetrics, WorkerMetrics},
    strategy::CostModel,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Steps of a replay where tensors cross the step: the second finds what the first left.
const STEPS: usize = 2;
/// Steps of a replay whose metrics are compared with those of the job: workers leave out the first ones.
const MEASURED: usize = 4;
/// How often links are corrected by that comparison. It settles fast.
const CORRECTIONS: usize = 4;
/// Rounds over partitions and credits: a walk that is not at rest after these is close enough.
const ROUNDS: usize = 2;
/// A direction is left after so many places that are not better: one may be a bump.
const WORSE: usize = 2;

/// What a search may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Replays.
    pub replays: usize,
    /// Engine events of all of them: a million take about a second. A candidate that exceeds what is left is passed
    /// over.
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
}

impl ReplaySearch {
    /// Searches for a job in these surroundings.
    pub fn new(surroundings: Surroundings, budget: Budget) -> ReplaySearch {
        // What a message costs a worker's thread is not measured.
        let worker =
            WorkerConfig { per_frame: CostModel::USUAL_OVERHEAD, ..WorkerConfig::default() };
        let config = ClusterConfig { worker, ..ClusterConfig::default() };
        ReplaySearch { surroundings, config, budget }
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
        model.correct(question.seen, &self.surroundings, &self.config);
        let mut walk = Walk {
            model,
            config: self.config.clone(),
            question: *question,
            left: self.budget,
            seconds: FxHashMap::default(),
        };
        let present = question.present();
        if walk.seconds(&present).is_infinite() {
            return Answer::Nothing;
        }
        let candidate = walk.run(question.space, &present);
        Answer::Predict { gain: walk.gain(&candidate), candidate }
    }
}

/// One search.
struct Walk<'q> {
    model: Model,
    config: ClusterConfig,
    question: Question<'q>,
    left: Budget,
    /// By replay; infinite for what cannot be played.
    seconds: FxHashMap<Candidate, f64>,
}

impl Walk<'_> {
    /// The best of what a walk finds under each strategy: what is best with one is often not with another, so that no walk
    /// along one coordinate leads from the best place of the one to that of the other.
    fn run(&mut self, space: &Space, present: &Candidate) -> Candidate {
        let from = space.nearest(present);
        let others = (0..space.extent().strategy).filter(|strategy| *strategy != from.strategy);
        let strategies: Vec<usize> = std::iter::once(from.strategy).chain(others).collect();
        let mut best = (self.gain(present), present.clone());
        let mut here = from;
        for strategy in strategies {
            let found = self.walk(space, Place { strategy, ..here });
            let gain = self.gain(&space.at(found));
            if gain > best.0 {
                (best, here) = ((gain, space.at(found)), found);
            }
        }
        best.1
    }

    /// Along partitions and credits in turn, until both are at rest.
    fn walk(&mut self, space: &Space, mut here: Place) -> Place {
        let extent = space.extent();
        for _ in 0..ROUNDS {
            let before = here;
            let at = |partition| Place { partition, ..before };
            here = self.climb(space, here.partition, extent.partition, at);
            let before_credit = here;
            let at = |credit| Place { credit, ..before_credit };
            here = self.climb(space, here.credit, extent.credit, at);
            if here == before {
                break;
            }
        }
        here
    }

    /// The best place of a line, from one of it as far in both directions as it does not get worse twice.
    fn climb(
        &mut self,
        space: &Space,
        from: usize,
        extent: usize,
        at: impl Fn(usize) -> Place,
    ) -> Place {
        let mut best = (self.gain(&space.at(at(from))), from);
        let upwards: Vec<usize> = (from + 1..extent).collect();
        let downwards: Vec<usize> = (0..from).rev().collect();
        for line in [upwards, downwards] {
            let mut worse = 0;
            for place in line {
                let gain = self.gain(&space.at(at(place)));
                if gain > best.0 {
                    best = (gain, place);
                } else {
                    worse += 1;
                }
                if worse == WORSE {
                    break;
                }
            }
        }
        at(best.1)
    }

    /// How many times as fast as what is in force: as measured, or else by replay; 0 if that cannot be said.
    fn gain(&mut self, candidate: &Candidate) -> f64 {
        let question = self.question;
        question.gain(candidate, |candidate| self.seconds(candidate).recip())
    }

    /// By replay; infinite if it cannot be played.
    fn seconds(&mut self, candidate: &Candidate) -> f64 {
        if let Some(seconds) = self.seconds.get(candidate) {
            return *seconds;
        }
        let seconds = self.replay(candidate).unwrap_or(f64::INFINITY);
        self.seconds.insert(candidate.clone(), seconds);
        seconds
    }

    fn replay(&mut self, candidate: &Candidate) -> Option<f64> {
        if self.left.replays == 0 || self.left.events == 0 {
            return None;
        }
        self.left.replays -= 1;
        let config = ClusterConfig { most_events: self.left.events, ..self.config.clone() };
        let settings = candidate.settings(&self.question.seen.settings);
        let (seconds, events) = self.model.seconds(settings, config)?;
        self.left.events = self.left.events.saturating_sub(events);
        Some(seconds)
    }
}

/// A job as its metrics show it.
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
        let parts = seen.workers.iter().zip(&surroundings.hosts).map(part).collect();
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

    /// Give links the rates with which the job would show what was seen.
    fn correct(&mut self, seen: &JobMetrics, surroundings: &Surroundings, config: &ClusterConfig) {
        let steps = self.layered.clone().repeated(MEASURED).graph();
        let config = ClusterConfig { traffic: true, ..config.clone() };
        let Surroundings { met, hosts, .. } = surroundings;
        let met = met.wire.map(|wire| wire.rate);
        let links = Links::at_their_fastest(&mut self.topology, met, hosts);
        for _ in 0..CORRECTIONS {
            let network = self.network(seen.settings.clone(), config.clone());
            let Ok(played) = play(&steps, &network) else { break };
            let Ok(shown) = metrics(&steps, &played) else { break };
            links.correct(&mut self.topology, seen, &shown.workers);
        }
    }

    fn network(&self, settings: Settings, config: ClusterConfig) -> Network {
        let view = Arc::new(View { settings, ..self.view.clone() });
        Network::Engines { view, topology: self.topology.clone(), config: Box::new(config) }
    }

    /// Seconds of a step, and the events that it took to know.
    fn seconds(&self, settings: Settings, config: ClusterConfig) -> Option<(f64, u64)> {
        let played = play(&self.layered.graph(), &self.network(settings, config)).ok()?;
        let seconds = played.step_ms(0) / 1e3;
        (seconds > 0.0).then_some((seconds, played.events))
    }
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
