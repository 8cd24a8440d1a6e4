//! A process that outlives its maker just long enough to end whatever still runs in the testbed's
//! namespaces. It waits on a pipe whose other end only the maker holds: the kernel closes that end
//! however the maker ends, SIGKILL included.
//!
//! It finds processes by the namespace they are in, not by a list of process numbers: this also ends
//! the grandchildren of a command and what it sent into the background, and it cannot hit a process
//! that got a number anew. (A death signal of the parent reaches only children, and goes off when the
//! thread that forked ends, not the process.)
//!
//! Everything after the fork is bare system calls on memory set aside before: the maker may have
//! threads, and a lock of theirs would be copied locked.

use crate::{
    error::{Error, Result},
    namespace::NamespaceId,
};
use std::{
    ffi::CStr,
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// How often the warden looks, at most: ten seconds in all. What a signal 9 has not ended by then
/// hangs in the kernel.
const ROUNDS: usize = 1000;
/// Between two looks.
const ROUND_NANOSECONDS: libc::c_long = 10_000_000;
/// Looks in a row that must find nobody: a child may be between its fork and its namespace.
const QUIET_ROUNDS: usize = 3;
/// Room for the names of one read of `/proc`.
const LISTING_BYTES: usize = 32 * 1024;

/// The maker's hold on its warden. Dropping it ends everything in the namespaces, and waits for that.
#[derive(Debug)]
pub struct Warden {
    /// Taken when it is time; the warden reads the end of the pipe.
    hold: Option<OwnedFd>,
    process: libc::pid_t,
}

impl Warden {
    /// Start a warden over these namespaces.
    pub fn start(namespaces: Vec<NamespaceId>) -> Result<Warden> {
        let fail = |error| Error::system("start the process that cleans up", error);
        let mut ends = [0; 2];
        // SAFETY: the pointer is to two integers, as the call asks.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        // SAFETY: both descriptors are new and nobody else owns them.
        let [wait, hold] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let mut listing = Listing { bytes: [0; LISTING_BYTES] };
        // SAFETY: no pointers.
        let maker = unsafe { libc::getpid() };
        // SAFETY: the child calls only `watch`, which makes system calls and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(fail(io::Error::last_os_error())),
            0 => watch(wait.as_raw_fd(), &namespaces, maker, &mut listing),
            process => Ok(Warden { hold: Some(hold), process }),
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.hold.take());
        loop {
            // SAFETY: a null status is allowed; the process is our child, or the call fails.
            let ended = unsafe { libc::waitpid(self.process, ptr::null_mut(), 0) };
            let interrupted = || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
            // The warden's own bound ends this wait; each signal costs one turn.
            if ended >= 0 || !interrupted() {
                return;
            }
        }
    }
}

/// Memory for `getdents64`, which writes records that must be aligned.
#[repr(C, align(8))]
struct Listing {
    bytes: [u8; LISTING_BYTES],
}

/// The life of the warden.
fn watch(wait: RawFd, namespaces: &[NamespaceId], maker: libc::pid_t, listing: &mut Listing) -> ! {
    leave_the_maker(wait);
    let mut byte = 0u8;
    loop {
        // SAFETY: the pointer is to one byte, as the length says. All signals are blocked, so only
        // the end of the pipe, or its loss, returns.
        if unsafe { libc::read(wait, (&raw mut byte).cast(), 1) } <= 0 {
            break;
        }
    }
    let mut quiet = 0;
    for _ in 0..ROUNDS {
        quiet = if end_processes(namespaces, maker, listing) { 0 } else { quiet + 1 };
        if quiet == QUIET_ROUNDS {
            break;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: ROUND_NANOSECONDS };
        // SAFETY: the pointer is to a whole timespec; the rest may be null.
        unsafe { libc::nanosleep(&pause, ptr::null_mut()) };
    }
    // SAFETY: ends this process without running the maker's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Hold on to nothing of the maker's: its terminal, folder, output, namespaces, or its end of the pipe.
fn leave_the_maker(wait: RawFd) {
    // SAFETY: system calls on plain values and on constant, ended strings; whatever fails leaves
    // the warden holding more than it should, and still working.
    unsafe {
        let mut all = mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"testbed-warden".as_ptr());
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..=2 {
            if standard != wait {
                libc::dup2(null, standard);
            }
        }
        if wait > 3 {
            libc::syscall(libc::SYS_close_range, 3, wait - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, (wait + 1).max(3), u32::MAX, 0);
    }
}

/// Send signal 9 to every process in one of the namespaces; whether there was any.
fn end_processes(namespaces: &[NamespaceId], maker: libc::pid_t, listing: &mut Listing) -> bool {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a constant, ended string.
    let folder = unsafe { libc::open(c"/proc".as_ptr(), flags) };
    if folder < 0 {
        return false;
    }
    let mut found = false;
    loop {
        let buffer = listing.bytes.as_mut_ptr();
        // SAFETY: the pointer and the length describe `listing`.
        let filled = unsafe { libc::syscall(libc::SYS_getdents64, folder, buffer, LISTING_BYTES) };
        if filled <= 0 {
            break;
        }
        let mut records = &listing.bytes[..filled as usize];
        while let Some((name, rest)) = next_record(records) {
            records = rest;
            if let Some(process) = process_number(name)
                && process != maker
            {
                found |= end_process(process, namespaces);
            }
        }
    }
    // SAFETY: the descriptor is ours and used nowhere else.
    unsafe { libc::close(folder) };
    found
}

/// Split the name of the first `struct linux_dirent64` (inode 8, offset 8, length 2, type 1, name)
/// from the records after it.
fn next_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    const NAME: usize = 19;
    let length = usize::from(u16::from_ne_bytes(*records.get(16..)?.first_chunk()?));
    let name = CStr::from_bytes_until_nul(records.get(NAME..length)?).ok()?;
    Some((name.to_bytes(), records.get(length..)?))
}

