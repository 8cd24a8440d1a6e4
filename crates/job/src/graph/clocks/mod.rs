//! Clocks of different hosts on one axis: what has to be added to each so that no message arrives before it was sent.
//!
//! The workers of a host share its clock. Between hosts, messages bound how far clocks can be apart; inside the bounds, the
//! variance of receiving times decides (a receive that waits for its sender does not count before the sender began), and
//! where that says nothing, the middle. Where there are no messages, operations of several workers end together.
//! What a trace looks like on disk, and what is made of aligned times, is not known here.

mod bounds;
mod drift;
mod matching;
#[cfg(test)]
mod tests;
mod variance;

use crate::{
    Rank,
    trace::{Problem, Stamp, Trace},
};
use bounds::Edge;
use matching::Matched;

/// What makes the common clock of workers' clocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// Nanoseconds that are added, by rank; none for ranks beyond.
    pub offsets: Vec<i64>,
    /// How much faster than the common clock each worker's runs, by rank; not at all for ranks beyond.
    pub drifts: Vec<Drift>,
}

/// A clock that runs at another speed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift {
    /// Nanoseconds that are added for each nanosecond that has passed, besides the offset.
    pub rate: f64,
    /// Since when, on the worker's clock.
    pub since: Stamp,
}

impl Clocks {
    /// All clocks agree.
    pub fn agreeing() -> Clocks {
        Clocks::default()
    }

    /// A worker's stamp on the common axis.
    pub fn common(&self, rank: Rank, stamp: Stamp) -> Stamp {
        let offset = self.offsets.get(rank.index()).copied().unwrap_or(0);
        let drift = self.drifts.get(rank.index()).copied().unwrap_or_default();
        let drifted = (stamp.0.saturating_sub(drift.since.0) as f64 * drift.rate).round() as i64;
        Stamp(stamp.0.saturating_add(offset).saturating_add(drifted))
    }

    /// Clocks such that, as far as the trace allows, nothing arrives before it was sent. Worker 0's clock stays as it is.
    pub fn align(trace: &Trace) -> Alignment {
        let mut matched = matching::of(trace);
        let mut problems = std::mem::take(&mut matched.problems);
        let rates = drift::rates(&matched);
        matched.correct(&rates);
        let edges = matched.edges(0, 1);
        let (by_ends, one_way) = (edges.by_ends, edges.one_way);
        let mut solved = bounds::solve(matched.clocks.len(), edges.list);
        variance::improve(&mut solved, &matched.messages);
        problems.extend(contradictions(&solved, &matched));
        problems.extend(weak(trace, &solved, &matched, by_ends, &one_way));
        assemble(trace, &matched, &rates, &solved, problems)
    }
}

/// The clocks of a trace, and how far they can be trusted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alignment {
    /// To be used.
    pub clocks: Clocks,
    /// For each two hosts that sent to each other, the quickest message.
    pub bounds: Vec<Bound>,
    /// By rank, nanoseconds by which a clock could be earlier or later without any message arriving before it was sent; 0
    /// where nothing bounds it.
    pub uncertainty: Vec<u64>,
    /// What was missing or contradicted itself, and what was done about it.
    pub problems: Vec<Problem>,
}

/// The tightest bound between two clocks: the message that was quickest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// A worker of the host that sent.
    pub sender: Rank,
    /// A worker of the host that received.
    pub receiver: Rank,
    /// Nanoseconds between the begin of its sending and the end of its receipt on the common clock; below 0 where bounds
    /// contradict each other.
    pub quickest: i64,
    /// Out of so many.
    pub messages: u64,
}

fn contradictions(solved: &bounds::Solved, matched: &Matched) -> Vec<Problem> {
    let name = |clock: usize| matched.clocks[clock].host.as_str();
    let one = |contradiction: &bounds::Contradiction| {
        let mut hosts: Vec<&str> = contradiction.clocks.iter().map(|clock| name(*clock)).collect();
        hosts.sort_unstable();
        let microseconds = contradiction.excess / 1e3;
        Problem {
            place: hosts.join(", "),
            text: format!(
                "messages between these clocks contradict each other by {microseconds:.1} us: some were recorded as \
                 received before they can have been sent; the error is shared out"
            ),
            times: 1,
        }
    };
    solved.contradictions.iter().map(one).collect()
}

/// Clocks of which little or nothing is known.
fn weak(
    trace: &Trace,
    solved: &bounds::Solved,
    matched: &Matched,
    by_ends: bool,
    one_way: &[[usize; 2]],
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for pair in one_way {
        let [from, to] = pair.map(|clock| matched.clocks[clock].host.as_str());
        problems.push(Problem {
            place: format!("{from}, {to}"),
            text: "messages between these clocks go one way only; the quickest is taken to have been as quick as elsewhere"
                .to_string(),
            times: 1,
        });
    }
    for (place, worker) in trace.workers.iter().enumerate() {
        if !solved.reached[matched.clock_of[place]] {
            problems.push(Problem {
                place: format!("worker {}", worker.rank),
                text: "no message and no operation joins its clock with worker 0's; it is taken as it is"
                    .to_string(),
                times: 1,
            });
        }
    }
    if by_ends {
        problems.push(Problem {
            place: "clocks".to_string(),
            text: "without messages, operations of several workers are taken to end at the same time on all of them"
                .to_string(),
            times: 1,
        });
    }
    problems
}

fn assemble(
    trace: &Trace,
    matched: &Matched,
    rates: &[f64],
    solved: &bounds::Solved,
    problems: Vec<Problem>,
) -> Alignment {
    let size = trace.workers.iter().map(|worker| worker.rank.index() + 1).max().unwrap_or(0);
    let mut clocks = Clocks { offsets: vec![0; size], drifts: vec![Drift::default(); size] };
    let mut uncertainty = vec![0; size];
    let first = matched.clocks.first().map_or(Stamp(0), |clock| clock.since);
    for (place, worker) in trace.workers.iter().enumerate() {
        let clock = matched.clock_of[place];
        let (rank, since) = (worker.rank.index(), matched.clocks[clock].since);
        if !solved.reached[clock] {
            continue;
        }
        // Clocks were compared from their first message on, so that nanoseconds survive.
        let between = first.0.saturating_sub(since.0);
        clocks.offsets[rank] = between.saturating_add(solved.offsets[clock].round() as i64);
        clocks.drifts[rank] = Drift { rate: rates[clock], since };
        uncertainty[rank] = solved.uncertainty[clock].round() as u64;
    }
    let bound = |edge: &Edge| Bound {
        sender: matched.clocks[edge.from].rank,
        receiver: matched.clocks[edge.to].rank,
        quickest: (solved.offsets[edge.to] - solved.offsets[edge.from] - edge.least).round() as i64,
        messages: edge.count,
    };
    let bounds = solved.edges.iter().filter(|edge| !edge.assumed).map(bound).collect();
    Alignment { clocks, bounds, uncertainty, problems }
}
