//! A job's page on disk: the lines that it was told, in a file of a folder, so that `paceline ui` can show a run that is over.

use super::record::{FORMAT, Record, What};
use crate::exit::UsageError;
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

/// The file.
pub const FILE: &str = "page.jsonl";

/// Bytes of a file. Nothing more is kept then: training must not fill a disk.
const MOST_BYTES: u64 = 1 << 30;

/// Of this, lines about single workers' steps may take so much.
const MOST_DETAIL_BYTES: u64 = 512 << 20;

/// The longest line that is read.
const LINE_BYTES: u64 = 1 << 20;

/// Writes lines. What cannot be written is left out, and said once.
pub struct Keeper {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    detail_bytes: u64,
}

impl Keeper {
    /// Make the folder, and a file in it. One that is there is of another run, and stays.
    pub fn make(folder: &Path) -> Result<Keeper> {
        let path = folder.join(FILE);
        let unusable = |error: &dyn std::fmt::Display| {
            UsageError::new(format!("--ui-dir {}: {error}", folder.display()))
        };
        fs::create_dir_all(folder).map_err(|error| unusable(&error))?;
        let file = match File::create_new(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(unusable(&"it holds another run; give a new folder").into());
            }
            made => made.map_err(|error| unusable(&error))?,
        };
        Ok(Keeper { path, file: Some(file), bytes: 0, detail_bytes: 0 })
    }

    /// Write a line.
    pub fn keep(&mut self, line: &str) {
        let Some(file) = &mut self.file else { return };
        let length = line.len() as u64 + 1;
        let detail =
            ["\"kind\":\"seen\"", "\"kind\":\"groups\""].iter().any(|kind| line.contains(kind));
        if detail && self.detail_bytes + length > MOST_DETAIL_BYTES {
            return;
        }
        let written = match self.bytes + length > MOST_BYTES {
            true => Err(std::io::Error::other("it is as long as it may be")),
            false => file.write_all(format!("{line}\n").as_bytes()),
        };
        self.bytes += length;
        self.detail_bytes += if detail { length } else { 0 };
        if let Err(error) = written {
            eprintln!("paceline: {}: {error}; nothing more is kept", self.path.display());
            self.file = None;
        }
    }
}

/// All lines of a folder, points and all. A last line that was cut off is left out.
pub fn read(folder: &Path) -> Result<Vec<Record>> {
    let path = folder.join(FILE);
    let file = File::open(&path).map_err(|error| {
        let remedy = "give a folder that `paceline run --ui-dir` or `paceline demo --ui-dir` wrote";
        UsageError::new(format!("{}: {error}; {remedy}", path.display()))
    })?;
    let mut records = Vec::new();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = std::io::Read::take(&mut reader, LINE_BYTES).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let whole = line.last() == Some(&b'\n');
        match serde_json::from_slice::<Record>(&line) {
            Ok(record) => records.push(record),
            Err(_) if !whole && (read as u64) < LINE_BYTES => break,
            Err(error) => {
                return Err(error).with_context(|| format!("{}, line {number}", path.display()));
            }
        }
    }
    match records.first() {
        Some(Record { what: What::Job(job), .. }) if job.format == FORMAT => Ok(records),
        Some(Record { what: What::Job(job), .. }) => {
            let other = job.format;
            let text = format!("{} has form {other}, this command reads {FORMAT}", path.display());
            Err(UsageError::new(text).into())
        }
        _ => Err(UsageError::new(format!("{}: no job begins there", path.display())).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::record::Job;

    fn line(what: What) -> String {
        serde_json::to_string(&Record { t: 1, what }).unwrap()
    }

    #[test]
    fn what_was_kept_is_read_again_and_a_line_that_was_cut_off_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::make(folder.path()).unwrap();
        keeper.keep(&line(What::Job(Job { format: FORMAT, ..Job::default() })));
        keeper.keep(&line(What::Note { text: "a".to_string() }));
        keeper.file.as_mut().unwrap().write_all(b"{\"t\":1,\"kind\":\"no").unwrap();
        assert_eq!(read(folder.path()).unwrap().len(), 2);
        let again = Keeper::make(folder.path()).err().unwrap().to_string();
        assert!(again.contains("new folder"), "{again}");
    }

    #[test]
    fn what_is_no_run_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = || read(folder.path()).unwrap_err();
        assert!(refusal().to_string().contains("--ui-dir"));
        let write = |text: &str| fs::write(folder.path().join(FILE), text).unwrap();
        write("nonsense\n");
        assert!(format!("{:#}", refusal()).contains("line 1"));
        write(&(line(What::Job(Job { format: 99, ..Job::default() })) + "\n"));
        assert!(refusal().to_string().contains("form 99"));
        write("");
        assert!(refusal().to_string().contains("no job"));
    }
}
