//! Views agreed upon in virtual time: the registrar and the participants that `paceline-net` drives over sockets, here on
//! an event heap, with messages that take any time, come twice or are lost with their connection, workers of any speed,
//! and workers and coordinators that are gone at any moment. It keeps a ledger of who began which step under which view,
//! says what in it must not be, and decides nothing.

mod ledger;

pub use ledger::Ledger;

use crate::timeline::Timeline;
use paceline_job::{ByteSize, Random, Rank, Settings, Time, View, WorkerId};
use paceline_sync::agreement::{
    Begin, Change, Heard, Participant, Registrar, Summons, ToParticipant, ToRegistrar,
};
use std::sync::Arc;

/// What a run may meet, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Workers of the job.
    pub workers: u32,
    /// Steps that each worker takes.
    pub steps: u64,
    /// Proposals, each by any worker at any time.
    pub proposals: u32,
    /// Whether a worker waits at the end of a step until all others have come as far, as with collectives.
    pub coupled: bool,
    /// The longest that a step takes, in nanoseconds, on a worker that is not slow.
    pub step: u64,
    /// The longest that a message takes, in nanoseconds.
    pub delay: u64,
    /// Workers that are cut off, killed or leave early.
    pub partings: u32,
    /// Whether the coordinator dies.
    pub coordinator_dies: bool,
}

impl Conditions {
    /// Any.
    pub fn draw(random: &mut Random) -> Conditions {
        Conditions {
            workers: 1 + random.below(8) as u32,
            steps: 20 + random.below(60),
            proposals: 1 + random.below(8) as u32,
            coupled: random.below(4) > 0,
            step: 1 + random.below(1000),
            delay: 1 + random.below(3000),
            partings: random.below(8).saturating_sub(5) as u32,
            coordinator_dies: random.below(8) == 0,
        }
    }
}

/// A message or a moment.
#[derive(Debug)]
enum Happening {
    Told(Rank, ToParticipant),
    Answered(Rank, ToRegistrar),
    /// A worker comes to its next step.
    Turn(Rank),
    Propose(Rank, Settings),
    Part(Rank, Way),
    CoordinatorDies,
    /// The registrar hears that a worker is gone.
    Parted(Rank),
    /// A worker hears that the coordinator is gone.
    Disconnected(Rank),
}

/// How a worker parts from the coordinator.
#[derive(Clone, Copy, Debug)]
enum Way {
    Killed,
    Leaves,
    /// The connection ends, and both live.
    CutOff,
}

/// What a worker waits for before its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standstill {
    /// Others to come as far.
    Others,
    /// The outcome of a change.
    Outcome,
}

#[derive(Debug)]
struct Actor {
    participant: Participant,
    /// Steps take so many times as long as elsewhere.
    slowness: u64,
    alive: bool,
    /// Whether messages still pass between it and the coordinator.
    linked: bool,
    stands: Option<Standstill>,
    /// Has begun so many steps, and computed them.
    done: u64,
    /// The last arrival on the way to the coordinator, and on the way back: connections keep order.
    last_up: Time,
    last_down: Time,
}

/// A run.
#[derive(Debug)]
struct Run {
    conditions: Conditions,
    random: Random,
    now: Time,
    timeline: Timeline,
    happenings: Vec<Option<Happening>>,
    registrar: Option<Registrar>,
    actors: Vec<Actor>,
    ledger: Ledger,
}

/// Play a run to its end. What must not be is the error; the seed and the conditions repeat it.
pub fn play(conditions: Conditions, seed: u64) -> Result<Ledger, String> {
    let mut run = Run::new(conditions, seed);
    run.write_script();
    // Steps, proposals and attempts are bounded, so the run is. The bound is for a defect that breaks this.
    let most = 1_000_000;
    for _ in 0..most {
        let Some(due) = run.timeline.pop() else { return run.end() };
        run.now = due.at;
        if let Some(happening) = run.happenings[due.what as usize].take() {
            run.happen(happening)?;
        }
    }
    Err(format!("no end after {most} events"))
}

/// Workers do not change here: each is who it was in the first view.
fn identity(rank: Rank) -> WorkerId {
    WorkerId(u64::from(rank.0))
}

impl Run {
    fn new(conditions: Conditions, seed: u64) -> Run {
        let mut random = Random::new(seed);
        let view = View::local(conditions.workers as usize, Settings::default());
        let shared = Arc::new(view.clone());
        let actors = (0..conditions.workers).map(|rank| Actor {
            participant: Participant::new(identity(Rank(rank)), shared.clone()),
            slowness: *random.choose(&[1, 1, 1, 2, 10]),
            alive: true,
            linked: true,
            stands: None,
            done: 0,
            last_up: Time::ZERO,
            last_down: Time::ZERO,
        });
        let actors = actors.collect();
        Run {
            ledger: Ledger::new(&shared),
            conditions,
            random,
            now: Time::ZERO,
            timeline: Timeline::default(),
            happenings: Vec::new(),
            registrar: Some(Registrar::new(view, false)),
            actors,
        }
    }

