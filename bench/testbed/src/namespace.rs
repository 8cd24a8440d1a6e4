//! A network namespace without a name. It exists as long as a descriptor or a process holds it, so it
//! goes away by itself, with every interface in it, however its maker ends.

use crate::error::{Error, Result};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::MetadataExt,
    },
    panic, thread,
};

/// What tells two namespaces apart, as `stat` of `/proc/PID/ns/net` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceId {
    /// The device of the kernel's namespace files.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// A namespace, held open.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    id: NamespaceId,
}

impl Namespace {
    /// Make a namespace, and run `setup` in it. The caller's own namespace does not change: a thread
    /// that is thrown away afterwards does the moving.
    pub fn create<T: Send>(setup: impl FnOnce() -> Result<T> + Send) -> Result<(Namespace, T)> {
        on_own_thread(|| {
            // SAFETY: no pointers; it changes only the calling thread, which ends right after.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(creation_error(io::Error::last_os_error()));
            }
            let open = File::open("/proc/thread-self/ns/net")
                .and_then(|file| file.metadata().map(|metadata| (file, metadata)));
            let (file, metadata) =
                open.map_err(Error::doing("open /proc/thread-self/ns/net; is /proc mounted?"))?;
            let id = NamespaceId { device: metadata.dev(), inode: metadata.ino() };
            Ok((Namespace { file, id }, setup()?))
        })
    }

    /// Run `work` in this namespace, on a thread of its own. Sockets that it opens stay here,
    /// whichever thread uses them.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            enter(self.file.as_raw_fd())
                .map_err(Error::doing("enter a network namespace of the testbed"))?;
            work()
        })
    }

    /// The descriptor that holds it.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// What tells it apart.
    pub fn id(&self) -> NamespaceId {
        self.id
    }
}

/// Move the calling thread into the namespace open as `descriptor`. One system call, so that it may
/// also be called between fork and exec.
pub fn enter(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: no pointers; a descriptor that is no network namespace is an error.
    match unsafe { libc::setns(descriptor, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("namespace".to_string())
            .spawn_scoped(scope, work)
            .map_err(Error::doing("start a thread"))?;
        thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

fn creation_error(cause: io::Error) -> Error {
    match cause.raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) => Error::Missing {
            what: "network namespaces".to_string(),
            remedy: "use a kernel built with CONFIG_NET_NS".to_string(),
        },
        _ => Error::system("create a network namespace", cause),
    }
}
