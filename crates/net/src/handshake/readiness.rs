//! Waiting for several sockets at once, and waking a thread that does. This file knows file
//! descriptors and nothing of what is sent over them.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// What to wait for on one descriptor.
pub(crate) fn entry(descriptor: &impl AsRawFd, wants_to_write: bool) -> libc::pollfd {
    let events = if wants_to_write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    libc::pollfd { fd: descriptor.as_raw_fd(), events, revents: 0 }
}

/// Wait until an entry is ready or `limit` has passed; none is "for ever". A signal ends the wait
/// early, with nothing ready.
pub(crate) fn wait(entries: &mut [libc::pollfd], limit: Option<Duration>) -> io::Result<()> {
    let milliseconds = match limit {
        // Rounded up: a wait that ends a moment early would be repeated with nothing left to wait.
        Some(limit) => i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
        None => -1,
    };
    // SAFETY: the pointer and the length are those of one live, exclusively borrowed slice.
    let ready =
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
    if ready >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        entries.iter_mut().for_each(|entry| entry.revents = 0);
        return Ok(());
    }
    Err(error)
}

/// Ends a [`wait`] from another thread. Dropping it does so too, for good.
#[derive(Debug)]
pub(crate) struct Waker(UnixStream);

/// The end that is waited for.
#[derive(Debug)]
pub(crate) struct Wakened(UnixStream);

impl Waker {
    pub(crate) fn pair() -> io::Result<(Waker, Wakened)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        Ok((Waker(ours), Wakened(theirs)))
    }

    pub(crate) fn wake(&self) {
        // A full pipe means that the other end has enough to wake up for.
        let _ = (&self.0).write(&[0]);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // A process that was forked meanwhile, as PyTorch's loaders are, has a copy of this end and keeps it open.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Wakened {
    /// Take note of all calls so far. False once the [`Waker`] is gone.
    pub(crate) fn drain(&self) -> bool {
        let mut sink = [0; 64];
        loop {
            match (&self.0).read(&mut sink) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(_) => return true,
            }
        }
    }
}

impl AsRawFd for Wakened {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_that_is_dropped_wakes_though_another_process_has_a_copy_of_it() {
        let (waker, wakened) = Waker::pair().unwrap();
        let _inherited = waker.0.try_clone().unwrap();
        drop(waker);
        let mut entries = [entry(&wakened, false)];
        wait(&mut entries, Some(Duration::from_secs(10))).unwrap();
        assert_ne!(entries[0].revents, 0);
        assert!(!wakened.drain());
    }
}
