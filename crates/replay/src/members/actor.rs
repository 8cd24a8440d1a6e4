//! One worker of a run of membership: its participant, its keeper, the engine of the view in force, its memory, and a
//! program that trains. What a driver does in real time is done here at once, or later by the run's lot.

mod engine;
mod sharing;

use super::{Conditions, Ledger, Mode, ledger::contribution, memory::Memory};
use paceline_job::{Dtype, Random, Rank, ReduceOp, Time, View, ViewVersion, WorkerId};
use paceline_sync::{
    agreement::{Begin, Change, Participant, ToParticipant, ToRegistrar},
    collective::Collective,
    engine::Engine,
    event::{Event, Holds, OpId, Post},
    frame::Header,
    recovery::{Keeper, Order, Ticket},
    slab::Key,
};
use sharing::Listening;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A frame between two workers of one view.
#[derive(Debug)]
pub(super) struct Envelope {
    /// The view that joined the two.
    era: ViewVersion,
    from: Rank,
    header: Header,
    payload: Vec<u8>,
}

/// What a worker wants to be passed on.
pub(super) struct Outbox {
    pub(super) said: Vec<ToRegistrar>,
    pub(super) sent: Vec<(WorkerId, Envelope)>,
    /// To itself, after so many nanoseconds.
    pub(super) laters: Vec<(u64, Told)>,
}

/// What happens to a worker.
#[derive(Debug)]
pub(super) enum Told {
    /// Its computation has come to its end.
    Go,
    Frame(Box<Envelope>),
    /// What it sent in that view has left.
    Delivered(ViewVersion, Key),
    /// What came in that view is in its place.
    Arrived(ViewVersion, Key),
    /// Another worker cannot be reached.
    Lost(WorkerId),
}

/// Where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Wants to join.
    Knocking,
    /// Wants to begin the step.
    Beginning,
    /// Hears who has the state.
    Calling,
    /// Makes copies equal, so that newcomers get what all have trained; those before this one are posted.
    Levelling(usize),
    /// The step that newcomers listened to is over, but for the state that travels to them.
    Finishing,
    /// Hands over or gets the state, from the so-manieth worker that may have it.
    Sharing(usize),
    /// Has the tensors before this one posted.
    Computing(usize),
    /// Waits for all tensors of the step.
    Awaiting,
    /// Begins nothing more, and waits for what it has posted.
    Ending,
    /// Is done, and waits for the others.
    Leaving,
    Over,
}

/// What a ticket stands for.
#[derive(Clone, Copy, Debug)]
enum Use {
    Tensor(u64, usize),
    /// A copy, before a step.
    Copy(u64, usize),
    /// What the program sums for itself in a step, as a loss to be shown.
    Sum(u64),
    State,
    /// The state, while others go on.
    Piece,
    Roll,
    Lacking,
}

pub(super) struct Actor {
    id: WorkerId,
    participant: Participant,
    keeper: Keeper,
    engine: Option<Engine>,
    /// In force since the engine began.
    era: Arc<View>,
    memory: Memory,
    /// A worker of the era is lost: the engine has stopped.
    frozen: bool,
    /// Workers that cannot be reached.
    unreachable: BTreeSet<WorkerId>,
    /// Frames of eras to come.
    early: Vec<Envelope>,
    said: Vec<ToRegistrar>,
    sent: Vec<(WorkerId, Envelope)>,
    laters: Vec<(u64, Told)>,
    orders: Vec<Order>,
    doing: Doing,
    /// The program computes.
    busy: bool,
    step: u64,
    parameters: Vec<Vec<i64>>,
    /// By tensor: steps that are part of it.
    applied: Vec<u64>,
    /// Steps below this one have a sum of the program's own.
    summed: u64,
    has_state: bool,
    /// Of how many tensors newcomers have the state, where they listen to more steps for the others.
    following: Option<usize>,
    listening: Option<Listening>,
    listened_in: Option<u64>,
    uses: BTreeMap<Ticket, Use>,
    tickets: u64,
    slowness: u64,
    /// The step, and the tensor of it, that this one's program does not come to any more.
    end: Option<(u64, usize)>,
    conditions: Conditions,
    /// The first step of one that joined.
    pub(super) joined_at: Option<u64>,
    now: Time,
}

