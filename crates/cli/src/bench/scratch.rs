//! Folders for one run, which nobody finds afterwards, however it ends.

use super::shared_memory;
use anyhow::{Context, Result};
use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// See the file's first paragraph.
pub struct Scratch {
    folder: TempDir,
    /// Apart, because it may be small: what is full there must not silence those who say so.
    memory: TempDir,
    /// Waits for the end of this process, however it comes, and removes the folders.
    sweeper: Child,
}

impl Scratch {
    /// Make the folders.
    pub fn make() -> Result<Scratch> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("paceline-bench-");
        let folder = builder.tempdir().context("make a temporary folder")?;
        let memory = builder.tempdir_in(shared_memory::FOLDER).or_else(|_| builder.tempdir());
        let memory = memory.context("make a temporary folder")?;
        // Its input ends when we do, even by SIGKILL. A group of its own: Ctrl-C is not meant for it.
        let sweeper = Command::new("/bin/sh")
            .args(["-c", "cat >/dev/null; rm -rf -- \"$@\"", "paceline-sweeper"])
            .args([folder.path(), memory.path()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start /bin/sh, which removes temporary files")?;
        Ok(Scratch { folder, memory, sweeper })
    }

    /// For programs, logs and whatever else is small.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// For segments that processes share: in memory, where the machine has such a place.
    pub fn in_memory(&self) -> &Path {
        self.memory.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.sweeper.stdin.take());
        // It removes the folders, or finds them removed.
        let _ = self.sweeper.wait();
    }
}
