//! What the network really carries: plain TCP flows between hosts, their rate, their latency, and how
//! busy the processors were meanwhile. It changes nothing.

use crate::{
    error::{Error, Result},
    testbed::Testbed,
};
use serde::Serialize;
use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Bytes handed to the kernel at once: few calls, and still in the processor's cache.
const PIECE_BYTES: usize = 256 * 1024;
/// Before the window opens: the first burst passes, and the flows find their rates.
const WARM_UP: Duration = Duration::from_millis(500);
/// A connection that takes longer is not coming.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// One byte to the other host and back takes longer only if nothing is carried.
const ECHO_LIMIT: Duration = Duration::from_secs(10);
/// Exchanges timed for one latency, after as many that are not.
const ECHOES: usize = 50;
/// How long the processors are watched to tell whether the machine is idle.
const IDLE_WATCH: Duration = Duration::from_millis(500);

/// A stream of bytes from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Flow {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
}

/// What a flow carried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeasuredFlow {
    /// Between which hosts.
    #[serde(flatten)]
    pub flow: Flow,
    /// What the slowest link on its way is held to, headers included.
    pub nominal_mbit_per_second: f64,
    /// What arrived, headers left out: at best 95.6 % of nominal.
    pub mbit_per_second: f64,
}

/// What flows carried at the same time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// One for each flow, in the order asked.
    pub flows: Vec<MeasuredFlow>,
    /// Share of the machine's processor time that was not idle, 0 to 1.
    pub processors_busy: f64,
    /// How long the bytes were counted.
    pub seconds: f64,
}

impl Testbed {
    /// Send on all `flows` at once and count what arrives during `window`.
    ///
    /// # Errors
    /// If a host does not exist, or cannot be connected to.
    pub fn measure(&self, flows: &[Flow], window: Duration) -> Result<Throughput> {
        let connections: Vec<(TcpStream, TcpStream)> =
            flows.iter().map(|flow| self.connect(*flow)).collect::<Result<_>>()?;
        let counters: Vec<AtomicU64> = flows.iter().map(|_| AtomicU64::new(0)).collect();
        let counts = || counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect();
        let (before, after, busy, elapsed) = thread::scope(|scope| {
            for ((sender, receiver), counter) in connections.iter().zip(&counters) {
                scope.spawn(|| send_until_closed(sender));
                scope.spawn(|| count_until_closed(receiver, counter));
            }
            thread::sleep(WARM_UP);
            let before: Vec<u64> = counts();
            let processors = ProcessorTime::read();
            let start = Instant::now();
            thread::sleep(window);
            let elapsed = start.elapsed();
            let after: Vec<u64> = counts();
            let busy = ProcessorTime::read().busy_since(processors);
            for (sender, receiver) in &connections {
                // This is what ends the threads; a connection that is closed already ended them.
                let _ = sender.shutdown(Shutdown::Both);
                let _ = receiver.shutdown(Shutdown::Both);
            }
            (before, after, busy, elapsed)
        });
        let seconds = elapsed.as_secs_f64();
        let measured =
            flows.iter().zip(before.iter().zip(&after)).map(|(flow, (before, after))| {
                Ok(MeasuredFlow {
                    flow: *flow,
                    nominal_mbit_per_second: self.nominal_mbit(*flow)?,
                    mbit_per_second: (after - before) as f64 * 8e-6 / seconds,
                })
            });
        Ok(Throughput { flows: measured.collect::<Result<_>>()?, processors_busy: busy, seconds })
    }

