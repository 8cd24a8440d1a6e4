//! Jobs whose workers come and go, in virtual time: registrar, participants, keepers and engines as `paceline-net` drives
//! them, here on an event heap, with messages that take any time, workers that crash, leave, join and lose sight of each
//! other, and coordinators that die and come back with what was written down. Workers train: they reduce tensors, apply
//! what comes of it, and hand their state to those who join. A ledger says what must not have happened; this file decides
//! nothing that a worker decides.

mod actor;
mod conditions;
mod halves;
mod ledger;
mod memory;
mod silence;

pub use conditions::{Conditions, Mode};
pub use ledger::Ledger;

use crate::timeline::Timeline;
use actor::{Actor, Envelope, Outbox, Told};
use conditions::Trouble;
use halves::Island;
use paceline_job::{Membership, Random, Time, View, Worker, WorkerId};
use paceline_sync::agreement::{Change, Minutes, Registrar, Summons, ToParticipant, ToRegistrar};
use silence::Silence;
use std::{collections::BTreeMap, sync::Arc};

/// A message or a moment.
#[derive(Debug)]
enum Happening {
    /// A worker hears the coordinator of this term.
    Told(WorkerId, u32, ToParticipant),
    /// The coordinator of this term hears a worker.
    Answered(WorkerId, u32, ToRegistrar),
    /// What a worker told itself to do later.
    Actor(WorkerId, Told),
    Trouble(Trouble),
    /// The coordinator of this term hears that a worker's connection is gone.
    Gone(WorkerId, u32),
    /// A worker hears that the coordinator of this term is gone.
    Disconnected(WorkerId, u32),
    CoordinatorReturns,
    /// A worker tries to reach the coordinator again.
    Reconnect(WorkerId),
    /// The coordinator of this term waits no longer for those who have not come back.
    Roll(u32),
    /// A worker's thread for the coordinator's line wakes up.
    Beat(WorkerId),
    /// The coordinator of this term hears that a worker lives.
    Alive(WorkerId, u32),
    /// A worker hears that the coordinator of this term does.
    Echo(WorkerId, u32),
    /// The coordinator of this term looks who was not heard.
    Look(u32),
    /// A worker that was stopped, or the coordinator if it is nobody, goes on.
    GoesOn(Option<WorkerId>),
    /// The coordinator of this term, which is stopped, loses its seat.
    Elect(u32),
    /// Those who were cut off are connected again.
    Heals,
}

/// A run.
struct Run {
    conditions: Conditions,
    random: Random,
    now: Time,
    timeline: Timeline,
    happenings: Vec<Option<Happening>>,
    registrar: Option<Registrar>,
    /// What is written down.
    minutes: Minutes,
    /// Counts coordinators; connections belong to one of them.
    term: u32,
    actors: BTreeMap<WorkerId, Actor>,
    /// The term of the coordinator that a worker is connected with.
    lines: BTreeMap<WorkerId, u32>,
    /// The last arrival on each way to and from the coordinator: connections keep order.
    last: BTreeMap<(WorkerId, bool), Time>,
    /// Pairs that cannot reach each other.
    cut: Vec<(WorkerId, WorkerId)>,
    first_steps: BTreeMap<WorkerId, u64>,
    /// How many workers there are to be, while there are more.
    wanted: Option<usize>,
    silence: Silence,
    island: Island,
    ledger: Ledger,
}

/// Play a run to its end. What must not be is the error; the seed and the conditions repeat it.
pub fn play(conditions: Conditions, seed: u64) -> Result<Ledger, String> {
    let mut run = Run::new(conditions, seed);
    run.begin()?;
    // Steps, messages and troubles are bounded, so the run is. The bound is for a defect that breaks this.
    let most = 2_000_000;
    for _ in 0..most {
        let Some(due) = run.timeline.pop() else { return run.end() };
        run.now = due.at;
        if let Some(happening) = run.happenings[due.what as usize].take() {
            run.happen(happening)?;
        }
    }
    Err(format!("no end after {most} events"))
}

