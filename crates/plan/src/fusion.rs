//! What to send together. dPRO's second theorem says for two neighbours whether one operation ends sooner than two; it is
//! applied along the critical path, and replay has the last word.

use crate::{
    candidate::{Candidate, bucket_cuts, needed_cuts, plans_groups, tensors},
    error::PlanError,
    evaluate::{Evaluator, FOLLOWED},
    search::Best,
};
use paceline_job::{
    Pass, Time,
    graph::{Graph, OperationId},
};
use paceline_replay::graph::{Piece, Played, critical_path};
use std::collections::HashSet;

/// Lengths that groups may have at most, as variants of what the theorem says: a group that is too long keeps what is
/// needed first from going first.
const CAPS: [u64; 4] = [1 << 20, 4 << 20, 16 << 20, u64::MAX];
/// Buckets of a fixed length, so that no plan is worse than the best of them.
const BUCKETS: [u64; 6] = [1 << 20, 4 << 20, 10 << 20, 25 << 20, 64 << 20, u64::MAX];
/// Of all these, the ones that partial replay likes best are replayed as a whole.
const PROMISING: usize = 6;
/// Single cuts that are tried around the critical path.
const MOST_MOVES: usize = 48;

/// Look for better groups.
pub(crate) fn improve(evaluator: &mut Evaluator<'_>, best: &mut Best) -> Result<(), PlanError> {
    let planned = evaluator.layered().filter(|layered| plans_groups(Some(layered)));
    let Some(layered) = planned.cloned() else { return Ok(()) };
    let needed = needed_cuts(&layered);
    if needed.is_empty() {
        return Ok(());
    }
    let mut tried: Vec<Vec<bool>> = Vec::new();
    if let Some(seen) = Seen::of(evaluator, &best.candidate)? {
        for cap in CAPS {
            for whole in [true, false] {
                tried.push(seen.walk(evaluator, &best.candidate, cap, whole)?);
            }
        }
    }
    tried.extend(BUCKETS.map(|bytes| bucket_cuts(&layered, bytes)));
    let before = best.candidate.clone();
    let mut cheapest = (best.value, before.cuts.clone());
    let mut known = HashSet::from([before.cuts.clone()]);
    tried.retain(|cuts| known.insert(cuts.clone()));
    let tried = tried.into_iter().map(|cuts| before.cut(cuts)).collect();
    for candidate in evaluator.promising(tried, PROMISING) {
        let value = evaluator.estimate(&candidate);
        if value < cheapest.0 {
            cheapest = (value, candidate.cuts);
        }
    }
    let candidate = before.cut(cheapest.1);
    best.offer(candidate.clone(), cheapest.0, Pass::TensorFusion, || said(&candidate));
    refine(evaluator, best, &needed)
}

pub(crate) fn said(candidate: &Candidate) -> String {
    let ranges = candidate.ranges();
    let tensors = candidate.cuts.len() + 1;
    format!("send {tensors} tensors in {} operations", ranges.len())
}

/// Try single cuts: between groups on the critical path, and inside the longest of them.
fn refine(
    evaluator: &mut Evaluator<'_>,
    best: &mut Best,
    needed: &[bool],
) -> Result<(), PlanError> {
    let Some(layered) = evaluator.layered() else { return Ok(()) };
    let lengths: Vec<u64> = tensors(layered).iter().map(|tensor| tensor.bytes()).collect();
    let mut left = MOST_MOVES;
    // Each turn uses at least one move, or is the last.
    while left > 0 && !evaluator.is_spent() {
        let Some(seen) = Seen::of(evaluator, &best.candidate)? else { break };
        let ranges = best.candidate.ranges();
        let mut places: Vec<usize> = Vec::new();
        for group in seen.critical_groups(&ranges) {
            let range = &ranges[group];
            places.extend([range.start.checked_sub(1), Some(range.end - 1)].into_iter().flatten());
            places.extend(halves(range, &lengths));
        }
        places.retain(|place| needed.get(*place) == Some(&false));
        let mut kept = HashSet::new();
        places.retain(|place| kept.insert(*place));
        let mut moved = false;
        for place in places.into_iter().take(left) {
            left -= 1;
            let mut cuts = best.candidate.cuts.clone();
            cuts[place] = !cuts[place];
            let candidate = best.candidate.cut(cuts);
            if evaluator.is_hopeless(&candidate, &best.candidate) {
                continue;
            }
            let value = evaluator.estimate(&candidate);
            moved |= best.offer(candidate.clone(), value, Pass::TensorFusion, || said(&candidate));
        }
        if !moved {
            break;
        }
    }
    Ok(())
}

