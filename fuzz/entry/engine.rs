//! The engines of a small job, driven by bytes: posts, frames that arrive in any order, late, twice, under
//! another sender's name or with altered headers, workers that vanish, and time. Whatever the bytes say, no
//! engine may panic, name memory that it does not have, keep more than it granted, end an operation
//! twice, or keep anything once all peers are gone.
//!
//! The model of a driver here does what the real one does: actions wait in a queue while further events are
//! fed, a placement jumps that queue, a peer is closed when its turn in the queue comes.

#[path = "script.rs"]
mod script;
#[path = "tensors.rs"]
mod tensors;

use paceline_job::{Rank, Settings, StrategyChoice, Time, View, ViewVersion};
use paceline_sync::{
    engine::{Engine, Load},
    event::{Action, BufId, Event, Loc, OpId, Payload, Placement, Work},
    frame::{Header, Kind, OpKey},
    slab::Key,
    strategy,
};
use script::Script;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tensors::Tensor;

/// Longer scripts add length, not depth.
const LONGEST_SCRIPT: usize = 2048;

/// Frames under way at once; beyond it nothing is sent twice any more.
const WIRE_FRAMES: usize = 512;

/// Run one script.
pub fn run(bytes: &[u8]) {
    let mut world = World::new(Script::new(bytes, LONGEST_SCRIPT));
    while !world.script.is_over() {
        world.step();
    }
    world.end();
}

/// A frame between two workers.
#[derive(Clone, Debug)]
struct Frame {
    from: Rank,
    to: Rank,
    header: Header,
    payload: Box<[u8]>,
}

struct World<'a> {
    script: Script<'a>,
    drivers: Vec<Driver>,
    wire: Vec<Frame>,
    now: Time,
}

