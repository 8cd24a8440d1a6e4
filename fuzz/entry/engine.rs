//! The engines of a small job, driven by bytes: posts, frames that arrive in any order, late, twice, under
//! another sender's name or with altered headers, workers that vanish, and time. Whatever the bytes say, no
//! engine may panic, name memory that it does not have, keep more than it granted, end an operation
//! twice, or keep anything once all peers are gone.

#[path = "driver.rs"]
mod driver;
#[path = "script.rs"]
mod script;
#[path = "tensors.rs"]
mod tensors;

use driver::{Driver, Frame};
use paceline_job::{Rank, Settings, StrategyChoice, Time, View, ViewVersion};
use paceline_sync::{
    engine::Load,
    event::{Event, OpId},
    frame::{Header, Kind, OpKey},
    strategy,
};
use script::Script;
use std::{sync::Arc, time::Duration};

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

struct World<'a> {
    script: Script<'a>,
    drivers: Vec<Driver>,
    wire: Vec<Frame>,
    now: Time,
}

impl<'a> World<'a> {
    fn new(mut script: Script<'a>) -> World<'a> {
        let size = 2 + script.below(4);
        let strategies = strategy::all();
        let mut names: Vec<_> = strategies.iter().map(|strategy| strategy.name()).collect();
        names.push(StrategyChoice::AUTO.into());
        let settings = Settings {
            strategy: StrategyChoice(script.pick(&names).to_string()),
            partition: paceline_job::ByteSize(64 << script.below(3)),
            credit: paceline_job::ByteSize(64 << script.below(6)),
            eager: paceline_job::ByteSize(*script.pick(&[0, 64, 300, 4096])),
            stall_report: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            ..Settings::default()
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
            13 => self.send_again(),
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

    fn send_again(&mut self) {
        if self.wire.len() < WIRE_FRAMES && !self.wire.is_empty() {
            let index = self.script.below(self.wire.len());
            self.wire.push(self.wire[index].clone());
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
        bytes[0] %= 13;
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
    *script.pick(&[
        Data, Request, Notice, Grant, Abort, Lost, StallQuery, StallReply, Wake, Goodbye, Ended,
        Missed,
    ])
}
