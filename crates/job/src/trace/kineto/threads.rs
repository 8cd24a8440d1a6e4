//! Threads that wait for each other without an event that says so: `backward()` hands over to a thread of autograd's and
//! stands still until that is done.

use super::{
    gather::{Class, Gathered},
    nesting::Nesting,
};
use crate::trace::{Kind, LaneId, LaneKind, Phase, Span, SpanId, Stamp};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

/// What the wait is called.
const NAME: &str = "wait for backward";

/// Put a wait on the thread that computes forward, wherever it does nothing while another thread computes backward, and let
/// that thread begin after what came before. What such a thread does besides is waited for as well: DDP copies its buckets
/// back there. Adds spans.
pub fn wait_for_backward(gathered: &Gathered, nesting: &Nesting, spans: &mut Vec<Span>) {
    let Some(caller) = caller(gathered, nesting) else { return };
    let busy = busy(gathered, nesting, spans, caller);
    let others: Vec<usize> = (0..gathered.raw.len())
        .filter(|at| {
            let raw = &gathered.raw[*at];
            let lane = &gathered.lanes.list[raw.lane.0 as usize];
            raw.lane != caller
                && lane.kind == LaneKind::Thread
                && gathered.notes[*at].class == Class::Operator
                && nesting.parents[*at].is_none()
        })
        .collect();
    let is_backward = |at: usize| nesting.phases[at] == Phase::Backward;
    let threads: HashSet<LaneId> =
        others.iter().filter(|at| is_backward(**at)).map(|at| gathered.raw[*at].lane).collect();
    let backward: Vec<usize> =
        others.into_iter().filter(|at| threads.contains(&gathered.raw[*at].lane)).collect();
    let mut rest = &backward[..];
    for (place, at) in busy.iter().enumerate() {
        let before = gathered.raw[*at].end();
        let next = busy.get(place + 1).map(|next| gathered.raw[*next].begin);
        // A pass that began before the caller was free is not what it waits for.
        rest = &rest[rest.partition_point(|it| gathered.raw[*it].begin < before)..];
        let inside = next
            .map_or(rest.len(), |next| rest.partition_point(|it| gathered.raw[*it].begin < next));
        let (pass, later) = rest.split_at(inside);
        rest = later;
        if !pass.iter().any(|it| is_backward(*it)) {
            continue;
        }
        // What is no part of the pass and goes on beside what the caller does next, nobody waited for.
        let over = |at: usize| next.is_none_or(|next| gathered.raw[at].end() <= next);
        let pass: Vec<usize> =
            pass.iter().copied().filter(|it| is_backward(*it) || over(*it)).collect();
        let Some(first) = pass.first() else { continue };
        // The last of each thread: one thread for each device.
        let mut last: HashMap<LaneId, usize> = HashMap::new();
        for it in &pass {
            last.insert(gathered.raw[*it].lane, *it);
        }
        let end = last.values().map(|it| gathered.raw[*it].end()).max().unwrap_or(before);
        if next.is_some_and(|next| end > next) {
            continue;
        }
        let begin: Stamp = gathered.raw[*first].begin;
        let mut firsts: Vec<LaneId> = Vec::new();
        for it in &pass {
            if !firsts.contains(&gathered.raw[*it].lane) {
                firsts.push(gathered.raw[*it].lane);
                spans[*it].after.push(SpanId(*at as u32));
            }
        }
        spans.push(Span {
            name: NAME.into(),
            lane: caller,
            begin,
            length: end.since(begin),
            kind: Kind::Wait,
            after: last.values().map(|it| SpanId(*it as u32)).collect(),
        });
    }
}

/// What a thread does, in order, without what lies inside: annotations around everything are no work.
pub fn busy(gathered: &Gathered, nesting: &Nesting, spans: &[Span], lane: LaneId) -> Vec<usize> {
    let scope = |at: usize| matches!(spans[at].kind, Kind::Scope);
    (0..gathered.raw.len())
        .filter(|at| gathered.raw[*at].lane == lane && !scope(*at))
        .filter(|at| nesting.ancestors(*at).all(scope))
        .collect()
}

/// The thread with most of the forward pass.
fn caller(gathered: &Gathered, nesting: &Nesting) -> Option<LaneId> {
    let mut forward: HashMap<LaneId, u64> = HashMap::new();
    for (raw, phase) in gathered.raw.iter().zip(&nesting.phases) {
        if *phase == Phase::Forward {
            *forward.entry(raw.lane).or_default() += 1;
        }
    }
    forward.into_iter().max_by_key(|(lane, count)| (*count, Reverse(*lane))).map(|(lane, _)| lane)
}