impl<'a> World<'a> {
    fn new(mut script: Script<'a>) -> World<'a> {
        let size = 2 + script.below(4);
        let mut names: Vec<&str> = strategy::all().iter().map(|strategy| strategy.name()).collect();
        names.push(StrategyChoice::AUTO);
        let settings = Settings {
            strategy: StrategyChoice(script.pick(&names).to_string()),
            partition: paceline_job::ByteSize(64 << script.below(3)),
            credit: paceline_job::ByteSize(64 << script.below(6)),
            eager: paceline_job::ByteSize(*script.pick(&[0, 64, 300, 4096])),
            stall_report: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
        };
        let hosts =
            (0..size).map(|rank| format!("host {}", rank / (1 + script.below(3)))).collect();
        let view = Arc::new(View::on_hosts(hosts, settings));
        // A worker that never posts: all it keeps is what others sent unasked.
        let late = script.below(2 * size);
        let drivers = (0..size).map(|rank| Driver::new(rank, view.clone(), rank == late)).collect();
        World { script, drivers, wire: Vec::new(), now: Time::ZERO }
    }

    fn step(&mut self) {
        let at = self.script.below(self.drivers.len());
        let peer = self.script.below(self.drivers.len());
        match self.script.byte() % 32 {
            0 | 1 => self.post(at),
            2 | 3 => {
                let name = self.script.below(tensors::NAMES);
                (0..self.drivers.len()).for_each(|at| self.post_named(at, name));
            }
            4..=11 => {
                if let Some(frame) = self.take_frame() {
                    self.deliver(frame);
                }
            }
            12 => {
                if let Some(mut frame) = self.take_frame() {
                    self.spoil(&mut frame);
                    self.deliver(frame);
                }
            }
            13 => {
                if self.wire.len() < WIRE_FRAMES && !self.wire.is_empty() {
                    let index = self.script.below(self.wire.len());
                    self.wire.push(self.wire[index].clone());
                }
            }
            14 => self.invent(at, peer),
            15..=21 => self.drivers[at].work_comes_back(self.now, &mut self.script),
            22 | 23 => self.drivers[at].all_work_comes_back(self.now),
            24 => self.drivers[at].perform(self.now, &mut self.wire),
            25..=28 => self.flow(),
            29 => {
                self.now = self.now.after(Duration::from_secs(u64::from(self.script.byte())));
                self.drivers[at].feed(self.now, Event::Tick);
            }
            30 if self.script.once_in(4) => self.lose(at, peer),
            31 if self.script.once_in(4) => self.change_view(),
            _ => {}
        }
        // Most turns of a real driver end with its actions performed.
        if !self.script.once_in(4) {
            self.drivers[at].perform(self.now, &mut self.wire);
        }
    }

    fn post(&mut self, at: usize) {
        let name = self.script.below(tensors::NAMES);
        self.post_named(at, name);
    }

    fn post_named(&mut self, at: usize, name: usize) {
        let size = self.drivers.len() as u32;
        let driver = &mut self.drivers[at];
        if driver.late {
            return;
        }
        let op =
            OpId((0..).find(|id| !driver.tensors.contains_key(id)).expect("ids do not run out"));
        let (post, tensor) = tensors::draw(&mut self.script, name, op, Rank(at as u32), size);
        driver.tensors.insert(op.0, tensor);
        driver.feed(self.now, Event::Post(Box::new(post)));
    }

    fn take_frame(&mut self) -> Option<Frame> {
        if self.wire.is_empty() {
            return None;
        }
        let index = self.script.below(self.wire.len());
        Some(self.wire.swap_remove(index))
    }

    fn deliver(&mut self, frame: Frame) {
        let driver = &mut self.drivers[frame.to.index()];
        if frame.from == frame.to || driver.gone[frame.from.index()] {
            return;
        }
        driver.receive(self.now, frame);
        if driver.late {
            driver.check_unasked();
        }
    }

    /// Alter one thing or another.
    fn spoil(&mut self, frame: &mut Frame) {
        let script = &mut self.script;
        let known: Vec<OpKey> = self.wire.iter().map(|frame| frame.header.key).collect();
        for _ in 0..1 + script.below(2) {
            let header = &mut frame.header;
            match script.byte() % 16 {
                0 => header.kind = any_kind(script),
                1 => header.charged ^= true,
                2 => header.dtype = *script.pick(&paceline_job::Dtype::ALL),
                3 => header.reduce = *script.pick(&paceline_job::ReduceOp::ALL),
                4 if !known.is_empty() => header.key = *script.pick(&known),
                5 => header.key.name = script.near(header.key.name),
                6 => header.key.uses = script.near(u64::from(header.key.uses)) as u32,
                7 => {
                    header.key.view = ViewVersion(script.near(u64::from(header.key.view.0)) as u32)
                }
                8 => header.chunk = script.near(u64::from(header.chunk)) as u32,
                9 => header.slot.lane = script.near(u64::from(header.slot.lane)) as u32,
                10 => header.slot.pc = script.near(u64::from(header.slot.pc)) as u32,
                11 => header.len = script.near(u64::from(header.len)) as u32,
                12 => header.signature = script.near(u64::from(header.signature)) as u32,
                13 => header.elements = script.near(header.elements),
                14 => frame.from = Rank(script.below(self.drivers.len()) as u32),
                _ => frame.payload = script.bytes(64).into(),
            }
        }
        if frame.header.kind != Kind::Data && frame.header.kind != Kind::Grant {
            frame.header.len = frame.payload.len() as u32;
        }
    }

    /// A frame that nobody sent.
    fn invent(&mut self, at: usize, peer: usize) {
        let mut bytes = [0; paceline_sync::frame::HEADER_BYTES];
        bytes.iter_mut().for_each(|byte| *byte = self.script.byte());
        bytes[0] %= 11;
        bytes[1] %= 2;
        bytes[2] %= 9;
        bytes[3] %= 5;
        let Ok(header) = Header::decode(&bytes) else { return };
        let payload = self.script.bytes(16).into();
        let (from, to) = (Rank(peer as u32), Rank(at as u32));
        let mut frame = Frame { from, to, header, payload };
        if header.kind != Kind::Data && header.kind != Kind::Grant {
            frame.header.len = frame.payload.len() as u32;
        }
        self.deliver(frame);
    }

    fn lose(&mut self, at: usize, peer: usize) {
        let (from, to) = (Rank(peer as u32), Rank(at as u32));
        if at == peer || self.drivers[at].gone[peer] {
            return;
        }
        let coming = self.wire.iter().any(|frame| (frame.from, frame.to) == (from, to));
        let driver = &mut self.drivers[at];
        if self.script.once_in(2)
            && !coming
            && driver.placed.iter().all(|placed| placed.from != from)
        {
            driver.leave(self.now, from);
        } else {
            driver.lose(self.now, from, "the test says so".to_string());
        }
    }

    /// Every worker says so between the same two operations of its own, wherever the others are.
    fn change_view(&mut self) {
        let partition = paceline_job::ByteSize(64 << self.script.below(4));
        let credit = paceline_job::ByteSize(64 << self.script.below(6));
        for driver in &mut self.drivers {
            let mut view = View::clone(driver.engine.view());
            view.version = ViewVersion(view.version.0 + 1);
            view.settings.partition = partition;
            view.settings.credit = credit;
            driver.feed(self.now, Event::View(Arc::new(view)));
        }
    }

    /// For a while everything goes well.
    fn flow(&mut self) {
        for _ in 0..self.script.below(64) {
            for driver in &mut self.drivers {
                driver.perform(self.now, &mut self.wire);
                driver.all_work_comes_back(self.now);
            }
            if !self.wire.is_empty() {
                let frame = self.wire.remove(0);
                self.deliver(frame);
            }
        }
    }

    /// Everything under way comes back, all peers are lost: nothing may be left.
    fn end(&mut self) {
        for driver in &mut self.drivers {
            driver.perform(self.now, &mut self.wire);
            driver.all_work_comes_back(self.now);
            for peer in 0..driver.gone.len() {
                let rank = driver.engine.rank();
                if peer != rank.index() && !driver.gone[peer] {
                    driver.lose(self.now, Rank(peer as u32), "the end".to_string());
                }
            }
            // Each round ends at least one instruction of a program that needs nobody else.
            for _ in 0..1000 {
                driver.perform(self.now, &mut self.wire);
                driver.all_work_comes_back(self.now);
            }
            let Load { operations, in_transport_bytes, scratch_bytes, .. } = driver.engine.load();
            assert!(driver.tensors.is_empty(), "operations that never end: {:?}", driver.tensors);
            assert_eq!((operations, in_transport_bytes), (0, 0));
            // What a worker that left had sent for tensors that may still be posted is kept for them.
            let kept = driver.left as u64 * driver.engine.view().settings.eager.0;
            assert!(scratch_bytes <= kept, "{scratch_bytes} bytes of scratch are never freed");
        }
    }
}

fn any_kind(script: &mut Script<'_>) -> Kind {
    use Kind::*;
    *script
        .pick(&[Data, Request, Notice, Grant, Abort, Lost, StallQuery, StallReply, Wake, Goodbye])
}

/// A frame whose bytes are under way into the place they were given.
#[derive(Debug)]
struct Placed {
    token: Key,
    from: Rank,
    placement: Placement,
}

/// What stands between an engine and the world.
struct Driver {
    engine: Engine,
    late: bool,
    queue: VecDeque<Action>,
    tensors: BTreeMap<u32, Tensor>,
    /// Bytes of each piece of scratch in use.
    scratch: BTreeMap<u32, u64>,
    /// Of the late worker: who sent what it keeps.
    unasked: BTreeMap<u32, (Rank, u64)>,
    sends: Vec<(Key, Rank, Loc, u64)>,
    placed: Vec<Placed>,
    works: Vec<(Work, Vec<Loc>)>,
    gone: Vec<bool>,
    /// How many of them left in good order.
    left: usize,
}

impl Driver {
    fn new(rank: usize, view: Arc<View>, late: bool) -> Driver {
        let gone = vec![false; view.size()];
        Driver {
            engine: Engine::new(Rank(rank as u32), view).expect("the strategy is one of ours"),
            late,
            queue: VecDeque::new(),
            tensors: BTreeMap::new(),
            scratch: BTreeMap::new(),
            unasked: BTreeMap::new(),
            sends: Vec::new(),
            placed: Vec::new(),
            works: Vec::new(),
            gone,
            left: 0,
        }
    }

