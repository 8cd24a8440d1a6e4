//! A proposal of other settings, as Python waits for it. What a proposal is and who decides is the runtime's.

use crate::{
    coordinator::seconds_from,
    error::{self, PacelineError},
};
use paceline_job::ByteSize;
use paceline_net::Proposal as Pending;
use paceline_sync::agreement::Agreed;
use pyo3::prelude::*;

/// A size as Python gives it: bytes, or text such as `256KiB`.
#[derive(FromPyObject)]
pub(crate) enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    pub(crate) fn read(self) -> PyResult<ByteSize> {
        match self {
            Size::Bytes(bytes) => Ok(ByteSize(bytes)),
            Size::Text(text) => text
                .parse()
                .map_err(|problem| PacelineError::new_err(format!("`{text}`: {problem}"))),
        }
    }
}

/// What this worker proposed.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Proposal(pub(crate) Pending);

#[pymethods]
impl Proposal {
    /// Whether it is decided.
    fn done(&self) -> bool {
        self.0.poll().is_some()
    }

    /// The view and the step from which it is in force, once that is decided; `None` if it is not within `timeout`
    /// seconds. Raises an error that says why, if there is no such view.
    #[pyo3(signature = (timeout=0.0))]
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<(u32, u64)>> {
        match py.detach(|| self.0.wait(seconds_from(timeout))) {
            None => Ok(None),
            Some(Ok(Agreed { version, step })) => Ok(Some((version.0, step))),
            Some(Err(problem)) => Err(error::proposing(problem)),
        }
    }
}
