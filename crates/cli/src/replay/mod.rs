//! `paceline replay`: a recorded job played in virtual time, where its time goes, and what it would take under other
//! conditions. It predicts; nothing runs.

mod bars;
mod page;
mod plot;
mod questions;
mod report;
mod written;

use crate::{
    carrier::Carrier,
    exit::UsageError,
    scenario::{self, ConditionArgs, Loaded},
};
use anyhow::{Context, Result};
use clap::Args;
use paceline_replay::graph::{Analysis, Network, Played, play};
use questions::{Case, Question};
use report::Report;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Whoever asks for more workers than these hears that it takes time.
const MANY: usize = 128;

/// Play a recorded job in virtual time: where its time goes, and what if.
///
/// Reads what `paceline run --trace` wrote, traces of PyTorch's profiler, Chakra execution traces, Horovod timelines,
/// and tables of layers. The job is played twice: with operations as long as they were recorded, which checks the graph;
/// and with operations carried out by the engines of the runtime over a modelled network, which predicts.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline replay trace/
  paceline replay trace/ --what-if bandwidth=25gbit
  paceline replay trace/ --what-if partition=256KiB,1MiB,4MiB --what-if workers=8+bandwidth=10gbit
  paceline replay trace/ --what-if plan=plan.toml
  paceline replay trace/ --what-if workers=4,8,16,32 --plot workers.svg --html replay.html
  paceline replay trace/ --json
  paceline replay trace/ --alike --what-if strategy=ring+workers=64,256,1024
  paceline replay layers.csv --bandwidth 10gbit --what-if workers=4,8,16

What can be asked: bandwidth=25gbit, latency=50us, workers=8, strategy=ring, partition=1MiB, credit=4MiB, batch=2x,
precision=f16, device=2x, straggler=none, order=fifo, plan=plan.toml. Several values, separated by commas, make a sweep; several
changes at once are joined by `+`.

Exit codes:
  0  played
  1  the trace cannot be read or played
  2  the command line is wrong")]
pub struct ReplayArgs {
    /// A trace: a folder with one file for each worker, or a single file.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    #[command(flatten)]
    pub conditions: ConditionArgs,

    /// What a step would take under other conditions; may be given several times.
    #[arg(long = "what-if", value_name = "CHANGE")]
    pub what_if: Vec<Question>,

    /// What a step would take if this plan were in force; the same as `--what-if plan=FILE`.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// For --what-if: take all workers to be like worker 0, and play one for all of them. Costs little more with a
    /// thousand workers than with one; for the strategy `ring` and one worker on each host.
    #[arg(long, requires = "what_if")]
    pub alike: bool,

    /// Steps at the beginning that do not count. The first one does not in any case, unless it is the only one: nothing is left over
    /// for it from a step before [default: 1].
    #[arg(long, value_name = "N")]
    pub skip: Option<usize>,

    /// Play this step alone, by the number that the trace gives it (`paceline trace` lists them) [default: all].
    #[arg(long, value_name = "NUMBER", conflicts_with = "skip")]
    pub step: Option<u64>,

    /// Write a page with the last step as it was measured and as it is predicted, worker by worker.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the predicted run as a trace that Perfetto opens (Chrome JSON, compressed).
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,

