//! A plan in real time: the program is run without and with it, in turn, and what its traces say is compared with what
//! was predicted. How workers are run is `paceline run`'s business.

use super::OptimizeArgs;
use crate::{handing::Handing, scenario};
use anyhow::{Context, Result, bail};
use paceline_job::{Plan, Settings, graph::layered::Layered};
use paceline_replay::graph::Scenario;
use serde::Serialize;
use std::{path::Path, process::Command};

/// Runs of each kind, in turn: a machine that is busy for a while is busy for both. Fewer than three have no middle.
const ROUNDS: usize = 3;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verified {
    /// A step without the plan, measured.
    pub measured_before_ms: Spread,
    /// A step with the plan, measured.
    pub measured_after_ms: Spread,
    /// A step with the plan over one without, as replays of each run without it predict it.
    pub predicted_ratio: Spread,
    /// The same, measured: the middle with over the middle without.
    pub measured_ratio: f64,
    /// Whether runs with and without the plan differ by less than runs of one kind do: then nothing was shown.
    pub inside_spread: bool,
}

impl Verified {
    fn of(before: &[f64], after: &[f64], predicted: &[f64]) -> Verified {
        let (before, after) = (Spread::of(before), Spread::of(after));
        Verified {
            measured_before_ms: before,
            measured_after_ms: after,
            predicted_ratio: Spread::of(predicted),
            measured_ratio: after.median / before.median,
            inside_spread: before.overlaps(after),
        }
    }

    /// What to do with the plan.
    pub fn verdict(&self) -> Verdict {
        match (self.inside_spread, self.measured_ratio < 1.0) {
            (true, _) => Verdict::Unclear,
            (false, true) => Verdict::Faster,
            (false, false) => Verdict::Slower,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        let milliseconds = |name: &str, Spread { median, lowest, highest }: Spread| {
            format!("{name} {median:.2} ms ({lowest:.2} to {highest:.2})")
        };
        let Spread { median, lowest, highest } = self.predicted_ratio;
        format!(
            "Measured in {ROUNDS} runs of each kind, the middle with the lowest and the highest: {}, {}: {:+.1} %{}.\n\
             Predicted anew from the runs before, whose times are not those of the trace: {:+.1} % ({:+.1} to {:+.1}).\n",
            milliseconds("before", self.measured_before_ms),
            milliseconds("after", self.measured_after_ms),
            percent(self.measured_ratio),
            if self.inside_spread { ", which is inside the spread and shows nothing" } else { "" },
            percent(median),
            percent(lowest),
            percent(highest),
        )
    }
}

/// What runs with and without a plan come down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All runs with it were faster.
    Faster,
    /// All runs with it were slower.
    Slower,
    /// Neither.
    Unclear,
}

/// What several runs said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Of the run in the middle.
    pub median: f64,
    /// Of the run with the lowest.
    pub lowest: f64,
    /// Of the run with the highest.
    pub highest: f64,
}

impl Spread {
    fn of(runs: &[f64]) -> Spread {
        let lowest = runs.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Spread { median: median(runs), lowest, highest }
    }

