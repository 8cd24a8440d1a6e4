//! What a worker keeps in memory, and what to do where that is too much: run forward passes again instead of keeping what
//! they made, or cut the batch into several passes.

use crate::{
    candidate::Candidate,
    error::PlanError,
    evaluate::{Evaluator, as_it_is},
    outcome::{Decision, MemoryUse},
    task::{Limits, Task},
};
use paceline_job::{
    Batch, ByteSize, Pass,
    graph::layered::{LayerTimes, Layered},
};
use std::{num::NonZeroU32, sync::Arc};

/// Numbers of passes that are tried.
const PASSES: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// The job as it fits into memory.
pub(crate) struct Fit {
    /// With what fitting costs.
    pub layered: Option<Layered>,
    before: Option<u64>,
    after: Option<u64>,
    recomputed: Vec<Arc<str>>,
    /// What has to be done to fit; nothing if `None`.
    way: Option<Way>,
    original: Option<Layered>,
}

impl Fit {
    /// Make a job fit so that a step takes the least time. Ways are replayed, because one that computes less may hide less of the
    /// communication.
    pub fn of(task: &Task, limits: &Limits) -> Result<Fit, PlanError> {
        let before = task.layered.as_ref().and_then(Layered::peak_memory);
        let fit = Fit {
            layered: task.layered.clone(),
            before,
            after: before,
            recomputed: Vec::new(),
            way: None,
            original: task.layered.clone(),
        };
        let Some(limit) = limits.memory else { return Ok(fit) };
        let (Some(peak), Some(layered)) = (before, &task.layered) else {
            return Err(PlanError::UnknownMemory);
        };
        if peak <= limit.0 {
            return Ok(fit);
        }
        let mut ways = Vec::with_capacity(PASSES.len());
        for way in PASSES.iter().filter_map(|passes| Way::of(layered, *passes, limit.0)) {
            let layered = Some(way.applied(layered));
            ways.push((as_it_is(&Task { layered, ..task.clone() })?, way));
        }
        let best = ways.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
        let (_, best) = best.ok_or_else(|| {
            let kept: u64 = layered.layers.iter().map(|layer| layer.activation_bytes).sum();
            PlanError::TooLarge { needed: ByteSize(peak - kept), limit }
        })?;
        let recomputed = best.recomputed.iter().map(|place| layered.layers[*place].name.clone());
        Ok(Fit {
            layered: Some(best.applied(layered)),
            after: Some(best.peak),
            recomputed: recomputed.collect(),
            way: Some(best),
            ..fit
        })
    }

    /// What was decided, with what it costs: the gains are below 0.
    pub fn decisions(
        &self,
        evaluator: &mut Evaluator<'_>,
        start: &Candidate,
    ) -> Result<Vec<Decision>, PlanError> {
        let (Some(original), Some(way)) = (&self.original, &self.way) else {
            return Ok(Vec::new());
        };
        let mut decisions = Vec::new();
        let mut now = evaluator.estimate_of(original.clone(), start)?;
        let mut decide = |pass, what: String, with: Layered| -> Result<(), PlanError> {
            let next = evaluator.estimate_of(with, start)?;
            let what = format!("to fit into memory, {what}");
            // The runtime counts passes; it cannot make a program run layers again.
            let applied = pass == Pass::GradientAccumulation;
            decisions.push(Decision { pass, what, expected_gain_ms: now - next, applied });
            now = next;
            Ok(())
        };
        if way.passes > 1 {
            let passes = way.passes;
            let part = match passes {
                2 => "a half".to_string(),
                8 => "an 8th".to_string(),
                _ => format!("a {passes}th"),
            };
            let what = format!(
                "make a step of {passes} passes over {part} of the batch (DistributedOptimizer(accumulate=None) \
                 follows the plan)"
            );
            let only_passes = Way { recomputed: Vec::new(), ..way.clone() };
            decide(Pass::GradientAccumulation, what, only_passes.applied(original))?;
        }
        if !way.recomputed.is_empty() {
            let names: Vec<&str> = self.recomputed.iter().map(|name| &**name).collect();
            let what = format!(
                "run the forward pass of {} again for the backward pass (torch.utils.checkpoint): {}",
                if names.len() == 1 {
                    "one layer".to_string()
                } else {
                    format!("{} layers", names.len())
                },
                names.join(", ")
            );
            decide(Pass::Recomputation, what, way.applied(original))?;
        }
        Ok(decisions)
    }

