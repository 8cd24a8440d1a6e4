//! The meta-network as a predictor of a running job: what its metrics are in the network's words, and what the network
//! learns when settings change. Whether anybody follows a prediction is not decided here.

use super::generate;
use crate::{Candidate, Surroundings, crossing::Crossing, searcher::Predictor};
use paceline_job::ByteSize;
use paceline_learn::metanet::{
    Choice, Conditions, MetaNetwork, STRATEGIES, Seen, TensorConditions, Transfer, WorkerConditions,
};
use paceline_sync::{
    metrics::{JobMetrics, LayerMetrics, WorkerMetrics},
    strategy::Hierarchical,
};
use std::collections::{HashSet, VecDeque};

/// Different settings whose speeds are remembered to learn from, as long as conditions stay.
const REMEMBERED: usize = 6;
/// From so many of them a candidate is predicted beside what is seen now.
const OPINIONS: usize = 2;

/// Predicts by a meta-network, which goes on learning from the job.
#[derive(Clone, Debug)]
pub struct AutoByte {
    surroundings: Surroundings,
    transfer: Transfer,
    /// What different settings gave under the present conditions, the latest last.
    recent: VecDeque<Conditions>,
}

impl AutoByte {
    /// For a job in these surroundings, by the network that comes with the program.
    pub fn new(surroundings: Surroundings) -> AutoByte {
        AutoByte::with_network(surroundings, MetaNetwork::shipped())
    }

    /// By another network.
    pub fn with_network(surroundings: Surroundings, network: MetaNetwork) -> AutoByte {
        AutoByte { surroundings, transfer: Transfer::new(network), recent: VecDeque::new() }
    }

    /// Of the seconds of a step under each choice, as predicted from these conditions: in proportion to what was measured under
    /// them, if anything was.
    fn logarithms(&self, conditions: &Conditions, choices: &[Choice]) -> Option<Vec<f64>> {
        let prepared = self.transfer.prepare(conditions)?;
        let all: Vec<Choice> =
            choices.iter().copied().chain(conditions.seen.map(|seen| seen.choice)).collect();
        let mut seconds = self.transfer.seconds(&prepared, &all);
        let measured = conditions.seen.map(|seen| seen.seconds);
        let scale = measured.and_then(|measured| Some(measured / seconds.pop()?)).unwrap_or(1.0);
        Some(seconds.into_iter().map(|seconds| (scale * seconds).ln()).collect())
    }

    /// How many measurements the network remembers of this job.
    pub fn remembered(&self) -> usize {
        self.transfer.remembered()
    }
}

impl Predictor for AutoByte {
    fn name(&self) -> &'static str {
        "autobyte"
    }

    fn predict(&mut self, seen: &JobMetrics, candidates: &[Candidate]) -> Vec<f64> {
        // The network has no inputs that speak of racks.
        let crossing = Crossing::of(seen, &self.surroundings);
        if let Some(speeds) = crossing.and_then(|crossing| crossing.speeds(candidates)) {
            return speeds;
        }
        let Some(now) = conditions(seen, &self.surroundings) else { return Vec::new() };
        let (bytes, workers) = (now.bytes(), now.workers.len());
        let present = Candidate::of(&seen.settings);
        let choices = candidates.iter().map(|candidate| match *candidate == present {
            true => choice(candidate),
            false => choice(candidate).map(|choice| learned(choice, bytes, workers)),
        });
        let choices: Vec<Option<Choice>> = choices.collect();
        let known: Vec<Choice> = choices.iter().copied().flatten().collect();
        let Some(mut logarithms) = self.logarithms(&now, &known) else { return Vec::new() };
        // What was seen of the same conditions under other settings says as much of each candidate: the mean is less often wrong.
        let mut opinions = 1.0;
        let others = self.recent.iter().rev().filter(|before| {
            before.seen.map(|seen| seen.choice) != now.seen.map(|seen| seen.choice)
        });
        for before in others.take(OPINIONS) {
            if let Some(others) = self.logarithms(before, &known) {
                logarithms.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
                opinions += 1.0;
            }
        }
        let mut speeds = logarithms.into_iter().map(|sum| (-sum / opinions).exp());
        let speed = |choice: Option<Choice>| choice.and_then(|_| speeds.next()).unwrap_or(f64::NAN);
        choices.into_iter().map(speed).collect()
    }

    fn begin(&mut self) {
        self.recent.clear();
    }

    fn learn(&mut self, seen: &JobMetrics) {
        if Crossing::of(seen, &self.surroundings).is_some() {
            return;
        }
        let Some(now) = conditions(seen, &self.surroundings) else { return };
        let Some(present) = now.seen else { return };
        let other = |before: &Conditions| before.seen.filter(|seen| seen.choice != present.choice);
        let mut learned = false;
        for before in &self.recent {
            // From each the other could have been predicted.
            if let Some(seen) = other(before) {
                self.transfer.remember(before, present);
                self.transfer.remember(&now, seen);
                learned = true;
            }
        }
        if learned {
            self.transfer.refine();
        }
        self.recent.retain(|before| other(before).is_some());
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
    }
}

