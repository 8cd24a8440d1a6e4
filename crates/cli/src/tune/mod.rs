//! `paceline tune`: ways to tune a job, tried in virtual time under a script of changing conditions; and `paceline tune
//! explain`, which reads what a tuner wrote down. How tuners decide is not known here.

mod explain;
mod report;
mod setting;
mod timed;

use crate::{
    bench::interrupt::Interrupt,
    exit::UsageError,
    scenario::{self, ConditionArgs},
    settings::parse_size,
    writable,
};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use paceline_job::{Rate, StrategyChoice, WrittenDuration};
use paceline_learn::metanet::MetaNetwork;
use paceline_tune::{
    Candidate, Decision, Method, Space, Trigger, Tuner,
    arena::{self, Noise, Outcome, Phase, Truth, Yardstick},
};
use report::{Report, Run};
use setting::{Source, Staging};
use std::{
    io::{IsTerminal, Write},
    num::NonZeroU32,
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
};
use timed::Timed;

/// Of a script that has a name, unless the command line says otherwise.
const STEPS_IN_A_PHASE: u32 = 250;

/// Try ways to tune a job in virtual time, while its network and workers change.
///
/// A job of layers (a trace, or a table such as those in bench/training/profiles) is played under a script of link rates
/// and slow workers; every way to tune sees noisy metrics, as in a running job, and changes settings between steps. Beside
/// them stand the best setting of each phase and the best single one, found by grid: what there was to gain comes first.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  paceline tune trace/ --script steps --method replay
  paceline tune resnet50.json --workers 4 --bandwidth 25gbit --script steps --method all --plot steps.svg
  paceline tune trace/ --script rates.txt --length 10min --method replay --log decisions.jsonl
  paceline tune explain decisions.jsonl

Scripts by name: still, steps, ramp, bursts, slow-host, slow-rack, straggler, second-job. A file has one change a line, as for
`paceline-testbed run --script`: `2.5 host3 100mbit`, `4 rack1 1gbit`, `8 worker2 1.5x`.

Exit codes:
  0  tried, or explained
  1  the trace, the script or the log cannot be read, or the job cannot be played
  2  the command line is wrong"
)]
pub struct TuneArgs {
    #[command(subcommand)]
    command: Option<TuneCommand>,

    /// A trace: a folder with one file for each worker, or a single file. It must name layers.
    #[arg(value_name = "TRACE", required = true)]
    trace: Option<PathBuf>,

    /// Who tunes: default, grid, random, bo, autobyte, replay, or all; may be given several times.
    #[arg(long = "method", value_name = "NAME", default_value = "replay")]
    methods: Vec<Methods>,

    /// What changes: a file or a name.
    #[arg(long, value_name = "FILE or NAME", default_value = "still")]
    script: Source,

    /// Predict by the weights of this file, where the method is autobyte [default: those that come with the program].
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,

    /// How long a script from a file lasts [default: its last change and half of what was before it].
    #[arg(long, value_name = "TIME")]
    length: Option<WrittenDuration>,

    /// Steps in a phase of a script that has a name [default: 250].
    #[arg(long, value_name = "N")]
    phase: Option<NonZeroU32>,

    #[command(flatten)]
    conditions: ConditionArgs,

    /// So many workers, each on a host of its own and like the first [default: those of the trace].
    #[arg(long, value_name = "N", value_parser = parse_size)]
    workers: Option<usize>,

    /// Racks, which hosts fill in order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    racks: usize,

    /// What each rack's uplink carries [default: as much as its hosts together].
    #[arg(long, value_name = "RATE")]
    uplink: Option<Rate>,

    /// So many times slower computation.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    slow: f64,

    /// Strategies to choose from.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[arg(default_value = "ring,double_tree,parameter_server")]
    strategies: Vec<String>,

    /// Only every second partition and credit.
    #[arg(long)]
    coarse: bool,

    /// A candidate is followed from this predicted gain on, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = parse_percent)]
    threshold: f64,

    /// Relative deviation of a measured step, in percent; rates have twice that.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = parse_percent)]
    noise: f64,

    /// What chance follows from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Draw speed over time (SVG).
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Write what tuners decided, one line of JSON each.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum TuneCommand {
    Explain(explain::ExplainArgs),
}

/// One way to tune, or all.
#[derive(Clone, Copy, Debug)]
enum Methods {
    All,
    One(Method),
}

impl std::str::FromStr for Methods {
    type Err = paceline_tune::UnknownMethod;

