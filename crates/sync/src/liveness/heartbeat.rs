//! A worker's side of heartbeats: when to say that it lives, and when to find out who coordinates the job now, because whoever
//! did has not answered. What lives is whatever reads the coordinator's line; it waits for nothing else.

use super::{HEARTBEAT, PATIENCE, Pulse, Vigil};
use paceline_job::Time;
use std::time::Duration;

/// A coordinator that is silent for so long may have lost its seat to another: as long as the seat's lease lasts.
pub const IN_DOUBT: Duration = Duration::from_secs(5);

/// See the file's first paragraph. It is to be asked every [`HEARTBEAT`].
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// When this worker last said that it lives.
    said: Option<Time>,
    vigil: Vigil,
    heard: Pulse,
    doubted: Option<Time>,
}

impl Heartbeat {
    /// Connected with a coordinator since now.
    pub fn new(now: Time) -> Heartbeat {
        let vigil = Vigil::new(PATIENCE, now);
        Heartbeat { said: None, heard: vigil.pulse(), vigil, doubted: None }
    }

    /// Whether it is time to say that this worker lives, which the caller then does.
    pub fn is_due(&mut self, now: Time) -> bool {
        self.vigil.look(now);
        let due = is_long_ago(self.said, now);
        if due {
            self.said = Some(now);
        }
        due
    }

    /// How long until then.
    pub fn rest(&self, now: Time) -> Duration {
        self.said.map_or(Duration::ZERO, |said| HEARTBEAT.saturating_sub(now.since(said)))
    }

    /// The coordinator said something.
    pub fn hear(&mut self) {
        self.heard = self.vigil.pulse();
    }

    /// Whether to find out who the coordinator is now; once in a while.
    pub fn is_in_doubt(&mut self, now: Time) -> bool {
        let silent = self.vigil.silence(self.heard) > IN_DOUBT;
        let due = silent && is_long_ago(self.doubted, now);
        if due {
            self.doubted = Some(now);
        }
        due
    }
}

fn is_long_ago(last: Option<Time>, now: Time) -> bool {
    last.is_none_or(|last| now.since(last) >= HEARTBEAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_that_does_not_answer_is_doubted_once_in_a_while_and_one_that_does_is_not() {
        let at = |tenths: u64| Time::ZERO.after(Duration::from_millis(100 * tenths));
        let mut heart = Heartbeat::new(at(0));
        let (mut said, mut doubts) = (Vec::new(), Vec::new());
        for tenths in 0..100 {
            if heart.is_due(at(tenths)) {
                said.push(tenths);
            }
            if tenths < 20 {
                heart.hear();
            }
            if heart.is_in_doubt(at(tenths)) {
                doubts.push(tenths);
            }
        }
        assert_eq!(said, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
        assert_eq!(doubts, [70, 80, 90]);
        assert_eq!(heart.rest(at(94)), Duration::from_millis(600));
    }
}
