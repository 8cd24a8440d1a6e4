//! Whose thread drives. The worker's own does while nobody waits; a caller that waits drives on its own
//! thread, because waking another one costs more than a small collective. Waiting spins briefly, then
//! yields as long as that has paid off lately, then sleeps in `poll`.
//!
//! Whoever drives holds the driver for a turn, and then for the next. So posting never waits for it: if
//! it is taken, the operation is left in the inbox, and whoever gives the driver back looks there once
//! more. Nothing here knows what an operation is.

use super::{driver::Driver, memory::OpMemory, trace::monotonic_nanoseconds};
use crate::{error::Result, handle::Completion, patience::Patience, watching::Watching};
use paceline_sync::event::Post;
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd},
    sync::{
        Arc, Mutex, MutexGuard, TryLockError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::{Duration, Instant},
};

/// How long a waiting caller keeps its core to itself, when every worker of its host has one. Where
/// workers share cores it does not: whoever it waits for may need this one.
const SPINNING: Duration = Duration::from_micros(20);

/// How often the worker's thread looks whether callers still drive.
const NAP: Duration = Duration::from_millis(2);

/// A sleep is never longer than this, so that a missed bell costs little.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Helm {
    driver: Mutex<Driver>,
    /// Operations posted while somebody else had the driver. Bounded by what callers have in flight.
    inbox: Mutex<Vec<Posting>>,
    /// Whether the inbox may hold any.
    posted: AtomicBool,
    spinning: Duration,
    patience: Patience,
    /// Callers that drive right now.
    waiting: AtomicU32,
    /// Counts callers' waits, so that the worker's thread sees that they go on.
    waits: AtomicU64,
    /// Wakes those who sleep.
    bell: File,
    /// Whether it was rung, and nobody has heard it yet.
    rung: AtomicBool,
    sleepers: AtomicU32,
    stopping: AtomicBool,
    /// What people see who watch the job.
    pub(crate) watching: Arc<Watching>,
}

#[derive(Debug)]
struct Posting {
    post: Post,
    memory: OpMemory,
    completion: Arc<Completion>,
    /// When, if it had to wait in the inbox.
    at: Option<u64>,
}

impl Helm {
    /// `enough_cores`: whether every worker of this host has one to itself.
    pub(crate) fn new(driver: Driver, enough_cores: bool, watching: Arc<Watching>) -> Result<Helm> {
        Ok(Helm {
            driver: Mutex::new(driver),
            inbox: Mutex::default(),
            posted: AtomicBool::new(false),
            spinning: if enough_cores { SPINNING } else { Duration::ZERO },
            patience: Patience::new(),
            waiting: AtomicU32::new(0),
            waits: AtomicU64::new(0),
            bell: event_file()?,
            rung: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            watching,
        })
    }

