//! Bayesian search: a Gaussian process says what is likely where nothing was measured yet, expected improvement where to
//! measure next. What is measured, and at what cost, is not known here.

mod cholesky;
mod improvement;
mod kernel;
mod process;
mod search;
mod space;

pub use improvement::expected_improvement;
pub use kernel::{Kernel, Smoothness};
pub use process::{GaussianProcess, Likely};
pub use search::{BayesianSearch, SearchOptions};
pub use space::Space;
