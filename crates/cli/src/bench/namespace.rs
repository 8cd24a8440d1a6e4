//! A network of the benchmark's own: a private namespace in which only loopback exists, with a
//! congestion control that suits it. Contenders and limits are then measured under the same rules, and no other
//! traffic of the machine is in the way. It knows nothing of what will run inside.

use serde::Serialize;
use std::{fs, io};

const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Built into every kernel and open to every namespace; paced ones such as bbr halve loopback's rate.
const WANTED: &str = "reno";

/// Under which rules TCP ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Whether the namespace is private.
    pub private: bool,
    /// What sockets that do not choose for themselves use.
    pub congestion_control: String,
    /// Why the namespace is not private, or not as wanted.
    pub remark: Option<String>,
}

impl Network {
    /// Moves the calling thread, and with it every process and thread it starts later, into a fresh namespace.
    /// Without the privilege to do so all stays as it is, and the result says so.
    pub fn enter() -> Network {
        let (private, remark) = match enter_private() {
            Ok(()) => (true, None),
            Err(error) => {
                let why = "no private network namespace, so peers use the system's";
                (false, Some(format!("{why} congestion control ({error}; run as root for one)")))
            }
        };
        let remark = match private.then(|| fs::write(CONGESTION_CONTROL, WANTED)) {
            Some(Err(error)) => Some(format!("the kernel refused {WANTED}: {error}")),
            _ => remark,
        };
        let congestion_control = fs::read_to_string(CONGESTION_CONTROL)
            .map_or_else(|_| "unknown".to_string(), |text| text.trim().to_string());
        Network { private, congestion_control, remark }
    }
}

fn enter_private() -> io::Result<()> {
    // SAFETY: unshare(2) takes flags only; it changes the calling thread's namespace or fails.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    raise_loopback()
}

/// A fresh namespace has a loopback interface, but it is down.
fn raise_loopback() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: ifreq is plain data, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the descriptor is open, and the request is an ifreq that outlives the call.
    match unsafe { libc::ioctl(descriptor, libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
