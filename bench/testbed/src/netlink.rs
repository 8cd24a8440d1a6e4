//! A socket to the kernel's routing tables, bound to the namespace it was opened in. It sends one
//! request at a time and waits for its acknowledgement; it does not know what requests mean.

use crate::{
    error::{Error, Result},
    message::{Message, acknowledgements},
};
use std::{
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// The kernel answers at once; a socket that stays silent this long is broken.
const ANSWER_SECONDS: libc::time_t = 10;

/// Datagrams read for one request before giving up: old answers, and then its own.
const DATAGRAMS_PER_REQUEST: usize = 64;

/// An open socket. Whichever thread uses it later, it stays in the namespace it was opened in.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Open a socket in the calling thread's namespace.
    pub fn open() -> Result<Netlink> {
        let open = || -> io::Result<OwnedFd> {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            // SAFETY: no pointers; a negative result is handled before it is used.
            let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
            if socket < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor is new and nobody else owns it.
            let socket = unsafe { OwnedFd::from_raw_fd(socket) };
            // Explanations, and no echo of the request in front of them. Kernels without either
            // still work: their refusals are only less well explained.
            let _ = set_option(&socket, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, &1i32);
            let _ = set_option(&socket, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, &1i32);
            let patience = libc::timeval { tv_sec: ANSWER_SECONDS, tv_usec: 0 };
            set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience)?;
            Ok(socket)
        };
        let socket = open().map_err(Error::doing("open a netlink socket"))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Send `message` and wait until the kernel has done it. `doing` completes "refused to …".
    pub fn request(&mut self, doing: &str, message: Message) -> Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message.finish(self.sequence);
        // SAFETY: the pointer and the length describe `bytes`, which outlives the call.
        let sent =
            unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(Error::system(doing, io::Error::last_os_error()));
        }
        let mut buffer = [0u8; 8192];
        for _ in 0..DATAGRAMS_PER_REQUEST {
            let received = self.receive(&mut buffer).map_err(Error::doing(doing))?;
            let answers = acknowledgements(&buffer[..received]);
            let Some(answer) = answers.into_iter().find(|a| a.sequence == self.sequence) else {
                continue;
            };
            return match answer.code {
                0 => Ok(()),
                libc::EPERM => Err(Error::Privilege { doing: doing.to_string() }),
                code => Err(Error::Refused {
                    doing: doing.to_string(),
                    explanation: answer.explanation,
                    cause: io::Error::from_raw_os_error(code),
                }),
            };
        }
        Err(Error::system(doing, io::Error::other("the kernel sent no acknowledgement")))
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // SAFETY: the pointer and the length describe `buffer`, which outlives the call.
            let received = unsafe {
                libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
            };
            if received >= 0 {
                return Ok(received as usize);
            }
            let error = io::Error::last_os_error();
            // A signal: each one that arrives costs one turn, and the socket's own limit still holds.
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

fn set_option<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the size describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
