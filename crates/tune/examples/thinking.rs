//! What thinking costs: the meta-network over its whole grid, from one setting's speed and from those of three, and a
//! tuner in a job in which nothing changes, and in one with a slow host, as a share of the time that their steps take.
//!
//! `cargo run --release -p paceline-tune --example thinking -- bench/training/profiles/resnet50.json`

use paceline_job::{
    ByteSize, Link, Rate, Settings, ViewVersion,
    graph::{Clocks, Job},
    trace::Trace,
};
use paceline_replay::ClusterConfig;
use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use paceline_tune::{
    Candidate, Method, Results, Space, Tuner,
    arena::{Named, Noise, Stage, Truth, play},
    metanet::AutoByte,
    searcher::{Known, Predicting, Question, Searcher},
    strategies,
};
use std::{error::Error, ops::ControlFlow, path::Path, time::Duration, time::Instant};

const WORKERS: usize = 8;
/// Times that a look is taken.
const TIMES: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or("bench/training/profiles/resnet50.json".into());
    let stage = stage(Path::new(&path))?;
    let mut truth = Truth::of(&stage);
    let calm = stage.calm();
    let present = Candidate::of(&stage.settings);
    let smaller = Candidate { partition: ByteSize::kib(256), ..present.clone() };
    let larger = Candidate { partition: ByteSize::mib(4), ..present.clone() };
    let mut seen = Vec::new();
    for candidate in [smaller, larger, present] {
        let (shown, seconds) = (truth.shown(&calm, &candidate)?, truth.seconds(&calm, &candidate)?);
        let mut workers = shown.workers.clone();
        workers.iter_mut().for_each(|worker| worker.seconds = seconds);
        let settings = candidate.settings(&stage.settings);
        let (view, shape) = (ViewVersion(1), shown.shape.clone());
        seen.push(JobMetrics { step: 1, view, settings, shape, workers });
    }
    looks(&stage, &seen);
    for script in [Named::Still, Named::SlowHost] {
        for method in [Method::AutoByte, Method::Replay] {
            run(&mut truth, script, method)?;
        }
    }
    Ok(())
}

fn stage(path: &Path) -> Result<Stage, Box<dyn Error>> {
    let trace = Trace::read(path)?;
    let job = Job::from_trace(&trace, &Clocks::align(&trace).clocks)?;
    let layered = job.layered.ok_or("the trace names no layers")?;
    let mut layered = layered.like_first(WORKERS).with_steps(0..1);
    layered.forget_recorded();
    let link = |rate, latency| Link { rate: Rate::from_bits_per_second(rate), latency };
    Ok(Stage {
        layered,
        racks: 1,
        rate: Rate::from_bits_per_second(10e9),
        uplink: None,
        latency: Duration::from_micros(50),
        memory: link(32e9, Duration::from_micros(5)),
        config: ClusterConfig::default(),
        settings: Settings::default(),
    })
}

/// The whole grid of all strategies, where these settings were seen under the same conditions, the last of them now.
fn looks(stage: &Stage, seen: &[JobMetrics]) {
    let Some(now) = seen.last() else { return };
    let hosts = stage.surroundings().hosts;
    let space = Space::of(&now.shape, strategies(&hosts, &stage.settings, Results::Exact));
    for count in 1..=seen.len() {
        let mut searcher = Predicting(AutoByte::new(stage.surroundings()));
        let told = &seen[seen.len() - count..];
        told.iter().for_each(|seen| searcher.tell(seen));
        let known: Vec<Known> = told
            .iter()
            .map(|seen| Known { candidate: Candidate::of(&seen.settings), speed: seen.speed() })
            .collect();
        let mut times: Vec<f64> = (0..TIMES)
            .map(|_| {
                let begin = Instant::now();
                std::hint::black_box(searcher.ask(&Question {
                    space: &space,
                    seen: now,
                    known: &known,
                }));
                1e3 * begin.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!(
            "{} candidates, {count} settings seen: {:.2} ms (median), {:.2} ms (9 of 10 below), {:.2} ms (longest)",
            space.len(),
            times[TIMES / 2],
            times[TIMES * 9 / 10],
            times[TIMES - 1],
        );
    }
}

/// A tuner whose thoughts are timed.
struct Timed {
    tuner: Tuner,
    thoughts: Vec<Duration>,
}

impl Policy for Timed {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let begin = worked();
        let proposal = self.tuner.observe(metrics);
        self.thoughts.push(worked() - begin);
        proposal
    }
}

/// What this thread has had of a processor, whatever else that did.
fn worked() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or_default())
}

fn run(truth: &mut Truth<'_>, script: Named, method: Method) -> Result<(), Box<dyn Error>> {
    let (_, phases) = script.script(truth, 250.0)?;
    let tuner = method.tuner(&truth.stage().surroundings(), 1);
    let mut timed = Timed { tuner, thoughts: Vec::new() };
    let go_on = &mut |_: f64| ControlFlow::Continue(());
    let trial = play(truth, &phases, &[], &mut timed, Noise::default(), go_on)?;
    let taken: f64 = trial.samples.iter().map(|sample| sample.seconds).sum();
    let thought: Duration = timed.thoughts.iter().sum();
    let longest = timed.thoughts.iter().max().copied().unwrap_or_default();
    println!(
        "{method}, {script}: {} steps of {:.0} ms, shown {} times; {:.0} µs of thought a step, {:.4} % of it; longest {:.1} ms",
        trial.samples.len(),
        1e3 * taken / trial.samples.len() as f64,
        timed.thoughts.len(),
        1e6 * thought.as_secs_f64() / trial.samples.len() as f64,
        100.0 * thought.as_secs_f64() / taken,
        1e3 * longest.as_secs_f64(),
    );
    Ok(())
}
