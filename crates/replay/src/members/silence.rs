//! Workers, and a coordinator, that are stopped and go on later: whatever reaches them meanwhile waits, and their connections stay
//! open. Who is taken for lost, and when a worker looks for another coordinator, the machines of `sync/src/liveness` say, as in
//! real time.

use super::{Happening, Run, conditions::Whom};
use paceline_job::{Time, WorkerId};
use paceline_sync::{
    agreement::{Limits, Registrar},
    liveness::{HEARTBEAT, Heartbeat, IN_DOUBT, PATIENCE, Pulse, Vigil},
};
use std::{collections::BTreeMap, time::Duration};

/// After the last one that is stopped has gone on, heartbeats are played for so long.
const AFTERMATH: Duration = Duration::from_secs(2 * PATIENCE.as_secs());

/// See the file's first paragraph.
pub(super) struct Silence {
    /// Who is stopped, and until when; nobody stands for the coordinator.
    stopped: BTreeMap<Option<WorkerId>, Time>,
    /// Heartbeats matter until then; without anybody who is stopped, nobody needs any.
    until: Time,
    hearts: BTreeMap<WorkerId, Heartbeat>,
    /// The coordinator's.
    vigil: Vigil,
    /// When the coordinator heard whom.
    pulses: BTreeMap<WorkerId, Pulse>,
}

impl Silence {
    pub(super) fn new() -> Silence {
        Silence {
            stopped: BTreeMap::new(),
            until: Time::ZERO,
            hearts: BTreeMap::new(),
            vigil: Vigil::new(PATIENCE, Time::ZERO),
            pulses: BTreeMap::new(),
        }
    }
}

impl Run {
    /// Whether something has to wait until whoever it is for goes on: it is given back then.
    pub(super) fn waits(&mut self, happening: Happening) -> Option<Happening> {
        let whom = match &happening {
            Happening::Told(id, ..)
            | Happening::Actor(id, _)
            | Happening::Disconnected(id, _)
            | Happening::Reconnect(id)
            | Happening::Echo(id, _)
            | Happening::Beat(id) => Some(*id),
            Happening::Answered(_, term, _)
            | Happening::Alive(_, term)
            | Happening::Gone(_, term)
            | Happening::Roll(term)
            | Happening::Look(term)
                if *term == self.term =>
            {
                None
            }
            _ => return Some(happening),
        };
        let Some(until) = self.silence.stopped.get(&whom).copied() else { return Some(happening) };
        // Whatever has come is read first, and time in which one is asleep does not count.
        let behind = match happening {
            Happening::Look(_) => 1,
            Happening::Roll(_) => self.grace(),
            _ => 0,
        };
        self.at(Time(until.0 + behind), happening);
        None
    }

    pub(super) fn is_stopped(&self, whom: Option<WorkerId>) -> bool {
        self.silence.stopped.contains_key(&whom)
    }

    /// When the coordinator goes on, if it is stopped.
    pub(super) fn coordinator_goes_on(&self) -> Option<Time> {
        self.silence.stopped.get(&None).copied()
    }

    /// Stop them for so long.
    pub(super) fn stop(&mut self, whom: &Whom, lasts: Duration) {
        let alive = self.working();
        let mut stopped: Vec<Option<WorkerId>> = match whom {
            Whom::Worker(lot) => vec![Some(alive[*lot as usize % alive.len()])],
            Whom::Coordinator => vec![None],
            Whom::Everybody => self.actors.keys().copied().map(Some).chain([None]).collect(),
        };
        stopped.retain(|it| !self.is_stopped(*it) && (it.is_some() || self.registrar.is_some()));
        let until = self.now.after(lasts);
        self.ledger.stopped += stopped.len();
        for it in stopped {
            self.silence.stopped.insert(it, until);
            self.at(until, Happening::GoesOn(it));
            if matches!(whom, Whom::Coordinator) && self.conditions.elects && lasts > IN_DOUBT {
                self.at(self.now.after(IN_DOUBT), Happening::Elect(self.term));
            }
        }
        let played = self.silence.until > self.now;
        self.silence.until = self.silence.until.max(until.after(AFTERMATH));
        if !played {
            let ids: Vec<WorkerId> = self.actors.keys().copied().collect();
            ids.into_iter().for_each(|id| self.begin_heartbeats(id));
            self.begin_to_look();
        }
    }