    /// Do something with the driver, when it is free.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Driver) -> R) -> R {
        let mut driver = lock(&self.driver);
        self.take_in(&mut driver);
        let result = act(&mut driver);
        drop(driver);
        self.look_into_inbox();
        result
    }

    /// Post an operation, now or in a moment. Its caller waits for it next, or calls [`Helm::attend`].
    ///
    /// # Safety
    /// As for [`Driver::post`].
    pub(crate) unsafe fn post(&self, post: Post, memory: OpMemory, completion: Arc<Completion>) {
        let mut posting = Posting { post, memory, completion, at: None };
        match self.try_driver() {
            Some(mut driver) => {
                self.take_in(&mut driver);
                posting.hand_to(&mut driver);
            }
            None => {
                posting.at = Some(monotonic_nanoseconds());
                lock(&self.inbox).push(posting);
                self.posted.store(true, Ordering::SeqCst);
            }
        }
        self.look_into_inbox();
    }

    /// Something was posted, and nobody is about to wait for it: see that somebody drives.
    pub(crate) fn attend(&self) {
        let watched = self.waiting.load(Ordering::SeqCst) > 0;
        // Whoever sleeps does not know of what it could send, unless something is to be read.
        if !watched || self.try_driver().is_some_and(|driver| driver.wants_to_write()) {
            self.ring();
        }
        self.look_into_inbox();
    }

    /// The driver has other links than those that somebody may be waiting at: look again.
    pub(crate) fn stir(&self) {
        self.ring();
        self.look_into_inbox();
    }

    /// Whether a caller waits for an operation.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Let [`Helm::run`] return.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Drive on the caller's thread until `done` gives something or time is up.
    pub(crate) fn drive<R>(
        &self,
        deadline: Option<Instant>,
        done: impl Fn() -> Option<R>,
    ) -> Option<R> {
        if let Some(result) = done() {
            return Some(result);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.with(|driver| driver.wake());
        let mut idle_since = None;
        let result = loop {
            let busy = self.with(Driver::turn);
            if let Some(result) = done() {
                break Some(result);
            }
            if busy {
                if let Some(since) = idle_since.take() {
                    self.patience.learn(Instant::now() - since);
                }
                // Others may keep this worker busy for ever; a deadline is one all the same.
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    break None;
                }
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                break None;
            }
            let idle = now - *idle_since.get_or_insert(now);
            if idle < self.spinning {
                std::hint::spin_loop();
            } else if idle < self.patience.limit() {
                std::thread::yield_now();
            } else {
                let left = deadline.map_or(LONGEST_SLEEP, |deadline| deadline - now);
                self.sleep(|fds| self.prepare_sleep(left.min(LONGEST_SLEEP), fds));
            }
        };
        let last = self.waiting.fetch_sub(1, Ordering::SeqCst) == 1;
        let (in_flight, unsent) =
            self.with(|driver| (driver.in_flight() > 0, driver.wants_to_write()));
        if (last && in_flight) || unsent {
            self.ring();
        }
        result
    }

    /// The worker's thread: drives while no caller does.
    pub(crate) fn run(&self) {
        let mut seen_waits = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            let waits = self.waits.load(Ordering::Relaxed);
            let called_lately = std::mem::replace(&mut seen_waits, waits) != waits;
            let idle = self.waiting.load(Ordering::SeqCst) > 0
                || (called_lately && self.with(|driver| driver.in_flight()) == 0);
            if idle {
                // Callers drive, or will in a moment: stay out of their way, but do look again.
                let still = || self.waiting.load(Ordering::SeqCst) > 0;
                self.sleep(|_| (still() && !self.stopping.load(Ordering::SeqCst)).then_some(NAP));
                continue;
            }
            self.with(|driver| driver.wake());
            let mut since = None;
            while self.waiting.load(Ordering::SeqCst) == 0 {
                if self.with(Driver::turn) {
                    since = None;
                } else {
                    let now = Instant::now();
                    if now - *since.get_or_insert(now) > self.patience.limit() / 4 {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
            self.sleep(|fds| {
                let go_on =
                    self.waiting.load(Ordering::SeqCst) > 0 || self.stopping.load(Ordering::SeqCst);
                if go_on { None } else { self.prepare_sleep(LONGEST_SLEEP, fds) }
            });
        }
    }

    fn try_driver(&self) -> Option<MutexGuard<'_, Driver>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Post what is in the inbox, in its order.
    fn take_in(&self, driver: &mut Driver) {
        if self.posted.load(Ordering::Relaxed) && self.posted.swap(false, Ordering::SeqCst) {
            for posting in std::mem::take(&mut *lock(&self.inbox)) {
                posting.hand_to(driver);
            }
        }
    }

    /// Whoever put something into the inbox, or has just given the driver back, sees that it is taken out.
    /// If the driver is taken, its holder comes here after that. Bounded by what others post meanwhile.
    fn look_into_inbox(&self) {
        // Between giving the driver back, or finding it taken, and looking: of two who do both at once, one
        // must see what the other did.
        fence(Ordering::SeqCst);
        while self.posted.load(Ordering::SeqCst) {
            let Some(mut driver) = self.try_driver() else { return };
            self.take_in(&mut driver);
            let unsent = driver.wants_to_write();
            drop(driver);
            if unsent {
                self.ring();
            }
            fence(Ordering::SeqCst);
        }
    }

    fn ring(&self) {
        let nobody = self.sleepers.load(Ordering::SeqCst) == 0;
        if nobody || self.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        // An eventfd takes a count; it is full only if nobody has listened for 2^64 rings.
        let _ = (&self.bell).write(&1_u64.to_ne_bytes());
    }

    /// Sleep until the bell rings, a descriptor is ready or time is up. What to poll and for how long is
    /// asked after it is known that somebody sleeps, so that no ring is missed; `None`: there is no need.
    fn sleep(&self, prepare: impl FnOnce(&mut Vec<libc::pollfd>) -> Option<Duration>) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut fds = Vec::with_capacity(16);
        if let Some(limit) = prepare(&mut fds) {
            fds.push(libc::pollfd { fd: self.bell.as_raw_fd(), events: libc::POLLIN, revents: 0 });
            poll(&mut fds, limit);
            if fds.last().is_some_and(|fd| fd.revents != 0) {
                // Reading resets the count. Then it may be rung again; before, we are awake anyway.
                let _ = (&self.bell).read(&mut [0; 8]);
                self.rung.store(false, Ordering::SeqCst);
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// What to poll and for how long; `None` if something has come meanwhile.
    fn prepare_sleep(&self, limit: Duration, fds: &mut Vec<libc::pollfd>) -> Option<Duration> {
        self.with(|driver| {
            if !driver.fall_asleep() {
                return None;
            }
            let tick = driver.interests(fds);
            Some(tick.map_or(limit, |tick| tick.min(limit)))
        })
    }
}

impl Posting {
    fn hand_to(self, driver: &mut Driver) {
        // SAFETY: promised when it was posted.
        unsafe { driver.post(self.post, self.memory, self.completion, self.at) };
    }
}

fn poll(fds: &mut [libc::pollfd], limit: Duration) {
    let milliseconds = limit.as_millis().clamp(1, 60_000) as libc::c_int;
    // SAFETY: a valid array of that length.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
}

/// A poisoned lock is one whose holder panicked; what it guards is whole between two calls.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn event_file() -> Result<File> {
    // SAFETY: a plain system call; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}
