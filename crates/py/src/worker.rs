//! This process's part in the job, as Python holds it: join, post operations on memory that Python
//! owns, leave. The addresses are Python's promise; everything else is checked.

use crate::{
    coordinator::{Coordinator, seconds_from},
    error::{self, PacelineError},
    handle::{Handle, Seen},
    metrics,
    notice::Notices,
    proposal::{Proposal, Size},
    request::{Choices, Held, Region, Request},
    squares::Squares,
    staging::{Device, Slot, Staging},
    trace::Recording,
    tuning,
};
use paceline_job::{Rank, Settings, StrategyChoice, View};
use paceline_net::{
    Coordinator as Hosted, JoinConfig, Measuring, NetError, Sharing as Shared, TraceConfig,
    Worker as Running, WorkerConfig, join,
};
use paceline_sync::{metrics::JobMetrics, recovery::Account};
use paceline_tune::Results;
use pyo3::{prelude::*, types::PyDict};
use std::sync::{
    Arc, Mutex, PoisonError, RwLock, RwLockReadGuard,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

/// Members that are gone, the step before which all they did counts, and `(member, step)` of later ones that do.
type Loss = (Vec<u64>, u64, Vec<(u64, u64, u64)>);

/// State on its way to those who lack it.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Sharing(Mutex<Option<Shared>>);

/// One process of the job.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Worker {
    running: Slot,
    staging: Staging,
    /// Where this worker hosts it: it outlives the worker for a moment, for the others.
    hosted: Mutex<Option<Hosted>>,
    /// As of the step it is in: in an elastic job they change from one to the next.
    rank: AtomicU32,
    size: AtomicUsize,
    /// How many workers after those only listen in this step.
    listeners: AtomicUsize,
    /// Whether the program posted operations of its own in this step, and in the one before.
    own: AtomicBool,
    own_before: AtomicBool,
    notices: Notices,
    /// Whether somebody asked for a policy.
    tuned: AtomicBool,
}

#[pymethods]
impl Worker {
    /// Join the job that the environment describes: `paceline run`, torchrun, mpirun or srun.
    #[staticmethod]
    #[pyo3(signature = (timeout=None))]
    fn from_environment(py: Python<'_>, timeout: Option<f64>) -> PyResult<Worker> {
        let config = JoinConfig::from_env().map_err(error::joining)?;
        Worker::start(py, config, None, timeout)
    }

    /// Join the job at `coordinator` (`host:port`) as `rank` of `size`. Where this worker hosts the
    /// coordinator, `hosting` is it. Everything else, and the secret if it is `None`, is as the
    /// environment says.
    #[staticmethod]
    #[pyo3(signature = (coordinator, rank, size, secret=None, hosting=None, timeout=None))]
    fn join(
        py: Python<'_>,
        coordinator: &str,
        rank: u32,
        size: usize,
        secret: Option<&str>,
        hosting: Option<&Coordinator>,
        timeout: Option<f64>,
    ) -> PyResult<Worker> {
        let variables = |name: &str| match name {
            "PACELINE_COORDINATOR" => Some(coordinator.to_string()),
            "PACELINE_SECRET" if secret.is_some() => secret.map(str::to_string),
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(size.to_string()),
            _ => std::env::var(name).ok(),
        };
        let config = JoinConfig::from_variables(&variables).map_err(error::joining)?;
        Worker::start(py, config, hosting, timeout)
    }

    /// This worker's place among all.
    #[getter]
    pub(crate) fn rank(&self) -> u32 {
        self.rank.load(Ordering::Relaxed)
    }

    /// How many workers there are, but for those that only listen in this step.
    #[getter]
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// How many workers there are, with those that only listen.
    #[getter]
    fn everyone(&self) -> usize {
        self.size() + self.listeners.load(Ordering::Relaxed)
    }

    /// The numbers that workers keep for as long as they take part, by rank; without those that only listen.
    #[getter]
    fn members(&self) -> PyResult<Vec<u64>> {
        Ok(self.view()?.ids().map(|id| id.0).take(self.size()).collect())
    }

    /// Whether the program posted operations of its own in the step before this one.
    #[getter]
    fn own_before(&self) -> bool {
        self.own_before.load(Ordering::Relaxed)
    }

