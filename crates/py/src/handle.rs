//! An operation in flight, as Python holds it.

use crate::{coordinator::seconds_from, error, notice::Flight};
use paceline_net::{Handle as Running, Outcome};
use pyo3::prelude::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a wait goes on before it looks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(200);

/// An operation in flight. Its memory is kept until it ended, whether or not the handle is.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Handle {
    running: Running,
    flight: Arc<Flight>,
}

impl Handle {
    pub(crate) fn new(running: Running, flight: Arc<Flight>) -> Handle {
        running.when_done({
            let flight = flight.clone();
            move |outcome| flight.end(outcome)
        });
        Handle { running, flight }
    }
}

#[pymethods]
impl Handle {
    /// Whether it ended, well or not. Never waits.
    fn done(&self) -> bool {
        self.running.poll().is_some()
    }

    /// The exception it ended with; `None` if it goes on or ended well.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let outcome = self.running.poll()?;
        outcome.err().map(|error| error::operation(py, &error))
    }

    /// Wait until it ended, and raise if it failed. False if `timeout` seconds passed first: then it
    /// goes on, and so does its hold on the memory.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = timeout.map(|seconds| Instant::now() + seconds_from(seconds));
        let outcome = in_slices(py, deadline, |until| self.running.wait_until(until))?;
        match outcome {
            None => Ok(false),
            Some(outcome) => raised(py, outcome).map(|()| true),
        }
    }

    /// Call `listener()` when it ended, on the thread that runs `Worker.deliver`.
    fn when_done(&self, listener: Py<PyAny>) {
        self.flight.listen(listener);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.flight.abandon();
    }
}

/// Wait until one of several operations of one worker ended, well or not, and say which; `None` if
/// time is up first.
#[pyfunction]
#[pyo3(signature = (handles, timeout=None))]
pub(crate) fn wait_any(
    py: Python<'_>,
    handles: Vec<Py<Handle>>,
    timeout: Option<f64>,
) -> PyResult<Option<usize>> {
    if handles.is_empty() {
        return Ok(None);
    }
    let deadline = timeout.map(|seconds| Instant::now() + seconds_from(seconds));
    let running: Vec<&Running> = handles.iter().map(|handle| &handle.get().running).collect();
    in_slices(py, deadline, |until| Running::wait_any(&running, until))
}

/// Wait without the interpreter, a slice at a time, so that Ctrl-C is heard.
fn in_slices<R: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    wait: impl Fn(Instant) -> Option<R> + Sync + Send,
) -> PyResult<Option<R>> {
    loop {
        let slice = Instant::now() + SIGNALS;
        let until = deadline.map_or(slice, |deadline| deadline.min(slice));
        if let Some(result) = py.detach(|| wait(until)) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
    }
}

fn raised(py: Python<'_>, outcome: Outcome) -> PyResult<()> {
    outcome.map_err(|error| error::operation(py, &error))
}
