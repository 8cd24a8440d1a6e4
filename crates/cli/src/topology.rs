//! `paceline topology`: where hosts sit and what joins them, from a file, from labels, or found out by the workers of a job;
//! as a tree, as JSON and as a file. How it is found out is not known here.

mod slurm;

use crate::{exit::UsageError, settings::read_topology};
use anyhow::{Context, Result};
use clap::Args;
use paceline_job::{Link, Rank, Rate, Topology, WrittenDuration};
use paceline_net::{JoinConfig, Worker, WorkerConfig, join, survey};
use std::{collections::BTreeMap, fs, path::PathBuf, process::ExitCode, time::Duration};

/// Show where hosts sit: racks, uplinks, wires.
///
/// With a file: what it says. With --labels: racks as labels name them, with the rates given here. Without either, as a
/// program of a job: its workers load their links for some seconds and find out; rank 0 prints and saves.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline topology net.toml
  paceline run -n 4 -- paceline topology -o net.toml      on each machine of a job
  kubectl get nodes -L topology.kubernetes.io/zone --no-headers | awk '{print $1, $6}' > labels.txt
  paceline topology --labels labels.txt --bandwidth 10gbit --uplink 20gbit -o net.toml
  paceline topology --labels /etc/slurm/topology.conf --bandwidth 10gbit -o net.toml
  paceline run -n 4 --topology net.toml --strategy shuffle -- python train.py

Exit codes:
  0  shown
  1  the survey failed, or a file cannot be written
  2  the command line or a file is wrong")]
pub struct TopologyArgs {
    /// A file to show, as -o writes it.
    #[arg(conflicts_with = "labels")]
    pub file: Option<PathBuf>,

    /// A file with a host and its rack's name in each line, or Slurm's topology.conf.
    #[arg(long, value_name = "FILE", requires = "bandwidth")]
    pub labels: Option<PathBuf>,

    /// With --labels: what a host's wire carries, such as 10gbit.
    #[arg(long, value_name = "RATE", requires = "labels")]
    pub bandwidth: Option<Rate>,

    /// With --labels: what a rack's uplink carries [default: as much as its hosts together].
    #[arg(long, value_name = "RATE", requires = "labels")]
    pub uplink: Option<Rate>,

    /// How long workers of a job load their links, at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds, conflicts_with_all = ["file", "labels"])]
    pub seconds: f64,

    /// Save it.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds are a number from 0.1 to 600".to_string()),
    }
}

/// What a message takes besides its bytes, where nobody measured: inside a data centre.
const USUAL_LATENCY: Duration = Duration::from_micros(50);

