//! A Gaussian process: what values are likely at a point, after those at others. Its scales and its noise are those under
//! which the measurements are likeliest.

use super::{
    cholesky::Cholesky,
    kernel::{Kernel, Smoothness},
};
use crate::{LearnError, Random};

/// Tries of other scales and noise: half of them anywhere, half around the best so far.
const TRIES: usize = 80;
/// Scales that are tried, of coordinates between 0 and 1.
const SCALES: [f64; 2] = [0.05, 5.0];
/// Shares of the values' variance that may be noise.
const NOISES: [f64; 2] = [1e-6, 0.5];

/// What is likely at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likely {
    /// The value.
    pub mean: f64,
    /// Of the value, without the noise of measuring it.
    pub variance: f64,
}

/// A Gaussian process after some measurements.
#[derive(Clone, Debug)]
pub struct GaussianProcess {
    kernel: Kernel,
    points: Vec<Vec<f64>>,
    root: Cholesky,
    /// What every point adds, for its covariance with the place asked about.
    weights: Vec<f64>,
    mean: f64,
    noise: f64,
    likelihood: f64,
}

impl GaussianProcess {
    /// After values at points, with a kernel and a variance of measurements that are given.
    pub fn new(
        points: &[Vec<f64>],
        values: &[f64],
        kernel: Kernel,
        noise: f64,
    ) -> Result<GaussianProcess, LearnError> {
        let expected = kernel.scales.len();
        let odd = points.iter().find(|point| {
            point.len() != expected || point.iter().any(|coordinate| !coordinate.is_finite())
        });
        if odd.is_some() || values.len() != points.len() {
            let found = odd.map_or(values.len(), Vec::len);
            return Err(LearnError::Point { expected, found });
        }
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let root = Cholesky::of(points.len(), |row, column| {
            let noise = if row == column { noise } else { 0.0 };
            kernel.covariance(&points[row], &points[column]) + noise
        })?;
        let centred: Vec<f64> = values.iter().map(|value| value - mean).collect();
        let weights = root.solve(&centred);
        let fit: f64 = centred.iter().zip(&weights).map(|(value, weight)| value * weight).sum();
        let count = values.len() as f64;
        let likelihood =
            -0.5 * (fit + root.log_determinant() + count * (2.0 * std::f64::consts::PI).ln());
        let points = points.to_vec();
        Ok(GaussianProcess { kernel, points, root, weights, mean, noise, likelihood })
    }

    /// After values at points whose coordinates are between 0 and 1, with the scales and the noise under which the values
    /// are likeliest. The same seed finds the same.
    pub fn fit(
        points: &[Vec<f64>],
        values: &[f64],
        smoothness: Smoothness,
        seed: u64,
    ) -> Result<GaussianProcess, LearnError> {
        let dimensions = points.first().map_or(0, Vec::len);
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let variance = variance.max(1e-12);
        let mut random = Random::new(seed);
        let mut best: Option<(GaussianProcess, Vec<f64>, f64)> = None;
        let mut problem = LearnError::NotPositive;
        for attempt in 0..TRIES {
            let (scales, noise) = match &best {
                None => (vec![0.3; dimensions], 1e-2),
                Some((_, scales, noise)) if attempt >= TRIES / 2 => {
                    let mut near = |value: f64, [least, most]: [f64; 2]| {
                        (value * (0.4 * random.normal()).exp()).clamp(least, most)
                    };
                    let scales = scales.iter().map(|scale| near(*scale, SCALES)).collect();
                    (scales, near(*noise, NOISES))
                }
                Some(_) => {
                    let scale = |_| random.ratio(SCALES[0], SCALES[1]);
                    let scales: Vec<f64> = (0..dimensions).map(scale).collect();
                    (scales, random.ratio(NOISES[0], NOISES[1]))
                }
            };
            let kernel = Kernel { smoothness, scales: scales.clone(), variance };
            match GaussianProcess::new(points, values, kernel, noise * variance) {
                Ok(process) => {
                    let better = best
                        .as_ref()
                        .is_none_or(|(before, ..)| process.likelihood > before.likelihood);
                    if better {
                        best = Some((process, scales, noise));
                    }
                }
                Err(error) => problem = error,
            }
        }
        best.map(|(process, ..)| process).ok_or(problem)
    }