/// The place that cuts a group into halves of about the same length, if it has one.
fn halves(range: &std::ops::Range<usize>, lengths: &[u64]) -> Option<usize> {
    let all: u64 = lengths[range.clone()].iter().sum();
    let mut sum = 0;
    let half = range.clone().find(|place| {
        sum += lengths[*place];
        2 * sum >= all
    })?;
    (range.len() > 1).then(|| half.min(range.end - 2).max(range.start))
}

/// When the groups of one step were ready and when they were over, in the order in which the backward pass makes them.
struct Seen {
    ready: Vec<f64>,
    over: Vec<f64>,
    bytes: Vec<f64>,
    critical: Vec<bool>,
}

impl Seen {
    fn of(evaluator: &mut Evaluator<'_>, candidate: &Candidate) -> Result<Option<Seen>, PlanError> {
        let Some((graph, played)) = evaluator.follow(candidate)? else { return Ok(None) };
        Ok(Some(Seen::in_step(&graph, &played, candidate.ranges().len())))
    }

    /// Of the last step whose operations somebody waits for. Those of so many groups come first in the graph, step by step.
    fn in_step(graph: &Graph, played: &Played, groups: usize) -> Seen {
        let step = FOLLOWED - 2;
        let critical: HashSet<OperationId> = critical_path(graph, played, Time::ZERO)
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Operation { operation, .. } => Some(operation),
                Piece::Node { .. } => None,
            })
            .collect();
        let mut seen = Seen {
            ready: Vec::with_capacity(groups),
            over: Vec::with_capacity(groups),
            bytes: Vec::with_capacity(groups),
            critical: Vec::with_capacity(groups),
        };
        for group in 0..groups {
            let place = step * groups + group;
            let post = played.last_posts[place];
            seen.ready.push(post.map_or(0.0, |post| played.ends[post.index()].0 as f64));
            seen.over.push(played.over[place].0 as f64);
            let operation = &graph.operations[place];
            seen.bytes.push((operation.elements * operation.dtype.size() as u64) as f64);
            let of_any_step = (0..FOLLOWED).map(|step| OperationId((step * groups + group) as u32));
            seen.critical.push(of_any_step.into_iter().any(|one| critical.contains(&one)));
        }
        seen
    }

    /// Groups on the critical path, by their place among ranges, which are in the order of the forward pass.
    fn critical_groups(&self, ranges: &[std::ops::Range<usize>]) -> Vec<usize> {
        let last = ranges.len().saturating_sub(1);
        let places =
            (0..ranges.len()).filter(|place| self.critical.get(last - place) == Some(&true));
        places.collect()
    }

    /// Fuse neighbours where the theorem says so: where the one before is over later than both together would be,
    /// q(n-1).e > p(n).e + t(s(n-1) + s(n)) - t(s(n)).
    fn walk(
        &self,
        evaluator: &mut Evaluator<'_>,
        candidate: &Candidate,
        cap: u64,
        whole: bool,
    ) -> Result<Vec<bool>, PlanError> {
        let ranges = candidate.ranges();
        let needed = evaluator.layered().map(needed_cuts).unwrap_or_default();
        let prices = evaluator.prices(candidate)?;
        let mut cuts = candidate.cuts.clone();
        let mut size = self.bytes.first().copied().unwrap_or(0.0);
        let mut over = self.over.first().copied().unwrap_or(0.0);
        // When what came before the present group is over.
        let mut before: f64 = 0.0;
        for next in 1..self.bytes.len() {
            // The cut between the two: groups come from the end of the forward pass.
            let cut = ranges[ranges.len() - next].start - 1;
            let bytes = self.bytes[next];
            let together = self.ready[next] + prices.alone(size + bytes) - prices.alone(bytes);
            let looked_at = whole || self.critical[next] || self.critical[next - 1];
            let fits = size + bytes <= cap as f64;
            if looked_at && fits && !needed[cut] && over > together {
                cuts[cut] = false;
                size += bytes;
                over = self.ready[next].max(before) + prices.alone(size);
            } else {
                before = over;
                size = bytes;
                let unchanged = self.over[next];
                over = unchanged.min(self.ready[next].max(before) + prices.alone(bytes));
            }
        }
        Ok(cuts)
    }
}
