//! A record in a file of this machine: written beside the one before, made safe, and put in its place, so that after a
//! power failure there is the one or the other. A lock keeps a second coordinator away as long as the first lives.

use super::{MOST_BYTES, Record, Store, StoreError, open, seal};
use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
};

const FILE: &str = "coordinator.json";
const LOCK: &str = "coordinator.lock";

/// See the file's first paragraph.
#[derive(Debug)]
pub struct DiskStore {
    folder: PathBuf,
    /// Held as long as it is open.
    _lock: File,
}

impl DiskStore {
    /// Keep a job's record in this folder, which is made if there is none.
    pub fn open(folder: &Path) -> Result<DiskStore, StoreError> {
        let unusable = |error| unusable(folder, error);
        fs::create_dir_all(folder).map_err(unusable)?;
        let lock = File::create(folder.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(DiskStore { folder: folder.to_path_buf(), _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(StoreError::Taken { place: folder.display().to_string() })
            }
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    fn read(&self) -> io::Result<Option<String>> {
        let file = match File::open(self.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(self.path())?;
        // The name has to be safe, too.
        File::open(&self.folder)?.sync_all()
    }
}

impl Store for DiskStore {
    fn load(&mut self) -> Result<Option<Record>, StoreError> {
        let damaged = |problem| StoreError::Damaged { place: place(&self.path()), problem };
        match self.read() {
            Ok(Some(text)) => open(&text).map(Some).map_err(damaged),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(damaged(error.to_string())),
            Err(error) => Err(unusable(&self.path(), error)),
        }
    }

    fn forget(&mut self) -> Result<(), StoreError> {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(unusable(&self.path(), error)),
            _ => Ok(()),
        }
    }

    fn save(&mut self, record: &Record) -> Result<(), StoreError> {
        let text = seal(record).map_err(|error| unusable(&self.path(), error.into()))?;
        self.replace(&text).map_err(|error| unusable(&self.path(), error))
    }
}

fn place(path: &Path) -> String {
    path.display().to_string()
}

fn unusable(path: &Path, error: io::Error) -> StoreError {
    StoreError::Unusable { place: place(path), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::record;

    #[test]
    fn the_last_record_is_found_again_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = DiskStore::open(&folder.path().join("job")).unwrap();
        assert_eq!(store.load().unwrap(), None);
        for workers in 1..5 {
            store.save(&record(workers)).unwrap();
        }
        let last = record(7);
        store.save(&last).unwrap();
        drop(store);
        let mut store = DiskStore::open(&folder.path().join("job")).unwrap();
        assert_eq!(store.load().unwrap(), Some(last));
        store.forget().unwrap();
        assert_eq!(store.load().unwrap(), None);
        store.save(&record(1)).unwrap();
        let names = fs::read_dir(folder.path().join("job")).unwrap();
        assert_eq!(names.count(), 2, "the record and the lock");
    }

    #[test]
    fn a_second_coordinator_is_kept_away_while_the_first_lives() {
        let folder = tempfile::tempdir().unwrap();
        let first = DiskStore::open(folder.path()).unwrap();
        assert!(matches!(DiskStore::open(folder.path()), Err(StoreError::Taken { .. })));
        drop(first);
        assert!(DiskStore::open(folder.path()).is_ok());
    }

    #[test]
    fn what_no_coordinator_wrote_is_reported_and_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = DiskStore::open(folder.path()).unwrap();
        for bytes in [&b""[..], b"{}", b"\xff\xfe", b"[1, 2"] {
            fs::write(folder.path().join(FILE), bytes).unwrap();
            assert!(matches!(store.load(), Err(StoreError::Damaged { .. })), "{bytes:?}");
        }
    }
}
