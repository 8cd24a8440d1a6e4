//! One worker's operations over all views: what the caller posted, which parts of it the engine of the view in force is
//! working on, what is final, and what others may still need. It names memory and never touches it.

mod loss;

use super::{
    Name,
    held::Held,
    plan::{Account, Remedy},
    report::Kind,
};
use crate::{
    collective::Collective,
    event::{Holds, OpError, OpId, Post, name_hash},
};
use paceline_job::{Rank, ReduceOp, View, ViewVersion, WorkerId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
};

/// The driver's name for an operation that its caller posted; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Which memory an engine's operation works on. Offsets are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The caller's input and output from there on, which may be the same.
    Caller(Ticket, u64),
    /// The caller's output only, as input as well: it is final there, or becomes so.
    Output(Ticket, u64),
    /// What was [retained](Order::Retain) of the output; only read.
    Retained(Ticket, u64),
}

/// What the driver has to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Post this to the engine of the view in force, on this memory.
    Post(Post, Source),
    /// Post this to the engine, with `input` and room for so many bytes, and give those to [`Keeper::exchanged`].
    Exchange {
        /// An all-gather of bytes.
        post: Post,
        /// Ours.
        input: Vec<u8>,
        /// Everybody's.
        output_bytes: usize,
    },
    /// Copy the output, before the caller has it back.
    Retain(Ticket),
    /// The copy is not needed any more.
    Release(Ticket),
    /// It is over: the caller has its memory back.
    Done(Ticket),
    /// It failed: the caller has its memory back.
    Fail(Ticket, Arc<OpError>),
    /// This worker has recovered: so it is with the samples of those who are gone.
    Recovered(Account),
}

/// Workers are never more than two steps apart, so whoever still has to account for somebody asks for later steps only.
const PASSED_KEPT: usize = 8;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Keeper {
    me: WorkerId,
    view: Arc<View>,
    /// The caller names workers by their ranks there: the same view on all workers in the same step.
    known: Arc<View>,
    /// In force already; the caller goes by them later.
    coming: VecDeque<Arc<View>>,
    /// The step from which callers go by a view, where that is agreed: by the one that this caller goes by, and by later
    /// ones.
    since: BTreeMap<ViewVersion, u64>,
    step: u64,
    /// Who only listens in this step.
    listeners: Arc<[WorkerId]>,
    uses: BTreeMap<u64, u32>,
    /// Posted here, and not known to be finished by all.
    operations: BTreeMap<Name, Operation>,
    /// Posted by others before somebody was lost, each in that step, and not yet here.
    expected: BTreeMap<Name, (u64, Remedy)>,
    /// By the engine's name for it.
    parts: Vec<Option<Part>>,
    exchange: Option<Exchange>,
    /// Posted by the caller while the survivors find out how things stand.
    postponed: VecDeque<Postponed>,
    /// Workers that are gone since all were last together, each with the last view it is known to have been in.
    gone: BTreeMap<WorkerId, ViewVersion>,
    /// Those of them whose samples are not accounted for.
    unaccounted: Vec<WorkerId>,
    /// What to tell of them when nothing that they could be part of is recovering any more.
    account: Option<Account>,
    /// Steps below this one are long over.
    over: u64,
    /// Later steps of which something is over: by their end and beginning, the earliest view in which that was reduced. At
    /// most [`PASSED_KEPT`].
    passed: BTreeMap<(u64, u64), ViewVersion>,
    /// What some averaged among themselves, this worker with them: a worker's copy as it was before that step.
    heard: BTreeMap<WorkerId, u64>,
    /// What this worker was told of samples of those who are gone: others are to be told the same.
    told: BTreeSet<(WorkerId, u64, u64)>,
    /// Whether workers train copies of their own.
    apart: bool,
    /// Before this step, what workers trained on was last in something that others have.
    last_held: u64,
    /// The step that this view's workers gathered before.
    gathered: u64,
}

/// An operation that waits until it is known how things stand, and what the caller knew when it was posted.
#[derive(Debug)]
struct Postponed {
    ticket: Ticket,
    post: Post,
    step: u64,
    known: Arc<View>,
    listeners: Arc<[WorkerId]>,
}

