//! `paceline bench allreduce`: ours and the peers side by side, alternating in one run.
//!
//! The way through it: [`workload`] says what to reduce; [`peers`] and [`ours`] say which processes to start;
//! [`group`] drives those of one contender over the [`protocol`]; [`rounds`] alternates between groups;
//! [`statistics`] and [`report`] draw conclusions. [`namespace`], [`idleness`] and [`limits`] make the numbers mean
//! something: the same network for everybody, nobody else on the machine, and what would be the best possible.

pub mod bounds;
pub mod contender;
pub mod group;
pub mod idleness;
pub mod interrupt;
pub mod limits;
pub mod namespace;
pub mod ours;
pub mod peers;
pub mod predict;
pub mod progress;
pub mod protocol;
pub mod report;
pub mod rounds;
pub mod scratch;
pub mod shared_memory;
pub mod statistics;
pub mod table;
pub mod worker;
pub mod workload;

use self::{
    bounds::bound,
    contender::Contender,
    group::Group,
    interrupt::Interrupt,
    limits::Limits,
    namespace::Network,
    ours::{Transport, Variant},
    peers::{Install, Peer, Place},
    progress::Progress,
    report::{Bound, LeftOut, Machine, Participant, Report, Row},
    scratch::Scratch,
    table::Style,
    workload::{Model, Sizes, Workload},
};
use anyhow::{Context, Result, ensure};
use paceline_job::Settings;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// The exit code of a run whose table lacks a contender that was asked for.
pub const INCOMPLETE: u8 = 3;

/// Measure all-reduce against Gloo and Open MPI, alternating in one run.
///
/// Every contender runs as --ranks processes on this machine and takes one turn in each round; the others are stopped meanwhile.
/// The table shows the median over all iterations and, in brackets, the lowest and highest median of a single round;
/// ratios are taken within each round.
///
/// Limits, from rates measured in the same run, for n ranks and B bytes (latency is not in them):
///
///   tcp      2(n-1)·B / loopback + (n-1)·B / add
///
///   private  2n·B / memory      (each contribution read, each rank's result written)
///
///   arena    (n+1)·B / memory   (contributions and one result where all ranks can read them)
///
/// where memory is twice the rate at which all cores together copy a footprint of n·B.
///
/// As root everything runs in a private network namespace with the reno congestion control; otherwise the system's is used, and the
/// table says which.
///
/// Exit codes: 0 all measured, 1 error, 2 wrong usage, 3 a contender was left out (the table says why).
#[derive(Clone, Debug, clap::Args)]
pub struct AllReduceArgs {
    /// Processes of every contender.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub ranks: u32,

    /// A range such as 1KiB..256MiB or a list such as 4KiB,1MiB [default: 1KiB..256MiB, or none with --tensors].
    #[arg(long)]
    pub sizes: Option<Sizes>,

    /// What our workers follow.
    #[command(flatten)]
    pub settings: crate::settings::SettingsArgs,

    /// The factor from one size of a range to the next.
    #[arg(long, value_name = "FACTOR", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    pub step: u64,

    /// All gradients of a model, all in flight at once.
    #[arg(long, value_name = "MODEL", value_enum)]
    pub tensors: Option<Model>,

    /// Whom to measure against, separated by commas. Open MPI is two: over shared memory and over TCP.
    #[arg(long, value_name = "PEER,...", value_enum, value_delimiter = ',', default_values = ["gloo", "openmpi", "openmpi-tcp"])]
    pub against: Vec<Peer>,

    /// What carries the bytes of ours.
    #[arg(long, value_enum, default_value = "shm")]
    pub transport: Transport,

    /// Leave ours out.
    #[arg(long)]
    pub only_peers: bool,

    /// Rounds: turns of every contender for each size.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// Iterations of one turn [default: by size, from 300 down to 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(protocol::MAX_ITERATIONS)))]
    pub iterations: Option<u32>,

    /// Write everything, raw samples included, to a file; `-` for standard output in place of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Print the tables as Markdown.
    #[arg(long)]
    pub markdown: bool,

