//! `paceline learn`: models that the program uses, learned anew. What is learned, and how, is not known here.

mod data;
mod report;

use crate::{exit::UsageError, writable};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use data::Data;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_job::trace::Trace;
use paceline_learn::metanet::{MetaNetwork, Sample, TrainingOptions, train};
use paceline_tune::metanet::{Generator, Model, Part};
use report::Report;
use std::{io::IsTerminal, path::PathBuf, process::ExitCode, time::Instant};

/// Layers that were measured, which come with the program.
const PROFILES: [(&str, &str); 5] = [
    ("bert-base", include_str!("../../../../bench/training/profiles/bert-base.json")),
    ("gpt2", include_str!("../../../../bench/training/profiles/gpt2.json")),
    ("lstm", include_str!("../../../../bench/training/profiles/lstm.json")),
    ("resnet50", include_str!("../../../../bench/training/profiles/resnet50.json")),
    ("vgg16", include_str!("../../../../bench/training/profiles/vgg16.json")),
];

/// What can be learned.
#[derive(Clone, Debug, Subcommand)]
pub enum LearnCommand {
    #[command(name = "metanet")]
    MetaNetwork(MetaNetworkArgs),
}

/// Learn the meta-network: from what a job shows to the speed it would have under other settings.
///
/// Jobs are invented (measured and made-up models on networks with contention and slow workers), and replayed in virtual
/// time under many settings. Some models and some networks are held out; by those the result is judged.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline learn metanet --out metanet.bin
  paceline learn metanet --samples 400 --data samples.jsonl --out metanet.bin
  paceline learn metanet --shipped --data samples.jsonl      judge the weights that come with the program
  paceline learn metanet --judge metanet.bin --data samples.jsonl

Exit codes:
  0  learned, or judged
  1  a file cannot be read or written
  2  the command line is wrong")]
pub struct MetaNetworkArgs {
    /// Where to write the weights [default: nowhere].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// How many jobs to learn from; one of eight is to judge by.
    #[arg(long, value_name = "N", default_value_t = 800)]
    pub samples: usize,

    /// How often all of them are looked at.
    #[arg(long, value_name = "N", default_value_t = 120)]
    pub epochs: usize,

    /// What chance follows from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Keep replayed jobs in this file, and go on from what it has.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,

    /// Replay with so many threads [default: one for each core].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Traces or tables of layers of more models to learn from.
    #[arg(long, value_name = "TRACE")]
    pub model: Vec<PathBuf>,

    /// Learn nothing: judge the weights that come with the program.
    #[arg(long, conflicts_with = "out")]
    pub shipped: bool,

    /// Learn nothing: judge the weights of this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "shipped"])]
    pub judge: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Run the command.
pub fn run(command: LearnCommand) -> Result<ExitCode> {
    let LearnCommand::MetaNetwork(arguments) = command;
    if arguments.samples < 8 {
        return Err(UsageError::new("--samples: at least 8, of which one is to judge by").into());
    }
    // What is wrong with a file is said before hours of work.
    let given = match &arguments.judge {
        Some(file) => Some(MetaNetwork::read(file)?),
        None => arguments.shipped.then(MetaNetwork::shipped),
    };
    for file in [&arguments.out, &arguments.data].into_iter().flatten() {
        writable::check(file)?;
    }
    let generator = Generator::new(models(&arguments)?, arguments.seed);
    let begin = Instant::now();
    let samples = samples(&arguments, &generator)?;
    let replayed = begin.elapsed();
    let network = given.unwrap_or_else(|| learn(&arguments, &samples));
    if let Some(path) = &arguments.out {
        std::fs::write(path, network.to_bytes())
            .with_context(|| format!("the weights cannot be written to {}", path.display()))?;
    }
    let report = Report::of(&network, &samples, replayed, begin.elapsed() - replayed);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}

/// The measured models.
fn models(arguments: &MetaNetworkArgs) -> Result<Vec<Model>> {
    let mut traces = Vec::new();
    for (name, text) in PROFILES {
        let trace = Trace::read_bytes(&format!("{name}.json"), text.as_bytes().to_vec());
        traces.push((name.to_string(), trace));
    }
    for path in &arguments.model {
        traces.push((path.display().to_string(), Trace::read(path)));
    }
    let model = |(name, trace): (String, Result<Trace, _>)| {
        let trace = trace.with_context(|| format!("cannot read {name}"))?;
        let model = Model::of(&trace).with_context(|| format!("no step can be made of {name}"))?;
        model.with_context(|| format!("{name} does not name layers"))
    };
    traces.into_iter().map(model).collect()
}

/// What the file has, and the rest by replay.
fn samples(arguments: &MetaNetworkArgs, generator: &Generator) -> Result<Vec<Sample>> {
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let mut data = Data::open(arguments.data.as_deref(), arguments.seed)?;
    let bar = bar(arguments.samples, "{bar:30} {pos}/{len} jobs replayed  [{elapsed}, {eta} left]");
    data.fill(arguments.samples, threads.clamp(1, 256), generator, &|done| {
        if let Some(bar) = &bar {
            bar.set_position(done as u64);
        }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(data.samples())
}

fn learn(arguments: &MetaNetworkArgs, samples: &[Sample]) -> MetaNetwork {
    let known = |sample: &&Sample| Part::of(sample.model, sample.network) == Part::Training;
    let samples: Vec<Sample> = samples.iter().filter(known).cloned().collect();
    let (epochs, seed) = (arguments.epochs, arguments.seed);
    let options = TrainingOptions { epochs, seed, ..TrainingOptions::default() };
    let bar = bar(epochs, "{bar:30} {pos}/{len} epochs  {msg}  [{elapsed}, {eta} left]");
    let mut network = MetaNetwork::new(seed);
    train(&mut network, &samples, &options, &mut |epoch, loss| {
        if let Some(bar) = &bar {
            bar.set_position(epoch as u64);
            bar.set_message(format!("loss {loss:.4}"));
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    network
}

/// A bar on a terminal.
fn bar(length: usize, template: &str) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        // The templates are constants that indicatif accepts.
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(length as u64).with_style(style)
    })
}
