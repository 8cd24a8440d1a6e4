//! Training data by replay: a model on a network, and what a step takes under many settings. A sample is a function of the
//! seed and its number, so that they can be made in any order, by as many threads as there are.

use super::{Environment, Model, autobyte::rates_of_hosts};
use paceline_job::{ByteSize, Settings, StrategyChoice, graph::layered::Layered};
use paceline_learn::{
    Random,
    metanet::{Choice, Conditions, STRATEGIES, Sample, Seen, TensorConditions, WorkerConditions},
};
use paceline_replay::{
    ClusterConfig, ReplayError,
    graph::{Network, Played, Scenario, play},
};
use paceline_sync::metrics::{Carried, Totals};
use std::sync::Arc;

/// Steps that are replayed; the first finds nothing left over and does not count.
const STEPS: usize = 2;
/// Different networks.
const NETWORKS: u32 = 300;
/// Invented models.
const INVENTED: u32 = 90;
/// How often a sample is of a measured model.
const MEASURED: f64 = 0.3;
/// One of so many models is held out: the last of each so many.
const HELD_MODELS: u32 = 5;
/// One of so many networks is held out.
const HELD_NETWORKS: u32 = 6;
/// Settings that are replayed for a sample that is learned from.
const CHOICES: usize = 18;
/// Partitions: powers of two from 64 KiB to 64 MiB.
const EXPONENTS: std::ops::RangeInclusive<u32> = 16..=26;
/// Credits in partitions; the last is no limit.
const CREDITS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, f64::INFINITY];
/// How often strategies are tried, in the order of [`STRATEGIES`].
const POPULARITY: [f64; 7] = [2.0, 3.0, 2.0, 2.0, 2.0, 1.0, 0.5];
/// Chunks of a step, at most, and times the square of the number of workers, at most: replays of more take too long. So
/// many may always be.
const LEAST_CHUNKS: u64 = 64;
const MOST_CHUNKS: u64 = 2048;
const MOST_MESSAGES: u64 = 50_000;

/// What chance is drawn for.
const SAMPLES: u64 = 1 << 40;
const MODELS: u64 = 2 << 40;
const ENVIRONMENTS: u64 = 3 << 40;

/// What a sample is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// To learn from.
    Training,
    /// To judge by: a known model on a network that was held out.
    NewNetwork,
    /// To judge by: a model that was held out, on a known network.
    NewModel,
    /// To judge by: both were held out.
    BothNew,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 4] = [Part::Training, Part::NewNetwork, Part::NewModel, Part::BothNew];

    /// What a sample is for follows from what it is of.
    pub fn of(model: u32, network: u32) -> Part {
        let held = |number: u32, one_of: u32| number % one_of == one_of - 1;
        match (held(model, HELD_MODELS), held(network, HELD_NETWORKS)) {
            (false, false) => Part::Training,
            (false, true) => Part::NewNetwork,
            (true, false) => Part::NewModel,
            (true, true) => Part::BothNew,
        }
    }
}

/// Makes samples.
#[derive(Clone, Debug)]
pub struct Generator {
    measured: Vec<Model>,
    seed: u64,
}

impl Generator {
    /// From models that were measured; others are invented.
    pub fn new(measured: Vec<Model>, seed: u64) -> Generator {
        Generator { measured, seed }
    }

    /// The sample with this number. `None` if nothing of it could be replayed. Of eight samples, one is to judge by.
    pub fn sample(&self, number: u64) -> Option<Sample> {
        let mut random = self.random(SAMPLES, number);
        let part = match number % 8 {
            7 => Part::ALL[1 + (number / 8 % 3) as usize],
            _ => Part::Training,
        };
        let (number_of_model, number_of_network) = self.draw(part, &mut random);
        let model = self.model(number_of_model);
        let mut environment = self.network(number_of_network);
        let device = device(&model, &environment, &mut random);
        environment.slowness.iter_mut().for_each(|slowness| *slowness *= device);
        let conditions = conditions(&model, &environment, &mut random);
        let choices = match part {
            Part::Training => some(&model, &environment, &mut random),
            _ => grid(&model, &environment),
        };
        let (mut measured, mut wires) = (Vec::new(), Vec::new());
        for choice in choices {
            let Ok(played) = played(&model, &environment, &choice) else { continue };
            let seconds = played.step_ms(0) / 1e3;
            // Where nobody would measure a rate, nothing would be predicted.
            if let Some(rates) = shown(&played, &environment)
                && seconds > 0.0
            {
                measured.push(Seen { choice, seconds });
                wires.push(rates);
            }
        }
        let (model, network) = (number_of_model, number_of_network);
        (measured.len() > 1).then_some(Sample { conditions, measured, wires, model, network })
    }