    fn from_str(text: &str) -> Result<Methods, Self::Err> {
        if text == "all" { Ok(Methods::All) } else { text.parse().map(Methods::One) }
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "a number of percent from 0 to 100, such as 3".to_string())
}

/// Run the command.
pub fn run(arguments: TuneArgs) -> Result<ExitCode> {
    if let Some(TuneCommand::Explain(arguments)) = arguments.command {
        return explain::run(&arguments);
    }
    let methods = methods(&arguments.methods);
    // What is wrong with a file is said before the work.
    let weights = arguments.weights.as_deref();
    let weights = weights.map(|file| Method::weights(&methods, file)).transpose();
    let weights = weights.map_err(|error| UsageError::new(format!("--weights: {error}")))?;
    for file in [&arguments.log, &arguments.plot].into_iter().flatten() {
        writable::check(file)?;
    }
    // Without a subcommand the command line has a trace.
    let path = arguments.trace.clone().unwrap_or_default();
    let loaded = scenario::load(&path, &arguments.conditions)?;
    let staging = Staging {
        workers: arguments.workers,
        racks: arguments.racks,
        uplink: arguments.uplink,
        slow: arguments.slow,
    };
    let stage = staging.stage(&loaded)?;
    let mut truth = Truth::of(&stage);
    let (script, phases) = match &arguments.script {
        Source::Named(_) if arguments.length.is_some() => {
            return Err(UsageError::new(
                "--length is for a script from a file; one with a name has phases of --phase N steps",
            )
            .into());
        }
        Source::File(_) if arguments.phase.is_some() => {
            return Err(UsageError::new(
                "--phase is for a script with a name; one from a file lasts --length TIME",
            )
            .into());
        }
        Source::Named(named) => {
            let steps = arguments.phase.map_or(STEPS_IN_A_PHASE, NonZeroU32::get);
            named.script(&mut truth, f64::from(steps))?
        }
        Source::File(path) => {
            let script = setting::read(path)?;
            let length = arguments.length.map(|WrittenDuration(length)| length);
            let length = length.unwrap_or_else(|| setting::usual_length(&script));
            let phases = arena::phases(&stage, &script, length)?;
            (script, phases)
        }
    };
    let trial = Trial {
        arguments: &arguments,
        methods,
        weights,
        phases: &phases,
        interrupt: Interrupt::listen()?,
    };
    let report = trial.run(&mut truth, script.to_string())?;
    if let Some(path) = &arguments.log {
        let decisions = report.runs.iter().flat_map(|run| &run.decisions);
        write_log(path, decisions).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.plot {
        std::fs::write(path, report.drawing())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text(&phases));
    }
    Ok(ExitCode::SUCCESS)
}

fn write_log<'d>(
    path: &std::path::Path,
    decisions: impl Iterator<Item = &'d Decision>,
) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for decision in decisions {
        serde_json::to_writer(&mut file, decision)?;
        file.write_all(b"\n")?;
    }
    Ok(file.flush()?)
}

/// What is tried.
struct Trial<'t> {
    arguments: &'t TuneArgs,
    methods: Vec<Method>,
    weights: Option<MetaNetwork>,
    phases: &'t [Phase],
    interrupt: Interrupt,
}