    /// Draw the answers to --what-if (SVG).
    #[arg(long, value_name = "FILE", requires = "what_if")]
    pub plot: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Run the command.
pub fn run(arguments: ReplayArgs) -> Result<ExitCode> {
    let loaded = scenario::load_step(&arguments.trace, &arguments.conditions, arguments.step)?;
    let (report, played) = predict(&loaded, &arguments)?;
    if let Some(path) = &arguments.html {
        write(
            path,
            page::draw(&loaded, &played, report.is_simulated(), &report.text(&loaded)).as_bytes(),
        )?;
    }
    if let Some(path) = &arguments.trace_out {
        let written = written::trace(&loaded, &played);
        write(path, &written.with_context(|| format!("cannot write {}", path.display()))?)?;
    }
    if let Some(path) = &arguments.plot {
        write(path, plot::draw(report.step_ms(), report.answers()).as_bytes())?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text(&loaded));
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn predict(loaded: &Loaded, arguments: &ReplayArgs) -> Result<(Report, Played)> {
    let steps = loaded.job.graph.steps as usize;
    let skip = arguments.skip.unwrap_or(loaded.job.graph.warm_up());
    if skip >= steps {
        let text = format!("--skip {skip} leaves none of the {steps} steps of this trace");
        return Err(UsageError::new(text).into());
    }
    let scenario = &loaded.scenario;
    let carrier = Carrier::of(loaded, &scenario.graph);
    let joint = !scenario.graph.operations.is_empty() && carrier != Carrier::Nothing;
    let context = || "the trace cannot be played";
    let recorded = play(&scenario.graph, &Network::Recorded).with_context(context)?;
    let network =
        if joint && carrier.is_known(loaded) { scenario.network() } else { Network::Recorded };
    let (analysis, played) = Analysis::of(scenario, &network, skip).with_context(context)?;
    let lumped = match &network {
        Network::Engines { .. } => Some(
            play(&scenario.graph, &Network::Lumped(carrier.link(scenario).rate))
                .with_context(context)?,
        ),
        _ => None,
    };
    let of_plan = arguments.plan.clone().map(Case::of_plan);
    let asked = arguments.what_if.iter().flat_map(|question| &question.cases);
    let cases: Vec<&Case> = of_plan.iter().chain(asked).collect();
    let cases = || cases.iter();
    if !arguments.alike && cases().any(|case| case.workers(loaded) > MANY) {
        eprintln!(
            "Playing more than {MANY} workers one by one, which may take minutes; --alike lets one stand for all."
        );
    }
    let now = analysis.step_ms;
    let answers = cases().map(|case| case.ask(loaded, skip, arguments.alike, now));
    let answers = answers.collect::<Result<Vec<_>>>()?;
    let mut notes = Vec::new();
    let lossy = loaded.trace.lossy_steps();
    if lossy > 0 {
        notes.push(format!(
            "events are missing, or may be, from {lossy} of {} steps (see below); what is missing counts as time between the others, so \
             a replay that takes what was measured does not show that the graph is right",
            loaded.trace.marked_steps()
        ));
    }
    notes.extend(loaded.misfit(skip, recorded.step_ms(skip)));
    if let Some(path) = &arguments.conditions.in_force {
        let path = path.display();
        notes.push(format!(
            "{path} is taken to have been in force while this was recorded; what it would do is asked by --what-if plan={path}"
        ));
    }
    notes.extend(lumped.as_ref().and_then(|_| loaded.doubt(skip, now)));
    if joint && lumped.is_none() {
        notes.push(format!("no prediction by the engines: {}", carrier.why_unknown()));
    }
    if !arguments.alike && cases().any(|case| case.asks_for_absent_wires(loaded)) {
        let text =
            "all workers are on one host, where bandwidth and latency of wires change nothing";
        notes.push(text.to_string());
    }
    if !arguments.alike && cases().any(|case| case.shares_the_host(loaded)) {
        let text = "more workers are taken to be on the same host, whose processors are not counted; give --bandwidth to have \
                    each copy on a host of its own";
        notes.push(text.to_string());
    }
    for case in cases() {
        notes.extend(case.left_out(loaded)?);
        if case.averages_in_groups() {
            notes.push(format!(
                "{case}: workers average in groups, so they do not have the sum of all after a step"
            ));
        }
    }
    let uneven = cases().filter(|_| arguments.alike).map(|case| case.uneven(loaded));
    for (workers, count) in uneven.filter(|(_, count)| *count > 0) {
        notes.push(format!(
            "of {workers} workers {count} operations a step cannot have equal parts; they are taken to be a little longer, and all \
             workers to stay alike, which may be off by a few percent"
        ));
    }
    let asymmetric = scenario.asymmetric();
    if arguments.alike && asymmetric > 0 {
        notes.push(format!(
            "{asymmetric} operations a step are no all-reduces, in which one worker cannot stand for all: they are left out"
        ));
    }
    let report = Report::new(loaded, skip, &recorded, lumped.as_ref(), analysis, answers);
    Ok((report.with_notes(notes), played))
}
