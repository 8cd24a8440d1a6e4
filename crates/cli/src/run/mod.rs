//! `paceline run`: one job on this machine, from its processes' start to their end. This file wires the
//! rooms beside it together: [`process`] starts and signals, [`supervision`] decides, [`output`] passes lines on,
//! [`report`] finds the words. The job's own traffic is none of its business.

pub mod door;
mod environment;
pub mod guard;
mod lines;
mod output;
pub mod process;
mod recording;
mod report;
pub mod signals;
pub mod supervision;

use crate::{
    exit::UsageError,
    settings::{SettingsArgs, parse_address, parse_size},
    ui::{Hands, Page, UiOptions},
};
use anyhow::{Context, Result};
use clap::Args;
use door::Door;
use environment::Launch;
use guard::Guard;
use output::{Channel, LastLines, Notes, Output, Prefix};
use paceline_job::Rank;
use paceline_net::coordinator::Census;
use paceline_tune::{Method, policies};
use process::{Program, WorkerProcess};
use recording::Recording;
use signals::Signals;
use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    num::NonZeroU32,
    os::fd::OwnedFd,
    path::PathBuf,
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};
use supervision::{Action, Ending, Event, Supervision, Wait};

/// No tuning.
const OFF: &str = "off";

/// How many processes are started in place of ones that fail, where there are spares.
const RESTARTS: usize = 10;

/// How long a failure may turn out to be the consequence of another.
const HEARING: Duration = Duration::from_millis(200);

/// How long the system may take to end a process that was killed.
const DEATH: Duration = Duration::from_secs(10);

/// Start N workers of a program on this machine, and see them through.
///
/// Every worker gets the variables that PyTorch reads (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
/// MASTER_PORT) and Paceline's own, so that programs that read them, PyTorch's among them, find each other.
///
/// What workers write appears line by line with the rank in front. Rank 0 reads our standard input unless
/// that is a terminal; the others read nothing. Where the strategy is `auto`, two lines say what it chose, and why,
/// as soon as the workers have measured their links.
///
/// If a worker fails, the others get SIGTERM, and SIGKILL after the grace period. SIGINT, SIGTERM, SIGHUP, SIGUSR1
/// and SIGUSR2 are passed on; a second SIGINT or SIGTERM kills. What a worker started ends with the job, even if
/// `paceline run` itself is killed (daemons that leave their process group excepted).
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline run -n 4 -- python train.py --epochs 3
  paceline run -n 4 --strategy ring --partition 256KiB -- python train.py
  paceline run -n 2 --plan plan.toml -- ./train
  paceline run -n 4 --trace traces -- python train.py
  paceline run -n 4 --tune replay --tune-log tuning.jsonl -- python train.py
  paceline run -n 4 --policy noise_scale:most=256 -- python train.py
  paceline run -n 4 --checkpoint saved --every 500 -- python train.py
  paceline run -n 4 --elastic --min 2 --max 8 --name resnet -- python train.py
  paceline run -n 4 --elastic --spare 1 --restarts 20 -- python train.py
  paceline run -n 4 --ui --ui-dir resnet -- python train.py
  paceline run -n 4 --elastic --rendezvous etcd://10.0.0.1:2379/resnet --world 16 -- python train.py

Environment:
  PACELINE_SECRET, PACELINE_SECRET_FILE   the job's secret; made afresh if neither is set
  PACELINE_UI_TOKEN                       the token of --ui's link; made afresh if it is not set
  OMP_NUM_THREADS                         set to an equal share of the cores, unless set
  PYTHONUNBUFFERED                        set to 1, unless set: lines appear when they are printed

Exit codes:
  0    every worker exited with 0
  2    the command line is wrong, or the program cannot be started
  else what the first worker that failed exited with, or 128 + the signal that ended it")]
pub struct RunArgs {
    /// How many workers to start.
    #[arg(short = 'n', long = "workers", value_name = "N", value_parser = parse_size)]
    pub size: usize,

    #[command(flatten)]
    pub settings: SettingsArgs,

    /// Do not encrypt or authenticate traffic between hosts. Joining still needs the secret.
    #[arg(long)]
    pub insecure: bool,

    /// The interface or address that workers use among themselves [default: the one that leads to the
    /// coordinator, loopback here].
    #[arg(long, value_name = "NAME|ADDRESS")]
    pub interface: Option<String>,