/// Show it.
pub fn run(arguments: TopologyArgs) -> Result<ExitCode> {
    let (topology, remarks) = match (&arguments.file, &arguments.labels) {
        (Some(file), _) => (read_topology(file)?, Vec::new()),
        (None, Some(file)) => {
            let text = fs::read_to_string(file).map_err(|error| {
                UsageError::new(format!("the labels {}: {error}", file.display()))
            })?;
            let wire = arguments.bandwidth.unwrap_or(Rate::from_bits_per_second(10e9));
            let topology = labelled(&text, wire, arguments.uplink);
            (topology.map_err(UsageError::new)?, Vec::new())
        }
        (None, None) => match found(Duration::from_secs_f64(arguments.seconds))? {
            Some(found) => found,
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    if let Some(file) = &arguments.output {
        fs::write(file, topology.to_toml())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&topology)?);
    } else {
        print!("{}", tree(&topology));
        remarks.iter().for_each(|remark| println!("{remark}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// By the workers of the job that the environment names; on rank 0 only.
fn found(limit: Duration) -> Result<Option<(Topology, Vec<String>)>> {
    let config = JoinConfig::from_env().map_err(|error| {
        UsageError::new(format!("name a file, or start this as a program of a job: {error}"))
    })?;
    let worker = Worker::start(join(config)?, WorkerConfig::default())?;
    let finding = survey(&worker, limit).context("survey the links")?;
    if worker.rank() != Rank(0) {
        return Ok(None);
    }
    let mut remarks = vec![format!(
        "Found in {} rounds with {} transfers, in {:.1} s.",
        finding.rounds,
        finding.transfers,
        finding.took.as_secs_f64()
    )];
    remarks.extend(finding.doubts.iter().map(|doubt| format!("In doubt: {doubt}.")));
    Ok(Some((finding.topology, remarks)))
}

/// Racks as labels name them.
fn labelled(text: &str, wire: Rate, uplink: Option<Rate>) -> Result<Topology, String> {
    let mut racks: BTreeMap<String, u32> = BTreeMap::new();
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let named = match words[..] {
            _ if slurm::recognises(line) => slurm::nodes(line)
                .map_err(|problem| format!("line {number} of the labels: {problem}"))?,
            [] => Vec::new(),
            [host, rack] if !line.contains('=') => vec![(host.to_string(), rack.to_string())],
            _ => {
                return Err(format!(
                    "line {number} of the labels is not a host and its rack: `{line}`"
                ));
            }
        };
        for (host, rack) in named {
            let next = racks.len() as u32;
            hosts.push((host, *racks.entry(rack).or_insert(next)));
        }
    }
    if hosts.is_empty() {
        return Err("the labels name no host".to_string());
    }
    let link = |rate| Link { rate, latency: USUAL_LATENCY };
    let of_rack = |rack: u32| {
        let members = hosts.iter().filter(|(_, of)| *of == rack).count();
        link(uplink.unwrap_or(wire.scaled(members as f64)))
    };
    let uplinks =
        if racks.len() > 1 { (0..racks.len() as u32).map(of_rack).collect() } else { Vec::new() };
    let host = |(name, rack): &(String, u32)| paceline_job::Host {
        name: name.clone(),
        rack: *rack,
        link: link(wire),
    };
    let memory =
        Link { rate: Rate::from_bytes_per_second(4e9), latency: Duration::from_micros(10) };
    let topology = Topology { hosts: hosts.iter().map(host).collect(), uplinks, memory };
    Topology::parse(&topology.to_toml()).map_err(|error| error.to_string())
}

/// For people.
fn tree(topology: &Topology) -> String {
    let words = |link: &Link| format!("{}, {}", link.rate, WrittenDuration(link.latency));
    let racks = topology.hosts.iter().map(|host| host.rack + 1).max().unwrap_or(0);
    let mut text = String::new();
    for rack in 0..racks {
        let members: Vec<_> = topology.hosts.iter().filter(|host| host.rack == rack).collect();
        let uplink = topology.uplinks.get(rack as usize).map_or("no uplink".to_string(), |link| {
            let together: f64 = members.iter().map(|host| host.link.rate.bytes_per_second()).sum();
            let factor = together / link.rate.bytes_per_second();
            format!("uplink {}, {factor:.1}:1", words(link))
        });
        text += &format!("rack {rack} ({uplink})\n");
        for (at, host) in members.iter().enumerate() {
            let branch = if at + 1 == members.len() { "└" } else { "├" };
            text += &format!("{branch}── {} ({})\n", host.name, words(&host.link));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_racks_and_the_tree_shows_them() {
        let wire = "10gbit".parse().unwrap();
        let topology =
            labelled("a left\nb right\n\nc left\n", wire, Some("5gbit".parse().unwrap())).unwrap();
        let shown = tree(&topology);
        let expected = "\
rack 0 (uplink 5gbit, 50us, 4.0:1)
├── a (10gbit, 50us)
└── c (10gbit, 50us)
rack 1 (uplink 5gbit, 50us, 2.0:1)
└── b (10gbit, 50us)
";
        assert_eq!(shown, expected);
        assert!(labelled("a\n", wire, None).unwrap_err().contains("line 1"));
        assert!(labelled("a x\na y\n", wire, None).unwrap_err().contains("twice"));
        assert!(labelled("", wire, None).is_err());
        assert!(labelled("key=a value=b\n", wire, None).is_err());
    }

    #[test]
    fn switches_of_slurm_are_racks() {
        let text = "# ours\nSwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3] # new\nSwitchName=top Switches=s[0-1]\n";
        let topology = labelled(text, "10gbit".parse().unwrap(), None).unwrap();
        let seats: Vec<_> =
            topology.hosts.iter().map(|host| (host.name.as_str(), host.rack)).collect();
        assert_eq!(seats, [("n0", 0), ("n1", 0), ("n2", 1), ("n3", 1)]);
        assert_eq!(topology.uplinks.len(), 2);
    }
}
