//! What a caller holds while a collective is in flight: it can be polled, waited on, or given a
//! callback. It knows nothing of how the operation gets done.

use paceline_sync::event::OpError;
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

/// How an operation ended.
pub type Outcome = Result<(), Arc<OpError>>;

type Callback = Box<dyn FnOnce(Outcome) + Send>;

const PENDING: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// The state both sides see.
#[derive(Default)]
pub(crate) struct Completion {
    state: AtomicU8,
    /// Whether somebody asked and heard that it ended: whoever knows that does not wait.
    known: AtomicBool,
    ending: Mutex<Ending>,
}

#[derive(Default)]
struct Ending {
    error: Option<Arc<OpError>>,
    callbacks: Vec<Callback>,
}

impl Completion {
    pub(crate) fn finish(&self, outcome: Outcome) {
        let mut ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let callbacks = std::mem::take(&mut ending.callbacks);
        match &outcome {
            Ok(()) => self.state.store(DONE, Ordering::Release),
            Err(error) => {
                ending.error = Some(error.clone());
                self.state.store(FAILED, Ordering::Release);
            }
        }
        drop(ending);
        for callback in callbacks {
            callback(outcome.clone());
        }
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match self.state.load(Ordering::Acquire) {
            PENDING => None,
            DONE => Some(Ok(())),
            _ => {
                let ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                Some(Err(ending.error.clone().expect("stored before the state")))
            }
        }
    }

    /// How it ended, if it has. From then on it is [known](Completion::is_known) to have.
    pub(crate) fn ask(&self) -> Option<Outcome> {
        let outcome = self.outcome();
        if outcome.is_some() {
            self.known.store(true, Ordering::Relaxed);
        }
        outcome
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Call `callback` when it ends, which may be now.
    pub(crate) fn when_done(&self, callback: Callback) {
        let mut ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.state.load(Ordering::Acquire) == PENDING {
            ending.callbacks.push(callback);
            return;
        }
        drop(ending);
        if let Some(outcome) = self.outcome() {
            callback(outcome);
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_callback_is_called_once_whether_it_came_before_the_end_or_after() {
        let completion = Completion::default();
        let calls = Arc::new(AtomicU32::new(0));
        let count = || {
            let calls = calls.clone();
            Box::new(move |outcome: Outcome| {
                assert!(outcome.is_ok());
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        completion.when_done(count());
        completion.when_done(count());
        assert_eq!((completion.outcome(), calls.load(Ordering::Relaxed)), (None, 0));
        completion.finish(Ok(()));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        completion.when_done(count());
        assert_eq!((completion.outcome(), calls.load(Ordering::Relaxed)), (Some(Ok(())), 3));
    }
}
