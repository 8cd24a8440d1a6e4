//! One worker of a run of membership: its participant, its keeper, the engine of the view in force, its memory, and a
//! program that trains. What a driver does in real time is done here at once, or later by the run's lot.

use super::{Conditions, Ledger, Mode, ledger::contribution, memory::Memory};
use paceline_job::{Dtype, Random, Rank, ReduceOp, Time, View, ViewVersion, WorkerId};
use paceline_sync::{
    agreement::{Begin, Change, Participant, ToParticipant, ToRegistrar},
    collective::Collective,
    engine::Engine,
    event::{Action, Event, OpId, Payload, Post},
    frame::{Header, Kind},
    recovery::{Keeper, Order, Ticket},
    slab::Key,
};
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
    State,
    /// The state, while others go on.
    Piece,
    Roll,
    Lacking,
}

/// A step in which newcomers listen.
#[derive(Clone, Debug)]
struct Listening {
    /// What travels.
    state: Vec<i64>,
    /// Whether this worker still lacks it.
    lacks: bool,
    /// What a newcomer heard, to be applied when it has the state.
    heard: Vec<(u64, usize, Vec<i64>)>,
    asked: bool,
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
    has_state: bool,
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
            parameters,
            has_state: true,
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

    fn frame(&mut self, envelope: Envelope) {
        if envelope.era > self.era.version {
            return self.early.push(envelope);
        }
        // Of a view that is over, or of one that nothing more comes of.
        if envelope.era < self.era.version || self.frozen || self.engine.is_none() {
            return;
        }
        let Envelope { from, header, payload, .. } = envelope;
        if header.kind != Kind::Data {
            return self.feed(Event::Control { from, header, payload: payload.into() });
        }
        let mut actions = Vec::new();
        let engine = self.engine.as_mut().expect("seen above");
        engine.handle(self.now, Event::Incoming { from, header }, &mut actions);
        let at = actions.iter().position(|action| matches!(action, Action::Place { .. }));
        let Action::Place { token, placement } = actions.remove(at.expect("every frame has one"))
        else {
            unreachable!("found by its kind")
        };
        self.memory.place(placement, &payload);
        if let Some(token) = token {
            // Some are in place at once, others take a while.
            if header.len % 3 == 0 {
                self.laters
                    .push((u64::from(header.len % 7), Told::Arrived(self.era.version, token)));
            } else {
                let engine = self.engine.as_mut().expect("seen above");
                engine.handle(self.now, Event::Arrived { token }, &mut actions);
            }
        }
        self.perform(actions);
    }

    fn feed_in(&mut self, era: ViewVersion, event: Event) {
        if era == self.era.version && !self.frozen {
            self.feed(event);
        }
    }

    fn feed(&mut self, event: Event) {
        let Some(engine) = &mut self.engine else { return };
        let mut actions = Vec::new();
        engine.handle(self.now, event, &mut actions);
        self.perform(actions);
    }

    /// Bounded by what is posted, as in the driver of real time.
    fn perform(&mut self, mut actions: Vec<Action>) {
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                let Some(engine) = &mut self.engine else { return };
                match action {
                    Action::Send { to, token, header, payload, .. } => {
                        let payload = match payload {
                            Payload::Inline(bytes) => bytes.into_vec(),
                            Payload::Memory(loc) => self.memory.read(loc, header.len as usize),
                        };
                        if let Some(token) = token {
                            let after = 1 + u64::from(header.chunk % 5);
                            self.laters.push((after, Told::Delivered(self.era.version, token)));
                        }
                        let (era, from) = (self.era.version, engine.rank());
                        let envelope = Envelope { era, from, header, payload };
                        self.sent.push((self.era.workers[to.index()].id, envelope));
                    }
                    Action::Work { token, source, with, into, elements, recipe } => {
                        self.memory.work(source, with, into, elements, recipe);
                        engine.handle(self.now, Event::Worked { token }, &mut actions);
                    }
                    Action::Free(buf) => self.memory.free(buf),
                    Action::Complete(op) => match self.memory.leave(op) {
                        None => self.keeper.completed(op, &mut self.orders),
                        Some(bytes) => {
                            let read = self.keeper.exchanged(op, &bytes, &mut self.orders);
                            if let Err(rank) = read {
                                self.memory.violations.push(format!("no report from {rank}"));
                            }
                        }
                    },
                    Action::Fail(op, error) => {
                        self.memory.leave(op);
                        self.memory.violations.push(format!("an engine failed: {error}"));
                        self.keeper.failed(op, error, &mut self.orders);
                    }
                    Action::Close { peer, reason } => {
                        self.memory.violations.push(format!("{peer} was closed: {reason}"));
                    }
                    Action::Place { .. } => unreachable!("taken where the frame arrived"),
                    Action::Expect { .. } => {
                        self.memory.violations.push("a place was announced".to_string());
                    }
                    Action::Report(_) => {}
                }
            }
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

