//! Whether this worker's steps are slower than usual, as Python asks after each. The rule is `paceline-sync`'s.

use paceline_sync::metrics::Pace as Inner;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last steps of one worker, and how long they usually take.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Pace(Mutex<Inner>);

#[pymethods]
impl Pace {
    #[new]
    fn new() -> Pace {
        Pace(Mutex::new(Inner::default()))
    }

    /// How long steps usually take, in seconds.
    #[getter]
    fn usual(&self) -> Option<f64> {
        self.inner().usual()
    }

    /// One step more: whether steps are slower than usual; `None` until enough were seen.
    fn slowed(&self, seconds: f64) -> Option<bool> {
        self.inner().slowed(seconds)
    }

    /// From now on they usually take so long; `None`: as long as the next ones do.
    fn expect(&self, usual: Option<f64>) {
        self.inner().expect(usual);
    }
}

impl Pace {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
