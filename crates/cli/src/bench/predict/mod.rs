//! `paceline bench predict`: what the replay predicts for an all-reduce against what it takes on shaped links.
//!
//! [`grid`] says which cells there are and what each network looks like; [`prediction`] runs a cell in virtual
//! time, [`measurement`] in real time on the hosts of a testbed; [`report`] compares. The prediction of a cell
//! knows nothing of its measurement.

mod bounds;
mod calibration;
mod grid;
mod measurement;
mod prediction;
mod report;
mod worker;

pub use worker::Aligned;

use super::{
    INCOMPLETE,
    group::Group,
    idleness::Watch,
    interrupt::Interrupt,
    machine,
    progress::Progress,
    protocol::Turn,
    publish,
    scratch::Scratch,
    statistics::median,
    workload::{Sizes, Workload},
};
use crate::exit::UsageError;
use anyhow::{Context, Result};
use calibration::{Latency, middle, model, rest};
use grid::{Grid, Racks, SlowLink, topology_of, view_of};
use paceline_job::{ByteSize, Rate, Settings, StrategyChoice};
use paceline_sync::check_strategy;
use paceline_testbed::{CheckReport, Spec, Testbed};
use report::{Cell, NetworkReport, Report};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// A network that carries less of its rate than this, headers left out, is not measured: what would be compared is
/// this machine's processors, not its links. TCP's headers take 4.4% at best.
const FAITHFUL: f64 = 0.9;
/// How often that may be tried: a slow spell of the machine is not a property of the network.
const CHECKS: u32 = 3;
/// How long each flow is counted to find that out.
const CHECK_WINDOW: Duration = Duration::from_millis(500);
/// One turn should take about this long, by the prediction.
const TURN_SECONDS: f64 = 1.0;
/// Iterations of a turn: enough for a median, few enough for an end.
const ITERATIONS: std::ops::RangeInclusive<u32> = 3..=50;
/// Barriers that are timed to learn the latency.
const BARRIERS: u32 = 100;
/// All-reduces before those that are timed.
const WARMUP: u32 = 1;

/// Compare what the replay predicts for an all-reduce with what it takes on shaped links.
///
/// Hosts are network namespaces joined by links of the given rate, one worker on each, all on this machine; that needs root.
/// For each cell the workers all-reduce over and over, and so do the same engines in virtual time. The prediction
/// knows the nominal rate, TCP's and Ethernet's headers, and the time of a barrier on the idle network. Before each
/// all-reduce, measured or predicted, workers rest until the shapers' token buckets are full, and meet at a barrier.
///
/// A cell is measured only where raw TCP was shown to carry 90% of the rate. The table shows the median over all
/// iterations and, in brackets, the lowest and highest median of a single turn; and how busy the processors were.
///
/// Exit codes: 0 all faithful cells measured, 1 error, 2 wrong usage, 3 a cell failed (the table says why).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo paceline bench predict
  sudo paceline bench predict --hosts 4 --rate 500mbit --strategies ring --sizes 1MiB..64MiB
  sudo paceline bench predict --hosts 12 --racks 4 --rate 50mbit --uplink 75mbit --slow rack1=10mbit \\
       --strategies ring,hierarchical:racks,shuffle --sizes 4MiB")]
pub struct PredictArgs {
    /// Numbers of hosts, separated by commas.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values = ["4", "8"])]
    pub hosts: Vec<usize>,

    /// What each host's wire carries in each direction; several rates separated by commas.
    #[arg(long, value_name = "RATE,...", value_delimiter = ',', default_values = ["100mbit", "500mbit", "1gbit"])]
    pub rate: Vec<Rate>,

    /// Racks that the hosts are spread over, in order and as evenly as can be.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub racks: usize,

    /// What each rack's uplink carries in each direction [default: as much as its hosts together].
    #[arg(long, value_name = "RATE")]
    pub uplink: Option<Rate>,

    /// Links that carry less, as if somebody else used them, separated by commas: rack1=10mbit,host5=20mbit. Strategies that
    /// divide by racks are told which.
    #[arg(long, value_name = "LINK=RATE,...", value_delimiter = ',')]
    pub slow: Vec<SlowLink>,

