//! From a trace to a graph. Where the trace says which layers the model has, steps are rebuilt from the times of layers, so
//! that other settings can be tried; what does not fit is reported.

use super::{
    Graph,
    clocks::Clocks,
    edges, handing,
    layered::{Group, Layered, LayeredWorker},
    observed,
    times::StepTimes,
};
use crate::{
    CollectiveKind, Fusion, Rank, Settings,
    trace::{Collective, Kind, Layer, Problem, Span, Stamp, Step, Tensor, Trace, WorkerTrace},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// A job as a graph, with what else its trace says about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Its steps.
    pub graph: Graph,
    /// The layers that the graph was made from, where there are layers.
    pub layered: Option<Layered>,
    /// What was in force, where the trace says so.
    pub settings: Option<Settings>,
    /// What handing an operation over took a worker's thread, in the middle. Known where that thread computed the layers too:
    /// then their times contain it.
    pub post: Option<Duration>,
    /// Nanoseconds of each step in the graph, as measured, on the slowest worker.
    pub measured: Vec<u64>,
    /// What did not fit.
    pub problems: Vec<Problem>,
}

/// A trace that no graph can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Give a trace with at least one worker.
    #[error("the trace has no worker")]
    NoWorker,
    /// Record whole steps: `paceline run --trace`, or PyTorch's profiler with `prof.step()`.
    #[error("the trace has no whole step that all of its workers recorded; record several steps")]
    NoStep,
    /// Ranks are missing: collect the files of all workers.
    #[error("worker {0} is missing from the trace, and the graph needs all from 0 on")]
    MissingWorker(Rank),
}

impl Job {
    /// The steps that all workers of the trace recorded, with clocks corrected by `clocks`.
    pub fn from_trace(trace: &Trace, clocks: &Clocks) -> Result<Job, BuildError> {
        if trace.workers.is_empty() {
            return Err(BuildError::NoWorker);
        }
        let settings = trace.workers.iter().find_map(|worker| worker.view.as_ref());
        let settings = settings.map(|view| view.settings.clone());
        if trace.workers.iter().all(|worker| worker.steps.is_empty()) {
            return Job::from_trace(&as_one_step(trace)?, clocks);
        }
        let steps = common_steps(trace);
        if steps.is_empty() {
            return Err(BuildError::NoStep);
        }
        if trace.workers.iter().any(|worker| worker.layers.is_empty()) {
            return Ok(Job { settings, ..observed::job(trace, clocks, &steps)? });
        }
        for (place, worker) in trace.workers.iter().enumerate() {
            if worker.rank.index() != place {
                return Err(BuildError::MissingWorker(Rank(place as u32)));
            }
        }
        let mut building = Building { trace, clocks, steps: &steps, problems: Vec::new() };
        let layered = building.layered();
        let measured = measured(trace, clocks, &steps);
        Ok(Job {
            graph: layered.graph(),
            layered: Some(layered),
            settings,
            post: handing::post(trace),
            measured,
            problems: building.problems,
        })
    }
}

/// A trace without steps, as one step from its first span to its last.
fn as_one_step(trace: &Trace) -> Result<Trace, BuildError> {
    let mut trace = trace.clone();
    for worker in &mut trace.workers {
        let begin = worker.spans.iter().map(|span| span.begin).min().ok_or(BuildError::NoStep)?;
        let end = worker.spans.iter().map(Span::end).max().ok_or(BuildError::NoStep)?;
        worker.steps.push(Step { number: 0, begin, end });
    }
    Ok(trace)
}

/// Numbers of steps that every worker recorded, ascending.
fn common_steps(trace: &Trace) -> Vec<u64> {
    let numbers = |worker: &WorkerTrace| -> Vec<u64> {
        worker.steps.iter().map(|step| step.number).collect()
    };
    let mut workers = trace.workers.iter();
    let mut common = workers.next().map(numbers).unwrap_or_default();
    for worker in workers {
        let theirs = numbers(worker);
        common.retain(|number| theirs.contains(number));
    }
    common.sort_unstable();
    common.dedup();
    common
}

