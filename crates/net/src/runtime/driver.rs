//! The engine's hands in real time: links, memory and completions of one worker. A turn receives what
//! has come, performs what the engine asks for, and sends what can go. It never blocks; whoever owns
//! the driver decides when to sleep.

mod line;
mod views;

pub(crate) use views::{Relics, Rigging};

use super::{
    carried::Counting,
    core::Core,
    crew::{Crew, Task},
    memory::{self, OpMemory},
    segment::Segment,
    shm::{AsleepWord, Copies, ShmLink},
    tcp::{End, TcpLink},
    trace::EngineSource,
};
use crate::handle::{Completion, Outcome};
use line::Lines;
use paceline_job::{Rank, Time, ViewVersion};
use paceline_sync::{
    event::{Action, Event, Loc, OpError, OpId, Payload, Post, Report},
    frame::{Header, Kind, OpKey},
    scheduler::peer_in_turn,
    slab::Key,
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// A link that only serves as a bell is looked at once in so many idle turns.
const BELL_TURNS: u32 = 256;

/// How long leaving waits for the kernel to take the last frames.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often those who wait look whether a frozen driver goes on: of several who sleep, the bell may wake only one.
const FROZEN_NAP: Duration = Duration::from_millis(2);

/// The way to one peer.
#[derive(Debug)]
pub(crate) enum Link {
    /// Several connections share the data frames.
    Tcp { connections: Vec<TcpLink>, next: usize },
    /// Shared memory.
    Shm(Box<ShmLink>),
}

/// What to do with a notice for people.
pub type ReportSink = Box<dyn Fn(Rank, &Report) + Send>;

/// See the file's first paragraph.
pub(crate) struct Driver {
    core: Core,
    /// By rank; none for this worker itself and for lost ones.
    links: Vec<Option<Link>>,
    /// Segments of lost peers: a pointer into them may still be named until everything has settled.
    departed: Vec<Arc<Segment>>,
    copies: Copies,
    delivered: Vec<Key>,
    batch: Vec<Action>,
    completions: Vec<Option<Arc<Completion>>>,
    free_ops: Vec<OpId>,
    in_flight: usize,
    /// Keys of operations that have announced places to peers, by id.
    announced: Vec<Option<OpKey>>,
    /// Failed operations whose places some peers may still write: their memory goes back when those
    /// peers have confirmed that they will not, or are gone.
    withdrawing: Vec<Withdrawing>,
    /// Where connections are paced, what they share.
    lines: Option<Lines>,
    /// Where they are, who is the first to be heard.
    first_to_receive: usize,
    asleep: AsleepWord,
    idle_turns: u32,
    next_tick: Time,
    report: ReportSink,
    /// In an elastic job, what outlives the engine.
    crew: Option<Crew>,
    /// Whether a worker of an elastic job was lost: the engine rests until there is another.
    frozen: bool,
}

/// See [`Driver::withdraw`].
struct Withdrawing {
    op: OpId,
    error: Arc<OpError>,
    peers: Vec<(Rank, OpKey)>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Driver {
    pub(crate) fn new(core: Core, links: Vec<Option<Link>>, report: ReportSink) -> Driver {
        let asleep = AsleepWord::of(&core.memory.store.segment);
        Driver {
            core,
            links,
            departed: Vec::new(),
            copies: Copies::default(),
            delivered: Vec::new(),
            batch: Vec::new(),
            completions: Vec::new(),
            free_ops: Vec::new(),
            in_flight: 0,
            announced: Vec::new(),
            withdrawing: Vec::new(),
            lines: None,
            first_to_receive: 0,
            asleep,
            idle_turns: 0,
            next_tick: Time(u64::MAX),
            report,
            crew: None,
            frozen: false,
        }
    }

    /// Run in an elastic job.
    pub(crate) fn with_crew(self, crew: Crew) -> Driver {
        Driver { crew: Some(crew), ..self }
    }

    pub(crate) fn crew(&mut self) -> Option<&mut Crew> {
        self.crew.as_mut()
    }

    pub(crate) fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Post an operation; `post.op` is filled in here. `at` is when the caller did, if that is a while ago.
    ///
    /// # Safety
    /// The buffers hold what the collective reads and writes, are not touched otherwise, and stay
    /// valid until the completion is done.
    pub(crate) unsafe fn post(
        &mut self,
        mut post: Post,
        memory: OpMemory,
        completion: Arc<Completion>,
        at: Option<u64>,
    ) {
        if let Some(crew) = &mut self.crew {
            self.in_flight += 1;
            self.core.counting.iter().for_each(Counting::busy);
            crew.post(post, self.core.engine.rank(), memory, completion);
            self.core.look_at_clock();
            self.perform();
            self.flush();
            return;
        }
        let op = self.free_ops.pop().unwrap_or_else(|| {
            self.completions.push(None);
            OpId(self.completions.len() as u32 - 1)
        });
        post.op = op;
        self.completions[op.0 as usize] = Some(completion);
        self.core.memory.enter(op, memory);
        self.in_flight += 1;
        self.core.counting.iter().for_each(Counting::busy);
        self.core.look_at_clock();
        if let Some(trace) = &mut self.core.trace {
            trace.posted(&self.core.engine, &post, at);
        }
        self.core.feed(Event::Post(Box::new(post)));
        self.perform();
        self.flush();
    }

    /// One turn. Says whether anything happened.
    pub(crate) fn turn(&mut self) -> bool {
        if self.frozen {
            return false;
        }
        let now = self.core.look_at_clock();
        let look_at_bells = self.idle_turns.is_multiple_of(BELL_TURNS);
        let paced = self.is_paced();
        let mut any = paced && self.receive_over_line();
        for index in 0..self.links.len() {
            let from = Rank(index as u32);
            let received = match &mut self.links[index] {
                None => continue,
                Some(Link::Tcp { .. }) if paced => continue,
                Some(Link::Tcp { connections, .. }) => {
                    receive_all(connections, from, &mut self.core, usize::MAX)
                        .map(|bytes| bytes > 0)
                }
                Some(Link::Shm(link)) => {
                    let received = link.receive(from, &mut self.core, &mut self.copies);
                    match received {
                        Ok(false) if look_at_bells => link.listen(from, &mut self.core),
                        other => other,
                    }
                }
            };
            match received {
                Ok(something) => any |= something,
                Err(end) => self.lose(from, end),
            }
            self.perform();
        }
        any |= self.flush();
        self.settle_withdrawals();
        if now >= self.next_tick {
            self.core.feed(Event::Tick);
            self.perform();
            self.flush();
            self.schedule_tick();
        }
        self.idle_turns = if any { 1 } else { self.idle_turns.wrapping_add(1) };
        any
    }

    fn schedule_tick(&mut self) {
        // Stalls are measured in seconds: looking ten times a second is enough, and bounds the cost.
        let soonest = self.core.now().after(Duration::from_millis(100));
        self.next_tick =
            self.core.engine.next_tick().map_or(Time(u64::MAX), |tick| tick.max(soonest));
    }

    /// Give links what they can take, in turn. Says whether anything went out.
    fn flush(&mut self) -> bool {
        if self.frozen {
            return false;
        }
        let paced = self.is_paced();
        let mut any = paced && self.flush_line();
        let (me, size) = (self.core.engine.rank(), self.links.len());
        for place in 0..size {
            let index = peer_in_turn(me, place, size).index();
            let flushed = match &mut self.links[index] {
                None => continue,
                Some(Link::Tcp { .. }) if paced => continue,
                Some(Link::Tcp { connections, .. }) => {
                    let mut flushed = Ok(false);
                    for connection in connections.iter_mut().filter(|c| c.wants_to_write()) {
                        flushed = match (flushed, connection.flush(&mut self.delivered)) {
                            (Ok(a), Ok(b)) => Ok(a | b),
                            (Err(error), _) | (_, Err(error)) => Err(error),
                        };
                    }
                    flushed
                }
                Some(Link::Shm(link)) if link.wants_to_write() => {
                    link.flush(&mut self.copies, &mut self.delivered)
                }
                Some(Link::Shm(_)) => continue,
            };
            // After an error its last words may still be unread; `receive` finds the end.
            any |= flushed.unwrap_or(false);
        }
        if !self.delivered.is_empty() {
            any = true;
            let mut delivered = std::mem::take(&mut self.delivered);
            for token in delivered.drain(..) {
                self.core.feed(Event::Delivered { token });
            }
            self.delivered = delivered;
            self.perform();
        }
        any
    }

    /// Do what the engine asked for, and what it asks for in consequence. Bounded by the programs in
    /// progress: every action either moves a lane forward or ends something.
    fn perform(&mut self) {
        loop {
            self.perform_actions();
            match self.crew.as_mut().and_then(Crew::next) {
                Some(task) => self.obey(task),
                None => return,
            }
        }
    }

    /// What the keeper wants done.
    fn obey(&mut self, task: Task) {
        match task {
            Task::Post(post, memory) => {
                self.core.memory.enter(post.op, memory);
                if !self.frozen {
                    self.core.feed(Event::Post(Box::new(post)));
                }
            }
            Task::Over(completion, outcome) => {
                self.over(&completion, outcome);
            }
        }
    }

    fn perform_actions(&mut self) {
        while !self.core.actions.is_empty() {
            let mut batch = std::mem::take(&mut self.batch);
            std::mem::swap(&mut batch, &mut self.core.actions);
            for action in batch.drain(..) {
                self.perform_one(action);
            }
            self.batch = batch;
        }
        for (to, receipt) in self.core.receipts.drain(..) {
            if let Some(Link::Shm(link)) = &mut self.links[to.index()] {
                link.send_receipt(receipt);
            }
        }
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::Send { to, token, urgency, header, payload } => {
                if let (Some(trace), Some(token)) = (&mut self.core.trace, token) {
                    trace.sending(to, token, &header);
                }
                if token.is_some() {
                    self.core.watching.sending(to, header.key.name, header.len);
                }
                let now = self.core.now();
                if let (Some(counting), Some(token)) = (&mut self.core.counting, token) {
                    counting.sending(now, to, token, &header);
                }
                match (&mut self.links[to.index()], payload) {
                    (None, _) => {}
                    (Some(Link::Tcp { connections, next }), Payload::Memory(loc)) => {
                        *next = (*next + 1) % connections.len();
                        let memory = self.core.memory.read(loc);
                        connections[*next].send(header, urgency, memory, token);
                    }
                    (Some(Link::Tcp { connections, .. }), Payload::Inline(bytes)) => {
                        connections[0].send_control(header, bytes);
                    }
                    (Some(Link::Shm(link)), Payload::Memory(loc)) => {
                        let memory = &self.core.memory;
                        let copying = memory.copying(loc);
                        link.send(header, urgency, memory.read(loc), loc, copying, token);
                    }
                    (Some(Link::Shm(link)), Payload::Inline(bytes)) => {
                        link.send_control(header, bytes);
                    }
                }
            }
            Action::Expect { from, header, into } => {
                if let (Some(Link::Shm(link)), Loc::Out(op, _)) =
                    (&mut self.links[from.index()], into)
                {
                    let place = op.0 as usize;
                    if self.announced.len() <= place {
                        self.announced.resize(place + 1, None);
                    }
                    self.announced[place] = Some(header.key);
                    link.announce(header, self.core.memory.read(into));
                }
            }
            Action::Place { .. } => unreachable!("taken where the frame arrived"),
            Action::Work { token, source, with, into, elements, recipe } => {
                let bytes = elements * recipe.dtype.size() as u64;
                let begin = self.core.trace.as_ref().and_then(EngineSource::begin);
                let memory = &mut self.core.memory;
                let into = memory.write(into, bytes);
                let (source, with) = (memory.read(source), with.map(|with| memory.read(with)));
                // SAFETY: the engine names places of that many elements that belong to one operation.
                unsafe { memory::combine(recipe, into, source, with, elements as usize) };
                if let (Some(trace), Some(begin)) = (&mut self.core.trace, begin) {
                    trace.reduced(begin, bytes, self.core.engine.part_of(token));
                }
                self.core.feed(Event::Worked { token });
            }
            Action::Free(buf) => self.core.free(buf),
            Action::Complete(op) => self.finish(op, Ok(())),
            Action::Fail(op, error) => self.withdraw(op, error),
            Action::Close { peer, reason } => self.lose(peer, End::Broken(reason)),
            Action::Report(report) => (self.report)(self.core.engine.rank(), &report),
        }
    }

    /// An operation failed: it ends once no peer can write its memory any more.
    fn withdraw(&mut self, op: OpId, error: Arc<OpError>) {
        let key = self.announced.get_mut(op.0 as usize).and_then(Option::take);
        let mut peers = Vec::new();
        if let Some(key) = key {
            for (index, link) in self.links.iter_mut().enumerate() {
                if let Some(Link::Shm(link)) = link
                    && link.withdraw(key)
                {
                    peers.push((Rank(index as u32), key));
                }
            }
        }
        if peers.is_empty() {
            return self.finish(op, Err(error));
        }
        self.withdrawing.push(Withdrawing { op, error, peers });
    }

    /// See who has confirmed or gone, and let operations end that waited for them.
    fn settle_withdrawals(&mut self) {
        if self.withdrawing.is_empty() {
            return;
        }
        let mut withdrawing = std::mem::take(&mut self.withdrawing);
        for waiting in &mut withdrawing {
            waiting.peers.retain(|(peer, key)| match &mut self.links[peer.index()] {
                Some(Link::Shm(link)) => {
                    let confirmed = link.withdrawn.iter().position(|done| done == key);
                    confirmed.map(|at| link.withdrawn.swap_remove(at)).is_none()
                }
                _ => false,
            });
        }
        for waiting in withdrawing {
            if waiting.peers.is_empty() {
                self.finish(waiting.op, Err(waiting.error));
            } else {
                self.withdrawing.push(waiting);
            }
        }
    }

    fn finish(&mut self, op: OpId, outcome: Result<(), Arc<OpError>>) {
        self.core.memory.leave(op);
        if let Some(crew) = &mut self.crew {
            return crew.over(op, outcome);
        }
        if let Some(trace) = &mut self.core.trace {
            trace.over(op, outcome.is_ok());
        }
        self.free_ops.push(op);
        let completion = self.completions[op.0 as usize].take();
        self.over(&completion.expect("posted with a completion"), outcome);
    }

    /// An operation of the caller's ended.
    fn over(&mut self, completion: &Completion, outcome: Outcome) {
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.core.counting.iter().for_each(Counting::idle);
        }
        completion.finish(outcome);
    }

    /// In a job that is not elastic: the coordinator has given up a worker. If that is this one, it has lost all others.
    pub(crate) fn abandon(&mut self, rank: Rank, reason: &str) {
        self.core.look_at_clock();
        let mine = rank == self.core.engine.rank();
        let reason = match mine {
            false => reason.to_string(),
            true => format!("the job ends without this worker, because {reason}"),
        };
        for peer in (0..self.links.len()).filter(|peer| mine || *peer == rank.index()) {
            self.lose(Rank(peer as u32), End::Broken(reason.clone()));
        }
        self.perform();
        self.flush();
    }

    fn lose(&mut self, peer: Rank, end: End) {
        match self.links[peer.index()].take() {
            None => return,
            Some(Link::Tcp { .. }) => {}
            Some(Link::Shm(mut link)) => {
                link.take_back(&mut self.copies);
                self.departed.push(link.segment());
            }
        }
        if let Some(crew) = &self.crew {
            // Who left in good order is needed by nobody. Whoever is lost is missed by all: nothing more comes of this view.
            if let End::Broken(_) = end {
                self.frozen = true;
                crew.tell_lost(self.core.engine.view(), peer);
            }
            return;
        }
        self.core.feed(match end {
            End::Left => Event::PeerLeft { peer },
            End::Broken(reason) => Event::PeerLost { peer, reason },
        });
    }

    /// Whether something waits to go out that only a turn can move.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.frozen
            && self.links.iter().flatten().any(|link| match link {
                Link::Tcp { connections, .. } => connections.iter().any(TcpLink::wants_to_write),
                Link::Shm(link) => link.wants_to_write(),
            })
    }

    /// Before sleeping: peers must ring from now on. False if something has come meanwhile.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        // Nobody may sleep on what it could send: others would wait for it, and it for them.
        self.copies.unbounded = true;
        let sent = self.flush();
        self.copies.unbounded = false;
        if sent {
            return false;
        }
        self.asleep.fall_asleep();
        let waiting = self
            .links
            .iter()
            .flatten()
            .any(|link| matches!(link, Link::Shm(link) if link.has_record()));
        if waiting {
            self.asleep.wake();
        }
        // After sleep the bells are worth a look.
        self.idle_turns = 0;
        !waiting
    }

    pub(crate) fn wake(&self) {
        self.asleep.wake();
    }

    /// What to poll, and until when at most.
    pub(crate) fn interests(&mut self, fds: &mut Vec<libc::pollfd>) -> Option<Duration> {
        self.schedule_tick();
        if self.frozen {
            return Some(FROZEN_NAP);
        }
        let [sending_waits, receiving_waits] = self.lines_are_busy();
        for link in self.links.iter().flatten() {
            // What waits for a line does not wait for the kernel.
            let (connections, reading, writing) = match link {
                Link::Tcp { connections, .. } => {
                    (&connections[..], receiving_waits.is_none(), sending_waits.is_none())
                }
                Link::Shm(link) => (std::slice::from_ref(&link.bell), true, true),
            };
            for connection in connections {
                let writing = writing && connection.wants_to_write();
                let reading = if reading { libc::POLLIN } else { 0 };
                let events = reading | if writing { libc::POLLOUT } else { 0 };
                fds.push(libc::pollfd { fd: connection.fd(), events, revents: 0 });
            }
        }
        let tick =
            (self.next_tick != Time(u64::MAX)).then(|| self.next_tick.since(self.core.now()));
        [tick, sending_waits, receiving_waits].into_iter().flatten().min()
    }

    /// Leave in good order: say goodbye and let the last frames go.
    pub(crate) fn farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        let key = OpKey { name: 0, uses: 0, view: ViewVersion(0) };
        let goodbye = Header::control(Kind::Goodbye, key);
        for link in self.links.iter_mut().flatten() {
            match link {
                Link::Tcp { connections, .. } => connections
                    .iter_mut()
                    .for_each(|connection| connection.send_control(goodbye, Box::default())),
                Link::Shm(link) => link.send_control(goodbye, Box::default()),
            }
        }
        while self.wants_to_write() && Instant::now() < deadline {
            if !self.flush() {
                // A full ring or socket: somebody has to read before we can write.
                self.turn();
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        for link in self.links.iter_mut().flatten() {
            match link {
                Link::Tcp { connections, .. } => {
                    connections.iter_mut().for_each(|connection| connection.close(deadline));
                }
                Link::Shm(link) => link.bell.close(deadline),
            }
        }
    }
}

/// A turn of all connections to a peer, of so many bytes at most: how many it was. It has left when it has left on each of them.
fn receive_all(
    connections: &mut Vec<TcpLink>,
    from: Rank,
    core: &mut Core,
    most: usize,
) -> Result<usize, End> {
    let mut bytes = 0;
    let mut index = 0;
    while index < connections.len() && bytes < most {
        match connections[index].receive(from, core, most - bytes) {
            Ok(received) => {
                bytes += received;
                index += 1;
            }
            Err(End::Left) => drop(connections.remove(index)),
            Err(end) => return Err(end),
        }
    }
    if connections.is_empty() { Err(End::Left) } else { Ok(bytes) }
}