    /// The ports that workers may listen on, such as 29600-29699 [default: any].
    #[arg(long, value_name = "FIRST-LAST")]
    pub port_range: Option<String>,

    /// Where the job's coordinator listens.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    pub listen: SocketAddr,

    /// Record what each worker does, into a file of this folder (made if it is not there) for `paceline replay` and for
    /// Perfetto. Any PyTorch program will do that trains by DDP or by our optimizer.
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,

    /// How many steps to record, after three that are not [default: 20].
    #[arg(long, value_name = "N", requires = "trace")]
    pub trace_steps: Option<NonZeroU32>,

    /// Change strategy, partition and credit while the job runs, where that promises more speed: `replay` searches by replaying
    /// the job in virtual time, `autobyte` by a learned model, `bo` by trying (once, at the beginning). For programs that use
    /// `DistributedOptimizer` or DDP.
    #[arg(long, value_name = "METHOD", default_value = "off", value_parser = parse_tuning)]
    pub tune: String,

    /// Write what the tuner decides, and why, to this file, as JSON lines for `paceline tune explain`.
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub tune_log: Option<PathBuf>,

    /// Predict by the weights of this file instead of those that come with the program, where the tuner is `autobyte`:
    /// `paceline learn metanet --out FILE` writes such a file.
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub tune_weights: Option<PathBuf>,

    /// Let the tuner also choose strategies that average in groups (`shuffle`, `gossip`). `DistributedOptimizer` then averages
    /// parameters instead of gradients, unless the program names another mode.
    #[arg(long, requires = "tune")]
    pub tune_averages: bool,

    /// Mark links of the topology as contended, and as free again, by what workers get from each other, for the strategy
    /// `shuffle`. For programs that use `DistributedOptimizer`, or say where steps begin.
    #[arg(long)]
    pub watch_links: bool,

    /// Let a policy adapt the job while it runs: `noise_scale:most=256`, `goodput:most=256`, `schedule:FILE`, `interference`,
    /// `spot`, or a class of your own as `module:Class`. May be given several times. For programs that use `DistributedOptimizer`, or say
    /// where steps begin.
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    pub policy: Vec<String>,

    /// Let workers come and go: one that dies does not end the job while enough live, and `paceline resize` and `paceline status`
    /// find it by its name. For programs that use `DistributedOptimizer` and `pl.elastic(...)`.
    #[arg(long)]
    pub elastic: bool,

    /// The fewest workers that an elastic job goes on with; with fewer it fails [default: 1].
    #[arg(long, value_name = "N", requires = "elastic", value_parser = parse_size)]
    pub min: Option<usize>,

    /// The most workers that an elastic job may have [default: 1024].
    #[arg(long, value_name = "N", requires = "elastic", value_parser = parse_size)]
    pub max: Option<usize>,

    /// How many more processes to keep ready: started, and waiting in `pl.elastic(...)` until `paceline resize` asks for more workers
    /// or one is lost. They sleep, and are no workers until then [default: 0].
    #[arg(long, value_name = "N", requires = "elastic", conflicts_with = "rendezvous", value_parser = parse_size)]
    pub spare: Option<usize>,

    /// How many processes to start, over the whole job, in place of workers and spares that fail [default: 0; with --spare, 10].
    #[arg(long, value_name = "N", requires = "elastic", conflicts_with = "rendezvous")]
    pub restarts: Option<usize>,

    /// What an elastic job is called [default: the number of this process].
    #[arg(long, value_name = "NAME", requires = "elastic", value_parser = door::parse_name)]
    pub name: Option<String>,

    /// Where workers of several machines meet: etcd://HOST:PORT[,HOST:PORT...]/JOB. This command is run on each of them and
    /// starts its workers; no machine is one that must not fail. Needs PACELINE_SECRET or PACELINE_SECRET_FILE, the same on all.
    #[arg(long, value_name = "URL", requires = "elastic", conflicts_with_all = ["listen", "name", "ui", "ui_dir"])]
    pub rendezvous: Option<String>,

    /// With how many workers of all machines together the job begins [default: those of this one].
    #[arg(long, value_name = "N", requires = "rendezvous", value_parser = parse_size)]
    pub world: Option<usize>,

