//! The runtime's errors as Python exceptions. The text is the runtime's own: it names the worker and
//! what can be done. The class says what a program can react to.

use crate::staging::Failure;
use paceline_net::NetError;
use paceline_sync::event::OpError;
use pyo3::{
    create_exception,
    exceptions::{PyRuntimeError, PySystemExit},
    prelude::*,
};

create_exception!(
    paceline,
    PacelineError,
    PyRuntimeError,
    "Something went wrong in the job; the text says where and what to do."
);
create_exception!(
    paceline,
    JoinError,
    PacelineError,
    "This worker could not join the job: the environment, the secret, or who did not come."
);
create_exception!(
    paceline,
    PeerLostError,
    PacelineError,
    "Another worker is gone. `peer` is its rank."
);
create_exception!(
    paceline,
    MismatchError,
    PacelineError,
    "Workers disagree about an operation. `peer` is the rank of one that differs."
);
create_exception!(
    paceline,
    StalledError,
    PacelineError,
    "An operation made no progress for too long; the text says who lacks it."
);
create_exception!(
    paceline,
    AbortedError,
    PacelineError,
    "The operation failed on another worker first, whose rank is `peer`, or was given up here."
);

create_exception!(
    paceline,
    Retired,
    PySystemExit,
    "This worker was asked to leave, and has: the program ends with success unless it catches this."
);

/// Make the classes known to Python.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("PacelineError", py.get_type::<PacelineError>())?;
    module.add("JoinError", py.get_type::<JoinError>())?;
    module.add("PeerLostError", py.get_type::<PeerLostError>())?;
    module.add("MismatchError", py.get_type::<MismatchError>())?;
    module.add("StalledError", py.get_type::<StalledError>())?;
    module.add("AbortedError", py.get_type::<AbortedError>())?;
    module.add("Retired", py.get_type::<Retired>())
}

/// The exception for a failure to join or to run as a worker.
pub(crate) fn joining(error: NetError) -> PyErr {
    JoinError::new_err(error.to_string())
}

/// The exception for a job that cannot be entered.
pub(crate) fn entering(error: NetError) -> PyErr {
    // Nobody needed it, or it waits no longer: it has nothing to do, and nothing went wrong.
    if error.is_too_late() { Retired::new_err(0) } else { joining(error) }
}

/// The exception for a step that cannot begin, or settings that cannot change.
pub(crate) fn proposing(error: NetError) -> PyErr {
    match error {
        // The exit status of the program.
        NetError::Retired => Retired::new_err(0),
        other => PacelineError::new_err(other.to_string()),
    }
}

/// The exception for a trace that could not be written.
pub(crate) fn writing(error: NetError) -> PyErr {
    PacelineError::new_err(error.to_string())
}

/// The exception for an operation that failed.
pub(crate) fn failure(py: Python<'_>, name: &str, failure: &Failure) -> PyErr {
    match failure {
        Failure::Operation(error) => operation(py, error),
        Failure::Copy(problem) => alone(py, PacelineError::new_err(format!("`{name}`: {problem}"))),
        Failure::Closed => closed(),
    }
}

/// The exception for use of a worker that has left.
pub(crate) fn closed() -> PyErr {
    PacelineError::new_err("this worker has left the job; join again first")
}

fn operation(py: Python<'_>, error: &OpError) -> PyErr {
    let text = error.to_string();
    let (exception, peer) = match error {
        OpError::PeerLost { peer, .. } => (PeerLostError::new_err(text), Some(peer.0)),
        OpError::Mismatch { peer, .. } | OpError::Views { peer, .. } => {
            (MismatchError::new_err(text), Some(peer.0))
        }
        OpError::Aborted { peer, .. } => (AbortedError::new_err(text), Some(peer.0)),
        OpError::Stalled { .. } => (StalledError::new_err(text), None),
        OpError::Invalid { .. } => (PacelineError::new_err(text), None),
    };
    match exception.value(py).setattr("peer", peer) {
        Ok(()) => exception,
        Err(other) => other,
    }
}

/// The exception for an operation that nobody waits for any more.
pub(crate) fn given_up(py: Python<'_>, reason: &str) -> PyErr {
    alone(py, AbortedError::new_err(reason.to_string()))
}

/// An exception that no other worker has to do with.
fn alone(py: Python<'_>, exception: PyErr) -> PyErr {
    match exception.value(py).setattr("peer", py.None()) {
        Ok(()) => exception,
        Err(other) => other,
    }
}
