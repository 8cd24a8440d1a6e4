//! The elastic sampler, as Python's data loader drives it. What is dealt to whom is `paceline-sync`'s to say; here numbers
//! and dictionaries become its types.

use crate::error::PacelineError;
use paceline_sync::sampler::{Deal as Dealt, Position, Sampler as Dealer, SamplerError, Shuffle};
use pyo3::{prelude::*, types::PyDict};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Deals the samples of a data set, epoch by epoch.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Sampler(Mutex<Dealer>);

/// The samples of one step.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Deal(Dealt);

#[pymethods]
impl Sampler {
    /// Of so many samples; without a seed, in their order.
    #[new]
    #[pyo3(signature = (samples, seed=None))]
    fn new(samples: u64, seed: Option<u64>) -> Sampler {
        let shuffle = seed.map_or(Shuffle::InOrder, Shuffle::Seeded);
        Sampler(Mutex::new(Dealer::new(samples, shuffle)))
    }

    /// One of its own, at the same place.
    fn copy(&self) -> Sampler {
        Sampler(Mutex::new(self.dealer().clone()))
    }

    /// How many samples of this epoch are not dealt, or came back.
    #[getter]
    fn left(&self) -> u64 {
        self.dealer().left()
    }

    /// The epoch, counted from 0.
    #[getter]
    fn epoch(&self) -> u64 {
        self.dealer().position().epoch
    }

    /// How many steps the rest of the epoch takes, with a batch for each worker.
    fn steps(&self, batches: Vec<u64>) -> u64 {
        self.dealer().steps(&batches)
    }

    /// The samples of the next step, with a batch for each worker; `None` if the epoch is over.
    fn deal(&self, batches: Vec<u64>) -> PyResult<Option<Deal>> {
        self.dealer().deal(&batches).map(|deal| deal.map(Deal)).map_err(refused)
    }

    /// What these workers were dealt does not count: others will get it.
    fn give_back(&self, deal: &Deal, lost: Vec<usize>) -> PyResult<()> {
        self.dealer().give_back(&deal.0, &lost).map_err(refused)
    }

    /// Begin the next epoch.
    fn next_epoch(&self) {
        self.dealer().next_epoch();
    }

    /// How far it is: `epoch`, `dealt` and `returned`, pairs of first and last.
    fn position<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Position { epoch, dealt, returned } = self.dealer().position().clone();
        let position = PyDict::new(py);
        position.set_item("epoch", epoch)?;
        position.set_item("dealt", dealt)?;
        let returned: Vec<(u64, u64)> =
            returned.into_iter().map(|range| (range.start, range.end)).collect();
        position.set_item("returned", returned)?;
        Ok(position)
    }

    /// Go on from there.
    fn restore(&self, epoch: u64, dealt: u64, returned: Vec<(u64, u64)>) -> PyResult<()> {
        let returned = returned.into_iter().map(|(begin, end)| begin..end).collect();
        self.dealer().restore(Position { epoch, dealt, returned }).map_err(refused)
    }
}

impl Sampler {
    fn dealer(&self) -> MutexGuard<'_, Dealer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Deal {
    /// The samples of one worker.
    fn of(&self, rank: usize) -> Vec<u64> {
        self.0.of(rank).collect()
    }

    /// By what a worker's average is multiplied so that the average over workers is that over samples.
    fn weight(&self, rank: usize) -> f64 {
        self.0.weight(rank)
    }

    /// How many samples all workers have.
    #[getter]
    fn samples(&self) -> u64 {
        self.0.samples()
    }
}

fn refused(error: SamplerError) -> PyErr {
    PacelineError::new_err(error.to_string())
}