    /// Where peers are installed [default: .venv/peers of the repository, or ~/.cache/paceline/peers].
    #[arg(long, value_name = "FOLDER")]
    pub peers_folder: Option<PathBuf>,

    /// Install nothing; a peer that is missing is left out.
    #[arg(long)]
    pub no_install: bool,
}

/// One rank of ours, started by the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkerArgs {
    /// Which way to use ours.
    #[arg(long, value_enum)]
    pub variant: Variant,

    /// Rest so many microseconds and meet at a barrier between all-reduces, and count both as iterations.
    #[arg(long, value_name = "MICROSECONDS")]
    pub aligned: Option<u64>,
}

/// Serves the benchmark on standard input and output until it says `quit`.
pub fn run_worker(args: WorkerArgs) -> Result<ExitCode> {
    let mut subject = ours::join(args.variant)?;
    if let Some(rest) = args.aligned {
        subject = Box::new(predict::Aligned::new(subject, Duration::from_micros(rest)));
    }
    worker::serve(&mut *subject, std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the benchmark and prints its report. To be called on the main thread: processes die with the thread
/// that started them.
pub fn run(args: AllReduceArgs) -> Result<ExitCode> {
    let workloads = workloads(&args)?;
    let settings = args.settings.settings()?;
    let interrupt = Interrupt::listen()?;
    let temporary = Scratch::make()?;

    let mut left_out = Vec::new();
    // Installing needs the machine's own network, so it comes before the private one.
    let peers = peers(&args, &temporary, &interrupt, &mut left_out)?;

    if cfg!(debug_assertions) {
        eprintln!("Warning: this is a debug build; ours and the limits are many times too slow.");
    }
    let busy_before = idleness::busy_share().context("read the machine's load")?;
    if busy_before > idleness::DISTURBING {
        eprintln!(
            "Warning: something else uses {:.0}% of this machine; the numbers will show it.",
            100.0 * busy_before
        );
    }
    let network = Network::enter();
    if let Some(remark) = &network.remark {
        eprintln!("Note: {remark}");
    }
    // Ours comes after it, because its coordinator must listen where its workers are; and first in the
    // table, because ratios refer to it.
    let mut contenders = ours(&args, &settings, &mut left_out);
    contenders.extend(peers);
    ensure!(!contenders.is_empty(), "nobody to measure:\n{}", reasons(&left_out));
    eprintln!("Measuring the machine's limits ...");
    let limits = Limits::measure()?;

    let (participants, mut seats) = start(contenders, temporary.path(), &interrupt, &mut left_out)?;
    ensure!(!participants.is_empty(), "nobody started:\n{}", reasons(&left_out));
    let reference = participants[0].name.clone();

    let turns = workloads.len() as u64 * u64::from(args.repeat) * seats.len() as u64;
    let progress = Progress::begin(turns);
    let mut rows = Vec::new();
    for workload in &workloads {
        // All seats are stopped or asleep here, so the limits are measured undisturbed.
        let rates = limits.rates(args.ranks, workload.bytes())?;
        let media = args.transport.media().iter();
        let bounds = media
            .map(|medium| {
                let seconds = bound(*medium, args.ranks, workload.bytes(), &rates);
                Bound { medium: *medium, seconds }
            })
            .collect();
        let turns = rounds::measure(
            workload,
            args.repeat,
            &mut seats,
            &mut left_out,
            &progress,
            &interrupt,
        )?;
        rows.push(Row::conclude(workload, &participants, turns, &reference, rates, bounds));
    }
    drop(progress);
    drop(seats);

    let report = Report {
        benchmark: "allreduce",
        format: 1,
        ranks: args.ranks,
        rounds: args.repeat,
        machine: machine(busy_before),
        network,
        limits,
        reference,
        contenders: participants,
        left_out,
        rows,
    };
    publish(&report, |style| report.render(style), args.markdown, args.json.as_deref())?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

fn workloads(args: &AllReduceArgs) -> Result<Vec<Workload>> {
    let sizes = match (&args.sizes, args.tensors) {
        (Some(sizes), _) => sizes.expand(args.step)?,
        (None, Some(_)) => Vec::new(),
        (None, None) => "1KiB..256MiB".parse::<Sizes>()?.expand(args.step)?,
    };
    let single = sizes.iter().map(|size| Workload::single(*size, args.iterations));
    let model = args.tensors.map(|model| Workload::model(model, args.iterations));
    Ok(single.chain(model).collect())
}

fn ours(args: &AllReduceArgs, settings: &Settings, left_out: &mut Vec<LeftOut>) -> Vec<Contender> {
    let variants = if args.only_peers { &[][..] } else { args.transport.variants() };
    let prepared =
        variants.iter().map(|variant| (variant.name(), ours::ours(*variant, args.ranks, settings)));
    keep(prepared, left_out)
}

fn peers(
    args: &AllReduceArgs,
    scratch: &Scratch,
    interrupt: &Interrupt,
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Contender>> {
    let here = std::env::current_dir().context("find the current folder")?;
    let installed = args.peers_folder.clone().unwrap_or_else(|| peers::default_folder(&here));
    let place = Place {
        // Processes are started by this path from anywhere.
        installed: std::path::absolute(installed)?,
        temporary: scratch.path().to_path_buf(),
        memory: scratch.in_memory().to_path_buf(),
        ranks: args.ranks,
        install: if args.no_install { Install::Nothing } else { Install::Missing },
    };
    let mut asked_for = args.against.clone();
    asked_for.sort();
    asked_for.dedup();
    let prepared = asked_for.iter().map(|peer| (peer.name(), peer.prepare(&place, interrupt)));
    let peers = keep(prepared, left_out);
    interrupt.check()?;
    Ok(peers)
}

fn keep<'a>(
    prepared: impl Iterator<Item = (&'a str, Result<Contender>)>,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Contender> {
    let mut kept = Vec::new();
    for (name, contender) in prepared {
        match contender {
            Ok(contender) => kept.push(contender),
            Err(error) => leave_out(name, &error, left_out),
        }
    }
    kept
}

/// Starts them one after the other: a dozen interpreters at once on two cores start no sooner.
fn start(
    contenders: Vec<Contender>,
    temporary: &Path,
    interrupt: &Interrupt,
    left_out: &mut Vec<LeftOut>,
) -> Result<(Vec<Participant>, Vec<Option<Group>>)> {
    let mut participants = Vec::new();
    let mut seats = Vec::new();
    for contender in contenders {
        let name = contender.name.clone();
        eprintln!("Starting {name} ...");
        let started = Group::start(contender, temporary, interrupt);
        interrupt.check()?;
        match started {
            Ok(group) => {
                participants.push(Participant { name, about: group.about().to_string() });
                seats.push(Some(group));
            }
            Err(error) => leave_out(&name, &error, left_out),
        }
    }
    Ok((participants, seats))
}

fn leave_out(name: &str, error: &anyhow::Error, left_out: &mut Vec<LeftOut>) {
    let why = format!("{error:#}");
    eprintln!("Leaving out {name}: {why}");
    left_out.push(LeftOut { name: name.to_string(), why });
}

fn reasons(left_out: &[LeftOut]) -> String {
    left_out.iter().map(|one| format!("  {}: {}", one.name, one.why)).collect::<Vec<_>>().join("\n")
}

fn machine(busy_before: f64) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let processor =
        model.map_or("an unnamed processor", |text| text.trim_start_matches([' ', '\t', ':']));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine { processor: processor.to_string(), kernel: kernel.trim().to_string(), busy_before }
}

/// Prints a report as a table, and writes it to a file; `-` prints it as JSON instead.
fn publish(
    report: &impl serde::Serialize,
    render: impl Fn(Style) -> String,
    markdown: bool,
    file: Option<&Path>,
) -> Result<()> {
    let json = || serde_json::to_string_pretty(report).context("write the report as JSON");
    if let Some(file) = file {
        if file.as_os_str() == "-" {
            println!("{}", json()?);
            return Ok(());
        }
        fs::write(file, json()? + "\n").with_context(|| format!("write {}", file.display()))?;
    }
    print!("{}", render(if markdown { Style::Markdown } else { Style::Plain }));
    Ok(())
}