    /// Whether workers of the job may come and go.
    #[getter]
    fn elastic(&self) -> bool {
        self.read().as_ref().is_some_and(Running::is_elastic)
    }

    /// Whether the strategy in force averages in groups what is to be mixed, so that workers come to differ.
    #[getter]
    fn mixes(&self) -> PyResult<bool> {
        Ok(paceline_sync::mixes(&self.view()?.settings.strategy))
    }

    /// Whether this worker came to a running job and has not entered it: until then it is alone.
    #[getter]
    fn outside(&self) -> bool {
        self.read().as_ref().is_some_and(Running::is_outside)
    }

    /// Whether others entered the job with the step that this worker is in.
    #[getter]
    fn newcomers(&self) -> bool {
        self.read().as_ref().is_some_and(Running::has_newcomers)
    }

    /// Enter the running job, in the step that this returns; all others wait there. While the job has no need of this worker,
    /// `gives_up` says whether to wait no longer.
    fn enter(&self, py: Python<'_>, gives_up: Py<PyAny>) -> PyResult<u64> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        let mut raised = None;
        let asked = || {
            let ask = |py: Python<'_>| {
                py.check_signals()?;
                gives_up.call0(py)?.is_truthy(py)
            };
            Python::attach(ask).unwrap_or_else(|error| {
                raised = Some(error);
                true
            })
        };
        let entered = py.detach(|| running.enter_unless(asked));
        if let Some(error) = raised {
            return Err(error);
        }
        let entry = entered.map_err(error::entering)?;
        self.follow(running);
        Ok(entry.step)
    }

    /// Where others last came or went: the seconds that this worker waited for operations of the steps before, and then, with
    /// nothing in progress, until the next step had begun.
    #[getter]
    fn last_gathering(&self) -> Option<(f64, f64)> {
        let gathering = self.read().as_ref().and_then(Running::last_gathering)?;
        Some((gathering.settling.as_secs_f64(), gathering.still.as_secs_f64()))
    }

    /// What each worker says of itself, by rank: all of them call it between the same two operations.
    fn roll_call(&self, py: Python<'_>, standing: u8) -> PyResult<Vec<u32>> {
        let standings = self.meet(py, |running| running.roll_call(standing))?;
        // Bytes would be Python's `bytes`.
        Ok(standings.into_iter().map(u32::from).collect())
    }

    /// Everybody gets the bytes of the senders: `regions` are `(address, bytes)`, of the same lengths on all workers. The
    /// caller keeps that memory, and leaves it alone meanwhile.
    fn share_from(
        &self,
        py: Python<'_>,
        senders: Vec<u32>,
        name: &str,
        regions: Vec<Region>,
    ) -> PyResult<()> {
        // SAFETY: the caller's promise.
        self.meet(py, |running| unsafe {
            running.share_from(&ranks(&senders), name, &places(&regions))
        })
    }

    /// The same, but those who are no senders get the bytes while the others go on: `regions` stay as they are until
    /// `finish_share` of what this returns, in the same step.
    fn begin_share(
        &self,
        py: Python<'_>,
        senders: Vec<u32>,
        name: &str,
        regions: Vec<Region>,
    ) -> PyResult<Sharing> {
        // SAFETY: the caller's promise.
        let begun = self.meet(py, |running| unsafe {
            Ok(running.begin_share(&ranks(&senders), name, &places(&regions)))
        })?;
        Ok(Sharing(Mutex::new(Some(begun))))
    }

    /// Wait until everybody has it.
    fn finish_share(&self, py: Python<'_>, sharing: &Sharing) -> PyResult<()> {
        let begun = sharing.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        begun.map_or(Ok(()), |begun| self.meet(py, |running| running.finish_share(begun)))
    }

    /// Fails on all workers if these regions are not the same on all.
    fn compare(&self, py: Python<'_>, name: &str, regions: Vec<Region>) -> PyResult<()> {
        // SAFETY: the caller's promise.
        self.meet(py, |running| unsafe { running.compare(name, &places(&regions)) })
    }

    /// So many of the last workers only listen in this step: they add nothing to operations of everyone, and take no part in
    /// the program's own. All workers say so between the same two operations.
    fn listen(&self, listeners: usize) -> PyResult<()> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        let size = running.size().saturating_sub(listeners);
        let last: Vec<Rank> = (size as u32..running.size() as u32).map(Rank).collect();
        running.listen(&last);
        self.size.store(size, Ordering::Relaxed);
        self.listeners.store(last.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Workers train copies of their own from this step on, or not any more. All workers say so in the same step.
    fn train_apart(&self, apart: bool) -> PyResult<()> {
        let running = self.read();
        running.as_ref().ok_or_else(error::closed)?.train_apart(apart);
        Ok(())
    }

    /// What became of the samples of workers that are missing since this step, the same on all workers: for each loss
    /// the members that are gone, the step before which all they did counts, and `(member, first, end)` of steps that do.
    fn take_losses(&self) -> Vec<Loss> {
        let losses = self.read().as_ref().map_or_else(Vec::new, Running::take_losses);
        let told = |account: Account| {
            let gone = account.gone.iter().map(|id| id.0).collect();
            let consumed =
                account.consumed.iter().map(|(id, first, end)| (id.0, *first, *end)).collect();
            (gone, account.over, consumed)
        };
        losses.into_iter().map(told).collect()
    }

    /// Ask for another number of workers, of whoever runs the job.
    fn resize(&self, size: usize) -> PyResult<()> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        running.propose_members(size).map_err(error::proposing)
    }

    /// Why the job does not get the number of workers that was asked for here; said once.
    fn refusal(&self) -> Option<String> {
        self.read().as_ref().and_then(Running::take_refusal)
    }

    /// Ask to leave, after a step soon after.
    fn leave(&self) -> PyResult<()> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        running.ask_to_leave().map_err(error::proposing)
    }

    /// Whether it can still take part.
    #[getter]
    fn open(&self) -> bool {
        self.read().is_some()
    }

    /// The hosts of all workers, by rank: those with the same name share memory.
    #[getter]
    fn hosts(&self) -> PyResult<Vec<String>> {
        let view = self.view()?;
        let workers = view.workers.iter().take(self.size());
        Ok(workers.map(|worker| worker.host.clone()).collect())
    }

    /// Tensors that a plan sends together, by name; the others are sent by themselves.
    #[getter]
    fn fusion(&self) -> PyResult<Vec<Vec<String>>> {
        Ok(self.view()?.fusion.groups.clone())
    }

    /// Backward passes that make one step, as a plan says.
    #[getter]
    fn accumulate(&self) -> PyResult<u32> {
        Ok(self.view()?.batch.accumulate.get())
    }

    /// Begin the step after the last; its number. Operations that are posted from now on belong to it. Every worker
    /// does so between the same two operations. Other settings, if some were agreed for this step, are in force then.
    fn begin_step(&self, py: Python<'_>) -> PyResult<u64> {
        let begun = |running: &Running| {
            // What was started before belongs to the view before, on every worker.
            running.begin_next_step(|| self.staging.wait_until_posted())
        };
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        let step = py.detach(|| begun(running)).map_err(error::proposing)?;
        self.own_before.store(self.own.swap(false, Ordering::Relaxed), Ordering::Relaxed);
        self.follow(running);
        Ok(step)
    }

    /// Propose other settings to all workers; `None` leaves one as it is. They change between two steps that all
    /// workers take alike; the answer is there when that is decided.
    #[pyo3(signature = (*, strategy=None, partition=None, credit=None))]
    fn propose(
        &self,
        strategy: Option<String>,
        partition: Option<Size>,
        credit: Option<Size>,
    ) -> PyResult<Proposal> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        let now = running.view().settings.clone();
        let settings = Settings {
            strategy: strategy.map_or(now.strategy, StrategyChoice),
            partition: partition.map_or(Ok(now.partition), Size::read)?,
            credit: credit.map_or(Ok(now.credit), Size::read)?,
            ..now
        };
        running.propose(settings).map(Proposal).map_err(error::proposing)
    }

    /// What is in force: version, strategy, partition, credit, eager, stall_report and timeout, sizes
    /// in bytes and times in seconds, and which hosts' and racks' links count as contended.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.view()?;
        let settings = PyDict::new(py);
        settings.set_item("version", view.version.0)?;
        settings.set_item("strategy", &view.settings.strategy.0)?;
        settings.set_item("partition", view.settings.partition.0)?;
        settings.set_item("credit", view.settings.credit.0)?;
        settings.set_item("eager", view.settings.eager.0)?;
        settings.set_item("stall_report", view.settings.stall_report.as_secs_f64())?;
        settings.set_item("timeout", view.settings.timeout.as_secs_f64())?;
        let contended = &view.settings.contended;
        settings.set_item("contended_hosts", contended.hosts.iter().collect::<Vec<_>>())?;
        settings.set_item("contended_racks", contended.racks.iter().collect::<Vec<_>>())?;
        Ok(settings)
    }

    /// Take part in a collective. The n-th use of a name in a group of ranks on one worker meets the
    /// n-th on every other.
    ///
    /// `kind` is one of `all_reduce`, `broadcast`, `reduce`, `send` and `recv` (`counts` has one
    /// number), `reduce_scatter`, `all_gather`, `gather` and `scatter` (one number for each member),
    /// `all_to_all` (`counts` is sent, `receives` received) and `barrier` (one `u8`). `root`, and for
    /// `send` and `recv` the other side, is a member: a place in `ranks`, which are all if `None`.
    /// `input` and `output` are `(address, elements)`; what a member does not read or write is
    /// `(0, 0)`. `keep` is kept until the operation ended; it must own that memory. `squares` is told of what goes in,
    /// and of what came out when the handle is waited for. Workers that only listen in this step take part if it is for
    /// `everyone`. `holds` is what is in it of what workers of an elastic job made of their samples: nothing, with `"step"` of those
    /// of this step, as gradients have, or of all steps below a number, as copies have.
    #[pyo3(signature = (
        kind, name, dtype, counts, input, output, *,
        receives=None, root=0, reduce="sum", priority=0, ranks=None, keep=None, squares=None, everyone=false, holds=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn post(
        &self,
        py: Python<'_>,
        kind: &str,
        name: &str,
        dtype: &str,
        counts: Vec<u64>,
        input: Region,
        output: Region,
        receives: Option<Vec<u64>>,
        root: u32,
        reduce: &str,
        priority: i64,
        ranks: Option<Vec<u32>>,
        keep: Option<Py<PyAny>>,
        squares: Option<&Squares>,
        everyone: bool,
        holds: Option<Held>,
    ) -> PyResult<Handle> {
        let (me, ranks) = self.members_of(ranks, everyone);
        let choices = Choices { receives, root, reduce, priority, ranks, holds };
        let request = Request::read(me, kind, name, dtype, counts, input, output, choices)
            .map_err(PacelineError::new_err)?;
        let Request { ref operation, dtype, .. } = request;
        let name = operation.name.clone();
        let seen = squares.map(|squares| {
            let keep = keep.as_ref().map(|keep| keep.clone_ref(py));
            Seen { measure: squares.measure(), dtype, output, keep }
        });
        let flight = self.notices.flight(keep, request.needed());
        let operation = request.operation;
        let running = py.detach(|| {
            let worker = self.read();
            let worker = worker.as_ref()?;
            if let Some(squares) = squares {
                // SAFETY: as below; nobody else has the memory yet.
                unsafe { squares.measure().contributed(dtype, input) };
            }
            let (input, output) = (input.0 as *const u8, output.0 as *mut u8);
            // SAFETY: the caller gives addresses of memory that `keep` owns, of the lengths checked
            // above; `keep` lives until the operation ended.
            Some(unsafe { worker.start_untyped(operation, dtype, input, output) })
        });
        let Some(running) = running else {
            flight.end();
            return Err(error::closed());
        };
        Ok(Handle::posted(name, running, flight, seen))
    }

    /// As `post`, for memory of a CUDA device: `input` and `output` are there, and pass through
    /// `host_input` and `host_output`, which are pinned. `streams` are handles of the device's: the
    /// one that has computed the input, one to copy down on and one to copy up on; the first may be
    /// the default one. The result is on the device as far as the last stream is concerned, and that
    /// of which `Handle.precede` was called, when the operation ended. `keep` owns all four regions.
    #[pyo3(signature = (
        kind, name, dtype, counts, input, output, host_input, host_output, streams, *,
        receives=None, root=0, reduce="sum", priority=0, ranks=None, keep=None, squares=None, everyone=false, holds=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn stage(
        &self,
        py: Python<'_>,
        kind: &str,
        name: &str,
        dtype: &str,
        counts: Vec<u64>,
        input: Region,
        output: Region,
        host_input: Region,
        host_output: Region,
        streams: (usize, usize, usize),
        receives: Option<Vec<u64>>,
        root: u32,
        reduce: &str,
        priority: i64,
        ranks: Option<Vec<u32>>,
        keep: Option<Py<PyAny>>,
        squares: Option<&Squares>,
        everyone: bool,
        holds: Option<Held>,
    ) -> PyResult<Handle> {
        let (me, ranks) = self.members_of(ranks, everyone);
        let choices = Choices { receives, root, reduce, priority, ranks, holds };
        let request =
            Request::read(me, kind, name, dtype, counts, host_input, host_output, choices)
                .and_then(|request| request.check_device(input, output).map(|()| request))
                .map_err(PacelineError::new_err)?;
        if !self.open() {
            return Err(error::closed());
        }
        let flight = self.notices.flight(keep, request.needed());
        let device = Device { input, output, streams };
        let squares = squares.map(Squares::measure);
        // SAFETY: the caller gives addresses of memory that `keep` owns, of the lengths checked above, and
        // streams of PyTorch's, which live as long as the process; `keep` lives until the flight ended and
        // its event is past.
        let staged =
            py.detach(|| unsafe { self.staging.start(&request, &device, &flight, squares) });
        match staged {
            Ok(staged) => Ok(Handle::staged(request.operation.name, staged, flight)),
            Err(problem) => {
                flight.keep_for_ever();
                flight.end();
                Err(PacelineError::new_err(format!("`{name}`: {problem}")))
            }
        }
    }

    /// What all workers last saw of the job; `None` before its first steps are over.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.latest_metrics()?.map(|metrics| metrics::shown(py, &metrics)).transpose()
    }

    /// What the program knows of its step, for people who watch the job.
    #[pyo3(signature = (loss=None, samples=None))]
    fn tell(&self, loss: Option<f64>, samples: Option<u64>) {
        if let Some(running) = self.read().as_ref() {
            running.tell(loss, samples);
        }
    }

    /// What a policy decided, for people who watch the job.
    fn decided(&self, text: String) {
        if let Some(running) = self.read().as_ref() {
            running.decisions()(text);
        }
    }

    /// Let a policy change the settings while the job runs: worker 0 asks it, the others only read the arguments.
    /// `log` is a file for its decisions; `crosses_step`, whether tensors of one step are awaited in the next; `averages`,
    /// whether it may also choose strategies that average in groups; `weights` is a file for the method that predicts by some.
    #[pyo3(signature = (method, log=None, crosses_step=true, averages=false, weights=None))]
    fn tune(
        &self,
        py: Python<'_>,
        method: &str,
        log: Option<std::path::PathBuf>,
        crosses_step: bool,
        averages: bool,
        weights: Option<std::path::PathBuf>,
    ) -> PyResult<()> {
        if self.tuned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        py.detach(|| {
            let worker = self.read();
            let worker = worker.as_ref().ok_or_else(error::closed)?;
            let results = if averages { Results::Averages } else { Results::Exact };
            tuning::begin(worker, method, log, weights.as_deref(), crosses_step, results)
        })
    }

    /// A job that was to be tuned is over for this worker: worker 0 says so if there was never anything to tune by.
    fn end_tuning(&self, method: &str) {
        if let Some(running) = self.read().as_ref() {
            tuning::end(running, method, self.tuned.load(Ordering::Relaxed));
        }
    }

    /// Let links be marked as contended, and as free again, while the job runs, where its settings say how hosts are joined.
    fn watch_links(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| tuning::watch_links(self.read().as_ref().ok_or_else(error::closed)?))
    }

    /// Write down what this worker does, into a file of `directory`, while the recording is switched on.
    fn trace(&self, directory: std::path::PathBuf) -> PyResult<Recording> {
        let config = TraceConfig::new(directory);
        let worker = self.read();
        let recording = worker.as_ref().ok_or_else(error::closed)?.trace(&config);
        Ok(Recording::new(recording.map_err(error::writing)?))
    }

    /// Call the listeners of operations as they end, until the worker is closed. One thread runs it.
    fn deliver(&self, py: Python<'_>) {
        self.notices.deliver(py);
    }

    /// Leave in good order. Operations in flight that others may need have `drain` seconds to end;
    /// what has not ended then fails. A worker that hosts the coordinator stays for the others, for
    /// `patience` seconds at most.
    #[pyo3(signature = (patience=60.0, drain=0.0))]
    fn close(&self, py: Python<'_>, patience: f64, drain: f64) {
        py.detach(|| {
            self.notices.drain(seconds_from(drain));
            let running = self.running.write().unwrap_or_else(PoisonError::into_inner).take();
            // Before the connections go: nobody should hear that the others are lost.
            self.notices.give_up(
                "this worker left the job before the operation ended; wait for operations before \
                 leaving or destroying the process group",
            );
            drop(running);
            self.staging.close();
            self.notices.keep_for_ever();
            let hosted = self.hosted.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(coordinator) = hosted {
                coordinator.wait(seconds_from(patience));
            }
        });
        self.notices.close();
    }
}