    /// Names that `paceline strategies` lists, separated by commas.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_values = [
            "ring", "double_tree", "parameter_server", "hierarchical", "recursive_doubling", "one_shot", "gossip",
        ]
    )]
    pub strategies: Vec<String>,

    /// A list such as 1MiB,4MiB or a range such as 1MiB..64MiB, by factors of four.
    #[arg(long, default_value = "1MiB,4MiB,16MiB")]
    pub sizes: Sizes,

    /// The largest chunk [default: 1MiB].
    #[arg(long, value_name = "BYTES")]
    pub partition: Option<ByteSize>,

    /// Bytes in flight that are as urgent or more, above which no further chunk starts [default: 1MiB].
    #[arg(long, value_name = "BYTES")]
    pub credit: Option<ByteSize>,

    /// Turns of every cell.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// Write everything, raw samples included, to a file; `-` for standard output in place of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Print the table as Markdown.
    #[arg(long)]
    pub markdown: bool,
}

/// Runs the comparison and prints its report. To be called on the main thread: processes die with the thread
/// that started them.
pub fn run(args: PredictArgs) -> Result<ExitCode> {
    let grid = grid(&args)?;
    let interrupt = Interrupt::listen()?;
    let temporary = Scratch::make()?;
    if cfg!(debug_assertions) {
        eprintln!("Warning: this is a debug build; workers are many times too slow.");
    }
    let busy_before = super::idleness::busy_share().context("read the machine's load")?;
    if busy_before > super::idleness::DISTURBING {
        eprintln!(
            "Warning: something else uses {:.0}% of this machine; the numbers will show it.",
            100.0 * busy_before
        );
    }
    let progress = Progress::begin(grid.cells() as u64 * u64::from(args.repeat));
    let run =
        Run { grid: &grid, repeat: args.repeat, folder: temporary.path(), progress, interrupt };
    let networks =
        grid.networks().iter().map(|spec| run.network(spec)).collect::<Result<Vec<_>>>()?;
    drop(run);
    let report = Report {
        benchmark: "predict",
        format: 1,
        rounds: args.repeat,
        machine: machine(busy_before),
        settings: grid.settings.clone(),
        networks,
    };
    publish(&report, |style| report.render(style), args.markdown, args.json.as_deref())?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

fn grid(args: &PredictArgs) -> Result<Grid> {
    let defaults = Settings::default();
    let settings = Settings {
        partition: args.partition.unwrap_or(defaults.partition),
        credit: args.credit.unwrap_or(defaults.credit),
        ..defaults
    };
    let strategies: Vec<StrategyChoice> =
        args.strategies.iter().map(|name| StrategyChoice(name.clone())).collect();
    for strategy in &strategies {
        check_strategy(strategy).map_err(|error| UsageError::new(error.to_string()))?;
    }
    let slow = args.slow.iter().map(|SlowLink(link, rate)| (*link, *rate)).collect();
    let racks = Racks { racks: args.racks, uplink: args.uplink, slow };
    Grid::new(args.hosts.clone(), args.rate.clone(), racks, strategies, &args.sizes, settings)
}

/// What all networks of a run share.
struct Run<'a> {
    grid: &'a Grid,
    repeat: u32,
    folder: &'a Path,
    progress: Progress,
    interrupt: Interrupt,
}

