//! Signals: their names, what they usually mean, and catching those that `paceline run` passes on. It does
//! not know what is done about them.

use libc::c_int;
use signal_hook::iterator::{backend::SignalDelivery, exfiltrator::SignalOnly};
use std::{
    io,
    os::{fd::AsRawFd, unix::net::UnixStream},
    time::Duration,
};

/// What a signal is called, and what a process that it ended most likely did.
pub fn name_and_meaning(signal: c_int) -> (String, &'static str) {
    let (name, meaning) = match signal {
        libc::SIGHUP => ("SIGHUP", "its terminal is gone"),
        libc::SIGINT => ("SIGINT", "somebody interrupted it"),
        libc::SIGQUIT => ("SIGQUIT", "somebody asked it to quit"),
        libc::SIGILL => (
            "SIGILL",
            "an instruction this processor does not know: the program was built for another one",
        ),
        libc::SIGTRAP => ("SIGTRAP", "a breakpoint without a debugger"),
        libc::SIGABRT => ("SIGABRT", "it ended itself after a failed check: see its last lines"),
        libc::SIGBUS => ("SIGBUS", "a mapped page that is not there: often a full /dev/shm"),
        libc::SIGFPE => ("SIGFPE", "an integer division by zero"),
        libc::SIGKILL => {
            ("SIGKILL", "somebody killed it: often the kernel, out of memory (`dmesg` tells)")
        }
        libc::SIGUSR1 => ("SIGUSR1", "a signal it does not handle"),
        libc::SIGSEGV => ("SIGSEGV", "it touched memory that is not its own"),
        libc::SIGUSR2 => ("SIGUSR2", "a signal it does not handle"),
        libc::SIGPIPE => ("SIGPIPE", "it wrote to a pipe that nobody reads"),
        libc::SIGALRM => ("SIGALRM", "a timer it does not handle"),
        libc::SIGTERM => ("SIGTERM", "somebody asked it to end"),
        libc::SIGXCPU => ("SIGXCPU", "its limit of processor time is used up (`ulimit -t`)"),
        libc::SIGXFSZ => ("SIGXFSZ", "a file passed its limit (`ulimit -f`)"),
        libc::SIGSYS => ("SIGSYS", "a system call that is forbidden here"),
        other => return (format!("signal {other}"), "see `man 7 signal`"),
    };
    (name.to_string(), meaning)
}

/// Catches the signals that ask a command to do something.
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Catch SIGCHLD and, of `wanted`, those that our parent did not tell us to ignore: `nohup` and
    /// the shell's `&` mean it.
    pub fn catch(wanted: &[c_int]) -> io::Result<Signals> {
        let mut caught: Vec<c_int> =
            wanted.iter().copied().filter(|signal| !is_ignored(*signal)).collect();
        caught.push(libc::SIGCHLD);
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, caught)?;
        Ok(Signals { delivery })
    }

    /// Wait until a signal comes, or something can be read from `bell`, at most this long. May return early.
    pub fn wait(&self, limit: Option<Duration>, bell: &impl AsRawFd) -> io::Result<()> {
        let polled = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let fd = self.delivery.get_read().as_raw_fd();
        let mut polls = [polled(fd), polled(bell.as_raw_fd())];
        // Rounded up, so that a wait of less than a millisecond does not spin.
        let milliseconds = limit.map_or(-1, |limit| {
            limit.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int
        });
        // SAFETY: two of them, alive during the call.
        if unsafe { libc::poll(polls.as_mut_ptr(), 2, milliseconds) } >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        }
    }

    /// The signals that came since the last call; each once, in no order.
    pub fn pending(&mut self) -> Vec<c_int> {
        self.delivery.pending().collect()
    }
}

/// Whether our parent told us to ignore it.
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid value, and with a null new action the call only fills it.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut current) == 0
            && current.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_meanings() {
        assert_eq!(name_and_meaning(libc::SIGSEGV).0, "SIGSEGV");
        assert_eq!(name_and_meaning(64).0, "signal 64");
    }
}
