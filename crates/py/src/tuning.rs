//! The way from a method's name to a policy that watches the job, with its decisions written to a file. How policies decide is
//! `paceline-tune`'s, how the job follows them the runtime's.

use crate::error::PacelineError;
use paceline_job::{Contended, Rank, View};
use paceline_net::{Unwatched, Worker};
use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use paceline_tune::{ContentionWatch, DecisionFile, Logged, Method, Results, Surroundings};
use pyo3::prelude::*;
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// What a search draws follows from this: a job that is run again tries the same.
const SEED: u64 = 1;

/// Let a policy tune the job, whenever this is the worker that does. All workers read the arguments, so that what is wrong
/// with them is wrong everywhere.
pub(crate) fn begin(
    worker: &Worker,
    method: &str,
    log: Option<PathBuf>,
    weights: Option<&Path>,
    crosses_step: bool,
    results: Results,
) -> PyResult<()> {
    let refused = |problem: String| PacelineError::new_err(format!("tuning: {problem}"));
    let method: Method = method.parse().map_err(|error| refused(format!("{error}, off")))?;
    let weights = weights.map(|file| Method::weights(&[method], file));
    let weights = weights.transpose().map_err(|error| refused(error.to_string()))?;
    if speaks(worker) {
        // Of this job only.
        let made = log.as_ref().map(|path| File::create(path).map_err(|error| (path, error)));
        made.transpose()
            .map_err(|(path, error)| refused(format!("{}: {error}", path.display())))?;
    }
    let log = log.map(DecisionFile::new);
    let decisions = worker.decisions();
    let make = move |view: &View| -> Option<Box<dyn Policy>> {
        let surroundings = Surroundings { crosses_step, ..Surroundings::of(view) };
        let tuner = method.tuner_with(weights.as_ref(), &surroundings, SEED).with_results(results);
        let log = Log { decided: Box::new(decisions.clone()), file: log.clone() };
        Some(Box::new(Logged::new(tuner, log)))
    };
    worker.tune(make).map_err(|error| refused(error.to_string()))?;
    if speaks(worker)
        && let Some(reason @ (Unwatched::NotMeasuring | Unwatched::Alone)) = worker.unwatched()
    {
        eprintln!("paceline: tuning by {method} can do nothing: {reason}");
    }
    Ok(())
}

/// Say so, where a job that was to be tuned is over and nothing was ever observed. `begun`: whether tuning began, so that what was known
/// then has been said.
pub(crate) fn end(worker: &Worker, method: &str, begun: bool) {
    if !speaks(worker) {
        return;
    }
    let reason = match (begun, worker.unwatched()) {
        (true, None | Some(Unwatched::NotMeasuring | Unwatched::Alone)) => return,
        (true, Some(reason)) | (false, Some(reason @ (Unwatched::NotMeasuring | Unwatched::Alone))) => {
            reason.to_string()
        }
        (false, None | Some(Unwatched::NothingSeen)) => {
            "the program trained neither by `DistributedOptimizer` nor by DDP over the backend `paceline`: use one of them"
                .to_string()
        }
    };
    eprintln!("paceline: tuning by {method} did nothing: {reason}");
}

/// One worker speaks for all.
fn speaks(worker: &Worker) -> bool {
    worker.rank() == Rank(0) && !worker.is_outside()
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
    file: Option<DecisionFile>,
}

impl Write for Log {
    /// A line at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (self.decided)(String::from_utf8_lossy(line).trim().to_string());
        if let Some(Err(problem)) = self.file.as_mut().map(|file| file.append(line)) {
            eprintln!("paceline: tuning: {problem}");
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