impl Run {
    fn new(conditions: Conditions, seed: u64) -> Run {
        let random = Random::new(seed);
        let view = View::local(conditions.workers as usize, conditions.settings.clone());
        let view = View { membership: Membership::Elastic, ..view };
        let registrar = Registrar::new(view.clone(), false);
        Run {
            random,
            now: Time::ZERO,
            timeline: Timeline::default(),
            happenings: Vec::new(),
            minutes: registrar.minutes(),
            registrar: Some(registrar),
            term: 1,
            actors: BTreeMap::new(),
            lines: BTreeMap::new(),
            last: BTreeMap::new(),
            cut: Vec::new(),
            first_steps: BTreeMap::new(),
            wanted: None,
            silence: Silence::new(),
            island: Island::default(),
            ledger: Ledger::new(conditions.mode),
            conditions,
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let view = Arc::new(self.minutes.view.clone());
        self.ledger.entered(&view)?;
        for id in view.ids() {
            let actor = Actor::new(id, view.clone(), self.conditions.clone(), &mut self.random);
            self.actors.insert(id, actor);
            self.lines.insert(id, self.term);
            self.first_steps.insert(id, 0);
            self.later(0, Happening::Actor(id, Told::Go));
        }
        for (at, trouble) in self.conditions.troubles(&mut self.random) {
            self.later(at, Happening::Trouble(trouble));
        }
        Ok(())
    }

    fn later(&mut self, after: u64, happening: Happening) {
        self.at(Time(self.now.0 + after), happening);
    }

    fn at(&mut self, at: Time, happening: Happening) {
        self.happenings.push(Some(happening));
        self.timeline.push(at, self.happenings.len() as u32 - 1);
    }

    fn delay(&mut self) -> u64 {
        1 + self.random.below(self.conditions.delay)
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        let Some(happening) = self.waits(happening) else { return Ok(()) };
        match happening {
            Happening::Actor(id, told) => self.act(id, |actor, _| actor.told(told)),
            Happening::Told(id, term, message) => {
                if self.lines.get(&id) != Some(&term) {
                    return Ok(());
                }
                self.act(id, |actor, _| actor.hear(message))
            }
            Happening::Answered(id, term, message) => {
                if self.lines.get(&id) == Some(&term) && self.term == term {
                    self.register(|registrar, out| registrar.hear(id, message, out))?;
                }
                Ok(())
            }
            Happening::Gone(id, term) => {
                if self.term == term {
                    self.register(|registrar, out| registrar.gone(id, out))?;
                    self.wait_for_absent();
                }
                Ok(())
            }
            Happening::Disconnected(id, term) => {
                if self.lines.get(&id).is_none_or(|line| *line == term) {
                    self.lines.remove(&id);
                    let pause = self.delay();
                    self.later(pause, Happening::Reconnect(id));
                    return self.act(id, |actor, _| actor.disconnected());
                }
                Ok(())
            }
            Happening::Reconnect(id) => self.reconnect(id),
            Happening::Roll(term) => {
                if self.term == term {
                    self.register(|registrar, out| {
                        for absent in registrar.absent() {
                            registrar.gone(absent, out);
                        }
                    })?;
                }
                Ok(())
            }
            Happening::CoordinatorReturns => {
                self.ledger.restarts += 1;
                self.take_seat();
                Ok(())
            }
            Happening::Beat(id) => {
                self.beat(id);
                Ok(())
            }
            Happening::Alive(id, term) => {
                self.hear_heartbeat(id, term);
                Ok(())
            }
            Happening::Echo(id, term) => {
                self.hear_coordinator(id, term);
                Ok(())
            }
            Happening::Look(term) => self.look(term),
            Happening::GoesOn(whom) => {
                self.goes_on(whom);
                Ok(())
            }
            Happening::Elect(term) => {
                self.elect(term);
                Ok(())
            }
            Happening::Heals => self.heal(),
            Happening::Trouble(trouble) => self.trouble(trouble),
        }
    }

    fn trouble(&mut self, trouble: Trouble) -> Result<(), String> {
        let alive = self.working();
        if alive.is_empty() {
            return Ok(());
        }
        if let Some(at) = self.coordinator_goes_on()
            && matches!(trouble, Trouble::Join | Trouble::Resize(_))
        {
            // It takes a coordinator that listens.
            self.at(at, Happening::Trouble(trouble));
            return Ok(());
        }
        match trouble {
            Trouble::Crash(lot) => {
                // Somebody has to be left.
                if alive.len() > 1 {
                    let id = alive[lot as usize % alive.len()];
                    self.end_process(id);
                }
            }
            Trouble::Cut(lot, other) => {
                if alive.len() > 1 {
                    let one = alive[lot as usize % alive.len()];
                    let two = alive[other as usize % alive.len()];
                    if one != two {
                        self.part(one, two);
                    }
                }
            }
            Trouble::CutOff(lot) => {
                if alive.len() > 1 {
                    self.cut_line(alive[lot as usize % alive.len()]);
                }
            }
            Trouble::Leave(lot) => {
                let Some(by) = self.awake(&alive) else { return Ok(()) };
                let who = alive[lot as usize % alive.len()];
                let change = Change::Members { leave: vec![who], join: Vec::new() };
                return self.act(by, |actor, _| actor.propose(change));
            }
            Trouble::Settings(settings) => {
                let Some(by) = self.awake(&alive) else { return Ok(()) };
                return self.act(by, |actor, _| actor.propose(Change::Settings(settings)));
            }
            Trouble::Join => {
                let known = self.registrar.as_ref().map(|it| it.minutes().next_id);
                if known.is_none_or(|next| next > ledger::MOST_WORKERS) {
                    return Ok(());
                }
                let mut newcomer = None;
                self.register(|registrar, out| {
                    newcomer = Some(registrar.admit("new".to_string(), String::new(), out));
                })?;
                if let Some(id) = newcomer {
                    let job = self.minutes.view.clone();
                    let actor = Actor::newcomer(id, job, self.conditions.clone(), &mut self.random);
                    self.actors.insert(id, actor);
                    self.lines.insert(id, self.term);
                    self.begin_heartbeats(id);
                    self.part_from_island(id);
                }
            }
            Trouble::Stop(whom, lasts) => self.stop(&whom, lasts),
            Trouble::Halves { lot, cut_off, lasts } => self.fall_apart(lot, cut_off, lasts),
            Trouble::Resize(fewer) => {
                let size = self.minutes.view.size() as u64;
                let wanted = size.saturating_sub(fewer).max(1) as usize;
                let mut wish = None;
                self.register(|registrar, out| {
                    let heard = registrar.shrink(wanted, out).is_ok();
                    wish = Some(wanted).filter(|_| heard && registrar.view().size() > wanted);
                })?;
                self.wanted = wish;
            }
            Trouble::CoordinatorDies => {
                // What was wished for is not written down.
                self.wanted = None;
                if self.registrar.take().is_some() {
                    self.goes_on(None);
                    let ids: Vec<WorkerId> = self.lines.keys().copied().collect();
                    for id in ids {
                        let after = self.delay();
                        self.later(after, Happening::Disconnected(id, self.term));
                        self.lines.remove(&id);
                    }
                    let away = self.random.below(10 * self.conditions.delay);
                    self.later(away, Happening::CoordinatorReturns);
                }
            }
        }
        Ok(())
    }

    /// Workers that take part, or will.
    fn working(&self) -> Vec<WorkerId> {
        let alive = self.actors.iter().filter(|(_, actor)| actor.is_working());
        alive.map(|(id, _)| *id).collect()
    }

    /// Somebody who is not stopped.
    fn awake(&self, alive: &[WorkerId]) -> Option<WorkerId> {
        alive.iter().copied().find(|id| !self.is_stopped(Some(*id)))
    }

    fn end_process(&mut self, id: WorkerId) {
        self.actors.remove(&id);
        self.hang_up(id);
        let others: Vec<WorkerId> = self.actors.keys().copied().collect();
        for other in others {
            let after = self.delay();
            self.later(after, Happening::Actor(other, Told::Lost(id)));
        }
    }

    /// The coordinator hears in a while that a worker is gone.
    fn hang_up(&mut self, id: WorkerId) {
        if let Some(term) = self.lines.remove(&id) {
            let said = self.last.get(&(id, true)).copied().unwrap_or(self.now).max(self.now);
            let after = self.delay();
            self.at(Time(said.0 + after), Happening::Gone(id, term));
        }
    }

    fn cut_line(&mut self, id: WorkerId) {
        if let Some(term) = self.lines.get(&id).copied() {
            self.hang_up(id);
            let after = self.delay();
            self.later(after, Happening::Disconnected(id, term));
        }
    }

    /// Whoever comes back is told where things stand, if it is in the view; if it never was, it waits on; otherwise it is told that the
    /// others went on.
    fn reconnect(&mut self, id: WorkerId) -> Result<(), String> {
        if self.lines.contains_key(&id) || !self.actors.contains_key(&id) {
            return Ok(());
        }
        let reachable_at = match self.is_cut_off(id) {
            // Never.
            Some(None) => return Ok(()),
            Some(heals) => heals,
            None => self.coordinator_goes_on(),
        };
        if let Some(at) = reachable_at {
            self.at(at, Happening::Reconnect(id));
            return Ok(());
        }
        let Some(registrar) = &self.registrar else {
            let pause = self.delay();
            self.later(pause, Happening::Reconnect(id));
            return Ok(());
        };
        let waits = registrar.newcomers().iter().any(|newcomer| newcomer.id == id);
        if registrar.is_present(id) || waits {
            // The connection before is not known to be gone: it comes back when it is.
            let pause = self.delay();
            self.later(pause, Happening::Reconnect(id));
            return Ok(());
        }
        self.lines.insert(id, self.term);
        self.begin_heartbeats(id);
        if self.actors[&id].is_outside() {
            let worker = Worker { id, host: "new".to_string(), address: String::new() };
            self.register(|registrar, out| registrar.welcome(worker, out))?;
        }
        self.act(id, |actor, _| actor.reconnected())
    }

    /// Those who do not come back are gone.
    fn wait_for_absent(&mut self) {
        if self.registrar.as_ref().is_some_and(|registrar| !registrar.absent().is_empty()) {
            self.later(self.grace(), Happening::Roll(self.term));
        }
    }

    fn grace(&self) -> u64 {
        20 * self.conditions.delay
    }

    fn register(
        &mut self,
        with: impl FnOnce(&mut Registrar, &mut Vec<Summons>),
    ) -> Result<(), String> {
        let mut out = Vec::new();
        let Some(registrar) = &mut self.registrar else { return Ok(()) };
        with(registrar, &mut out);
        // Before anybody hears of it.
        let before = std::mem::replace(&mut self.minutes, registrar.minutes());
        self.see_whether_wish_holds(&before)?;
        for Summons { to, message } in out {
            if let Some(term) = self.lines.get(&to).copied().filter(|term| *term == self.term) {
                let at = self.in_order(to, false);
                self.at(at, Happening::Told(to, term, message));
            }
        }
        Ok(())
    }

    /// Nobody is asked to leave for a wish that a loss made true.
    fn see_whether_wish_holds(&mut self, before: &Minutes) -> Result<(), String> {
        let (size, planned) = (self.minutes.view.size(), self.minutes.since != before.since);
        let fewer = size < before.view.size();
        let Some(wanted) = self.wanted.filter(|_| fewer) else { return Ok(()) };
        if planned && size < wanted {
            return Err(format!("{wanted} workers were wanted, and {size} are left"));
        }
        match planned {
            true => self.ledger.shrunk += 1,
            false => self.ledger.shrunk_by_loss += 1,
        }
        self.wanted.take_if(|wanted| size <= *wanted);
        Ok(())
    }

    fn in_order(&mut self, id: WorkerId, up: bool) -> Time {
        let soonest = Time(self.now.0 + self.delay());
        let last = self.last.entry((id, up)).or_default();
        *last = soonest.max(*last);
        *last
    }

    /// Let a worker act, and pass on what it says.
    fn act(
        &mut self,
        id: WorkerId,
        act: impl FnOnce(&mut Actor, &mut Ledger),
    ) -> Result<(), String> {
        let Some(actor) = self.actors.get_mut(&id) else { return Ok(()) };
        act(actor, &mut self.ledger);
        actor.proceed(&mut self.ledger, &mut self.random)?;
        let Outbox { said, sent, laters } = actor.take_outbox();
        if let Some(step) = actor.joined_at {
            self.first_steps.insert(id, step);
        }
        for message in said {
            if let Some(term) = self.lines.get(&id).copied() {
                let at = self.in_order(id, true);
                self.at(at, Happening::Answered(id, term, message));
            }
        }
        for (after, told) in laters {
            self.later(after, Happening::Actor(id, told));
        }
        for (to, envelope) in sent {
            self.send(id, to, envelope);
        }
        if self.actors.get(&id).is_some_and(Actor::is_over) {
            self.end_process(id);
        }
        Ok(())
    }

    fn send(&mut self, from: WorkerId, to: WorkerId, envelope: Envelope) {
        let apart = |pair: &(WorkerId, WorkerId)| *pair == (from, to) || *pair == (to, from);
        if self.cut.iter().any(apart) || !self.actors.contains_key(&to) {
            return;
        }
        let after = self.delay();
        self.later(after, Happening::Actor(to, Told::Frame(Box::new(envelope))));
    }

    fn end(mut self) -> Result<Ledger, String> {
        self.see_standstill()?;
        for (id, actor) in &self.actors {
            // A newcomer may come when all are done.
            if actor.is_working() && self.is_cut_off(*id).is_none() {
                return Err(format!("worker {id} waits for ever: {}", actor.describe()));
            }
        }
        self.ledger.check(&self.first_steps)?;
        Ok(self.ledger)
    }
}