    /// Save the state of programs that call `pl.checkpoint(...)` to this folder (made if it is not there), and go on from what
    /// is there, with however many workers.
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,

    /// How many steps lie between two checkpoints [default: 1000].
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = parse_every)]
    pub every: Option<NonZeroU32>,

    #[command(flatten)]
    pub page: UiOptions,

    /// Show lines as workers write them, without the rank.
    #[arg(long)]
    pub no_prefix: bool,

    /// Do not say which strategies `auto` chose, and why.
    #[arg(short, long)]
    pub quiet: bool,

    /// How many seconds workers have to end by themselves when the job ends early.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub grace: Duration,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

fn parse_every(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "checkpoints lie 1 step apart or more, such as 500".to_string())
}

fn parse_tuning(text: &str) -> Result<String, String> {
    match text {
        OFF => Ok(()),
        name => name.parse::<Method>().map(drop).map_err(|error| format!("{error}, {OFF}")),
    }
    .map(|()| text.to_string())
}

/// What comes with us is tried here; whether a module has a class is the workers' to see.
fn parse_policy(text: &str) -> Result<String, String> {
    let read =
        |path: &str| std::fs::read_to_string(path).map_err(|error| format!("`{path}`: {error}"));
    let ours = |name: &str| policies::NAMES.contains(&name);
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    if text.contains(';') {
        return Err("give --policy once for each policy".to_string());
    }
    if ours(name) || rest.is_empty() {
        policies::parse(text, read).map_err(|error| error.to_string())?;
    }
    match name {
        // Whole, since workers may change to another folder.
        "schedule" => std::fs::canonicalize(rest)
            .map(|file| format!("schedule:{}", file.display()))
            .map_err(|error| error.to_string()),
        _ => Ok(text.to_string()),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    /// A day: long enough for any checkpoint.
    const LONGEST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds are a number from 0 to 86400, such as 5 or 0.5".to_string()),
    }
}

/// Run the job to its end. Call it from the main thread: workers die with the thread that started them.
pub fn run(arguments: RunArgs) -> Result<ExitCode> {
    // Before the first process, so that none can end unnoticed.
    let mut signals = Signals::catch(&[
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGTSTP,
    ])?;
    let (notes, notes_reader) = Notes::new()?;
    let page = Page::open(&arguments.page, Hands::On)?;
    let launch = Launch::prepare(&arguments, &notes, page.as_ref())?;
    if let (Some(page), Some(coordinator)) = (&page, launch.coordinator()) {
        page.feed.attend(coordinator)?;
        if let Some(link) = &page.link {
            notes.say(&format!("page at {link}"));
        }
    }
    let door = match launch.coordinator().filter(|_| arguments.elastic) {
        None => None,
        Some(coordinator) => {
            let name = arguments.name.clone();
            let name = name.unwrap_or_else(|| std::process::id().to_string());
            let door = Door::open(&name, coordinator.clone())
                .map_err(|error| UsageError::new(format!("{error:#}")))?;
            if !arguments.quiet {
                notes.say(&format!(
                    "job {name}: `paceline status {name}`, `paceline resize {name} N`"
                ));
            }
            Some(door)
        }
    };
    if let Some(url) = arguments.rendezvous.as_ref().filter(|_| !arguments.quiet) {
        notes.say(&format!("job {url}: `paceline status {url}`, `paceline resize {url} N`"));
    }
    let recording = arguments.trace.as_deref().map(Recording::into);
    if let Some(warning) = recording.as_ref().and_then(|it| it.leftovers(arguments.size)) {
        notes.say(&warning);
    }
    let mut guard = Guard::start()?;
    let (mut workers, streams) = Workers::start(&arguments, &launch, &mut guard)?;
    let prefix = if arguments.no_prefix { Prefix::None } else { Prefix::Rank };
    let mut output = Output::start(streams, notes_reader, arguments.size, prefix)?;

    let mut job = Job { arguments: &arguments, launch: &launch, notes: &notes };
    let supervision = job.supervise(&mut workers, &mut signals, &mut guard, &mut output)?;
    let pids: Vec<u32> = workers.0.iter().map(WorkerProcess::pid).collect();
    drop((workers, door));
    guard.dismiss();
    drop(launch);
    let last_lines = output.finish();

    let outcome = supervision.outcome();
    let mut story = report::story(&outcome, &pair(pids, last_lines));
    if outcome.cause.is_none() {
        story.extend(recording.and_then(|recording| recording.nothing()));
    }
    if let Some(page) = page {
        page.finish(&report::ended(&outcome));
    }
    // Nobody may be reading; the exit code tells the same.
    let _ = io::stderr().write_all(story.as_bytes());
    Ok(ExitCode::from(outcome.exit_code))
}

