//! Whether anything was recorded into the folder of `--trace`. What is in a trace is not known here.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The folder, as it was before the job.
pub struct Recording {
    folder: PathBuf,
    before: HashMap<PathBuf, SystemTime>,
}

impl Recording {
    pub fn into(folder: &Path) -> Recording {
        Recording { folder: folder.to_path_buf(), before: files(folder) }
    }

    /// What to say if traces lie there that this job's workers do not replace: they would be read with its own.
    pub fn leftovers(&self, size: usize) -> Option<String> {
        let own = |rank: usize| self.folder.join(format!("worker-{rank}.json.gz"));
        let own: HashSet<PathBuf> = (0..size).map(own).collect();
        let others = self.before.keys().filter(|path| !own.contains(*path)).count();
        (others > 0).then(|| {
            format!(
                "{} has {others} files that are not of this job; commands that read the folder leave out what another job recorded; empty it first to be sure",
                self.folder.display()
            )
        })
    }

    /// What to say if the job left nothing there.
    pub fn nothing(&self) -> Option<String> {
        let written = files(&self.folder);
        let is_new = |(path, time): (&PathBuf, &SystemTime)| self.before.get(path) != Some(time);
        if written.iter().any(is_new) {
            return None;
        }
        Some(format!(
            "paceline: no trace was written to {}: workers record once they train on Paceline, by DDP or by DistributedOptimizer, and \
             have taken more than three steps\n",
            self.folder.display()
        ))
    }
}

/// With when they were changed last. A folder that cannot be read has none.
fn files(folder: &Path) -> HashMap<PathBuf, SystemTime> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let changed = |entry: &fs::DirEntry| entry.metadata().and_then(|it| it.modified()).ok();
    entries.filter_map(|entry| Some((entry.path(), changed(&entry)?))).collect()
}
