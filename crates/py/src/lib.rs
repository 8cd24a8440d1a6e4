//! The Python border: `paceline._native`. It turns Python's arguments into the runtime's types and
//! the runtime's errors into exceptions, and it lets go of the interpreter wherever it may wait. It
//! knows nothing of PyTorch: memory comes as addresses and lengths.

mod coordinator;
mod cuda;
mod error;
mod handle;
mod metrics;
mod notice;
mod policy;
mod proposal;
mod request;
mod sampler;
mod squares;
mod staging;
mod talk;
mod trace;
mod tuning;
mod worker;

use paceline_sync::adaptation::{EXCHANGE, URGENCY, VOTE};
use pyo3::prelude::*;

/// The engine under the Python package. Use `paceline` instead.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("EXCHANGE", EXCHANGE)?;
    module.add("URGENCY", URGENCY)?;
    module.add("VOTE", VOTE)?;
    module.add_class::<worker::Worker>()?;
    module.add_class::<worker::Sharing>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<coordinator::Coordinator>()?;
    module.add_class::<trace::Recording>()?;
    module.add_class::<proposal::Proposal>()?;
    module.add_class::<policy::ShippedPolicy>()?;
    module.add_class::<sampler::Sampler>()?;
    module.add_class::<squares::Squares>()?;
    module.add_class::<talk::Talk>()?;
    module.add_class::<sampler::Deal>()?;
    module.add_function(wrap_pyfunction!(coordinator::fresh_secret, module)?)?;
    module.add_function(wrap_pyfunction!(coordinator::interface_address, module)?)?;
    module.add_function(wrap_pyfunction!(handle::wait_any, module)?)?;
    error::add_to(module)
}