#[derive(Debug)]
struct Operation {
    ticket: Ticket,
    post: Post,
    kind: Kind,
    len: u64,
    step: u64,
    /// The steps of whose samples it holds what all workers made.
    samples: Range<u64>,
    /// Who averages it among themselves, where the caller says so.
    partners: Arc<[WorkerId]>,
    held: Held,
    /// Those who add nothing to it: averages are over the others.
    listeners: Arc<[WorkerId]>,
    /// Parts that the engine works on.
    parts: u32,
    phase: Phase,
    /// Whether something of it comes from others since somebody was lost.
    recovering: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The use before is not over.
    Queued,
    Running,
    /// The caller has its memory back.
    Complete,
}

/// What an engine's operation is to us.
#[derive(Debug)]
enum Part {
    /// A range of an operation that becomes final with the contributions of this view's workers, or of those partners.
    Of(Name, Range<u64>, ViewVersion, Arc<[WorkerId]>),
    /// A range of an operation that others get from here.
    HandedOver(Name),
    /// The caller's, and not recovered.
    Other(Ticket, Arc<str>),
    /// The lengths of the reports.
    Lengths,
    /// The reports.
    Reports,
}

/// Survivors tell each other what they hold.
#[derive(Debug)]
struct Exchange {
    report: Vec<u8>,
    lengths: Vec<u64>,
}

impl Keeper {
    /// For the worker `me` with this view in force.
    pub fn new(me: WorkerId, view: Arc<View>) -> Keeper {
        Keeper {
            me,
            known: view.clone(),
            coming: VecDeque::new(),
            since: BTreeMap::new(),
            view,
            step: 0,
            listeners: [].into(),
            uses: BTreeMap::new(),
            operations: BTreeMap::new(),
            expected: BTreeMap::new(),
            parts: Vec::new(),
            exchange: None,
            postponed: VecDeque::new(),
            gone: BTreeMap::new(),
            unaccounted: Vec::new(),
            account: None,
            over: 0,
            passed: BTreeMap::new(),
            heard: BTreeMap::new(),
            told: BTreeSet::new(),
            apart: false,
            last_held: 0,
            gathered: 0,
        }
    }

    /// Whether a step may begin: everything of the steps before the last is over here. After a loss no step begins
    /// before it is agreed from which one callers go by the new view, and that one when it is known what became of the
    /// samples of those who are gone.
    pub fn may_begin(&self, step: u64) -> bool {
        let lags = |op: &Operation| op.phase != Phase::Complete && op.step + 2 <= step;
        let due = |account: &Account| account.since.values().any(|since| *since <= step);
        !self.operations.values().any(lags)
            && self.exchange.is_none()
            && !self.account.as_ref().is_some_and(due)
    }

    /// Operations posted from now on belong to this step, and name workers by their ranks in the view that is
    /// [known](Keeper::known) now.
    pub fn begin(&mut self, step: u64) {
        self.step = step;
        self.listeners = [].into();
        while self.coming.front().is_some_and(|view| self.is_due(view, step))
            && let Some(view) = self.coming.pop_front()
        {
            self.known = view;
        }
    }

    /// Operations of all workers that are posted from now on in this step are over those of the others: these take part,
    /// add nothing, and hear the results. All workers say so between the same two operations.
    pub fn listen(&mut self, listeners: Arc<[WorkerId]>) {
        self.listeners = listeners;
    }

    /// Workers train copies of their own from now on, or not any more. What only the copy of one that leaves has goes with it.
    pub fn train_apart(&mut self, apart: bool) {
        self.apart = apart;
        self.last_held = self.last_held.max(self.step);
    }

    /// This worker and all others have the state that there was where the workers of this view gathered.
    pub fn have_state(&mut self) {
        self.over = self.over.max(self.gathered);
    }

    /// How many of them are left.
    fn listening(&self, listeners: &[WorkerId]) -> u32 {
        listeners.iter().filter(|id| self.view.rank_of(**id).is_some()).count() as u32
    }

    fn is_due(&self, view: &View, step: u64) -> bool {
        self.since.get(&view.version).is_some_and(|since| *since <= step)
    }

    /// The view in force.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The view by which the caller names workers.
    pub fn known(&self) -> &Arc<View> {
        &self.known
    }

