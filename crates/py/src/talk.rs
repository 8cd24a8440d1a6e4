//! What workers tell each other of each step, as Python's policies take part in it. What is said, what all know of it and when it is
//! followed, `paceline-sync` knows.

use crate::{error::PacelineError, metrics, proposal::Size, squares::Squares, worker::Worker};
use paceline_job::StrategyChoice;
use paceline_sync::{
    adaptation::{Company, Observed, Remembered, SettingsWish, Talk as Inner},
    policy::{Moment, Wishes},
};
use pyo3::{prelude::*, types::PyDict};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which step, seconds, what was reported, and who was slow.
type Known = (u64, f64, std::collections::BTreeMap<String, f64>, Option<f64>);

/// Batch, factor on the learning rate, workers, mode, and why.
type Agreed = (Option<u64>, Option<f64>, Option<usize>, Option<String>, String);

/// One worker's part in it.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Talk(Mutex<Inner>);

#[pymethods]
impl Talk {
    /// Of numbers with these names; `batch` samples make a step of one worker.
    #[new]
    #[pyo3(signature = (names, batch=None))]
    fn new(names: Vec<String>, batch: Option<u64>) -> Talk {
        Talk(Mutex::new(Inner::new(names, batch)))
    }

    /// The step that workers are in.
    #[getter]
    fn step(&self) -> u64 {
        self.inner().step()
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.inner().epoch
    }

    #[setter]
    fn set_epoch(&self, epoch: u64) {
        self.inner().epoch = epoch;
    }

    /// Samples of one worker's step.
    #[getter]
    fn batch(&self) -> Option<u64> {
        self.inner().batch()
    }

    #[setter]
    fn set_batch(&self, batch: Option<u64>) {
        self.inner().set_batch(batch);
    }

    /// The same, where it was agreed.
    #[getter]
    fn followed_batch(&self) -> Option<u64> {
        self.inner().followed_batch()
    }

    #[getter]
    fn learning_rate(&self) -> f64 {
        self.inner().learning_rate
    }

    #[setter]
    fn set_learning_rate(&self, factor: f64) {
        self.inner().learning_rate = factor;
    }

    #[getter]
    fn mode(&self) -> String {
        self.inner().mode.clone()
    }

    #[setter]
    fn set_mode(&self, mode: String) {
        self.inner().mode = mode;
    }

    #[getter]
    fn throughput(&self) -> Option<f64> {
        self.inner().throughput()
    }

    /// What all know of the last step that all have heard of.
    #[getter]
    fn observed(&self) -> Option<Known> {
        let shown = |it: &Observed| (it.step, it.seconds, it.reported.clone(), it.interference);
        self.inner().observed().map(shown)
    }

    /// Noise scale, variance of one sample's gradient, and squared norm of the true one.
    #[getter]
    fn noise(&self) -> (Option<f64>, Option<f64>, Option<f64>) {
        let inner = self.inner();
        let noise = inner.noise();
        (noise.scale(), noise.variance(), noise.squared_norm())
    }

    /// The last metrics that all have heard of, as `Worker.metrics` has them.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let latest = self.inner().metrics().cloned();
        latest.map(|metrics| metrics::shown(py, &metrics)).transpose()
    }

    /// How many numbers a worker says.
    #[getter]
    fn numbers(&self) -> usize {
        self.inner().numbers()
    }

    /// Whether workers stay together otherwise from the next step on.
    #[getter]
    fn switches(&self) -> bool {
        self.inner().switches()
    }

    /// Whether anybody reads numbers of that name.
    fn knows(&self, name: &str) -> bool {
        self.inner().knows(name)
    }

    /// A number of this worker's step.
    fn report(&self, name: &str, value: f64) {
        self.inner().report(name, value);
    }

    /// Squared norms of a step's gradients, as far as this worker looked at them.
    fn report_norms(&self, squares: &Squares) {
        if let Some((own, averaged)) = squares.found() {
            self.inner().report_norms(own, averaged);
        }
    }

    /// A policy wants these.
    #[pyo3(signature = (*, batch_size=None, learning_rate=None, size=None, mode=None, reason=String::new()))]
    fn want(
        &self,
        batch_size: Option<u64>,
        learning_rate: Option<f64>,
        size: Option<usize>,
        mode: Option<String>,
        reason: String,
    ) {
        let wishes =
            Wishes { batch: batch_size, learning_rate, size, mode, reason, ..Wishes::default() };
        self.inner().want(wishes);
    }

    /// A policy wants other settings.
    #[pyo3(signature = (*, strategy=None, partition=None, credit=None))]
    fn ask(
        &self,
        strategy: Option<String>,
        partition: Option<Size>,
        credit: Option<Size>,
    ) -> PyResult<()> {
        let wish = SettingsWish {
            strategy: strategy.map(StrategyChoice),
            partition: partition.map(Size::read).transpose()?,
            credit: credit.map(Size::read).transpose()?,
        };
        self.inner().ask(wish);
        Ok(())
    }

    /// What this worker is to propose now of what was asked for.
    fn due(&self, worker: &Worker) -> PyResult<Option<(String, u64, u64)>> {
        let view = worker.view()?;
        let due = self.inner().due(worker.rank() as usize, &view.settings);
        Ok(due.map(|it| (it.strategy.0, it.partition.0, it.credit.0)))
    }

    /// The step is over, so many seconds after the last of which this was said; how long this worker's last step took.
    fn time(&self, seconds: f64, worker: &Worker) -> f64 {
        let mut inner = self.inner();
        inner.time(seconds, worker.size());
        inner.own_seconds()
    }

    /// What this worker says of the last step that was timed.
    fn say(&self, worker: &Worker) -> PyResult<Vec<f64>> {
        let latest = worker.latest_metrics()?;
        Ok(self.inner().say(worker.rank() as usize, latest))
    }

    /// What all said, summed.
    fn hear(&self, sums: Vec<f64>) {
        self.inner().hear(&sums);
    }

    /// The next step begins; what all are to follow.
    fn begin_step(&self) -> Agreed {
        let agreed = self.inner().begin_step();
        (agreed.batch, agreed.learning_rate, agreed.size, agreed.mode, agreed.reason)
    }

    /// The next step begins, in which workers do not meet.
    fn pass_step(&self) {
        self.inner().pass_step();
    }

    /// Batches of so many samples are followed from now on.
    fn follow_batch(&self, batch: u64) {
        self.inner().follow_batch(batch);
    }

    /// All of it as text, with what was said in the last step and is still to be heard.
    #[pyo3(signature = (said=None))]
    fn remember(&self, said: Option<Vec<f64>>) -> String {
        self.inner().remember(said.as_deref()).text()
    }

    /// Go on from that text; what is still to be heard.
    fn resume(&self, text: &str, worker: &Worker) -> PyResult<Option<Vec<f64>>> {
        let remembered = Remembered::read(text);
        let remembered = remembered.map_err(|error| PacelineError::new_err(error.to_string()))?;
        Ok(self.inner().resume(remembered, worker.size()))
    }
}

impl Talk {
    /// What policies are shown now.
    pub(crate) fn moment(&self, worker: &Worker) -> PyResult<Moment> {
        let (rank, size, view) = (worker.rank() as usize, worker.size(), worker.view()?);
        Ok(self.inner().moment(Company { rank, size, settings: &view.settings }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
