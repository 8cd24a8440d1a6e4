//! Whether a file can be written, asked before the work whose result it is to hold. What is in it stays.

use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    path::Path,
};

/// An error that names the file, unless it can be written.
pub fn check(file: &Path) -> Result<()> {
    let was_there = fs::symlink_metadata(file).is_ok();
    if fs::metadata(file).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
        // A pipe has a reader who would take this for the whole of it.
        return Ok(());
    }
    let opened = File::options().append(true).create(true).open(file);
    opened.with_context(|| match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            format!("cannot write {}: make the folder {} first", file.display(), folder.display())
        }
        _ => format!("cannot write {}", file.display()),
    })?;
    if !was_there {
        // An empty file would look like a result, should the work be broken off.
        fs::remove_file(file).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_leaves_files_as_they_are_and_names_those_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new");
        check(&new).unwrap();
        assert!(!new.exists());
        fs::write(&new, "kept").unwrap();
        check(&new).unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"kept");
        let lost = folder.path().join("no/file");
        let error = format!("{:#}", check(&lost).unwrap_err());
        assert!(error.contains("no/file") && error.contains("make the folder"), "{error}");
        assert!(check(folder.path()).is_err());
        check(Path::new("/dev/null")).unwrap();
    }
}
