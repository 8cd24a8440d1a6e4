//! Putting the spans of a worker into the order that a [`WorkerTrace`] promises, whatever order they were found in. It knows
//! no format.

use super::{Lane, LaneId, LaneKind, Span, SpanId, WorkerTrace, problems::Problems};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Names that occur many times, kept once.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<Arc<str>>);

impl Names {
    pub fn keep(&mut self, name: &str) -> Arc<str> {
        if let Some(kept) = self.0.get(name) {
            return kept.clone();
        }
        let kept: Arc<str> = name.into();
        self.0.insert(kept.clone());
        kept
    }
}

/// Lanes by whatever the format calls them.
#[derive(Debug)]
pub(super) struct Lanes<K> {
    ids: HashMap<K, LaneId>,
    pub list: Vec<Lane>,
}

impl<K> Default for Lanes<K> {
    fn default() -> Lanes<K> {
        Lanes { ids: HashMap::new(), list: Vec::new() }
    }
}

impl<K: std::hash::Hash + Eq> Lanes<K> {
    /// The lane of this key; `name` is asked for once.
    pub fn of(&mut self, key: K, kind: LaneKind, name: impl FnOnce(&K) -> String) -> LaneId {
        let next = LaneId(self.list.len() as u32);
        let list = &mut self.list;
        *self.ids.entry(key).or_insert_with_key(|key| {
            list.push(Lane { name: name(key), kind });
            next
        })
    }

    /// The lane of this key, if there is one.
    pub fn get(&self, key: &K) -> Option<LaneId> {
        self.ids.get(key).copied()
    }

    /// All of them, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut Lane)> {
        let mut keys: Vec<Option<&K>> = vec![None; self.list.len()];
        for (key, lane) in &self.ids {
            keys[lane.0 as usize] = Some(key);
        }
        keys.into_iter().zip(&mut self.list).filter_map(|(key, lane)| Some((key?, lane)))
    }
}

/// Sort the spans of a worker and its lanes, threads first, and let everything that names one follow.
pub(super) fn order(worker: &mut WorkerTrace) {
    let mut lanes: Vec<usize> = (0..worker.lanes.len()).collect();
    let place = |kind: LaneKind| match kind {
        LaneKind::Thread => 0,
        LaneKind::Stream => 1,
        LaneKind::Network => 2,
    };
    // Among equals the order of the file stays.
    lanes.sort_by_key(|lane| place(worker.lanes[*lane].kind));
    let lane_place = places(&lanes);
    worker.lanes = lanes.iter().map(|lane| worker.lanes[*lane].clone()).collect();

    let mut spans: Vec<usize> = (0..worker.spans.len()).collect();
    spans.sort_by_key(|span| {
        let span = &worker.spans[*span];
        (span.begin, Reverse(span.length))
    });
    let span_place = places(&spans);
    let mut old: Vec<Option<Span>> = worker.spans.drain(..).map(Some).collect();
    // Each place of `spans` occurs once, so nothing is taken twice.
    worker.spans = spans.iter().filter_map(|span| old[*span].take()).collect();
    for span in &mut worker.spans {
        span.lane = LaneId(lane_place[span.lane.0 as usize]);
        for after in &mut span.after {
            *after = SpanId(span_place[after.0 as usize]);
        }
        span.after.sort_unstable();
        span.after.dedup();
    }
    worker.steps.sort_by_key(|step| (step.begin, step.number));
}

/// For each old place, the new one.
fn places(order: &[usize]) -> Vec<u32> {
    let mut places = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        places[*old] = new as u32;
    }
    places
}

/// Two steps with the same number: the first is kept.
pub(super) fn keep_each_step_once(worker: &mut WorkerTrace, problems: &mut Problems) {
    let mut seen = HashSet::new();
    let before = worker.steps.len();
    worker.steps.retain(|step| seen.insert(step.number));
    let dropped = before - worker.steps.len();
    problems.add_times("a step was recorded again; the first one is kept", dropped as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Kind, Stamp, Step};

    #[test]
    fn spans_are_ordered_and_what_names_them_follows() {
        let mut worker = WorkerTrace::default();
        let mut lanes = Lanes::default();
        let stream = lanes.of("s", LaneKind::Stream, |_| "stream".into());
        let thread = lanes.of("t", LaneKind::Thread, |_| "thread".into());
        assert_eq!(lanes.of("s", LaneKind::Stream, |_| unreachable!()), stream);
        worker.lanes = lanes.list;
        let mut names = Names::default();
        let mut span = |lane, begin, length, after: &[u32]| Span {
            name: names.keep("x"),
            lane,
            begin: Stamp(begin),
            length,
            kind: Kind::Scope,
            after: after.iter().map(|id| SpanId(*id)).collect(),
        };
        worker.spans =
            vec![span(stream, 9, 1, &[2, 1, 2]), span(thread, 5, 1, &[]), span(thread, 5, 8, &[])];
        order(&mut worker);
        assert_eq!(worker.lanes[0].name, "thread");
        let begins: Vec<_> = worker.spans.iter().map(|it| (it.begin.0, it.length)).collect();
        assert_eq!(begins, [(5, 8), (5, 1), (9, 1)]);
        assert_eq!(worker.spans[2].after, [SpanId(0), SpanId(1)]);
        assert_eq!(worker.spans[2].lane, LaneId(1));
    }

    #[test]
    fn a_step_that_was_recorded_twice_is_kept_once() {
        let step = |begin| Step { number: 7, begin: Stamp(begin), end: Stamp(begin + 1) };
        let mut worker = WorkerTrace { steps: vec![step(0), step(5)], ..WorkerTrace::default() };
        let mut problems = Problems::at("here");
        keep_each_step_once(&mut worker, &mut problems);
        assert_eq!(worker.steps, [step(0)]);
        assert_eq!(problems.into_list().len(), 1);
    }
}
