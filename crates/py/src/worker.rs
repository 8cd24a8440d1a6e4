//! This process's part in the job, as Python holds it: join, post operations on memory that Python
//! owns, leave. The addresses are Python's promise; everything else is checked here.

use crate::{
    coordinator::{Coordinator, seconds_from},
    error::{self, PacelineError},
    handle::Handle,
    notice::{Needed, Notices},
    trace::Recording,
};
use paceline_job::{Dtype, Rank, ReduceOp, View};
use paceline_net::{
    Coordinator as Hosted, JoinConfig, Operation, TraceConfig, Worker as Running, WorkerConfig,
    join,
};
use paceline_sync::collective::Collective;
use pyo3::{prelude::*, types::PyDict};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// One process of the job.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Worker {
    running: RwLock<Option<Running>>,
    /// Where this worker hosts it: it outlives the worker for a moment, for the others.
    hosted: Mutex<Option<Hosted>>,
    rank: Rank,
    size: usize,
    notices: Notices,
}

/// A piece of memory as Python describes it: address and number of elements.
type Region = (usize, u64);

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
    fn rank(&self) -> u32 {
        self.rank.0
    }

    /// How many workers there are.
    #[getter]
    fn size(&self) -> usize {
        self.size
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
        Ok(view.workers.iter().map(|worker| worker.host.clone()).collect())
    }

    /// Tensors in the order in which a step needs them, first come most urgent; empty until it is known.
    #[getter]
    fn order(&self) -> PyResult<Vec<String>> {
        Ok(self.view()?.order.clone())
    }

    /// Put the order in which a step needs its tensors into the next view. Every worker does so between the
    /// same two operations, with the same names.
    fn install_order(&self, names: Vec<String>) -> PyResult<()> {
        let running = self.read();
        let running = running.as_ref().ok_or_else(closed)?;
        let view = running.view().with_order(names);
        running.install(view).map_err(|error| PacelineError::new_err(error.to_string()))
    }

    /// What is in force: version, strategy, partition, credit, eager, stall_report and timeout, sizes
    /// in bytes and times in seconds.
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
    /// `(0, 0)`. `keep` is kept until the operation ended; it must own that memory.
    #[pyo3(signature = (
        kind, name, dtype, counts, input, output, *,
        receives=None, root=0, reduce="sum", priority=0, ranks=None, keep=None
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
    ) -> PyResult<Handle> {
        let dtype: Dtype = dtype.parse().map_err(PacelineError::new_err)?;
        let reduce: ReduceOp = reduce.parse().map_err(PacelineError::new_err)?;
        let collective =
            collective(kind, counts, receives, root).map_err(PacelineError::new_err)?;
        let group: Option<Arc<[Rank]>> = ranks.map(|ranks| ranks.into_iter().map(Rank).collect());
        self.check(name, &collective, group.as_deref(), dtype, input, output)?;
        let needed = match collective {
            Collective::Recv { .. } => Needed::ByNobodyElse,
            _ => Needed::ByOthers,
        };
        let flight = self.notices.flight(keep, needed);
        let mut operation = Operation::new(name, collective).reduce(reduce).priority(priority);
        operation.group = group;
        let running = py.detach(|| {
            let worker = self.read();
            let worker = worker.as_ref()?;
            let (input, output) = (input.0 as *const u8, output.0 as *mut u8);
            // SAFETY: the caller gives addresses of memory that `keep` owns, of the lengths checked
            // above; `keep` lives until the operation ended.
            Some(unsafe { worker.start_untyped(operation, dtype, input, output) })
        });
        let Some(running) = running else {
            flight.end(Ok(()));
            return Err(closed());
        };
        Ok(Handle::new(running, flight))
    }

    /// Write down what this worker does, into a file of `directory`, while the recording is switched on.
    fn trace(&self, directory: std::path::PathBuf) -> PyResult<Recording> {
        let config = TraceConfig::new(directory);
        let worker = self.read();
        let recording = worker.as_ref().ok_or_else(closed)?.trace(&config);
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
        let hosted = hosting.and_then(Coordinator::take);
        let running = py.detach(|| {
            let mut joined = join(config)?;
            let hosted = hosted.or(joined.coordinator.take());
            Running::start(joined, WorkerConfig::default()).map(|running| (running, hosted))
        });
        let (running, hosted) = running.map_err(error::joining)?;
        Ok(Worker {
            rank: running.rank(),
            size: running.size(),
            running: RwLock::new(Some(running)),
            hosted: Mutex::new(hosted),
            notices: Notices::new(),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Running>> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> PyResult<Arc<View>> {
        self.read().as_ref().map(Running::view).ok_or_else(closed)
    }

    /// The lengths must fit what the collective reads and writes, or the engine would leave them.
    fn check(
        &self,
        name: &str,
        collective: &Collective,
        group: Option<&[Rank]>,
        dtype: Dtype,
        input: Region,
        output: Region,
    ) -> PyResult<()> {
        let members = group.map_or(self.size, <[Rank]>::len) as u32;
        let wrong = |problem: String| PacelineError::new_err(format!("`{name}`: {problem}"));
        let me = match group {
            None => Some(self.rank.0),
            Some(ranks) => ranks.iter().position(|rank| *rank == self.rank).map(|at| at as u32),
        };
        let me = me.ok_or_else(|| wrong("this worker is not in the operation's group".into()))?;
        collective.validate_for(me, members).map_err(wrong)?;
        let (wanted_in, wanted_out) = (collective.input_len(me), collective.output_len(me));
        if input.1 < wanted_in || output.1 < wanted_out {
            return Err(wrong(format!(
                "the {collective} reads {wanted_in} and writes {wanted_out} elements; it was given \
                 {} and {}",
                input.1, output.1
            )));
        }
        for (what, (address, elements)) in [("input", input), ("output", output)] {
            if elements > 0 && (address == 0 || !address.is_multiple_of(dtype.size())) {
                return Err(wrong(format!("the {what} is not aligned memory of {dtype}")));
            }
        }
        let (first, second) = (bytes_of(input, dtype), bytes_of(output, dtype));
        let same = input.0 == output.0 && collective.in_place_allowed();
        if !same && first.start < second.end && second.start < first.end {
            return Err(wrong("input and output overlap; give one of them its own memory".into()));
        }
        Ok(())
    }
}

fn bytes_of((address, elements): Region, dtype: Dtype) -> std::ops::Range<u128> {
    let start = address as u128;
    start..start + u128::from(elements) * dtype.size() as u128
}

fn closed() -> PyErr {
    PacelineError::new_err("this worker has left the job; join again first")
}

fn collective(
    kind: &str,
    counts: Vec<u64>,
    receives: Option<Vec<u64>>,
    root: u32,
) -> Result<Collective, String> {
    let one = || match counts.as_slice() {
        [len] => Ok(*len),
        other => Err(format!("{kind} takes one count, not {}", other.len())),
    };
    Ok(match kind {
        "all_reduce" => Collective::AllReduce { len: one()? },
        "broadcast" => Collective::Broadcast { root, len: one()? },
        "reduce" => Collective::Reduce { root, len: one()? },
        "send" => Collective::Send { to: root, len: one()? },
        "recv" => Collective::Recv { from: root, len: one()? },
        "reduce_scatter" => Collective::ReduceScatter { counts: counts.into() },
        "all_gather" => Collective::AllGather { counts: counts.into() },
        "gather" => Collective::Gather { root, counts: counts.into() },
        "scatter" => Collective::Scatter { root, counts: counts.into() },
        "all_to_all" => {
            let receives = receives.ok_or("all_to_all needs `receives`")?;
            Collective::AllToAll { sends: counts.into(), receives: receives.into() }
        }
        "barrier" => Collective::Barrier,
        other => return Err(format!("unknown collective `{other}`")),
    })
}
