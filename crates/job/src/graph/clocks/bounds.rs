//! Offsets from bounds on their differences: the point that keeps furthest from all bounds (their analytic centre), found
//! by Newton's method. It knows nothing of messages.

use std::collections::VecDeque;

/// Rounds of mending, for each bound: a cycle of bounds that contradict each other takes one.
const MENDS_PER_EDGE: usize = 4;
/// Halvings of an interval of at most 2^62 nanoseconds.
const HALVINGS: usize = 90;
/// Newton's method on a barrier needs a few dozen steps at most.
const NEWTON_STEPS: usize = 80;
/// Where two bounds leave no room at all, they are loosened by so many nanoseconds, or nothing would be inside.
const ROOM: f64 = 1.0;

/// `offset[to] - offset[from]` is at least this, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Edge {
    pub from: usize,
    pub to: usize,
    pub least: f64,
    /// How many messages said so.
    pub count: u64,
    /// Not from messages: it gives way where it contradicts one.
    pub assumed: bool,
}

/// Bounds that could not all be kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contradiction {
    pub clocks: Vec<usize>,
    /// By how many nanoseconds, all the way round.
    pub excess: f64,
}

/// Offsets inside the bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Solved {
    /// Of each clock, 0 for the first.
    pub offsets: Vec<f64>,
    /// Whether bounds join it with the first.
    pub reached: Vec<bool>,
    /// Half of what the bounds leave open.
    pub uncertainty: Vec<f64>,
    /// The bounds as they were given.
    pub edges: Vec<Edge>,
    /// The same in the same order, loosened until they agree: these hold for the offsets.
    pub kept: Vec<Edge>,
    pub contradictions: Vec<Contradiction>,
}

/// Offsets of `count` clocks.
pub(super) fn solve(count: usize, edges: Vec<Edge>) -> Solved {
    let mut kept = edges.clone();
    let contradictions = mend(count, &mut kept);
    let reached = reached(count, &kept);
    let inside = |edge: &&Edge| reached[edge.from];
    let active: Vec<Edge> = kept.iter().filter(inside).cloned().collect();
    let room = room(count, &active);
    if room < ROOM {
        kept.iter_mut().for_each(|edge| edge.least -= ROOM);
    }
    let active: Vec<Edge> = kept.iter().filter(inside).cloned().collect();
    let start = potentials(count, &active, room.max(ROOM) / 2.0);
    let mut offsets = centre(&active, start.unwrap_or_else(|_| vec![0.0; count]), &reached);
    let first = offsets.first().copied().unwrap_or(0.0);
    for (offset, reached) in offsets.iter_mut().zip(&reached) {
        *offset = if *reached { *offset - first } else { 0.0 };
    }
    let uncertainty = uncertainty(count, &active, &reached);
    Solved { offsets, reached, uncertainty, edges, kept, contradictions }
}

/// Loosen bounds until no cycle of them contradicts itself: assumed ones first, then all of the cycle alike.
fn mend(count: usize, edges: &mut [Edge]) -> Vec<Contradiction> {
    let mut found: Vec<Contradiction> = Vec::new();
    for _ in 0..MENDS_PER_EDGE * edges.len() {
        let Err(cycle) = potentials(count, edges, 0.0) else { break };
        let excess: f64 = cycle.iter().map(|edge| edges[*edge].least).sum();
        let mut giving: Vec<usize> =
            cycle.iter().copied().filter(|edge| edges[*edge].assumed).collect();
        if giving.is_empty() {
            let mut clocks: Vec<usize> = cycle.iter().map(|edge| edges[*edge].to).collect();
            clocks.sort_unstable();
            match found.iter_mut().find(|other| other.clocks == clocks) {
                Some(other) => other.excess += excess,
                None => found.push(Contradiction { clocks, excess }),
            }
            giving = cycle;
        }
        let share = excess / giving.len() as f64 + ROOM;
        giving.into_iter().for_each(|edge| edges[edge].least -= share);
    }
    found
}

/// Clocks that are bounded from both sides with respect to the first.
fn reached(count: usize, edges: &[Edge]) -> Vec<bool> {
    let walk = |from: fn(&Edge) -> usize, to: fn(&Edge) -> usize| {
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); count];
        edges.iter().for_each(|edge| next[from(edge)].push(to(edge)));
        let mut seen = vec![false; count];
        let mut queue = VecDeque::from_iter((count > 0).then_some(0));
        while let Some(clock) = queue.pop_front() {
            if !std::mem::replace(&mut seen[clock], true) {
                queue.extend(next[clock].iter().copied());
            }
        }
        seen
    };
    let (forth, back) =
        (walk(|edge| edge.from, |edge| edge.to), walk(|edge| edge.to, |edge| edge.from));
    forth.iter().zip(&back).map(|(forth, back)| *forth && *back).collect()
}

/// Offsets that keep all bounds and `more` besides (Bellman and Ford), or the bounds of a cycle that cannot be kept.
fn potentials(count: usize, edges: &[Edge], more: f64) -> Result<Vec<f64>, Vec<usize>> {
    let mut offsets = vec![0.0; count];
    let mut cause: Vec<Option<usize>> = vec![None; count];
    let mut last = None;
    for _ in 0..=count {
        last = None;
        for (place, edge) in edges.iter().enumerate() {
            let least = offsets[edge.from] + edge.least + more;
            // What rounding moves is no contradiction.
            if least > offsets[edge.to] + 1e-3 {
                offsets[edge.to] = least;
                cause[edge.to] = Some(place);
                last = Some(edge.to);
            }
        }
        if last.is_none() {
            return Ok(offsets);
        }
    }
    // Whatever still moves hangs on a cycle: so many steps back are on it, or before.
    let mut clock = last.unwrap_or(0);
    for _ in 0..count {
        let Some(edge) = cause[clock] else { break };
        clock = edges[edge].from;
    }
    let mut cycle = Vec::new();
    let begin = clock;
    for _ in 0..count {
        let Some(edge) = cause[clock] else { break };
        cycle.push(edge);
        clock = edges[edge].from;
        if clock == begin {
            break;
        }
    }
    Err(cycle)
}

