//! `paceline trace`: what is in a recorded run, and what is odd about it. It counts and prints; nothing is predicted.

use crate::scenario::{Examined, examine};
use anyhow::Result;
use clap::Args;
use paceline_job::trace::{
    Collective, Kind, Lane, LaneKind, Phase, Problem, Stamp, Trace, WorkerTrace,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Steps, lanes and problems that are listed; JSON has all of them.
const LISTED: usize = 12;

/// Workers that are described one by one; the others only count.
const WORKERS_LISTED: usize = 4;

/// Show what a recorded run holds: workers, steps, collectives, and what is wrong with it.
///
/// PATH is a file of one worker or a folder with a file for each. Read are traces of PyTorch's profiler, Chakra
/// traces (.et, JSON), execution traces, Horovod timelines and tables of layers; plain or compressed.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline trace traces/
  paceline trace rank0.pt.trace.json.gz
  paceline trace layers.csv --json

Exit codes:
  0  shown, whatever was found wrong with it
  1  nothing could be read
  2  the command line is wrong")]
pub struct TraceArgs {
    /// A file, or a folder with a file for each worker.
    pub path: PathBuf,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print what there is.
pub fn run(arguments: TraceArgs) -> Result<ExitCode> {
    let Examined { trace, problems, .. } = examine(&arguments.path, None)?;
    let contents = Contents::of(&trace, problems);
    let text = if arguments.json {
        serde_json::to_string_pretty(&contents)? + "\n"
    } else {
        contents.text()
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever closed it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        result => Ok(result.map(|()| ExitCode::SUCCESS)?),
    }
}

/// What a trace holds.
#[derive(Debug, Serialize)]
struct Contents {
    /// How many workers the job had, as far as that is known.
    world: usize,
    missing_workers: usize,
    workers: Vec<WorkerContents>,
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct WorkerContents {
    rank: u32,
    host: String,
    world: Option<u32>,
    layers: usize,
    lanes: Vec<LaneContents>,
    spans: BTreeMap<&'static str, usize>,
    steps: Vec<StepContents>,
    collectives: Vec<CollectiveContents>,
}

#[derive(Debug, Serialize)]
struct LaneContents {
    #[serde(flatten)]
    lane: Lane,
    spans: usize,
    /// From the first begin to the last end, where the file has times.
    covers_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct StepContents {
    number: u64,
    ms: f64,
    collectives: usize,
    collective_bytes: u64,
}

/// All collectives of one kind in one group.
#[derive(Debug, Serialize)]
struct CollectiveContents {
    operation: String,
    group: String,
    dtype: Option<String>,
    count: usize,
    bytes: u64,
    /// Where the file has times.
    ms: Option<f64>,
}

impl Contents {
    fn of(trace: &Trace, problems: Vec<Problem>) -> Contents {
        let workers = trace.workers.iter().map(WorkerContents::of).collect();
        Contents { world: trace.world(), missing_workers: trace.missing(), workers, problems }
    }

    fn text(&self) -> String {
        let mut text = workers_there(self.workers.len(), self.world) + "\n";
        for worker in self.workers.iter().take(WORKERS_LISTED) {
            text += &worker.text();
        }
        text += &more(self.workers.len(), WORKERS_LISTED, "worker");
        if self.problems.is_empty() {
            return text + "\nNothing is wrong with it.\n";
        }
        text += &format!("\n{}:\n", count(self.problems.len(), "problem"));
        for problem in self.problems.iter().take(LISTED) {
            text += &format!("  {problem}\n");
        }
        text + &more(self.problems.len(), LISTED, "problem")
    }
}

impl WorkerContents {
    fn of(worker: &WorkerTrace) -> WorkerContents {
        let mut spans = BTreeMap::new();
        let mut collectives: BTreeMap<_, CollectiveContents> = BTreeMap::new();
        let mut steps: Vec<StepContents> = (worker.steps.iter())
            .map(|step| StepContents {
                number: step.number,
                ms: milliseconds(step.end.since(step.begin)),
                collectives: 0,
                collective_bytes: 0,
            })
            .collect();
        for span in &worker.spans {
            *spans.entry(kind_name(&span.kind)).or_default() += 1;
            let Kind::Collective(collective) = &span.kind else { continue };
            // What was launched in a step belongs to it, even if a device did it later.
            let launches = span.after.iter().map(|id| &worker.spans[id.0 as usize]);
            let launch = launches.filter(|it| matches!(it.kind, Kind::Launch)).map(|it| it.begin);
            let begin = launch.min().unwrap_or(span.begin);
            let step = worker.steps.iter().position(|it| it.begin <= begin && begin < it.end);
            if let Some(step) = step.map(|at| &mut steps[at]) {
                step.collectives += 1;
                step.collective_bytes += collective.bytes;
            }
            let total = collectives
                .entry((
                    collective.group.clone(),
                    collective.operation.clone(),
                    collective.dtype.map(|it| it.name()),
                ))
                .or_insert_with(|| CollectiveContents::of(collective));
            total.count += 1;
            total.bytes += collective.bytes;
            if worker.has_times() {
                *total.ms.get_or_insert_default() += milliseconds(span.length);
            }
        }
        WorkerContents {
            rank: worker.rank.0,
            host: worker.host.clone(),
            world: worker.world,
            layers: worker.layers.len(),
            lanes: lanes(worker),
            spans,
            steps,
            collectives: collectives.into_values().collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("\nrank {} on {}\n", self.rank, self.host);
        let spans: Vec<String> =
            self.spans.iter().map(|(kind, number)| format!("{number} {kind}")).collect();
        text += &format!("  spans: {}\n", spans.join(", "));
        if self.layers > 0 {
            text += &format!("  {}\n", count(self.layers, "layer"));
        }
        for lane in self.lanes.iter().take(LISTED) {
            let kind = format!("{:?}", lane.lane.kind).to_lowercase();
            text += &format!("  {kind:<8}{:<34}{:>8} spans", lane.lane.name, lane.spans);
            text += &lane.covers_ms.map(|ms| format!("{ms:>14.3} ms")).unwrap_or_default();
            text.push('\n');
        }
        text += &more(self.lanes.len(), LISTED, "lane");
        for step in self.steps.iter().take(LISTED) {
            text += &format!("  step {:<8}{:>12.3} ms", step.number, step.ms);
            if step.collectives > 0 {
                let megabytes = step.collective_bytes as f64 / 1e6;
                let collectives = count(step.collectives, "collective");
                text += &format!("   {collectives} of {megabytes:.3} MB");
            }
            text.push('\n');
        }
        text += &more(self.steps.len(), LISTED, "step");
        for it in &self.collectives {
            let group =
                if it.group.is_empty() { String::new() } else { format!(" in `{}`", it.group) };
            let dtype = it.dtype.as_deref().map(|dtype| format!(" of {dtype}")).unwrap_or_default();
            text += &format!("  {} {}{dtype}{group}: {} bytes", it.count, it.operation, it.bytes);
            text += &it.ms.map(|ms| format!(", {ms:.3} ms")).unwrap_or_default();
            text.push('\n');
        }
        text
    }
}

impl CollectiveContents {
    fn of(collective: &Collective) -> CollectiveContents {
        CollectiveContents {
            operation: collective.operation.to_string(),
            group: collective.group.to_string(),
            dtype: collective.dtype.map(|dtype| dtype.to_string()),
            count: 0,
            bytes: 0,
            ms: None,
        }
    }
}

fn lanes(worker: &WorkerTrace) -> Vec<LaneContents> {
    let mut ends: Vec<Option<_>> = vec![None; worker.lanes.len()];
    let mut counts = vec![0; worker.lanes.len()];
    for span in &worker.spans {
        let at = span.lane.0 as usize;
        counts[at] += 1;
        // Spans are in the order of their begins.
        let (_, end) = ends[at].get_or_insert((span.begin, span.end()));
        *end = span.end().max(*end);
    }
    let timed = worker.has_times();
    let contents = worker.lanes.iter().zip(counts).zip(ends);
    let lane = |((lane, spans), covered): ((&Lane, usize), Option<(_, Stamp)>)| {
        let covered = covered.map_or(0.0, |(begin, end)| milliseconds(end.since(begin)));
        let covers_ms = timed.then_some(covered);
        LaneContents { lane: lane.clone(), spans, covers_ms }
    };
    let mut lanes: Vec<LaneContents> = contents.map(lane).collect();
    lanes.sort_by_cached_key(|contents| place(&contents.lane));
    lanes
}

/// Where a lane is listed: by its kind and name, whichever was seen first, and worker 10 after worker 9.
fn place(lane: &Lane) -> (LaneKind, String, Option<u64>) {
    let name = lane.name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    (lane.kind, name.to_owned(), lane.name[name.len()..].parse().ok())
}

fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Work(Phase::Forward) => "forward",
        Kind::Work(Phase::Backward) => "backward",
        Kind::Work(Phase::Update) => "update",
        Kind::Work(Phase::Other) => "other work",
        Kind::Launch => "launch",
        Kind::Wait => "wait",
        Kind::Post => "post",
        Kind::Collective(_) => "collective",
        Kind::Message(_) => "message",
        Kind::Scope => "scope",
    }
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// How many workers are there, and how many are not.
pub fn workers_there(there: usize, world: usize) -> String {
    match world.saturating_sub(there) {
        0 => count(there, "worker"),
        missing => format!("{there} of {} ({missing} missing)", count(world, "worker")),
    }
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn more(number: usize, listed: usize, noun: &str) -> String {
    match number.checked_sub(listed) {
        None | Some(0) => String::new(),
        Some(rest) => format!("  and {rest} more {noun}{}\n", if rest == 1 { "" } else { "s" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_table_of_layers_holds_is_counted() {
        let table = "name,forward_ms,backward_ms,tensors\na,1,2,10\nb,3,4,20\n";
        let trace = Trace::read_bytes("layers.csv", table.into()).unwrap();
        let contents = Contents::of(&trace, Vec::new());
        let worker = &contents.workers[0];
        assert_eq!((worker.layers, worker.spans["forward"], worker.spans["backward"]), (2, 2, 2));
        assert_eq!((worker.steps[0].ms, worker.lanes[0].covers_ms), (10.0, Some(10.0)));
        let text = contents.text();
        assert!(text.contains("step 0") && text.contains("10.000 ms"), "{text}");
        assert!(text.ends_with("Nothing is wrong with it.\n"), "{text}");
    }

    #[test]
    fn lanes_are_listed_by_what_they_are_and_not_by_who_was_first() {
        let lane = |kind, name: &str| Lane { name: name.to_owned(), kind };
        let mut lanes = [
            lane(LaneKind::Network, "to worker 10"),
            lane(LaneKind::Network, "to worker 9"),
            lane(LaneKind::Network, "operations"),
            lane(LaneKind::Thread, "main thread"),
            lane(LaneKind::Network, "from worker 1"),
        ];
        lanes.sort_by_cached_key(place);
        let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        assert_eq!(
            names,
            ["main thread", "from worker 1", "operations", "to worker 9", "to worker 10"]
        );
    }

    #[test]
    fn what_has_no_times_is_described_without_any() {
        let json = r#"{"schema": "1.1.0", "nodes": [
            {"id": 2, "name": "aten::mul", "ctrl_deps": 1},
            {"id": 3, "name": "nccl:all_reduce", "ctrl_deps": 1,
             "inputs": {"shapes": [[10]], "types": ["Tensor(float)"]}}]}"#;
        let trace = Trace::read_bytes("et.json", json.into()).unwrap();
        let contents = Contents::of(&trace, Vec::new());
        let text = contents.text();
        assert!(text.contains("1 all_reduce of f32: 40 bytes\n"), "{text}");
        assert!(!text.contains(" ms"), "{text}");
        assert_eq!(contents.workers[0].lanes[0].covers_ms, None);
    }
}
