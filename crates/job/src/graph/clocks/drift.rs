//! How much faster or slower clocks run than the first: offsets are found for several parts of a trace one after
//! another, and a line is laid through them.

use super::{bounds, matching::Matched};

/// Parts of a trace. More would leave each with too few quick messages.
const PARTS: usize = 16;
/// Comparisons that a part should have for each clock.
const PER_CLOCK: usize = 16;
/// Rounds: a drift that is found makes the bounds of each part tighter, and the next round more exact.
const ROUNDS: usize = 4;
/// A slope is believed if it is so many times as large as its own error.
const SIGNIFICANT: f64 = 4.0;

/// For each clock, nanoseconds that have to be added for each nanosecond that passes on it. The first has none; nor has a
/// clock whose trace is too short to tell.
pub(super) fn rates(matched: &Matched) -> Vec<f64> {
    let count = matched.clocks.len();
    let mut rates = vec![0.0; count];
    let parts = PARTS.min(matched.len() / (PER_CLOCK * count.max(1)));
    if parts < 4 {
        return rates;
    }
    for _ in 0..ROUNDS {
        let mut corrected = matched.clone();
        corrected.correct(&rates);
        let mut points: Vec<Vec<(f64, f64)>> = vec![Vec::new(); count];
        for part in 0..parts {
            let edges = corrected.edges(part, parts);
            let solved = bounds::solve(count, edges.list);
            for clock in (1..count).filter(|clock| solved.reached[*clock]) {
                let time = corrected.middle(clock, part, parts);
                points[clock].extend(time.map(|time| (time, solved.offsets[clock])));
            }
        }
        for clock in 1..count {
            rates[clock] += slope(&points[clock]).unwrap_or(0.0);
        }
    }
    rates
}

/// The slope of the line through points, if it is certain enough.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    if points.len() < 4 {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (time, offset) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - time).powi(2)).sum();
    let product: f64 = points.iter().map(|point| (point.0 - time) * (point.1 - offset)).sum();
    if spread <= 0.0 {
        return None;
    }
    let slope = product / spread;
    let error = |point: &(f64, f64)| point.1 - offset - slope * (point.0 - time);
    let errors: f64 = points.iter().map(|point| error(point).powi(2)).sum();
    let uncertain = (errors / (count - 2.0) / spread).sqrt();
    (slope.abs() > SIGNIFICANT * uncertain).then_some(slope)
}
