//! A recording as its owner holds it: switch it on and off, tell it what the program does, end it.

use super::{
    collector::{Collected, Collector},
    event::{Activity, Event, Place},
    source::{EngineSource, Introduction, Source, Switch},
};
use crate::{
    error::{NetError, Result},
    runtime::helm::lock,
};
use paceline_job::{Rank, View, trace::Layer};
use std::{
    cell::RefCell,
    fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};

/// Where a trace goes, and how much of it there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// The folder; made if it is not there. The file in it is `worker-<rank>.json.gz`.
    pub directory: PathBuf,
    /// Events that each source may be ahead of the thread that collects them. More are dropped, and counted.
    pub ring_events: usize,
    /// Events of the whole trace. More are dropped, and counted. One takes 56 bytes of temporary space in the
    /// folder, and a fifth of that in the end.
    pub limit_events: u64,
}

impl TraceConfig {
    /// The usual bounds: a millisecond of work for the collector is far less than a ring, and a trace takes less
    /// than a gibibyte.
    pub fn new(directory: impl Into<PathBuf>) -> TraceConfig {
        TraceConfig { directory: directory.into(), ring_events: 1 << 15, limit_events: 16_000_000 }
    }
}

/// What only the program knows, told when the recording ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Layers, by the numbers that spans used.
    pub layers: Vec<Layer>,
    /// Whether updates cross the step.
    pub crosses_step: bool,
    /// What a profiler saw of devices, to be shown beside the rest.
    pub kernels: Vec<Kernel>,
}

/// Something that a stream of a device did, as a profiler tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// For people.
    pub name: String,
    /// Nanoseconds since 1970.
    pub begin: i64,
    /// How long.
    pub nanoseconds: u64,
    /// Which device.
    pub device: u32,
    /// Which of its streams.
    pub stream: u32,
}

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The file.
    pub path: PathBuf,
    /// Events that went into it.
    pub events: u64,
    /// Events that did not.
    pub dropped: u64,
}

/// A recording in progress. Dropping it ends it, and says on standard error if that failed.
#[derive(Debug)]
pub struct Recording {
    /// Tells the recordings of a process apart.
    id: u64,
    switch: Arc<Switch>,
    ending: Arc<Ending>,
    introductions: Mutex<Sender<Introduction>>,
    ring_events: usize,
    threads: AtomicU32,
    thread: Mutex<Option<JoinHandle<Result<Summary>>>>,
    rank: Rank,
}

/// What tells the collector to end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub due: AtomicBool,
    pub description: Mutex<Description>,
}

thread_local! {
    /// This thread's way into each recording that it told something.
    static SOURCES: RefCell<Vec<(u64, u32, Source)>> = const { RefCell::new(Vec::new()) };
}

static RECORDINGS: AtomicU64 = AtomicU64::new(0);

impl Recording {
    /// Begin, switched off. The source is for the engine.
    pub(crate) fn begin(
        config: &TraceConfig,
        rank: Rank,
        view: Arc<View>,
    ) -> Result<(Recording, EngineSource)> {
        let directory = &config.directory;
        let unwritable = |source| NetError::Trace { path: directory.clone(), source };
        fs::create_dir_all(directory).map_err(unwritable)?;
        let events = tempfile::tempfile_in(directory).map_err(unwritable)?;
        let switch = Arc::new(Switch::default());
        let ending = Arc::new(Ending::default());
        let (to, from) = channel();
        let engine =
            EngineSource::new(Source::new(config.ring_events, switch.clone(), &to), to.clone());
        let given = Collected {
            rank,
            view,
            directory: directory.clone(),
            limit_events: config.limit_events,
            switch: switch.clone(),
            ending: ending.clone(),
            introductions: from,
        };
        let collector = Collector::new(given, events);
        let thread = std::thread::Builder::new()
            .name("paceline-trace".to_string())
            .spawn(move || collector.run())
            .map_err(unwritable)?;
        let recording = Recording {
            id: RECORDINGS.fetch_add(1, Ordering::Relaxed),
            switch,
            ending,
            introductions: Mutex::new(to),
            ring_events: config.ring_events,
            threads: AtomicU32::new(0),
            thread: Mutex::new(Some(thread)),
            rank,
        };
        Ok((recording, engine))
    }