/// Nanoseconds from the end of the step before to the end of each step, on the slowest worker; for the first one from
/// its own begin.
pub(super) fn measured(trace: &Trace, clocks: &Clocks, steps: &[u64]) -> Vec<u64> {
    let edge = |number: u64, of: fn(&Step) -> Stamp| {
        let edges = trace.workers.iter().filter_map(|worker| {
            let step = worker.steps.iter().find(|step| step.number == number)?;
            Some(clocks.common(worker.rank, of(step)))
        });
        edges.max().unwrap_or_default()
    };
    let mut lengths = Vec::with_capacity(steps.len());
    for (place, number) in steps.iter().enumerate() {
        let follows = place > 0 && steps[place - 1] + 1 == *number;
        let from = if follows {
            edge(steps[place - 1], |step| step.end)
        } else {
            edge(*number, |step| step.begin)
        };
        lengths.push(edge(*number, |step| step.end).since(from));
    }
    lengths
}

struct Building<'t> {
    trace: &'t Trace,
    clocks: &'t Clocks,
    steps: &'t [u64],
    problems: Vec<Problem>,
}

/// An operation of one step on one worker.
struct Seen<'t> {
    collective: &'t Collective,
    post: Stamp,
    over: Stamp,
}

impl Building<'_> {
    fn layered(&mut self) -> Layered {
        let first = &self.trace.workers[0];
        let layers = first.layers.clone();
        let mut workers = Vec::with_capacity(self.trace.workers.len());
        let mut operations: Vec<Vec<Vec<Seen<'_>>>> = Vec::new();
        for worker in &self.trace.workers {
            if worker.layers != layers {
                self.report(worker, "has other layers than worker 0; its own are left out");
            }
            workers.push(self.worker(worker, &layers));
            operations.push(self.steps.iter().map(|step| seen(worker, *step)).collect());
        }
        let scheduled = operations[0].iter().flatten().any(|seen| seen.collective.priority != 0);
        let mut layered = Layered {
            layers,
            workers,
            crosses_step: first.crosses_step,
            scheduled,
            ..Layered::default()
        };
        layered.groups = self.groups(&layered, &operations[0]);
        layered.own_buckets = has_own_buckets(&layered, &operations[0]);
        layered.recorded = self.recorded(&layered, &operations);
        layered
    }

    /// Times of layers, step by step.
    fn worker(&mut self, worker: &WorkerTrace, layers: &[Layer]) -> LayeredWorker {
        let places: HashMap<&str, usize> =
            layers.iter().enumerate().map(|(place, layer)| (&*layer.name, place)).collect();
        let mut found =
            LayeredWorker { host: worker.host.clone(), steps: Vec::new(), tails: Vec::new() };
        let mut unknown = 0;
        for number in self.steps {
            let (from, to) = window(worker, *number);
            let mut times = StepTimes::new(layers.len(), from, worker.crosses_step);
            for span in between(worker, from, to) {
                unknown += u64::from(!times.add(span, places.get(&*span.name).copied()));
            }
            let (times, tail) = times.finish(layers, to);
            found.steps.push(times);
            found.tails.push(tail);
        }
        if unknown > 0 {
            let text = "work of a layer that is not listed; it counts as time between layers";
            self.problems.push(Problem { times: unknown, ..problem(worker, text) });
        }
        found
    }

    /// Which tensors were sent together: by name where operations have the names of tensors, otherwise by adding up
    /// lengths in the order of the backward pass, as DDP fills its buckets.
    fn groups(&mut self, layered: &Layered, steps: &[Vec<Seen<'_>>]) -> Vec<Group> {
        let tensors: Vec<_> = layered.layers.iter().flat_map(|layer| &layer.tensors).collect();
        let names: HashMap<&str, u32> =
            tensors.iter().zip(0..).map(|(tensor, place)| (&*tensor.name, place)).collect();
        // The last step has what the program settled on: DDP rebuilds its buckets after the first.
        let Some(step) = steps.last() else { return Vec::new() };
        let planned = self.planned(layered, step);
        if !planned.is_empty() {
            return planned;
        }
        let mut unnamed = step.iter().filter(|seen| {
            let name = seen.collective.tensor.as_deref().unwrap_or("");
            !names.contains_key(name) && is_all_reduce(seen)
        });
        let mut groups = Vec::new();
        let mut next = tensors.len();
        for seen in unnamed.by_ref() {
            let (mut bytes, before) = (0, next);
            while next > 0 && bytes < seen.collective.bytes {
                next -= 1;
                bytes += tensors[next].bytes();
            }
            if bytes != seen.collective.bytes {
                next = before;
                continue;
            }
            groups.push(Group { tensors: (next as u32..before as u32).collect() });
        }
        if !groups.is_empty() && next > 0 {
            let worker = &self.trace.workers[0];
            let text = "some operations are not buckets of the listed tensors; those tensors are taken one by one";
            self.problems.push(problem(worker, text));
        }
        groups
    }

    /// The groups of the plan that was in force, if operations have their names: DDP fills buckets of its own.
    fn planned(&self, layered: &Layered, step: &[Seen<'_>]) -> Vec<Group> {
        let Some(view) = &self.trace.workers[0].view else { return Vec::new() };
        let mut planned = Layered { layers: layered.layers.clone(), ..Layered::default() };
        planned.fuse(&view.fusion);
        let tensors: Vec<_> = layered.layers.iter().flat_map(|layer| &layer.tensors).collect();
        let sent = |group: &Group| {
            let name: Arc<str> = operation_name(group, &tensors).into();
            step.iter().any(|seen| named(seen, &name))
        };
        planned.groups.retain(sent);
        planned.groups
    }

    /// On each worker from where the graph has the last post, after the backward pass of the layer that completes the group, to
    /// where who waits goes on: hooks post before a backward pass is over, or after, and threads take a while to wake up.
    fn recorded(
        &mut self,
        layered: &Layered,
        operations: &[Vec<Vec<Seen<'_>>>],
    ) -> Vec<Vec<Vec<u64>>> {
        let tensors: Vec<_> = layered.layers.iter().flat_map(|layer| &layer.tensors).collect();
        let groups = layered.all_groups();
        let layer_of = layered.layer_of_tensors();
        // Backward completes a group with the layer that the next forward pass needs it for first.
        let layers: Vec<&str> = groups
            .iter()
            .map(|group| {
                let first = group.tensors.iter().map(|tensor| layer_of[*tensor as usize]).min();
                &*layered.layers[first.unwrap_or(0) as usize].name
            })
            .collect();
        let names: Vec<Arc<str>> =
            groups.iter().map(|group| operation_name(group, &tensors).into()).collect();
        let mut missing = 0;
        let mut recorded = Vec::with_capacity(self.steps.len());
        for step in 0..self.steps.len() {
            let by_name: Vec<bool> = names
                .iter()
                .map(|name| operations[0][step].iter().any(|seen| named(seen, name)))
                .collect();
            let workers: Vec<Vec<Option<(Stamp, Stamp)>>> = operations
                .iter()
                .zip(&self.trace.workers)
                .map(|(seen, worker)| {
                    let found = of_groups(&seen[step], &names, &by_name);
                    self.at_edges(worker, step, found, &layers, layered.crosses_step)
                })
                .collect();
            let of_group = |place: usize| -> Vec<u64> {
                let found: Option<Vec<_>> = workers.iter().map(|worker| worker[place]).collect();
                let found = found.unwrap_or_default();
                let last = found.iter().map(|(post, _)| *post).max().unwrap_or_default();
                found.iter().map(|(_, over)| over.since(last)).collect()
            };
            let of_step: Vec<Vec<u64>> = (0..groups.len()).map(of_group).collect();
            missing += of_step.iter().filter(|times| times.is_empty()).count() as u64;
            recorded.push(of_step);
        }
        let none = operations.iter().flatten().all(Vec::is_empty);
        if missing > 0 && !none {
            let text = "operations of tensors that some worker did not record; they take no time where recorded \
                        times are used";
            let place = "all workers".to_string();
            self.problems.push(Problem { place, text: text.to_string(), times: missing });
        }
        recorded
    }

    /// What one worker saw of the groups of a step, where the graph has it and by the common clock.
    fn at_edges(
        &self,
        worker: &WorkerTrace,
        step: usize,
        found: Vec<Option<&Seen<'_>>>,
        layers: &[&str],
        crosses_step: bool,
    ) -> Vec<Option<(Stamp, Stamp)>> {
        let common = |stamp| self.clocks.common(worker.rank, stamp);
        let (from, to) = window(worker, self.steps[step]);
        // Nothing waits for what was not recorded: it ends too late for any wait.
        let mut over: Vec<Stamp> =
            found.iter().map(|seen| seen.map_or(Stamp(i64::MAX), |seen| seen.over)).collect();
        if crosses_step {
            // What the next step's layers wait for. Nothing waits for operations of the last one.
            let (from, to) =
                self.steps.get(step + 1).map_or((to, to), |next| window(worker, *next));
            edges::until_layers_go_on(between(worker, from, to), layers, &mut over);
        } else {
            edges::until_waits_end(between(worker, from, to), &mut over);
        }
        let ends = edges::backward_ends(between(worker, from, to));
        let edge = |((seen, over), layer): ((Option<&Seen<'_>>, Stamp), &&str)| {
            let end = ends.get(layer).copied();
            seen.map(|seen| (common(end.unwrap_or(seen.post)), common(over)))
        };
        found.into_iter().zip(over).zip(layers).map(edge).collect()
    }

    fn report(&mut self, worker: &WorkerTrace, text: &str) {
        self.problems.push(problem(worker, text));
    }
}

fn problem(worker: &WorkerTrace, text: &str) -> Problem {
    Problem { place: format!("worker {}", worker.rank), text: text.to_string(), times: 1 }
}

fn operation_name(group: &Group, tensors: &[&Tensor]) -> String {
    Fusion::operation_name(&tensors[group.tensors[0] as usize].name, group.tensors.len())
}

/// Whether tensors were sent, but none and no group of a plan by its name: buckets of the program's have none.
fn has_own_buckets(layered: &Layered, steps: &[Vec<Seen<'_>>]) -> bool {
    let tensors: Vec<_> = layered.layers.iter().flat_map(|layer| &layer.tensors).collect();
    let groups = layered.all_groups();
    let grouped = groups.iter().map(|group| operation_name(group, &tensors));
    let single = tensors.iter().map(|tensor| tensor.name.to_string());
    let names: HashSet<String> = grouped.chain(single).collect();
    let Some(step) = steps.last() else { return false };
    let by_name = |seen: &Seen<'_>| {
        seen.collective.tensor.as_deref().is_some_and(|name| names.contains(name))
    };
    step.iter().any(is_all_reduce) && !step.iter().any(by_name)
}

fn named(seen: &Seen<'_>, name: &Arc<str>) -> bool {
    seen.collective.tensor.as_ref() == Some(name)
}

/// The operation of each group: by its name, or, where groups have none, in order.
fn of_groups<'s, 't>(
    step: &'s [Seen<'t>],
    names: &[Arc<str>],
    by_name: &[bool],
) -> Vec<Option<&'s Seen<'t>>> {
    let mut unnamed = step.iter().filter(|seen| is_all_reduce(seen));
    let find = |(name, by_name): (&Arc<str>, &bool)| {
        if *by_name { step.iter().find(|seen| named(seen, name)) } else { unnamed.next() }
    };
    names.iter().zip(by_name).map(find).collect()
}

fn is_all_reduce(seen: &Seen<'_>) -> bool {
    &*seen.collective.operation == CollectiveKind::AllReduce.word()
}

/// From the end of the step before to the end of this one.
fn window(worker: &WorkerTrace, number: u64) -> (Stamp, Stamp) {
    let find = |number| worker.steps.iter().find(|step| step.number == number);
    let Some(step) = find(number) else { return (Stamp(0), Stamp(0)) };
    let before = number.checked_sub(1).and_then(find);
    (before.map_or(step.begin, |before| before.end), step.end)
}

/// Spans that begin in a window.
fn between(worker: &WorkerTrace, from: Stamp, to: Stamp) -> impl Iterator<Item = &Span> {
    let first = worker.spans.partition_point(|span| span.begin < from);
    worker.spans[first..].iter().take_while(move |span| span.begin < to)
}

/// Operations that a worker posted in a step, in order.
fn seen(worker: &WorkerTrace, number: u64) -> Vec<Seen<'_>> {
    let (from, to) = window(worker, number);
    let spans = between(worker, from, to).filter_map(|span| match &span.kind {
        Kind::Collective(collective) => {
            Some(Seen { collective, post: span.begin, over: span.end() })
        }
        _ => None,
    });
    spans.collect()
}
