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
    ByteSize, Link, Rate, Settings, StrategyChoice, Time, Topology, View,
    graph::{
        Clocks, Job,
        layered::{LayerTimes, Layered},
    },
    trace::Trace,
};
use paceline_replay::{
    ClusterConfig, NetworkConfig,
    graph::{self, Network},
};
use std::{error::Error, path::Path, str::FromStr, sync::Arc, time::Duration};

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
    let steps = play(options)?;
    let seconds = steps.iter().sum::<f64>() / steps.len() as f64;
    if options.json {
        println!("{}", serde_json::json!({ "seconds": seconds, "steps": steps }));
    } else {
        println!("{:.3} ms a step", 1e3 * seconds);
    }
    Ok(())
}

/// The seconds of each step that counts, on the slowest worker.
fn play(options: &Options) -> Result<Vec<f64>, Box<dyn Error>> {
    let trace = Trace::read(Path::new(&options.profile))?;
    let job = Job::from_trace(&trace, &Clocks::agreeing())?;
    let profile = job.layered.ok_or("the profile names no layers")?;
    let slower = |nanoseconds: u64| (options.slow * nanoseconds as f64).round() as u64;
    let times: Vec<LayerTimes> = profile.workers[0].steps[0]
        .iter()
        .map(|times| LayerTimes {
            forward: slower(times.forward),
            backward: slower(times.backward),
            ..LayerTimes::default()
        })
        .collect();
    let hosts: Vec<String> = (0..options.workers).map(|rank| format!("host{rank}")).collect();
    let layered = Layered::alike(profile.layers, &times, hosts.clone(), WARMUP + options.steps);
    let layered = Layered { scheduled: options.scheduled, ..layered };

    let view = View::on_hosts(hosts, options.settings.clone());
    let link = Link { rate: options.rate, latency: Duration::ZERO };
    let network = NetworkConfig {
        queue_bytes: options.queue.0,
        jitter: options.jitter,
        ..NetworkConfig::default()
    };
    let config = Box::new(ClusterConfig { network, ..ClusterConfig::default() });
    let topology = Topology::uniform(&view, link, link);
    let network = Network::Engines { view: Arc::new(view), topology, config };
    let played = graph::play(&layered.graph(), &network)?;
    let ends = played.steps[WARMUP - 1..].iter().filter_map(|step| step.iter().max());
    let ends: Vec<Time> = ends.copied().collect();
    Ok(ends.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64()).collect())
}
