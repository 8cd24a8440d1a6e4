//! A job as a trace shows it, under the conditions that the trace or the command line gives. What is asked about it is
//! the business of the commands.

use crate::{
    carrier::{self, Peers},
    exit::UsageError,
    handing::Handing,
};
use anyhow::{Context, Result};
use clap::Args;
use paceline_job::{
    Link, Plan, Rate, WrittenDuration,
    graph::{Alignment, BuildError, Clocks, Job, wire},
    trace::{Problem, Trace},
};
use paceline_replay::{
    ClusterConfig,
    graph::{Scenario, memory, warm_up},
};
use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Steps that are played at least, where layers are known: what crosses a step shows in the next one.
const LEAST_STEPS: usize = 5;

/// By so much a replay of recorded times may miss the step that was measured before it is said.
const MOST_MISFIT: f64 = 0.05;

/// A prediction that is off by more than this share of what was measured is no basis for answers.
const MOST_OFF: f64 = 0.1;

/// Conditions that a trace may not show.
#[derive(Clone, Debug, Default, Args)]
pub struct ConditionArgs {
    /// What every host's wire carries, in payload [default: what the trace shows].
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<Rate>,

    /// What a message between hosts takes besides its bytes [default: what the trace shows].
    #[arg(long, value_name = "TIME")]
    pub latency: Option<WrittenDuration>,

    /// The plan that was in force while this was recorded, for traces that do not say [default: what the trace says].
    #[arg(long, value_name = "FILE")]
    pub in_force: Option<PathBuf>,
}

/// A job, and what its trace says about it.
pub struct Loaded {
    /// As it was recorded, its problems apart.
    pub trace: Trace,
    /// What makes one time of the workers' clocks.
    pub clocks: Clocks,
    /// Steps, measured times, layers.
    pub job: Job,
    /// The job under the trace's conditions.
    pub scenario: Scenario,
    /// How the wire's rate is known.
    pub wire: WireSource,
    /// How it is known what the memory carries that workers share.
    pub memory: MemorySource,
    /// Who takes part in operations, if the trace does not have all of them.
    pub missing: Option<Peers>,
    /// What was wrong with the trace.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// A step as it was measured, the mean over those that count. Where only lengths were recorded, what was put together from them
    /// was not measured.
    pub fn measured_ms(&self, skip: usize) -> Option<f64> {
        let measured = &self.job.measured;
        let counted = &measured[warm_up(measured.len(), skip)..];
        let sum: u64 = counted.iter().sum();
        (sum > 0 && !self.is_laid_out()).then(|| sum as f64 / counted.len() as f64 / 1e6)
    }

    /// Whether only lengths were recorded.
    pub fn is_laid_out(&self) -> bool {
        self.trace.workers.iter().any(|worker| worker.laid_out)
    }

    /// Why not to believe the graph, if it does not give the steps that were measured although everything takes as long as recorded.
    pub fn misfit(&self, skip: usize, recorded_ms: f64) -> Option<String> {
        let error = recorded_ms / self.measured_ms(skip)? - 1.0;
        (error.abs() > MOST_MISFIT).then(|| {
            format!(
                "with all times as recorded a step takes {:.0} % {} than was measured: workers began it apart, or the trace lacks something \
                 that they waited for; answers are as far off",
                100.0 * error.abs(),
                if error < 0.0 { "less" } else { "more" },
            )
        })
    }

    /// Why not to believe what engines predict of this job, if they are far from what was measured under the same conditions.
    pub fn doubt(&self, skip: usize, predicted_ms: f64) -> Option<String> {
        let error = predicted_ms / self.measured_ms(skip)? - 1.0;
        let same_conditions = self.wire != WireSource::Given;
        (same_conditions && error.abs() > MOST_OFF).then(|| {
            format!(
                "a step is predicted to take {:.0} % {} than was measured: what else went on (as a rule, others used the processors) is not in \
                 the model, and answers and plans from this recording are as far off; record again on a quieter machine",
                100.0 * error.abs(),
                if error < 0.0 { "less" } else { "more" },
            )
        })
    }
}

