//! What would help and a plan file cannot do: changes of the program. Each is replayed with the plan applied.

use crate::{
    candidate::{Candidate, bucket_cuts, plans_groups},
    error::PlanError,
    evaluate::Evaluator,
    outcome::Advice,
};
use paceline_job::{Dtype, Pass, graph::layered::Layered};

/// Advice that gains less than this share of a step is kept to ourselves.
const WORTH_SAYING: f64 = 0.01;

/// Lengths of DDP's buckets that are tried, in MiB; 25 is what it has by itself.
const BUCKET_CAPS: [u64; 7] = [1, 2, 4, 8, 16, 25, 64];

/// Everything worth saying, the largest gain first.
pub(crate) fn given(
    evaluator: &mut Evaluator<'_>,
    candidate: &Candidate,
    after: f64,
) -> Result<Vec<Advice>, PlanError> {
    let Some(layered) = evaluator.layered().cloned() else { return Ok(Vec::new()) };
    let now = evaluator.estimate_of(layered.clone(), candidate)?;
    let mut advice = Vec::new();
    let mut say = |pass: Pass, value: f64, what: &str, condition: &str| {
        let share = (now - value) / now;
        if share >= WORTH_SAYING {
            // Estimates are of an average step; what was confirmed is the measure.
            let expected_gain_ms = share * after;
            let (what, condition) = (what.to_string(), condition.to_string());
            advice.push(Advice { pass, what, expected_gain_ms, condition });
        }
    };
    if !layered.crosses_step {
        let crossing = Layered { crosses_step: true, scheduled: true, ..layered.clone() };
        say(
            Pass::Scheduling,
            evaluator.estimate_of(crossing, candidate)?,
            "wrap the optimizer in paceline.torch.DistributedOptimizer: layers wait for their own gradients only, and \
             what is needed first goes first",
            "the program must not read all gradients before the step, as clipping by norm does",
        );
    } else if !layered.scheduled {
        let scheduled = Layered { scheduled: true, ..layered.clone() };
        say(
            Pass::Scheduling,
            evaluator.estimate_of(scheduled, candidate)?,
            "use DistributedOptimizer(scheduled=True): what is needed first goes first",
            "none",
        );
    }
    if !plans_groups(Some(&layered))
        && let Some((value, cap)) = best_buckets(evaluator, &layered, candidate)?
    {
        say(
            Pass::TensorFusion,
            value,
            &format!("fill buckets of {cap} MiB (DistributedDataParallel(bucket_cap_mb={cap}))"),
            "DDP fills its buckets in the order in which gradients come, and its first one less",
        );
    }
    if let Some(half) = in_half(&layered) {
        say(
            Pass::MixedPrecision,
            evaluator.estimate_of(half, candidate)?,
            "send gradients as bf16 (DDP: bf16_compress_hook)",
            "gradients lose precision; what casting takes is not counted",
        );
    }
    let twice = twice(&layered);
    say(
        Pass::GradientAccumulation,
        evaluator.estimate_of(twice, candidate)? / 2.0,
        "synchronise after every second backward pass (DistributedOptimizer(accumulate=2))",
        "the batch of a step is twice as large; the gain is for each of its two passes",
    );
    if let Some(fused) = fused(evaluator, &layered, candidate)? {
        say(
            Pass::OpFusion,
            evaluator.estimate_of(fused, candidate)?,
            "fuse operators (torch.compile): time between layers that waits for no gradient goes away",
            "advice only: the time between layers is taken to vanish, and what is computed to take as long as before",
        );
    }
    advice.sort_by(|one, other| other.expected_gain_ms.total_cmp(&one.expected_gain_ms));
    Ok(advice)
}

/// What a step takes with the best of DDP's buckets, and their length.
fn best_buckets(
    evaluator: &mut Evaluator<'_>,
    layered: &Layered,
    candidate: &Candidate,
) -> Result<Option<(f64, u64)>, PlanError> {
    let mut best: Option<(f64, u64)> = None;
    if layered.groups.is_empty() {
        return Ok(best);
    }
    for cap in BUCKET_CAPS {
        let filled = candidate.cut(bucket_cuts(layered, cap << 20));
        let value = evaluator.estimate_of(layered.clone(), &filled)?;
        if best.is_none_or(|(least, _)| value < least) {
            best = Some((value, cap));
        }
    }
    Ok(best)
}

/// Gradients of half the length, where some are longer.
fn in_half(layered: &Layered) -> Option<Layered> {
    let mut half = layered.clone();
    let mut changed = false;
    for tensor in half.layers.iter_mut().flat_map(|layer| &mut layer.tensors) {
        if tensor.dtype == Dtype::F32 {
            (tensor.dtype, changed) = (Dtype::Bf16, true);
        }
    }
    changed.then_some(half)
}

/// Two whole passes in a step, of which the second sends.
fn twice(layered: &Layered) -> Layered {
    let mut layered = layered.clone();
    for step in layered.workers.iter_mut().flat_map(|worker| &mut worker.steps) {
        let pass = step
            .iter()
            .map(|times| times.forward_gap + times.forward + times.backward_gap + times.backward);
        let pass: u64 = pass.sum();
        if let Some(last) = step.last_mut() {
            last.backward_gap += pass;
        }
    }
    layered
}

/// The first theorem: fuse two backward operators if synchronising the first's tensors takes no longer than fusing
/// saves, q(n-1).d <= p(n-1).d + p(n).d - opfs(n-1, n). Nothing is known about fused operators here but that the time between
/// them goes away, so that is what fusing saves; in the forward pass nothing is sent, and it always pays. By the third
/// theorem the tensors would then be sent together as well, which a layer's already are.
fn fused(
    evaluator: &mut Evaluator<'_>,
    layered: &Layered,
    candidate: &Candidate,
) -> Result<Option<Layered>, PlanError> {
    let prices = evaluator.prices(candidate)?;
    let mut fused = layered.clone();
    let mut changed = false;
    let sync: Vec<f64> = layered
        .layers
        .iter()
        .map(|layer| {
            let bytes: u64 = layer.tensors.iter().map(|tensor| tensor.bytes()).sum();
            if bytes > 0 { prices.alone(bytes as f64) } else { 0.0 }
        })
        .collect();
    for step in fused.workers.iter_mut().flat_map(|worker| &mut worker.steps) {
        for (place, times) in step.iter_mut().enumerate() {
            // The layer whose backward pass comes before this one's.
            let pays = sync.get(place + 1).is_some_and(|sync| *sync <= times.backward_gap as f64);
            if pays {
                times.backward_gap = 0;
            }
            changed |= pays || times.forward_gap > 0;
            times.forward_gap = 0;
        }
    }
    Ok(changed.then_some(fused))
}