impl Worker {
    fn start(
        py: Python<'_>,
        mut config: JoinConfig,
        hosting: Option<&Coordinator>,
        timeout: Option<f64>,
    ) -> PyResult<Worker> {
        if let Some(seconds) = timeout {
            config.timeout = seconds_from(seconds);
        }
        let newcomer = config.rank.is_none() && config.size.is_none();
        let hosted = hosting.and_then(Coordinator::take);
        let running = py.detach(|| {
            let mut joined = join(config)?;
            let hosted = hosted.or(joined.coordinator.take());
            let config = WorkerConfig { measuring: measuring(), ..WorkerConfig::default() };
            Running::start(joined, config).map(|running| (running, hosted))
        });
        // Whoever has no place in the job yet may find it over.
        let failed = if newcomer { error::entering } else { error::joining };
        let (running, hosted) = running.map_err(failed)?;
        let (rank, size) = (running.rank(), running.size());
        let running: Slot = Arc::new(RwLock::new(Some(running)));
        Ok(Worker {
            rank: AtomicU32::new(rank.0),
            size: AtomicUsize::new(size),
            listeners: AtomicUsize::new(0),
            own: AtomicBool::new(false),
            own_before: AtomicBool::new(false),
            staging: Staging::new(running.clone()),
            running,
            hosted: Mutex::new(hosted),
            notices: Notices::new(),
            tuned: AtomicBool::new(false),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Running>> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranks and size may be others in this step.
    fn follow(&self, running: &Running) {
        if running.is_elastic() {
            self.rank.store(running.rank().0, Ordering::Relaxed);
            self.size.store(running.size(), Ordering::Relaxed);
            self.listeners.store(0, Ordering::Relaxed);
        }
    }

    /// This worker's rank among how many, and whom an operation names. The program's own are among those who do not only listen.
    fn members_of(
        &self,
        ranks: Option<Vec<u32>>,
        everyone: bool,
    ) -> ((Rank, usize), Option<Vec<u32>>) {
        if !everyone {
            self.own.store(true, Ordering::Relaxed);
        }
        let listened = self.listeners.load(Ordering::Relaxed) > 0;
        let ranks = match ranks {
            None if listened && !everyone => Some((0..self.size() as u32).collect()),
            ranks => ranks,
        };
        ((Rank(self.rank()), self.everyone()), ranks)
    }

    /// Something that all workers do together.
    fn meet<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&Running) -> Result<T, NetError> + Send,
    ) -> PyResult<T> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(error::closed)?;
        py.detach(|| act(running)).map_err(error::proposing)
    }

    pub(crate) fn latest_metrics(&self) -> PyResult<Option<Arc<JobMetrics>>> {
        Ok(self.read().as_ref().ok_or_else(error::closed)?.metrics())
    }

    pub(crate) fn view(&self) -> PyResult<Arc<View>> {
        self.read().as_ref().map(Running::view).ok_or_else(error::closed)
    }
}

fn ranks(numbers: &[u32]) -> Vec<Rank> {
    numbers.iter().copied().map(Rank).collect()
}

fn places(regions: &[Region]) -> Vec<(*mut u8, usize)> {
    regions.iter().map(|(address, bytes)| (*address as *mut u8, *bytes as usize)).collect()
}

/// Metrics are collected unless the environment says otherwise: to see what they cost.
fn measuring() -> Measuring {
    match std::env::var("PACELINE_METRICS").as_deref() {
        Ok("off") => Measuring::Off,
        _ => Measuring::On,
    }
}