/// Whether workers of a trace say that all of them, missing ones too, are on one host.
pub fn met_on_one_host(trace: &Trace) -> bool {
    let views = trace.workers.iter().filter_map(|worker| worker.view.as_ref());
    let mut hosts = views.map(|view| view.workers.iter().map(|worker| &worker.host));
    let of_first: Option<BTreeSet<_>> = hosts.next().map(Iterator::collect);
    of_first.is_some_and(|hosts| hosts.len() == 1)
}

/// A trace, as far as steps can be made of it.
pub struct Examined {
    /// As it was recorded, its problems apart.
    pub trace: Trace,
    /// What makes one time of the workers' clocks.
    pub clocks: Clocks,
    /// Its steps.
    pub job: Result<Job, BuildError>,
    /// Everything that is odd about it, wherever that showed: whatever command looks at it says the same.
    pub problems: Vec<Problem>,
}

/// Read a trace, put it on one clock, and make steps of it, or of the one that is given.
pub fn examine(path: &Path, step: Option<u64>) -> Result<Examined> {
    let mut trace = Trace::read(path)?;
    let Alignment { clocks, problems: of_clocks, .. } = Clocks::align(&trace);
    if let Some(number) = step {
        keep_step(&mut trace, number)?;
    }
    let job = Job::from_trace(&trace, &clocks);
    let mut problems = std::mem::take(&mut trace.problems);
    problems.extend(of_clocks);
    match &job {
        Ok(job) => problems.extend(job.problems.iter().cloned()),
        Err(error) => {
            let text = format!("it cannot be replayed: {error}");
            problems.push(Problem { place: path.display().to_string(), text, times: 1 });
        }
    }
    Ok(Examined { trace, clocks, job, problems })
}

/// Read a trace and make of it what can be played.
pub fn load(path: &Path, conditions: &ConditionArgs) -> Result<Loaded> {
    load_step(path, conditions, None)
}

/// The same of one of its steps, by its number, if one is given.
pub fn load_step(path: &Path, conditions: &ConditionArgs, step: Option<u64>) -> Result<Loaded> {
    let Examined { trace, clocks, job, mut problems } = examine(path, step)?;
    let mut job = job.with_context(|| format!("no step can be made of {}", path.display()))?;
    if let Some(layered) = job.layered.take() {
        let layered = layered.repeated(LEAST_STEPS);
        job.graph = layered.graph();
        // What was measured is repeated with the steps, so that the same ones are compared.
        let measured = job.measured.iter().copied().cycle();
        job.measured = measured.take(layered.steps()).collect();
        job.layered = Some(layered);
    }
    let views = trace.workers.iter().filter_map(|worker| worker.view.as_ref());
    let met = views.map(|view| view.measured).next().unwrap_or_default();
    let seen = wire(&trace, &clocks);
    let source = match (conditions.bandwidth, seen, met.wire) {
        (Some(_), ..) => WireSource::Given,
        (None, Some(_), _) => WireSource::Messages,
        (None, None, Some(_)) => WireSource::Meeting,
        (None, None, None) => WireSource::Nowhere,
    };
    let known = seen.or(met.wire).unwrap_or_else(usual_wire);
    let latency = conditions.latency.map_or(known.latency, |WrittenDuration(latency)| latency);
    let rate = conditions.bandwidth.unwrap_or(known.rate);
    let settings = match &conditions.in_force {
        Some(path) => {
            let plan = plan(path)?;
            for name in fuse(&plan, &mut job) {
                let text = "the plan sends it together with others, and the trace does not have it";
                let place = format!("tensor {name}");
                problems.push(Problem { place, text: text.to_string(), times: 1 });
            }
            plan.settings
        }
        None => job.settings.clone().unwrap_or_default(),
    };
    let handing = Handing::of(None, &job);
    job.layered = job.layered.map(|layered| layered.posting(handing.time()));
    let mut scenario = Scenario {
        graph: job.graph.clone(),
        settings,
        wire: Link { rate, latency },
        memory: met.memory.unwrap_or_else(usual_memory),
        met: met.memory,
        config: ClusterConfig::default(),
    };
    // Operations of others do not show what ours would take.
    let ours = trace.workers.iter().any(|worker| worker.view.is_some());
    let said = trace.workers.iter().find_map(|worker| worker.memory);
    let missing = carrier::missing(&trace, &job, source);
    // Nor do operations of which some workers are missing.
    let shows = ours && said.is_none() && missing.is_none();
    let shown = shows.then(|| memory(&scenario)).flatten();
    let memory_source = match (said, shown, met.memory) {
        (Some(_), ..) => MemorySource::Prediction,
        (None, Some(_), _) => MemorySource::Operations,
        (None, None, Some(_)) => MemorySource::Meeting,
        (None, None, None) => MemorySource::Usual,
    };
    scenario.memory = said.or(shown).unwrap_or(scenario.memory);
    Ok(Loaded {
        trace,
        clocks,
        job,
        scenario,
        wire: source,
        memory: memory_source,
        missing,
        problems,
    })
}