impl Actor {
    pub(super) fn new(
        id: WorkerId,
        view: Arc<View>,
        conditions: Conditions,
        random: &mut Random,
    ) -> Actor {
        let engine = engine(id, &view);
        let parameters = conditions.tensors.iter().map(|len| vec![7; *len]).collect();
        let mut keeper = Keeper::new(id, view.clone());
        keeper.train_apart(conditions.mode.is_apart());
        Actor {
            id,
            participant: Participant::new(id, view.clone()),
            keeper,
            engine: Some(engine),
            era: view,
            memory: Memory::default(),
            frozen: false,
            unreachable: BTreeSet::new(),
            early: Vec::new(),
            said: Vec::new(),
            sent: Vec::new(),
            laters: Vec::new(),
            orders: Vec::new(),
            doing: Doing::Beginning,
            busy: true,
            step: 0,
            applied: vec![0; conditions.tensors.len()],
            summed: 0,
            parameters,
            has_state: true,
            following: None,
            listening: None,
            listened_in: None,
            uses: BTreeMap::new(),
            tickets: 0,
            slowness: *random.choose(&[1, 1, 1, 3]),
            end: conditions.end_of(id),
            conditions,
            joined_at: None,
            now: Time::ZERO,
        }
    }

    pub(super) fn newcomer(
        id: WorkerId,
        job: View,
        conditions: Conditions,
        random: &mut Random,
    ) -> Actor {
        let mut actor =
            Actor::new(id, Arc::new(View::local(1, job.settings.clone())), conditions, random);
        let participant = Participant::newcomer(id, job);
        actor.keeper = Keeper::new(id, participant.view().clone());
        actor.era = participant.view().clone();
        actor.participant = participant;
        actor.engine = None;
        actor.doing = Doing::Knocking;
        actor.busy = false;
        actor.has_state = false;
        actor.parameters.iter_mut().flatten().for_each(|value| *value = 0);
        actor
    }

    pub(super) fn step(&self) -> u64 {
        self.step
    }

    /// In force.
    pub(super) fn view(&self) -> &Arc<View> {
        self.participant.view()
    }

    /// It was not let in yet.
    pub(super) fn is_outside(&self) -> bool {
        self.participant.view().size() == 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.doing == Doing::Over
    }