/// What metrics are to the network. `None` where nothing was measured that it could predict by.
pub fn conditions(seen: &JobMetrics, surroundings: &Surroundings) -> Option<Conditions> {
    let hosts = &surroundings.hosts;
    let rates = |pick: fn(&WorkerMetrics) -> f64| {
        rates_of_hosts(&seen.workers.iter().map(pick).collect::<Vec<f64>>(), hosts)
    };
    let uploads = rates(|worker| worker.upload)?;
    let downloads = rates(|worker| worker.download)?;
    let layer = |worker: &WorkerMetrics, place: usize| {
        worker.layers.get(place).copied().unwrap_or_default()
    };
    let both = |layer: LayerMetrics| layer.forward + layer.backward;
    let count = seen.workers.len() as f64;
    let tensor = |(place, bytes): (usize, u64)| {
        let layers = seen.workers.iter().map(|worker| layer(worker, place));
        TensorConditions {
            bytes: bytes as f64,
            forward: layers.clone().map(|layer| layer.forward).sum::<f64>() / count,
            backward: layers.clone().map(|layer| layer.backward).sum::<f64>() / count,
            slowest: layers.map(both).fold(0.0, f64::max),
        }
    };
    let sizes = seen.shape.tensors.iter().map(|tensor| tensor.bytes).enumerate();
    let rates = uploads.into_iter().zip(downloads);
    let workers = seen.workers.iter().zip(rates).map(|(worker, (upload, download))| {
        let layers: f64 = worker.layers.iter().copied().map(both).sum();
        WorkerConditions { upload, download, computation: layers + worker.rest }
    });
    let different: HashSet<&String> = hosts.iter().collect();
    let speed = seen.speed();
    let present = choice(&Candidate::of(&seen.settings)).filter(|_| speed > 0.0);
    let conditions = Conditions {
        tensors: sizes.map(tensor).collect(),
        workers: workers.collect(),
        hosts: different.len(),
        latency: surroundings.latency.as_secs_f64(),
        crosses_step: surroundings.crosses_step,
        seen: present.map(|choice| Seen { choice, seconds: speed.recip() }),
    };
    (conditions.computation() > 0.0 && conditions.reference().is_some()).then_some(conditions)
}

