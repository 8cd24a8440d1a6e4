//! `paceline optimize`: a plan for a recorded job, found in virtual time, and, if asked, tried in real time. How plans
//! are found is not known here.

mod report;
mod verify;

use crate::{
    carrier::hosts,
    exit::UsageError,
    handing::Handing,
    scenario::{self, ConditionArgs, Loaded, WireSource},
    settings::parse_size,
};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use paceline_job::{ByteSize, WrittenDuration};
use paceline_plan::{Engine, Limits, Outcome, Task, optimize};
use report::Report;
use std::{
    ffi::OsString,
    io::IsTerminal,
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long a search takes at most, unless it is said.
const USUAL_TIME: Duration = Duration::from_secs(120);

/// Find a plan for a recorded job: what to send together, in which pieces and how.
///
/// Plans are tried in virtual time, by the engines of the runtime over a modelled network. Every decision says what it
/// is expected to gain. What a plan file cannot do (use another optimizer, fuse operators, send halves) is given as advice.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline optimize trace/ -o plan.toml
  paceline optimize trace/ -o plan.toml --memory 16GiB --engine both
  paceline optimize trace/ -o plan.toml --verify -- python train.py
  paceline optimize layers.csv --workers 8 --bandwidth 10gbit

Then apply it: paceline run -n 4 --plan plan.toml -- python train.py

Exit codes:
  0  planned (and verified)
  1  the trace cannot be read or planned, or the program of --verify failed
  2  the command line is wrong, or does not say what this trace cannot")]
pub struct OptimizeArgs {
    /// A trace: a folder with one file for each worker, or a single file.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Where to write the plan [default: it is printed].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub conditions: ConditionArgs,

    /// Plan for so many workers, each on a host of its own and like the first [default: those of the trace].
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub workers: Option<usize>,

    /// What each worker's device has; forward passes are run again, or batches cut, to keep to it.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<ByteSize>,

    /// What handing over one operation takes the program's thread, in which the recorded backward passes include it;
    /// sending tensors together spares it [default: what the trace shows].
    #[arg(long, value_name = "TIME")]
    pub post: Option<WrittenDuration>,

    /// How plans are looked for: along the critical path, by simulated annealing, or both.
    #[arg(long, value_enum, default_value = "search")]
    pub engine: EngineName,

    /// Leave each setting, and the groups, as they are where they gain less than this, in percent of a step: what messages
    /// cost the processors is not part of the replay.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub least_gain: f64,

    /// How long the search may take [default: 2min].
    #[arg(long, value_name = "TIME")]
    pub time: Option<WrittenDuration>,

    /// What chance follows from, in simulated annealing.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,

    /// Run the program before and after, and compare what was predicted with what happens.
    #[arg(long, requires = "program", requires = "output")]
    pub verify: bool,

    /// The program of --verify and its arguments.
    #[arg(last = true, value_name = "PROGRAM", requires = "verify")]
    pub program: Vec<OsString>,
}

/// Names of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Along the critical path.
    Search,
    /// By chance, and less and less so.
    Annealing,
    /// Both; the better plan is taken.
    Both,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Engine {
        match name {
            EngineName::Search => Engine::Search,
            EngineName::Annealing => Engine::Annealing,
            EngineName::Both => Engine::Both,
        }
    }
}

/// Run the command.
pub fn run(arguments: OptimizeArgs) -> Result<ExitCode> {
    let loaded = scenario::load(&arguments.trace, &arguments.conditions)?;
    let handing = Handing::of(arguments.post, &loaded.job);
    let task = task(&loaded, handing, &arguments)?;
    let begin = Instant::now();
    let outcome = plan(&task, &arguments)?;
    let skip = loaded.job.graph.warm_up();
    let doubt = loaded.doubt(skip, outcome.before_ms).filter(|_| arguments.workers.is_none());
    let mut report = Report::new(&loaded, &task, handing, outcome, begin.elapsed());
    report.doubt = doubt;
    if let Some(path) = &arguments.output {
        std::fs::write(path, report.file())
            .with_context(|| format!("the plan cannot be written to {}", path.display()))?;
    }
    if arguments.verify {
        let workers = task.scenario.graph.workers.len();
        report.verified = Some(verify::run(&arguments, &task.scenario.settings, workers)?);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text(&loaded, arguments.output.as_deref()));
    }
    Ok(ExitCode::SUCCESS)
}

fn task(loaded: &Loaded, handing: Handing, arguments: &OptimizeArgs) -> Result<Task> {
    let mut scenario = loaded.scenario.clone();
    let mut layered = loaded.job.layered.clone().map(|it| it.posting(handing.time()));
    if let Some(count) = arguments.workers {
        let Some(layered) = &mut layered else {
            let text = "--workers needs a trace that names layers, such as `paceline run --trace` writes; give the traces of all workers instead";
            return Err(UsageError::new(text).into());
        };
        *layered = std::mem::take(layered).like_first(count);
        scenario.graph = layered.graph();
    }
    if let (Some(peers), None) = (loaded.missing, arguments.workers) {
        return Err(peers.not_enough_for("a plan").into());
    }
    if scenario.graph.workers.len() < 2 {
        let text = match &layered {
            Some(_) => {
                "this trace has one worker, who sends nothing; give --workers N, or the traces of all workers"
            }
            None => "this trace has one worker and names no layers; give the traces of all workers",
        };
        return Err(UsageError::new(text).into());
    }
    // Workers of one host send through memory, whose rate is much the same everywhere.
    if loaded.wire == WireSource::Nowhere && hosts(&scenario.graph) > 1 {
        let text = "this trace does not show what the network carries; give --bandwidth";
        return Err(UsageError::new(text).into());
    }
    Ok(Task { scenario, layered })
}

/// Search with a bar on a terminal, until the time is over.
fn plan(task: &Task, arguments: &OptimizeArgs) -> Result<Outcome> {
    let limits = Limits {
        memory: arguments.memory,
        engine: arguments.engine.into(),
        seed: arguments.seed,
        least_gain: arguments.least_gain / 100.0,
        ..Limits::default()
    };
    let time = arguments.time.map_or(USUAL_TIME, |WrittenDuration(time)| time);
    let begin = Instant::now();
    let bar = std::io::stderr().is_terminal().then(|| {
        // The template is a constant that indicatif accepts.
        let style =
            ProgressStyle::with_template("{bar:30} {pos}/{len} replays  {msg}  [{elapsed}]")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(limits.replays as u64).with_style(style)
    });
    let outcome = optimize(task, &limits, &mut |progress| {
        if let Some(bar) = &bar {
            bar.set_length(progress.most as u64);
            bar.set_position(progress.replays as u64);
            bar.set_message(format!("best {:.2} ms", progress.best_ms));
        }
        if begin.elapsed() < time { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(outcome?)
}
