//! Among the offsets that bounds allow, those under which the same message takes the same time in every step. A receive
//! that waits for its sender counts from when the sender began, so a wrong offset shows as receives that vary.

use super::{
    bounds::{Solved, slack},
    matching::Sample,
};
use std::collections::BTreeMap;

/// Messages that are looked at; of more, every so many-th.
const MOST_SAMPLES: usize = 1 << 16;
/// Times that every clock is moved.
const SWEEPS: usize = 8;
/// Places that are tried for a clock in each of them, by the golden section.
const PLACES: usize = 24;
/// How close to a bound a clock may come, as a share of its room.
const MARGIN: f64 = 0.02;

/// The receives between two clocks.
struct Pair {
    from: usize,
    to: usize,
    families: Vec<Family>,
}

/// How long each receive took by its own clock, and since its sender began, offsets apart.
type Family = Vec<(f64, f64)>;

impl Pair {
    /// The variance of receives inside families, if the clocks are so far apart, times their number.
    fn variance(&self, apart: f64) -> f64 {
        let of_family = |family: &Family| {
            let lengths = family.iter().map(|(own, since)| own.min(since + apart).max(0.0));
            let (sum, squares) = lengths.fold((0.0, 0.0), |(sum, squares), length| {
                (sum + length, squares + length * length)
            });
            squares - sum * sum / family.len() as f64
        };
        self.families.iter().map(of_family).sum()
    }
}

/// Move the offsets to where receives vary least, without leaving the bounds.
pub(super) fn improve(solved: &mut Solved, messages: &[Sample]) {
    let pairs = pairs(messages);
    let apart = |pair: &Pair, offsets: &[f64]| offsets[pair.to] - offsets[pair.from];
    let all: f64 = pairs.iter().map(|pair| pair.variance(apart(pair, &solved.offsets))).sum();
    if all <= 0.0 {
        return;
    }
    let edges: Vec<_> =
        solved.kept.iter().filter(|edge| solved.reached[edge.from]).cloned().collect();
    // The bounds' own centre weighs as much as all variance together: it decides where variance says nothing.
    let weight = edges.len() as f64 / all;
    for _ in 0..SWEEPS {
        let mut moved = 0.0_f64;
        for clock in (1..solved.offsets.len()).filter(|clock| solved.reached[*clock]) {
            let touches = |from: usize, to: usize| from == clock || to == clock;
            let near: Vec<_> = edges.iter().filter(|edge| touches(edge.from, edge.to)).collect();
            let mine: Vec<_> = pairs.iter().filter(|pair| touches(pair.from, pair.to)).collect();
            let before = solved.offsets[clock];
            let mut offsets = solved.offsets.clone();
            let mut cost = |offset: f64| {
                offsets[clock] = offset;
                let barrier: f64 = near.iter().map(|edge| -slack(edge, &offsets).ln()).sum();
                let varies: f64 =
                    mine.iter().map(|pair| pair.variance(apart(pair, &offsets))).sum();
                barrier + weight * varies
            };
            let below = near.iter().filter(|edge| edge.to == clock);
            let above = near.iter().filter(|edge| edge.from == clock);
            let room = |edge: &&&_| slack(edge, &solved.offsets);
            let below = below.map(|edge| room(&edge)).fold(f64::INFINITY, f64::min);
            let above = above.map(|edge| room(&edge)).fold(f64::INFINITY, f64::min);
            if !(below.is_finite() && above.is_finite()) {
                continue;
            }
            let (low, high) = (before - below * (1.0 - MARGIN), before + above * (1.0 - MARGIN));
            let best = golden(low, high, &mut cost);
            if cost(best) < cost(before) {
                solved.offsets[clock] = best;
                moved = moved.max((best - before).abs());
            }
        }
        if moved < 1.0 {
            break;
        }
    }
}

/// Where a function of one variable is lowest, if it has one valley.
fn golden(mut low: f64, mut high: f64, cost: &mut impl FnMut(f64) -> f64) -> f64 {
    let share = (5.0_f64.sqrt() - 1.0) / 2.0;
    let inner = |low: f64, high: f64| (high - share * (high - low), low + share * (high - low));
    let (mut left, mut right) = inner(low, high);
    let (mut at_left, mut at_right) = (cost(left), cost(right));
    for _ in 0..PLACES {
        if at_left <= at_right {
            (high, right, at_right) = (right, left, at_left);
            left = inner(low, high).0;
            at_left = cost(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = inner(low, high).1;
            at_right = cost(right);
        }
    }
    0.5 * (low + high)
}

fn pairs(messages: &[Sample]) -> Vec<Pair> {
    let stride = messages.len().div_ceil(MOST_SAMPLES).max(1);
    let mut pairs: BTreeMap<(usize, usize), BTreeMap<u32, Family>> = BTreeMap::new();
    // Families, not messages, are left out: a family of one has no variance.
    for message in
        messages.iter().filter(|message| (message.family as usize).is_multiple_of(stride))
    {
        let families = pairs.entry((message.from, message.to)).or_default();
        let lengths = (message.received - message.began, message.received - message.sent);
        families.entry(message.family).or_default().push(lengths);
    }
    let pair = |((from, to), families): ((usize, usize), BTreeMap<u32, Family>)| Pair {
        from,
        to,
        families: families.into_values().filter(|family| family.len() > 1).collect(),
    };
    pairs.into_iter().map(pair).collect()
}
