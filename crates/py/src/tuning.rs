//! The way from a method's name to a policy that watches the job, with its decisions written to a file. How policies decide is
//! `paceline-tune`'s, how the job follows them the runtime's.

use crate::error::PacelineError;
use paceline_job::Rank;
use paceline_net::Worker;
use paceline_sync::policy::Policy;
use paceline_tune::{Logged, Method, Surroundings, Tuner};
use pyo3::prelude::*;
use std::{fs::File, path::Path};

/// What a search draws follows from this: a job that is run again tries the same.
const SEED: u64 = 1;

/// Let a policy tune the job, if this is the worker that does. All workers read the arguments, so that what is wrong with
/// them is wrong everywhere.
pub(crate) fn begin(
    worker: &Worker,
    method: &str,
    log: Option<&Path>,
    crosses_step: bool,
) -> PyResult<()> {
    let refused = |problem: String| PacelineError::new_err(format!("tuning: {problem}"));
    let method: Method = method.parse().map_err(|error| refused(format!("{error}, off")))?;
    let surroundings = Surroundings { crosses_step, ..Surroundings::of(&worker.view()) };
    let tuner = method.tuner(&surroundings, SEED);
    if worker.rank() != Rank(0) || worker.size() == 1 {
        return Ok(());
    }
    let policy = logged(tuner, log).map_err(refused)?;
    worker.tune(policy).map_err(|error| refused(error.to_string()))
}

fn logged(tuner: Tuner, log: Option<&Path>) -> Result<Box<dyn Policy>, String> {
    let Some(path) = log else { return Ok(Box::new(tuner)) };
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Box::new(Logged::new(tuner, file)))
}
