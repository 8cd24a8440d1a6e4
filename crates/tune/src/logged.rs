//! A tuner whose decisions are written down as JSON lines, wherever that is, and the file they go to in a job. It decides
//! nothing.

use crate::Tuner;
use paceline_sync::{
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Writes each decision as a line. What cannot be written is left out: a full disk must not end a job.
pub struct Logged<W> {
    tuner: Tuner,
    log: W,
}

impl<W: Write + Send> Logged<W> {
    /// Write the decisions of `tuner` to `log`.
    pub fn new(tuner: Tuner, log: W) -> Logged<W> {
        Logged { tuner, log }
    }

    fn write(&mut self) {
        for decision in self.tuner.take_decisions() {
            let Ok(mut line) = serde_json::to_string(&decision) else { continue };
            line.push('\n');
            let _ = self.log.write_all(line.as_bytes()).and_then(|()| self.log.flush());
        }
    }
}

impl<W: Write + Send> Policy for Logged<W> {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        let proposal = self.tuner.observe(metrics);
        self.write();
        proposal
    }

    fn refused(&mut self, proposal: &Proposal, reason: &str) {
        self.tuner.refused(proposal, reason);
        self.write();
    }
}

/// A file for decisions, which workers of a job write one after another: each behind what others wrote. Copies are of the same
/// file.
#[derive(Clone, Debug)]
pub struct DecisionFile {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    /// Whether something could not be written, which is said once.
    failed: bool,
    /// Whether a line may have been cut.
    torn: bool,
}

/// Free space there, or name another file for the next job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "decisions cannot be written to {}: {problem}; the job goes on, and later ones are written as soon as they can be: make room \
     there, or name another file with --tune-log", .path.display()
)]
pub struct NotWritten {
    /// Where to.
    pub path: PathBuf,
    /// Why not.
    pub problem: String,
}

impl DecisionFile {
    /// At this place. It is made when there is something to write, if it is not there.
    pub fn new(path: PathBuf) -> DecisionFile {
        DecisionFile { path, state: Arc::default() }
    }

    /// Write a line behind all others. An error is of the first that could not be written; nothing is said of others.
    pub fn append(&self, line: &[u8]) -> Result<(), NotWritten> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = state.append(&self.path, line) else { return Ok(()) };
        if std::mem::replace(&mut state.failed, true) {
            return Ok(());
        }
        Err(NotWritten { path: self.path.clone(), problem: error.to_string() })
    }
}

impl State {
    fn append(&mut self, path: &Path, line: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::options().append(true).create(true).open(path)?),
        };
        let before: &[u8] = if self.torn { b"\n" } else { b"" };
        self.torn = true;
        file.write_all(&[before, line].concat())?;
        self.torn = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_follows_writes_behind_the_others_and_makes_the_file_where_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let [first, second] = [(); 2].map(|()| DecisionFile::new(path.clone()));
        first.append(b"1\n").unwrap();
        second.append(b"2\n").unwrap();
        first.append(b"3\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"1\n2\n3\n");
    }

    #[test]
    fn what_cannot_be_written_is_said_once_with_the_name_of_the_file() {
        let full = DecisionFile::new("/dev/full".into());
        let error = full.append(b"1\n").unwrap_err();
        assert_eq!(error.path, Path::new("/dev/full"));
        assert!(error.to_string().contains("/dev/full: No space"), "{error}");
        // Whoever is made anew for other workers is the same to people.
        assert_eq!(full.clone().append(b"2\n"), Ok(()));
    }

    #[test]
    fn a_file_that_can_be_written_again_begins_a_new_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/log.jsonl");
        let log = DecisionFile::new(path.clone());
        assert!(log.append(b"1\n").unwrap_err().to_string().contains("No such file"));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        log.append(b"2\n").unwrap();
        log.state.lock().unwrap().torn = true;
        log.append(b"3\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2\n\n3\n");
    }
}
