//! Which collectives of different workers are the same operation: by the name of their group and their number in it, where
//! the files say it; otherwise by their size and their order in a step. This is the one place that decides it.

use super::{
    Collective, Kind, Problem, SEND_RECEIVE, SpanId, Trace, WorkerTrace, problems::Problems,
};
use crate::{CollectiveKind, Rank};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// One operation, as its members recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// What was done, as the first of them says.
    pub operation: Arc<str>,
    /// By whom.
    pub group: Arc<str>,
    /// Place of the worker in the trace and span of that worker; at most one of each worker, in the order of ranks.
    pub parts: Vec<(usize, SpanId)>,
    /// Members that should be here and are not, although their files are.
    pub missing: Vec<Rank>,
}

/// Which operation of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Number {
    /// The file counts, and a name tells operations with the same number apart.
    Counted { sequence: u64, tensor: Option<Arc<str>>, again: u32 },
    /// So many operations of the same kind were before it in this step, or in a file without steps. Sizes tell
    /// them apart as well, so that one that is missing on a worker does not shift all that follow.
    Ordinal { step: Option<u64>, operation: Arc<str>, bytes: u64, ordinal: u64 },
}

/// An operation, by the name of its group and its number there.
type Key = (Arc<str>, Number);

/// A collective of a worker, by the worker's place in the trace.
type Part = (usize, SpanId);

/// Match the collectives of all workers, in the order in which they began on the first worker that has them. Those outside
/// of steps cannot be matched by order if there are several workers: they are left out, and counted.
pub fn match_collectives(trace: &Trace) -> (Vec<Matched>, Vec<Problem>) {
    let mut problems = Problems::at("collectives");
    let mut found: BTreeMap<Key, Vec<Part>> = BTreeMap::new();
    let mut unplaced = 0;
    let sizeless = sizeless(trace);
    for (place, worker) in trace.workers.iter().enumerate() {
        for (span, key) in numbers(worker, trace.workers.len() > 1, &sizeless, &mut unplaced) {
            found.entry(key).or_default().push((place, span));
        }
    }
    problems.add_times(
        "a collective outside of all recorded steps has no number; it is matched with no other",
        unplaced,
    );
    let groups: Vec<BTreeSet<Arc<str>>> = trace.workers.iter().map(groups).collect();
    let mut matched: Vec<Matched> = found
        .into_iter()
        .map(|((group, _), parts)| check(trace, &groups, group, parts, &mut problems))
        .collect();
    matched.sort_by_key(|it| {
        let (place, span) = it.parts[0];
        (place, span)
    });
    (matched, problems.into_list())
}

fn collective(worker: &WorkerTrace, span: SpanId) -> Option<&Collective> {
    match &worker.spans[span.0 as usize].kind {
        Kind::Collective(collective) => Some(collective),
        _ => None,
    }
}

/// Groups and what was done in them without every worker saying how much: there, sizes tell nothing apart.
fn sizeless(trace: &Trace) -> BTreeSet<(Arc<str>, Arc<str>)> {
    let spans = trace.workers.iter().flat_map(|worker| &worker.spans);
    let sizeless = spans.filter_map(|span| match &span.kind {
        Kind::Collective(it) if it.bytes == 0 => Some((it.group.clone(), it.operation.clone())),
        _ => None,
    });
    sizeless.collect()
}

/// The collectives of one worker and how they are told apart.
fn numbers(
    worker: &WorkerTrace,
    several: bool,
    sizeless: &BTreeSet<(Arc<str>, Arc<str>)>,
    unplaced: &mut u64,
) -> Vec<(SpanId, Key)> {
    let mut seen = BTreeMap::<_, u32>::new();
    let mut counts = BTreeMap::<_, u64>::new();
    let mut numbers = Vec::new();
    for (at, span) in worker.spans.iter().enumerate() {
        let Kind::Collective(collective) = &span.kind else { continue };
        let group = collective.group.clone();
        let number = if let Some(sequence) = collective.sequence {
            let key = (group.clone(), sequence, collective.tensor.clone());
            // Large operations are carried out by several kernels with one number.
            let again = seen.entry(key).and_modify(|it| *it += 1).or_default();
            Number::Counted { sequence, tensor: collective.tensor.clone(), again: *again }
        } else {
            // A device may run what was launched in one step during the next.
            let launch = span.after.iter().map(|it| &worker.spans[it.0 as usize]);
            let begin = launch
                .filter(|it| matches!(it.kind, Kind::Launch))
                .map(|it| it.begin)
                .next()
                .unwrap_or(span.begin);
            let step = worker.steps.iter().find(|step| step.begin <= begin && begin < step.end);
            let step = step.map(|step| step.number);
            if step.is_none() && several && !worker.steps.is_empty() {
                *unplaced += 1;
                continue;
            }
            let operation = collective.operation.clone();
            let same = uneven(&operation) || sizeless.contains(&(group.clone(), operation.clone()));
            let bytes = if same { 0 } else { collective.bytes };
            let count = counts.entry((group.clone(), operation.clone(), bytes, step)).or_default();
            let ordinal = *count;
            *count += 1;
            Number::Ordinal { step, operation, bytes, ordinal }
        };
        numbers.push((SpanId(at as u32), (group, number)));
    }
    numbers
}

