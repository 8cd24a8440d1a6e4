//! Where a coordinator writes down what it must not forget ([`Record`]), before it tells anybody: a file on this machine,
//! or etcd for several machines. A store knows what was written and whether it is still ours to write; it decides
//! nothing about views.

mod disk;
mod etcd;

pub use disk::DiskStore;
pub use etcd::{Etcd, EtcdStore, Seat};

use crate::coordinator::JobId;
use paceline_sync::agreement::Minutes;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt::{self, Write};

/// The version of what is written.
const FORMAT: u32 = 1;

/// A record is a view and some numbers; whatever is larger is none. The largest view has a few hundred bytes for each
/// worker.
const MOST_BYTES: u64 = 1 << 24;

/// What a coordinator must not forget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Whose coordinator it is.
    pub job: JobId,
    /// What its registrar decided.
    pub minutes: Minutes,
}

/// Keeps the latest record of one job.
pub trait Store: Send + fmt::Debug {
    /// The record that was saved last, if there is one.
    fn load(&mut self) -> Result<Option<Record>, StoreError>;

    /// Whether another coordinator may have the job by now, so that this one must say nothing more.
    fn is_deposed(&self) -> bool {
        false
    }

    /// Whether it is held for a time only, and can be lost without a word.
    fn is_lent(&self) -> bool {
        false
    }

    /// The job is over: the next of this name is another.
    fn forget(&mut self) -> Result<(), StoreError>;

    /// Keep this record instead. It is safe when this returns.
    fn save(&mut self, record: &Record) -> Result<(), StoreError>;
}

/// Why nothing could be kept or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Make room, or the folder writable; it is tried again meanwhile.
    #[error("{place} cannot be used: {problem}")]
    Unusable {
        /// The file, or the address of etcd.
        place: String,
        /// What the system said.
        problem: String,
    },
    /// Somebody else changed it, or the disk is failing: remove it, and begin the job again.
    #[error(
        "{place} does not hold what a coordinator wrote: {problem}; remove it, and begin the job again from its last checkpoint"
    )]
    Damaged {
        /// The file or key.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing to mend: another coordinator has the job.
    #[error("another coordinator has {place}")]
    Taken {
        /// The folder or key.
        place: String,
    },
}

/// A record as it lies in the store: with its version and a checksum over its text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    format: u32,
    sha256: String,
    record: Box<RawValue>,
}

fn seal(record: &Record) -> Result<String, serde_json::Error> {
    let record = serde_json::value::to_raw_value(record)?;
    let sha256 = checksum(record.get());
    serde_json::to_string(&Sealed { format: FORMAT, sha256, record })
}

/// The record in this text, or what is wrong with it.
fn open(text: &str) -> Result<Record, String> {
    let sealed: Sealed = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if sealed.format != FORMAT {
        return Err(format!("its format is {}, and this is for {FORMAT}", sealed.format));
    }
    if sealed.sha256 != checksum(sealed.record.get()) {
        return Err("its checksum is wrong".to_string());
    }
    serde_json::from_str(sealed.record.get()).map_err(|error| error.to_string())
}

fn checksum(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use paceline_job::{Settings, View};
    use paceline_sync::agreement::Registrar;

    pub(crate) fn record(workers: usize) -> Record {
        let view = View::local(workers, Settings::default());
        Record { job: JobId::random().unwrap(), minutes: Registrar::new(view, false).minutes() }
    }

    #[test]
    fn what_is_sealed_opens_and_a_changed_byte_does_not() {
        let record = record(3);
        let text = seal(&record).unwrap();
        assert_eq!(open(&text), Ok(record));
        let other = text.replace("\"since\":0", "\"since\":1");
        assert_ne!(other, text);
        assert_eq!(open(&other), Err("its checksum is wrong".to_string()));
        for end in 0..text.len() {
            assert!(open(&text[..end]).is_err(), "cut off at {end}");
        }
    }
}
