//! Who lives, who is lost and who is slow, given when what was heard. Death is a closed connection, which drivers see, or
//! lost heartbeats, which this module is for. Missed progress only makes a worker [slow](Progress::is_slow). Nothing here
//! sends or reads a clock.

mod heartbeat;
mod progress;

pub use heartbeat::{Heartbeat, IN_DOUBT};
pub use progress::Progress;

use paceline_job::Time;
use std::time::Duration;

/// How often whoever lives says so.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Whoever was not heard for so long is lost. Heartbeats are sent by a thread that does nothing else for long, and TCP's
/// own, which a stopped process's kernel answers, have as long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a watcher counts at most between two looks: whoever looks later than this was asleep itself (stopped, on a
/// suspended machine, or waiting for a disk), and what came meanwhile lies unread.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// A watcher's own clock, which runs while the watcher is awake. It is to look every [`HEARTBEAT`], and to read what has
/// come before it looks.
#[derive(Clone, Copy, Debug)]
pub struct Vigil {
    patience: Duration,
    awake: Duration,
    looked: Time,
}

/// When something was heard, by a [`Vigil`]'s clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pulse(Duration);

impl Vigil {
    /// Whoever is silent for longer than `patience` is lost.
    pub fn new(patience: Duration, now: Time) -> Vigil {
        Vigil { patience, awake: Duration::ZERO, looked: now }
    }

    /// Time has passed. Whatever came before has been read.
    pub fn look(&mut self, now: Time) {
        self.awake += now.since(self.looked).min(LONGEST_LOOK);
        self.looked = now;
    }

    /// Something is heard now.
    pub fn pulse(&self) -> Pulse {
        Pulse(self.awake)
    }

    /// How long nothing was heard, as far as the watcher was awake.
    pub fn silence(&self, last: Pulse) -> Duration {
        self.awake - last.0
    }

    /// Whether nothing was heard for too long.
    pub fn is_lost(&self, last: Pulse) -> bool {
        self.silence(last) > self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO.after(Duration::from_secs_f64(seconds))
    }

    /// Look every second from one time to another.
    fn look(vigil: &mut Vigil, seconds: std::ops::Range<u32>) {
        seconds.for_each(|second| vigil.look(at(f64::from(second))));
    }

    #[test]
    fn whoever_is_silent_for_too_long_is_lost_and_whoever_speaks_is_not() {
        let mut vigil = Vigil::new(PATIENCE, at(100.0));
        let (frozen, mut alive) = (vigil.pulse(), vigil.pulse());
        for second in 100..=120 {
            vigil.look(at(f64::from(second)));
            assert!(!vigil.is_lost(frozen), "after {:?}", vigil.silence(frozen));
            alive = vigil.pulse();
        }
        vigil.look(at(121.0));
        assert!(vigil.is_lost(frozen) && !vigil.is_lost(alive));
        assert_eq!(vigil.silence(frozen), Duration::from_secs(21));
    }

    #[test]
    fn a_watcher_that_slept_takes_nobody_for_lost() {
        let mut vigil = Vigil::new(PATIENCE, at(0.0));
        look(&mut vigil, 0..10);
        let heard = vigil.pulse();
        // The machine is suspended for a night. What came in before is read, then it looks.
        vigil.look(at(40_000.0));
        assert!(!vigil.is_lost(heard), "{:?}", vigil.silence(heard));
        // From now on silence counts as before.
        look(&mut vigil, 40_001..40_019);
        assert!(!vigil.is_lost(heard));
        look(&mut vigil, 40_019..40_021);
        assert!(vigil.is_lost(heard));
    }

    #[test]
    fn a_watcher_that_is_held_up_again_and_again_still_finds_whoever_is_lost() {
        let mut vigil = Vigil::new(PATIENCE, at(0.0));
        let heard = vigil.pulse();
        let looks = (1..).find(|look| {
            vigil.look(at(5.0 * f64::from(*look)));
            vigil.is_lost(heard)
        });
        assert_eq!(looks, Some(11), "two seconds count of every five");
    }
}
