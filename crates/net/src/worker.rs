//! A worker's door to the job: post collectives, wait for them, leave.
//!
//! What happens between posting and ending is the [`Helm`]'s.

mod elastic;
mod share;

pub use elastic::{Entry, Gathering};
pub use share::{Region, Sharing};

use crate::{
    buffer::SharedBuffer,
    calibration,
    control::{Begun, Control, Proposal, Proposer, Turn},
    coordinator::{Coordinator, Fate, WorkerMessage},
    element::Element,
    error::{NetError, Result},
    handle::Completion,
    join::{Joined, PlaceOf},
    metering::{Metering, Posting},
    pending::{Buffers, Handle, Pending},
    rendezvous::Candidate,
    runtime::{
        core::Core,
        crew::Crew,
        driver::{Driver, ReportSink},
        helm::Helm,
        memory::{Memory, OpMemory, Store},
        mesh::{self, Transport},
        pace::Pace,
        record::{Record, Recorder},
        trace::{Recording, TraceConfig},
    },
    succession::Succession,
    survey::survey,
    watching::Watching,
};
use elastic::Elastic;
use paceline_job::{Dtype, Rank, ReduceOp, Settings, View};
use paceline_sync::{
    agreement::{Change, Participant},
    collective::Collective,
    engine::{Engine, Load},
    event::{Holds, OURS, OpError, OpId, Post, name_hash},
    metrics::Computed,
    recovery::Account,
    scheduler::Priority,
    strategy::AutoTable,
};
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long a worker that hosts the coordinator stays for the others.
const OTHERS_LEAVE: Duration = Duration::from_secs(60);

/// How a worker runs.
#[derive(Default)]
pub struct WorkerConfig {
    /// Which way bytes take between workers of one host.
    pub transport: Transport,
    /// Whether to write down what the engine sees and does ([`Worker::leave_with_record`]).
    pub record: bool,
    /// Whether the worker watches itself ([`Worker::metrics`]).
    pub measuring: Measuring,
    /// How fast its connections send and receive, if not as fast as the network does. Keep a clone to change it while the worker runs.
    pub pace: Option<Pace>,
    /// Where notices of slowness go; standard error if `None`.
    pub report: Option<ReportSink>,
}

/// Whether a worker collects metrics. All workers of a job choose alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measuring {
    /// It costs some hundred nanoseconds for each tensor.
    #[default]
    On,
    /// There are none.
    Off,
}

impl fmt::Debug for WorkerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerConfig").field("transport", &self.transport).finish_non_exhaustive()
    }
}

/// A collective to take part in.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The n-th use of a name on one rank meets the n-th on every other.
    pub name: Arc<str>,
    /// What to do.
    pub collective: Collective,
    /// How contributions are combined.
    pub reduce: ReduceOp,
    /// Smaller goes first.
    pub priority: Priority,
    /// Who takes part, in member order; all if `None`.
    pub group: Option<Arc<[Rank]>>,
    /// In an elastic job, what it holds of samples ([`Worker::take_losses`]): nothing, unless it is said.
    pub holds: Holds,
}

impl Operation {
    /// A collective of all workers, summing, with no urgency, that holds nothing of samples.
    pub fn new(name: impl Into<Arc<str>>, collective: Collective) -> Operation {
        let name = name.into();
        let reduce = ReduceOp::Sum;
        Operation { name, collective, reduce, priority: 0, group: None, holds: Holds::Nothing }
    }

    /// Combine in another way.
    pub fn reduce(self, reduce: ReduceOp) -> Operation {
        Operation { reduce, ..self }
    }

    /// Smaller goes first.
    pub fn priority(self, priority: Priority) -> Operation {
        Operation { priority, ..self }
    }

    /// Only these ranks, in this order.
    pub fn group(self, group: Arc<[Rank]>) -> Operation {
        Operation { group: Some(group), ..self }
    }

    /// Of what workers made of samples it holds this, as gradients hold [those of the step](Holds::Step).
    pub fn holds(self, holds: Holds) -> Operation {
        Operation { holds, ..self }
    }
}