    /// What is likely at a point.
    pub fn at(&self, point: &[f64]) -> Likely {
        let covariances: Vec<f64> =
            self.points.iter().map(|other| self.kernel.covariance(point, other)).collect();
        let products = covariances.iter().zip(&self.weights);
        let mean = self.mean + products.map(|(one, other)| one * other).sum::<f64>();
        let explained = self.root.solve_lower(&covariances);
        let explained: f64 = explained.iter().map(|value| value * value).sum();
        Likely { mean, variance: (self.kernel.variance - explained).max(0.0) }
    }

    /// The variance of measurements.
    pub fn noise(&self) -> f64 {
        self.noise
    }

    /// The logarithm of how likely the measurements are.
    pub fn likelihood(&self) -> f64 {
        self.likelihood
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(count: usize) -> Vec<Vec<f64>> {
        (0..count).map(|place| vec![place as f64 / (count - 1) as f64]).collect()
    }

    #[test]
    fn without_noise_it_goes_through_all_measurements() {
        let points = line(6);
        let values: Vec<f64> = points.iter().map(|point| (5.0 * point[0]).sin()).collect();
        for smoothness in [Smoothness::Matern, Smoothness::Smooth] {
            let kernel = Kernel { smoothness, scales: vec![0.3], variance: 1.0 };
            let process = GaussianProcess::new(&points, &values, kernel, 1e-10).unwrap();
            for (point, value) in points.iter().zip(&values) {
                let likely = process.at(point);
                assert!((likely.mean - value).abs() < 1e-4 && likely.variance < 1e-4);
            }
            assert!(process.at(&[0.5]).variance < process.at(&[1.7]).variance);
            assert!((process.at(&[0.5]).mean - 2.5f64.sin()).abs() < 0.05);
        }
    }

    #[test]
    fn two_points_are_what_one_works_out_by_hand() {
        // k(0) = 1, k(1) = exp(-1/2) for smooth functions of scale 1; the mean of the values is 0.
        let kernel = Kernel { smoothness: Smoothness::Smooth, scales: vec![1.0], variance: 1.0 };
        let points = [vec![0.0], vec![1.0]];
        let process = GaussianProcess::new(&points, &[1.0, -1.0], kernel, 0.1).unwrap();
        let near = (-0.5f64).exp();
        let expected = (1.0 - near) / (1.1 - near);
        assert!((process.at(&[0.0]).mean - expected).abs() < 1e-12);
    }

    #[test]
    fn fitted_noise_is_that_of_the_measurements() {
        let mut random = Random::new(8);
        let points = line(60);
        let values: Vec<f64> =
            points.iter().map(|point| (4.0 * point[0]).sin() + 0.1 * random.normal()).collect();
        let process = GaussianProcess::fit(&points, &values, Smoothness::Matern, 1).unwrap();
        let deviation = process.noise().sqrt();
        assert!((0.05..0.2).contains(&deviation), "{deviation}");
        assert!((process.at(&[0.4]).mean - 1.6f64.sin()).abs() < 0.1);
    }

    #[test]
    fn points_that_do_not_fit_are_refused() {
        let kernel = Kernel { smoothness: Smoothness::Matern, scales: vec![1.0], variance: 1.0 };
        let of = |point: Vec<f64>| {
            GaussianProcess::new(&[point], &[1.0], kernel.clone(), 0.1).unwrap_err()
        };
        assert_eq!(of(vec![1.0, 2.0]), LearnError::Point { expected: 1, found: 2 });
        assert_eq!(of(vec![f64::NAN]), LearnError::Point { expected: 1, found: 1 });
    }
}
