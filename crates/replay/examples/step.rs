//! How long a training step takes in virtual time: the layers of a profile compute by timers, their gradients are
//! all-reduced by the engine, and the next forward pass waits for each layer's own, as the scheduled optimizer does.
//!
//!     cargo run --release -p paceline-replay --example step -- bench/training/profiles/vgg16.json --rate 1gbit \
//!         [--slow N] [--workers N] [--partition BYTES] [--credit BYTES] [--order scheduled|fifo] [--steps N] \
//!         [--strategy NAME] [--queue BYTES] [--jitter MILLISECONDS] [--json]
//!
//! Nothing but wires takes time: no latency, no processor, no kernel's queue (unless `--queue` gives one), no
//! disturbance (`--jitter`: a message may take up to that much longer). With tiny chunks that is what a step would take
//! if scheduling were perfect, a check on the bound that `bench/training` calculates. The rate is of payload.

use paceline_job::{
    ByteSize, Dtype, Link, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig, NetworkConfig};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use serde::Deserialize;
use std::{error::Error, str::FromStr, sync::Arc, time::Duration};

/// Steps before those that count: the first finds nothing left over from one before.
const WARMUP: usize = 2;

fn main() {
    let result = Options::read(std::env::args().skip(1)).and_then(|options| run(&options));
    if let Err(problem) = result {
        eprintln!("step: {problem}");
        std::process::exit(1);
    }
}

struct Options {
    profile: String,
    slow: f64,
    workers: u32,
    rate: Rate,
    settings: Settings,
    scheduled: bool,
    steps: usize,
    queue: ByteSize,
    jitter: Duration,
    json: bool,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
        // So small that the order is as good as continuous, so large that a run takes seconds.
        let tiny = ByteSize::kib(64);
        let mut options = Options {
            profile: String::new(),
            slow: 1.0,
            workers: 4,
            rate: Rate::from_bits_per_second(1e9),
            settings: Settings {
                strategy: StrategyChoice("ring".to_string()),
                partition: tiny,
                credit: tiny,
                ..Settings::default()
            },
            scheduled: true,
            steps: 4,
            queue: ByteSize(0),
            jitter: Duration::ZERO,
            json: false,
        };
        while let Some(name) = arguments.next() {
            if name == "--json" {
                options.json = true;
                continue;
            }
            if !name.starts_with("--") {
                options.profile = name;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--slow" => options.slow = parse(&name, &value)?,
                "--workers" => options.workers = parse(&name, &value)?,
                "--rate" => options.rate = parse(&name, &value)?,
                "--strategy" => options.settings.strategy = StrategyChoice(value),
                "--partition" => options.settings.partition = parse(&name, &value)?,
                "--credit" => options.settings.credit = parse(&name, &value)?,
                "--steps" => options.steps = parse(&name, &value)?,
                "--queue" => options.queue = parse(&name, &value)?,
                "--jitter" => {
                    let milliseconds: f64 = parse(&name, &value)?;
                    options.jitter = Duration::try_from_secs_f64(milliseconds / 1e3)?;
                }
                "--order" => {
                    options.scheduled = match value.as_str() {
                        "scheduled" => true,
                        "fifo" => false,
                        _ => return Err("--order is scheduled or fifo".into()),
                    }
                }
                _ => return Err(format!("unknown argument `{name}`; see the file's head").into()),
            }
        }
        if options.profile.is_empty() {
            return Err("name a profile, such as bench/training/profiles/vgg16.json".into());
        }
        if options.workers == 0 || options.steps == 0 {
            return Err("--workers and --steps must be above 0".into());
        }
        options.settings.validate()?;
        Ok(options)
    }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, Box<dyn Error>> {
    value.parse().map_err(|problem| format!("{name} {value}: {problem}").into())
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(&options.profile)
        .map_err(|problem| format!("{}: {problem}", options.profile))?;
    let profile: Profile = serde_json::from_str(&text)
        .map_err(|problem| format!("{} is no profile: {problem}", options.profile))?;
    let model = Model::new(&profile, options)?;
    let steps = model.play(options)?;
    let seconds = steps.iter().sum::<f64>() / steps.len() as f64;
    if options.json {
        println!("{}", serde_json::json!({ "seconds": seconds, "steps": steps }));
    } else {
        println!("{:.3} ms a step", 1e3 * seconds);
    }
    Ok(())
}

#[derive(Deserialize)]
struct Profile {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    tensors: Vec<u64>,
    forward: f64,
    backward: f64,
}

/// What each worker computes and posts, again and again.
struct Model {
    layers: Vec<Played>,
    /// For each tensor, in the order of the forward pass: its layer, its post.
    tensors: Vec<(usize, Post)>,
}