/// Each worker's rate: its host's, as far as any worker there measured it, or else the mean of the others'. `None` if
/// nobody measured any.
pub(super) fn rates_of_hosts(measured: &[f64], hosts: &[String]) -> Option<Vec<f64>> {
    let of_host = |host: Option<&String>| {
        let there = measured.iter().zip(hosts).filter(|(_, other)| Some(*other) == host);
        there.map(|(rate, _)| *rate).filter(|rate| rate.is_normal()).reduce(f64::max)
    };
    let rates: Vec<Option<f64>> =
        (0..measured.len()).map(|rank| of_host(hosts.get(rank))).collect();
    let known = rates.iter().copied().flatten();
    let mean = known.clone().sum::<f64>() / known.count() as f64;
    mean.is_normal().then(|| rates.into_iter().map(|rate| rate.unwrap_or(mean)).collect())
}

/// A choice that the network may be asked about, for a job of so many bytes and workers: partitions smaller than any it learned from are
/// taken for the smallest of those. Better no opinion on them than one from nowhere; but what is in force stays what it is, since
/// what it gives was measured.
fn learned(choice: Choice, bytes: f64, workers: usize) -> Choice {
    let least = generate::least_partition(bytes, workers);
    Choice { partition: choice.partition.max(least), ..choice }
}