fn pair(pids: Vec<u32>, last_lines: Vec<LastLines>) -> Vec<report::Worker> {
    let lines = last_lines.into_iter().chain(std::iter::repeat_with(LastLines::new));
    pids.into_iter()
        .zip(lines)
        .map(|(pid, last_lines)| report::Worker { pid, last_lines })
        .collect()
}

/// All workers, by rank. Dropping them ends them.
struct Workers(Vec<WorkerProcess>);

type Streams = Vec<(Rank, Channel, OwnedFd)>;

impl Workers {
    fn start(
        arguments: &RunArgs,
        launch: &Launch,
        guard: &mut Guard,
    ) -> Result<(Workers, Streams)> {
        let mut workers = Workers(Vec::with_capacity(arguments.size));
        let mut streams = Streams::new();
        for _ in 0..arguments.size {
            streams.extend(workers.start_next(arguments, launch, guard)?);
        }
        Ok((workers, streams))
    }

    /// One more, with the next number.
    fn start_next(
        &mut self,
        arguments: &RunArgs,
        launch: &Launch,
        guard: &mut Guard,
    ) -> Result<Streams> {
        // The command line's parser demands at least the program.
        let (name, rest) = arguments.program.split_first().context("no program was given")?;
        let program = Program { name: name.clone(), arguments: rest.to_vec() };
        let rank = Rank(self.0.len() as u32);
        // In a group of its own a worker that read the terminal would be stopped for it.
        let stdin = match rank {
            Rank(0) if !io::stdin().is_terminal() => Stdio::inherit(),
            _ => Stdio::null(),
        };
        let (worker, stdout, stderr) =
            WorkerProcess::start(rank, &program, &launch.environment(rank), stdin)
                .map_err(|error| UsageError::new(report::cannot_start(&program, &error)))?;
        guard.watch(worker.pid());
        self.0.push(worker);
        Ok(vec![(rank, Channel::Stdout, stdout.into()), (rank, Channel::Stderr, stderr.into())])
    }

    /// Nothing is left of a worker that has ended, nor of what it started.
    fn bury(&mut self, rank: Rank, guard: &mut Guard) {
        let worker = &mut self.0[rank.index()];
        // First, since the number is somebody else's afterwards.
        guard.forget(worker.pid());
        worker.bury();
    }

    fn signal(&self, signal: i32) {
        self.0.iter().for_each(|worker| worker.signal(signal));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(WorkerProcess::bury);
    }
}

/// What a job is made of, besides its processes.
struct Job<'a> {
    arguments: &'a RunArgs,
    launch: &'a Launch,
    notes: &'a Notes,
}

