//! Strategies side by side on uneven networks of 64 to 1,024 workers, in virtual time: one averaging or all-reduce of a
//! tensor, on racks with oversubscribed uplinks, with a contended uplink, and with a contended host.
//!
//!     cargo run --release -p paceline-replay --example uneven -- [--most N] [--per-rack N] [--oversubscription X,Y] \
//!         [--mib N] [--json] [--svg FILE]
//!
//! A contended link carries a fifth of what it did. The bound is what the slowest link takes for the tensor once each way.

mod drawing;

use paceline_job::{
    ByteSize, Contended, Dtype, Link, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time,
    Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use std::{collections::BTreeSet, error::Error, str::FromStr, sync::Arc, time::Duration};

const STRATEGIES: [&str; 4] = ["ring", "double_tree", "hierarchical:racks", "shuffle"];
const CASES: [&str; 3] = ["racks alone", "a contended uplink", "a contended host"];
/// What is left of a contended link.
const LEFT: f64 = 0.2;
const FEWEST: u32 = 64;
/// From one size to the next.
const GROWTH: u32 = 4;

/// One strategy on one network.
struct Measured {
    case: &'static str,
    oversubscription: f64,
    workers: u32,
    strategy: &'static str,
    seconds: f64,
    /// The tensor over the slowest link, once.
    bound: f64,
}

struct Options {
    most: u32,
    per_rack: u32,
    oversubscription: Vec<f64>,
    bytes: u64,
    json: bool,
    svg: Option<String>,
}

fn main() {
    if let Err(problem) = Options::read(std::env::args().skip(1)).and_then(|options| run(&options))
    {
        eprintln!("uneven: {problem}");
        std::process::exit(1);
    }
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
        let mut options = Options {
            most: 1024,
            per_rack: 16,
            oversubscription: vec![2.0, 4.0, 8.0],
            bytes: 16 << 20,
            json: false,
            svg: None,
        };
        while let Some(name) = arguments.next() {
            if name == "--json" {
                options.json = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--most" => options.most = number(&name, &value)?,
                "--per-rack" => options.per_rack = number(&name, &value)?,
                "--oversubscription" => {
                    let all = value.split(',').map(|one| number(&name, one));
                    options.oversubscription = all.collect::<Result<_, _>>()?;
                }
                "--mib" => options.bytes = number::<u64>(&name, &value)? << 20,
                "--svg" => options.svg = Some(value),
                _ => return Err(format!("unknown argument `{name}`; see the file's head").into()),
            }
        }
        let fits = options.per_rack > 0 && FEWEST.is_multiple_of(options.per_rack);
        if !fits || options.most < FEWEST || options.bytes == 0 {
            return Err("--per-rack divides 64, --most is 64 or more, --mib is above 0".into());
        }
        Ok(options)
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, Box<dyn Error>> {
    value.parse().map_err(|_| format!("{name} {value}: it is a number").into())
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut all = Vec::new();
    for oversubscription in options.oversubscription.iter().copied() {
        for case in CASES {
            let mut workers = FEWEST;
            while workers <= options.most {
                for strategy in STRATEGIES {
                    let measured = play(options, case, oversubscription, workers, strategy)?;
                    if !options.json {
                        println!(
                            "{oversubscription}:1 {case:20} {workers:5} workers  {strategy:20} {:9.2} ms, {:.2} times the \
                             bound of {:.2} ms",
                            1e3 * measured.seconds,
                            measured.seconds / measured.bound,
                            1e3 * measured.bound
                        );
                    }
                    all.push(measured);
                }
                workers *= GROWTH;
            }
        }
    }
    if options.json {
        let row = |one: &Measured| {
            serde_json::json!({
                "case": one.case, "oversubscription": one.oversubscription, "workers": one.workers, "strategy": one.strategy,
                "seconds": one.seconds, "bound": one.bound,
            })
        };
        println!("{}", serde_json::Value::Array(all.iter().map(row).collect()));
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, drawing::draw(&all))?;
    }
    Ok(())
}

fn play(
    options: &Options,
    case: &'static str,
    oversubscription: f64,
    workers: u32,
    strategy: &'static str,
) -> Result<Measured, Box<dyn Error>> {
    let wire = Rate::from_bits_per_second(10e9);
    let link = |rate| Link { rate, latency: Duration::from_micros(20) };
    let uplink = wire.scaled(f64::from(options.per_rack) / oversubscription);
    let racks = workers / options.per_rack;
    let mut topology = Topology::racked(workers, racks, link(wire), link(uplink), link(wire));
    let mut contended = Contended::default();
    // A group between racks is limited by whichever is slower, the uplink or the wires of those who serve.
    let mut slowest = uplink.bytes_per_second().min(wire.bytes_per_second());
    if case == CASES[1] {
        topology.uplinks[1].rate = uplink.scaled(LEFT);
        contended.racks = BTreeSet::from([1]);
        slowest = slowest.min(uplink.bytes_per_second() * LEFT);
    }
    if case == CASES[2] {
        let host = &mut topology.hosts[5];
        host.link.rate = wire.scaled(LEFT);
        contended.hosts = BTreeSet::from([host.name.clone()]);
        slowest = slowest.min(wire.bytes_per_second() * LEFT);
    }
    let topology = Arc::new(topology);
    let settings = Settings {
        strategy: StrategyChoice(strategy.to_string()),
        // A ring of a thousand cuts a chunk into a thousand segments.
        partition: ByteSize::mib(4),
        credit: ByteSize::mib(16),
        topology: Some(topology.clone()),
        contended,
        ..Settings::default()
    };
    let names = topology.hosts.iter().map(|host| host.name.clone()).collect();
    let view = Arc::new(View::on_hosts(names, settings));
    let mut cluster = Cluster::new(view, &topology, ClusterConfig::default())?;
    let begun = Time(1);
    for rank in (0..workers).map(Rank) {
        let post = Post {
            reduce: ReduceOp::Mix,
            ..Post::new(
                OpId(0),
                "weights",
                Collective::AllReduce { len: options.bytes / 4 },
                Dtype::F32,
            )
        };
        cluster.post(begun, rank, post)?;
    }
    let outcome = cluster.run();
    if !outcome.stuck.is_empty() {
        return Err(format!("{strategy} is stuck with {workers} workers").into());
    }
    let last = outcome.finishes.iter().map(|finish| finish.at).max().unwrap_or(begun);
    let seconds = last.since(begun).as_secs_f64();
    let bound = options.bytes as f64 / slowest;
    Ok(Measured { case, oversubscription, workers, strategy, seconds, bound })
}