/// A candidate in the network's words. `None` if it has no embedding of the strategy.
fn choice(candidate: &Candidate) -> Option<Choice> {
    // Parameters of a strategy, such as the number of servers, are not told apart; but racks in the place of hosts are another strategy.
    let (name, parameters) = match candidate.strategy.0.split_once(':') {
        Some((name, parameters)) => (name, parameters),
        None => (candidate.strategy.0.as_str(), ""),
    };
    let known = parameters != Hierarchical::RACKS;
    let strategy = STRATEGIES.iter().position(|other| known && *other == name)?;
    let credit = match candidate.credit {
        ByteSize::UNLIMITED => f64::INFINITY,
        ByteSize(bytes) => bytes as f64,
    };
    Some(Choice { strategy, partition: candidate.partition.0 as f64, credit })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Environment, Model},
        *,
    };
    use crate::Space;
    use paceline_job::{Settings, StrategyChoice, ViewVersion};
    use paceline_learn::Random;
    use paceline_replay::{
        ClusterConfig,
        graph::{Network, metrics, play},
    };
    use std::{sync::Arc, time::Duration};

    /// What a job of an invented model would show on an invented network.
    fn shown(environment: &Environment, model: &Model, settings: &Settings) -> JobMetrics {
        let layered = model.steps(&environment.hosts, &environment.slowness, environment.rest, 8);
        let graph = layered.graph();
        let network = Network::Engines {
            view: Arc::new(environment.view(settings.clone())),
            topology: environment.topology.clone(),
            config: Box::new(ClusterConfig { traffic: true, ..environment.config.clone() }),
        };
        let played = play(&graph, &network).unwrap();
        let shown = metrics(&graph, &played).unwrap();
        JobMetrics {
            step: 8,
            view: ViewVersion(1),
            settings: settings.clone(),
            shape: shown.shape,
            workers: shown.workers,
        }
    }

    fn ring() -> Settings {
        let strategy = StrategyChoice("ring".to_string());
        Settings { strategy, credit: ByteSize::mib(4), ..Settings::default() }
    }

    /// A job for which neither computation nor transfer is all that counts.
    fn example() -> (Environment, Model, Surroundings) {
        let mut random = Random::new(0);
        let (environment, model) = loop {
            let environment = Environment::invented(&mut random);
            let model = Model::invented(&mut random);
            let small = model.bytes() < 60_000_000 && environment.hosts.len() == 4;
            if small && environment.is_even() && environment.crosses_step {
                break (environment, model);
            }
        };
        let slowness = generate::device(&model, &environment, &mut random);
        let environment = Environment { slowness: vec![slowness; 4], ..environment };
        let surroundings = Surroundings::of(&environment.view(ring()));
        (environment, model, surroundings)
    }

    #[test]
    fn what_a_job_shows_is_what_the_network_learned_from() {
        let (environment, model, surroundings) = example();
        let seen = shown(&environment, &model, &ring());
        let found = conditions(&seen, &surroundings).unwrap();
        let wanted = generate::conditions(&model, &environment, &mut Random::new(1));
        let near = |one: f64, other: f64, most: f64| {
            assert!((one / other).ln().abs() < most, "{one} {other}");
        };
        near(found.bytes(), wanted.bytes(), 1e-6);
        near(found.computation(), wanted.computation(), 0.1);
        near(found.rate(), wanted.rate(), 0.35);
        near(found.latency, wanted.latency, 1e-6);
        assert_eq!(found.hosts, wanted.hosts);
        assert_eq!(found.tensors.len(), wanted.tensors.len());
    }

    #[test]
    fn every_candidate_with_a_known_strategy_has_a_speed() {
        let (environment, model, surroundings) = example();
        let seen = shown(&environment, &model, &ring());
        // A ring of racks is not the hierarchy of hosts that it learned from.
        let unknown = ["gossip", "hierarchical:racks"];
        let names = ["ring", "parameter_server:2", unknown[0], unknown[1]];
        let strategies = names.map(|name| StrategyChoice(name.to_string())).to_vec();
        let candidates = Space::of(&seen.shape, strategies).candidates();
        let speeds = AutoByte::new(surroundings).predict(&seen, &candidates);
        assert_eq!(speeds.len(), candidates.len());
        for (candidate, speed) in candidates.iter().zip(speeds) {
            let known = !unknown.contains(&candidate.strategy.0.as_str());
            assert_eq!(speed > 0.0, known, "{candidate}: {speed}");
        }
    }

    #[test]
    fn pieces_smaller_than_any_it_learned_from_are_known_where_they_are_in_force() {
        let (environment, model, surroundings) = example();
        let sized = |bytes: u64| Settings { partition: ByteSize(bytes), ..ring() };
        let mut seen = shown(&environment, &model, &ring());
        seen.settings = sized(512);
        let candidates = [512, 1024, 2048].map(|bytes| Candidate::of(&sized(bytes)));
        let speeds = AutoByte::new(surroundings.clone()).predict(&seen, &candidates);
        assert_eq!(speeds[1], speeds[2]);
        assert_ne!(speeds[0], speeds[1]);
        let present = conditions(&seen, &surroundings).unwrap().seen.unwrap();
        assert_eq!(present.choice.partition, 512.0);
    }

    #[test]
    fn where_no_rate_was_measured_nothing_is_said() {
        let (environment, model, surroundings) = example();
        let mut seen = shown(&environment, &model, &ring());
        let candidate = Candidate::of(&ring());
        let mut predictor = AutoByte::new(surroundings);
        // One worker that measured nothing is taken to be like the others.
        seen.workers[0].upload = 0.0;
        assert_eq!(predictor.predict(&seen, std::slice::from_ref(&candidate)).len(), 1);
        seen.workers.iter_mut().for_each(|worker| worker.upload = 0.0);
        assert!(predictor.predict(&seen, &[candidate]).is_empty());
    }

    #[test]
    fn it_learns_from_changes_of_settings_under_conditions_that_stay() {
        let (environment, model, surroundings) = example();
        let mut predictor =
            AutoByte::new(Surroundings { latency: Duration::from_micros(50), ..surroundings });
        let first = shown(&environment, &model, &ring());
        predictor.learn(&first);
        predictor.learn(&first);
        assert_eq!(predictor.remembered(), 0);
        let mut second = first.clone();
        second.settings.partition = ByteSize::kib(256);
        predictor.learn(&second);
        assert_eq!(predictor.remembered(), 2);
        // Under other conditions it says nothing about what other settings would have given before.
        predictor.begin();
        let mut third = first.clone();
        third.settings.partition = ByteSize::mib(4);
        for worker in &mut third.workers {
            worker.upload /= 2.0;
            worker.download /= 2.0;
        }
        predictor.learn(&third);
        assert_eq!(predictor.remembered(), 2);
    }
}