    fn start_engine(&mut self, view: Arc<View>) {
        self.memory.forget_engine();
        self.engine = Some(engine(self.id, &view));
        self.era = view;
        self.frozen = false;
        let early = std::mem::take(&mut self.early);
        self.accuse();
        early.into_iter().for_each(|envelope| self.frame(envelope));
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
                        match &mut self.listening {
                            Some(listening) if !self.has_state => {
                                listening.heard.push((step, tensor, values));
                            }
                            _ => self.apply(step, tensor, &values)?,
                        }
                    }
                    Some(Use::Copy(step, tensor)) if self.has_state => {
                        let place = tensor + self.conditions.tensors.len();
                        ledger.result(self.id, step, place, &values, (0..step, true))?;
                        self.fold(tensor, &values);
                    }
                    Some(Use::Copy(..)) => {}
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

    /// Who has the state is known: how the others get it.
    fn called(&mut self, standings: &[i64], ledger: &mut Ledger) {
        let known = self.keeper.known().clone();
        let (senders, others): (Vec<_>, Vec<_>) =
            (0..).map(Rank).zip(standings).partition(|(_, has_it)| **has_it != 0);
        let senders: Vec<Rank> = senders.into_iter().map(|(rank, _)| rank).collect();
        let others: Vec<Rank> = others.into_iter().map(|(rank, _)| rank).collect();
        let listeners = known.workers_at(&others);
        self.doing = match self.conditions.mode {
            mode if mode.is_apart() => {
                self.keeper.listen(listeners);
                Doing::Levelling(0)
            }
            // Nobody has it, or somebody was lost just now: all stand still.
            _ if senders.is_empty() || !self.conditions.listens => Doing::Sharing(0),
            _ => {
                self.keeper.listen(listeners);
                ledger.listened += usize::from(!self.has_state);
                self.listened_in = (!self.has_state).then_some(self.step);
                self.joined_at = self.joined_at.map(|_| self.step + 1);
                let (lacks, state) = (!self.has_state, self.state());
                let sender = senders[self.step as usize % senders.len()];
                let me = known.rank_of(self.id);
                if lacks || me == Some(sender) {
                    let group = std::iter::once(sender).chain(others).collect();
                    let collective = Collective::Broadcast { root: 0, len: state.len() as u64 };
                    self.post_among("piece", &state, Use::Piece, collective, Some(group));
                }
                self.listening = Some(Listening { state, lacks, heard: Vec::new(), asked: false });
                Doing::Computing(0)
            }
        };
    }

    /// The state is here, and what follows from it.
    fn arrived(&mut self, values: &[i64]) {
        if let Some(listening) = &mut self.listening
            && listening.lacks
        {
            (listening.state, listening.lacks) = (values.to_vec(), false);
        }
    }

    /// All have heard whether somebody still lacks the state.
    fn asked(&mut self, lacking: bool, ledger: &mut Ledger) -> Result<(), String> {
        if lacking {
            ledger.sent_again += 1;
            self.doing = Doing::Sharing(0);
            return Ok(());
        }
        self.end_listening()
    }

    fn end_listening(&mut self) -> Result<(), String> {
        if let Some(listening) = self.listening.take()
            && !self.has_state
        {
            self.take_state(&listening.state);
            for (step, tensor, values) in listening.heard {
                self.apply(step, tensor, &values)?;
            }
        }
        self.doing = match self.conditions.crosses_steps {
            true => self.next_step(),
            false => Doing::Awaiting,
        };
        Ok(())
    }

    fn state(&self) -> Vec<i64> {
        let applied = self.applied.iter().map(|steps| *steps as i64);
        self.parameters.iter().flatten().copied().chain(applied).collect()
    }

    fn adopt_state(&mut self, values: &[i64]) -> Result<(), String> {
        if let Some(listening) = &mut self.listening {
            if !listening.lacks && listening.state != values {
                return Err(format!("worker {} was given another state than it had", self.id));
            }
            listening.state = values.to_vec();
            return self.end_listening();
        }
        if self.has_state && self.state() != values {
            return Err(format!("worker {} was given another state than it has", self.id));
        }
        self.take_state(values);
        self.doing = Doing::Computing(0);
        Ok(())
    }

