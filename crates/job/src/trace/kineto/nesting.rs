//! What lies inside what on a thread, and what part of a step it belongs to therefore. It knows no devices: what they do
//! belongs to the part that launched it.

use super::{
    ROUNDING,
    gather::{Class, Gathered},
};
use crate::trace::{LaneKind, Phase, problems::Problems};
use std::collections::HashSet;

/// For each raw span, in order.
#[derive(Debug)]
pub struct Nesting {
    /// The innermost that encloses it on its thread.
    pub parents: Vec<Option<u32>>,
    /// Whether anything lies inside.
    pub encloses: Vec<bool>,
    pub phases: Vec<Phase>,
}

impl Nesting {
    pub fn of(gathered: &Gathered, problems: &mut Problems) -> Nesting {
        let count = gathered.raw.len();
        let mut nesting = Nesting {
            parents: vec![None; count],
            encloses: vec![false; count],
            phases: vec![Phase::Other; count],
        };
        let mut stacks: Vec<Vec<u32>> = vec![Vec::new(); gathered.lanes.list.len()];
        let mut overlaps = 0;
        for (at, raw) in gathered.raw.iter().enumerate() {
            let lane = raw.lane.0 as usize;
            if gathered.lanes.list[lane].kind != LaneKind::Thread {
                continue;
            }
            let stack = &mut stacks[lane];
            // What was rounded to end with the next one's begin is over.
            while stack.pop_if(|top| gathered.raw[*top as usize].end() <= raw.begin).is_some() {}
            if let Some(parent) = stack.last() {
                nesting.parents[at] = Some(*parent);
                nesting.encloses[*parent as usize] = true;
                let enclosing = gathered.raw[*parent as usize].end();
                overlaps += u64::from(raw.end().since(enclosing) > ROUNDING);
            }
            stack.push(at as u32);
        }
        problems.add_times("spans of a thread overlap without lying inside each other", overlaps);
        nesting.find_phases(gathered);
        nesting
    }

    /// Those that enclose a span, the innermost first.
    pub fn ancestors(&self, at: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.parents[at], |at| self.parents[*at as usize])
            .map(|at| at as usize)
    }

    fn find_phases(&mut self, gathered: &Gathered) {
        let forward_points: HashSet<_> = gathered.forward_points.iter().copied().collect();
        // Parents come before what they enclose.
        for (at, (raw, note)) in gathered.raw.iter().zip(&gathered.notes).enumerate() {
            let outside = self.parents[at].map_or(Phase::Other, |at| self.phases[at as usize]);
            let own = match note.class {
                Class::Operator if raw.name.starts_with("autograd::engine::evaluate_function") => {
                    Phase::Backward
                }
                Class::Operator
                    if note.forward || forward_points.contains(&(raw.lane, raw.begin)) =>
                {
                    Phase::Forward
                }
                Class::Annotation => annotated(&raw.name),
                _ => Phase::Other,
            };
            self.phases[at] = match (outside, own) {
                // What a backward pass computes once more, and what an optimizer does, stays theirs.
                (Phase::Backward | Phase::Update, _) | (_, Phase::Other) => outside,
                _ => own,
            };
        }
    }
}

/// What PyTorch, and many programs, call the parts of a step.
fn annotated(name: &str) -> Phase {
    if name.starts_with("Optimizer.step") {
        return Phase::Update;
    }
    match name.trim_matches(['#', ' ']) {
        "forward" | "DistributedDataParallel.forward" | "FullyShardedDataParallel.forward" => {
            Phase::Forward
        }
        "backward" => Phase::Backward,
        "optimizer" => Phase::Update,
        _ => Phase::Other,
    }
}