    /// Whether nothing is in progress here, and nobody takes anything from here.
    pub fn is_idle(&self) -> bool {
        self.parts.iter().all(Option::is_none)
            && self.postponed.is_empty()
            && self.exchange.is_none()
            && self.operations.values().all(|op| op.phase == Phase::Complete)
    }

    /// The caller posted an operation. Its `op` is ours to give.
    pub fn post(&mut self, ticket: Ticket, post: Post, out: &mut Vec<Order>) {
        let (step, known, listeners) = (self.step, self.known.clone(), self.listeners.clone());
        let postponed = Postponed { ticket, post, step, known, listeners };
        match self.exchange {
            Some(_) => self.postponed.push_back(postponed),
            None => self.take(postponed, out),
        }
    }

    fn take(&mut self, postponed: Postponed, out: &mut Vec<Order>) {
        let Postponed { ticket, post, step, known, listeners } = postponed;
        let (kind, len) = match (&post.group, &post.collective) {
            (None, Collective::AllReduce { len }) if post.reduce == ReduceOp::Mix => {
                (Kind::Mix, *len)
            }
            (None, Collective::AllReduce { len }) => (Kind::Reduce, *len),
            (Some(_), Collective::AllReduce { len }) if post.reduce == ReduceOp::Mix => {
                (Kind::Mix, *len)
            }
            (None, Collective::Barrier) => (Kind::Reduce, 1),
            (None, Collective::Broadcast { root, len })
                if (*root as usize) < known.size() && post.in_place =>
            {
                (Kind::Broadcast(known.workers[*root as usize].id), *len)
            }
            _ if !known.ids().eq(self.view.ids()) => {
                // Others may have begun it before somebody was lost, and then it has failed there.
                let lost = known.ids().position(|id| self.view.rank_of(id).is_none()).unwrap_or(0);
                let error = irrecoverable(post.name.clone(), Rank(lost as u32));
                return out.push(Order::Fail(ticket, error));
            }
            _ => {
                let part = Part::Other(ticket, post.name.clone());
                let post = Post { op: self.part(part), ..post };
                return out.push(Order::Post(post, Source::Caller(ticket, 0)));
            }
        };
        let hash = name_hash(&post.name, None);
        let uses = self.uses.entry(hash).or_default();
        let name = Name { hash, uses: *uses };
        *uses += 1;
        let partners = match (kind, &post.group) {
            (Kind::Mix, Some(ranks)) => known.workers_at(ranks),
            _ => [].into(),
        };
        let samples = match kind {
            Kind::Reduce | Kind::Mix if partners.is_empty() => post.holds.steps(step),
            // What some averaged is told by whom they heard.
            Kind::Reduce | Kind::Mix | Kind::Broadcast(_) => 0..0,
        };
        let held = match kind {
            // Its root has all of it before anybody else has any.
            Kind::Broadcast(root) if root == self.me => Held::whole(len, self.view.version),
            _ => Held::default(),
        };
        let operation = Operation {
            ticket,
            post,
            kind,
            len,
            step,
            samples,
            partners,
            held,
            listeners,
            parts: 0,
            phase: Phase::Queued,
            recovering: false,
        };
        self.operations.insert(name, operation);
        self.start_if_due(name, out);
    }

    /// The engine of the view in force has completed one of its operations.
    pub fn completed(&mut self, op: OpId, out: &mut Vec<Order>) {
        let Some(part) = self.parts.get_mut(op.0 as usize).and_then(Option::take) else { return };
        match part {
            Part::Of(name, range, view, partners) => {
                let Some(operation) = self.operations.get_mut(&name) else { return };
                operation.held.add(range, view);
                operation.parts -= 1;
                hear(&mut self.heard, &partners, operation.post.holds);
                self.finish_if_whole(name, out);
            }
            Part::HandedOver(name) => {
                let Some(operation) = self.operations.get_mut(&name) else { return };
                operation.parts -= 1;
                self.finish_if_whole(name, out);
            }
            Part::Other(ticket, _) => out.push(Order::Done(ticket)),
            // Told by `exchanged`, with what they brought.
            Part::Lengths | Part::Reports => {}
        }
    }

