//! What this machine can do at best, measured in the same run as the contenders: loopback TCP, copying, adding. The
//! best of a few tries counts, because a limit must be one. What follows from the rates is in [`super::bounds`].

use super::bounds::Rates;
use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use std::{
    hint::black_box,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

const TRIES: usize = 3;
/// One loopback try. Shorter ones mostly see the window open.
const LOOPBACK_TRY: Duration = Duration::from_millis(300);
/// One try of a computation.
const COMPUTE_TRY: Duration = Duration::from_millis(60);
/// Larger pieces fall out of the cache between write and read.
const WRITE_BYTES: usize = 256 << 10;
/// Out of every cache.
const LARGE_COPY_BYTES: usize = 64 << 20;
/// Additions work on pieces that are still in cache when they arrive.
const ADD_BYTES: usize = 512 << 10;
/// A loopback stream that stands still this long is broken.
const STALL: Duration = Duration::from_secs(5);

/// The machine's rates in bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Cores that threads may use.
    pub cores: usize,
    /// One way through loopback TCP, all cores busy as senders and receivers.
    pub loopback: f64,
    /// Copying 64 MiB on one thread.
    pub copy_one_thread: f64,
    /// Copying 64 MiB on each core, together.
    pub copy_all_cores: f64,
    /// Payload of f32 `a += b` in cache on each core, together.
    pub add_all_cores: f64,
}

impl Limits {
    /// Measures, for about two seconds.
    pub fn measure() -> Result<Limits> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok(Limits {
            cores,
            loopback: best(|| loopback_rate((cores / 2).max(1)))?,
            copy_one_thread: best(|| copy_rate(1, LARGE_COPY_BYTES))?,
            copy_all_cores: best(|| copy_rate(cores, LARGE_COPY_BYTES))?,
            add_all_cores: best(|| add_rate(cores))?,
        })
    }

    /// The rates that bound an all-reduce of `bytes` over `ranks`.
    pub fn rates(&self, ranks: u32, bytes: u64) -> Result<Rates> {
        // Source and destination of all cores together are as large as all ranks' values.
        let each = (u64::from(ranks) * bytes / (2 * self.cores as u64)).max(4096);
        let each = usize::try_from(each).unwrap_or(usize::MAX).min(LARGE_COPY_BYTES);
        let copy = best(|| copy_rate(self.cores, each))?;
        Ok(Rates { loopback: self.loopback, add: self.add_all_cores, memory: 2.0 * copy })
    }
}

fn best(measure: impl Fn() -> Result<f64>) -> Result<f64> {
    let rates = (0..TRIES).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    Ok(rates.into_iter().fold(0.0, f64::max))
}

/// Runs `work`, which says how many bytes it did, on each thread over and over; bytes a second in all.
fn rate_on<S>(
    threads: usize,
    prepare: impl Fn() -> S + Sync,
    work: impl Fn(&mut S) -> usize + Sync,
) -> Result<f64> {
    let start = Barrier::new(threads);
    let one = || {
        let mut state = prepare();
        // The first pass touches the pages.
        work(&mut state);
        start.wait();
        let begin = Instant::now();
        let mut bytes = 0;
        loop {
            // Enough between two looks at the clock for the looks not to count.
            for _ in 0..16 {
                bytes += work(&mut state);
                if bytes >= LARGE_COPY_BYTES {
                    break;
                }
            }
            let passed = begin.elapsed();
            if passed >= COMPUTE_TRY {
                return bytes as f64 / passed.as_secs_f64();
            }
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a measuring thread panicked")))
            .sum()
    })
}

fn copy_rate(threads: usize, bytes: usize) -> Result<f64> {
    rate_on(
        threads,
        || (vec![1_u8; bytes], vec![0_u8; bytes]),
        |(source, target)| {
            target.copy_from_slice(black_box(source));
            black_box(target);
            bytes
        },
    )
}

fn add_rate(threads: usize) -> Result<f64> {
    let elements = ADD_BYTES / size_of::<f32>();
    rate_on(
        threads,
        || (vec![0_f32; elements], vec![0_f32; elements]),
        |(source, target)| {
            add(black_box(target), black_box(source));
            ADD_BYTES
        },
    )
}

fn add(target: &mut [f32], source: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        return unsafe { add_with_avx2(target, source) };
    }
    add_plainly(target, source);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_with_avx2(target: &mut [f32], source: &[f32]) {
    add_plainly(target, source);
}

/// Inlined into its callers, so that the compiler vectorises it for what they allow.
#[inline(always)]
fn add_plainly(target: &mut [f32], source: &[f32]) {
    for (sum, value) in target.iter_mut().zip(source) {
        *sum += value;
    }
}

/// `pairs` senders and as many receivers at the same time; bytes a second received in all.
fn loopback_rate(pairs: usize) -> Result<f64> {
    thread::scope(|scope| {
        let mut receivers = Vec::new();
        for _ in 0..pairs {
            let listener =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
            let sender =
                TcpStream::connect(listener.local_addr()?).context("connect to loopback")?;
            let (receiver, _) = listener.accept().context("accept from loopback")?;
            for socket in [&sender, &receiver] {
                socket.set_read_timeout(Some(STALL))?;
                socket.set_write_timeout(Some(STALL))?;
                prefer_reno(socket);
            }
            scope.spawn(move || send(sender));
            receivers.push(scope.spawn(move || receive(receiver)));
        }
        receivers
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a receiving thread panicked"))?)
            .sum()
    })
}

fn send(mut socket: TcpStream) {
    let piece = vec![1_u8; WRITE_BYTES];
    let begin = Instant::now();
    // The receiver reports what went wrong, if anything did.
    while begin.elapsed() < LOOPBACK_TRY && socket.write_all(&piece).is_ok() {}
}

fn receive(mut socket: TcpStream) -> Result<f64> {
    let mut piece = vec![0_u8; WRITE_BYTES];
    let begin = Instant::now();
    let mut bytes = 0;
    loop {
        match socket.read(&mut piece).context("read from loopback")? {
            0 => return Ok(bytes as f64 / begin.elapsed().as_secs_f64()),
            length => bytes += length,
        }
    }
}

/// Paced congestion controls halve loopback's rate. A kernel without reno keeps its own: then that is the limit.
fn prefer_reno(socket: &TcpStream) {
    let name = b"reno";
    // SAFETY: the descriptor is open, and the name is as long as is said.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        );
    }
}
