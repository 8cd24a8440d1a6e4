//! Planners: what to send together, in which pieces and by which strategy, decided ahead of time by replaying the job in
//! virtual time, and written to a plan file.
//!
//! The search follows dPRO (MLSys 2022): along the critical path, with its theorems about when fusing pays, on a coarse
//! view first, with partial replays that sort out, short ones that estimate and long ones that confirm. Simulated annealing is there to check it
//! against. Where a job comes from and how a plan is applied is not known here.

mod advice;
mod annealing;
mod candidate;
mod error;
mod evaluate;
mod fusion;
mod memory;
mod outcome;
mod search;
mod settings;
mod task;

pub use error::PlanError;
pub use evaluate::Progress;
pub use outcome::{Advice, Decision, MemoryUse, Outcome, PartialUse};
pub use task::{Engine, Limits, Task};

use candidate::Candidate;
use evaluate::Evaluator;
use memory::Fit;
use paceline_job::Plan;
use search::Found;
use std::ops::ControlFlow;

/// Plan a job. `progress` hears of every replay, and ends the search early by breaking off; the best so far is the
/// outcome then. Without that, the same task and limits give the same outcome.
pub fn optimize(
    task: &Task,
    limits: &Limits,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Outcome, PlanError> {
    let fit = Fit::of(task, limits)?;
    let before = evaluate::as_it_is(task)?;
    let mut evaluator = Evaluator::new(task, &fit.layered, limits, progress);
    let start = Candidate::of(task, fit.layered.as_ref());
    let mut decisions = fit.decisions(&mut evaluator, &start)?;
    let mut found = Vec::new();
    if limits.engine != Engine::Annealing {
        found.push(search::run(&mut evaluator, &start)?);
    }
    if limits.engine != Engine::Search {
        evaluator.refill();
        found.push(annealing::run(&mut evaluator, &start, limits.seed)?);
    }
    // Short replays chose; long ones have the last word, and what there was has it where nothing is better by enough.
    let as_it_is = evaluator.confirm(&start)?;
    search::settle(&mut decisions, before - as_it_is);
    let mut best = (as_it_is, start.clone(), Vec::new());
    let mut engines = Vec::new();
    for Found { engine, best: goal, decisions } in found {
        let answer = if limits.least_gain > 0.0 {
            search::worthwhile(&mut evaluator, (&start, as_it_is), goal, limits.least_gain)?
        } else {
            (evaluator.confirm(&goal)?, goal, decisions)
        };
        engines.push((engine, answer.0.min(as_it_is)));
        if answer.0 < best.0 {
            best = answer;
        }
    }
    let (after, candidate, mut chosen) = best;
    search::settle(&mut chosen, as_it_is - after);
    decisions.extend(chosen);
    let advice = advice::given(&mut evaluator, &candidate, after)?;
    let suggestions = Outcome::suggestions(&decisions, fit.recomputed(), &advice);
    let settings = candidate.settings(&task.scenario.settings);
    let fusion = candidate.fusion(fit.layered.as_ref());
    Ok(Outcome {
        plan: Plan { settings, fusion, batch: fit.batch(), advice: suggestions },
        decisions,
        advice,
        before_ms: before,
        after_ms: after,
        engines,
        memory: fit.memory_use(limits),
        replays: evaluator.replays(),
        partial: evaluator.partial_use(),
        events: evaluator.events(),
    })
}
