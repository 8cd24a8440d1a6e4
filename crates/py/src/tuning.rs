//! The way from a method's name to a policy that watches the job, with its decisions written to a file. How policies decide is
//! `paceline-tune`'s, how the job follows them the runtime's.

use crate::error::PacelineError;
use paceline_job::Rank;
use paceline_net::Worker;
use paceline_tune::{Logged, Method, Results, Surroundings};
use pyo3::prelude::*;
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

/// What a search draws follows from this: a job that is run again tries the same.
const SEED: u64 = 1;

/// Let a policy tune the job, if this is the worker that does. All workers read the arguments, so that what is wrong with
/// them is wrong everywhere.
pub(crate) fn begin(
    worker: &Worker,
    method: &str,
    log: Option<&Path>,
    crosses_step: bool,
    results: Results,
) -> PyResult<()> {
    let refused = |problem: String| PacelineError::new_err(format!("tuning: {problem}"));
    let method: Method = method.parse().map_err(|error| refused(format!("{error}, off")))?;
    let surroundings = Surroundings { crosses_step, ..Surroundings::of(&worker.view()) };
    let tuner = method.tuner(&surroundings, SEED).with_results(results);
    if worker.rank() != Rank(0) || worker.size() == 1 {
        return Ok(());
    }
    let log = Log::open(log, Box::new(worker.decisions())).map_err(refused)?;
    worker.tune(Box::new(Logged::new(tuner, log))).map_err(|error| refused(error.to_string()))
}

/// Where decisions go: to people who watch the job, and to a file if there is one.
struct Log {
    decided: Box<dyn Fn(String) + Send>,
    file: Option<File>,
}

impl Log {
    fn open(path: Option<&Path>, decided: Box<dyn Fn(String) + Send>) -> Result<Log, String> {
        let open = |path: &Path| {
            File::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        Ok(Log { decided, file: path.map(open).transpose()? })
    }
}

impl Write for Log {
    /// A line at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (self.decided)(String::from_utf8_lossy(line).trim().to_string());
        if let Some(file) = &mut self.file {
            file.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}