    fn feed(&mut self, now: Time, event: Event) {
        let mut actions = Vec::new();
        self.engine.handle(now, event, &mut actions);
        self.queue.extend(actions);
    }

    /// What the real driver's links do with a frame.
    fn receive(&mut self, now: Time, frame: Frame) {
        let Frame { from, header, payload, .. } = frame;
        let header = match Header::decode(&header.encode()) {
            Ok(header) if header.kind != Kind::Data || header.len > 0 => header,
            Ok(_) => return self.lose(now, from, "data without data".to_string()),
            Err(error) => return self.lose(now, from, error.to_string()),
        };
        if header.kind != Kind::Data {
            return self.feed(now, Event::Control { from, header, payload });
        }
        let mut actions = Vec::new();
        self.engine.handle(now, Event::Incoming { from, header }, &mut actions);
        let places = actions.iter().filter(|action| matches!(action, Action::Place { .. }));
        assert_eq!(places.count(), 1, "every data frame has one place");
        self.queue.extend(actions);
        // A placement jumps the queue, and what was freed is freed before.
        self.queue.retain(|action| match action {
            Action::Free(buf) => {
                free(&mut self.scratch, &mut self.unasked, *buf);
                false
            }
            _ => true,
        });
        let at = self.queue.iter().position(|action| matches!(action, Action::Place { .. }));
        let place = self.queue.remove(at.expect("counted above"));
        let Some(Action::Place { token, placement }) = place else { unreachable!("found by kind") };
        self.place(from, token, u64::from(header.len), placement);
    }

