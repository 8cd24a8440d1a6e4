//! A plan in real time: the program is run without and with it, in turn, and what its traces say is compared with what
//! was predicted. How workers are run is `paceline run`'s business.

use super::OptimizeArgs;
use crate::scenario::{self, ConditionArgs};
use anyhow::{Context, Result, bail};
use paceline_job::{Plan, Settings};
use serde::Serialize;
use std::{path::Path, process::Command};

/// Runs of each kind: a machine that is busy for a while is busy for both.
const ROUNDS: usize = 2;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verified {
    /// A step without the plan, measured.
    pub measured_before_ms: f64,
    /// A step with the plan, measured.
    pub measured_after_ms: f64,
    /// A step with the plan as a replay of the run without it predicts it, over the same without.
    pub predicted_ratio: f64,
    /// The same, measured.
    pub measured_ratio: f64,
}

impl Verified {
    /// For people.
    pub fn text(&self) -> String {
        format!(
            "Measured: {:.2} ms before, {:.2} ms after ({:+.1}%); predicted {:+.1}%.\n",
            self.measured_before_ms,
            self.measured_after_ms,
            100.0 * (self.measured_ratio - 1.0),
            100.0 * (self.predicted_ratio - 1.0),
        )
    }
}

/// Run the program `ROUNDS` times without and with the plan.
pub fn run(arguments: &OptimizeArgs, before: &Settings, workers: usize) -> Result<Verified> {
    let output = arguments.output.as_deref().context("--verify needs --output")?;
    let folder = tempfile::tempdir()?;
    let present = folder.path().join("before.toml");
    let plan = Plan { settings: before.clone(), ..Plan::default() };
    std::fs::write(&present, plan.to_toml())?;
    let (mut without, mut with, mut predicted) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (plan, steps, name) in
            [(present.as_path(), &mut without, "before"), (output, &mut with, "after")]
        {
            let trace = folder.path().join(format!("{name}{round}"));
            eprintln!("Running the program {name} ({} of {ROUNDS}) ...", round + 1);
            train(arguments, workers, plan, &trace)?;
            steps.extend(measured(&trace, arguments)?);
        }
        predicted.push(predict(arguments, &folder.path().join(format!("before{round}")), output)?);
    }
    let (measured_before_ms, measured_after_ms) = (median(&mut without), median(&mut with));
    Ok(Verified {
        measured_before_ms,
        measured_after_ms,
        predicted_ratio: median(&mut predicted),
        measured_ratio: measured_after_ms / measured_before_ms,
    })
}

/// One run under `paceline run`, by this very program.
fn train(arguments: &OptimizeArgs, workers: usize, plan: &Path, trace: &Path) -> Result<()> {
    let this = std::env::current_exe().context("this program cannot be found again")?;
    let status = Command::new(this)
        .args(["run", "--quiet", "-n", &workers.to_string(), "--plan"])
        .arg(plan)
        .arg("--trace")
        .arg(trace)
        .arg("--")
        .args(&arguments.program)
        // What the program says must not get between results.
        .stdout(std::io::stderr())
        .status()
        .context("the program of --verify cannot be run")?;
    if !status.success() {
        bail!("the program of --verify failed; run it by itself to see why");
    }
    Ok(())
}

/// Milliseconds of each step but the first.
fn measured(trace: &Path, arguments: &OptimizeArgs) -> Result<Vec<f64>> {
    let loaded = scenario::load(trace, &arguments.conditions)?;
    let steps: Vec<f64> =
        loaded.job.measured.iter().skip(1).map(|nanoseconds| *nanoseconds as f64 / 1e6).collect();
    if steps.is_empty() {
        bail!("the program of --verify took fewer than two steps; let it take some dozen");
    }
    Ok(steps)
}

/// What the plan makes of a step, by replay of a run without it.
fn predict(arguments: &OptimizeArgs, trace: &Path, plan: &Path) -> Result<f64> {
    let step = |plan: Option<&Path>| -> Result<f64> {
        let plan = plan.map(Path::to_path_buf);
        let conditions = ConditionArgs { plan, ..arguments.conditions.clone() };
        let loaded = scenario::load(trace, &conditions)?;
        let skip = usize::from(loaded.scenario.graph.steps > 2);
        Ok(loaded.scenario.play()?.step_ms(skip))
    };
    Ok(step(Some(plan))? / step(None)?)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
