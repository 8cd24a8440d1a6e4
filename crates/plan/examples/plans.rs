//! What plans gain on the shipped profiles. Against DDP (buckets of 25 MiB, and a step ends when all are there); and, where
//! tensors cross the step, against every tensor by itself, buckets of 25 MiB and the best fixed length of buckets; all in
//! virtual time.
//!
//!     cargo run --release -p paceline-plan --example plans -- bench/training/profiles/*.json \
//!         [--workers 4,8] [--rates 1gbit,10gbit] [--slow N] [--latency MICROSECONDS] [--frame MICROSECONDS] \
//!         [--engine search|both] [--replays N] [--partial yes|no] [--json]

use paceline_job::{
    ByteSize, Link, Rate, Settings, StrategyChoice,
    graph::{
        Clocks, Job,
        layered::{Group, Layered},
    },
    trace::Trace,
};
use paceline_plan::{Engine, Limits, Task, optimize};
use paceline_replay::{ClusterConfig, WorkerConfig, graph::Scenario};
use std::{
    error::Error,
    ops::ControlFlow,
    path::Path,
    str::FromStr,
    time::{Duration, Instant},
};

struct Options {
    profiles: Vec<String>,
    workers: Vec<usize>,
    rates: Vec<Rate>,
    slow: f64,
    latency: Duration,
    frame: Duration,
    limits: Limits,
    json: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = read(std::env::args().skip(1))?;
    if !options.json {
        println!(
            "{:<10} {:>2} {:>8} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} {:>7} {:>6} {:>6} | plan",
            "model",
            "n",
            "rate",
            "DDP",
            "tensors",
            "25MiB",
            "fixed",
            "search",
            "annealing",
            "seconds",
            "tries",
            "spared"
        );
    }
    for profile in &options.profiles {
        for &workers in &options.workers {
            for &rate in &options.rates {
                row(&options, profile, workers, rate)?;
            }
        }
    }
    Ok(())
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        profiles: Vec::new(),
        workers: vec![4],
        rates: vec![Rate::from_bits_per_second(1e9)],
        slow: 1.0,
        latency: Duration::from_micros(50),
        frame: Duration::from_micros(5),
        limits: Limits::default(),
        json: false,
    };
    while let Some(name) = arguments.next() {
        if name == "--json" {
            options.json = true;
            continue;
        }
        if !name.starts_with("--") {
            options.profiles.push(name);
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--workers" => options.workers = list(&value)?,
            "--rates" => options.rates = list(&value)?,
            "--slow" => options.slow = value.parse()?,
            "--latency" => options.latency = Duration::from_micros(value.parse()?),
            "--frame" => options.frame = Duration::from_micros(value.parse()?),
            "--partial" => options.limits.partial = value == "yes",
            "--replays" => options.limits.replays = value.parse()?,
            "--engine" => {
                options.limits.engine = match value.as_str() {
                    "search" => Engine::Search,
                    "both" => Engine::Both,
                    _ => return Err("--engine is search or both".into()),
                }
            }
            _ => return Err(format!("unknown argument `{name}`; see the file's head").into()),
        }
    }
    if options.profiles.is_empty() {
        return Err("name a profile, such as bench/training/profiles/vgg16.json".into());
    }
    Ok(options)
}

fn list<T: FromStr<Err: Error + 'static>>(text: &str) -> Result<Vec<T>, Box<dyn Error>> {
    text.split(',').map(|one| Ok(one.parse()?)).collect()
}

/// The profile's layers on so many hosts.
fn layers(profile: &str, workers: usize, slow: f64) -> Result<Layered, Box<dyn Error>> {
    let trace = Trace::read(Path::new(profile))?;
    let job = Job::from_trace(&trace, &Clocks::agreeing())?;
    let mut layered = job.layered.ok_or("the profile has no layers")?;
    let mut worker = layered.workers[0].clone();
    for times in worker.steps.iter_mut().flatten() {
        times.forward = (times.forward as f64 * slow) as u64;
        times.backward = (times.backward as f64 * slow) as u64;
    }
    layered.workers = (0..workers)
        .map(|rank| {
            let mut copy = worker.clone();
            copy.host = format!("host{rank}");
            copy
        })
        .collect();
    (layered.crosses_step, layered.scheduled) = (true, true);
    layered.forget_recorded();
    Ok(layered)
}

