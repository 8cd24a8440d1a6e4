//! Somebody else's traffic: plain TCP between two hosts, both ways, that takes a given rate of the links on its way. It
//! is spread over many connections, each of which asks for little: where connections share a link evenly, it gets what it asks for whatever
//! else is there, as long as nobody else comes with as many. What it got is counted.

use crate::{
    error::{Error, Result},
    measure::Flow,
    testbed::Testbed,
};
use paceline_job::Rate;
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// In each direction.
const CONNECTIONS: usize = 32;
/// Handed over at once: four packets full of payload.
const PIECE_BYTES: usize = 4 * 1448;
/// Of what shapers count, without their headers.
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// How often it is looked what is due: a piece of 1 Mbit/s is, every 46 ms.
const TICK: Duration = Duration::from_millis(5);
/// What is due and was not taken is not made up for, beyond so many pieces.
const MOST_DUE: f64 = 2.0;
/// Nor is more than this on a connection's way: where it gets less than it asks for, nothing waits behind it.
const MOST_UNDERWAY: u64 = 64 << 10;

/// Traffic that goes on until this is dropped.
#[derive(Debug)]
pub struct Background {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Payload that is asked for, in bytes a second, of both directions together.
    asked: f64,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    carried: AtomicU64,
}

/// One connection, and how far it is.
struct Lane {
    sender: TcpStream,
    receiver: TcpStream,
    due: f64,
    underway: u64,
}

impl Testbed {
    /// Begin to load the way between two hosts with this rate, headers included, in both directions.
    ///
    /// # Errors
    /// If a host does not exist, or cannot be connected to.
    pub fn load(&self, between: (usize, usize), rate: Rate) -> Result<Background> {
        let (here, there) = between;
        let directions = [Flow { from: here, to: there }, Flow { from: there, to: here }];
        let mut lanes = Vec::with_capacity(2 * CONNECTIONS);
        for number in 0..2 * CONNECTIONS {
            let (sender, receiver) = self.connect(directions[number % 2])?;
            let quiet = [&sender, &receiver].map(|stream| stream.set_nonblocking(true));
            quiet
                .into_iter()
                .chain([sender.set_nodelay(true)])
                .collect::<io::Result<()>>()
                .map_err(Error::doing(format!("load the way of host{here} and host{there}")))?;
            // They do not all begin at once.
            let due = number as f64 / (2 * CONNECTIONS) as f64 * PIECE_BYTES as f64;
            lanes.push(Lane { sender, receiver, due, underway: 0 });
        }
        let asked = 2.0 * PAYLOAD * rate.bytes_per_second();
        let shared = Arc::<Shared>::default();
        let mine = shared.clone();
        let each = asked / (2 * CONNECTIONS) as f64;
        let thread = thread::Builder::new()
            .name("background".to_string())
            .spawn(move || carry(&mut lanes, each, &mine))
            .map_err(Error::doing("start a thread".to_string()))?;
        Ok(Background { shared, thread: Some(thread), asked })
    }
}

impl Background {
    /// Payload that arrived so far, in both directions together.
    pub fn carried(&self) -> u64 {
        self.shared.carried.load(Ordering::Relaxed)
    }

    /// What share of what it asks for that is, if it arrived within so long.
    pub fn share(&self, bytes: u64, within: Duration) -> f64 {
        bytes as f64 / (self.asked * within.as_secs_f64())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say if it panicked.
            let _ = thread.join();
        }
    }
}

fn carry(lanes: &mut [Lane], each: f64, shared: &Shared) {
    let piece = [0x5a; PIECE_BYTES];
    let mut buffer = vec![0; MOST_UNDERWAY as usize];
    let mut last = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        thread::sleep(TICK);
        let now = Instant::now();
        let earned = each * (now - last).as_secs_f64();
        last = now;
        for lane in &mut *lanes {
            // A connection that fails carries nothing from then on, which the count shows.
            while let Ok(bytes @ 1..) = lane.receiver.read(&mut buffer) {
                lane.underway = lane.underway.saturating_sub(bytes as u64);
                shared.carried.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            lane.due = (lane.due + earned).min(MOST_DUE * PIECE_BYTES as f64);
            while lane.due >= PIECE_BYTES as f64 && lane.underway < MOST_UNDERWAY {
                let Ok(bytes) = lane.sender.write(&piece) else { break };
                lane.due -= bytes as f64;
                lane.underway += bytes as u64;
            }
        }
    }
}
