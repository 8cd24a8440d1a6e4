//! Medians, spread and ratios of repeated measurements. Pure arithmetic.

use super::protocol::Turn;
use serde::Serialize;

/// A value with the range in which repeats of it fell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The value.
    pub median: f64,
    /// The lowest repeat.
    pub low: f64,
    /// The highest repeat.
    pub high: f64,
}

/// The middle value; the mean of the two middle ones if their number is even.
///
/// `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get((sorted.len().max(1) - 1) / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// A contender's time for one workload: the median over all iterations of all turns, and the lowest and highest
/// median of a single turn.
///
/// The spread is between turns because iterations of one turn follow each other within milliseconds: what
/// disturbs one disturbs all, and their quartiles would promise a repeatability that is not there.
pub fn time_of(turns: &[Turn]) -> Option<Estimate> {
    let all: Vec<f64> = turns.iter().flat_map(|turn| turn.seconds.iter().copied()).collect();
    let (low, high) = range(turns.iter().filter_map(|turn| median(&turn.seconds)))?;
    Some(Estimate { median: median(&all)?, low, high })
}

/// How many times longer `other` took than `reference`: the median of the ratios within each round, and their range.
///
/// Both took their turns of a round one after the other, so a slow spell of the machine touches
/// both and cancels; that is what alternating is for.
pub fn ratio_of(other: &[Turn], reference: &[Turn]) -> Option<Estimate> {
    let ratios: Vec<f64> = other
        .iter()
        .zip(reference)
        .filter_map(|(a, b)| Some(median(&a.seconds)? / median(&b.seconds)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    let (low, high) = range(ratios.iter().copied())?;
    Some(Estimate { median: median(&ratios)?, low, high })
}

/// Processor seconds per 10⁹ bytes all-reduced.
pub fn cpu_seconds_per_gigabyte(turns: &[Turn], bytes: u64) -> Option<f64> {
    let iterations: usize = turns.iter().map(|turn| turn.seconds.len()).sum();
    let cpu: f64 = turns.iter().map(|turn| turn.cpu_seconds).sum();
    let gigabytes = iterations as f64 * bytes as f64 * 1e-9;
    (gigabytes > 0.0).then(|| cpu / gigabytes)
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(seconds: &[f64]) -> Turn {
        Turn { seconds: seconds.to_vec(), cpu_seconds: 1.0 }
    }

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0]), Some(5.0));
        assert_eq!(median(&[5.0, 100.0, 1.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn the_spread_is_between_turns() {
        let turns = [turn(&[1.0, 2.0, 90.0]), turn(&[4.0, 4.0, 4.0])];
        let time = time_of(&turns).unwrap();
        assert_eq!(time, Estimate { median: 4.0, low: 2.0, high: 4.0 });
        assert_eq!(time_of(&[]), None);
    }

    #[test]
    fn a_slow_spell_that_both_suffer_cancels_in_the_ratio() {
        let ours = [turn(&[1.0]), turn(&[10.0]), turn(&[1.0])];
        let peer = [turn(&[2.0]), turn(&[20.0]), turn(&[3.0])];
        let ratio = ratio_of(&peer, &ours).unwrap();
        assert_eq!(ratio, Estimate { median: 2.0, low: 2.0, high: 3.0 });
        assert_eq!(ratio_of(&peer, &[]), None);
    }

    #[test]
    fn processor_time_is_per_byte_reduced() {
        let turns = [turn(&[0.1, 0.1]), turn(&[0.1, 0.1])];
        assert_eq!(cpu_seconds_per_gigabyte(&turns, 500_000_000), Some(1.0));
        assert_eq!(cpu_seconds_per_gigabyte(&[], 4), None);
    }
}
