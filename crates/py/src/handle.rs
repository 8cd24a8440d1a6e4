//! An operation in flight, as Python holds it.

use crate::{
    coordinator::seconds_from,
    error::{self, PacelineError},
    notice::Flight,
    request::Region,
    squares::Measure,
    staging::{Failure, Staged},
};
use paceline_job::Dtype;
use paceline_net::Handle as Running;
use pyo3::prelude::*;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long a wait goes on before it looks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(200);

/// An operation in flight. Its memory is kept until it ended, whether or not the handle is.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Handle {
    name: Arc<str>,
    way: Way,
    flight: Arc<Flight>,
    /// Who is to see the result, until it has.
    seen: Mutex<Option<Seen>>,
}

/// Somebody who measures the result, and where it will be.
pub(crate) struct Seen {
    pub(crate) measure: Arc<Measure>,
    pub(crate) dtype: Dtype,
    pub(crate) output: Region,
    /// Owns that memory.
    pub(crate) keep: Option<Py<PyAny>>,
}

/// How its memory reaches the engine.
enum Way {
    /// As it is.
    Posted(Running),
    /// From a device and back.
    Staged(Staged),
}

impl Handle {
    /// `seen` is who measures the result; it is of memory that the operation's owner keeps.
    pub(crate) fn posted(
        name: Arc<str>,
        running: Running,
        flight: Arc<Flight>,
        seen: Option<Seen>,
    ) -> Handle {
        running.when_done({
            let flight = flight.clone();
            move |_| flight.end()
        });
        Handle { name, way: Way::Posted(running), flight, seen: Mutex::new(seen) }
    }

    pub(crate) fn staged(name: Arc<str>, staged: Staged, flight: Arc<Flight>) -> Handle {
        Handle { name, way: Way::Staged(staged), flight, seen: Mutex::default() }
    }

    fn poll(&self) -> Option<Result<(), Failure>> {
        match &self.way {
            Way::Posted(running) => running.poll().map(|end| end.map_err(Failure::Operation)),
            Way::Staged(staged) => staged.poll(),
        }
    }

    /// The first who waits shows the result to whoever measures it.
    fn show(&self, py: Python<'_>) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Seen { measure, dtype, output, keep }) = seen {
            // SAFETY: the operation is over, so the engine is done with the memory, and `keep` owns it until the next line.
            py.detach(|| unsafe { measure.averaged(dtype, output) });
            drop(keep);
        }
    }

    fn is_over(&self) -> bool {
        self.poll().is_some() || self.flight.given_up().is_some()
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
        let failure = match self.poll() {
            Some(Ok(())) => return None,
            Some(Err(failure)) => Some(failure),
            None => None,
        };
        // What failed after it was given up may have failed because of that.
        match self.flight.given_up() {
            Some(reason) => Some(error::given_up(py, &reason)),
            None => failure.map(|failure| error::failure(py, &self.name, &failure)),
        }
    }

    /// Wait until it ended, and raise if it failed. False if `timeout` seconds passed first: then it
    /// goes on, and so does its hold on the memory.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = timeout.map(|seconds| Instant::now() + seconds_from(seconds));
        let over = in_slices(py, deadline, |until| {
            if self.flight.given_up().is_none() {
                match &self.way {
                    Way::Posted(running) => drop(running.wait_until(until)),
                    Way::Staged(staged) => staged.wait_until(until),
                }
            }
            self.is_over().then_some(())
        })?;
        match (over, self.exception(py)) {
            (None, _) => Ok(false),
            (Some(()), None) => {
                self.show(py);
                Ok(true)
            }
            (Some(()), Some(error)) => Err(error),
        }
    }

    /// Stop waiting for it, for the reason given: whoever waits or listens hears that, unless it has
    /// ended. The engine goes on, and so does its hold on the memory.
    fn give_up(&self, reason: &str) {
        self.flight.give_up(&reason.into());
    }

    /// Let a stream (its handle) of the device wait for the result on its way there. For what was staged, and
    /// ended well; else there is nothing to wait for.
    fn precede(&self, stream: usize) -> PyResult<()> {
        match &self.way {
            Way::Posted(_) => Ok(()),
            // SAFETY: the caller gives a stream of the device that the memory is on.
            Way::Staged(staged) => unsafe { staged.precede(stream) }
                .map_err(|problem| PacelineError::new_err(format!("`{}`: {problem}", self.name))),
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
/// time is up first. Not for what is staged.
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
    let running: Option<Vec<&Running>> = handles
        .iter()
        .map(|handle| match &handle.get().way {
            Way::Posted(running) => Some(running),
            Way::Staged(_) => None,
        })
        .collect();
    let running = running
        .ok_or_else(|| PacelineError::new_err("wait_any takes operations on host memory only"))?;
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