fn row(options: &Options, profile: &str, workers: usize, rate: Rate) -> Result<(), Box<dyn Error>> {
    let layered = layers(profile, workers, options.slow)?;
    let config = ClusterConfig {
        worker: WorkerConfig { per_frame: options.frame, ..WorkerConfig::default() },
        ..ClusterConfig::default()
    };
    let memory = Link { rate: Rate::from_bytes_per_second(4e9), latency: Duration::from_micros(5) };
    let settings = Settings { strategy: StrategyChoice("ring".to_string()), ..Settings::default() };
    let wire = Link { rate, latency: options.latency };
    let graph = layered.graph();
    let scenario = Scenario { graph, settings, wire, memory, met: None, config };
    let task = Task { scenario, layered: Some(layered.clone()) };
    let fixed = |bytes: u64, crosses: bool| -> Result<f64, Box<dyn Error>> {
        let mut layered = layered.clone();
        layered.groups = buckets(&layered, bytes);
        (layered.crosses_step, layered.scheduled) = (crosses, crosses);
        let task = Task { layered: Some(layered), ..task.clone() };
        let limits = Limits { replays: 0, ..Limits::default() };
        Ok(optimize(&task, &limits, &mut |_| ControlFlow::Break(()))?.before_ms)
    };
    let sizes = [1, 2, 4, 8, 16, 25, 32, 64, 128].map(ByteSize::mib);
    let best = sizes.iter().map(|size| fixed(size.0, true)).collect::<Result<Vec<f64>, _>>()?;
    // As PyTorch does it: a step ends when all buckets are there, first come, first served.
    let ddp = fixed(sizes[5].0, false)?;
    let (bucketed, best) = (best[5], best.into_iter().fold(f64::INFINITY, f64::min));
    let begin = Instant::now();
    let outcome = optimize(&task, &options.limits, &mut |_| ControlFlow::Continue(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let name = Path::new(profile).file_stem().and_then(|name| name.to_str()).unwrap_or(profile);
    let of =
        |engine: &str| outcome.engines.iter().find(|(name, _)| *name == engine).map(|(_, ms)| *ms);
    let settings = &outcome.plan.settings;
    let groups = outcome.plan.fusion.groups.len();
    if options.json {
        println!(
            "{}",
            serde_json::json!({
                "model": name, "workers": workers, "rate": rate, "tensors_ms": outcome.before_ms, "ddp_ms": ddp, "bucketed_ms": bucketed,
                "fixed_ms": best, "seconds": seconds, "outcome": outcome,
            })
        );
        return Ok(());
    }
    println!(
        "{name:<10} {workers:>2} {:>8} | {ddp:>9.2} {:>9.2} {bucketed:>9.2} {best:>9.2} | {:>9.2} {:>9.2} {seconds:>7.1} {:>6} {:>6} | {} {} {} {groups} groups",
        rate.to_string(),
        outcome.before_ms,
        of("search").unwrap_or(f64::NAN),
        of("annealing").unwrap_or(f64::NAN),
        outcome.replays,
        outcome.partial.spared,
        settings.strategy,
        settings.partition,
        settings.credit,
    );
    Ok(())
}

/// Tensors in the order of the backward pass, until a bucket is full.
fn buckets(layered: &Layered, bytes: u64) -> Vec<Group> {
    let tensors: Vec<_> = layered.layers.iter().flat_map(|layer| &layer.tensors).collect();
    let mut groups = vec![Group { tensors: Vec::new() }];
    let mut filled = 0;
    for place in (0..tensors.len()).rev() {
        if filled >= bytes {
            groups.push(Group { tensors: Vec::new() });
            filled = 0;
        }
        filled += tensors[place].bytes();
        if let Some(group) = groups.last_mut() {
            group.tensors.push(place as u32);
        }
    }
    groups
}
