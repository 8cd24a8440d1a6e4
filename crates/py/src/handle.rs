//! An operation in flight, as Python holds it.

use crate::{coordinator::seconds_from, error, notice::Flight};
use paceline_net::Handle as Running;
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

    fn is_over(&self) -> bool {
        self.running.poll().is_some() || self.flight.given_up().is_some()
    }
}

#[pymethods]
impl Handle {
    /// Whether it ended, well or not, or was given up. Never waits.
    fn done(&self) -> bool {
        self.is_over()
    }

    /// The exception it ended with; `None` if it goes on or ended well.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let error = match self.running.poll() {
            Some(Ok(())) => return None,
            Some(Err(error)) => Some(error),
            None => None,
        };
        // What failed after it was given up may have failed because of that.
        match self.flight.given_up() {
            Some(reason) => Some(error::given_up(py, &reason)),
            None => error.map(|error| error::operation(py, &error)),
        }
    }

    /// Wait until it ended, and raise if it failed. False if `timeout` seconds passed first: then it
    /// goes on, and so does its hold on the memory.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = timeout.map(|seconds| Instant::now() + seconds_from(seconds));
        let over = in_slices(py, deadline, |until| {
            if self.flight.given_up().is_none() {
                self.running.wait_until(until);
            }
            self.is_over().then_some(())
        })?;
        match (over, self.exception(py)) {
            (None, _) => Ok(false),
            (Some(()), None) => Ok(true),
            (Some(()), Some(error)) => Err(error),
        }
    }

    /// Stop waiting for it, for the reason given: whoever waits or listens hears that, unless it has
    /// ended. The engine goes on, and so does its hold on the memory.
    fn give_up(&self, reason: &str) {
        self.flight.give_up(&reason.into());
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
    in_slices(py, deadline, |until| {
        let over = || handles.iter().position(|handle| handle.get().is_over());
        over().or_else(|| Running::wait_any(&running, until)).or_else(over)
    })
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