    /// The engine of the view in force failed one of its operations though nobody is gone: the workers disagree.
    pub fn failed(&mut self, op: OpId, error: Arc<OpError>, out: &mut Vec<Order>) {
        let Some(part) = self.parts.get_mut(op.0 as usize).and_then(Option::take) else { return };
        match part {
            Part::Of(name, ..) | Part::HandedOver(name) => self.fail(name, error, out),
            Part::Other(ticket, _) => out.push(Order::Fail(ticket, error)),
            Part::Lengths | Part::Reports => {}
        }
    }

    /// This view is in force as well, with the same workers: what is posted from `step` on belongs to it.
    pub fn adopt(&mut self, view: Arc<View>, step: u64) {
        match self.coming.back_mut() {
            None => {
                // Whoever lacks this view has the one before.
                let before = std::mem::replace(&mut self.known, view.clone()).version;
                self.since.retain(|version, _| *version >= before);
                self.since.insert(view.version, step);
            }
            Some(last) => {
                if let Some(since) = self.since.get(&last.version).copied() {
                    self.since.insert(view.version, since);
                }
                *last = view.clone();
            }
        }
        self.view = view;
    }

    /// From this step on this view is in force instead of the one before, of which everything is over everywhere.
    pub fn replace(&mut self, view: Arc<View>, step: u64, out: &mut Vec<Order>) {
        debug_assert!(self.is_idle(), "workers gather when they have nothing in progress");
        for operation in std::mem::take(&mut self.operations).into_values() {
            self.pass(&operation);
            out.push(Order::Release(operation.ticket));
        }
        let left: Vec<WorkerId> =
            self.view.ids().filter(|id| view.rank_of(*id).is_none()).collect();
        if self.apart && !left.is_empty() {
            // What only their copies have goes with them.
            let since = left.iter().map(|id| (*id, step)).collect();
            let consumed = left.iter().map(|id| (*id, 0, self.last_held)).collect();
            let account = Account { over: self.over, consumed, gone: left, since };
            out.push(Order::Recovered(account));
        }
        self.heard.retain(|id, _| view.rank_of(*id).is_some());
        self.gathered = step;
        self.uses.clear();
        self.expected.clear();
        self.parts.clear();
        self.gone.clear();
        self.told.clear();
        self.unaccounted.clear();
        self.coming.clear();
        self.since.clear();
        self.known = view.clone();
        self.view = view;
    }