    /// A model and a network of a part.
    fn draw(&self, part: Part, random: &mut Random) -> (u32, u32) {
        let measured = self.measured.len() as u32;
        // One of thirty pairs belongs to the smallest part, so this ends.
        loop {
            let model = if measured > 0 && random.chance(MEASURED) {
                random.below(u64::from(measured)) as u32
            } else {
                measured + random.below(u64::from(INVENTED)) as u32
            };
            let network = random.below(u64::from(NETWORKS)) as u32;
            if Part::of(model, network) == part {
                return (model, network);
            }
        }
    }

    fn model(&self, number: u32) -> Model {
        match self.measured.get(number as usize) {
            Some(model) => model.clone(),
            None => Model::invented(&mut self.random(MODELS, u64::from(number))),
        }
    }

    fn network(&self, number: u32) -> Environment {
        Environment::invented(&mut self.random(ENVIRONMENTS, u64::from(number)))
    }

    /// Chance for one thing of a kind. Seeds that are near each other must not give sequences that overlap, so they are
    /// numbers that look random themselves.
    fn random(&self, kind: u64, number: u64) -> Random {
        let kind = Random::new(self.seed ^ kind).bits();
        Random::new(Random::new(kind ^ number).bits())
    }
}

/// How much slower or faster devices are than those the model was measured on: such that neither computation nor transfer
/// is all that counts.
pub(super) fn device(model: &Model, environment: &Environment, random: &mut Random) -> f64 {
    let hosts = environment.topology.hosts.len() as f64;
    let rate = environment.topology.bottleneck().rate.bytes_per_second();
    // Hosts of one send nothing over wires.
    let transfer = 2.0 * (hosts - 1.0).max(0.5) / hosts * model.bytes() as f64 / rate;
    transfer / random.ratio(0.15, 6.0) / model.seconds().max(1e-9)
}

/// What would be measured of it.
pub(super) fn conditions(
    model: &Model,
    environment: &Environment,
    random: &mut Random,
) -> Conditions {
    let count = environment.slowness.len().max(1) as f64;
    let mean = environment.slowness.iter().sum::<f64>() / count;
    let most = environment.slowness.iter().copied().fold(0.0, f64::max);
    let mut tensors = Vec::new();
    for (layer, times) in model.layers.iter().zip(&model.times) {
        let [forward, backward] = [times.forward, times.backward].map(|time| time as f64 * 1e-9);
        for (place, tensor) in layer.tensors.iter().enumerate() {
            // The time belongs to the layer, so its first tensor has it.
            let share = if place == 0 { 1.0 } else { 0.0 };
            tensors.push(TensorConditions {
                bytes: tensor.bytes() as f64,
                forward: share * mean * forward,
                backward: share * mean * backward,
                slowest: share * most * (forward + backward),
            });
        }
    }
    // Wires are never seen to carry quite what they could.
    let mut seen = |rate: f64| rate * random.between(0.85, 1.0);
    let workers = environment.slowness.iter().enumerate().map(|(rank, slowness)| {
        let rate = environment.rate(rank);
        let computation = slowness * (1.0 + environment.rest) * model.seconds();
        WorkerConditions { upload: seen(rate), download: seen(rate), computation }
    });
    Conditions {
        workers: workers.collect(),
        tensors,
        hosts: environment.topology.hosts.len(),
        latency: environment.topology.bottleneck().latency.as_secs_f64(),
        crosses_step: environment.crosses_step,
        seen: None,
    }
}

/// The smallest partition that was replayed for jobs of so many bytes and workers: smaller ones make too many messages.
pub(super) fn least_partition(bytes: f64, workers: usize) -> f64 {
    let workers = workers.max(1) as u64;
    let most = (MOST_MESSAGES / workers.saturating_mul(workers)).clamp(LEAST_CHUNKS, MOST_CHUNKS);
    bytes / most as f64
}

/// Partitions that are worth a try.
fn partitions(model: &Model, environment: &Environment) -> Vec<f64> {
    let least = least_partition(model.bytes() as f64, environment.hosts.len());
    let largest = model.tensors().map(|tensor| tensor.bytes()).max().unwrap_or(0);
    let largest = largest.next_power_of_two();
    let sizes = EXPONENTS.map(|exponent| 1u64 << exponent);
    let mut fits: Vec<u64> =
        sizes.filter(|size| *size as f64 >= least && *size <= largest).collect();
    if fits.is_empty() {
        fits.push(largest.clamp(1 << 16, 1 << 26));
    }
    fits.into_iter().map(|size| size as f64).collect()
}

fn strategies(environment: &Environment) -> Vec<usize> {
    let hosts = environment.topology.hosts.len();
    let levels = hosts > 1 && hosts < environment.hosts.len();
    let fits = |place: &usize| levels || STRATEGIES[*place] != "hierarchical";
    (0..STRATEGIES.len()).filter(fits).collect()
}

