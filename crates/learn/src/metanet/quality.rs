//! How good predictions are: how wrong, and how far from the best of the measured choices the one is that they would pick.

use super::{
    network::MetaNetwork,
    training::{Sample, choices},
};
use serde::Serialize;

/// How good predictions of some samples are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// Samples that could be judged.
    pub samples: usize,
    /// The median of how wrong a predicted ratio between the times of two choices is; 0.1 is a tenth.
    pub error: f64,
    /// How alike the orders of predicted and measured times are: Spearman's coefficient, the mean of all samples.
    pub rank_correlation: f64,
    /// How much longer a step takes under the choice that is predicted to be the best than under the best: the mean.
    pub regret: f64,
    /// The same where nine of ten are better.
    pub regret_tenth: f64,
    /// The same, at worst.
    pub regret_worst: f64,
    /// How much longer a step takes under what is in force, the mean: what not choosing costs.
    pub regret_unchanged: f64,
}

/// Judge a network. In each sample, `in_force` says which of its measurements the network is told of; `None`: nothing.
pub fn judge(
    network: &MetaNetwork,
    samples: &[Sample],
    in_force: impl Fn(&Sample) -> Option<usize>,
) -> Quality {
    let (mut errors, mut regrets) = (Vec::new(), Vec::new());
    let (mut correlations, mut unchanged) = (0.0, 0.0);
    for sample in samples {
        let place = in_force(sample);
        let conditions =
            place.map_or_else(|| sample.conditions.clone(), |place| sample.under(place));
        let present = conditions.seen;
        let Some(prepared) = network.prepare(&conditions) else { continue };
        let predicted = network.seconds(&prepared, &choices(sample));
        let measured: Vec<f64> = sample.measured.iter().map(|seen| seen.seconds).collect();
        let (Some(pick), Some(best)) = (least(&predicted), least(&measured)) else { continue };
        let base = place.filter(|place| *place < measured.len()).unwrap_or(best);
        for (predicted_one, measured_one) in predicted.iter().zip(&measured) {
            let ratio = (predicted_one / predicted[base]) / (measured_one / measured[base]);
            errors.push(ratio.ln().abs());
        }
        regrets.push(measured[pick] / measured[best] - 1.0);
        unchanged += present.map_or(0.0, |present| present.seconds / measured[best] - 1.0);
        correlations += correlation(&ranks(&predicted), &ranks(&measured));
    }
    let count = regrets.len().max(1) as f64;
    regrets.sort_by(f64::total_cmp);
    errors.sort_by(f64::total_cmp);
    let at = |sorted: &[f64], share: f64| {
        sorted.get((share * sorted.len() as f64) as usize).or(sorted.last()).copied().unwrap_or(0.0)
    };
    Quality {
        samples: regrets.len(),
        error: at(&errors, 0.5),
        rank_correlation: correlations / count,
        regret: regrets.iter().sum::<f64>() / count,
        regret_tenth: at(&regrets, 0.9),
        regret_worst: at(&regrets, 1.0),
        regret_unchanged: unchanged / count,
    }
}

fn least(values: &[f64]) -> Option<usize> {
    let places = values.iter().enumerate();
    places.min_by(|one, other| one.1.total_cmp(other.1)).map(|(place, _)| place)
}

/// The place of each value if they were sorted; equal ones share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + 0.5 * (equal as f64 - 1.0)
    };
    values.iter().map(rank).collect()
}

fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let count = one.len().max(1) as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let (mean_one, mean_other) = (mean(one), mean(other));
    let pairs = one.iter().zip(other);
    let product: f64 = pairs.map(|(one, other)| (one - mean_one) * (other - mean_other)).sum();
    let square = |values: &[f64], mean: f64| -> f64 {
        values.iter().map(|value| (value - mean).powi(2)).sum()
    };
    let squares = square(one, mean_one) * square(other, mean_other);
    // Where all are equal, any order is right.
    if squares > 0.0 { product / squares.sqrt() } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_compared_by_ranks() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0]), [1.5, 0.0, 1.5]);
        assert_eq!(correlation(&ranks(&[1.0, 2.0, 9.0]), &ranks(&[3.0, 4.0, 5.0])), 1.0);
        assert_eq!(correlation(&ranks(&[1.0, 2.0, 9.0]), &ranks(&[5.0, 4.0, 3.0])), -1.0);
    }
}
