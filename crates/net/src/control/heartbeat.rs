//! A worker's side of heartbeats: when to say that it lives, and since when the coordinator has not answered. What lives is
//! the thread that reads the coordinator's line; it waits for nothing else.

use paceline_job::Time;
use paceline_sync::liveness::{HEARTBEAT, PATIENCE, Pulse, Vigil};
use std::time::{Duration, Instant};

/// A coordinator that is silent for so long may have lost its seat to another: as long as the seat's lease lasts.
const IN_DOUBT: Duration = Duration::from_secs(5);

/// See the file's first paragraph.
pub(super) struct Heartbeat {
    began: Instant,
    /// When this worker last said that it lives.
    said: Option<Instant>,
    /// Whether something that was said before is not written yet: then there is no need to say more.
    pub(super) held_up: bool,
    vigil: Vigil,
    heard: Pulse,
    doubted: Option<Instant>,
}

impl Heartbeat {
    pub(super) fn new() -> Heartbeat {
        let vigil = Vigil::new(PATIENCE, Time::ZERO);
        let (began, heard) = (Instant::now(), vigil.pulse());
        Heartbeat { began, said: None, held_up: false, vigil, heard, doubted: None }
    }

    /// Whether it is time to say that this worker lives, which the caller then does.
    pub(super) fn is_due(&mut self) -> bool {
        self.vigil.look(Time::ZERO.after(self.began.elapsed()));
        let due = self.said.is_none_or(|said| said.elapsed() >= HEARTBEAT);
        if due {
            self.said = Some(Instant::now());
        }
        due && !self.held_up
    }

    /// How long until then.
    pub(super) fn rest(&self) -> Duration {
        self.said.map_or(Duration::ZERO, |said| HEARTBEAT.saturating_sub(said.elapsed()))
    }

    /// The coordinator said something.
    pub(super) fn hear(&mut self) {
        self.heard = self.vigil.pulse();
    }

    /// Whether to find out who the coordinator is now; once in a while.
    pub(super) fn is_in_doubt(&mut self) -> bool {
        let silent = self.vigil.silence(self.heard) > IN_DOUBT;
        let due = silent && self.doubted.is_none_or(|doubted| doubted.elapsed() >= HEARTBEAT);
        if due {
            self.doubted = Some(Instant::now());
        }
        due
    }
}