impl Job<'_> {
    /// Tell the state machine what happens, and do as it says, until all workers have ended.
    fn supervise(
        &mut self,
        workers: &mut Workers,
        signals: &mut Signals,
        guard: &mut Guard,
        output: &mut Output,
    ) -> Result<Supervision> {
        let spares = self.arguments.spare.unwrap_or(0);
        let usual = if spares > 0 { RESTARTS } else { 0 };
        let restarts = self.arguments.restarts.unwrap_or(usual);
        let mut supervision = Supervision::new(workers.0.len()).replacing(spares, restarts);
        let mut running: Vec<usize> = (0..workers.0.len()).collect();
        let mut clock: Option<Instant> = None;
        loop {
            let mut events = Vec::new();
            for signal in signals.pending() {
                match signal {
                    libc::SIGCHLD => {}
                    libc::SIGTSTP => pause(workers),
                    libc::SIGUSR1 | libc::SIGUSR2 => events.push(Event::PassOn(signal)),
                    asked => events.push(Event::Asked(asked)),
                }
            }
            let told = self.launch.wishes().are_there();
            let ended = take_ended(workers, &mut running)?;
            if self.arguments.elastic {
                // Others may come for as long as the job goes on.
                for (rank, _) in &ended {
                    workers.bury(*rank, guard);
                }
            }
            if !ended.is_empty() {
                events.push(Event::Needs(self.launch.needed()));
            }
            if told && let Some(census) = self.census() {
                // Stopped, or as good as that: nothing else ends them, and the report names whom a signal ended.
                let silent = workers.0.iter().filter(|it| census.silent.contains(&it.pid()));
                silent.for_each(|worker| worker.signal(libc::SIGKILL));
            }
            let asked = self.arguments.elastic && (told || !ended.is_empty());
            if self.launch.wishes().take() {
                events.push(Event::Resized);
            }
            if asked && let Some(census) = self.census() {
                events.push(Event::Wanted(census.wanted));
                let of = |pids: &[u32]| -> Vec<Rank> {
                    let found = workers.0.iter().filter(|worker| pids.contains(&worker.pid()));
                    found.map(|worker| worker.rank).collect()
                };
                events.extend(of(&census.entered).into_iter().map(Event::Entered));
                events.extend(of(&census.retired).into_iter().map(Event::Retired));
                events.extend(census.done.then_some(Event::Done));
            }
            if !ended.is_empty() {
                events.push(Event::Ended(ended));
            }
            if clock.take_if(|deadline| *deadline <= Instant::now()).is_some() {
                events.push(Event::TimeOver);
            }
            for event in events {
                for action in supervision.on_event(event) {
                    match action {
                        Action::StartClock(Wait::Hearing) => clock = Some(Instant::now() + HEARING),
                        Action::StartClock(Wait::Grace) => {
                            clock = Some(Instant::now() + self.arguments.grace);
                        }
                        Action::StartClock(Wait::Death) => clock = Some(Instant::now() + DEATH),
                        Action::GiveUp => return Ok(supervision),
                        said => self.act(said, workers, &supervision),
                    }
                }
            }
            if supervision.living() == 0 {
                return Ok(supervision);
            }
            for _ in 0..if asked { supervision.missing() } else { 0 } {
                output.add(workers.start_next(self.arguments, self.launch, guard)?);
                running.push(workers.0.len() - 1);
                supervision.on_event(Event::Started);
            }
            let timeout = clock.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            signals.wait(timeout, self.launch.wishes().bell())?;
        }
    }

    fn act(&self, action: Action, workers: &Workers, supervision: &Supervision) {
        let living = supervision.living();
        let pid_of = |rank: Rank| workers.0[rank.index()].pid();
        match action {
            Action::Signal(signal) => {
                if signal == libc::SIGKILL {
                    self.notes.say(&report::killing(living));
                }
                workers.signal(signal);
            }
            Action::Announce(cause) => {
                self.notes.say(&report::announcement(cause, pid_of, living));
            }
            Action::Bear(rank, ending, replacement) => {
                let (part, left) = (supervision.part(rank), supervision.taking_part());
                let said = report::borne(rank, pid_of(rank), ending, part, left, replacement);
                self.notes.say(&said);
            }
            Action::StartClock(_) | Action::GiveUp => {}
        }
    }

    /// What workers are to the job, where its coordinator is here. Elsewhere nobody here is told; who leaves as it was asked to
    /// ends well.
    fn census(&self) -> Option<Census> {
        self.launch.coordinator().and_then(|coordinator| coordinator.census().ok())
    }
}

/// Move the workers that have ended out of those that run.
fn take_ended(workers: &Workers, running: &mut Vec<usize>) -> Result<Vec<(Rank, Ending)>> {
    let mut ended = Vec::new();
    for index in running.iter() {
        let worker = &workers.0[*index];
        if let Some(ending) = worker.ending()? {
            ended.push((worker.rank, ending));
        }
    }
    running.retain(|index| ended.iter().all(|(rank, _)| rank.index() != *index));
    Ok(ended)
}

/// Ctrl-Z: the workers stop with us, and go on with us.
fn pause(workers: &Workers) {
    workers.signal(libc::SIGTSTP);
    // The default action of SIGTSTP. Returns when somebody continues us.
    let _ = signal_hook::low_level::emulate_default_handler(libc::SIGTSTP);
    workers.signal(libc::SIGCONT);
}