/// The most by which all bounds can be kept at once.
fn room(count: usize, edges: &[Edge]) -> f64 {
    let widest = edges.iter().map(|edge| edge.least.abs()).fold(1.0, f64::max);
    let (mut low, mut high) = (0.0, 2.0 * widest);
    for _ in 0..HALVINGS {
        if high - low < 0.25 + low * 0.01 {
            break;
        }
        let middle = 0.5 * (low + high);
        match potentials(count, edges, middle) {
            Ok(_) => low = middle,
            Err(_) => high = middle,
        }
    }
    low
}

/// How much each bound is kept by.
pub(super) fn slack(edge: &Edge, offsets: &[f64]) -> f64 {
    offsets[edge.to] - offsets[edge.from] - edge.least
}

/// The offsets that make the product of all slacks largest, from a start where all are above 0. The first stays.
fn centre(edges: &[Edge], start: Vec<f64>, reached: &[bool]) -> Vec<f64> {
    let mut offsets = start;
    let value =
        |offsets: &[f64]| -> f64 { edges.iter().map(|edge| -slack(edge, offsets).ln()).sum() };
    if edges.iter().any(|edge| slack(edge, &offsets) <= 0.0) {
        return offsets;
    }
    let free = |clock: usize| clock != 0 && reached[clock];
    for _ in 0..NEWTON_STEPS {
        let mut gradient = vec![0.0; offsets.len()];
        for edge in edges {
            let pull = 1.0 / slack(edge, &offsets);
            gradient[edge.to] -= pull;
            gradient[edge.from] += pull;
        }
        (0..gradient.len()).filter(|clock| !free(*clock)).for_each(|clock| gradient[clock] = 0.0);
        let step = newton_step(edges, &offsets, &gradient, &free);
        let decrement: f64 = step.iter().zip(&gradient).map(|(step, slope)| -step * slope).sum();
        if decrement.is_nan() || decrement < 1e-9 {
            break;
        }
        let before = value(&offsets);
        let mut length = 1.0;
        // 40 halvings are below the precision of a slack.
        for _ in 0..40 {
            let moved: Vec<f64> =
                offsets.iter().zip(&step).map(|(offset, step)| offset + length * step).collect();
            let inside = edges.iter().all(|edge| slack(edge, &moved) > 0.0);
            if inside && value(&moved) <= before - 0.1 * length * decrement {
                offsets = moved;
                break;
            }
            length *= 0.5;
        }
    }
    offsets
}

/// Where the second-order model is lowest, by conjugate gradients: its matrix is the Laplacian of the bounds.
fn newton_step(
    edges: &[Edge],
    offsets: &[f64],
    gradient: &[f64],
    free: &impl Fn(usize) -> bool,
) -> Vec<f64> {
    let stiffness: Vec<f64> = edges.iter().map(|edge| slack(edge, offsets).powi(-2)).collect();
    let times = |vector: &[f64]| {
        let mut product = vec![0.0; vector.len()];
        for (edge, stiffness) in edges.iter().zip(&stiffness) {
            let force = stiffness * (vector[edge.to] - vector[edge.from]);
            product[edge.to] += force;
            product[edge.from] -= force;
        }
        (0..product.len()).filter(|clock| !free(*clock)).for_each(|clock| product[clock] = 0.0);
        product
    };
    let dot = |one: &[f64], other: &[f64]| -> f64 {
        one.iter().zip(other).map(|(one, other)| one * other).sum()
    };
    let mut step = vec![0.0; gradient.len()];
    let mut residual: Vec<f64> = gradient.iter().map(|slope| -slope).collect();
    let mut direction = residual.clone();
    let mut size = dot(&residual, &residual);
    let enough = size * 1e-16;
    // In exact arithmetic as many turns as clocks suffice.
    for _ in 0..2 * gradient.len() {
        if size <= enough {
            break;
        }
        let product = times(&direction);
        let along = size / dot(&direction, &product);
        for place in 0..step.len() {
            step[place] += along * direction[place];
            residual[place] -= along * product[place];
        }
        let next = dot(&residual, &residual);
        for (direction, residual) in direction.iter_mut().zip(&residual) {
            *direction = residual + next / size * *direction;
        }
        size = next;
    }
    step
}

/// Half of what the bounds leave each clock with respect to the first, by the longest ways there and back.
fn uncertainty(count: usize, edges: &[Edge], reached: &[bool]) -> Vec<f64> {
    let ways = |from: fn(&Edge) -> usize, to: fn(&Edge) -> usize| {
        let mut longest = vec![f64::NEG_INFINITY; count];
        if let Some(first) = longest.first_mut() {
            *first = 0.0;
        }
        for _ in 0..count {
            for edge in edges {
                let length = longest[from(edge)] + edge.least;
                longest[to(edge)] = longest[to(edge)].max(length);
            }
        }
        longest
    };
    let (least, most) =
        (ways(|edge| edge.from, |edge| edge.to), ways(|edge| edge.to, |edge| edge.from));
    let half = |clock: usize| {
        if reached[clock] { (-most[clock] - least[clock]).max(0.0) / 2.0 } else { 0.0 }
    };
    (0..count).map(half).collect()
}
