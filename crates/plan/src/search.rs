//! The search along the critical path: settings and groups in turn, until neither gains.

use crate::{
    candidate::{Candidate, layer_cuts, plans_groups},
    error::PlanError,
    evaluate::Evaluator,
    fusion,
    outcome::Decision,
    settings,
};
use paceline_job::Pass;

/// A round that gains less than this share is the last.
const WORTH_A_ROUND: f64 = 0.001;
/// A change that gains less than this share is not made: a plan should not differ from what there is for nothing.
pub(crate) const WORTH_A_CHANGE: f64 = 0.0005;

/// What an engine found.
pub(crate) struct Found {
    pub engine: &'static str,
    pub best: Candidate,
    pub decisions: Vec<Decision>,
}

/// The best candidate so far, and how it came to be.
pub(crate) struct Best {
    pub candidate: Candidate,
    pub value: f64,
    pub decisions: Vec<Decision>,
}

impl Best {
    /// Take a candidate if it is better by enough.
    pub fn offer(
        &mut self,
        candidate: Candidate,
        value: f64,
        pass: Pass,
        what: impl FnOnce() -> String,
    ) -> bool {
        if value.is_nan() || value >= self.value * (1.0 - WORTH_A_CHANGE) {
            return false;
        }
        let expected_gain_ms = self.value - value;
        self.decisions.push(Decision { pass, what: what(), expected_gain_ms, applied: true });
        (self.candidate, self.value) = (candidate, value);
        true
    }
}

/// Search from what there is.
pub(crate) fn run(evaluator: &mut Evaluator<'_>, start: &Candidate) -> Result<Found, PlanError> {
    let value = evaluator.estimate(start);
    let mut best = Best { candidate: start.clone(), value, decisions: Vec::new() };
    coarsen(evaluator, &mut best);
    // The evaluator's replays bound this too; a round without gain ends it.
    for _ in 0..evaluator.rounds() {
        let before = best.value;
        settings::improve(evaluator, &mut best);
        fusion::improve(evaluator, &mut best)?;
        if before - best.value < WORTH_A_ROUND * before || evaluator.is_spent() {
            break;
        }
    }
    Ok(Found { engine: "search", best: best.candidate, decisions: merged(best.decisions) })
}

/// The coarse view: tensors of one layer together, unless that costs.
fn coarsen(evaluator: &mut Evaluator<'_>, best: &mut Best) {
    let Some(layered) = evaluator.layered().filter(|layered| plans_groups(Some(layered))) else {
        return;
    };
    let cuts = layer_cuts(layered);
    let together: Vec<bool> =
        best.candidate.cuts.iter().zip(&cuts).map(|(one, other)| *one && *other).collect();
    let candidate = best.candidate.cut(together);
    let value = evaluator.estimate(&candidate);
    let what = || "send the tensors of a layer together".to_string();
    best.offer(candidate, value, Pass::TensorFusion, what);
}

/// One decision for each setting and one for all groups, however many turns it took to make them.
fn merged(decisions: Vec<Decision>) -> Vec<Decision> {
    let mut merged: Vec<Decision> = Vec::new();
    for decision in decisions {
        match merged.iter_mut().find(|other| other.pass == decision.pass) {
            Some(other) => {
                other.expected_gain_ms += decision.expected_gain_ms;
                other.what = decision.what;
            }
            None => merged.push(decision),
        }
    }
    merged
}

/// The goal without those differences from the start that gain less than a share of the step each, by long replays: what gains
/// least is undone first, and where all together gain less, everything is. What is left is explained by what a step would take
/// longer without it.
pub(crate) fn worthwhile(
    evaluator: &mut Evaluator<'_>,
    start: (&Candidate, f64),
    mut goal: Candidate,
    least_gain: f64,
) -> Result<(f64, Candidate, Vec<Decision>), PlanError> {
    let mut value = evaluator.confirm(&goal)?;
    // Each turn undoes one of the four.
    loop {
        let mut undone: Vec<(Decision, Candidate)> = Vec::new();
        for (pass, what, candidate) in differences(start.0, &goal) {
            // A difference without which nothing can be played is the reason for all there is to gain.
            let longer = evaluator.confirm(&candidate).unwrap_or(start.1) - value;
            undone.push((
                Decision { pass, what, expected_gain_ms: longer, applied: true },
                candidate,
            ));
        }
        let gain = |one: &(Decision, Candidate)| one.0.expected_gain_ms;
        let least = undone.iter().min_by(|one, other| gain(one).total_cmp(&gain(other)));
        match least {
            Some(least) if gain(least) < least_gain * value => {
                (value, goal) = (value + gain(least), least.1.clone());
            }
            Some(_) if start.1 - value >= least_gain * value => {
                return Ok((value, goal, undone.into_iter().map(|one| one.0).collect()));
            }
            _ => return Ok((start.1, start.0.clone(), Vec::new())),
        }
    }
}