    pub(super) fn goes_on(&mut self, whom: Option<WorkerId>) {
        self.silence.stopped.remove(&whom);
    }

    /// Another process has the coordinator's seat, whose lease has run out; this one can write nothing down any more.
    pub(super) fn elect(&mut self, term: u32) {
        if self.term == term && self.registrar.is_some() && self.is_stopped(None) {
            self.ledger.elected += 1;
            let until = self.silence.stopped.remove(&None).unwrap_or(self.now);
            // When it goes on, it finds that out, and its connections end.
            for id in self.actors.keys().copied().collect::<Vec<_>>() {
                self.at(until, Happening::Disconnected(id, term));
            }
            self.take_seat();
        }
    }

    /// A coordinator that goes by what is written down.
    pub(super) fn take_seat(&mut self) {
        self.term += 1;
        self.registrar = Some(Registrar::restore(self.minutes.clone(), Limits::default()));
        self.wait_for_absent();
        self.begin_to_look();
    }

    fn begin_to_look(&mut self) {
        self.silence.vigil = Vigil::new(PATIENCE, self.now);
        self.silence.pulses.clear();
        if self.now < self.silence.until {
            self.later(0, Happening::Look(self.term));
        }
    }

    /// A worker is connected.
    pub(super) fn begin_heartbeats(&mut self, id: WorkerId) {
        self.silence.pulses.remove(&id);
        if self.now < self.silence.until {
            let mut heart = Heartbeat::new(self.now);
            let line = self.lines.get(&id).copied();
            if let Some(term) = line.filter(|_| heart.is_due(self.now)) {
                let at = self.in_order(id, true);
                self.at(at, Happening::Alive(id, term));
            }
            if self.silence.hearts.insert(id, heart).is_none() {
                self.later(HEARTBEAT.as_nanos() as u64, Happening::Beat(id));
            }
        }
    }

    /// A worker's thread for its line wakes up.
    pub(super) fn beat(&mut self, id: WorkerId) {
        let Some(heart) = self.silence.hearts.get_mut(&id) else { return };
        if self.now >= self.silence.until || !self.actors.contains_key(&id) {
            self.silence.hearts.remove(&id);
            return;
        }
        let (says, doubts) = (heart.is_due(self.now), heart.is_in_doubt(self.now));
        let line = self.lines.get(&id).copied();
        if let Some(term) = line.filter(|_| says) {
            let at = self.in_order(id, true);
            self.at(at, Happening::Alive(id, term));
        }
        if let Some(term) = line.filter(|term| doubts && *term != self.term) {
            self.later(0, Happening::Disconnected(id, term));
        }
        self.later(HEARTBEAT.as_nanos() as u64, Happening::Beat(id));
    }

    /// The coordinator hears that a worker lives, and says so.
    pub(super) fn hear_heartbeat(&mut self, id: WorkerId, term: u32) {
        if self.term == term && self.lines.get(&id) == Some(&term) && self.registrar.is_some() {
            self.silence.pulses.insert(id, self.silence.vigil.pulse());
            let at = self.in_order(id, false);
            self.at(at, Happening::Echo(id, term));
        }
    }

    /// A worker hears its coordinator.
    pub(super) fn hear_coordinator(&mut self, id: WorkerId, term: u32) {
        if self.lines.get(&id) == Some(&term)
            && let Some(heart) = self.silence.hearts.get_mut(&id)
        {
            heart.hear();
        }
    }

    /// All that has come is read: whoever was silent for too long is lost.
    pub(super) fn look(&mut self, term: u32) -> Result<(), String> {
        if self.term != term || self.registrar.is_none() || self.now >= self.silence.until {
            return Ok(());
        }
        let Silence { vigil, pulses, .. } = &mut self.silence;
        vigil.look(self.now);
        let silent: Vec<WorkerId> =
            pulses.extract_if(.., |_, heard| vigil.is_lost(*heard)).map(|(id, _)| id).collect();
        for id in silent {
            if self.lines.get(&id) == Some(&term) {
                self.ledger.silent += 1;
                self.lines.remove(&id);
                let after = self.delay();
                self.later(after, Happening::Disconnected(id, term));
                self.register(|registrar, out| registrar.gone(id, out))?;
                self.wait_for_absent();
            }
        }
        self.later(HEARTBEAT.as_nanos() as u64, Happening::Look(term));
        Ok(())
    }
}
