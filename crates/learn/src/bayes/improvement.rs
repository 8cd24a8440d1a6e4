//! What measuring at a place is worth.

use super::Likely;
use std::f64::consts::{PI, SQRT_2};

/// By how much a value there is expected to be above the best, where it is above at all (Mockus). `margin` is what counts
/// as no improvement: larger looks further away.
pub fn expected_improvement(likely: Likely, best: f64, margin: f64) -> f64 {
    let gain = likely.mean - best - margin;
    let deviation = likely.variance.max(0.0).sqrt();
    if deviation < 1e-12 {
        return gain.max(0.0);
    }
    let standard = gain / deviation;
    let density = (-0.5 * standard * standard).exp() / (2.0 * PI).sqrt();
    (gain * distribution(standard) + deviation * density).max(0.0)
}

/// How likely a normal number is below `standard`.
fn distribution(standard: f64) -> f64 {
    0.5 * (1.0 + error_function(standard / SQRT_2))
}

/// Abramowitz and Stegun 7.1.26, wrong by at most 1.5e-7.
fn error_function(value: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * value.abs());
    let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = factors.iter().fold(0.0, |sum, factor| sum * t + factor) * t;
    let result = 1.0 - sum * (-value * value).exp();
    if value < 0.0 { -result } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_are_met() {
        let likely = |mean, variance| Likely { mean, variance };
        // At the best value so far with deviation 1: the density at 0.
        assert!((expected_improvement(likely(0.0, 1.0), 0.0, 0.0) - 0.398_942).abs() < 1e-5);
        assert!((expected_improvement(likely(1.0, 1.0), 0.0, 0.0) - 1.083_315).abs() < 1e-5);
        assert_eq!(expected_improvement(likely(2.0, 0.0), 1.5, 0.0), 0.5);
        assert_eq!(expected_improvement(likely(1.0, 0.0), 1.5, 0.0), 0.0);
    }

    #[test]
    fn doubt_is_worth_something() {
        let of = |variance| expected_improvement(Likely { mean: -1.0, variance }, 0.0, 0.0);
        assert!(of(4.0) > of(1.0) && of(1.0) > of(0.01));
    }
}
