//! Traces of PyTorch's profiler (Kineto), one worker a file: from events to lanes, spans and what they waited for. What a
//! graph does with that is not known here.
//!
//! - A thread of the host and a stream of a device are lanes. Operators and calls of the CUDA runtime are work; a call
//!   whose `correlation` names something that a device did is its [`Launch`](Kind::Launch); a call that blocks is a
//!   [`Wait`](Kind::Wait). Annotations and Python frames are scopes unless nothing lies inside them.
//! - Kernels of NCCL and annotations of Gloo are [`Collective`](Kind::Collective)s.
//! - Steps are `ProfilerStep#N`; without them, from the end of one `Optimizer.step` to the end of the next.
//! - `backward()` runs on a thread of its own and the caller stands still meanwhile, which no event says: a wait is put
//!   there.

mod collectives;
mod device;
mod gather;
mod gloo;
mod nesting;
mod threads;

use super::{
    Kind, LaneKind, Lost, Phase, Problem, Step, WorkerTrace, assemble, chrome, problems::Problems,
};
use crate::Rank;
use gather::{Class, Gathered};

/// Differences below this are the profiler's rounding: older files count in microseconds, and rounding two ends may move
/// each by one.
const ROUNDING: u64 = 2_000;

/// What a file gave.
pub(super) struct Imported {
    pub worker: WorkerTrace,
    /// Where the file says so.
    pub rank: Option<Rank>,
    pub problems: Vec<Problem>,
}

/// Read a file to its end. `place` is how problems name it.
pub(super) fn import(mut reader: chrome::Reader, place: &str) -> Imported {
    let mut problems = Problems::at(place);
    let mut gathered = Gathered::default();
    for event in reader.by_ref() {
        gathered.take(event, &mut problems);
    }
    let whole = reader.is_whole();
    let (header, mut all_problems) = reader.finish();
    let mut worker = worker(gathered, &header, &mut problems);
    worker.lost.of_file = !whole;
    all_problems.extend(problems.into_list());
    Imported { worker, rank: header.rank(), problems: all_problems }
}

fn worker(mut gathered: Gathered, header: &chrome::Header, problems: &mut Problems) -> WorkerTrace {
    gathered.order(header.base(), problems);
    let nesting = nesting::Nesting::of(&gathered, problems);
    let mut spans = gathered.spans(&nesting);
    let unlaunched = device::link(&gathered, &nesting, &mut spans, problems);
    let groups = collectives::Groups::of(header);
    collectives::name(&gathered, &nesting, &groups, &mut spans, problems);
    device::wait_for_collectives(&gathered, &nesting, &mut spans, problems);
    gloo::wait_for_collectives(&gathered, &nesting, &mut spans, problems);
    threads::wait_for_backward(&gathered, &nesting, &mut spans);
    let lost = device::launches_of_nothing(&gathered, &spans);
    problems.add_times("what a call launched is not in the file", lost.len() as u64);
    device::split_blocking_copies(&gathered, &mut spans);
    let at = gathered.lost.iter().copied().chain(lost).chain(unlaunched).collect();
    let mut worker = WorkerTrace {
        rank: header.rank().unwrap_or_default(),
        world: header.world(),
        steps: steps(&gathered, &nesting, problems),
        lanes: gathered.lanes.list,
        spans,
        lost: Lost { at, ..Lost::default() },
        ..WorkerTrace::default()
    };
    assemble::keep_each_step_once(&mut worker, problems);
    assemble::order(&mut worker);
    let has_device = worker.lanes.iter().any(|lane| lane.kind == LaneKind::Stream);
    if has_device && !worker.spans.iter().any(|span| matches!(span.kind, Kind::Launch)) {
        problems.add("no call says what it launched; devices are not tied to threads");
    }
    worker
}

/// Marked steps; otherwise what lies between the ends of two updates.
fn steps(gathered: &Gathered, nesting: &nesting::Nesting, problems: &mut Problems) -> Vec<Step> {
    let annotations = || {
        let all = gathered.notes.iter().zip(&gathered.raw);
        all.filter(|(note, _)| note.class == Class::Annotation).map(|(_, raw)| raw)
    };
    let mut steps: Vec<Step> = annotations()
        .filter_map(|raw| {
            let number = raw.name.strip_prefix("ProfilerStep#")?.trim().parse().ok()?;
            Some(Step { number, begin: raw.begin, end: raw.end() })
        })
        .collect();
    if !steps.is_empty() {
        return steps;
    }
    let mut ends: Vec<_> = (annotations().filter(|raw| raw.name.starts_with("Optimizer.step")))
        .map(|raw| raw.end())
        .collect();
    ends.sort_unstable();
    for (number, pair) in ends.windows(2).enumerate() {
        steps.push(Step { number: number as u64 + 1, begin: pair[0], end: pair[1] });
    }
    let trains = nesting.phases.contains(&Phase::Backward);
    match steps.len() {
        0 if trains => problems.add(
            "no steps are marked (give the profiler a schedule and call `profiler.step()` after each step); replay takes the whole \
             file for one",
        ),
        0 => problems.add("no steps are marked; replay takes the whole file for one"),
        _ => problems.add(
            "no steps are marked; they are taken to go from the end of one `Optimizer.step` to the end of the next",
        ),
    }
    steps
}