fn keep_step(trace: &mut Trace, number: u64) -> Result<()> {
    let steps = || trace.workers.iter().flat_map(|worker| &worker.steps).map(|step| step.number);
    if !steps().any(|step| step == number) {
        let text = match (steps().min(), steps().max()) {
            (Some(first), Some(last)) => format!("the trace has steps {first} to {last}"),
            _ => "the trace marks no steps".to_string(),
        };
        return Err(UsageError::new(format!("--step {number}: {text}")).into());
    }
    for worker in &mut trace.workers {
        worker.steps.retain(|step| step.number == number);
    }
    Ok(())
}

/// Send together what a plan says; gives back what the job does not have.
fn fuse(plan: &Plan, job: &mut Job) -> Vec<String> {
    let Some(layered) = job.layered.as_mut().filter(|_| !plan.fusion.is_empty()) else {
        return Vec::new();
    };
    let unknown = layered.fuse(&plan.fusion);
    job.graph = layered.graph();
    unknown
}

/// A job as a plan would have it, and what of the plan has no part in that.
pub fn planned(loaded: &Loaded, path: &Path) -> Result<(Scenario, Vec<String>)> {
    let plan = plan(path)?;
    let mut job = loaded.job.clone();
    let own_buckets = job.layered.as_ref().is_some_and(|layered| layered.own_buckets);
    let mut left_out = Vec::new();
    if !plan.fusion.is_empty() && (job.layered.is_none() || own_buckets) {
        let why = if own_buckets {
            "the program fills buckets of its own"
        } else {
            "the trace names no layers"
        };
        left_out.push(format!("{why}, so what the plan sends together is not looked at"));
    }
    let unknown = fuse(&plan, &mut job);
    if !unknown.is_empty() {
        left_out.push(format!(
            "the trace does not have tensors that the plan sends: {}",
            unknown.join(", ")
        ));
    }
    if !plan.batch.is_whole() {
        left_out.push("the plan's passes over parts of the batch are not played".to_string());
    }
    let scenario =
        Scenario { graph: job.graph, settings: plan.settings, ..loaded.scenario.clone() };
    Ok((scenario, left_out))
}

/// How the rate of wires is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireSource {
    /// The command line says so.
    Given,
    /// Messages of the trace show it.
    Messages,
    /// Workers measured it when they met.
    Meeting,
    /// It is not: what depends on it cannot be predicted.
    Nowhere,
}

impl fmt::Display for WireSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireSource::Given => "as given",
            WireSource::Messages => "as its messages show",
            WireSource::Meeting => "as measured when workers met",
            WireSource::Nowhere => "unknown; give --bandwidth",
        })
    }
}

/// How it is known what memory carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// The trace is a prediction, which says what it was made with.
    Prediction,
    /// Recorded operations show it.
    Operations,
    /// Workers measured it when they met.
    Meeting,
    /// It is not: what is usual is taken.
    Usual,
}

impl fmt::Display for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemorySource::Prediction => "as it was predicted with",
            MemorySource::Operations => "as its operations show",
            MemorySource::Meeting => "as measured when workers met",
            MemorySource::Usual => "as usual",
        })
    }
}

/// Where nothing is known of wires. Only the latency is ever used.
fn usual_wire() -> Link {
    Link { rate: Rate::from_bits_per_second(10e9), latency: Duration::from_micros(50) }
}

/// Where nothing is known of memory: about what a copy does.
fn usual_memory() -> Link {
    Link { rate: Rate::from_bytes_per_second(4e9), latency: Duration::from_micros(5) }
}

fn plan(path: &Path) -> Result<Plan> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| UsageError::new(format!("the plan {}: {error}", path.display())))?;
    Plan::parse(&text)
        .map_err(|error| UsageError::new(format!("the plan {}: {error}", path.display())).into())
}