    fn place(&mut self, from: Rank, token: Option<Key>, bytes: u64, placement: Placement) {
        match placement {
            Placement::Discard => {
                return assert_eq!(token, None, "nobody hears of discarded frames");
            }
            Placement::Straight(loc) => self.write(loc, bytes),
            Placement::Hold(buf) | Placement::Stow(buf) => {
                self.write(Loc::Buf(buf, 0), bytes);
                self.unasked.insert(buf.0, (from, bytes));
            }
            Placement::Combine { landing, with, into, .. } => {
                self.write(Loc::Buf(landing, 0), bytes);
                self.read(with, bytes);
                self.write(into, bytes);
            }
        }
        let token = token.expect("a placed frame has a token");
        self.placed.push(Placed { token, from, placement });
    }

    /// Everything in the queue, and what follows from it.
    fn perform(&mut self, now: Time, wire: &mut Vec<Frame>) {
        while let Some(action) = self.queue.pop_front() {
            match action {
                Action::Send { to, token, header, payload } => {
                    assert!(to != self.engine.rank() && to.index() < self.gone.len());
                    if self.gone[to.index()] {
                        continue;
                    }
                    assert_eq!(
                        Header::decode(&header.encode()),
                        Ok(header),
                        "a frame that can be read"
                    );
                    let payload = match payload {
                        Payload::Inline(bytes) => {
                            assert!(token.is_none() && bytes.len() == header.payload_bytes());
                            bytes
                        }
                        Payload::Memory(loc) => {
                            let bytes = header.payload_bytes() as u64;
                            self.read(loc, bytes);
                            self.sends.push((token.expect("data has a token"), to, loc, bytes));
                            Box::default()
                        }
                    };
                    let from = self.engine.rank();
                    wire.push(Frame { from, to, header, payload });
                }
                Action::Place { .. } => unreachable!("taken where the frame arrived"),
                Action::Expect { header, into, .. } => self.write(into, u64::from(header.len)),
                Action::Work { token, source, with, into, elements, recipe } => {
                    let bytes = elements * recipe.dtype.size() as u64;
                    self.read(source, bytes);
                    with.iter().for_each(|with| self.read(*with, bytes));
                    self.write(into, bytes);
                    self.works.push((
                        token,
                        [Some(source), with, Some(into)].into_iter().flatten().collect(),
                    ));
                }
                Action::Free(buf) => free(&mut self.scratch, &mut self.unasked, buf),
                Action::Complete(op) | Action::Fail(op, _) => self.end(op),
                Action::Close { peer, reason } => self.lose(now, peer, reason),
                Action::Report(report) => drop(report.to_string()),
            }
        }
    }

