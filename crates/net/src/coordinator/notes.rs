//! What a coordinator has written down, and what it may therefore say: a decision is told to workers only once it is in
//! the store. While the store cannot be written, what there is to say waits, and workers go on with what they know. This
//! file knows neither workers nor connections.

use super::JobId;
use crate::store::{Record, Store, StoreError};
use paceline_sync::agreement::{Minutes, Registrar, Summons};
use std::time::Duration;

/// The pause before a store that could not be written is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// See the file's first paragraph.
pub(super) struct Notes {
    store: Option<Box<dyn Store>>,
    job: JobId,
    written: Option<Minutes>,
    /// In the order in which they are to be said. Bounded by the registrar, which decides one thing at a time.
    held: Vec<Summons>,
    /// Whether something that was decided could not be written.
    behind: bool,
}

/// What became of writing.
#[derive(Debug, PartialEq)]
pub(super) enum Kept {
    /// This may be said.
    Safe(Vec<Summons>),
    /// What there is to say waits; for the first time, why.
    Held(Option<String>),
    /// Another coordinator has the job. Nothing more may be said.
    Deposed,
}

impl Notes {
    pub(super) fn new(store: Option<Box<dyn Store>>, job: JobId) -> Notes {
        Notes { store, job, written: None, held: Vec::new(), behind: false }
    }

    /// Write down where the registrar stands, if that has changed; what may be said then.
    pub(super) fn keep(&mut self, registrar: &Registrar, summons: Vec<Summons>) -> Kept {
        self.held.extend(summons);
        let Some(store) = &mut self.store else {
            return Kept::Safe(std::mem::take(&mut self.held));
        };
        if store.is_deposed() {
            return Kept::Deposed;
        }
        let minutes = registrar.minutes();
        if self.written.as_ref() != Some(&minutes) {
            match store.save(&Record { job: self.job.clone(), minutes: minutes.clone() }) {
                Ok(()) => self.written = Some(minutes),
                Err(error) => {
                    let known = std::mem::replace(&mut self.behind, true);
                    return match error {
                        StoreError::Taken { .. } => Kept::Deposed,
                        _ => Kept::Held((!known).then(|| error.to_string())),
                    };
                }
            }
        }
        self.behind = false;
        Kept::Safe(std::mem::take(&mut self.held))
    }

    /// Whether everything that was decided is written.
    pub(super) fn is_safe(&self) -> bool {
        !self.behind
    }

    /// The job is over. If that cannot be written, whoever finds the record waits for its workers in vain, and then
    /// forgets it, too.
    pub(super) fn forget(&mut self) {
        if let Some(store) = &mut self.store {
            let _ = store.forget();
        }
    }

    /// The job is over, and another begins.
    pub(super) fn begin_anew(&mut self, job: JobId) {
        self.forget();
        (self.job, self.written, self.behind) = (job, None, false);
        self.held.clear();
    }

    /// How long until writing is to be tried again, or the seat to be looked at; none if there is nothing to do.
    pub(super) fn due(&self) -> Option<Duration> {
        let watched = self.store.as_ref().is_some_and(|store| store.is_lent());
        match (self.behind, watched) {
            (true, _) => Some(RETRY),
            (false, true) => Some(Duration::from_secs(1)),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Membership, Settings, View, WorkerId};
    use paceline_sync::agreement::ToParticipant;
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    #[derive(Debug, Default, Clone)]
    struct Fragile {
        full: Arc<AtomicBool>,
        saved: Arc<AtomicUsize>,
    }

    impl Store for Fragile {
        fn load(&mut self) -> Result<Option<Record>, StoreError> {
            Ok(None)
        }

        fn forget(&mut self) -> Result<(), StoreError> {
            Ok(())
        }

        fn save(&mut self, _: &Record) -> Result<(), StoreError> {
            if self.full.load(Ordering::Relaxed) {
                let (place, problem) = ("there".to_string(), "full".to_string());
                return Err(StoreError::Unusable { place, problem });
            }
            self.saved.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn elastic(size: usize) -> Registrar {
        let view =
            View { membership: Membership::Elastic, ..View::local(size, Settings::default()) };
        Registrar::new(view, false)
    }

    fn summons(to: u64) -> Vec<Summons> {
        vec![Summons { to: WorkerId(to), message: ToParticipant::Dismissed }]
    }

    #[test]
    fn nothing_is_said_before_it_is_written_and_nothing_is_forgotten() {
        let store = Fragile::default();
        let mut notes = Notes::new(Some(Box::new(store.clone())), JobId::random().unwrap());
        let mut registrar = elastic(3);
        assert_eq!(notes.keep(&registrar, summons(0)), Kept::Safe(summons(0)));
        assert_eq!(notes.keep(&registrar, summons(1)), Kept::Safe(summons(1)));
        assert_eq!(store.saved.load(Ordering::Relaxed), 1, "only what has changed");

        store.full.store(true, Ordering::Relaxed);
        registrar.gone(WorkerId(2), &mut Vec::new());
        assert!(matches!(notes.keep(&registrar, summons(0)), Kept::Held(Some(_))));
        assert_eq!(notes.keep(&registrar, summons(1)), Kept::Held(None), "said once");
        assert!(notes.due().is_some() && !notes.is_safe());

        store.full.store(false, Ordering::Relaxed);
        let all = [summons(0), summons(1), summons(2)].concat();
        assert_eq!(notes.keep(&registrar, summons(2)), Kept::Safe(all));
        assert!(notes.due().is_none() && notes.is_safe());
    }
}