/// Different choices, by chance.
fn some(model: &Model, environment: &Environment, random: &mut Random) -> Vec<Choice> {
    let (partitions, strategies) = (partitions(model, environment), strategies(environment));
    let total: f64 = strategies.iter().map(|place| POPULARITY[*place]).sum();
    let mut chosen: Vec<Choice> = Vec::with_capacity(CHOICES);
    // Small grids may not have as many.
    for _ in 0..4 * CHOICES {
        let mut mark = random.between(0.0, total);
        let popular = strategies.iter().find(|place| {
            mark -= POPULARITY[**place];
            mark < 0.0
        });
        let partition = partitions[random.place(partitions.len())];
        let credit = partition * CREDITS[random.place(CREDITS.len())];
        let choice = Choice { strategy: popular.copied().unwrap_or(0), partition, credit };
        if chosen.len() < CHOICES && !chosen.contains(&choice) {
            chosen.push(choice);
        }
    }
    chosen
}

/// Every second partition and credit with the strategies that may be the best.
fn grid(model: &Model, environment: &Environment) -> Vec<Choice> {
    let partitions = partitions(model, environment);
    let likely = strategies(environment).into_iter().filter(|place| *place < 5);
    let strategies: Vec<usize> = likely.collect();
    let mut choices = Vec::new();
    for &strategy in &strategies {
        for partition in partitions.iter().step_by(2).copied() {
            let credits = [CREDITS[0], CREDITS[2], CREDITS[5]].map(|credit| credit * partition);
            choices.extend(credits.map(|credit| Choice { strategy, partition, credit }));
        }
    }
    choices
}

/// What workers would see their wires carry.
fn shown(played: &Played, environment: &Environment) -> Option<Vec<[f64; 2]>> {
    // One stands for all where all are alike.
    let traffic = |rank: usize| played.traffic.get(rank).or(played.traffic.first());
    let measured = |pick: fn(&Totals) -> Carried| {
        let rate = |rank| traffic(rank).and_then(|traffic| pick(&traffic.totals).rate());
        let ranks = 0..environment.hosts.len();
        let rates: Vec<f64> = ranks.map(|rank| rate(rank).unwrap_or(0.0)).collect();
        rates_of_hosts(&rates, &environment.hosts)
    };
    let (up, down) = (measured(|totals| totals.sent)?, measured(|totals| totals.received)?);
    Some(up.into_iter().zip(down).map(|(up, down)| [up, down]).collect())
}

/// Steps under a choice.
fn played(
    model: &Model,
    environment: &Environment,
    choice: &Choice,
) -> Result<Played, ReplayError> {
    let settings = settings(choice);
    let layered = Layered {
        crosses_step: environment.crosses_step,
        ..model.steps(&environment.hosts, &environment.slowness, environment.rest, STEPS)
    };
    let config = ClusterConfig { traffic: true, ..environment.config.clone() };
    if environment.is_even() && settings.strategy.0 == "ring" {
        let scenario = Scenario {
            graph: layered.graph(),
            settings,
            wire: environment.topology.bottleneck(),
            memory: environment.topology.memory,
            met: None,
            config,
        };
        scenario.play_mirrored(environment.hosts.len())
    } else {
        let view = Arc::new(environment.view(settings));
        let (topology, config) = (environment.topology.clone(), Box::new(config));
        play(&layered.graph(), &Network::Engines { view, topology, config })
    }
}

/// As the engines follow it.
fn settings(choice: &Choice) -> Settings {
    let name = STRATEGIES.get(choice.strategy).copied().unwrap_or(StrategyChoice::AUTO);
    let credit = if choice.credit.is_finite() {
        ByteSize(choice.credit as u64)
    } else {
        ByteSize::UNLIMITED
    };
    Settings {
        strategy: StrategyChoice(name.to_string()),
        partition: ByteSize(choice.partition as u64),
        credit,
        ..Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_sample_follows_from_its_number_and_is_of_the_part_it_is_for() {
        let generator = Generator::new(Vec::new(), 1);
        for number in [0, 7] {
            let sample = generator.sample(number).unwrap();
            assert_eq!(generator.sample(number), Some(sample.clone()));
            let judged = Part::of(sample.model, sample.network) != Part::Training;
            assert_eq!(judged, number == 7);
            assert!(sample.conditions.reference().is_some());
            let reference = sample.conditions.computation();
            assert!(sample.measured.iter().all(|seen| seen.seconds >= 0.99 * reference));
        }
    }

    #[test]
    fn hardly_any_two_samples_are_of_the_same_job() {
        let generator = Generator::new(Vec::new(), 1);
        let draw = |number| generator.draw(Part::BothNew, &mut generator.random(SAMPLES, number));
        let drawn: HashSet<(u32, u32)> = (0..100).map(draw).collect();
        // 18 models and 50 networks are held out.
        assert!(drawn.len() > 85, "{}", drawn.len());
    }

    #[test]
    fn every_part_is_reached() {
        let generator = Generator::new(Vec::new(), 1);
        for part in Part::ALL {
            let (model, network) = generator.draw(part, &mut Random::new(1));
            assert_eq!(Part::of(model, network), part);
        }
    }
}
