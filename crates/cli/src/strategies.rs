//! `paceline strategies`: which ways to all-reduce there are, what their programs look like in a small world, what
//! the checker proves about them, and what `auto` would choose. It prints; nothing runs.

mod auto;
mod cost;
mod groups;
pub mod text;
mod world;

use crate::{exit::UsageError, settings::read_topology};
use anyhow::{Context, Result};
use clap::Args;
use paceline_job::{ByteSize, Rate, StrategyChoice, script::Target};
use paceline_sync::{
    groups::Terrain,
    program::{Semantics, Span, Strategy},
    strategy::{self, Shuffle, UnknownStrategy},
};
use serde::Serialize;
use std::{borrow::Cow, fs, path::PathBuf, process::ExitCode};
use world::{World, WorldSize};

/// Beyond this many ranks, only those asked for are listed.
const RANKS_LISTED: u32 = 8;

/// More hosts and ranks are not shown.
const MOST_HOSTS: u32 = 1024;

/// List and explain the strategies; show one in a small world, with a proof.
///
/// Without a name: all of them, in a few words. With one: the programs of a small world, instruction by
/// instruction, after the checker has run them symbolically; it says what they leave on every rank.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline strategies
  paceline strategies ring --ranks 4
  paceline strategies hierarchical --ranks 8 --hosts 2 --rank 3
  paceline strategies double_tree --ranks 6 --svg tree.svg
  paceline strategies shuffle --ranks 12 --hosts 12 --racks 4 --contended rack1,host11
  paceline strategies --auto --ranks 8 --hosts 2 --bandwidth 25gbit
  paceline strategies --cost --ranks 32 --hosts 32 --racks 4 --bandwidth 10gbit --uplink 20gbit --svg cost.svg

Exit codes:
  0  shown, and proven
  1  the checker refutes the strategy, or a file cannot be written
  2  the command line is wrong")]
pub struct StrategiesArgs {
    /// Which one to show; parameters follow a colon, as in parameter_server:2.
    pub name: Option<String>,

    /// Show what `auto` chooses for each message size, and why.
    #[arg(long, conflicts_with_all = ["name", "rank", "svg", "elements", "step", "topology", "racks"])]
    pub auto: bool,

    /// Show what each strategy costs on a topology: as published for DS-Sync, and by its programs; with --svg as a drawing.
    #[arg(long, conflicts_with_all = ["name", "auto", "rank", "elements", "step"])]
    pub cost: bool,

    /// With --cost: bytes of the tensor.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", requires = "cost")]
    pub bytes: ByteSize,

    /// A file that `paceline topology` writes, with a rank on each of its hosts [default: --ranks on --hosts in --racks].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ranks", "hosts", "racks", "uplink"])]
    pub topology: Option<PathBuf>,

    /// With --cost: what a rack's uplink carries [default: a quarter of what its hosts do together].
    #[arg(long, value_name = "RATE", requires = "cost")]
    pub uplink: Option<Rate>,

    /// Ranks of the small world.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MOST_HOSTS as i64))]
    pub ranks: u32,

    /// Hosts that the ranks are spread over, neighbours together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_HOSTS as i64))]
    pub hosts: u32,

    /// Racks that the hosts are spread over, neighbours together [default: none is known].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_HOSTS as i64))]
    pub racks: Option<u32>,

    /// Links that others' traffic slows down, separated by commas: uplinks of racks, such as rack1, and wires of hosts,
    /// such as host5.
    #[arg(long, value_name = "LINK,...", value_delimiter = ',')]
    pub contended: Vec<Target>,

    /// Elements of the chunk.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub elements: u64,

    /// List the program of this rank only [default: all, of up to 8].
    #[arg(long, value_name = "RANK", requires = "name")]
    pub rank: Option<u32>,

    /// The training step, for strategies that change from step to step.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub step: u64,

