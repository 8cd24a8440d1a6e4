//! How Python hears that operations ended. The engine's threads must never wait for the interpreter,
//! so they put a notice into a queue; one thread of Python's takes them out and makes the calls. The
//! queue holds at most two notices for each operation in flight.
//!
//! An operation can also be given up: its users hear so at once, while its memory stays the engine's
//! until the engine is done with it, and a device that copies from it or to it.

use crate::cuda::Event;
use pyo3::prelude::*;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

/// How often leaving looks whether operations have ended.
const LOOK: Duration = Duration::from_millis(2);

/// Whether other workers may need an operation of this worker to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// It gives others something: leaving waits a while for it.
    ByOthers,
    /// It only takes, such as a receive that may stay open for ever.
    ByNobodyElse,
}

/// The part of an operation that Python cares about.
pub(crate) struct Flight {
    number: u64,
    needed: Needed,
    state: Mutex<State>,
    notices: Sender<Notice>,
    open: Arc<Open>,
}

#[derive(Default)]
struct State {
    ended: bool,
    /// It failed for its users, while a part of it goes on.
    failed: bool,
    /// Why nobody waits for it any more, although it has not ended.
    given_up: Option<Arc<str>>,
    /// Nobody holds the handle any more, so its memory is given back when it ends.
    abandoned: bool,
    listeners: Vec<Py<PyAny>>,
    /// What must live until the operation ended: the owner of its memory.
    keep: Option<Py<PyAny>>,
    /// A device may use that memory until this is past.
    in_use: Option<Arc<Event>>,
}

impl State {
    /// Whether the memory can be given back.
    fn is_free(&self) -> bool {
        self.ended && self.in_use.as_ref().is_none_or(|event| event.is_past())
    }
}

enum Notice {
    Ended(Arc<Flight>),
    Closed,
}

/// Operations that have not ended, by number.
#[derive(Default)]
struct Open(Mutex<HashMap<u64, Weak<Flight>>>);

impl Open {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// The engine's side: it ended. Takes no lock that anybody holds while waiting.
    pub(crate) fn end(self: &Arc<Flight>) {
        self.end_after(None);
    }

    /// As [`Flight::end`], for memory that a device may use until the event is past.
    pub(crate) fn end_after(self: &Arc<Flight>, in_use: Option<Arc<Event>>) {
        let mut state = self.lock();
        state.ended = true;
        state.in_use = in_use;
        let notice = state.abandoned || !state.listeners.is_empty();
        drop(state);
        self.open.lock().remove(&self.number);
        if notice {
            // Without a receiver the worker is closed, and nobody listens.
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// It failed, and will end later.
    pub(crate) fn fail(self: &Arc<Flight>) {
        let mut state = self.lock();
        state.failed = true;
        let notice = !state.listeners.is_empty();
        drop(state);
        if notice {
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// Call `listener` on the notice thread when it ends, or soon, if it has.
    pub(crate) fn listen(self: &Arc<Flight>, listener: Py<PyAny>) {
        let mut state = self.lock();
        state.listeners.push(listener);
        let over = state.ended || state.failed || state.given_up.is_some();
        drop(state);
        if over {
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// Tell its users that it will not end, unless it has.
    pub(crate) fn give_up(self: &Arc<Flight>, reason: &Arc<str>) {
        let mut state = self.lock();
        if state.ended || state.failed || state.given_up.is_some() {
            return;
        }
        state.given_up = Some(reason.clone());
        let notice = !state.listeners.is_empty();
        drop(state);
        if notice {
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// Why it was given up, if it was.
    pub(crate) fn given_up(&self) -> Option<Arc<str>> {
        self.lock().given_up.clone()
    }

    /// The handle is gone. What was kept is given back, by the thread that holds the interpreter: this one,
    /// or if a device still uses it the notice thread, which can wait for that.
    pub(crate) fn abandon(self: &Arc<Flight>) {
        let mut state = self.lock();
        state.abandoned = true;
        let keep = if state.is_free() { state.keep.take() } else { None };
        let in_use = state.ended && state.keep.is_some();
        drop(state);
        drop(keep);
        if in_use {
            let _ = self.notices.send(Notice::Ended(self.clone()));
        }
    }

    /// Nobody knows how long its memory is in use, so it is never given back.
    pub(crate) fn keep_for_ever(&self) {
        std::mem::forget(self.lock().keep.take());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of one worker, and its operations that have not ended.
pub(crate) struct Notices {
    sender: Sender<Notice>,
    receiver: Mutex<Receiver<Notice>>,
    open: Arc<Open>,
    posted: Mutex<u64>,
}

impl Notices {
    pub(crate) fn new() -> Notices {
        let (sender, receiver) = channel();
        let (open, posted) = (Arc::default(), Mutex::new(0));
        Notices { sender, receiver: Mutex::new(receiver), open, posted }
    }

    /// An operation about to be posted, with what must live until it ended.
    pub(crate) fn flight(&self, keep: Option<Py<PyAny>>, needed: Needed) -> Arc<Flight> {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        *posted += 1;
        let flight = Arc::new(Flight {
            number: *posted,
            needed,
            state: Mutex::new(State { keep, ..State::default() }),
            notices: self.sender.clone(),
            open: self.open.clone(),
        });
        self.open.lock().insert(flight.number, Arc::downgrade(&flight));
        flight
    }

    /// Wait until nothing is in flight that others may need, for `limit` at most.
    pub(crate) fn drain(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let needed = |flight: &Arc<Flight>| flight.needed == Needed::ByOthers;
        while self.in_flight().iter().any(needed) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }

    /// Tell the users of all operations in flight that they will not end.
    pub(crate) fn give_up(&self, reason: &str) {
        let reason: Arc<str> = reason.into();
        for flight in self.in_flight() {
            flight.give_up(&reason);
        }
    }

    /// The engine is gone: what has not ended never will. Its memory is never given back, because a
    /// worker of this host may just be writing it.
    pub(crate) fn keep_for_ever(&self) {
        for flight in self.in_flight() {
            flight.keep_for_ever();
        }
    }

    fn in_flight(&self) -> Vec<Arc<Flight>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
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
            let keep = if state.abandoned && state.ended { state.keep.take() } else { None };
            let in_use = state.in_use.clone().filter(|_| keep.is_some());
            drop(state);
            for listener in listeners {
                if let Err(error) = listener.call0(py) {
                    error.write_unraisable(py, Some(listener.bind(py)));
                }
            }
            if let Some(event) = in_use {
                // After a failure of the device, nothing of it is in use.
                let _ = py.detach(|| event.wait());
            }
            drop(keep);
        }
    }
}