    pub(super) fn is_working(&self) -> bool {
        !self.is_over() && self.engine.is_some()
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{:?} in step {}, frozen: {}, view {} of {:?}, connected: {}, {:?}",
            self.doing,
            self.step,
            self.frozen,
            self.participant.view().version,
            self.participant.view().ids().map(|id| id.0).collect::<Vec<_>>(),
            self.participant.is_connected(),
            self.keeper,
        )
    }

    pub(super) fn take_outbox(&mut self) -> Outbox {
        use std::mem::take;
        let (said, sent) = (take(&mut self.said), take(&mut self.sent));
        Outbox { said, sent, laters: take(&mut self.laters) }
    }

    pub(super) fn hear(&mut self, message: ToParticipant) {
        self.participant.hear(message, &mut self.said);
    }

    pub(super) fn disconnected(&mut self) {
        self.participant.disconnect();
    }

    pub(super) fn reconnected(&mut self) {
        self.participant.reconnect(&mut self.said);
        self.accuse();
    }

    pub(super) fn propose(&mut self, change: Change) {
        if change.check(self.participant.view()).is_ok() {
            let _ = self.participant.propose(change, &mut self.said);
        }
    }

    /// Say again who of the view in force cannot be reached.
    fn accuse(&mut self) {
        for worker in &self.unreachable {
            if self.era.rank_of(*worker).is_some() {
                self.frozen = true;
                self.participant.lost(*worker, self.era.version, &mut self.said);
            }
        }
    }

    pub(super) fn told(&mut self, told: Told) {
        match told {
            Told::Go => self.busy = false,
            Told::Lost(worker) => {
                self.unreachable.insert(worker);
                if self.era.rank_of(worker).is_some() {
                    self.accuse();
                }
            }
            Told::Delivered(era, token) => self.feed_in(era, Event::Delivered { token }),
            Told::Arrived(era, token) => self.feed_in(era, Event::Arrived { token }),
            Told::Frame(envelope) => self.frame(*envelope),
        }
    }

    /// Do all there is to do now.
    pub(super) fn proceed(
        &mut self,
        ledger: &mut Ledger,
        random: &mut Random,
    ) -> Result<(), String> {
        loop {
            if let Some(violation) = self.memory.violations.first() {
                return Err(format!("worker {}: {violation}", self.id));
            }
            if let Some(view) = self.participant.succeed(&mut self.said) {
                ledger.entered(&view)?;
                let engine = self.engine.take();
                let finals = |op: OpId| engine.as_ref().map_or(Vec::new(), |it| it.finals(op));
                self.keeper.succeed(view.clone(), finals, &mut self.orders);
                self.start_engine(view);
                continue;
            }
            if self.participant.is_removed() || self.participant.dissolved().is_some() {
                ledger.lost += 1;
                self.doing = Doing::Over;
                return Ok(());
            }
            if !self.orders.is_empty() {
                for order in std::mem::take(&mut self.orders) {
                    self.obey(order, ledger)?;
                }
                continue;
            }
            if self.busy || !self.go_on(ledger, random)? {
                return Ok(());
            }
        }
    }

    fn obey(&mut self, order: Order, ledger: &mut Ledger) -> Result<(), String> {
        match order {
            Order::Post(post, source) => {
                self.memory.enter(post.op, source);
                if !self.frozen {
                    self.feed(Event::Post(Box::new(post)));
                }
            }
            Order::Exchange { post, input, output_bytes } => {
                self.memory.enter_exchange(post.op, input, output_bytes);
                if !self.frozen {
                    self.feed(Event::Post(Box::new(post)));
                }
            }
            Order::Retain(ticket) => self.memory.retain(ticket),
            Order::Release(ticket) => self.memory.release(ticket),
            Order::Done(ticket) => {
                let values = self.memory.give_back(ticket);
                match self.uses.remove(&ticket) {
                    Some(Use::Tensor(step, tensor)) => {
                        let samples = match self.conditions.mode.is_apart() {
                            true => 0..step + 1,
                            false => step..step + 1,
                        };
                        let adds = self.listened_in != Some(step);
                        ledger.result(self.id, step, tensor, &values, (samples, adds))?;
                        let has_state_of = self.has_state_of();
                        match &mut self.listening {
                            Some(listening) if !self.has_state => {
                                listening.heard.push((step, tensor, values));
                            }
                            _ if tensor >= has_state_of => {}
                            _ => self.apply(step, tensor, &values)?,
                        }
                    }
                    Some(Use::Copy(step, tensor)) if self.has_state => {
                        let place = tensor + self.conditions.tensors.len();
                        ledger.result(self.id, step, place, &values, (0..step, true))?;
                        self.fold(tensor, &values);
                    }
                    Some(Use::Copy(..)) => {}
                    Some(Use::Sum(step)) => {
                        let place = 2 * self.conditions.tensors.len();
                        let adds = self.listened_in != Some(step);
                        ledger.result(self.id, step, place, &values, (0..0, adds))?;
                    }
                    Some(Use::State) => self.adopt_state(&values)?,
                    Some(Use::Piece) => self.arrived(&values),
                    Some(Use::Roll) => self.called(&values, ledger),
                    Some(Use::Lacking) => self.asked(values[0] != 0, ledger)?,
                    None => return Err(format!("worker {}: {ticket:?} ended twice", self.id)),
                }
            }
            Order::Fail(ticket, error) => {
                self.memory.give_back(ticket);
                match (self.uses.remove(&ticket), self.doing) {
                    (Some(Use::State), Doing::Sharing(attempt)) => {
                        ledger.shared_again += 1;
                        self.doing = Doing::Sharing(attempt + 1);
                    }
                    (Some(Use::Piece), _) => {}
                    _ => return Err(format!("worker {}: {error}", self.id)),
                }
            }
            // Programs take what they are told where they begin a step. This one begins none, and those of whom it is told
            // now may have been dismissed, with all that they had trained on, before a coordinator died that said so.
            Order::Recovered(_) if matches!(self.doing, Doing::Ending | Doing::Leaving) => {}
            Order::Recovered(account) => {
                ledger.recovered(self.id, &account, self.conditions.steps);
            }
        }
        Ok(())
    }

    fn apply(&mut self, step: u64, tensor: usize, values: &[i64]) -> Result<(), String> {
        if self.applied[tensor] != step {
            let applied = self.applied[tensor];
            return Err(format!(
                "worker {}: tensor {tensor} of step {step} after {applied} steps",
                self.id
            ));
        }
        self.applied[tensor] = step + 1;
        // What is mixed differs; what workers have alike is which steps are in it.
        if !matches!(self.conditions.mode, Mode::Groups | Mode::Pairs) {
            self.fold(tensor, values);
        }
        Ok(())
    }

    fn fold(&mut self, tensor: usize, values: &[i64]) {
        for (parameter, value) in self.parameters[tensor].iter_mut().zip(values) {
            *parameter = parameter.wrapping_mul(31).wrapping_add(*value);
        }
    }

    fn post(&mut self, name: &str, values: &[i64], of: Use, collective: Collective) {
        self.post_among(name, values, of, collective, None);
    }

    fn post_among(
        &mut self,
        name: &str,
        values: &[i64],
        of: Use,
        collective: Collective,
        group: Option<Arc<[Rank]>>,
    ) {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.uses.insert(ticket, of);
        self.memory.lend(ticket, values);
        let post = Post {
            reduce: match of {
                Use::Tensor(..) => match self.conditions.mode {
                    Mode::Synchronous if self.conditions.listens > 0 => ReduceOp::Average,
                    Mode::Synchronous => ReduceOp::Sum,
                    Mode::Groups | Mode::Pairs => ReduceOp::Mix,
                    Mode::Local(_) | Mode::Averaging => ReduceOp::Average,
                },
                Use::Copy(..) => ReduceOp::Average,
                Use::Sum(_) | Use::State | Use::Piece | Use::Roll | Use::Lacking => ReduceOp::Sum,
            },
            priority: i64::from(ticket.0 as u32 % 3),
            group,
            holds: match of {
                Use::Tensor(step, _) if self.conditions.mode.is_apart() => Holds::Below(step + 1),
                Use::Tensor(..) => Holds::Step,
                Use::Copy(step, _) => Holds::Below(step),
                _ => Holds::Nothing,
            },
            ..Post::new(OpId(0), name, collective, Dtype::I64)
        };
        if post.group.is_none() || post.reduce == ReduceOp::Mix {
            self.participant.post(&mut self.said);
        }
        self.keeper.post(ticket, post, &mut self.orders);
    }

    /// The program's next stride; whether it made one.
    fn go_on(&mut self, ledger: &mut Ledger, random: &mut Random) -> Result<bool, String> {
        match self.doing {
            Doing::Over => Ok(false),
            Doing::Knocking => {
                let Some((_, step, _)) = self.participant.gathering() else { return Ok(false) };
                (self.step, self.doing) = (step, Doing::Beginning);
                Ok(true)
            }
            Doing::Beginning => self.begin(ledger),
            Doing::Sharing(attempt) => self.share(attempt),
            Doing::Calling => Ok(self.call()),
            Doing::Levelling(tensor) => Ok(self.level(tensor)),
            Doing::Finishing => Ok(self.finish_listening()),
            Doing::Computing(tensor) if self.ends_in(tensor) => {
                self.doing = Doing::Ending;
                Ok(true)
            }
            Doing::Computing(tensor) if self.sums_before(tensor) => {
                let part = if self.has_state { contribution(self.id) } else { 0 };
                let collective = Collective::AllReduce { len: 1 };
                self.post("loss", &[part], Use::Sum(self.step), collective);
                self.summed = self.step + 1;
                self.compute(random);
                Ok(true)
            }
            Doing::Computing(_) if self.awaits(|of| matches!(of, Use::Sum(_))) => Ok(false),
            Doing::Computing(tensor) if tensor == self.conditions.tensors.len() => {
                self.doing = match self.conditions.crosses_steps {
                    _ if self.listening.is_some() => Doing::Finishing,
                    true => self.next_step(),
                    false => Doing::Awaiting,
                };
                Ok(true)
            }
            Doing::Computing(tensor) => {
                // Whoever listens has applied nothing yet.
                if self.has_state && self.applied[tensor] < self.step {
                    return Ok(false);
                }
                self.contribute(tensor);
                self.doing = Doing::Computing(tensor + 1);
                self.compute(random);
                Ok(true)
            }
            Doing::Awaiting => {
                let applied = &self.applied[..self.has_state_of()];
                let awaited = applied.iter().any(|steps| *steps <= self.step);
                if !awaited {
                    self.doing = self.next_step();
                }
                Ok(!awaited)
            }
            Doing::Ending => Ok(self.leave_when_idle()),
            Doing::Leaving => {
                let over = self.participant.is_dismissed();
                if over {
                    ledger.is_done(self.id, self.parameters.clone());
                    let bytes = self.conditions.tensors.iter().sum::<usize>() * 8;
                    let percent = self.memory.most_retained * 100 / bytes;
                    ledger.retained_percent = ledger.retained_percent.max(percent);
                    self.doing = Doing::Over;
                }
                Ok(false)
            }
        }
    }

    fn compute(&mut self, random: &mut Random) {
        self.busy = true;
        let takes = 1 + random.below(self.conditions.compute * self.slowness);
        self.laters.push((takes, Told::Go));
    }

    fn sums_before(&self, tensor: usize) -> bool {
        self.conditions.sums_before == Some(tensor) && self.summed <= self.step
    }

    fn ends_in(&self, tensor: usize) -> bool {
        self.listening.is_none() && self.end == Some((self.step, tensor))
    }

    /// Others may need what this one has posted.
    fn leave_when_idle(&mut self) -> bool {
        let idle = self.keeper.is_idle();
        if idle {
            let leave = self.participant.leave();
            self.said.push(leave);
            self.doing = Doing::Leaving;
        }
        idle
    }

    fn contribute(&mut self, tensor: usize) {
        let len = self.conditions.tensors[tensor];
        let part = if self.has_state { contribution(self.id) } else { 0 };
        let collective = Collective::AllReduce { len: len as u64 };
        let of = Use::Tensor(self.step, tensor);
        let group = match self.conditions.mode {
            Mode::Local(every) if !(self.step + 1).is_multiple_of(every) => {
                self.applied[tensor] = self.step + 1;
                return;
            }
            Mode::Pairs => Some(self.pair()),
            _ => None,
        };
        self.post_among(&format!("tensor {tensor}"), &vec![part; len], of, collective, group);
    }

    /// Whom to average with in this step: of a row that is turned on by one in each, two by two.
    fn pair(&self) -> Arc<[Rank]> {
        let known = self.keeper.known();
        let size = known.size() as u32;
        let me = known.rank_of(self.id).map_or(0, |rank| rank.0);
        let place = |rank: u32| (rank + self.step as u32) % size;
        let partner = (0..size).find(|rank| place(*rank) == place(me) ^ 1);
        let mut pair: Vec<Rank> = partner.into_iter().chain([me]).map(Rank).collect();
        pair.sort_unstable();
        pair.into()
    }

    fn awaits(&self, what: impl Fn(&Use) -> bool) -> bool {
        self.uses.values().any(what)
    }

    fn next_step(&mut self) -> Doing {
        self.step += 1;
        Doing::Beginning
    }

    fn begin(&mut self, ledger: &mut Ledger) -> Result<bool, String> {
        if self.engine.is_none() {
            // An invitation may come to nothing, and another follow.
            let Some((_, step, _)) = self.participant.gathering() else {
                self.doing = Doing::Knocking;
                return Ok(false);
            };
            self.step = step;
        }
        if self.step == self.conditions.steps && self.engine.is_some() {
            return Ok(self.leave_when_idle());
        }
        if !self.keeper.may_begin(self.step) {
            return Ok(false);
        }
        match self.participant.begin(self.step, &mut self.said) {
            Begin::Same => {
                self.keeper.begin(self.step);
                ledger.goes_by(self.id, self.step, self.keeper.known());
                self.doing = match self.following {
                    Some(_) => Doing::Calling,
                    None => Doing::Computing(0),
                };
                Ok(true)
            }
            Begin::Enter(view) => {
                ledger.entered(&view)?;
                let same = view.ids().eq(self.era.ids());
                let joined = view.ids().any(|id| self.era.rank_of(id).is_none());
                let lacks = joined || self.following.is_some();
                if same {
                    self.keeper.adopt(view.clone(), self.step);
                    self.feed(Event::View(view));
                } else {
                    ledger.planned += 1;
                    self.keeper.replace(view.clone(), self.step, &mut self.orders);
                    if self.engine.is_none() {
                        ledger.joined += 1;
                        self.joined_at = Some(self.step);
                    }
                    self.start_engine(view);
                }
                self.keeper.begin(self.step);
                ledger.goes_by(self.id, self.step, self.keeper.known());
                self.doing = if lacks { Doing::Calling } else { Doing::Computing(0) };
                Ok(true)
            }
            Begin::Gather(_) => {
                let idle = self.keeper.is_idle();
                if idle {
                    self.participant.gathered(&mut self.said);
                }
                Ok(idle)
            }
            Begin::Wait { .. } => Ok(false),
            Begin::Removed | Begin::Dissolved { .. } => {
                ledger.lost += 1;
                self.doing = Doing::Over;
                Ok(false)
            }
            begin @ (Begin::Doubt { .. } | Begin::Past { .. }) => {
                Err(format!("worker {}: step {}: {begin:?}", self.id, self.step))
            }
        }
    }
}

fn engine(id: WorkerId, view: &Arc<View>) -> Engine {
    let rank = view.rank_of(id).unwrap_or(Rank(0));
    Engine::new(rank, view.clone()).expect("views name strategies that exist")
}
