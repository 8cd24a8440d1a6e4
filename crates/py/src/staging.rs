//! How memory of a GPU gets to the engine and back, without the interpreter: it is copied down to pinned
//! memory on one stream, each piece is posted as soon as it is there, and copied up on a second stream as
//! soon as the engine is done with it. So copies overlap the network and each other. There are two streams,
//! because a copy up must not stand behind a copy down that waits for computation.
//!
//! One thread of each worker posts pieces in the order they were started, which is the order ranks match
//! them by. Whoever drives the engine asks for the copy up. Neither knows whose memory it is.

use crate::{
    cuda::{CudaError, Event, Stream},
    notice::Flight,
    request::{Piece, Region, Request},
    squares::Measure,
};
use paceline_job::Dtype;
use paceline_net::{Handle as Running, Operation, Outcome, Worker};
use paceline_sync::event::OpError;
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        mpsc::{Sender, channel},
    },
    time::Instant,
};

/// The worker, while it takes part.
pub(crate) type Slot = Arc<RwLock<Option<Worker>>>;

/// Why a staged operation failed.
#[derive(Clone)]
pub(crate) enum Failure {
    /// In the job.
    Operation(Arc<OpError>),
    /// On the way between host and device.
    Copy(CudaError),
    /// The worker left before it was posted.
    Closed,
}

/// The memory on the device, and the streams: the one that computes, down and up.
pub(crate) struct Device {
    pub(crate) input: Region,
    pub(crate) output: Region,
    pub(crate) streams: (usize, usize, usize),
}

/// Starts staged operations, for one worker.
pub(crate) struct Staging {
    worker: Slot,
    /// To the thread that posts, which there is once it was needed; it ends with this. Bounded by the pieces
    /// of the operations in flight.
    poster: Mutex<Option<Sender<Descent>>>,
    queue: Arc<Queue>,
}

/// How many pieces wait for the thread that posts.
#[derive(Default)]
struct Queue {
    length: Mutex<usize>,
    shorter: Condvar,
}

impl Staging {
    pub(crate) fn new(worker: Slot) -> Staging {
        Staging { worker, poster: Mutex::default(), queue: Arc::default() }
    }