/// Say what does not fit together.
fn check(
    trace: &Trace,
    groups: &[BTreeSet<Arc<str>>],
    group: Arc<str>,
    parts: Vec<Part>,
    problems: &mut Problems,
) -> Matched {
    let all: Vec<&Collective> = (parts.iter())
        .filter_map(|(place, span)| collective(&trace.workers[*place], *span))
        .collect();
    let first = all[0];
    let shown =
        if group.is_empty() { "the unnamed group".into() } else { format!("group `{group}`") };
    if all.iter().any(|it| it.operation != first.operation) {
        problems.add(format!(
            "workers of {shown} did different operations at the same time; they are matched all the same"
        ));
    } else if !uneven(&first.operation) && differ(&all) {
        problems.add(format!(
            "workers of {shown} gave different sizes to one operation; they are matched all the same"
        ));
    }
    let here: BTreeSet<Rank> = parts.iter().map(|(place, _)| trace.workers[*place].rank).collect();
    let everybody = first.members.is_empty();
    let missing: Vec<Rank> = (trace.workers.iter().zip(groups))
        .filter(|(worker, _)| !here.contains(&worker.rank))
        .filter(|(worker, used)| {
            // Without members, a group that a worker never used is a group that it is not in.
            if everybody { used.contains(&group) } else { first.members.contains(&worker.rank) }
        })
        .map(|(worker, _)| worker.rank)
        .collect();
    // Workers begin and end their recordings one after another.
    let at_edge = parts.iter().any(|(place, span)| reaches_out(&trace.workers[*place], *span));
    problems.add_times(
        format!("a member of {shown} did not record an operation that others did"),
        if at_edge { 0 } else { missing.len() as u64 },
    );
    Matched { operation: first.operation.clone(), group, parts, missing }
}

/// Whether a span begins before the first recorded step of its worker, or ends after the last.
fn reaches_out(worker: &WorkerTrace, span: SpanId) -> bool {
    let span = &worker.spans[span.0 as usize];
    let first = worker.steps.iter().map(|step| step.begin).min();
    let last = worker.steps.iter().map(|step| step.end).max();
    first.is_some_and(|first| span.begin < first) || last.is_some_and(|last| span.end() > last)
}

/// Whether members gave sizes that cannot be those of one operation. Those who gave none do not say, or it is a broadcast and
/// they are not its root.
fn differ(all: &[&Collective]) -> bool {
    let mut sizes = all.iter().map(|it| it.bytes).filter(|bytes| *bytes > 0);
    let first = sizes.next();
    sizes.any(|size| Some(size) != first)
}

/// Operations to which members contribute as much as they like.
fn uneven(operation: &str) -> bool {
    use CollectiveKind::{AllGather, AllToAll, Gather, Recv, Scatter, Send};
    let uneven = [AllToAll, AllGather, Gather, Scatter, Send, Recv];
    operation == SEND_RECEIVE || uneven.iter().any(|kind| kind.word() == operation)
}