/// The process whose folder in `/proc` has this name.
fn process_number(name: &[u8]) -> Option<libc::pid_t> {
    name.iter().try_fold(0, |number: libc::pid_t, byte| {
        let digit = byte.is_ascii_digit().then(|| libc::pid_t::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

fn end_process(process: libc::pid_t, namespaces: &[NamespaceId]) -> bool {
    // The handle comes first: what it refers to is what is looked at, or has ended already.
    // SAFETY: no pointers.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as RawFd;
    if handle < 0 {
        return false;
    }
    let inside = namespace_of(process).is_some_and(|id| namespaces.contains(&id));
    if inside {
        // SAFETY: a null description of the signal is allowed.
        unsafe {
            let none = ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, handle, libc::SIGKILL, none, 0);
        }
    }
    // SAFETY: the descriptor is ours and used nowhere else.
    unsafe { libc::close(handle) };
    inside
}

/// The namespace of a process; none if it has ended.
fn namespace_of(process: libc::pid_t) -> Option<NamespaceId> {
    let path = namespace_path(process);
    // SAFETY: all zeros is a value of this plain structure.
    let mut status = unsafe { mem::zeroed::<libc::stat>() };
    // SAFETY: the path is ended by a zero, and the pointer is to a whole structure.
    let result = unsafe { libc::stat(path.as_ptr().cast(), &mut status) };
    (result == 0).then_some(NamespaceId { device: status.st_dev, inode: status.st_ino })
}

/// `/proc/PROCESS/ns/net`, ended by zeros, without an allocation.
fn namespace_path(process: libc::pid_t) -> [u8; 32] {
    let mut path = [0; 32]; // 6 + at most 10 digits + 7, and at least one zero
    path[..6].copy_from_slice(b"/proc/");
    let mut divisor: libc::pid_t = 1;
    while process / divisor >= 10 {
        divisor *= 10;
    }
    let mut end = 6;
    while divisor > 0 {
        path[end] = b'0' + (process / divisor % 10) as u8;
        divisor /= 10;
        end += 1;
    }
    path[end..end + 7].copy_from_slice(b"/ns/net");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_processes_are_written_without_a_formatter() {
        for process in [1, 10, 4711, libc::pid_t::MAX] {
            let path = namespace_path(process);
            let text = CStr::from_bytes_until_nul(&path).unwrap().to_str().unwrap();
            assert_eq!(text, format!("/proc/{process}/ns/net"));
        }
    }

    #[test]
    fn only_numbers_are_processes() {
        assert_eq!(process_number(b"4711"), Some(4711));
        for name in [&b"self"[..], b"12a", b"99999999999"] {
            assert_eq!(process_number(name), None);
        }
    }

    #[test]
    fn a_warden_lets_other_namespaces_be() {
        let mut listing = Listing { bytes: [0; LISTING_BYTES] };
        let nowhere = NamespaceId { device: 0, inode: 0 };
        // SAFETY: no pointers.
        let own = unsafe { libc::getpid() };
        assert!(!end_processes(&[nowhere], own, &mut listing));
        assert!(namespace_of(own).is_some());
    }
}
