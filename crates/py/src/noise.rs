//! The gradient noise of a job, as Python adds to it. What it means is `paceline-sync`'s to say.

use paceline_sync::metrics::{GradientNoise as Noise, GradientNorms};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The noise of gradients over many steps.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct GradientNoise(Mutex<Noise>);

#[pymethods]
impl GradientNoise {
    #[new]
    #[pyo3(signature = (smoothing=Noise::SMOOTHING))]
    fn new(smoothing: f64) -> GradientNoise {
        GradientNoise(Mutex::new(Noise::new(smoothing)))
    }

    /// One step more: squared norms of a worker's gradient and of the average of all, and one over a worker's batch.
    fn add(&self, workers: usize, contributed: f64, averaged: f64, inverse_batch: f64) {
        self.noise().add(GradientNorms { workers, contributed, averaged, inverse_batch });
    }

    /// The squared norm of the true gradient.
    #[getter]
    fn squared_norm(&self) -> Option<f64> {
        self.noise().squared_norm()
    }

    /// The variance of one sample's gradient.
    #[getter]
    fn variance(&self) -> Option<f64> {
        self.noise().variance()
    }

    /// The noise scale, in samples.
    #[getter]
    fn scale(&self) -> Option<f64> {
        self.noise().scale()
    }

    /// All that is known, for `resume` of one that comes later.
    fn known(&self) -> [f64; 4] {
        self.noise().known()
    }

    /// Go on from what another knew.
    fn resume(&self, known: [f64; 4]) {
        self.noise().resume(known);
    }

    /// Forget everything.
    fn reset(&self) {
        self.noise().reset();
    }
}

impl GradientNoise {
    fn noise(&self) -> MutexGuard<'_, Noise> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