    fn take_state(&mut self, values: &[i64]) {
        let mut values = values.iter().copied();
        self.parameters.iter_mut().flatten().zip(&mut values).for_each(|(to, from)| *to = from);
        self.applied.iter_mut().zip(values).for_each(|(to, from)| *to = from as u64);
        self.has_state = true;
        self.keeper.train_apart(self.conditions.mode.is_apart());
        self.keeper.have_state();
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
            op: OpId(0),
            name: name.into(),
            collective,
            dtype: Dtype::I64,
            reduce: match of {
                Use::Tensor(..) => match self.conditions.mode {
                    Mode::Synchronous if self.conditions.listens => ReduceOp::Average,
                    Mode::Synchronous => ReduceOp::Sum,
                    Mode::Groups | Mode::Pairs => ReduceOp::Mix,
                    Mode::Local(_) | Mode::Averaging => ReduceOp::Average,
                },
                Use::Copy(..) => ReduceOp::Average,
                Use::State | Use::Piece | Use::Roll | Use::Lacking => ReduceOp::Sum,
            },
            priority: i64::from(ticket.0 as u32 % 3),
            group,
            in_place: true,
            listeners: 0,
            holds: match of {
                Use::Tensor(step, _) if self.conditions.mode.is_apart() => Some(step + 1),
                Use::Copy(step, _) => Some(step),
                _ => None,
            },
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
                self.busy = true;
                let takes = 1 + random.below(self.conditions.compute * self.slowness);
                self.laters.push((takes, Told::Go));
                Ok(true)
            }
            Doing::Awaiting => {
                let awaited = self.applied.iter().any(|steps| *steps <= self.step);
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

    fn call(&mut self) -> bool {
        if self.awaits(|of| matches!(of, Use::Roll)) {
            return false;
        }
        let known = self.keeper.known().clone();
        let mut standings = vec![0; known.size()];
        if let Some(rank) = known.rank_of(self.id) {
            standings[rank.index()] = i64::from(self.has_state);
        }
        let collective = Collective::AllReduce { len: standings.len() as u64 };
        self.post("paceline roll", &standings, Use::Roll, collective);
        true
    }

    fn level(&mut self, tensor: usize) -> bool {
        if let Some(len) = self.conditions.tensors.get(tensor).copied() {
            let part = if self.has_state { contribution(self.id) } else { 0 };
            let collective = Collective::AllReduce { len: len as u64 };
            let of = Use::Copy(self.step, tensor);
            self.post(&format!("tensor {tensor}"), &vec![part; len], of, collective);
            self.doing = Doing::Levelling(tensor + 1);
            return true;
        }
        let over = !self.awaits(|of| matches!(of, Use::Copy(..)));
        if over {
            self.keeper.listen([].into());
            self.doing = Doing::Sharing(0);
        }
        over
    }

    fn finish_listening(&mut self) -> bool {
        let pieces = self.awaits(|of| matches!(of, Use::Piece));
        let Some(listening) = self.listening.as_mut().filter(|it| !pieces && !it.asked) else {
            return false;
        };
        listening.asked = true;
        let lacks = [i64::from(listening.lacks)];
        self.post("paceline lacking", &lacks, Use::Lacking, Collective::AllReduce { len: 1 });
        true
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
                self.doing = Doing::Computing(0);
                Ok(true)
            }
            Begin::Enter(view) => {
                ledger.entered(&view)?;
                let same = view.ids().eq(self.era.ids());
                let joined = view.ids().any(|id| self.era.rank_of(id).is_none());
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
                self.doing = if joined { Doing::Calling } else { Doing::Computing(0) };
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

    /// Everybody gets the state from the worker that is there the longest and lives.
    fn share(&mut self, attempt: usize) -> Result<bool, String> {
        if self.uses.values().any(|of| matches!(of, Use::State)) {
            return Ok(false);
        }
        let known = self.keeper.known().clone();
        let mut roots: Vec<WorkerId> = known.ids().collect();
        roots.sort_unstable();
        let root = roots.get(attempt).copied();
        if root == Some(self.id) && !self.has_state || root.is_none() {
            // All who had it are gone, and so is the job.
            self.doing = Doing::Over;
            return Ok(false);
        }
        let root = root.and_then(|root| known.rank_of(root)).map_or(0, |rank| rank.0);
        let state = self.listening.as_ref().map_or_else(|| self.state(), |it| it.state.clone());
        let collective = Collective::Broadcast { root, len: state.len() as u64 };
        self.post("state", &state, Use::State, collective);
        Ok(true)
    }
}

fn engine(id: WorkerId, view: &Arc<View>) -> Engine {
    let rank = view.rank_of(id).unwrap_or(Rank(0));
    Engine::new(rank, view.clone()).expect("views name strategies that exist")
}