    fn write_script(&mut self) {
        let Conditions { workers, steps, proposals, step, partings, coordinator_dies, .. } =
            self.conditions;
        let anybody = |random: &mut Random| Rank(random.below(u64::from(workers)) as u32);
        for rank in (0..workers).map(Rank) {
            let at = self.random.below(step);
            self.schedule(at, Happening::Turn(rank));
        }
        // Slow workers make the run longer than this: then all of it happens early.
        let length = step * steps;
        let mut at = 0;
        for number in 0..proposals {
            let rank = anybody(&mut self.random);
            // Some at the same instant as the one before.
            if self.random.below(3) > 0 {
                at = self.random.below(length);
            }
            let settings = Settings {
                partition: ByteSize::kib(1 + self.random.below(3)),
                credit: ByteSize::kib(1 + u64::from(number)),
                ..Settings::default()
            };
            self.schedule(at, Happening::Propose(rank, settings));
        }
        for _ in 0..partings {
            let (rank, at) = (anybody(&mut self.random), self.random.below(length));
            let way = *self.random.choose(&[Way::Killed, Way::Leaves, Way::CutOff]);
            self.schedule(at, Happening::Part(rank, way));
        }
        if coordinator_dies {
            let at = self.random.below(length);
            self.schedule(at, Happening::CoordinatorDies);
        }
    }

    fn schedule(&mut self, after: u64, happening: Happening) {
        self.schedule_at(Time(self.now.0 + after), happening);
    }

