//! How fast the replay runs: a ring all-reduce of 1,024 workers, each on a host of its own.
//!
//!     cargo run --release -p paceline-replay --example ring_1024 -- [--ranks N] [--chunks N] [--fifo] [--json]
//!
//! Chunks enter the network as the settings' credit allows; with `--fifo` all of them at once.

use paceline_job::{
    ByteSize, Dtype, Link, Rank, Rate, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

fn main() {
    let (mut ranks, mut chunks, mut fifo, mut json) = (1024_u32, 1_u64, false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        match argument.as_str() {
            "--ranks" => ranks = number().map_or(ranks, |number| number as u32),
            "--chunks" => chunks = number().unwrap_or(chunks),
            "--fifo" => fifo = true,
            "--json" => json = true,
            other => {
                eprintln!(
                    "unknown argument `{other}`; known: --ranks N, --chunks N, --fifo, --json"
                );
                std::process::exit(2);
            }
        }
    }

    let settings = Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize::mib(1),
        ..Settings::default()
    };
    let hosts = (0..ranks).map(|rank| format!("host{rank}")).collect();
    let settings = if fifo { settings.fifo() } else { settings };
    let view = Arc::new(View::on_hosts(hosts, settings));
    let link = Link { rate: Rate::from_bits_per_second(10e9), latency: Duration::from_micros(10) };
    let memory = Link { rate: Rate::from_bits_per_second(80e9), latency: Duration::from_micros(1) };
    let topology = Topology::uniform(&view, link, memory);

    let begun = Instant::now();
    let mut cluster = Cluster::new(view, &topology, ClusterConfig::default())
        .expect("the cluster is well formed");
    for rank in (0..ranks).map(Rank) {
        let post =
            Post::new(OpId(0), "gradient", Collective::AllReduce { len: chunks << 18 }, Dtype::F32);
        cluster.post(Time::ZERO, rank, post).expect("the rank exists");
    }
    let set_up = begun.elapsed();
    let (begun, busy_before) = (Instant::now(), busy_seconds());
    let outcome = cluster.run();
    let wall = begun.elapsed();
    let busy = busy_seconds() - busy_before;
    assert!(outcome.stuck.is_empty(), "{} operations are stuck", outcome.stuck.len());
    assert!(outcome.finishes.iter().all(|finish| finish.result.is_ok()));

    // By processor time: other processes must not change what is measured.
    let events_per_second = outcome.events as f64 / busy;
    let virtual_seconds = outcome.end.0 as f64 / 1e9;
    let peak_rss = peak_resident_kib();
    if json {
        println!(
            "{{\"ranks\":{ranks},\"chunks\":{chunks},\"messages\":{},\"events\":{},\
             \"set_up_seconds\":{:.3},\"wall_seconds\":{:.3},\"busy_seconds\":{busy:.3},\"events_per_second\":{events_per_second:.0},\
             \"virtual_seconds\":{virtual_seconds},\"peak_rss_kib\":{peak_rss}}}",
            outcome.messages,
            outcome.events,
            set_up.as_secs_f64(),
            wall.as_secs_f64(),
        );
    } else {
        println!("{ranks} workers, {chunks} chunks: {} messages", outcome.messages);
        println!(
            "  {:.3} s to set up, {:.3} s to run ({busy:.3} s of processor time)",
            set_up.as_secs_f64(),
            wall.as_secs_f64()
        );
        println!(
            "  {} engine events, {:.2} million a second",
            outcome.events,
            events_per_second / 1e6
        );
        println!(
            "  {virtual_seconds:.6} s of virtual time, {:.1} MiB at most",
            peak_rss as f64 / 1024.0
        );
    }
}

/// Processor time of this thread so far, where the system tells.
fn busy_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds =
        statistics.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    nanoseconds.unwrap_or(f64::NAN) / 1e9
}

/// The most memory this process ever had, where the system tells.
fn peak_resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
