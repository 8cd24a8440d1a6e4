//! What a caller holds while a collective is in flight: it can be polled, waited on, or given a
//! callback. It knows nothing of how the operation gets done.

use paceline_sync::event::OpError;
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
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
    ending: Mutex<Ending>,
}

#[derive(Default)]
struct Ending {
    error: Option<Arc<OpError>>,
    callback: Option<Callback>,
}

impl Completion {
    pub(crate) fn finish(&self, outcome: Outcome) {
        let mut ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let callback = ending.callback.take();
        match &outcome {
            Ok(()) => self.state.store(DONE, Ordering::Release),
            Err(error) => {
                ending.error = Some(error.clone());
                self.state.store(FAILED, Ordering::Release);
            }
        }
        drop(ending);
        if let Some(callback) = callback {
            callback(outcome);
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

    /// Call `callback` when it ends, which may be now.
    pub(crate) fn when_done(&self, callback: Callback) {
        let mut ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.state.load(Ordering::Acquire) == PENDING {
            ending.callback = Some(callback);
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
