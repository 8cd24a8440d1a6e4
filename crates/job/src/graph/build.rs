//! From a trace to a graph. Where the trace says which layers the model has, steps are rebuilt from the times of layers, so
//! that other settings can be tried; what does not fit is reported.

use super::{
    Graph,
    asides::{self, Found, Part, Record},
    clocks::Clocks,
    edges,
    groups::{self, Finder, Seen, Sent},
    handing,
    layered::{Group, Layered, LayeredWorker},
    observed,
    times::{StepTimes, Took},
};
use crate::{
    Settings,
    trace::{Kind, LaneKind, Layer, Problem, Span, Stamp, Step, Trace, WorkerTrace},
};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// A job as a graph, with what else its trace says about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Its steps. Workers of the graph are those of the trace, in order, whatever ranks they had.
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
    /// Record with times: `paceline run --trace`, or PyTorch's profiler.
    #[error(
        "the trace says what was done and not how long it took, so there is nothing to replay; PyTorch's execution traces are of this \
         kind. Traces of its profiler (torch.profiler) and of `paceline run --trace` have times"
    )]
    NoTimes,
}

impl Job {
    /// The steps that all workers of the trace recorded, with clocks corrected by `clocks`.
    pub fn from_trace(trace: &Trace, clocks: &Clocks) -> Result<Job, BuildError> {
        if trace.workers.is_empty() {
            return Err(BuildError::NoWorker);
        }
        if trace.workers.iter().any(|worker| !worker.has_times()) {
            return Err(BuildError::NoTimes);
        }
        let settings = trace.workers.iter().find_map(|worker| worker.view.as_ref());
        let settings = settings.map(|view| view.settings.clone());
        if trace.workers.iter().all(|worker| worker.steps.is_empty()) {
            // Whoever knows layers marks steps: a program that ended before one was over shows none.
            if trace.workers.iter().any(|worker| !worker.layers.is_empty()) {
                return Err(BuildError::NoStep);
            }
            return Job::from_trace(&as_one_step(trace)?, clocks);
        }
        let mut steps = common_steps(trace);
        if steps.is_empty() {
            return Err(BuildError::NoStep);
        }
        let stub = leave_out_stub(trace, clocks, &mut steps);
        if trace.workers.iter().any(|worker| worker.layers.is_empty()) {
            let mut job = Job { settings, ..observed::job(trace, clocks, &steps)? };
            job.problems.extend(stub);
            return Ok(job);
        }
        let problems = stub.into_iter().collect();
        let mut building = Building { trace, clocks, steps: &steps, problems };
        let layered = building.layered();
        let measured = measured(trace, &steps, by(clocks));
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

/// A last step with less than this share of what the others have, in time and in spans, was cut off when recording ended.
const STUB: f64 = 0.1;

/// Leave out a last step of which next to nothing was recorded: it would count like a whole one.
fn leave_out_stub(trace: &Trace, clocks: &Clocks, steps: &mut Vec<u64>) -> Option<Problem> {
    let lengths = measured(trace, steps, by(clocks));
    let spans = steps.iter().map(|number| {
        let of_worker = |worker| {
            let (from, to) = window(worker, *number);
            between(worker, from, to).count() as u64
        };
        trace.workers.iter().map(of_worker).sum()
    });
    if !is_stub(&lengths) || !is_stub(&spans.collect::<Vec<u64>>()) {
        return None;
    }
    let number = steps.pop()?;
    let text = format!("next to nothing was recorded of step {number}, the last; it is left out");
    Some(Problem { place: "steps".to_string(), text, times: 1 })
}

/// Whether the last is next to nothing beside the one in the middle of the others.
fn is_stub(amounts: &[u64]) -> bool {
    let Some((last, others)) = amounts.split_last() else { return false };
    let mut others = others.to_vec();
    others.sort_unstable();
    let middle = others.get(others.len() / 2).copied().unwrap_or(0);
    (*last as f64) < STUB * middle as f64
}

/// Nanoseconds from the end of the step before to the end of each step, on the slowest worker; for the first one from
/// its own begin. `common` makes one time of the workers' clocks.
pub(super) fn measured(
    trace: &Trace,
    steps: &[u64],
    common: impl Fn(&WorkerTrace, Stamp) -> Stamp,
) -> Vec<u64> {
    let edge = |number: u64, of: fn(&Step) -> Stamp| {
        let edges = trace.workers.iter().filter_map(|worker| {
            let step = worker.steps.iter().find(|step| step.number == number)?;
            Some(common(worker, of(step)))
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

/// The time that clocks have in common.
pub(super) fn by(clocks: &Clocks) -> impl Fn(&WorkerTrace, Stamp) -> Stamp {
    |worker, stamp| clocks.common(worker.rank, stamp)
}

struct Building<'t> {
    trace: &'t Trace,
    clocks: &'t Clocks,
    steps: &'t [u64],
    problems: Vec<Problem>,
}

/// Operations by worker and step, and for each group the place of its own among them.
struct Operations<'t> {
    seen: Vec<Vec<Vec<Seen<'t>>>>,
    of_groups: Vec<Vec<Vec<Option<usize>>>>,
}

/// What one worker waited for, step by step.
struct Waits {
    /// For each group, from where the graph has its post to its end, by the worker's clock.
    edges: Vec<Vec<Option<(Stamp, Stamp)>>>,
    /// For the end of each wait, when the operation was over that it was for.
    over: Vec<HashMap<Stamp, Stamp>>,
    /// The ends of waits that found everything there.
    idle: Vec<HashSet<Stamp>>,
    /// When the last gradients were handed over.
    handed: Vec<Option<Stamp>>,
}

impl<'t> Building<'t> {
    fn layered(&mut self) -> Layered {
        let first = &self.trace.workers[0];
        let layers = first.layers.clone();
        let mut seen: Vec<Vec<Vec<Seen<'_>>>> = Vec::new();
        for worker in &self.trace.workers {
            if worker.layers != layers {
                self.report(worker, "has other layers than worker 0; its own are left out");
            }
            let of_step = |(place, step): (usize, &u64)| {
                let (from, to) = window(worker, *step);
                // What is posted at the very end of a step is the last of it, not the first of the next.
                let own = move |span: &&Span| place == 0 || span.begin > from;
                groups::seen(between(worker, from, to.after(1)).filter(own))
            };
            seen.push(self.steps.iter().enumerate().map(of_step).collect());
        }
        let scheduled = seen[0].iter().flatten().any(|seen| seen.collective.priority != 0);
        let mut layered =
            Layered { layers, crosses_step: first.crosses_step, scheduled, ..Layered::default() };
        // Of the steps that send most, the last has what the program settled on: DDP rebuilds its buckets after the first, and
        // one that a program ends in may send next to nothing.
        let bytes =
            |step: &&Vec<Seen<'_>>| -> u64 { step.iter().map(|seen| seen.collective.bytes).sum() };
        let settled = seen[0].iter().max_by_key(bytes).map_or(&[][..], Vec::as_slice);
        let sent = groups::sent(&layered, first.view.as_ref(), settled);
        let finder = self.finder(&mut layered, sent);
        let places = |steps: &Vec<Vec<Seen<'_>>>| -> Vec<Vec<Option<usize>>> {
            steps.iter().map(|step| finder.places(step)).collect()
        };
        let operations = Operations { of_groups: seen.iter().map(places).collect(), seen };
        let asides: Vec<Found> =
            (0..self.steps.len()).map(|step| self.asides(&layered, &operations, step)).collect();
        let waits: Vec<Waits> = (0..self.trace.workers.len())
            .map(|place| self.waits(&layered, &operations, &asides, place))
            .collect();
        for ((place, worker), waits) in self.trace.workers.iter().enumerate().zip(&waits) {
            let parts: Vec<&Part> = asides.iter().map(|found| &found.parts[place]).collect();
            layered.workers.push(self.worker(worker, &layered.layers, &parts, waits));
        }
        layered.recorded = self.recorded(&layered, &operations, &waits);
        let incomplete = asides.iter().map(|found| found.incomplete).sum();
        if incomplete > 0 {
            let text = "operations without gradients that some of their workers did not record; they are left out";
            let place = "all workers".to_string();
            self.problems.push(Problem { place, text: text.to_string(), times: incomplete });
        }
        layered.asides = asides.into_iter().map(|found| found.operations).collect();
        layered
    }

    fn finder(&self, layered: &mut Layered, mut sent: Sent) -> Finder {
        layered.own_buckets = sent.own_buckets;
        layered.groups = std::mem::take(&mut sent.groups);
        Finder::new(layered, &layered.all_groups(), &sent)
    }

    /// What a step has besides gradients. Where a device computes, its host only tells it to wait, and no wait of the host is
    /// one of the layers'.
    fn asides(&self, layered: &Layered, operations: &Operations<'_>, step: usize) -> Found {
        let on_device = |worker: &WorkerTrace| {
            let mut work = worker.spans.iter().filter(|span| matches!(span.kind, Kind::Work(_)));
            work.any(|span| worker.lanes[span.lane.0 as usize].kind == LaneKind::Stream)
        };
        if self.trace.workers.iter().any(on_device) {
            let parts = vec![Part::default(); self.trace.workers.len()];
            return Found { parts, ..Found::default() };
        }
        let names: HashSet<&str> = layered.layers.iter().map(|layer| &*layer.name).collect();
        let record = |(place, worker): (usize, &'t WorkerTrace)| {
            let (from, to) = window(worker, self.steps[step]);
            let seen = &operations.seen[place][step];
            let mut of_groups = vec![false; seen.len()];
            for place in operations.of_groups[place][step].iter().flatten() {
                of_groups[*place] = true;
            }
            // Layers that cross the step wait for their own tensors, by name.
            let own = |span: &&Span| !layered.crosses_step || !names.contains(&*span.name);
            let waits = between(worker, from, to).filter(|span| span.kind == Kind::Wait);
            Record {
                rank: worker.rank,
                operations: seen,
                of_groups,
                waits: waits.filter(own).collect(),
                waits_for_groups: !layered.crosses_step,
            }
        };
        let records: Vec<Record<'_, '_>> =
            self.trace.workers.iter().enumerate().map(record).collect();
        asides::of_step(&records, self.clocks)
    }

    /// Times of layers, step by step.
    fn worker(
        &mut self,
        worker: &WorkerTrace,
        layers: &[Layer],
        asides: &[&Part],
        waits: &Waits,
    ) -> LayeredWorker {
        let places: HashMap<&str, usize> =
            layers.iter().enumerate().map(|(place, layer)| (&*layer.name, place)).collect();
        let mut found = LayeredWorker { host: worker.host.clone(), ..LayeredWorker::default() };
        let mut unknown = 0;
        for (step, (number, part)) in self.steps.iter().zip(asides).enumerate() {
            let mut handed = waits.handed[step];
            let (from, to) = window(worker, *number);
            let mut times = StepTimes::new(layers.len(), from, worker.crosses_step);
            let mut posts = part.posts.iter().peekable();
            for span in between(worker, from, to) {
                while let Some((aside, at)) = posts.next_if(|(_, at)| *at <= span.begin) {
                    times.posted(*aside, *at);
                }
                if let Some(at) = handed.take_if(|at| *at <= span.begin) {
                    times.handed(at);
                }
                let waits_for_nothing = waits.idle[step].contains(&span.end());
                if span.kind == Kind::Wait && waits_for_nothing {
                    continue;
                }
                match part.waits.get(&span.end()).filter(|_| span.kind == Kind::Wait) {
                    Some((aside, over)) => times.awaited(*aside, span, *over),
                    None => {
                        let over = waits.over[step].get(&span.end()).copied();
                        let layer = places.get(&*span.name).copied();
                        unknown += u64::from(!times.add(span, layer, over));
                    }
                }
            }
            posts.for_each(|(aside, at)| times.posted(*aside, *at));
            handed.into_iter().for_each(|at| times.handed(at));
            let Took { layers, tail, marks } = times.finish(layers, to);
            found.steps.push(layers);
            found.tails.push(tail);
            found.marks.push(marks);
        }
        if unknown > 0 {
            let text = "work of a layer that is not listed; it counts as time between layers";
            self.problems.push(Problem { times: unknown, ..problem(worker, text) });
        }
        found
    }

    /// For each step, when each group's operation began in the graph and was over, and what waits were for.
    fn waits(
        &self,
        layered: &Layered,
        operations: &Operations<'_>,
        asides: &[Found],
        place: usize,
    ) -> Waits {
        let worker = &self.trace.workers[place];
        let (groups, layer_of) = (layered.all_groups(), layered.layer_of_tensors());
        // Backward completes a group with the layer that the next forward pass needs it for first.
        let first =
            |group: &Group| group.tensors.iter().map(|tensor| layer_of[*tensor as usize]).min();
        let firsts: Vec<usize> =
            groups.iter().map(|group| first(group).unwrap_or(0) as usize).collect();
        let layers: Vec<&str> = firsts.iter().map(|first| &*layered.layers[*first].name).collect();
        let count = self.steps.len();
        let mut waits = Waits {
            edges: Vec::new(),
            over: vec![HashMap::new(); count],
            idle: vec![HashSet::new(); count],
            handed: Vec::new(),
        };
        for (step, asides) in asides.iter().enumerate() {
            let seen = &operations.seen[place][step];
            let found: Vec<Option<&Seen<'_>>> = operations.of_groups[place][step]
                .iter()
                .map(|found| found.map(|found| &seen[found]))
                .collect();
            // Nothing waits for what was not recorded: it ends too late for any wait.
            let mut over: Vec<Stamp> =
                found.iter().map(|seen| seen.map_or(Stamp(i64::MAX), |seen| seen.over)).collect();
            let (from, to) = window(worker, self.steps[step]);
            if layered.crosses_step && step + 1 < count {
                // What the next step's layers wait for. Nothing waits for operations of the last one.
                let (from, to) = window(worker, self.steps[step + 1]);
                let spans = between(worker, from, to).filter(|span| span.kind == Kind::Wait);
                for (wait, operation) in edges::layers_waited_until(spans, &layers, &over) {
                    waits.over[step + 1].insert(wait.end(), over[operation]);
                }
            } else if !layered.crosses_step {
                let own = |span: &&Span| {
                    span.kind == Kind::Wait && !asides.parts[place].waits.contains_key(&span.end())
                };
                let found = edges::waited_until(between(worker, from, to).filter(own), &over);
                let (found, idle) = edges::apart_from_idle(found);
                waits.idle[step].extend(idle.iter().map(|wait| wait.end()));
                match found[..] {
                    [(wait, operation)] => {
                        waits.over[step].insert(wait.end(), over[operation]);
                    }
                    // Of several it is not known what passes between them whatever operations take: they are a part of that.
                    _ => found.iter().for_each(|(wait, place)| over[*place] = wait.end()),
                }
            }
            let ends = edges::backward_ends(between(worker, from, to));
            let last = firsts.iter().rposition(|first| *first == 0);
            let begin = |place: usize, seen: &Seen<'_>| {
                let end = ends.get(layers[place]).copied().unwrap_or(seen.post);
                if Some(place) == last { end.max(seen.post) } else { end }
            };
            let edges = found.iter().zip(&over).enumerate();
            let edges: Vec<Option<(Stamp, Stamp)>> = edges
                .map(|(place, (seen, over))| seen.map(|seen| (begin(place, seen), *over)))
                .collect();
            waits.handed.push(last.and_then(|last| edges[last]).map(|(begin, _)| begin));
            waits.edges.push(edges);
        }
        waits
    }

    /// On each worker from where the graph has the last post, after the backward pass of the layer that completes the group, to
    /// the end.
    fn recorded(
        &mut self,
        layered: &Layered,
        operations: &Operations<'_>,
        waits: &[Waits],
    ) -> Vec<Vec<Vec<u64>>> {
        let groups = layered.all_groups().len();
        let mut missing = 0;
        let mut recorded = Vec::with_capacity(self.steps.len());
        for step in 0..self.steps.len() {
            let of_group = |place: usize| -> Vec<u64> {
                let found = self.trace.workers.iter().zip(waits).map(|(worker, waits)| {
                    let common = |stamp| self.clocks.common(worker.rank, stamp);
                    waits.edges[step][place].map(|(post, over)| (common(post), common(over)))
                });
                let found = found.collect::<Option<Vec<_>>>().unwrap_or_default();
                let last = found.iter().map(|(post, _)| *post).max().unwrap_or_default();
                found.iter().map(|(_, over)| over.since(last)).collect()
            };
            let of_step: Vec<Vec<u64>> = (0..groups).map(of_group).collect();
            missing += of_step.iter().filter(|times| times.is_empty()).count() as u64;
            recorded.push(of_step);
        }
        let none = operations.seen.iter().flatten().all(Vec::is_empty);
        if missing > 0 && !none {
            let text = "operations of tensors that some worker did not record; they take no time where recorded \
                        times are used";
            let place = "all workers".to_string();
            self.problems.push(Problem { place, text: text.to_string(), times: missing });
        }
        recorded
    }

    fn report(&mut self, worker: &WorkerTrace, text: &str) {
        self.problems.push(problem(worker, text));
    }
}

fn problem(worker: &WorkerTrace, text: &str) -> Problem {
    Problem { place: format!("worker {}", worker.rank), text: text.to_string(), times: 1 }
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
