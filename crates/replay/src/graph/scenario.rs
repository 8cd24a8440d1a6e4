//! A job and the conditions it runs under, and what would be different under others.

use super::{Network, Played, play};
use crate::{ClusterConfig, error::ReplayError};
use paceline_job::{
    ByteSize, Dtype, Host, Link, Measured, ParseQuantityError, Rate, Settings, StrategyChoice,
    Topology, View, WrittenDuration,
    graph::{Graph, Operation, OperationKind},
};
use std::{fmt, str::FromStr, sync::Arc, time::Duration};

/// What batches and devices can be multiplied by: beyond, times are no longer times.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

/// A job under certain conditions.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What is computed and sent.
    pub graph: Graph,
    /// What is in force.
    pub settings: Settings,
    /// Every host's wire.
    pub wire: Link,
    /// Between workers of one host.
    pub memory: Link,
    /// The same as workers measure it when they meet, which is when `auto` decides; as `memory` is if that is not known.
    pub met: Option<Link>,
    /// What workers and kernels are like.
    pub config: ClusterConfig,
}

/// Whether all of its members do the same.
fn is_symmetric(operation: &Operation) -> bool {
    operation.kind == OperationKind::AllReduce && operation.members.is_empty()
}

impl Scenario {
    /// The network of engines that these conditions make.
    pub fn network(&self) -> Network {
        let hosts = self.graph.workers.iter().map(|worker| worker.host.clone());
        let view = self.view(hosts.collect());
        let mut topology = Topology::uniform(&view, self.wire, self.memory);
        if topology.hosts.is_empty() {
            topology.hosts.push(Host { name: String::new(), rack: 0, link: self.wire });
        }
        Network::Engines { view: Arc::new(view), topology, config: Box::new(self.config.clone()) }
    }

    /// What workers would agree on: `auto` decides by what they measure when they meet.
    fn view(&self, hosts: Vec<String>) -> View {
        let memory = self.met.unwrap_or(self.memory);
        let measured = Measured { memory: Some(memory), wire: Some(self.wire) };
        View { measured, ..View::on_hosts(hosts, self.settings.clone()) }
    }

    /// The same job on so many workers like the first of this one, of which one stands for all: see
    /// [`ClusterConfig::mirrored`]. Operations of which members do not do the same, all but all-reduces, are left out. Tensors
    /// grow to whole multiples of the number of workers, and chunks shrink to them: then this is what playing all of them gives.
    /// Of other lengths workers have unequal parts, so that they are no longer alike.
    pub fn play_mirrored(&self, workers: usize) -> Result<Played, ReplayError> {
        let graph = self.graph.with_workers(1).without_operations(|one| !is_symmetric(one));
        let graph = graph.padded(workers as u64);
        let widest = graph.operations.iter().map(|operation| operation.dtype.size()).max();
        let unit = (workers * widest.unwrap_or(1)) as u64;
        let partition = ByteSize((self.settings.partition.0 / unit).max(1) * unit);
        let mut view = self.view((0..workers).map(|rank| rank.to_string()).collect());
        view.settings.partition = partition;
        let topology = Topology::uniform(&view, self.wire, self.memory);
        let config = Box::new(ClusterConfig { mirrored: true, ..self.config.clone() });
        play(&graph, &Network::Engines { view: Arc::new(view), topology, config })
    }

    /// How many operations of a step [`Scenario::play_mirrored`] takes to be longer than they are.
    pub fn uneven(&self, workers: usize) -> usize {
        self.in_a_step(|one| is_symmetric(one) && one.elements % workers.max(1) as u64 > 0)
    }

    /// How many operations of a step [`Scenario::play_mirrored`] leaves out.
    pub fn asymmetric(&self) -> usize {
        self.in_a_step(|one| !is_symmetric(one))
    }

    fn in_a_step(&self, is_so: impl Fn(&Operation) -> bool) -> usize {
        let found = self.graph.operations.iter().filter(|one| is_so(one)).count();
        found.div_ceil(self.graph.steps.max(1) as usize)
    }

    /// Play it through the engines.
    pub fn play(&self) -> Result<Played, ReplayError> {
        play(&self.graph, &self.network())
    }

    /// The same under another condition.
    pub fn with(mut self, change: &Change) -> Scenario {
        match change {
            Change::Bandwidth(rate) => self.wire.rate = *rate,
            Change::Latency(latency) => self.wire.latency = *latency,
            Change::Workers(count) => self.graph = self.graph.with_workers(*count),
            Change::Strategy(strategy) => self.settings.strategy = strategy.clone(),
            Change::Partition(bytes) => self.settings.partition = *bytes,
            Change::Credit(bytes) => self.settings.credit = *bytes,
            Change::Batch(factor) => self.graph = self.graph.with_batch(*factor),
            Change::Precision(dtype) => self.graph = self.graph.with_dtype(*dtype),
            Change::Device(speed) => self.graph = self.graph.with_device(*speed),
            Change::Straggler => self.graph = self.graph.without_straggler(),
            Change::FirstCome => self.graph = self.graph.first_come(),
        }
        self
    }
}

