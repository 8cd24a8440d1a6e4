//! How much gradients differ between samples, seen from the squared norms of workers' gradients and of their average. Pure
//! arithmetic: who measures the norms, and when, is not known here.
//!
//! With a true gradient G and samples whose gradients have covariance Σ around it, a worker's gradient over b samples has the
//! expected squared norm |G|² + tr Σ/b, and the average of n workers |G|² + tr Σ/(n·b). Both sides measured, both unknowns
//! follow, without bias; averaged over workers the first has far less variance than that of any one worker. Their ratio
//! tr Σ/|G|² is the gradient noise scale: about the batch size beyond which larger batches gain little.

/// Squared norms of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientNorms {
    /// How many workers' gradients were averaged.
    pub workers: usize,
    /// The squared norm of a worker's own gradient, on average over workers.
    pub contributed: f64,
    /// The squared norm of the average of all gradients.
    pub averaged: f64,
    /// One over the number of samples behind a worker's gradient, on average over workers.
    pub inverse_batch: f64,
}

/// The same over many steps.
#[derive(Clone, Debug)]
pub struct GradientNoise {
    smoothing: f64,
    squared: Average,
    variance: Average,
}

impl GradientNoise {
    /// How much of what is known a step leaves, by default: a hundred steps are remembered.
    pub const SMOOTHING: f64 = 0.99;

    /// With a share between 0 and 1 of what is known that each step leaves.
    pub fn new(smoothing: f64) -> GradientNoise {
        GradientNoise {
            smoothing: smoothing.clamp(0.0, 1.0 - f64::EPSILON),
            squared: Average::default(),
            variance: Average::default(),
        }
    }

    /// One step more. Steps of one worker alone say nothing, nor do gradients that overflowed.
    pub fn add(&mut self, norms: GradientNorms) {
        let GradientNorms { workers, contributed, averaged, inverse_batch } = norms;
        let finite = contributed.is_finite() && averaged.is_finite();
        if workers < 2 || !finite || !inverse_batch.is_finite() || inverse_batch <= 0.0 {
            return;
        }
        let n = workers as f64;
        let squared = (n * averaged - contributed) / (n - 1.0);
        let variance = (contributed - averaged) * n / ((n - 1.0) * inverse_batch);
        self.squared.add(squared, self.smoothing);
        self.variance.add(variance, self.smoothing);
    }

    /// The squared norm of the true gradient, smoothed; `None` before the first step.
    pub fn squared_norm(&self) -> Option<f64> {
        self.squared.value()
    }

    /// The variance of one sample's gradient, summed over all parameters and smoothed.
    pub fn variance(&self) -> Option<f64> {
        self.variance.value()
    }

    /// The noise scale, in samples; `None` while it cannot be told from the noise of its own estimate.
    pub fn scale(&self) -> Option<f64> {
        let (squared, variance) = (self.squared.value()?, self.variance.value()?);
        (squared > 0.0).then(|| (variance / squared).max(0.0))
    }

    /// All that is known, for somebody who comes later ([`GradientNoise::resume`]).
    pub fn known(&self) -> [f64; 4] {
        [self.squared.sum, self.squared.weight, self.variance.sum, self.variance.weight]
    }

    /// Go on from what another knew.
    pub fn resume(&mut self, known: [f64; 4]) {
        let [squared, variance] = [[known[0], known[1]], [known[2], known[3]]]
            .map(|[sum, weight]| Average { sum, weight });
        (self.squared, self.variance) = (squared, variance);
    }

    /// Forget everything: the model or what it trains on is another.
    pub fn reset(&mut self) {
        *self = GradientNoise::new(self.smoothing);
    }
}

impl Default for GradientNoise {
    fn default() -> GradientNoise {
        GradientNoise::new(GradientNoise::SMOOTHING)
    }
}

/// An exponential average without the bias towards zero of its beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    sum: f64,
    weight: f64,
}

impl Average {
    fn add(&mut self, value: f64, smoothing: f64) {
        self.sum = smoothing * self.sum + (1.0 - smoothing) * value;
        self.weight = smoothing * self.weight + (1.0 - smoothing);
    }

    fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norms(workers: usize, squared: f64, variance: f64, batch: f64) -> GradientNorms {
        GradientNorms {
            workers,
            contributed: squared + variance / batch,
            averaged: squared + variance / (batch * workers as f64),
            inverse_batch: batch.recip(),
        }
    }

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() < 1e-9 * expected, "{found} is not {expected}");
    }

    #[test]
    fn whoever_comes_later_goes_on_from_what_is_known() {
        let (mut first, mut later) = (GradientNoise::default(), GradientNoise::default());
        (1..20).for_each(|step| first.add(norms(2, f64::from(step), 5.0, 8.0)));
        later.resume(first.known());
        for noise in [&mut first, &mut later] {
            noise.add(norms(3, 2.0, 7.0, 8.0));
        }
        assert_eq!((later.scale(), later.known()), (first.scale(), first.known()));
    }

    #[test]
    fn expected_norms_give_back_gradient_variance_and_their_ratio() {
        for (workers, batch) in [(2, 1.0), (4, 32.0), (64, 7.0)] {
            let mut noise = GradientNoise::default();
            for _ in 0..3 {
                noise.add(norms(workers, 0.25, 80.0, batch));
            }
            near(noise.squared_norm(), 0.25);
            near(noise.variance(), 80.0);
            near(noise.scale(), 320.0);
        }
    }

    #[test]
    fn the_first_steps_count_fully() {
        let mut noise = GradientNoise::new(0.999);
        noise.add(norms(2, 1.0, 10.0, 1.0));
        near(noise.scale(), 10.0);
        noise.add(norms(2, 3.0, 10.0, 1.0));
        near(noise.squared_norm(), (0.999 + 3.0) / 1.999);
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let mut noise = GradientNoise::default();
        noise.add(norms(1, 1.0, 10.0, 1.0));
        noise.add(GradientNorms { averaged: f64::INFINITY, ..norms(2, 1.0, 10.0, 1.0) });
        noise.add(GradientNorms { inverse_batch: 0.0, ..norms(2, 1.0, 10.0, 1.0) });
        assert_eq!((noise.scale(), noise.variance()), (None, None));
        // An average longer than the gradients it is made of has no noise in it; one that vanishes has no direction.
        noise.add(GradientNorms {
            workers: 2,
            contributed: 1.0,
            averaged: 0.2,
            inverse_batch: 1.0,
        });
        assert_eq!(noise.scale(), None);
        noise.reset();
        noise.add(GradientNorms {
            workers: 2,
            contributed: 1.0,
            averaged: 1.5,
            inverse_batch: 1.0,
        });
        assert_eq!(noise.scale(), Some(0.0));
    }
}