    fn schedule_at(&mut self, at: Time, happening: Happening) {
        self.happenings.push(Some(happening));
        self.timeline.push(at, self.happenings.len() as u32 - 1);
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Turn(rank) => self.turn(rank)?,
            Happening::Told(rank, message) => {
                let actor = &mut self.actors[rank.index()];
                if !actor.alive || !actor.participant.is_connected() {
                    return Ok(());
                }
                let mut answers = Vec::new();
                match actor.participant.hear(message, &mut answers) {
                    Heard::Nothing => {}
                    Heard::Outcome => self.wake(rank, Standstill::Outcome),
                    Heard::Decision { outcome, .. } => self.ledger.decided(rank, outcome)?,
                }
                self.answer(rank, answers);
            }
            Happening::Answered(rank, message) => {
                self.ledger.answered(&message);
                let mut summons = Vec::new();
                if let Some(registrar) = &mut self.registrar {
                    registrar.hear(identity(rank), message, &mut summons);
                }
                self.summon(summons);
            }
            Happening::Propose(rank, settings) => {
                let actor = &mut self.actors[rank.index()];
                let mut messages = Vec::new();
                let change = Change::Settings(settings);
                if actor.alive && actor.participant.propose(change, &mut messages).is_ok() {
                    self.ledger.proposed(rank);
                }
                self.answer(rank, messages);
            }
            Happening::Part(rank, way) => self.part(rank, way),
            Happening::Parted(rank) => {
                let mut summons = Vec::new();
                if let Some(registrar) = &mut self.registrar {
                    registrar.gone(identity(rank), &mut summons);
                }
                self.summon(summons);
            }
            Happening::CoordinatorDies => {
                self.registrar = None;
                for rank in (0..self.conditions.workers).map(Rank) {
                    self.cut(rank);
                }
            }
            Happening::Disconnected(rank) => {
                self.actors[rank.index()].participant.disconnect();
                self.ledger.disconnected(rank);
                self.wake(rank, Standstill::Outcome);
            }
        }
        Ok(())
    }

    /// A worker comes to its next step: it begins it and computes, or waits.
    fn turn(&mut self, rank: Rank) -> Result<(), String> {
        let actor = &mut self.actors[rank.index()];
        if !actor.alive {
            return Ok(());
        }
        let step = actor.participant.next();
        if actor.done < step {
            actor.done = step;
            self.wake_those_who_can_go_on();
        }
        if step == self.conditions.steps {
            self.part(rank, Way::Leaves);
            return Ok(());
        }
        if !self.all_have_done(step) {
            self.actors[rank.index()].stands = Some(Standstill::Others);
            return Ok(());
        }
        let actor = &mut self.actors[rank.index()];
        let mut messages = Vec::new();
        let begin = actor.participant.begin(step, &mut messages);
        let undecided = matches!(begin, Begin::Wait { .. } | Begin::Doubt { .. });
        actor.stands = undecided.then_some(Standstill::Outcome);
        match &begin {
            Begin::Same | Begin::Enter(_) => {
                let entered = matches!(begin, Begin::Enter(_));
                self.ledger.begun(rank, step, actor.participant.view(), entered)?;
                let takes = 1 + self.random.below(self.conditions.step * actor.slowness);
                self.schedule(takes, Happening::Turn(rank));
            }
            Begin::Wait { .. } => self.ledger.waits += 1,
            Begin::Doubt { .. } => self.ledger.doubts(rank)?,
            Begin::Gather(_) | Begin::Removed | Begin::Dissolved { .. } => {
                return Err(format!("worker {rank}: {begin:?} in a job of fixed members"));
            }
            Begin::Past { next } => {
                return Err(format!("worker {rank}: step {step} is before {next}"));
            }
        }
        self.answer(rank, messages);
        Ok(())
    }

    fn all_have_done(&self, steps: u64) -> bool {
        !self.conditions.coupled || self.actors.iter().all(|it| !it.alive || it.done >= steps)
    }

    /// Others may have waited for a worker to come as far as it has come, or to be gone.
    fn wake_those_who_can_go_on(&mut self) {
        for rank in (0..self.conditions.workers).map(Rank) {
            let actor = &self.actors[rank.index()];
            if actor.stands == Some(Standstill::Others) && self.all_have_done(actor.done) {
                self.wake(rank, Standstill::Others);
            }
        }
    }

    fn wake(&mut self, rank: Rank, from: Standstill) {
        let actor = &mut self.actors[rank.index()];
        if actor.stands.take_if(|standstill| *standstill == from).is_some() {
            self.schedule(0, Happening::Turn(rank));
        }
    }

    fn part(&mut self, rank: Rank, way: Way) {
        let actor = &mut self.actors[rank.index()];
        if !actor.alive {
            return;
        }
        match way {
            Way::CutOff => {}
            Way::Killed => actor.alive = false,
            Way::Leaves => {
                actor.alive = false;
                let leave = actor.participant.leave();
                self.answer(rank, vec![leave]);
            }
        }
        let actor = &self.actors[rank.index()];
        if actor.linked {
            // After what it said before.
            let heard = actor.last_up.0.max(self.now.0) + self.random.below(self.conditions.delay);
            self.schedule_at(Time(heard), Happening::Parted(rank));
            self.cut(rank);
        }
        self.wake_those_who_can_go_on();
    }

    /// From now on nothing passes between a worker and the coordinator; the worker notices in a while.
    fn cut(&mut self, rank: Rank) {
        let actor = &mut self.actors[rank.index()];
        if std::mem::replace(&mut actor.linked, false) && actor.alive {
            // What is on its way may arrive or not.
            let at = Time(self.now.0 + self.random.below(2 * self.conditions.delay));
            self.schedule_at(at, Happening::Disconnected(rank));
        }
    }

    fn answer(&mut self, rank: Rank, messages: Vec<ToRegistrar>) {
        for message in messages {
            let delay = 1 + self.random.below(self.conditions.delay);
            let again = self.random.below(16) == 0;
            let actor = &mut self.actors[rank.index()];
            if actor.linked {
                actor.last_up = Time((self.now.0 + delay).max(actor.last_up.0));
                let at = actor.last_up;
                if again {
                    let later = Time(at.0 + self.random.below(5 * self.conditions.delay));
                    self.schedule_at(later, Happening::Answered(rank, message.clone()));
                }
                self.schedule_at(at, Happening::Answered(rank, message));
            }
        }
    }

    fn summon(&mut self, summons: Vec<Summons>) {
        for Summons { to, message } in summons {
            let to = Rank(to.0 as u32);
            self.ledger.summoned(&message);
            let delay = 1 + self.random.below(self.conditions.delay);
            let again = self.random.below(16) == 0;
            let actor = &mut self.actors[to.index()];
            if actor.linked {
                actor.last_down = Time((self.now.0 + delay).max(actor.last_down.0));
                let at = actor.last_down;
                if again {
                    let later = Time(at.0 + self.random.below(5 * self.conditions.delay));
                    self.schedule_at(later, Happening::Told(to, message.clone()));
                }
                self.schedule_at(at, Happening::Told(to, message));
            }
        }
    }

    fn end(self) -> Result<Ledger, String> {
        let anybody_stuck = (0..self.conditions.workers)
            .map(Rank)
            .any(|rank| self.actors[rank.index()].alive && self.ledger.is_in_doubt(rank));
        for (rank, actor) in (0..).map(Rank).zip(&self.actors) {
            let finished = actor.done == self.conditions.steps || !actor.alive;
            // Coupled workers wait for one that must not begin its step, as for one that is stopped.
            let excused =
                self.ledger.is_in_doubt(rank) || (self.conditions.coupled && anybody_stuck);
            if !finished && !excused {
                let step = actor.participant.next();
                return Err(format!("worker {rank} never began step {step}"));
            }
        }
        self.ledger.check()?;
        Ok(self.ledger)
    }
}