    fn end(&mut self, op: OpId) {
        assert!(self.tensors.remove(&op.0).is_some(), "{op:?} ended twice");
        let named = |loc: &Loc| matches!(loc, Loc::Own(id, _) | Loc::Out(id, _) if *id == op);
        let placed = self.placed.iter().flat_map(|placed| match placed.placement {
            Placement::Straight(loc) => vec![loc],
            Placement::Combine { with, into, .. } => vec![with, into],
            _ => Vec::new(),
        });
        let sends = self.sends.iter().map(|send| send.2);
        let works = self.works.iter().flat_map(|work| work.1.clone());
        let mut in_hand = placed.chain(sends).chain(works);
        assert!(!in_hand.any(|loc| named(&loc)), "memory of {op:?} went back while it was in use");
    }

    fn lose(&mut self, now: Time, peer: Rank, reason: String) {
        if self.gone[peer.index()] {
            return;
        }
        self.gone[peer.index()] = true;
        self.placed.retain(|placed| placed.from != peer);
        self.sends.retain(|send| send.1 != peer);
        self.feed(now, Event::PeerLost { peer, reason });
    }

    fn leave(&mut self, now: Time, peer: Rank) {
        self.left += 1;
        self.gone[peer.index()] = true;
        self.sends.retain(|send| send.1 != peer);
        self.feed(now, Event::PeerLeft { peer });
    }

    /// One thing that is under way is done.
    fn work_comes_back(&mut self, now: Time, script: &mut Script<'_>) {
        let (sends, placed) = (self.sends.len(), self.placed.len());
        let total = sends + placed + self.works.len();
        if total == 0 {
            return;
        }
        let chosen = script.below(total);
        self.comes_back(now, chosen);
    }

    fn comes_back(&mut self, now: Time, chosen: usize) {
        let (sends, placed) = (self.sends.len(), self.placed.len());
        let event = if chosen < sends {
            Event::Delivered { token: self.sends.swap_remove(chosen).0 }
        } else if chosen < sends + placed {
            Event::Arrived { token: self.placed.swap_remove(chosen - sends).token }
        } else {
            Event::Worked { token: self.works.swap_remove(chosen - sends - placed).0 }
        };
        self.feed(now, event);
    }

    fn all_work_comes_back(&mut self, now: Time) {
        for _ in 0..self.sends.len() + self.placed.len() + self.works.len() {
            if self.sends.len() + self.placed.len() + self.works.len() > 0 {
                self.comes_back(now, 0);
            }
        }
    }

    fn read(&self, loc: Loc, bytes: u64) {
        let room = match loc {
            Loc::Own(op, _) => self.tensor(op).input_bytes,
            Loc::Out(op, _) => self.tensor(op).output_bytes,
            Loc::Buf(buf, _) => {
                *self.scratch.get(&buf.0).expect("scratch is written before it is read")
            }
        };
        self.check(loc, bytes, room);
    }

    fn write(&mut self, loc: Loc, bytes: u64) {
        let room = match loc {
            Loc::Own(..) => panic!("an engine never writes a caller's input"),
            Loc::Out(op, _) => self.tensor(op).output_bytes,
            // It is as long as its first use needs.
            Loc::Buf(buf, at) => *self.scratch.entry(buf.0).or_insert(at + bytes),
        };
        self.check(loc, bytes, room);
    }

    fn check(&self, loc: Loc, bytes: u64, room: u64) {
        let (Loc::Own(_, at) | Loc::Out(_, at) | Loc::Buf(_, at)) = loc;
        let inside = at.checked_add(bytes).is_some_and(|end| end <= room);
        assert!(inside, "{bytes} bytes at {loc:?}, which has {room}");
    }

    fn tensor(&self, op: OpId) -> &Tensor {
        self.tensors.get(&op.0).expect("an engine names operations in progress")
    }

    /// Of a worker that has posted nothing.
    fn check_unasked(&self) {
        let eager = self.engine.view().settings.eager.0;
        for peer in (0..self.gone.len() as u32).map(Rank) {
            let kept = self.unasked.values().filter(|(from, _)| *from == peer);
            let bytes: u64 = kept.map(|(_, bytes)| bytes).sum();
            assert!(
                bytes <= eager,
                "{bytes} bytes are kept for worker {peer}, which was granted {eager}"
            );
        }
    }
}

fn free(scratch: &mut BTreeMap<u32, u64>, unasked: &mut BTreeMap<u32, (Rank, u64)>, buf: BufId) {
    scratch.remove(&buf.0);
    unasked.remove(&buf.0);
}
