//! A recording, as Python's hooks use it. They run many times in a step, so telling something is one call that takes
//! numbers, looks at the clock and pushes into a ring; everything with names comes once, at the end.

use crate::error::{self, PacelineError};
use paceline_job::{
    Dtype,
    trace::{Layer, Tensor},
};
use paceline_net::{
    Activity, Description, Kernel, Recording as Running, Summary, monotonic_nanoseconds,
};
use pyo3::prelude::*;

/// A recording in progress.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Recording {
    running: Running,
}

impl Recording {
    pub(crate) fn new(running: Running) -> Recording {
        Recording { running }
    }
}

/// A layer as Python describes it: its name, its tensors (name, elements, type) and the bytes of its activations.
type LayerGiven = (String, Vec<(String, u64, String)>, u64);

/// A kernel as Python describes it: name, begin and length in nanoseconds, device, stream.
type KernelGiven = (String, i64, u64, u32, u32);

#[pymethods]
impl Recording {
    /// Nanoseconds on the clock of all times here.
    #[staticmethod]
    fn now() -> u64 {
        monotonic_nanoseconds()
    }

    /// Whether anything is kept from now on.
    fn switch(&self, on: bool) {
        self.running.switch(on);
    }

    /// This thread was busy with `activity` (forward, backward, update, other, wait, post: 0 to 5) of the layer of this
    /// number (none if negative) from `begin` until `end`, or now.
    #[pyo3(signature = (activity, layer, begin, end=None, device=None))]
    fn span(
        &self,
        activity: usize,
        layer: i64,
        begin: u64,
        end: Option<u64>,
        device: Option<u32>,
    ) -> PyResult<()> {
        let end = end.unwrap_or_else(monotonic_nanoseconds);
        let unknown = || PacelineError::new_err(format!("there is no activity {activity}"));
        let activity = *Activity::ALL.get(activity).ok_or_else(unknown)?;
        self.running.span(activity, u32::try_from(layer).ok(), begin, end, device);
        Ok(())
    }

    /// Step `number` took from `begin` until `end`.
    fn step(&self, number: u64, begin: u64, end: u64) {
        self.running.step(number, begin, end);
    }

    /// Events that were lost so far.
    #[getter]
    fn dropped(&self) -> u64 {
        self.running.dropped()
    }

    /// End it; the file is written in the background.
    fn finish(
        &self,
        layers: Vec<LayerGiven>,
        crosses_step: bool,
        kernels: Vec<KernelGiven>,
    ) -> PyResult<()> {
        let layers = layers.into_iter().map(layer).collect::<Result<_, _>>();
        let kernels = kernels.into_iter().map(|(name, begin, nanoseconds, device, stream)| {
            Kernel { name, begin, nanoseconds, device, stream }
        });
        self.running.finish(Description {
            layers: layers.map_err(PacelineError::new_err)?,
            crosses_step,
            kernels: kernels.collect(),
        });
        Ok(())
    }

    /// Wait until the file is there: its path, how many events it has and how many were lost. `None` if that was told
    /// before.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<(std::path::PathBuf, u64, u64)>> {
        match py.detach(|| self.running.wait()) {
            None => Ok(None),
            Some(Ok(Summary { path, events, dropped })) => Ok(Some((path, events, dropped))),
            Some(Err(error)) => Err(error::writing(error)),
        }
    }
}

fn layer((name, tensors, activation_bytes): LayerGiven) -> Result<Layer, String> {
    let tensors = tensors.into_iter().map(|(name, elements, dtype)| {
        let dtype: Dtype = dtype.parse()?;
        Ok(Tensor { name: name.into(), elements, dtype })
    });
    Ok(Layer {
        name: name.into(),
        tensors: tensors.collect::<Result<_, String>>()?,
        activation_bytes,
    })
}