    /// Ask for the copies down, and let the operation be posted when they are made. If this fails, the
    /// device may be writing the memory all the same.
    ///
    /// # Safety
    /// The request's memory and the device's stay valid and untouched by others until the flight ended and
    /// the event it was given is past; the streams are streams of that device that outlive this worker, and
    /// only the first may be a default one.
    pub(crate) unsafe fn start(
        &self,
        request: &Request,
        device: &Device,
        flight: &Arc<Flight>,
        squares: Option<Arc<Measure>>,
    ) -> Result<Staged, CudaError> {
        let (compute, down, up) = device.streams;
        // SAFETY: the caller's promise.
        let (down, up) = unsafe { (Stream::from_handle(down)?, Stream::from_handle(up)?) };
        // SAFETY: the caller's promise.
        let compute = unsafe { down.beside(compute) };
        let pieces = request.pieces();
        let progress = Arc::new(Progress {
            flight: flight.clone(),
            squares,
            dtype: request.dtype,
            up,
            state: Mutex::new(State {
                to_post: pieces.len(),
                open: pieces.len(),
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let posted = Arc::new(Mutex::new(Vec::with_capacity(pieces.len())));
        // Held throughout, so that pieces stand in the queue as they stand in the stream.
        let mut poster = lock(&self.poster);
        // Nothing comes up before it was down, so the way up need not wait for the computation as well.
        down.wait_for(&compute.record()?)?;
        let size = request.dtype.size() as u64;
        let descents: Vec<Descent> = pieces
            .into_iter()
            .map(|Piece { operation, begin, reads, writes }| {
                let at = |region: Region| region.0 + (begin * size) as usize;
                let (host, bytes) = (at(request.input), (reads * size) as usize);
                if bytes > 0 {
                    // SAFETY: the caller's promise; the lengths were checked with the request.
                    unsafe { down.copy_down(host, at(device.input), bytes)? };
                }
                Ok(Descent {
                    made: down.record()?,
                    operation,
                    input: (host, reads),
                    ascent: Ascent {
                        device: at(device.output),
                        host: at(request.output),
                        elements: writes,
                        bytes: (writes * size) as usize,
                    },
                    progress: progress.clone(),
                    posted: posted.clone(),
                })
            })
            .collect::<Result<_, CudaError>>()?;
        let sender = poster.get_or_insert_with(|| self.start_poster());
        for descent in descents {
            self.queue.lengthen();
            // Without a receiver the thread could not be started, or panicked.
            if let Err(unsent) = sender.send(descent) {
                self.queue.shorten();
                unsent.0.progress.over(Err(Failure::Closed));
            }
        }
        Ok(Staged { progress, posted })
    }

    /// Wait until all that was started is posted, or failed. Bounded by what the device was asked to compute.
    pub(crate) fn wait_until_posted(&self) {
        let length = lock(&self.queue.length);
        let waited = self.queue.shorter.wait_while(length, |length| *length > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Let the thread end, when it has posted or failed what it was given.
    pub(crate) fn close(&self) {
        lock(&self.poster).take();
    }

    fn start_poster(&self) -> Sender<Descent> {
        let (sender, receiver) = channel::<Descent>();
        let (worker, queue) = (self.worker.clone(), self.queue.clone());
        let post_all = move || {
            for descent in receiver {
                descent.post(&worker);
                queue.shorten();
            }
        };
        // A thread that cannot be started drops the receiver, which whoever sends hears.
        let _ = std::thread::Builder::new().name("paceline-staging".into()).spawn(post_all);
        sender
    }
}

impl Queue {
    fn lengthen(&self) {
        *lock(&self.length) += 1;
    }

    fn shorten(&self) {
        *lock(&self.length) -= 1;
        self.shorter.notify_all();
    }
}

/// A piece on its way down.
struct Descent {
    made: Event,
    operation: Operation,
    input: Region,
    ascent: Ascent,
    progress: Arc<Progress>,
    posted: Arc<Mutex<Vec<Running>>>,
}

/// The copy up that a piece will need.
#[derive(Clone, Copy)]
struct Ascent {
    device: usize,
    host: usize,
    elements: u64,
    bytes: usize,
}

impl Descent {
    fn post(self, worker: &Slot) {
        let Descent { made, operation, input, ascent, progress, posted } = self;
        if let Err(error) = made.wait() {
            return progress.over(Err(Failure::Copy(error)));
        }
        let worker = worker.read().unwrap_or_else(PoisonError::into_inner);
        let Some(worker) = worker.as_ref() else {
            return progress.over(Err(Failure::Closed));
        };
        let dtype = progress.dtype;
        if let Some(squares) = &progress.squares {
            // SAFETY: as below; the copy down is made, and nobody else has the memory yet.
            unsafe { squares.contributed(dtype, input) };
        }
        let (input, output) = (input.0 as *const u8, ascent.host as *mut u8);
        // SAFETY: whoever started it promised memory of the lengths that were checked, until the flight ended,
        // which it does not before this operation has.
        let running = unsafe { worker.start_from_device(operation, dtype, input, output) };
        lock(&posted).push(running.clone());
        progress.posted();
        running.when_done(move |outcome| progress.arrived(outcome, ascent));
    }
}

/// How far an operation has come, as those see it who move it on. They hold no engine: it holds them.
struct Progress {
    flight: Arc<Flight>,
    /// Who sees what goes in and what comes out.
    squares: Option<Arc<Measure>>,
    dtype: Dtype,
    up: Stream,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Pieces that are not posted yet, and pieces that have not ended.
    to_post: usize,
    open: usize,
    failure: Option<Failure>,
    /// Recorded after the last copy up.
    arrived: Option<Arc<Event>>,
}

impl State {
    /// How it ended for its users. The rest of what failed may go on.
    fn outcome(&self) -> Option<Result<(), Failure>> {
        match &self.failure {
            Some(failure) => Some(Err(failure.clone())),
            None => (self.open == 0).then_some(Ok(())),
        }
    }
}

impl Progress {
    fn posted(&self) {
        lock(&self.state).to_post -= 1;
        self.changed.notify_all();
    }

    /// On the thread that drives the engine, which does not wait here: asking for a copy is all, and a look at a small part.
    fn arrived(&self, outcome: Outcome, Ascent { device, host, elements, bytes }: Ascent) {
        let went_well = outcome.is_ok();
        let outcome = match outcome {
            Err(error) => Err(Failure::Operation(error)),
            Ok(()) if bytes == 0 => Ok(()),
            // SAFETY: whoever started it promised both until the event that is recorded after this is past.
            Ok(()) => unsafe { self.up.copy_up(device, host, bytes) }.map_err(Failure::Copy),
        };
        if let Some(squares) = self.squares.as_ref().filter(|_| went_well) {
            // SAFETY: the flight has not ended, so the memory is there; the engine is done with it and the device only reads.
            unsafe { squares.averaged(self.dtype, (host, elements)) };
        }
        self.over(outcome);
    }

    fn over(&self, outcome: Result<(), Failure>) {
        let mut state = lock(&self.state);
        let went_well = state.failure.is_none();
        state.open -= 1;
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        let last = state.open == 0;
        if last {
            match self.up.record() {
                Ok(event) => state.arrived = Some(Arc::new(event)),
                Err(error) => {
                    state.failure.get_or_insert(Failure::Copy(error));
                }
            }
        }
        let (arrived, failed) = (state.arrived.clone(), went_well && state.failure.is_some());
        drop(state);
        self.changed.notify_all();
        match last {
            true => self.flight.end_after(arrived),
            false if failed => self.flight.fail(),
            false => {}
        }
    }
}

/// A staged operation in flight.
pub(crate) struct Staged {
    progress: Arc<Progress>,
    posted: Arc<Mutex<Vec<Running>>>,
}

impl Staged {
    /// How it ended, if it has: the result is on its way up then.
    pub(crate) fn poll(&self) -> Option<Result<(), Failure>> {
        lock(&self.progress.state).outcome()
    }

    /// Wait until it ended or time is up, and drive the engine as soon as that helps.
    pub(crate) fn wait_until(&self, deadline: Instant) {
        self.sleep_until(deadline, |state| state.to_post == 0 || state.outcome().is_some());
        let posted = lock(&self.posted).clone();
        for running in posted {
            if self.poll().is_some() || running.wait_until(deadline).is_none() {
                return;
            }
        }
        // Another thread may have driven, and be about to ask for the copy.
        self.sleep_until(deadline, |state| state.outcome().is_some());
    }

    /// What is asked of a stream of the device from now on comes after the result, which has arrived.
    ///
    /// # Safety
    /// `stream` is a stream of that device, or 0 for its default one.
    pub(crate) unsafe fn precede(&self, stream: usize) -> Result<(), CudaError> {
        let arrived = lock(&self.progress.state).arrived.clone();
        // SAFETY: the caller's promise.
        let stream = unsafe { self.progress.up.beside(stream) };
        arrived.map_or(Ok(()), |arrived| stream.wait_for(&arrived))
    }

    fn sleep_until(&self, deadline: Instant, enough: impl Fn(&State) -> bool) {
        let mut state = lock(&self.progress.state);
        while !enough(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.progress.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