/// One process of the job.
#[derive(Debug)]
pub struct Worker {
    helm: Arc<Helm>,
    store: Arc<Store>,
    /// In the view by which the program names workers: in an elastic job it may be another in the next step.
    rank: AtomicU32,
    thread: Option<JoinHandle<()>>,
    control: Control,
    /// In an elastic job.
    elastic: Option<Elastic>,
    /// Where this worker hosts it.
    coordinator: Option<Coordinator>,
    candidate: Option<Candidate>,
    metering: Option<Arc<Metering>>,
}

impl Worker {
    /// Start running as the worker that joined.
    pub fn start(joined: Joined, config: WorkerConfig) -> Result<Worker> {
        let Joined { rank, view, peers, control, coordinator, candidate, reunion, underway } =
            joined;
        let view = Arc::new(view);
        let store = mesh::create_store(&view, rank)?;
        let links = mesh::link(&view, rank, config.transport, peers, &store)?;
        let engine = Engine::new(rank, view.clone())?;
        let recorder = config.record.then(|| Recorder::new(rank, view.clone()));
        let watching = Arc::<Watching>::default();
        let mut core = Core::new(engine, Memory::new(store.clone()), recorder, watching.clone());
        let metering = (config.measuring == Measuring::On).then(|| {
            let (metering, counting) = Metering::new(rank, &view);
            core.counting = Some(counting);
            metering
        });
        let report = config.report.unwrap_or_else(|| {
            Box::new(|rank, report| eprintln!("paceline: worker {rank}: {report}"))
        });
        let host = &view.workers[rank.index()].host;
        let local = view.workers.iter().filter(|worker| worker.host == *host).count();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let me = view.workers[rank.index()].id;
        let newcomer = underway.is_some();
        let control = Control::new(
            control,
            match underway {
                Some(job) => Participant::newcomer(me, job),
                None => Participant::new(me, view.clone()),
            },
            watching.clone(),
        )?;
        let accounts = Arc::<Mutex<Vec<Account>>>::default();
        let mut driver = Driver::new(core, links, report).paced(config.pace);
        if reunion.is_some() {
            let lost = Box::new(control.accuser());
            driver = driver.with_crew(Crew::new(me, view.clone(), lost, accounts.clone()));
        }
        let helm = Arc::new(Helm::new(driver, local <= cores, watching)?);
        let thread = thread::Builder::new()
            .name(format!("paceline-{rank}"))
            .spawn({
                let helm = helm.clone();
                move || helm.run()
            })
            .map_err(NetError::from)?;
        let waiting = helm.clone();
        control.while_waiting(move || waiting.has_waiting());
        let elastic = match reunion {
            None => {
                let helm = helm.clone();
                control.on_abandoned(Box::new(move |rank, fate| {
                    helm.with(|driver| driver.abandon(rank, &fate.to_string()));
                    helm.stir();
                }));
                None
            }
            Some(reunion) => {
                let accuse = Box::new(control.accuser());
                let reunion = Arc::new(reunion);
                control.on_loss(Box::new(PlaceOf(reunion.clone(), me)));
                let succession =
                    Succession::start(me, helm.clone(), reunion, config.transport, accuse)?;
                control.on_succession(Box::new(succession.sink()));
                Some(Elastic::new(me, succession, accounts, newcomer))
            }
        };
        let (thread, rank) = (Some(thread), AtomicU32::new(rank.0));
        let mut worker = Worker {
            helm,
            store,
            rank,
            thread,
            control,
            coordinator,
            candidate,
            metering,
            elastic,
        };
        if calibration::is_due(&view) {
            worker.measure(&view)?;
        }
        worker.control.start()?;
        Ok(worker)
    }

