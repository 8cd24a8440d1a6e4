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
use grid::{Grid, Racks, Slow, SlowLink, topology_of, view_of};
use paceline_job::{ByteSize, Rate, Settings, StrategyChoice, Topology};
use paceline_sync::check_strategy;
use paceline_testbed::{Background, CheckReport, Spec, Testbed};
use report::{Cell, NetworkReport, Report};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
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
/// iterations and, in brackets, the lowest and highest median of a single turn; and how busy the processors were. On each
/// network all strategies run at the same time and take turns, so that what changes on this machine meets all of them.
///
/// Exit codes: 0 all faithful cells measured, 1 error, 2 wrong usage, 3 a cell failed (the table says why).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo paceline bench predict
  sudo paceline bench predict --hosts 4 --rate 500mbit --strategies ring --sizes 1MiB..64MiB
  sudo paceline bench predict --hosts 12 --racks 4 --rate 50mbit --uplink 75mbit --slow rack1=10mbit \\
       --strategies ring,hierarchical:racks,shuffle --sizes 4MiB
  sudo paceline bench predict --hosts 12 --racks 4 --rate 50mbit --uplink 75mbit --background rack1=50mbit \\
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

    /// Links that somebody else's traffic takes so much of, in both directions, separated by commas: rack1=50mbit is sent between a
    /// host of the rack that is not the job's and one behind no uplink, host5=25mbit between the job's host, where it has a
    /// process beside the worker, and one of the same rack that is not the job's. It is TCP over 32 connections each way; the
    /// table says what share of it got through. Strategies that divide by racks are told which links.
    #[arg(long, value_name = "LINK=RATE,...", value_delimiter = ',')]
    pub background: Vec<SlowLink>,

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
    let of = |links: &[SlowLink]| links.iter().map(|SlowLink(link, rate)| (*link, *rate)).collect();
    let (slow, background) = (of(&args.slow), of(&args.background));
    let racks = Racks { racks: args.racks, uplink: args.uplink, slow, background };
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
        let racks = &self.grid.racks;
        let written = |links: &Slow| {
            links.iter().map(|(link, rate)| format!("{link}={rate}")).collect::<Vec<_>>()
        };
        let mut report = NetworkReport {
            hosts: spec.hosts,
            rate: spec.rate,
            racks: spec.racks,
            uplink: spec.uplink,
            slow: written(&racks.slow),
            background: written(&racks.background),
            check,
            faithful,
            latency_seconds: latency.least.as_secs_f64(),
            model: model(spec, latency),
            cells: Vec::new(),
        };
        let topology = topology_of(spec, &racks.left(spec), latency.least)?;
        let mut contests = self.contests(&testbed, &mut report, &topology)?;
        if faithful {
            let loads = racks.loads(spec).into_iter();
            let background = loads.map(|(between, rate)| testbed.load(between, rate));
            let background: Vec<Background> = background
                .collect::<paceline_testbed::Result<_>>()
                .context("load links with others' traffic")?;
            self.take_turns(&mut contests, &name, &background)?;
        }
        report.cells = contests.into_iter().flat_map(Contest::conclude).collect();
        Ok(report)
    }

    /// Each strategy with its predictions, and on a faithful network its workers.
    fn contests(
        &self,
        testbed: &Testbed,
        report: &mut NetworkReport,
        topology: &Topology,
    ) -> Result<Vec<Contest>> {
        let spec = testbed.spec();
        let mut contests = Vec::new();
        for (number, strategy) in (0..).zip(&self.grid.strategies) {
            let settings = self.grid.settings_of(strategy, spec)?;
            let view = Arc::new(view_of(spec, settings.clone()));
            let cells = self.grid.sizes.iter().map(|size| {
                let model = &report.model;
                let predicted = prediction::predict(&view, topology, model, size.0, rest(spec))?;
                Ok(Entry {
                    size: *size,
                    predicted,
                    least_share: bounds::least_share(&view, topology, *size),
                    least_seconds: bounds::least_seconds(topology, *size),
                    turns: Vec::new(),
                    busy: Vec::new(),
                    background: Vec::new(),
                })
            });
            let entries = cells.collect::<Result<Vec<_>>>()?;
            self.interrupt.check()?;
            let (folder, interrupt) = (self.folder, &self.interrupt);
            let mut contest =
                Contest { strategy: strategy.clone(), entries, group: None, failure: None };
            if report.faithful {
                match measurement::start(testbed, number, &settings, rest(spec), folder, interrupt)
                {
                    Ok(group) => contest.group = Some(group),
                    Err(error) => contest.failure = Some(format!("{error:#}")),
                }
            }
            contests.push(contest);
        }
        Ok(contests)
    }

    /// All strategies' turns of one size, one after another, over and over; then those of the next.
    fn take_turns(
        &self,
        contests: &mut [Contest],
        network: &str,
        background: &[Background],
    ) -> Result<()> {
        for place in 0..self.grid.sizes.len() {
            for _ in 0..self.repeat {
                for contest in &mut *contests {
                    let Some(group) = &mut contest.group else { continue };
                    let entry = &mut contest.entries[place];
                    self.progress.turn(network, &format!("{} of {}", group.name(), entry.size));
                    match self.turn(group, entry, background) {
                        Ok(()) => self.progress.advance(),
                        Err(error) => {
                            self.interrupt.check()?;
                            contest.group = None;
                            contest.failure = Some(format!("{error:#}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn turn(&self, group: &mut Group, entry: &mut Entry, background: &[Background]) -> Result<()> {
        let predicted = median(&entry.predicted.seconds).unwrap_or(TURN_SECONDS);
        let iterations = (TURN_SECONDS / predicted) as u32;
        let iterations = iterations.clamp(*ITERATIONS.start(), *ITERATIONS.end());
        let workload = aligned(entry.size, iterations);
        let processors = Watch::begin().context("read the machine's load")?;
        let (begin, before) = (Instant::now(), carried(background));
        entry.turns.push(without_barriers(group.turn(&workload, &self.interrupt)?));
        let (elapsed, after) = (begin.elapsed(), carried(background));
        entry.busy.push(processors.busy().context("read the machine's load")?);
        let shares = background.iter().zip(before.into_iter().zip(after));
        let shares = shares.map(|(it, (before, after))| it.share(after - before, elapsed));
        entry.background.extend(shares.reduce(f64::min));
        Ok(())
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
        let mut group = measurement::start(testbed, 0, &settings, rest, folder, &self.interrupt)?;
        let workload = aligned(ByteSize(4), BARRIERS);
        let turn = group.turn(&workload, &self.interrupt)?;
        let barriers: Vec<f64> = turn.seconds.iter().skip(1).step_by(2).copied().collect();
        let view = Arc::new(view_of(testbed.spec(), settings));
        Latency::from_barrier(middle(&barriers)?, testbed.spec(), &view)
    }
}

/// What each of others' traffic has carried so far.
fn carried(background: &[Background]) -> Vec<u64> {
    background.iter().map(Background::carried).collect()
}

/// A strategy on one network.
struct Contest {
    strategy: StrategyChoice,
    entries: Vec<Entry>,
    /// Its workers, while they can be asked.
    group: Option<Group>,
    /// Why they cannot.
    failure: Option<String>,
}

/// A strategy with one size.
struct Entry {
    size: ByteSize,
    predicted: Turn,
    least_share: Option<f64>,
    least_seconds: f64,
    turns: Vec<Turn>,
    /// By turn: share of processors' time that was not idle, and of others' traffic that got through.
    busy: Vec<f64>,
    background: Vec<f64>,
}

impl Contest {
    fn conclude(self) -> Vec<Cell> {
        let Contest { strategy, entries, failure, .. } = self;
        let cell = |entry: Entry| {
            let failure = failure.clone();
            let turns = if failure.is_some() { Vec::new() } else { entry.turns };
            let cell = Cell::conclude(&strategy, entry.size.0, &entry.predicted, turns, failure);
            Cell {
                processors_busy: mean(&entry.busy),
                background_share: mean(&entry.background),
                least_share: entry.least_share,
                least_seconds: entry.least_seconds,
                ..cell
            }
        };
        entries.into_iter().map(cell).collect()
    }
}

fn mean(shares: &[f64]) -> Option<f64> {
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
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