/// A condition that could be another.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// What every host's wire carries.
    Bandwidth(Rate),
    /// What a message takes besides its bytes.
    Latency(Duration),
    /// Number of workers.
    Workers(usize),
    /// How all-reduces are programmed.
    Strategy(StrategyChoice),
    /// The largest chunk.
    Partition(ByteSize),
    /// Bytes in flight.
    Credit(ByteSize),
    /// So many times as many samples a step.
    Batch(f64),
    /// The type that gradients are sent in.
    Precision(Dtype),
    /// So many times as fast.
    Device(f64),
    /// All workers are as fast as the one in the middle.
    Straggler,
    /// No priorities.
    FirstCome,
}

/// More would take hours to play, or more memory than there is.
const MOST_WORKERS: usize = 1 << 16;

/// A change that cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// Use one of the names listed.
    #[error(
        "`{0}` is no change; write one of bandwidth=25gbit, latency=50us, workers=8, strategy=ring, \
         partition=1MiB, credit=4MiB, batch=2x, precision=f16, device=2x, straggler=none, order=fifo, plan=plan.toml"
    )]
    Unknown(String),
    /// Write the value as in the example.
    #[error("{name}: {problem}")]
    Value {
        /// Which change.
        name: String,
        /// What is wrong, with an example.
        problem: String,
    },
    /// Leave one of them out; separate values by commas for one after another.
    #[error(
        "{0} is said twice for one question; join different changes with `+`, and separate values by commas"
    )]
    Twice(String),
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Change, ChangeError> {
        let (name, value) =
            text.split_once('=').ok_or_else(|| ChangeError::Unknown(text.to_string()))?;
        let wrong = |problem: String| ChangeError::Value { name: name.to_string(), problem };
        let quantity = |problem: ParseQuantityError| wrong(problem.to_string());
        let factor = || {
            let number = value.strip_suffix('x').unwrap_or(value).parse::<f64>().ok();
            let fits = number.filter(|number| FACTORS.contains(number));
            let (least, most) = (FACTORS.start(), FACTORS.end());
            let why = format!("`{value}` is no factor from {least} to {most}, such as 2x");
            fits.ok_or_else(|| wrong(why))
        };
        Ok(match name {
            "bandwidth" => Change::Bandwidth(value.parse().map_err(quantity)?),
            "latency" => {
                let WrittenDuration(latency) = value.parse().map_err(quantity)?;
                Change::Latency(latency)
            }
            "workers" => match value.parse() {
                Ok(count) if (1..=MOST_WORKERS).contains(&count) => Change::Workers(count),
                _ => {
                    let why = format!(
                        "`{value}` is no number of workers from 1 to {MOST_WORKERS}, such as 8"
                    );
                    return Err(wrong(why));
                }
            },
            "strategy" => {
                let strategy = StrategyChoice(value.to_string());
                paceline_sync::check_strategy(&strategy)
                    .map_err(|error| wrong(error.to_string()))?;
                Change::Strategy(strategy)
            }
            "partition" => match value.parse().map_err(quantity)? {
                ByteSize(0) => return Err(wrong("chunks have at least a byte".to_string())),
                bytes => Change::Partition(bytes),
            },
            "credit" => match value.parse().map_err(quantity)? {
                ByteSize(0) => {
                    return Err(wrong("without credit nothing is ever sent".to_string()));
                }
                bytes => Change::Credit(bytes),
            },
            "batch" => Change::Batch(factor()?),
            "device" => Change::Device(factor()?),
            "precision" => Change::Precision(match value {
                "f32" => Dtype::F32,
                "f16" => Dtype::F16,
                "bf16" => Dtype::Bf16,
                _ => return Err(wrong(format!("`{value}` is not one of f32, f16, bf16"))),
            }),
            "straggler" if value == "none" => Change::Straggler,
            "order" if value == "fifo" => Change::FirstCome,
            "straggler" => return Err(wrong(format!("`{value}` is not `none`"))),
            "order" => return Err(wrong(format!("`{value}` is not `fifo`"))),
            _ => return Err(ChangeError::Unknown(text.to_string())),
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Bandwidth(rate) => write!(f, "bandwidth={rate}"),
            Change::Latency(latency) => write!(f, "latency={}", WrittenDuration(*latency)),
            Change::Workers(count) => write!(f, "workers={count}"),
            Change::Strategy(strategy) => write!(f, "strategy={strategy}"),
            Change::Partition(bytes) => write!(f, "partition={bytes}"),
            Change::Credit(bytes) => write!(f, "credit={bytes}"),
            Change::Batch(factor) => write!(f, "batch={factor}x"),
            Change::Precision(dtype) => write!(f, "precision={dtype}"),
            Change::Device(speed) => write!(f, "device={speed}x"),
            Change::Straggler => f.write_str("straggler=none"),
            Change::FirstCome => f.write_str("order=fifo"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{
        graph::layered::{LayerTimes, Layered},
        trace::{Layer, Tensor},
    };

    #[test]
    fn changes_are_read_as_they_are_written() {
        for text in [
            "bandwidth=25gbit",
            "latency=50us",
            "workers=8",
            "strategy=ring",
            "partition=1MiB",
            "credit=4MiB",
            "batch=2x",
            "precision=f16",
            "device=1.5x",
            "straggler=none",
            "order=fifo",
        ] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_an_example() {
        for (text, part) in [
            ("bandwith=1gbit", "bandwidth=25gbit"),
            ("workers=0", "such as 8"),
            ("workers=65537", "from 1 to 65536"),
            ("credit=0", "nothing is ever sent"),
            ("batch=-1", "such as 2x"),
            ("device=1e300x", "from 0.001 to 1000"),
            ("device=nan", "from 0.001 to 1000"),
            ("latency=soon", "such as 30s"),
            ("strategy=rings", "ring"),
            ("precision=f8", "bf16"),
            ("straggler", "straggler=none"),
        ] {
            let error = text.parse::<Change>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    fn ring_of(workers: usize) -> Scenario {
        let tensor =
            |name: &str, elements| Tensor { name: name.into(), elements, dtype: Dtype::F32 };
        let layer = |name: &str, elements: &[u64]| Layer {
            name: name.into(),
            tensors: elements.iter().map(|&elements| tensor(name, elements)).collect(),
            activation_bytes: 0,
        };
        // Whole multiples of the number of workers, as `play_mirrored` would make them.
        let unit = 64 * workers as u64;
        let layers = vec![layer("a", &[unit]), layer("b", &[40 * unit]), layer("c", &[300 * unit])];
        let times = LayerTimes { forward: 40_000, backward: 90_000, ..LayerTimes::default() };
        let hosts = (0..workers).map(|rank| rank.to_string()).collect();
        let graph = Layered::alike(layers, &[times; 3], hosts, 4).graph();
        let settings = Settings {
            strategy: StrategyChoice("ring".to_string()),
            partition: ByteSize(4 * 32 * unit),
            credit: ByteSize(4 * 64 * unit),
            ..Settings::default()
        };
        let link = |rate, latency| Link {
            rate: Rate::from_bytes_per_second(rate),
            latency: Duration::from_micros(latency),
        };
        let config = ClusterConfig::default();
        Scenario { graph, settings, wire: link(1e9, 20), memory: link(4e9, 5), met: None, config }
    }

    #[test]
    fn one_worker_stands_for_all_of_a_ring() {
        for workers in [2, 3, 8, 16, 64] {
            let scenario = ring_of(workers);
            let (all, one) = (scenario.play().unwrap(), scenario.play_mirrored(workers).unwrap());
            let ends = |played: &Played| -> Vec<u64> {
                played.steps.iter().map(|step| step[0].0).collect()
            };
            assert_eq!(ends(&all), ends(&one), "{workers} workers");
            assert!(one.events * workers as u64 <= all.events * 11 / 10);
        }
    }

    #[test]
    fn one_worker_stands_for_all_of_a_ring_whose_tensors_grew_to_multiples_of_it() {
        for workers in [3, 16] {
            let mut scenario = ring_of(workers);
            assert_eq!(scenario.uneven(workers), 0);
            // As ResNet-50 has one of 1,000 elements.
            scenario.graph.operations.iter_mut().step_by(3).for_each(|one| one.elements += 1);
            assert_eq!(scenario.uneven(workers), 1);
            let one = scenario.play_mirrored(workers).unwrap();
            scenario.graph = scenario.graph.padded(workers as u64);
            let all = scenario.play().unwrap();
            let ends =
                |played: &Played| played.steps.iter().map(|step| step[0]).collect::<Vec<_>>();
            assert_eq!(ends(&all), ends(&one), "{workers} workers");
        }
    }

    #[test]
    fn one_worker_cannot_stand_for_a_tree() {
        let mut scenario = ring_of(4);
        scenario.settings.strategy = StrategyChoice("double_tree".to_string());
        assert_eq!(scenario.play_mirrored(4), Err(ReplayError::NotSymmetric));
    }
}
