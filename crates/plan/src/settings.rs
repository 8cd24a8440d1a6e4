//! Strategy, partition and credit: every strategy once, then a climb over powers of two for the two best.

use crate::{candidate::Candidate, evaluate::Evaluator, search::Best};
use paceline_job::{ByteSize, Pass, StrategyChoice};
use paceline_sync::strategy;
use std::collections::{HashMap, HashSet};

/// Partitions that are tried: powers of two from 32 KiB to 64 MiB.
const EXPONENTS: std::ops::RangeInclusive<u32> = 15..=26;
/// More chunks than this in a step cost more to replay than they could ever gain.
const MOST_CHUNKS: u64 = 2048;
/// Credits that are tried, in partitions; the last is no limit.
const CREDITS: [u64; 6] = [1, 2, 4, 8, 16, u64::MAX];
/// Strategies whose settings are looked at closely.
const CLOSELY: usize = 2;
/// Places of the wide mesh that are replayed as a whole; partial replay chooses them.
const PROMISING: usize = 6;
/// Turns of a climb: no way over the grid is longer.
const MOST_TURNS: usize = 24;

/// Look for better settings.
pub(crate) fn improve(evaluator: &mut Evaluator<'_>, best: &mut Best) {
    let mut ranked: Vec<(f64, StrategyChoice)> = strategies(evaluator)
        .into_iter()
        .map(|strategy| {
            let candidate = Candidate { strategy: strategy.clone(), ..best.candidate.clone() };
            (evaluator.estimate(&candidate), strategy)
        })
        .collect();
    ranked.push((best.value, best.candidate.strategy.clone()));
    ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
    ranked.dedup_by(|one, other| one.1 == other.1);
    if let Some((value, strategy)) = ranked.first().cloned() {
        let candidate = Candidate { strategy, ..best.candidate.clone() };
        best.offer(candidate.clone(), value, Pass::Strategy, || said_strategy(&candidate));
    }
    for (_, strategy) in ranked.into_iter().take(CLOSELY) {
        climb(evaluator, best, &strategy);
    }
}

pub(crate) fn said_strategy(candidate: &Candidate) -> String {
    format!("strategy = {}", candidate.strategy)
}

pub(crate) fn said_partition(candidate: &Candidate) -> String {
    format!("partition = {}", candidate.partition)
}

pub(crate) fn said_credit(candidate: &Candidate) -> String {
    format!("credit = {}", candidate.credit)
}

/// Strategies that sum exactly and that these workers can use.
pub(crate) fn strategies(evaluator: &Evaluator<'_>) -> Vec<StrategyChoice> {
    let workers = &evaluator.task().scenario.graph.workers;
    let hosts: HashSet<&str> = workers.iter().map(|worker| worker.host.as_str()).collect();
    // Hierarchies need hosts with several workers, and several hosts.
    let levels = hosts.len() > 1 && hosts.len() < workers.len();
    let names = strategy::exact().into_iter().map(|strategy| strategy.name().to_string());
    let fits = |name: &String| levels || name != "hierarchical";
    names.filter(fits).map(StrategyChoice).collect()
}

/// Partitions that a step's gradients can be cut into at bearable cost.
pub(crate) fn partitions(evaluator: &Evaluator<'_>) -> Vec<ByteSize> {
    let least = evaluator.task().bytes() / MOST_CHUNKS;
    let all: Vec<ByteSize> = EXPONENTS.map(|exponent| ByteSize(1 << exponent)).collect();
    let fits: Vec<ByteSize> = all.iter().copied().filter(|size| size.0 >= least).collect();
    if fits.is_empty() { all[all.len() - 1..].to_vec() } else { fits }
}

/// Credits for a partition.
pub(crate) fn credit(partition: ByteSize, place: usize) -> ByteSize {
    ByteSize(partition.0.saturating_mul(CREDITS[place.min(CREDITS.len() - 1)]))
}

pub(crate) const CREDIT_PLACES: usize = CREDITS.len();

/// The best partition and credit of a strategy: a wide mesh first, then from its best place to better neighbours.
fn climb(evaluator: &mut Evaluator<'_>, best: &mut Best, strategy: &StrategyChoice) {
    let sizes = partitions(evaluator);
    let base = Candidate { strategy: strategy.clone(), ..best.candidate.clone() };
    let at = |(size, place): (usize, usize)| Candidate {
        partition: sizes[size],
        credit: credit(sizes[size], place),
        ..base.clone()
    };
    let mut here = (0, 0);
    let mut value = f64::INFINITY;
    let mesh = (0..sizes.len()).step_by(2).flat_map(|size| [0, 2, 5].map(|place| (size, place)));
    let mut places: HashMap<Candidate, (usize, usize)> = HashMap::new();
    let mut wide = Vec::new();
    for place in mesh {
        places.insert(at(place), place);
        wide.push(at(place));
    }
    for candidate in evaluator.promising(wide, PROMISING) {
        let found = evaluator.estimate(&candidate);
        if found < value {
            (here, value) = (places[&candidate], found);
        }
    }
    for _ in 0..MOST_TURNS {
        let (size, place) = here;
        let neighbours = [
            (size.wrapping_sub(1), place),
            (size + 1, place),
            (size, place.wrapping_sub(1)),
            (size, place + 1),
        ];
        let inside = |(size, place): &(usize, usize)| *size < sizes.len() && *place < CREDITS.len();
        let mut moved = false;
        for neighbour in neighbours.into_iter().filter(inside) {
            let found = evaluator.estimate(&at(neighbour));
            if found < value {
                (here, value, moved) = (neighbour, found, true);
            }
        }
        if !moved {
            break;
        }
    }
    let goal = at(here);
    if value < best.value {
        take(evaluator, best, &goal, value);
    }
}

/// Take several settings at once, as one decision each.
fn take(evaluator: &mut Evaluator<'_>, best: &mut Best, goal: &Candidate, value: f64) {
    let before = (best.candidate.clone(), best.value);
    if best.offer(goal.clone(), value, Pass::TensorPartition, String::new) {
        best.decisions.pop();
        best.decisions.extend(crate::search::explained(evaluator, &before.0, goal));
    }
}
