//! The policies that come with Paceline, as Python's hooks call them. What they decide is `paceline-tune`'s; here wishes
//! become dictionaries.

use crate::{error::PacelineError, talk::Talk, worker::Worker};
use paceline_sync::policy::{MODES, Policy, Wishes};
use paceline_tune::policies;
use pyo3::{prelude::*, types::PyDict};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A policy that comes with Paceline.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct ShippedPolicy(Mutex<Box<dyn Policy>>);

#[pymethods]
impl ShippedPolicy {
    /// From its name and arguments, such as `noise_scale:most=256,rule=sqrt`.
    #[new]
    fn new(text: &str) -> PyResult<ShippedPolicy> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|error| format!("`{path}`: {error}"))
        };
        let policy = policies::parse(text, read);
        let policy = policy.map_err(|error| PacelineError::new_err(error.to_string()))?;
        Ok(ShippedPolicy(Mutex::new(policy)))
    }

    /// The names there are.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        policies::NAMES.to_vec()
    }

    /// Ways to stay together that policies may ask for.
    #[staticmethod]
    fn modes() -> Vec<&'static str> {
        MODES.to_vec()
    }

    /// Call one of the hooks; what is wished for, by name.
    fn call<'py>(
        &self,
        py: Python<'py>,
        hook: &str,
        talk: &Talk,
        worker: &Worker,
    ) -> PyResult<Bound<'py, PyDict>> {
        let moment = talk.moment(worker)?;
        let mut wishes = Wishes::default();
        let mut policy = self.policy();
        match hook {
            "before_train" => policy.before_train(&moment, &mut wishes),
            "after_train" => policy.after_train(&moment, &mut wishes),
            "before_epoch" => policy.before_epoch(&moment, &mut wishes),
            "after_epoch" => policy.after_epoch(&moment, &mut wishes),
            "before_step" => policy.before_step(&moment, &mut wishes),
            "after_step" => policy.after_step(&moment, &mut wishes),
            _ => return Err(PacelineError::new_err(format!("policies have no hook `{hook}`"))),
        }
        let shown = PyDict::new(py);
        shown.set_item("batch_size", wishes.batch)?;
        shown.set_item("learning_rate", wishes.learning_rate)?;
        shown.set_item("size", wishes.size)?;
        shown.set_item("strategy", wishes.strategy)?;
        shown.set_item("partition", wishes.partition.map(|size| size.0))?;
        shown.set_item("credit", wishes.credit.map(|size| size.0))?;
        shown.set_item("mode", wishes.mode)?;
        shown.set_item("reason", wishes.reason)?;
        Ok(shown)
    }

    /// Why this worker is to leave, if it is.
    fn leaves(&self) -> Option<String> {
        self.policy().leaves()
    }

    /// What this worker says of its own last step, if anything.
    fn vote(&self, own_seconds: f64) -> Option<f64> {
        self.policy().vote(own_seconds)
    }

    /// Names of numbers of the program's own that it reads.
    fn metrics(&self) -> Vec<String> {
        self.policy().metrics()
    }

    /// What it remembers, if anything.
    fn state(&self) -> Option<String> {
        self.policy().state()
    }

    /// Go on from what one of its kind remembered.
    fn restore(&self, state: &str) -> PyResult<()> {
        self.policy().restore(state).map_err(|error| PacelineError::new_err(error.to_string()))
    }
}

impl ShippedPolicy {
    fn policy(&self) -> MutexGuard<'_, Box<dyn Policy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
