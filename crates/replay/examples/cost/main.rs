//! What a replay costs, in seconds of a processor for one step: against the number of workers, all of them played and one
//! for all, and against the number of tensors that the same bytes are cut into.
//!
//!     cargo run --release -p paceline-replay --example cost -- [--svg FILE] [--json] [--most SECONDS]
//!
//! The job is a ring with a hundred megabytes of gradients, as many as ResNet-50's, and 161 tensors. A sweep goes on until a
//! replay takes longer than `--most` (20 s).

mod drawing;

use drawing::{Chart, Line};
use paceline_job::{
    ByteSize, Dtype, Link, Rate, Settings, StrategyChoice,
    graph::layered::{LayerTimes, Layered},
    trace::{Layer, Tensor},
};
use paceline_replay::{
    ClusterConfig,
    graph::{Network, Prices, Scenario, play},
};
use std::{error::Error, sync::Arc, time::Duration};

/// Elements of all gradients: about ResNet-50's.
const ELEMENTS: u64 = 25_600_000;
/// Tensors where workers are counted, and workers where tensors are.
const TENSORS: u64 = 161;
const WORKERS: usize = 8;
/// Steps that are played; the cost is of one.
const STEPS: usize = 2;
/// What there is at most where every worker is played.
const MOST_PLAYED: usize = 64;

struct Options {
    svg: Option<String>,
    json: bool,
    most: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = read(std::env::args().skip(1))?;
    let workers = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
    let tensors = [10, 20, 50, 100, 200, 500, 1000];

    let all = |count: usize| -> Result<f64, Box<dyn Error>> {
        let scenario = ring(count, TENSORS);
        timed(|| scenario.play())
    };
    let one_for_all = |count: usize| -> Result<f64, Box<dyn Error>> {
        let scenario = ring(1, TENSORS);
        timed(|| scenario.play_mirrored(count))
    };
    let few = workers.iter().copied().filter(|count| *count <= MOST_PLAYED);
    let by_workers = [
        Line::new("every worker played", sweep(few, options.most, all)?),
        Line::new("one for all (--alike)", sweep(workers, options.most, one_for_all)?),
    ];

    let whole = |count: usize| -> Result<f64, Box<dyn Error>> {
        let scenario = ring(WORKERS, count as u64);
        timed(|| scenario.play())
    };
    let mirrored = |count: usize| -> Result<f64, Box<dyn Error>> {
        let scenario = ring(1, count as u64);
        timed(|| scenario.play_mirrored(WORKERS))
    };
    let partial = |count: usize| -> Result<f64, Box<dyn Error>> {
        let scenario = ring(WORKERS, count as u64);
        let network = Network::Served(Arc::new(Prices::of(&scenario, 4 * ELEMENTS)?));
        timed(|| play(&scenario.graph, &network))
    };
    let by_tensors = [
        Line::new("every worker played", sweep(tensors, options.most, whole)?),
        Line::new("one for all (--alike)", sweep(tensors, options.most, mirrored)?),
        Line::new("partial replay, prices known", sweep(tensors, options.most, partial)?),
    ];

    let charts = [
        Chart { title: format!("{TENSORS} tensors"), across: "workers", lines: by_workers.into() },
        Chart { title: format!("{WORKERS} workers"), across: "tensors", lines: by_tensors.into() },
    ];
    report(&charts, options.json);
    if let Some(path) = options.svg {
        let heading = "Processor time to replay one step of a ring that sums 100 MB of gradients";
        std::fs::write(path, drawing::svg(heading, &charts))?;
    }
    Ok(())
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let mut options = Options { svg: None, json: false, most: 20.0 };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--svg" => options.svg = Some(value()?),
            "--most" => options.most = value()?.parse()?,
            "--json" => options.json = true,
            _ => return Err(format!("unknown argument `{name}`; see the file's head").into()),
        }
    }
    Ok(options)
}

/// A job of a ring over links of 10 Gbit/s, every worker on a host of its own.
fn ring(workers: usize, tensors: u64) -> Scenario {
    let layer = |place: u64| {
        let elements = ELEMENTS / tensors + u64::from(place < ELEMENTS % tensors);
        let tensor = Tensor { name: format!("t{place}").into(), elements, dtype: Dtype::F32 };
        Layer { name: format!("l{place}").into(), tensors: vec![tensor], activation_bytes: 0 }
    };
    let layers: Vec<Layer> = (0..tensors).map(layer).collect();
    // A step computes for 30 ms, whatever it is cut into.
    let share = 10_000_000 / tensors;
    let times = LayerTimes { forward: share, backward: 2 * share, ..LayerTimes::default() };
    let hosts = (0..workers).map(|rank| format!("host{rank}")).collect();
    let times = vec![times; layers.len()];
    let graph = Layered::alike(layers, &times, hosts, STEPS).graph();
    let link = |rate, latency| Link {
        rate: Rate::from_bits_per_second(rate),
        latency: Duration::from_micros(latency),
    };
    let settings = Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize::mib(4),
        credit: ByteSize::mib(16),
        ..Settings::default()
    };
    let (wire, memory) = (link(10e9, 20), link(80e9, 1));
    Scenario { graph, settings, wire, memory, met: None, config: ClusterConfig::default() }
}

/// Seconds of a processor for one step: what else the machine does must not change what is measured. Systems count it in
/// ticks, so short runs are repeated.
fn timed<T, E: Error + 'static>(run: impl Fn() -> Result<T, E>) -> Result<f64, Box<dyn Error>> {
    const ENOUGH: f64 = 0.1;
    const MOST_RUNS: u32 = 1_000_000;
    let begin = busy_seconds()?;
    for runs in 1..=MOST_RUNS {
        run()?;
        let busy = busy_seconds()? - begin;
        if busy > ENOUGH {
            return Ok(busy / f64::from(runs) / STEPS as f64);
        }
    }
    Err("a replay takes too little to be measured".into())
}

/// Processor time of this thread so far.
fn busy_seconds() -> Result<f64, Box<dyn Error>> {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = statistics.split_whitespace().next().ok_or("the system tells no processor time")?;
    Ok(first.parse::<f64>()? / 1e9)
}

/// One point for each count, until one takes too long.
fn sweep(
    counts: impl IntoIterator<Item = usize>,
    most: f64,
    cost: impl Fn(usize) -> Result<f64, Box<dyn Error>>,
) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
    let mut points = Vec::new();
    for count in counts {
        let seconds = cost(count)?;
        points.push((count as f64, seconds));
        if seconds * STEPS as f64 > most {
            break;
        }
    }
    Ok(points)
}

fn report(charts: &[Chart], json: bool) {
    for Chart { title, across, lines } in charts {
        for Line { name, points } in lines {
            if json {
                let line = serde_json::json!({ "of": title, "line": name, "across": across, "seconds": points });
                println!("{line}");
                continue;
            }
            println!("{title}, {name}:");
            for (count, seconds) in points {
                println!("  {count:>6} {across}  {seconds:>9.4} s");
            }
        }
    }
}