    /// What links cost becomes part of the view on all workers, between the same two operations.
    fn measure(&mut self, view: &View) -> Result<()> {
        let measured = calibration::measure(self)?;
        let limit = view.survey.filter(|_| calibration::is_surveyed(view));
        let finding = limit.map(|limit| survey(self, limit)).transpose()?;
        let topology = finding.as_ref().map(|finding| Arc::new(finding.topology.clone()));
        let view = Arc::new(view.with_measured(measured, topology));
        self.control.adopt(view.clone());
        self.helm.with(|driver| driver.install(view, 0));
        if self.rank() == Rank(0) {
            // The coordinator counts views with us, and says what `auto` decides by. One that is gone does neither.
            let _ = self.control.send(&match finding.map(Box::new) {
                None => WorkerMessage::Measured(measured),
                Some(finding) => WorkerMessage::Surveyed { measured, finding },
            });
        }
        Ok(())
    }

    /// Which strategy all-reduces of all workers use, by size, and why.
    pub fn choices(&self) -> AutoTable {
        self.helm.with(|driver| driver.core().engine.choices())
    }

    /// This worker's place in the view.
    pub fn rank(&self) -> Rank {
        Rank(self.rank.load(Ordering::Relaxed))
    }

    /// Number of workers.
    pub fn size(&self) -> usize {
        self.view().size()
    }

    /// The view in force; in an elastic job, the one by which the program names workers, from one step to the next.
    pub fn view(&self) -> Arc<View> {
        let known = |driver: &mut Driver| driver.crew().map(|crew| crew.keeper().known().clone());
        match &self.elastic {
            Some(_) => self.helm.with(known).unwrap_or_else(|| self.control.view()),
            None => self.control.view(),
        }
    }

    /// What the engine carries right now.
    pub fn load(&self) -> Load {
        self.helm.with(|driver| driver.core().engine.load())
    }

    /// Begin a step: operations that are posted from now on belong to it, and to the view this returns. Steps go
    /// forward on all workers alike and may be left out; what is posted before the first is in the first view.
    ///
    /// Where nothing was proposed for this step, this costs a lock that nobody holds: no system call, no message. If a
    /// change was promised and is not decided yet, it waits for the coordinator's word, for the settings' `timeout` at
    /// most. Operations in progress keep the settings they were posted with, and peers the eager bytes of the first
    /// view.
    pub fn begin_step(&self, step: u64) -> Result<Arc<View>> {
        self.begin(Some(step), || ()).map(|begun| begun.view)
    }

    /// Begin the step after the last, for programs that do not count; its number. The first call begins step 1: what was
    /// posted before belongs to step 0. If a view comes in force, `settle` is called first: it sees that everything that
    /// was started before is posted.
    pub fn begin_next_step(&self, settle: impl FnOnce()) -> Result<u64> {
        self.begin(None, settle).map(|begun| begun.step)
    }

    fn begin(&self, step: Option<u64>, settle: impl FnOnce()) -> Result<Begun> {
        let begun = match &self.elastic {
            Some(_) if self.is_outside() => return Err(NetError::Outside),
            Some(elastic) => self.begin_elastic(elastic, step, settle, || false)?,
            None => self.begin_fixed(step, settle)?,
        };
        self.measure_step(&begun);
        Ok(begun)
    }

    fn measure_step(&self, begun: &Begun) {
        if let Some(metering) = &self.metering {
            metering.begin_step(self, begun.step, &begun.view);
        }
        if let Some(seen) = self.helm.watching.begin_step(begun.step, self.rank(), &begun.view) {
            self.control.show(seen);
        }
    }

    fn begin_fixed(&self, step: Option<u64>, settle: impl FnOnce()) -> Result<Begun> {
        let Turn::Begun(begun) = self.control.begin(step, None)? else {
            return Err(NetError::Removed);
        };
        if begun.entered {
            settle();
            self.helm.with(|driver| driver.install(begun.view.clone(), begun.step));
        }
        Ok(begun)
    }

    /// Propose other settings to all workers. They change between two steps that all workers take alike, soon after;
    /// training goes on meanwhile. Refused at once are settings that cannot work, and a second proposal before the
    /// first is decided.
    pub fn propose(&self, settings: Settings) -> Result<Proposal> {
        self.control.propose(Change::Settings(settings))
    }

