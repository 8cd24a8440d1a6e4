//! Simulated annealing: a second way to look for plans, which knows nothing of critical paths, to check the first against.

use crate::{
    candidate::{Candidate, needed_cuts, plans_groups},
    error::PlanError,
    evaluate::Evaluator,
    search::{Found, explained},
    settings,
};
use paceline_replay::Random;

/// How soon steps that cost are refused: a loss of a hundredth is taken with probability exp(-GREED * 0.01 * ln(n + 1)).
const GREED: f64 = 60.0;
/// Moves in a row that lead nowhere new, after which there is nothing left to try.
const MOST_REPEATS: usize = 200;

/// Wander from what there is.
pub(crate) fn run(
    evaluator: &mut Evaluator<'_>,
    start: &Candidate,
    seed: u64,
) -> Result<Found, PlanError> {
    let mut random = Random::new(seed);
    let moves = Moves::of(evaluator);
    let mut here = start.clone();
    let mut value = evaluator.estimate(start);
    let mut best = (value, start.clone());
    let (mut turn, mut repeats) = (0_u32, 0);
    // Every turn replays something new, or counts as a repeat.
    while !evaluator.is_spent() && repeats < MOST_REPEATS {
        let before = evaluator.replays();
        let next = moves.some(&here, &mut random);
        let found = evaluator.estimate(&next);
        repeats = if evaluator.replays() > before { 0 } else { repeats + 1 };
        turn += 1;
        let gain = (value - found) / value;
        let chance = (GREED * f64::from(turn + 1).ln() * gain).exp();
        let drawn = random.below(1 << 30) as f64 / (1_u64 << 30) as f64;
        if gain >= 0.0 || drawn < chance {
            (here, value) = (next, found);
        }
        if value < best.0 {
            best = (value, here.clone());
        }
    }
    let decisions = explained(evaluator, start, &best.1);
    Ok(Found { engine: "annealing", best: best.1, decisions })
}

/// What may be changed.
struct Moves {
    strategies: Vec<paceline_job::StrategyChoice>,
    partitions: Vec<paceline_job::ByteSize>,
    /// Cuts that may go or come.
    free: Vec<usize>,
}

impl Moves {
    fn of(evaluator: &Evaluator<'_>) -> Moves {
        let planned = evaluator.layered().filter(|layered| plans_groups(Some(layered)));
        let needed = planned.map(needed_cuts).unwrap_or_default();
        Moves {
            strategies: settings::strategies(evaluator),
            partitions: settings::partitions(evaluator),
            free: (0..needed.len()).filter(|place| !needed[*place]).collect(),
        }
    }

    fn some(&self, here: &Candidate, random: &mut Random) -> Candidate {
        let mut next = here.clone();
        match random.below(if self.free.is_empty() { 3 } else { 7 }) {
            0 => next.strategy = random.choose(&self.strategies).clone(),
            1 => {
                // Credit stays as many partitions as it was.
                let partition = *random.choose(&self.partitions);
                let share = (next.credit.0 / next.partition.0.max(1)).max(1);
                let places = 0..settings::CREDIT_PLACES;
                let near = places.min_by_key(|place| {
                    settings::credit(next.partition, *place).0.abs_diff(share * next.partition.0)
                });
                next.credit = settings::credit(partition, near.unwrap_or(0));
                next.partition = partition;
            }
            2 => {
                let place = random.place(settings::CREDIT_PLACES);
                next.credit = settings::credit(next.partition, place);
            }
            // One cut goes or comes.
            3 | 4 => {
                let place = *random.choose(&self.free);
                next.cuts[place] = !next.cuts[place];
            }
            // All cuts of a stretch go, or come.
            kind => {
                let from = random.place(self.free.len());
                let length = 1 + random.place(self.free.len() / 2 + 1);
                for place in self.free.iter().skip(from).take(length) {
                    next.cuts[*place] = kind == 6;
                }
            }
        }
        next
    }
}
