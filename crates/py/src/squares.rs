//! Squared norms of what passes through the collectives of one step, taken where it passes anyway: of this worker's
//! contributions as they are posted, of the results as they come. Of a large tensor one part is looked at in each step,
//! another in the next, and counted as many times: the average over steps is the same, the cost a fraction.

use crate::request::Region;
use paceline_job::Dtype;
use paceline_kernels::sum_of_squares;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tensors of fewer elements are looked at whole: their parts would not be worth the call.
const WHOLE: u64 = 1 << 14;

/// Squared norms of one step, on one worker.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Squares(Arc<Measure>);

/// Which part of every tensor, and what was found.
pub(crate) struct Measure {
    /// Of so many parts, the part that is looked at.
    parts: u64,
    part: u64,
    /// Results are the same everywhere, so each of so many workers looks at its share of the part.
    workers: u64,
    rank: u64,
    found: Mutex<Found>,
}

#[derive(Clone, Copy, Default)]
struct Found {
    contributed: f64,
    averaged: f64,
    /// Whether something of another element type passed, of which nothing is known.
    unknown: bool,
}

#[pymethods]
impl Squares {
    /// Of step `step`, for worker `rank` of `workers`; of large tensors, one part of `parts`.
    #[new]
    #[pyo3(signature = (step, rank, workers, parts=1))]
    fn new(step: u64, rank: u64, workers: u64, parts: u64) -> Squares {
        let parts = parts.max(1);
        let workers = workers.max(1);
        Squares(Arc::new(Measure {
            parts,
            part: step % parts,
            workers,
            rank,
            found: Mutex::default(),
        }))
    }

    /// The squared norm of what this worker contributed, and its share of that of the results; `None` where element types are
    /// not summed.
    pub(crate) fn found(&self) -> Option<(f64, f64)> {
        let found = *self.0.found();
        (!found.unknown).then_some((found.contributed, found.averaged))
    }
}

impl Squares {
    pub(crate) fn measure(&self) -> Arc<Measure> {
        self.0.clone()
    }
}

impl Measure {
    /// A tensor is about to be reduced.
    ///
    /// # Safety
    /// The region is valid for reads of its elements, and nobody writes them meanwhile.
    pub(crate) unsafe fn contributed(&self, dtype: Dtype, region: Region) {
        let (begin, end, weight) = self.part_of(region.1);
        // SAFETY: the caller's promise, for a part of the region.
        let squares = unsafe { sum(dtype, region, begin, end) };
        self.note(squares, weight, |found| &mut found.contributed);
    }

    /// It was.
    ///
    /// # Safety
    /// As for [`Measure::contributed`].
    pub(crate) unsafe fn averaged(&self, dtype: Dtype, region: Region) {
        let (begin, end, weight) = self.part_of(region.1);
        let cut = |worker: u64| begin + (end - begin) * worker / self.workers;
        // SAFETY: the caller's promise, for a part of the region.
        let squares = unsafe { sum(dtype, region, cut(self.rank), cut(self.rank + 1)) };
        self.note(squares, weight, |found| &mut found.averaged);
    }

    /// Beginning and end of the part that is looked at, and how many times it counts. All workers look at the same.
    fn part_of(&self, elements: u64) -> (u64, u64, f64) {
        if elements < WHOLE {
            return (0, elements, 1.0);
        }
        let cut = |part: u64| elements * part / self.parts;
        (cut(self.part), cut(self.part + 1), self.parts as f64)
    }

    fn note(&self, squares: Option<f64>, weight: f64, which: impl Fn(&mut Found) -> &mut f64) {
        let mut found = self.found();
        match squares {
            Some(squares) => *which(&mut found) += weight * squares,
            None => found.unknown = true,
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// # Safety
/// As for [`Measure::contributed`], for elements `begin..end` of the region.
unsafe fn sum(dtype: Dtype, region: Region, begin: u64, end: u64) -> Option<f64> {
    let source = (region.0 + begin as usize * dtype.size()) as *const u8;
    // SAFETY: the caller's promise.
    unsafe { sum_of_squares(dtype, source, (end - begin) as usize) }
}