    /// What the program knows of its step: its loss, and how many samples it used. For people who watch the job; nobody
    /// else is told, and it costs nothing where nobody does.
    pub fn tell(&self, loss: Option<f64>, samples: Option<u64>) {
        self.helm.watching.told(loss, samples);
    }

    /// For tuners and policies: where to say what they decide, for people who watch the job. A line of JSON, or words.
    pub fn decisions(&self) -> impl Fn(String) + Clone + Send + Sync + use<> {
        let proposer = self.control.proposer();
        move |text| proposer.decided(text)
    }

    /// Write down what this worker does from now on, while the recording is switched on. A worker has one at a time:
    /// a second takes the place of the first, which then hears of the program only.
    pub fn trace(&self, config: &TraceConfig) -> Result<Recording> {
        let (recording, source) = Recording::begin(config, self.rank(), self.view())?;
        self.helm.with(|driver| driver.core().trace = Some(source));
        Ok(recording)
    }

    /// Memory that local peers read without a copy: `len` zeros.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SharedBuffer<T>> {
        SharedBuffer::zeroed(self.store.clone(), len)
            .map_err(|source| NetError::SharedMemory { source })
    }

    /// Start a collective on memory that belongs to nobody else until it ends.
    ///
    /// # Safety
    /// `input` holds the elements the collective reads from this member, `output` room for those it
    /// writes; both stay valid and untouched until the handle says that it ended. They are the same
    /// pointer or do not overlap.
    pub unsafe fn start_raw<T: Element>(
        &self,
        operation: Operation,
        input: *const T,
        output: *mut T,
    ) -> Handle {
        // SAFETY: the caller's promise.
        unsafe { self.start_untyped(operation, T::DTYPE, input.cast(), output.cast()) }
    }

    /// [`Worker::start_raw`] for callers who learn the type of the elements at run time.
    ///
    /// # Safety
    /// As for [`Worker::start_raw`], of elements of type `dtype`, aligned to their size.
    pub unsafe fn start_untyped(
        &self,
        operation: Operation,
        dtype: Dtype,
        input: *const u8,
        output: *mut u8,
    ) -> Handle {
        // SAFETY: the caller's promise.
        unsafe { self.start_computed(operation, dtype, input, output, Computed::Here) }
    }

    /// [`Worker::start_untyped`] for what a device has computed, while the program went on.
    ///
    /// # Safety
    /// As for [`Worker::start_untyped`].
    pub unsafe fn start_from_device(
        &self,
        operation: Operation,
        dtype: Dtype,
        input: *const u8,
        output: *mut u8,
    ) -> Handle {
        // SAFETY: the caller's promise.
        unsafe { self.start_computed(operation, dtype, input, output, Computed::Elsewhere) }
    }

    /// # Safety
    /// As for [`Worker::start_untyped`].
    unsafe fn start_computed(
        &self,
        operation: Operation,
        dtype: Dtype,
        input: *const u8,
        output: *mut u8,
        computed: Computed,
    ) -> Handle {
        // SAFETY: the caller's promise.
        let (handle, posting) = unsafe { self.post(operation, dtype, input, output, computed) };
        self.helm.attend();
        self.watched(handle, posting)
    }

    /// [`Worker::start_untyped`] for an operation that is none of the program's.
    ///
    /// # Safety
    /// As for [`Worker::start_untyped`].
    pub(crate) unsafe fn start_unwatched(
        &self,
        operation: Operation,
        dtype: Dtype,
        input: *const u8,
        output: *mut u8,
    ) -> Handle {
        // SAFETY: the caller's promise.
        let (handle, _) = unsafe { self.post(operation, dtype, input, output, Computed::Here) };
        self.helm.attend();
        handle
    }

    /// # Safety
    /// As for [`Worker::start_untyped`].
    unsafe fn post(
        &self,
        operation: Operation,
        dtype: Dtype,
        input: *const u8,
        output: *mut u8,
        computed: Computed,
    ) -> (Handle, Option<Posting>) {
        let completion = Arc::new(Completion::default());
        let post = Post {
            reduce: operation.reduce,
            priority: operation.priority,
            group: operation.group,
            in_place: std::ptr::eq(input, output),
            holds: operation.holds,
            ..Post::new(OpId(0), operation.name, operation.collective, dtype)
        };
        let bytes = post.collective.elements() * dtype.size() as u64;
        let memory = OpMemory { input, output, bytes };
        let posting = self.metering.as_ref().map(|_| Metering::posting(&post, computed));
        if self.helm.watching.is_on() && !post.name.starts_with(OURS) {
            let hash = name_hash(&post.name, post.group.as_deref());
            let number = self.helm.watching.posted(&post.name, hash, bytes);
            let watching = self.helm.watching.clone();
            completion.when_done(Box::new(move |_| watching.ended(number)));
        }
        if self.elastic.is_some() && (post.group.is_none() || post.reduce == ReduceOp::Mix) {
            self.control.posted();
        }
        // SAFETY: the caller's promise.
        unsafe { self.helm.post(post, memory, completion.clone()) };
        (Handle::new(self.helm.clone(), completion), posting)
    }

    /// It is handed over: from now on it counts, and so do waits for it.
    fn watched(&self, handle: Handle, posting: Option<Posting>) -> Handle {
        match self.metering.as_ref().zip(posting) {
            Some((metering, posting)) => handle.watched(metering.clone(), metering.posted(posting)),
            None => handle,
        }
    }

    pub(crate) fn proposer(&self) -> Proposer {
        self.control.proposer()
    }

    pub(crate) fn with_core<T>(&self, look: impl FnOnce(&mut Core) -> T) -> T {
        self.helm.with(|driver| look(driver.core()))
    }

    pub(crate) fn metering(&self) -> Option<&Arc<Metering>> {
        self.metering.as_ref()
    }

    /// Start a collective that gives its buffers back when it ends.
    pub fn start_with<T: Element>(
        &self,
        operation: Operation,
        mut buffers: Buffers<T>,
    ) -> Result<Pending<T>> {
        match &buffers {
            Buffers::InPlace(data) => self.check_in_place(&operation, data.len())?,
            Buffers::Pair(input, output) => {
                self.check_lengths(&operation, input.len(), output.len())?;
            }
        }
        let (input, output) = buffers.pointers();
        // SAFETY: the lengths fit; the buffers' memory does not move when the owner does, and is kept
        // inside the pending operation until it ended.
        let handle = unsafe { self.start_raw(operation, input, output) };
        Ok(Pending::new(handle, buffers))
    }

    /// Run a collective on borrowed memory and wait for it.
    pub fn run<T: Element>(
        &self,
        operation: Operation,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        self.check_lengths(&operation, input.len(), output.len())?;
        let (input, output) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        // SAFETY: the lengths fit, and we do not return before it ended.
        let (handle, posting) =
            unsafe { self.post(operation, T::DTYPE, input, output, Computed::Here) };
        self.watched(handle, posting).finish()
    }

    /// Run a collective whose input and output are one and the same, and wait for it.
    pub fn run_in_place<T: Element>(&self, operation: Operation, data: &mut [T]) -> Result<()> {
        self.check_in_place(&operation, data.len())?;
        let data: *mut u8 = data.as_mut_ptr().cast();
        // SAFETY: the length fits, and we do not return before it ended.
        let (handle, posting) =
            unsafe { self.post(operation, T::DTYPE, data, data, Computed::Here) };
        self.watched(handle, posting).finish()
    }

    fn member(&self, operation: &Operation) -> Result<u32> {
        match &operation.group {
            None => Ok(self.rank().0),
            Some(ranks) => {
                let place = ranks.iter().position(|rank| *rank == self.rank());
                let name = operation.name.clone();
                place.map(|place| place as u32).ok_or(NetError::NotInGroup { name })
            }
        }
    }

    fn check_in_place(&self, operation: &Operation, len: usize) -> Result<()> {
        let collective = &operation.collective;
        if !collective.in_place_allowed() {
            return Err(NetError::NotInPlace { name: operation.name.clone() });
        }
        let me = self.member(operation)?;
        let wanted = collective.input_len(me).max(collective.output_len(me));
        if wanted == len as u64 { Ok(()) } else { self.check_lengths(operation, len, len) }
    }

    fn check_lengths(&self, operation: &Operation, input: usize, output: usize) -> Result<()> {
        let me = self.member(operation)?;
        let (wanted_in, wanted_out) =
            (operation.collective.input_len(me), operation.collective.output_len(me));
        let name = operation.name.clone();
        if (input as u64, output as u64) == (wanted_in, wanted_out) {
            let members = operation.group.as_ref().map_or(self.size(), |ranks| ranks.len());
            let valid = operation.collective.validate_for(me, members as u32);
            return Ok(valid.map_err(|reason| Arc::new(OpError::Invalid { name, reason }))?);
        }
        Err(NetError::BufferLength {
            name,
            wanted_in,
            wanted_out,
            given_in: input,
            given_out: output,
        })
    }

    /// Every worker ends with the combination of everybody's `data`.
    pub fn all_reduce<T: Element>(
        &self,
        name: &str,
        data: &mut [T],
        reduce: ReduceOp,
    ) -> Result<()> {
        let collective = Collective::AllReduce { len: data.len() as u64 };
        self.run_in_place(Operation::new(name, collective).reduce(reduce), data)
    }

    /// Every worker ends with the root's `data`.
    pub fn broadcast<T: Element>(&self, name: &str, root: Rank, data: &mut [T]) -> Result<()> {
        let collective = Collective::Broadcast { root: root.0, len: data.len() as u64 };
        self.run_in_place(Operation::new(name, collective), data)
    }

    /// Send `data` to another worker, which receives it under the same name.
    pub fn send<T: Element>(&self, name: &str, to: Rank, data: &[T]) -> Result<()> {
        let operation = Operation::new(name, Collective::Send { to: 1, len: data.len() as u64 })
            .group([self.rank(), to].into());
        self.run(operation, data, &mut [])
    }

    /// Receive what another worker sends under the same name.
    pub fn recv<T: Element>(&self, name: &str, from: Rank, data: &mut [T]) -> Result<()> {
        let operation = Operation::new(name, Collective::Recv { from: 0, len: data.len() as u64 })
            .group([from, self.rank()].into());
        self.run(operation, &[], data)
    }

    /// Nobody leaves before everybody has come.
    pub fn barrier(&self, name: &str) -> Result<()> {
        self.run_in_place(
            Operation::new(name, Collective::Barrier).reduce(ReduceOp::Max),
            &mut [0_u8],
        )
    }

    /// Leave in good order, and give back what was recorded, if anything was.
    pub fn leave_with_record(mut self) -> Option<Record> {
        self.stop();
        let recorder = self.helm.with(|driver| driver.core().recorder.take());
        recorder.map(Recorder::finish)
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.elastic.is_some() && !self.is_outside() && !thread::panicking() {
            // Others may lack what this worker has, until all are done.
            self.drive_until(Some(Instant::now() + OTHERS_LEAVE), |crew| crew.is_idle());
            self.control.finish(OTHERS_LEAVE);
        }
        if let Some(elastic) = &mut self.elastic {
            elastic.succession.stop();
        }
        self.helm.stop();
        // The thread cannot have panicked: it only takes turns.
        let _ = thread.join();
        self.helm.with(Driver::farewell);
        if let Some(metering) = &self.metering {
            metering.close();
        }
        self.control.leave(Fate::Finished);
        if let Some(coordinator) = self.coordinator.take() {
            coordinator.wait(OTHERS_LEAVE);
        }
        // Where the job goes on without this worker, another's candidate takes the seat.
        if let Some(candidate) = self.candidate.take().filter(|_| !self.control.is_removed()) {
            candidate.finish(OTHERS_LEAVE);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}
