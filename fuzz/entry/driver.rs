//! A model of what stands between an engine and the world. It does what the real driver does: actions wait in
//! a queue while further events are fed, a placement jumps that queue, a peer is closed when its turn in
//! the queue comes. And it checks every name of memory that the engine uses.

use super::{script::Script, tensors::Tensor};
use paceline_job::{Rank, Time, View};
use paceline_sync::{
    engine::Engine,
    event::{Action, BufId, Event, Loc, OpId, Payload, Placement, Work},
    frame::{Header, Kind},
    slab::Key,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// A frame between two workers.
#[derive(Clone, Debug)]
pub struct Frame {
    pub from: Rank,
    pub to: Rank,
    pub header: Header,
    pub payload: Box<[u8]>,
}

/// A frame whose bytes are under way into the place they were given.
#[derive(Debug)]
pub struct Placed {
    token: Key,
    pub from: Rank,
    placement: Placement,
}

/// What stands between an engine and the world.
pub struct Driver {
    pub engine: Engine,
    pub late: bool,
    queue: VecDeque<Action>,
    pub tensors: BTreeMap<u32, Tensor>,
    /// Bytes of each piece of scratch in use.
    scratch: BTreeMap<u32, u64>,
    /// Of the late worker: who sent what it keeps.
    unasked: BTreeMap<u32, (Rank, u64)>,
    sends: Vec<(Key, Rank, Loc, u64)>,
    pub placed: Vec<Placed>,
    works: Vec<(Work, Vec<Loc>)>,
    pub gone: Vec<bool>,
    /// How many of them left in good order.
    pub left: usize,
}

impl Driver {
    pub fn new(rank: usize, view: Arc<View>, late: bool) -> Driver {
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

    pub fn feed(&mut self, now: Time, event: Event) {
        let mut actions = Vec::new();
        self.engine.handle(now, event, &mut actions);
        self.queue.extend(actions);
    }

    /// What the real driver's links do with a frame.
    pub fn receive(&mut self, now: Time, frame: Frame) {
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
    pub fn perform(&mut self, now: Time, wire: &mut Vec<Frame>) {
        while let Some(action) = self.queue.pop_front() {
            match action {
                Action::Send { to, token, header, payload, .. } => {
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

    pub fn lose(&mut self, now: Time, peer: Rank, reason: String) {
        if self.gone[peer.index()] {
            return;
        }
        self.gone[peer.index()] = true;
        self.placed.retain(|placed| placed.from != peer);
        self.sends.retain(|send| send.1 != peer);
        self.feed(now, Event::PeerLost { peer, reason });
    }

    pub fn leave(&mut self, now: Time, peer: Rank) {
        self.left += 1;
        self.gone[peer.index()] = true;
        self.sends.retain(|send| send.1 != peer);
        self.feed(now, Event::PeerLeft { peer });
    }

    /// One thing that is under way is done.
    pub fn work_comes_back(&mut self, now: Time, script: &mut Script<'_>) {
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

    pub fn all_work_comes_back(&mut self, now: Time) {
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
    pub fn check_unasked(&self) {
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