/// How a candidate differs from the start, in the words of decisions, and what it is without each difference.
fn differences(start: &Candidate, goal: &Candidate) -> Vec<(Pass, String, Candidate)> {
    let without = [
        (
            Pass::Strategy,
            settings::said_strategy(goal),
            Candidate { strategy: start.strategy.clone(), ..goal.clone() },
        ),
        (
            Pass::TensorPartition,
            settings::said_partition(goal),
            Candidate { partition: start.partition, ..goal.clone() },
        ),
        (
            Pass::Credit,
            settings::said_credit(goal),
            Candidate { credit: start.credit, ..goal.clone() },
        ),
        (Pass::TensorFusion, fusion::said(goal), goal.cut(start.cuts.clone())),
    ];
    without.into_iter().filter(|(.., candidate)| candidate != goal).collect()
}

/// How two candidates differ, in the words of decisions, with what the difference gains shared out by trying one
/// difference after another. What cannot be played on the way counts with what comes after it.
pub(crate) fn explained(
    evaluator: &mut Evaluator<'_>,
    start: &Candidate,
    goal: &Candidate,
) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let mut now = start.clone();
    let mut value = evaluator.explain(start);
    let mut go = |next: Candidate, pass: Pass, what: String| {
        if next != now {
            let after = evaluator.explain(&next);
            let gain = value.zip(after).map_or(0.0, |(value, after)| value - after);
            decisions.push(Decision { pass, what, expected_gain_ms: gain, applied: true });
            (now, value) = (next, after.or(value));
        }
    };
    let strategy = Candidate { strategy: goal.strategy.clone(), ..start.clone() };
    go(strategy.clone(), Pass::Strategy, settings::said_strategy(goal));
    let partition = Candidate { partition: goal.partition, ..strategy };
    go(partition.clone(), Pass::TensorPartition, settings::said_partition(goal));
    let credit = Candidate { credit: goal.credit, ..partition };
    go(credit, Pass::Credit, settings::said_credit(goal));
    go(goal.clone(), Pass::TensorFusion, fusion::said(goal));
    decisions
}

/// Make the gains of decisions add up to what they gain together, as it was confirmed: each was estimated by a short
/// replay of its own. What differs is shared out by their size.
pub(crate) fn settle(decisions: &mut [Decision], total: f64) {
    let sum: f64 = decisions.iter().map(|decision| decision.expected_gain_ms).sum();
    let size: f64 = decisions.iter().map(|decision| decision.expected_gain_ms.abs()).sum();
    let even = 1.0 / decisions.len().max(1) as f64;
    for decision in decisions {
        let gain = &mut decision.expected_gain_ms;
        let share = if size > 0.0 { gain.abs() / size } else { even };
        *gain += (total - sum) * share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(gains: &[f64], total: f64) -> Vec<f64> {
        let decision = |gain: &f64| Decision {
            pass: Pass::Credit,
            what: String::new(),
            expected_gain_ms: *gain,
            applied: true,
        };
        let mut decisions: Vec<Decision> = gains.iter().map(decision).collect();
        settle(&mut decisions, total);
        decisions.iter().map(|decision| decision.expected_gain_ms).collect()
    }

    #[test]
    fn gains_add_up_to_what_was_confirmed() {
        assert_eq!(settled(&[3.0, 1.0], 8.0), [6.0, 2.0]);
        assert_eq!(settled(&[3.0, -1.0], 4.0), [4.5, -0.5]);
        assert_eq!(settled(&[1.0, -1.0], 2.0), [2.0, 0.0], "also where estimates cancel out");
        assert_eq!(settled(&[0.0, 0.0], 2.0), [1.0, 1.0], "also where nothing was estimated");
        assert_eq!(settled(&[], 2.0), [0.0; 0]);
    }
}