/// All groups in which a worker did something.
fn groups(worker: &WorkerTrace) -> BTreeSet<Arc<str>> {
    let group = |span: &super::Span| match &span.kind {
        Kind::Collective(collective) => Some(collective.group.clone()),
        _ => None,
    };
    worker.spans.iter().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Lane, LaneId, LaneKind, Span, Stamp, Step};

    fn worker(rank: u32, collectives: &[(i64, Option<u64>, &str, u64)]) -> WorkerTrace {
        let span = |(begin, sequence, operation, bytes): &(i64, Option<u64>, &str, u64)| Span {
            name: "op".into(),
            lane: LaneId(0),
            begin: Stamp(*begin),
            length: 1,
            kind: Kind::Collective(Box::new(Collective {
                operation: (*operation).into(),
                group: "g".into(),
                members: Vec::new(),
                sequence: *sequence,
                tensor: None,
                bytes: *bytes,
                dtype: None,
                priority: 0,
            })),
            after: Vec::new(),
        };
        WorkerTrace {
            rank: Rank(rank),
            lanes: vec![Lane { name: "stream".into(), kind: LaneKind::Stream }],
            spans: collectives.iter().map(span).collect(),
            steps: (0..3)
                .map(|number| {
                    let begin = Stamp(100 * number as i64);
                    Step { number, begin, end: begin.after(100) }
                })
                .collect(),
            ..WorkerTrace::default()
        }
    }

    fn matched(workers: Vec<WorkerTrace>) -> (Vec<Vec<(usize, SpanId)>>, Vec<Problem>) {
        let (matched, problems) = match_collectives(&Trace { workers, problems: Vec::new() });
        (matched.into_iter().map(|it| it.parts).collect(), problems)
    }

    #[test]
    fn numbers_match_whatever_the_order() {
        let one = worker(0, &[(1, Some(7), "all_reduce", 4), (2, Some(8), "all_reduce", 8)]);
        let two = worker(1, &[(1, Some(8), "all_reduce", 8), (2, Some(7), "all_reduce", 4)]);
        let (parts, problems) = matched(vec![one, two]);
        let [a, b] = [SpanId(0), SpanId(1)];
        assert_eq!(parts, [vec![(0, a), (1, b)], vec![(0, b), (1, a)]]);
        assert_eq!(problems, []);
    }

    #[test]
    fn without_numbers_the_order_within_a_step_decides() {
        // The second worker began to record a step later.
        let one = worker(0, &[(1, None, "all_reduce", 4), (101, None, "all_reduce", 4)]);
        let mut two = worker(1, &[(101, None, "all_reduce", 4)]);
        two.steps.remove(0);
        let (parts, problems) = matched(vec![one, two]);
        assert_eq!(parts, [vec![(0, SpanId(0))], vec![(0, SpanId(1)), (1, SpanId(0))]]);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }

    #[test]
    fn without_numbers_a_missing_one_does_not_shift_the_others() {
        let one = worker(0, &[(1, None, "all_reduce", 4), (2, None, "all_reduce", 8)]);
        let two = worker(1, &[(1, None, "all_reduce", 8)]);
        let (parts, problems) = matched(vec![one, two]);
        assert_eq!(parts, [vec![(0, SpanId(0))], vec![(0, SpanId(1)), (1, SpanId(0))]]);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }

    #[test]
    fn a_size_that_a_worker_does_not_say_is_the_size_that_others_say() {
        let one = worker(0, &[(1, None, "all_reduce", 4), (2, None, "all_reduce", 8)]);
        let two = worker(1, &[(1, None, "all_reduce", 0), (2, None, "all_reduce", 8)]);
        let (parts, problems) = matched(vec![one, two]);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(problems, []);
    }

    #[test]
    fn only_the_root_of_a_broadcast_gives_anything() {
        let problems = |sizes: [u64; 3]| {
            let part = |(size, rank)| worker(rank, &[(1, Some(1), "broadcast", size)]);
            matched(sizes.into_iter().zip(0..).map(part).collect()).1.len()
        };
        assert_eq!([problems([0, 8, 0]), problems([8, 8, 4])], [0, 1]);
    }

    #[test]
    fn what_does_not_fit_is_reported() {
        let one = worker(0, &[(1, Some(1), "all_reduce", 4), (2, Some(2), "all_reduce", 4)]);
        let two = worker(1, &[(1, Some(1), "broadcast", 4), (2, Some(2), "all_reduce", 8)]);
        let three = worker(2, &[(1, Some(1), "all_reduce", 4), (999, None, "all_reduce", 4)]);
        let (parts, problems) = matched(vec![one, two, three]);
        assert_eq!(parts.len(), 2);
        let texts: Vec<_> = problems.iter().map(|problem| problem.text.as_str()).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        for part in ["different operations", "different sizes", "did not record", "outside of all"]
        {
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
    }

    #[test]
    fn what_reaches_out_of_the_recorded_steps_may_be_missing() {
        let operations =
            [-5_i64, 150, 299].map(|begin| (begin, Some(begin.unsigned_abs()), "all_reduce", 4));
        let mut one = worker(0, &operations);
        one.spans[2].length = 10;
        let two = worker(1, &[(10, Some(1000), "all_reduce", 4)]);
        let (parts, problems) = matched(vec![one, two]);
        assert_eq!(parts.len(), 4);
        let missing = problems.iter().find(|problem| problem.text.contains("did not record"));
        assert_eq!(missing.map(|problem| problem.times), Some(2), "{problems:?}");
    }

    #[test]
    fn kernels_that_share_a_number_are_matched_one_by_one() {
        let twice = [(1, Some(5), "all_reduce", 4), (2, Some(5), "all_reduce", 4)];
        let (parts, problems) = matched(vec![worker(0, &twice), worker(1, &twice)]);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(problems, []);
    }
}
