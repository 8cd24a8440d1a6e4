//! A job's metrics, as Python's dataclasses take them.

use paceline_sync::metrics::{JobMetrics, WorkerMetrics};
use pyo3::{prelude::*, types::PyDict};
use std::sync::Arc;

/// Seconds, upload, download, rest, for each tensor seconds of the forward and of the backward pass, and rates from others by
/// their ranks.
type WorkerShown = (f64, f64, f64, f64, Vec<f64>, Vec<f64>, Vec<(u32, f64)>);

/// `step`, `view`, the settings, `tensors` (name and bytes, in the order of the forward pass), `workers` by rank.
pub(crate) fn shown<'py>(
    py: Python<'py>,
    metrics: &Arc<JobMetrics>,
) -> PyResult<Bound<'py, PyDict>> {
    let JobMetrics { step, view, settings, shape, workers } = &**metrics;
    let shown = PyDict::new(py);
    shown.set_item("step", step)?;
    shown.set_item("view", view.0)?;
    shown.set_item("strategy", &settings.strategy.0)?;
    shown.set_item("partition", settings.partition.0)?;
    shown.set_item("credit", settings.credit.0)?;
    let tensors: Vec<(&str, u64)> =
        shape.tensors.iter().map(|tensor| (&*tensor.name, tensor.bytes)).collect();
    shown.set_item("tensors", tensors)?;
    shown.set_item("workers", workers.iter().map(worker).collect::<Vec<_>>())?;
    Ok(shown)
}

fn worker(worker: &WorkerMetrics) -> WorkerShown {
    let WorkerMetrics { seconds, upload, download, rest, layers, flows } = worker;
    let forward = layers.iter().map(|layer| layer.forward).collect();
    let backward = layers.iter().map(|layer| layer.backward).collect();
    let flows = flows.iter().map(|flow| (flow.from.0, flow.rate())).collect();
    (*seconds, *upload, *download, *rest, forward, backward, flows)
}