    /// Half of the median time that one byte takes to the other host and back, over TCP.
    ///
    /// # Errors
    /// If a host does not exist, cannot be connected to, or does not answer.
    pub fn latency(&self, flow: Flow) -> Result<Duration> {
        let fail =
            || Error::doing(format!("exchange bytes of host{} and host{}", flow.from, flow.to));
        let (mut near, mut far) = self.connect(flow)?;
        for stream in [&near, &far] {
            stream
                .set_nodelay(true)
                .and_then(|()| stream.set_read_timeout(Some(ECHO_LIMIT)))
                .map_err(fail())?;
        }
        let mut times = thread::scope(|scope| -> io::Result<Vec<Duration>> {
            scope.spawn(move || {
                let mut byte = [0];
                // Ends with the near side: a read of nothing or an error.
                while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
            });
            let mut times = Vec::with_capacity(2 * ECHOES);
            let mut byte = [1];
            for _ in 0..2 * ECHOES {
                let start = Instant::now();
                near.write_all(&byte)?;
                near.read_exact(&mut byte)?;
                times.push(start.elapsed());
            }
            drop(near);
            Ok(times)
        })
        .map_err(fail())?
        .split_off(ECHOES);
        times.sort();
        Ok(times[ECHOES / 2] / 2)
    }

    /// What a flow's way is held to, in Mbit/s.
    pub(crate) fn nominal_mbit(&self, flow: Flow) -> Result<f64> {
        Ok(self.rate_between(flow.from, flow.to)?.bytes_per_second() * 8e-6)
    }

    /// Both ends of a connection: the sender's and the receiver's.
    pub(crate) fn connect(&self, flow: Flow) -> Result<(TcpStream, TcpStream)> {
        let Flow { from, to } = flow;
        let fail = || Error::doing(format!("connect host{from} to host{to}"));
        let listener =
            self.within(to, || TcpListener::bind((self.address(to), 0)).map_err(fail()))?;
        let address = listener.local_addr().map_err(fail())?;
        let sender = self
            .within(from, || TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(fail()))?;
        let receiver = accept(&listener, &sender).map_err(fail())?;
        Ok((sender, receiver))
    }
}

/// Accept the connection that `sender` made, within the limit.
fn accept(listener: &TcpListener, sender: &TcpStream) -> io::Result<TcpStream> {
    let expected: SocketAddr = sender.local_addr()?;
    let deadline = Instant::now() + CONNECT_LIMIT;
    listener.set_nonblocking(true)?;
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((receiver, address)) if address == expected => {
                receiver.set_nonblocking(false)?;
                return Ok(receiver);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn send_until_closed(mut stream: &TcpStream) {
    let piece = vec![0x5a; PIECE_BYTES];
    while stream.write_all(&piece).is_ok() {}
}

fn count_until_closed(mut stream: &TcpStream, counter: &AtomicU64) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What the processors did since the machine started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessorTime {
    idle: u64,
    total: u64,
}

/// Share of the machine's processor time that is not idle just now, 0 to 1. While nothing is sent it
/// should be near zero: what else runs takes part in what is measured.
pub(crate) fn processors_busy_now() -> f64 {
    let before = ProcessorTime::read();
    thread::sleep(IDLE_WATCH);
    ProcessorTime::read().busy_since(before)
}

impl ProcessorTime {
    /// Zero where the kernel does not tell.
    fn read() -> ProcessorTime {
        ProcessorTime::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line: user, nice, system, idle, waiting for disks, interrupts (two), stolen; guests are
    /// counted in the first two already.
    fn parse(text: &str) -> ProcessorTime {
        let first = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
        let numbers = first.unwrap_or_default().split_whitespace().take(8);
        let ticks: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        ProcessorTime { idle: ticks.iter().skip(3).take(2).sum(), total: ticks.iter().sum() }
    }

    fn busy_since(self, earlier: ProcessorTime) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        let idle = self.idle.saturating_sub(earlier.idle);
        if total == 0 { 0.0 } else { 1.0 - (idle as f64 / total as f64).min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_busy_when_they_neither_idle_nor_wait_for_disks() {
        let before = ProcessorTime::parse("cpu  10 0 10 60 20 0 0 0 0 0\ncpu0 1 2 3");
        assert_eq!(before, ProcessorTime { idle: 80, total: 100 });
        let after = ProcessorTime::parse("cpu  30 0 20 110 40 0 0 0 7 0\n");
        assert!((after.busy_since(before) - 0.3).abs() < 1e-9);
        assert_eq!(ProcessorTime::parse(""), ProcessorTime::default());
        assert_eq!(before.busy_since(before), 0.0);
    }
}