    fn part(&mut self, part: Part) -> OpId {
        let free = self.parts.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.parts.push(None);
            self.parts.len() - 1
        });
        self.parts[place] = Some(part);
        OpId(place as u32)
    }

    /// Start an operation if the use before is over.
    fn start_if_due(&mut self, name: Name, out: &mut Vec<Order>) {
        let before = name.uses.checked_sub(1).map(|uses| Name { uses, ..name });
        let before = before.and_then(|name| self.operations.get(&name));
        if before.is_some_and(|before| before.phase != Phase::Complete) {
            return;
        }
        let Some(operation) = self.operations.get_mut(&name) else { return };
        if operation.phase != Phase::Queued {
            return;
        }
        operation.phase = Phase::Running;
        if let Some((_, remedy)) = self.expected.remove(&name) {
            self.apply(name, remedy, out);
            return self.tell_account_if_recovered(out);
        }
        let collective = match operation.kind {
            Kind::Reduce | Kind::Mix => operation.post.collective.clone(),
            Kind::Broadcast(root) => match self.view.rank_of(root) {
                Some(rank) => Collective::Broadcast { root: rank.0, len: operation.len },
                None => return self.give_up(name, out),
            },
        };
        operation.parts = 1;
        let range = 0..operation.len;
        let (mut post, source) = (operation.post.clone(), Source::Caller(operation.ticket, 0));
        let (mut partners, listeners) = (operation.partners.clone(), operation.listeners.clone());
        if !partners.is_empty() {
            // Those of them who are left.
            let ranks: Vec<Rank> =
                partners.iter().filter_map(|id| self.view.rank_of(*id)).collect();
            partners = self.view.workers_at(&ranks);
            (post.group, post.reduce) = (Some(ranks.into()), ReduceOp::Average);
        }
        let listeners = self.listening(&listeners);
        let op = self.part(Part::Of(name, range, self.view.version, partners));
        out.push(Order::Post(Post { op, collective, listeners, ..post }, source));
    }

    fn finish_if_whole(&mut self, name: Name, out: &mut Vec<Order>) {
        let Some(operation) = self.operations.get_mut(&name) else { return };
        let whole = operation.held.covers(operation.len) && operation.parts == 0;
        if operation.phase != Phase::Running || !whole {
            return;
        }
        (operation.phase, operation.recovering) = (Phase::Complete, false);
        let (ticket, kind, step) = (operation.ticket, operation.kind, operation.step);
        let holds = operation.post.holds;
        // What is mixed is not handed to others.
        let retained = self.view.size() > 1 && kind != Kind::Mix;
        // First, so that the copy of this one can be where that of the last use was.
        if kind == Kind::Reduce {
            self.release_before(name, step, out);
        }
        if retained {
            out.push(Order::Retain(ticket));
        }
        out.push(Order::Done(ticket));
        self.last_held = self.last_held.max(holds.all_below());
        if !retained && let Some(operation) = self.operations.remove(&name) {
            self.pass(&operation);
        }
        self.start_if_due(Name { uses: name.uses + 1, ..name }, out);
        self.tell_account_if_recovered(out);
    }

    /// All have posted an operation, so all have finished what they wait for before they post.
    fn release_before(&mut self, name: Name, step: u64, out: &mut Vec<Order>) {
        let is_over = |other: &Name, op: &mut Operation| {
            let earlier = other.hash == name.hash && other.uses < name.uses;
            op.phase == Phase::Complete && op.parts == 0 && (earlier || op.step + 2 <= step)
        };
        let over: Vec<Operation> =
            self.operations.extract_if(.., is_over).map(|(_, operation)| operation).collect();
        for operation in over {
            self.pass(&operation);
            out.push(Order::Release(operation.ticket));
        }
    }

    /// An operation is over everywhere.
    fn pass(&mut self, operation: &Operation) {
        let Range { start, end } = operation.samples;
        let views = operation.held.spans().iter().map(|span| span.view);
        if let Some(view) = views.min().filter(|_| start < end) {
            let known = self.passed.entry((end, start)).or_insert(view);
            *known = (*known).min(view);
        }
        while self.passed.len() > PASSED_KEPT
            && let Some(((end, _), _)) = self.passed.pop_first()
        {
            self.over = self.over.max(end);
        }
    }

    /// What is needed of an operation was lost with the worker that had it.
    fn give_up(&mut self, name: Name, out: &mut Vec<Order>) {
        let Some(operation) = self.operations.get(&name) else { return };
        let Operation { post, kind, .. } = operation;
        let root = match kind {
            Kind::Broadcast(root) => self.known.rank_of(*root),
            Kind::Reduce | Kind::Mix => None,
        };
        let reason = "and what it alone had of this is lost".to_string();
        let (name_of_it, peer) = (post.name.clone(), root.unwrap_or(Rank(0)));
        let error = OpError::PeerLost { name: name_of_it, peer, reason };
        self.fail(name, Arc::new(error), out);
    }

    fn fail(&mut self, name: Name, error: Arc<OpError>, out: &mut Vec<Order>) {
        let Some(operation) = self.operations.remove(&name) else { return };
        if operation.phase != Phase::Complete {
            out.push(Order::Fail(operation.ticket, error));
        }
        // What else the engine does for it is nobody's any more; it must not be taken for another's.
        self.start_if_due(Name { uses: name.uses + 1, ..name }, out);
        self.tell_account_if_recovered(out);
    }
}

/// Workers averaged copies that hold what each trained on before that step.
fn hear(heard: &mut BTreeMap<WorkerId, u64>, partners: &[WorkerId], holds: Holds) {
    for id in partners {
        let known = heard.entry(*id).or_default();
        *known = (*known).max(holds.all_below());
    }
}

fn irrecoverable(name: Arc<str>, peer: Rank) -> Arc<OpError> {
    let reason = "the job goes on without it, and this cannot be recovered".to_string();
    Arc::new(OpError::PeerLost { name, peer, reason })
}
