//! The door to a running elastic job: a socket in a folder that only this user can enter, at which `paceline resize` and
//! `paceline status` knock. It passes words on to the coordinator and decides nothing.

use anyhow::{Context, Result, bail};
use paceline_net::coordinator::{Answer, Coordinator, Question};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

/// The longest question and answer: a status of the largest job is half of it.
const LONGEST: u64 = 1 << 20;

/// How long one visitor may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A name that can be a file's, and cannot lead elsewhere.
pub fn parse_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.len() {
        1..=64 if text.bytes().all(fits) && !text.starts_with('.') => Ok(text.to_string()),
        _ => Err("a job's name is 1 to 64 letters, digits, `.`, `_` and `-`".to_string()),
    }
}

/// The open door. Dropping it closes it.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
}

impl Door {
    /// Answer at the job's name from now on, on a thread of its own, for as long as the process lives.
    pub fn open(name: &str, coordinator: Arc<Coordinator>) -> Result<Door> {
        let path = place(name)?;
        if UnixStream::connect(&path).is_ok() {
            bail!("a job named `{name}` runs already; give this one another --name");
        }
        // Of a job that was killed.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| format!("{}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        thread::Builder::new().name("door".to_string()).spawn(move || {
            for visitor in listener.incoming().map_while(Result::ok) {
                // Whoever leaves without an answer needs none.
                let _ = serve(visitor, &coordinator);
            }
        })?;
        Ok(Door { path })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Ask the job of this name.
pub fn ask(name: &str, question: &Question) -> Result<Answer> {
    let path = place(name)?;
    let mut stream = UnixStream::connect(&path).with_context(|| {
        format!(
            "no job named `{name}` runs here; `paceline run --elastic` says the name of its job"
        )
    })?;
    stream.set_read_timeout(Some(4 * PATIENCE))?;
    stream.write_all(format!("{}\n", serde_json::to_string(question)?).as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut answer)?;
    serde_json::from_str(&answer).context("the job ended before it answered")
}

fn serve(mut visitor: UnixStream, coordinator: &Coordinator) -> Result<()> {
    visitor.set_read_timeout(Some(PATIENCE))?;
    visitor.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new((&visitor).take(LONGEST)).read_line(&mut question)?;
    let answer = coordinator.answer(&serde_json::from_str(&question)?);
    visitor.write_all(format!("{}\n", serde_json::to_string(&answer)?).as_bytes())?;
    Ok(())
}

/// Where the job of this name answers. The folder is this user's alone.
fn place(name: &str) -> Result<PathBuf> {
    // SAFETY: a system call that cannot fail.
    let user = unsafe { libc::getuid() };
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|it| Path::new(it).is_dir()) {
        Some(runtime) => Path::new(&runtime).join("paceline"),
        None => std::env::temp_dir().join(format!("paceline-{user}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("{}", folder.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        bail!("{} is not this user's alone; remove it, or set XDG_RUNTIME_DIR", folder.display());
    }
    Ok(folder.join(format!("{name}.sock")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_lead_elsewhere() {
        assert!(parse_name("resnet-50.try_2").is_ok());
        for name in ["", ".", "../x", "a/b", "a b", &"x".repeat(65)] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }
}