    fn overlaps(self, other: Spread) -> bool {
        self.lowest <= other.highest && other.lowest <= self.highest
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
        for (plan, runs, name) in
            [(present.as_path(), &mut without, "before"), (output, &mut with, "after")]
        {
            let trace = folder.path().join(format!("{name}{round}"));
            eprintln!("Running the program {name} ({} of {ROUNDS}) ...", round + 1);
            train(arguments, workers, plan, &trace)?;
            runs.push(median(&measured(&trace, arguments)?));
        }
        predicted.push(predict(arguments, &folder.path().join(format!("before{round}")), output)?);
    }
    Ok(Verified::of(&without, &with, &predicted))
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

/// What the plan makes of a step, by replay of a run without it; handing operations over counts as it does for the planner.
fn predict(arguments: &OptimizeArgs, trace: &Path, plan: &Path) -> Result<f64> {
    let loaded = scenario::load(trace, &arguments.conditions)?;
    let post = Handing::of(arguments.post, &loaded.job).time();
    let layered = loaded.job.layered.map(|layered| layered.posting(post));
    let plan = Plan::parse(&std::fs::read_to_string(plan)?).context("the plan just written")?;
    ratio(loaded.scenario, layered, &plan)
}

/// A step of these layers with a plan over one without.
fn ratio(mut scenario: Scenario, layered: Option<Layered>, plan: &Plan) -> Result<f64> {
    let step = |scenario: &Scenario| -> Result<f64> {
        let skip = scenario.graph.warm_up();
        Ok(scenario.play()?.step_ms(skip))
    };
    if let Some(layered) = &layered {
        scenario.graph = layered.graph();
    }
    let before = step(&scenario)?;
    if let Some(mut layered) = layered {
        layered.fuse(&plan.fusion);
        scenario.graph = layered.graph();
    }
    scenario.settings = plan.settings.clone();
    Ok(step(&scenario)? / before)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{
        Dtype, Fusion, Link, Rate,
        graph::layered::LayerTimes,
        trace::{Layer, Tensor},
    };
    use paceline_replay::ClusterConfig;
    use std::time::Duration;

    #[test]
    fn what_runs_of_one_kind_differ_by_is_no_gain() {
        let noise = Verified::of(&[150.0, 90.0, 100.0], &[65.0, 95.0, 60.0], &[1.0, 0.99, 1.0]);
        assert_eq!(
            noise.measured_before_ms,
            Spread { median: 100.0, lowest: 90.0, highest: 150.0 }
        );
        assert_eq!(noise.measured_ratio, 0.65);
        assert!(noise.inside_spread);
        assert_eq!(noise.verdict(), Verdict::Unclear);
        assert!(noise.text().contains("-35.0 %, which is inside the spread"), "{}", noise.text());
        assert!(noise.text().contains("anew from the runs before"), "{}", noise.text());
    }

    #[test]
    fn fewer_operations_to_hand_over_count_in_what_is_predicted_anew() {
        let tensor = |name: &str| Tensor { name: name.into(), elements: 64, dtype: Dtype::F32 };
        let layer = Layer {
            name: "a".into(),
            tensors: vec![tensor("w"), tensor("b")],
            activation_bytes: 0,
        };
        let times = LayerTimes { forward: 100_000, backward: 400_000, ..LayerTimes::default() };
        let hosts = vec!["one".to_string(); 2];
        let layered = Layered::alike(vec![layer], &[times], hosts, 5);
        let link = Link { rate: Rate::from_bits_per_second(10e9), latency: Duration::ZERO };
        let scenario = Scenario {
            graph: layered.graph(),
            settings: Settings::default(),
            wire: link,
            memory: link,
            met: None,
            config: ClusterConfig::default(),
        };
        let groups = vec![vec!["w".to_string(), "b".to_string()]];
        let plan = Plan { fusion: Fusion { groups }, ..Plan::default() };
        let posting = layered.clone().posting(Duration::from_micros(100));
        let spared = ratio(scenario.clone(), Some(posting), &plan).unwrap();
        assert!((0.75..0.85).contains(&spared), "a fifth of a step is spared: {spared}");
        let free = ratio(scenario, Some(layered), &plan).unwrap();
        assert!(free > 0.99, "nothing is spared where handing over takes nothing: {free}");
    }

    #[test]
    fn runs_that_are_all_shorter_show_a_gain() {
        let gain = Verified::of(&[100.0, 104.0, 98.0], &[80.0, 84.0, 78.0], &[0.8, 0.81, 0.8]);
        assert!(!gain.inside_spread);
        assert_eq!(gain.verdict(), Verdict::Faster);
        let loss = Verified::of(&[80.0, 84.0, 78.0], &[100.0, 104.0, 98.0], &[0.8, 0.81, 0.8]);
        assert_eq!(loss.verdict(), Verdict::Slower);
        assert!(!gain.text().contains("inside the spread"), "{}", gain.text());
    }
}