impl Run<'_> {
    fn network(&self, spec: &Spec) -> Result<NetworkReport> {
        let name = format!("{} hosts at {}", spec.hosts, spec.rate);
        self.progress.turn(&name, "building and checking");
        let testbed = Testbed::build(spec).context("build the network of hosts")?;
        let check = self.check(&testbed)?;
        let faithful = check.carries(FAITHFUL);
        let latency =
            if faithful { self.latency(&testbed)? } else { Latency::around(idle_latency(&check)?) };
        for (link, rate) in &self.grid.racks.slow {
            testbed.set_rate(*link, *rate).context("slow a link down")?;
        }
        let mut report = NetworkReport {
            hosts: spec.hosts,
            rate: spec.rate,
            racks: spec.racks,
            uplink: spec.uplink,
            slow: self
                .grid
                .racks
                .slow
                .iter()
                .map(|(link, rate)| format!("{link}={rate}"))
                .collect(),
            check,
            faithful,
            latency_seconds: latency.least.as_secs_f64(),
            model: model(spec, latency),
            cells: Vec::new(),
        };
        let topology = topology_of(spec, &self.grid.racks.slow, latency.least)?;
        for strategy in &self.grid.strategies {
            let settings = self.grid.settings_of(strategy, spec)?;
            let view = Arc::new(view_of(spec, settings.clone()));
            let predicted = self.grid.sizes.iter().map(|size| {
                let model = &report.model;
                Ok((*size, prediction::predict(&view, &topology, model, size.0, rest(spec))?))
            });
            let predicted = predicted.collect::<Result<Vec<_>>>()?;
            self.interrupt.check()?;
            let mut group = if faithful {
                measurement::start(&testbed, &settings, rest(spec), self.folder, &self.interrupt)
                    .map(Some)
                    .map_err(|error| format!("{error:#}"))
            } else {
                Ok(None)
            };
            for (size, predicted) in predicted {
                let seconds = median(&predicted.seconds).unwrap_or(TURN_SECONDS);
                let (turns, busy, failure) = match &mut group {
                    Ok(Some(group)) => self.measure(group, &name, size, seconds)?,
                    Ok(None) => (Vec::new(), None, None),
                    Err(failure) => (Vec::new(), None, Some(failure.clone())),
                };
                let mut cell = Cell::conclude(strategy, size.0, &predicted, turns, busy, failure);
                cell.least_share = bounds::least_share(&view, &topology, size);
                report.cells.push(cell);
            }
        }
        Ok(report)
    }

    /// What raw TCP carries: the first check that shows the rate, or the last one that may.
    fn check(&self, testbed: &Testbed) -> Result<CheckReport> {
        let mut attempt = 1;
        loop {
            self.interrupt.check()?;
            let check =
                testbed.check(CHECK_WINDOW, |_| ()).context("check the network of hosts")?;
            if check.carries(FAITHFUL) || attempt == CHECKS {
                return Ok(check);
            }
            attempt += 1;
        }
    }

    /// What a message takes from worker to worker while nothing else is sent.
    fn latency(&self, testbed: &Testbed) -> Result<Latency> {
        let settings = self.grid.settings_of(&self.grid.strategies[0], testbed.spec())?;
        let (rest, folder) = (Duration::ZERO, self.folder);
        let mut group = measurement::start(testbed, &settings, rest, folder, &self.interrupt)?;
        let workload = aligned(ByteSize(4), BARRIERS);
        let turn = group.turn(&workload, &self.interrupt)?;
        let barriers: Vec<f64> = turn.seconds.iter().skip(1).step_by(2).copied().collect();
        let view = Arc::new(view_of(testbed.spec(), settings));
        Latency::from_barrier(middle(&barriers)?, testbed.spec(), &view)
    }

    /// The turns of one cell, how busy the processors were, and what went wrong if anything did.
    #[allow(clippy::type_complexity)]
    fn measure(
        &self,
        group: &mut Group,
        network: &str,
        size: ByteSize,
        predicted_seconds: f64,
    ) -> Result<(Vec<Turn>, Option<f64>, Option<String>)> {
        let iterations = (TURN_SECONDS / predicted_seconds) as u32;
        let iterations = iterations.clamp(*ITERATIONS.start(), *ITERATIONS.end());
        let workload = aligned(size, iterations);
        let mut turns = Vec::new();
        let watch = Watch::begin().context("read the machine's load")?;
        for _ in 0..self.repeat {
            self.progress.turn(network, &format!("{} of {size}", group.name()));
            match group.turn(&workload, &self.interrupt) {
                Ok(turn) => turns.push(without_barriers(turn)),
                Err(error) => {
                    self.interrupt.check()?;
                    return Ok((Vec::new(), None, Some(format!("{error:#}"))));
                }
            }
            self.progress.advance();
        }
        let busy = watch.busy().context("read the machine's load")?;
        Ok((turns, Some(busy), None))
    }
}

/// All-reduces that take turns with barriers. The first call of a command all-reduces to check the sums; with an odd
/// number of warm-up calls after it, the first timed one all-reduces again.
fn aligned(size: ByteSize, iterations: u32) -> Workload {
    Workload { warmup: 2 * WARMUP + 1, ..Workload::single(size, Some(2 * iterations)) }
}

/// The middle of what raw TCP took between neighbours, there being no workers to ask.
fn idle_latency(check: &CheckReport) -> Result<Duration> {
    let seconds = check.flows.iter().map(|flow| flow.latency_microseconds * 1e-6);
    middle(&seconds.collect::<Vec<_>>())
}

/// The all-reduces of a turn that has a barrier after each.
fn without_barriers(turn: Turn) -> Turn {
    Turn { seconds: turn.seconds.into_iter().step_by(2).collect(), ..turn }
}
