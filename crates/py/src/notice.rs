//! How Python hears that operations ended. The engine's threads must never wait for the interpreter,
//! so they put a notice into a queue; one thread of Python's takes them out and makes the calls. The
//! queue holds at most one notice for each operation in flight.

use paceline_net::Outcome;
use pyo3::prelude::*;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    mpsc::{Receiver, Sender, channel},
};

/// The part of an operation that Python cares about.
pub(crate) struct Flight {
    state: Mutex<State>,
    notices: Sender<Notice>,
}

#[derive(Default)]
struct State {
    ended: bool,
    /// Nobody holds the handle any more, so its memory is given back when it ends.
    abandoned: bool,
    listeners: Vec<Py<PyAny>>,
    /// What must live until the operation ended: the owner of its memory.
    keep: Option<Py<PyAny>>,
}

enum Notice {
    Ended(Arc<Flight>),
    Closed,
}

impl Flight {
    /// The engine's side: it ended. Takes no lock that anybody holds while waiting.
    pub(crate) fn end(self: &Arc<Flight>, _outcome: Outcome) {
        let mut state = self.lock();
        state.ended = true;
        let notice = state.abandoned || !state.listeners.is_empty();
        drop(state);
        if notice {
            // Without a receiver the worker is closed, and nobody listens.
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// Call `listener` on the notice thread when it ends, or soon, if it has.
    pub(crate) fn listen(self: &Arc<Flight>, listener: Py<PyAny>) {
        let mut state = self.lock();
        state.listeners.push(listener);
        let ended = state.ended;
        drop(state);
        if ended {
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// The handle is gone. What was kept is given back, by the thread that holds the interpreter.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        let keep = if state.ended { state.keep.take() } else { None };
        drop(state);
        drop(keep);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of one worker.
pub(crate) struct Notices {
    sender: Sender<Notice>,
    receiver: Mutex<Receiver<Notice>>,
}

impl Notices {
    pub(crate) fn new() -> Notices {
        let (sender, receiver) = channel();
        Notices { sender, receiver: Mutex::new(receiver) }
    }

    /// An operation about to be posted, with what must live until it ended.
    pub(crate) fn flight(&self, keep: Option<Py<PyAny>>) -> Arc<Flight> {
        let state = Mutex::new(State { keep, ..State::default() });
        Arc::new(Flight { state, notices: self.sender.clone() })
    }

    /// Let [`Notices::deliver`] return once it has delivered what is in the queue.
    pub(crate) fn close(&self) {
        // The receiver lives as long as we do.
        let _ = self.sender.send(Notice::Closed);
    }

    /// Call listeners as their operations end, until closed. What a listener raises is reported as
    /// Python reports what nobody can catch.
    pub(crate) fn deliver(&self, py: Python<'_>) {
        loop {
            let notice =
                py.detach(|| self.receiver.lock().unwrap_or_else(PoisonError::into_inner).recv());
            let Ok(Notice::Ended(flight)) = notice else { return };
            let mut state = flight.lock();
            let listeners = std::mem::take(&mut state.listeners);
            let keep = if state.abandoned { state.keep.take() } else { None };
            drop(state);
            drop(keep);
            for listener in listeners {
                if let Err(error) = listener.call0(py) {
                    error.write_unraisable(py, Some(listener.bind(py)));
                }
            }
        }
    }
}