impl Trial<'_> {
    fn run(&self, truth: &mut Truth<'_>, script: String) -> Result<Report> {
        let stage = truth.stage();
        let space = self.space(truth)?;
        let bar = Bar::begin();
        self.measure_grid(truth, &space, &bar)?;
        let yardstick = Yardstick::of(truth, self.phases, &space)?;
        let mut runs = Vec::new();
        for &method in &self.methods {
            bar.say(method.name());
            let surroundings = stage.surroundings();
            let seed = self.arguments.seed;
            let searcher = method.searcher_with(self.weights.as_ref(), &surroundings, seed);
            let threshold = self.arguments.threshold / 100.0;
            let trigger = Trigger { threshold, ..Trigger::default() };
            let tuner = Tuner::new(searcher, &surroundings, trigger).with_space(space.clone());
            let mut policy = Timed::new(tuner);
            let noise = self.arguments.noise / 100.0;
            let noise = Noise { step: noise, wire: 2.0 * noise, seed: self.arguments.seed };
            let best = &yardstick.best_seconds;
            let trial = arena::play(truth, self.phases, best, &mut policy, noise, &mut |done| {
                bar.at(done);
                self.go_on()
            })?;
            self.interrupt.check()?;
            let outcome = Outcome::of(&trial, self.phases, &yardstick);
            runs.push(Run::new(method, outcome, &trial, policy, self.phases));
        }
        Ok(Report::new(self.name(), truth, script, self.phases, space.len(), yardstick, runs))
    }

    /// Every candidate under every phase's conditions, so that what follows need not wait.
    fn measure_grid(&self, truth: &mut Truth<'_>, space: &Space, bar: &Bar) -> Result<()> {
        bar.say("grid of every phase");
        let total = (self.phases.len() * space.len()) as f64;
        let mut done = 0.0;
        for phase in self.phases {
            for candidate in space.candidates() {
                let seconds = truth.seconds(&phase.weather, &candidate);
                seconds.map_err(|error| phase.blamed(error))?;
                done += 1.0;
                bar.at(done / total);
                self.interrupt.check()?;
            }
        }
        Ok(())
    }

    fn space(&self, truth: &mut Truth<'_>) -> Result<Space> {
        let names = &self.arguments.strategies;
        for name in names.iter().filter(|name| *name != StrategyChoice::AUTO) {
            paceline_sync::strategy::find(name)
                .map_err(|error| UsageError::new(error.to_string()))?;
        }
        let strategies = names.iter().cloned().map(StrategyChoice).collect();
        let present = Candidate::of(&truth.stage().settings);
        let first = &self.phases[0];
        let shown = truth.shown(&first.weather, &present).map_err(|error| first.blamed(error))?;
        let space = Space::of(&shown.shape, strategies);
        Ok(if self.arguments.coarse { space.coarse() } else { space })
    }

    fn name(&self) -> String {
        let trace = self.arguments.trace.clone().unwrap_or_default();
        trace.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    fn go_on(&self) -> ControlFlow<()> {
        if self.interrupt.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Each that is wanted, once.
fn methods(wanted: &[Methods]) -> Vec<Method> {
    let each = |wanted: &Methods| match wanted {
        Methods::All => Method::ALL.to_vec(),
        Methods::One(method) => vec![*method],
    };
    let mut methods: Vec<Method> = wanted.iter().flat_map(each).collect();
    let mut seen = std::collections::HashSet::new();
    methods.retain(|method| seen.insert(*method));
    methods
}

/// A bar on a terminal; nothing elsewhere.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn begin() -> Bar {
        Bar(std::io::stderr().is_terminal().then(|| {
            // The template is a constant that indicatif accepts.
            let style = ProgressStyle::with_template("{bar:30} {percent} %  {msg}  [{elapsed}]")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(1000).with_style(style)
        }))
    }

    fn say(&self, what: &'static str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what);
        }
    }

    fn at(&self, share: f64) {
        if let Some(bar) = &self.0 {
            bar.set_position((1000.0 * share) as u64);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// So that the help text above names every script there is.
#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use paceline_tune::arena::Named;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        tune: TuneArgs,
    }

    #[test]
    fn the_help_names_every_script() {
        let help = Command::command().render_long_help().to_string();
        for named in Named::ALL {
            assert!(help.contains(named.name()), "{named}");
        }
    }

    #[test]
    fn a_log_is_explained_without_a_trace() {
        let parse = |words: &[&str]| <Command as clap::Parser>::try_parse_from(words);
        let parsed = parse(&["tune", "explain", "log.jsonl"]).ok().unwrap();
        assert!(matches!(parsed.tune.command, Some(TuneCommand::Explain(_))));
        assert!(parse(&["tune"]).is_err());
        assert!(parse(&["tune", "trace", "--method", "luck"]).is_err());
        assert!(parse(&["tune", "trace", "--method", "all", "--script", "steps"]).is_ok());
    }

    #[test]
    fn percents_that_are_none_are_refused_with_the_range() {
        let parse = |option: &str| {
            <Command as clap::Parser>::try_parse_from(["tune", "trace", option]).err()
        };
        for option in ["--noise", "--threshold"] {
            for wrong in ["nan", "-1", "300", "inf", "much"] {
                let error = parse(&format!("{option}={wrong}")).unwrap().to_string();
                assert!(error.contains("from 0 to 100"), "{error}");
            }
            assert!(
                ["0", "2.5", "100"].iter().all(|good| parse(&format!("{option}={good}")).is_none())
            );
        }
        assert!(parse("--phase=0").is_some());
    }
}
