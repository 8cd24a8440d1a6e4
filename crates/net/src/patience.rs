//! How long a waiter keeps a core before it sleeps: as long as that has paid off lately. A sleeper is
//! woken by a system call of its peer, which costs both; a waiter that yields costs whoever else could
//! use the core. This file knows nothing of what is waited for.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The longest that waiting without sleep can pay off.
const LONGEST: Duration = Duration::from_micros(300);

/// The shortest: less than going to sleep and waking takes.
const SHORTEST: Duration = Duration::from_micros(20);

/// Shared by all who wait on one worker. It is advice: races between them do no harm.
#[derive(Debug)]
pub(crate) struct Patience(AtomicU64);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(AtomicU64::new(LONGEST.as_nanos() as u64))
    }

    /// Yield so long, then sleep.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// A wait is over, asleep or not. Short ones make waiting worthwhile again, long ones less so.
    pub(crate) fn learn(&self, waited: Duration) {
        let limit = if waited < LONGEST { LONGEST } else { (self.limit() / 2).max(SHORTEST) };
        self.0.store(limit.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_the_patience_and_one_short_wait_restores_it() {
        let patience = Patience::new();
        assert_eq!(patience.limit(), LONGEST);
        for _ in 0..64 {
            patience.learn(Duration::from_millis(5));
        }
        assert_eq!(patience.limit(), SHORTEST);
        patience.learn(Duration::from_micros(100));
        assert_eq!(patience.limit(), LONGEST);
    }
}