struct Played {
    forward: Duration,
    backward: Duration,
    tensors: std::ops::Range<usize>,
}

impl Model {
    fn new(profile: &Profile, options: &Options) -> Result<Model, Box<dyn Error>> {
        let mut model = Model { layers: Vec::new(), tensors: Vec::new() };
        for (place, layer) in profile.layers.iter().enumerate() {
            let first = model.tensors.len();
            for &len in &layer.tensors {
                let number = model.tensors.len();
                let post = Post {
                    op: OpId(number as u32),
                    name: format!("tensor {number}").into(),
                    collective: Collective::AllReduce { len },
                    dtype: Dtype::F32,
                    reduce: ReduceOp::Average,
                    priority: if options.scheduled { place as i64 } else { 0 },
                    group: None,
                    in_place: true,
                };
                model.tensors.push((place, post));
            }
            model.layers.push(Played {
                forward: Duration::try_from_secs_f64(options.slow * layer.forward)?,
                backward: Duration::try_from_secs_f64(options.slow * layer.backward)?,
                tensors: first..model.tensors.len(),
            });
        }
        Ok(model)
    }

    /// The seconds of each step that counts, on the slowest worker.
    fn play(&self, options: &Options) -> Result<Vec<f64>, Box<dyn Error>> {
        let hosts = (0..options.workers).map(|rank| format!("host{rank}")).collect();
        let view = Arc::new(View::on_hosts(hosts, options.settings.clone()));
        let link = Link { rate: options.rate, latency: Duration::ZERO };
        let network = NetworkConfig {
            queue_bytes: options.queue.0,
            jitter: options.jitter,
            ..NetworkConfig::default()
        };
        let config = ClusterConfig { network, ..ClusterConfig::default() };
        let topology = Topology::uniform(&view, link, link);
        let mut cluster = Cluster::new(view, &topology, config)?;

        let steps = WARMUP + options.steps;
        let mut players: Vec<Player> =
            (0..options.workers).map(|rank| Player::new(Rank(rank), self, steps)).collect();
        for player in &mut players {
            player.go_on(self, &mut cluster)?;
        }
        let mut failure: Option<String> = None;
        cluster.run_with(|cluster, finish| {
            if let Err(problem) = &finish.result {
                failure.get_or_insert(problem.to_string());
                return;
            }
            let player = &mut players[finish.rank.index()];
            let layer = self.tensors[finish.op.0 as usize].0;
            player.missing[layer] -= 1;
            player.complete_at[layer] = finish.at;
            if let Err(problem) = player.go_on(self, cluster) {
                failure.get_or_insert(problem.to_string());
            }
        });
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        if players.iter().any(|player| player.ends.len() < steps) {
            return Err("the run came to a halt".into());
        }
        let last = |step: usize| players.iter().map(|player| player.ends[step]).max();
        let ends: Vec<Time> = (WARMUP - 1..steps).filter_map(last).collect();
        Ok(ends.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64()).collect())
    }
}

/// A worker's own computation.
struct Player {
    rank: Rank,
    steps: usize,
    /// The layer whose forward pass is next.
    layer: usize,
    /// When the computation planned so far is over.
    free_at: Time,
    /// For each layer, tensors that are not averaged yet, and when the last one was.
    missing: Vec<usize>,
    complete_at: Vec<Time>,
    /// When each backward pass ended.
    ends: Vec<Time>,
}

impl Player {
    fn new(rank: Rank, model: &Model, steps: usize) -> Player {
        Player {
            rank,
            steps,
            layer: 0,
            free_at: Time::ZERO,
            missing: vec![0; model.layers.len()],
            complete_at: vec![Time::ZERO; model.layers.len()],
            ends: Vec::new(),
        }
    }

    /// Compute as far as what has arrived allows: a computation takes as long as it takes, so all of its posts can
    /// be written down ahead.
    fn go_on(&mut self, model: &Model, cluster: &mut Cluster) -> Result<(), Box<dyn Error>> {
        while self.ends.len() < self.steps {
            while let Some(layer) = model.layers.get(self.layer) {
                if self.missing[self.layer] > 0 {
                    return Ok(());
                }
                let begin = self.free_at.max(self.complete_at[self.layer]);
                self.free_at = begin.after(layer.forward);
                self.layer += 1;
            }
            for (place, layer) in model.layers.iter().enumerate().rev() {
                self.free_at = self.free_at.after(layer.backward);
                self.missing[place] = layer.tensors.len();
                for (_, post) in model.tensors[layer.tensors.clone()].iter().rev() {
                    cluster.post(self.free_at, self.rank, post.clone())?;
                }
            }
            self.ends.push(self.free_at);
            self.layer = 0;
        }
        Ok(())
    }
}