    /// Draw the messages to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// With --auto or --cost: what a host's wire carries, such as 25gbit.
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<Rate>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print what was asked for.
pub fn run(arguments: StrategiesArgs) -> Result<ExitCode> {
    let auto = arguments.auto || arguments.name.as_deref() == Some(StrategyChoice::AUTO);
    if auto && (arguments.svg.is_some() || arguments.rank.is_some()) {
        let text =
            "`auto` chooses a strategy by size and has no programs of its own: name the strategy";
        return Err(UsageError::new(text).into());
    }
    if arguments.bandwidth.is_some() && !auto && !arguments.cost {
        let text = "--bandwidth is what `auto` chooses by and costs follow from: add --auto or --cost, or leave it out";
        return Err(UsageError::new(text).into());
    }
    if arguments.svg.is_some() && arguments.name.is_none() && !arguments.cost {
        let text = "--svg draws one strategy, or costs: name one, or add --cost";
        return Err(UsageError::new(text).into());
    }
    let text = match &arguments.name {
        _ if auto => show_auto(&arguments)?,
        _ if arguments.cost => show_cost(&arguments)?,
        Some(name) => show_one(name, &arguments)?,
        None => show_all(arguments.json)?,
    };
    text::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A world, and the groups of strategies that average in them.
#[derive(Serialize)]
struct WithGroups {
    #[serde(flatten)]
    world: world::WorldJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<groups::GroupsJson>,
}

/// A strategy in a few words.
#[derive(Serialize)]
struct About {
    name: Cow<'static, str>,
    leaves: &'static str,
    about: &'static str,
}

impl About {
    fn of(strategy: &dyn Strategy) -> About {
        let leaves = match strategy.semantics() {
            Semantics::Reduce => "the sum on every rank",
            Semantics::Averaging => "averages that come together over steps",
        };
        About { name: strategy.name(), leaves, about: strategy.about() }
    }
}

fn show_all(json: bool) -> Result<String> {
    let all: Vec<About> = strategy::all().iter().map(|it| About::of(it.as_ref())).collect();
    if json {
        return text::json(&all);
    }
    let mut shown = String::new();
    for About { name, leaves, about } in &all {
        shown += &format!("{name} (leaves {leaves})\n{}\n", text::wrapped(about));
    }
    shown += &format!(
        "{}\n{}",
        StrategyChoice::AUTO,
        text::wrapped(
            "Chooses among those that sum, by message size and by where the ranks sit; decided once per view, so \
             that ranks cannot differ. `paceline strategies --auto` shows the choices."
        )
    );
    Ok(shown)
}

fn show_auto(arguments: &StrategiesArgs) -> Result<String> {
    let size = world_size(arguments)?;
    let choices = auto::Choices::new(size, arguments.bandwidth);
    if arguments.json { text::json(&choices) } else { Ok(choices.table()) }
}

fn show_cost(arguments: &StrategiesArgs) -> Result<String> {
    let (size, marks) = seats(arguments)?;
    let racks = arguments.racks.unwrap_or(1);
    let (topology, view) = match &arguments.topology {
        Some(file) => cost::of_file(read_topology(file)?),
        None => cost::of_size(size, racks, arguments.bandwidth, arguments.uplink),
    };
    let costs = cost::Costs::new(&topology, &view, marks, arguments.bytes);
    if let Some(file) = &arguments.svg {
        fs::write(file, costs.draw())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if arguments.json { text::json(&costs) } else { Ok(costs.table()) }
}

fn show_one(name: &str, arguments: &StrategiesArgs) -> Result<String> {
    let (size, terrain) = seats(arguments)?;
    let unknown = |unknown: UnknownStrategy| UsageError::new(unknown.to_string());
    let strategy = strategy::find_on(name, terrain.clone()).map_err(unknown)?;
    if let Some(rank) = arguments.rank.filter(|rank| *rank >= size.ranks) {
        let last = size.ranks - 1;
        let text =
            format!("there is no rank {rank}: ranks are 0 to {last} (--ranks says how many)");
        return Err(UsageError::new(text).into());
    }
    let span = Span { offset: 0, len: arguments.elements };
    let world = World::new(strategy.as_ref(), size, span, arguments.step);
    let proof = world
        .prove()
        .with_context(|| format!("the checker refutes `{name}` here; please report it"))?;
    if let Some(file) = &arguments.svg {
        let drawing = world.draw()?;
        fs::write(file, drawing).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let listed: Vec<u32> = match arguments.rank {
        Some(rank) => vec![rank],
        None if size.ranks <= RANKS_LISTED => (0..size.ranks).collect(),
        None => Vec::new(),
    };
    if arguments.json {
        let groups = match strategy.name().starts_with(Shuffle::NAME) {
            true => Some(groups::json(size, terrain.as_ref())?),
            false => None,
        };
        return text::json(&WithGroups { world: world.to_json(&proof, &listed), groups });
    }
    let About { name, leaves, about } = About::of(strategy.as_ref());
    let mut shown = format!("{name} (leaves {leaves})\n{}\n", text::wrapped(about));
    if name.starts_with(Shuffle::NAME) {
        shown += &groups::words(size, terrain.as_ref());
    }
    for rank in &listed {
        shown += &format!("Rank {rank}:\n{}\n", text::indented(&world.listing(*rank)));
    }
    if listed.is_empty() {
        shown += "Programs of so many ranks are listed one by one: add --rank.\n\n";
    }
    shown += &world.words(&proof);
    Ok(shown)
}

/// Who sits where: as the topology says, or spread over racks.
fn seats(arguments: &StrategiesArgs) -> Result<(WorldSize, Option<Terrain>)> {
    let Some(file) = &arguments.topology else {
        let size = world_size(arguments)?;
        return Ok((size, groups::terrain(size, arguments.racks, &arguments.contended)?));
    };
    let (_, view) = cost::of_file(read_topology(file)?);
    let hosts = match u32::try_from(view.size()) {
        Ok(hosts @ 1..=MOST_HOSTS) => hosts,
        _ => {
            let (file, hosts) = (file.display(), view.size());
            let text = format!("{file} has {hosts} hosts; worlds of 1 to {MOST_HOSTS} are shown");
            return Err(UsageError::new(text).into());
        }
    };
    let size = WorldSize { ranks: hosts, hosts };
    let terrain = Terrain::of_view(&view).unwrap_or_default();
    Ok((size, Some(groups::marked(terrain, &arguments.contended)?)))
}

fn world_size(arguments: &StrategiesArgs) -> Result<WorldSize> {
    let StrategiesArgs { ranks, hosts, .. } = *arguments;
    if hosts > ranks {
        let text =
            format!("{ranks} ranks cannot fill {hosts} hosts: lower --hosts or raise --ranks");
        return Err(UsageError::new(text).into());
    }
    Ok(WorldSize { ranks, hosts })
}