    /// For the plan.
    pub fn batch(&self) -> Batch {
        let passes = self.way.as_ref().and_then(|way| NonZeroU32::new(way.passes));
        passes.map_or(Batch::default(), |accumulate| Batch { accumulate })
    }

    /// Layers whose forward pass is run again.
    pub fn recomputed(&self) -> &[Arc<str>] {
        &self.recomputed
    }

    /// For the outcome.
    pub fn memory_use(&self, limits: &Limits) -> Option<MemoryUse> {
        Some(MemoryUse {
            before: ByteSize(self.before?),
            after: ByteSize(self.after?),
            limit: limits.memory,
            recomputed: self.recomputed.clone(),
            passes: self.batch().accumulate.get(),
        })
    }
}

/// A way to need less.
#[derive(Clone)]
struct Way {
    passes: u32,
    /// Layers by their place.
    recomputed: Vec<usize>,
    peak: u64,
}

impl Way {
    /// The cheapest layers to run again with so many passes, if that suffices: those that keep most for the time that
    /// their forward pass takes.
    fn of(layered: &Layered, passes: u32, limit: u64) -> Option<Way> {
        let share = |bytes: u64| bytes.div_ceil(u64::from(passes));
        let kept: Vec<u64> =
            layered.layers.iter().map(|layer| share(layer.activation_bytes)).collect();
        let all: u64 = layered.layers.iter().map(|layer| layer.activation_bytes).sum();
        let fixed = layered.peak_memory()? - all;
        let mut order: Vec<usize> = (0..kept.len()).filter(|place| kept[*place] > 0).collect();
        let time = |place: usize| forward(layered, place).max(1) as f64;
        order.sort_by(|one, other| {
            (kept[*other] as f64 / time(*other)).total_cmp(&(kept[*one] as f64 / time(*one)))
        });
        let mut way = Way { passes, recomputed: Vec::new(), peak: 0 };
        let mut again = 0;
        let mut remaining: u64 = kept.iter().sum();
        let mut order = order.into_iter();
        // Each turn takes one layer, so there are no more turns than layers.
        loop {
            // What is run again is there for one layer at a time.
            way.peak = fixed + remaining + again;
            if way.peak <= limit {
                break;
            }
            let place = order.next()?;
            remaining -= kept[place];
            again = again.max(kept[place]);
            way.recomputed.push(place);
        }
        way.recomputed.sort_unstable();
        Some(way)
    }

    /// The layers' times with it. What is computed takes so much less for a smaller batch; gaps, which are the host's,
    /// come once for each pass.
    fn applied(&self, layered: &Layered) -> Layered {
        let mut layered = layered.clone();
        layered.forget_recorded();
        let passes = u64::from(self.passes);
        for times in layered.workers.iter_mut().flat_map(|worker| &mut worker.steps) {
            for &place in &self.recomputed {
                let LayerTimes { forward, .. } = times[place];
                times[place].backward += forward;
            }
            let mut others = 0;
            for times in times.iter_mut() {
                times.forward /= passes;
                times.backward /= passes;
                let LayerTimes { forward_gap, forward, backward_gap, backward, .. } = *times;
                others += (passes - 1) * (forward_gap + forward + backward_gap + backward);
            }
            // All passes but the last send nothing: they come between the first forward pass and the last backward one.
            if let Some(last) = times.last_mut() {
                last.backward_gap += others;
            }
        }
        layered
    }
}

/// Nanoseconds of a layer's forward pass on the slowest worker.
fn forward(layered: &Layered, place: usize) -> u64 {
    let steps = layered.workers.iter().flat_map(|worker| &worker.steps);
    steps.filter_map(|step| step.get(place)).map(|times| times.forward).max().unwrap_or(0)
}
