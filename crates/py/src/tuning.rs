//! The way from a method's name to a policy that watches the job, with its decisions written to a file. How policies decide is
//! `paceline-tune`'s, how the job follows them the runtime's.

use crate::error::PacelineError;
use paceline_job::{Contended, Rank, View};
use paceline_net::Worker;
use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use paceline_tune::{ContentionWatch, Logged, Method, Results, Surroundings};
use pyo3::prelude::*;
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

/// What a search draws follows from this: a job that is run again tries the same.
const SEED: u64 = 1;

/// Let a policy tune the job, whenever this is the worker that does. All workers read the arguments, so that what is wrong
/// with them is wrong everywhere.
pub(crate) fn begin(
    worker: &Worker,
    method: &str,
    log: Option<&Path>,
    crosses_step: bool,
    results: Results,
) -> PyResult<()> {
    let refused = |problem: String| PacelineError::new_err(format!("tuning: {problem}"));
    let method: Method = method.parse().map_err(|error| refused(format!("{error}, off")))?;
    let log = log.map(Path::to_path_buf);
    if worker.rank() == Rank(0) && !worker.is_outside() {
        // Of this job only.
        let made = log.as_ref().map(|path| File::create(path).map_err(|error| (path, error)));
        made.transpose()
            .map_err(|(path, error)| refused(format!("{}: {error}", path.display())))?;
    }
    let decisions = worker.decisions();
    let make = move |view: &View| -> Option<Box<dyn Policy>> {
        let surroundings = Surroundings { crosses_step, ..Surroundings::of(view) };
        let tuner = method.tuner(&surroundings, SEED).with_results(results);
        // Behind what workers wrote who were the first before.
        let file = log.as_ref().and_then(|path| File::options().append(true).open(path).ok());
        Some(Box::new(Logged::new(tuner, Log { decided: Box::new(decisions.clone()), file })))
    };
    worker.tune(make).map_err(|error| refused(error.to_string()))
}

/// Mark links as contended by what workers get from each other, where it is known how hosts are joined.
pub(crate) fn watch_links(worker: &Worker) -> PyResult<()> {
    if worker.view().settings.topology.is_none() {
        if worker.rank() == Rank(0) {
            eprintln!(
                "paceline: links are not watched, because it is not known where hosts sit: give a topology, or let workers \
                 survey their links (PACELINE_TOPOLOGY=survey)"
            );
        }
        return Ok(());
    }
    let decisions = worker.decisions();
    // A newcomer does not know what was marked before anybody watched.
    let given = match worker.is_outside() {
        true => Contended::default(),
        false => worker.view().settings.contended.clone(),
    };
    let make = move |view: &View| -> Option<Box<dyn Policy>> {
        let watch = ContentionWatch::of(view, &given)?;
        Some(Box::new(Told { watch, decided: Box::new(decisions.clone()) }))
    };
    worker.tune(make).map_err(|error| PacelineError::new_err(format!("links: {error}")))
}

/// Tells people who watch the job why links are marked.
struct Told {
    watch: ContentionWatch,
    decided: Box<dyn Fn(String) + Send>,
}

impl Policy for Told {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let proposal = self.watch.observe(metrics)?;
        (self.decided)(proposal.reason.clone());
        Some(proposal)
    }
}

/// Where decisions go: to people who watch the job, and to a file if there is one.
struct Log {
    decided: Box<dyn Fn(String) + Send>,
    file: Option<File>,
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