    /// Whether events are kept from now on.
    pub fn switch(&self, on: bool) {
        let on = on && !self.ending.due.load(Ordering::Relaxed);
        self.switch.on.store(on, Ordering::Relaxed);
    }

    /// The program did something from `begin` until `end`, in [`monotonic_nanoseconds`]; on this thread if `device`
    /// is `None`.
    pub fn span(
        &self,
        activity: Activity,
        layer: Option<u32>,
        begin: u64,
        end: u64,
        device: Option<u32>,
    ) {
        let nanoseconds = end.saturating_sub(begin);
        self.tell(|thread| {
            let place = device.map_or(Place::Thread(thread), Place::Device);
            Event::Span { begin, nanoseconds, activity, place, layer }
        });
    }

    /// The program's step `number` took from `begin` until `end`.
    pub fn step(&self, number: u64, begin: u64, end: u64) {
        self.tell(|_| Event::Step { begin, nanoseconds: end.saturating_sub(begin), number });
    }

    /// Events that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.switch.dropped.load(Ordering::Relaxed)
    }

    /// End it: the file is written in the background. Only the first call counts.
    pub fn finish(&self, description: Description) {
        self.switch.on.store(false, Ordering::Relaxed);
        let mut given = lock(&self.ending.description);
        if !self.ending.due.load(Ordering::Relaxed) {
            *given = description;
            self.ending.due.store(true, Ordering::Release);
        }
        drop(given);
        if let Some(thread) = &*lock(&self.thread) {
            thread.thread().unpark();
        }
    }

    /// Wait until the file is written, after [`Recording::finish`]. `None` if somebody did before.
    pub fn wait(&self) -> Option<Result<Summary>> {
        self.finish(Description::default());
        let thread = lock(&self.thread).take()?;
        // The thread does not panic: it only reads and writes.
        Some(thread.join().unwrap_or_else(|_| {
            let source = io::Error::other("the thread that writes it failed");
            Err(NetError::Trace { path: PathBuf::new(), source })
        }))
    }

    fn tell(&self, event: impl FnOnce(u32) -> Event) {
        if !self.switch.on.load(Ordering::Relaxed) {
            return;
        }
        SOURCES.with_borrow_mut(|sources| {
            let place = match sources.iter().position(|(id, ..)| *id == self.id) {
                Some(place) => place,
                None => {
                    sources.retain(|(_, _, source)| !source.is_abandoned());
                    let number = self.threads.fetch_add(1, Ordering::Relaxed);
                    let introductions = lock(&self.introductions);
                    let name = thread_name();
                    let _ = introductions.send(Introduction::Thread { number, name });
                    let source = Source::new(self.ring_events, self.switch.clone(), &introductions);
                    sources.push((self.id, number, source));
                    sources.len() - 1
                }
            };
            let (_, number, source) = &mut sources[place];
            source.push(event(*number));
        });
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.wait() {
            eprintln!("paceline: worker {}: {error}", self.rank);
        }
    }
}

/// The clock of all events: it never goes back, and Python's `time.perf_counter_ns` reads the same.
pub fn monotonic_nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What people call this thread.
fn thread_name() -> String {
    // SAFETY: plain system calls without arguments.
    let (thread, process) = unsafe { (libc::gettid(), libc::getpid()) };
    if thread == process {
        return "main thread".to_string();
    }
    let name = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    match name.trim() {
        name if name.starts_with("pt_autograd") => format!("backward thread ({name})"),
        "" => format!("thread {thread}"),
        name => format!("thread {name}"),
    }
}
