//! The way back to a coordinator that is gone, in an elastic job: it may be restarted where it was, or another may have
//! taken its seat. Meanwhile the worker trains on with the view it has, or waits on to be let in.

use super::Desk;
use crate::{
    coordinator::WorkerMessage,
    error::{NetError, Result},
    handshake::{self, Deadline, Wakened},
    join::ControlChannel,
};
use std::{sync::atomic::Ordering, time::Duration};

/// Where a job's coordinator is to be found.
pub(crate) trait WayBack: Send + Sync {
    /// Connect with whoever is the coordinator now, or fail within a few seconds. `outside`: it was not let in yet.
    fn come_back(&self, outside: bool) -> Result<ControlChannel>;

    /// Something happened on the way that a person may want to know.
    fn tell(&self, line: &str);

    /// Whether it is known that the coordinator is not the one at this address any more; within a few seconds.
    fn is_elsewhere(&self, address: &str) -> bool;
}

/// One such way.
pub(crate) type Comeback = Box<dyn WayBack>;

/// How long a coordinator may be away. After that, workers train on as long as nobody is lost, and nobody waits any more to be let
/// in.
const AWAY: Duration = Duration::from_secs(120);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// The pause after somebody was found who is not the coordinator, or is gone again.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// A time in which the coordinator is away. It ends when the coordinator is heard: being connected is not enough.
pub(super) struct Absence {
    until: Deadline,
    refused: bool,
}

impl Desk {
    /// Another connection in place of one that broke; none if there is no way back, or it is time to stop. `broke` is why, and
    /// `absence` since when.
    pub(super) fn come_back(
        &self,
        wakened: &Wakened,
        broke: Option<NetError>,
        absence: &mut Option<Absence>,
    ) -> Option<ControlChannel> {
        if let Some(NetError::JobOver) = &broke {
            self.state().over = true;
        }
        let outside = self.state().participant.view().size() == 0;
        let comeback = self.comeback.get().filter(|_| !self.state().over);
        self.disconnect(comeback.is_some());
        let comeback = comeback?;
        // Where a worker is done, its coordinator may well be.
        let done = self.state().participant.is_dismissed();
        let heeded = !done && !self.stop.load(Ordering::Acquire);
        let mut pause = absence.is_some().then_some(LONG_PAUSE);
        let absence = absence.get_or_insert_with(|| {
            if heeded {
                comeback.tell("the coordinator is gone, and is looked for");
            }
            Absence { until: Deadline::after(AWAY), refused: false }
        });
        if let Some(NetError::OtherJob { .. } | NetError::NotElastic) = &broke
            && !outside
            && !std::mem::replace(&mut absence.refused, true)
        {
            comeback.tell(&format!(
                "whoever coordinates at {} now does not know this job: restart the coordinator with the `--store` that it had; \
                 until then workers train on, and no loss is recovered from",
                self.coordinator
            ));
        }
        while !self.stop.load(Ordering::Acquire) && !absence.until.remaining().is_zero() {
            if let Some(pause) = pause.replace(PAUSE) {
                // What there is to say waits for the connection.
                wakened.drain();
                if handshake::wait(&mut [handshake::entry(wakened, false)], Some(pause)).is_err() {
                    break;
                }
            }
            if let Ok(channel) = comeback.come_back(outside) {
                self.resume();
                return Some(channel);
            }
        }
        if !done && !outside && !self.stop.load(Ordering::Acquire) {
            let seconds = AWAY.as_secs();
            comeback.tell(&format!(
                "the coordinator did not come back within {seconds} s, and is looked for no more: this worker trains on until \
                 another is lost; restart the job from its last checkpoint"
            ));
        }
        self.disconnect(false);
        None
    }

    /// Say where we stand, and who cannot be reached: whoever hears it may know neither.
    fn resume(&self) {
        let mut state = self.state();
        state.returning = false;
        // Said to the one before, under ballots that are over.
        state.outgoing.clear();
        let state = &mut *state;
        state.participant.reconnect(&mut state.outgoing);
        if state.participant.view().size() == 0 {
            match state.ready {
                true => state.remarks.push(WorkerMessage::Enter),
                // Nobody knows it as somebody who stands anywhere.
                false => state.outgoing.clear(),
            }
        }
        for (worker, version) in &state.accused {
            state.participant.lost(*worker, *version, &mut state.outgoing);
        }
        self.changed.notify_all();
    }
}
