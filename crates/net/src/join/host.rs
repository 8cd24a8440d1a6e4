//! What a worker knows of the machine it runs on: the host it belongs to, its addresses, and how its
//! sockets are set. This file knows nothing of jobs.

use crate::{
    error::{NetError, Result},
    handshake::listen,
};
use ring::digest;
use socket2::SockRef;
use std::{
    ffi::CStr,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    ops::RangeInclusive,
    os::unix::fs::MetadataExt,
    ptr,
};

/// Names the host so that two workers have the same name exactly if they run under one kernel, in
/// one network namespace: those reach each other without a wire. The machine's name alone would not
/// do: cloned machines share it, and namespaces of one machine have links between them.
pub fn host_identity() -> String {
    let read = |path| fs::read_to_string(path).map(|text| text.trim().to_string());
    let name = read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".to_string());
    let boot = read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::metadata("/proc/self/ns/net").map(|data| data.ino()).unwrap_or_default();
    let digest = digest::digest(&digest::SHA256, format!("{boot} {namespace}").as_bytes());
    let short: String = digest.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{short}")
}

/// Set a connection between workers: small messages leave at once, and on loopback a congestion
/// control that does not pace. Over loopback bbr, a common default, halves the throughput; between
/// hosts the system's choice stands. What the system refuses is left as it is.
pub fn tune(stream: &TcpStream, loopback: bool) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    if loopback {
        let _ = SockRef::from(stream).set_tcp_congestion(b"reno");
    }
}

/// Whether a connection stays on this machine.
pub(super) fn is_loopback(stream: &TcpStream) -> bool {
    stream.peer_addr().is_ok_and(|address| address.ip().is_loopback())
}

/// Whether `host:port` says that it means this machine and no other.
pub(super) fn names_loopback(name: &str) -> bool {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// All addresses of `host:port`.
pub(crate) fn resolve(name: &str) -> Result<Vec<SocketAddr>> {
    let unresolved = |source| NetError::Unresolved { name: name.to_string(), source };
    let addresses: Vec<SocketAddr> = name.to_socket_addrs().map_err(unresolved)?.collect();
    if addresses.is_empty() {
        return Err(unresolved(io::Error::other("no address is known")));
    }
    Ok(addresses)
}

/// Listen on `address`, on any port or on the first free one of `ports`.
pub(super) fn listen_within(
    address: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
) -> Result<TcpListener> {
    let Some(ports) = ports else { return listen(SocketAddr::new(address, 0)) };
    for port in ports.clone() {
        match listen(SocketAddr::new(address, port)) {
            Err(NetError::PortInUse { .. }) => {}
            other => return other,
        }
    }
    Err(NetError::PortRangeInUse { address, range: ports.clone() })
}

/// The address that `text` is or that the interface of that name has; IPv4 first.
pub fn interface_address(text: &str) -> Result<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        // "Any" can be listened on, but peers must be told one address to connect to.
        if address.is_unspecified() {
            return Err(NetError::UnknownInterface { name: text.to_string() });
        }
        return Ok(address);
    }
    let mut addresses: Vec<IpAddr> = interfaces()?
        .into_iter()
        .filter(|(name, _)| name == text)
        .map(|(_, address)| address)
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| NetError::UnknownInterface { name: text.to_string() })
}

/// Every address of this machine with the name of its interface.
fn interfaces() -> Result<Vec<(String, IpAddr)>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is a valid place for the pointer that the call writes.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list that getifaddrs made and that is freed only below.
        let node = unsafe { &*next };
        next = node.ifa_next;
        // SAFETY: an interface's name is a string that ends with a zero and lives as long as the list.
        let name = unsafe { CStr::from_ptr(node.ifa_name) };
        // SAFETY: the address is null, or a socket address of the family it states (getifaddrs(3)).
        let address = unsafe { ip_address(node.ifa_addr) };
        if let (Ok(name), Some(address)) = (name.to_str(), address) {
            found.push((name.to_string(), address));
        }
    }
    // SAFETY: `list` came from getifaddrs, and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address that is as long as its family says.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    let family = i32::from(unsafe { (*address).sa_family });
    match family {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in; the read needs no alignment.
            let inet: libc::sockaddr_in = unsafe { ptr::read_unaligned(address.cast()) };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a sockaddr_in6; the read needs no alignment.
            let inet6: libc::sockaddr_in6 = unsafe { ptr::read_unaligned(address.cast()) };
            let address = Ipv6Addr::from(inet6.sin6_addr.s6_addr);
            // A link-local address cannot be told to others without the name of the link.
            (!address.is_unicast_link_local()).then_some(IpAddr::V6(address))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_name_within_this_process() {
        assert_eq!(host_identity(), host_identity());
        assert!(host_identity().len() <= crate::coordinator::HOST_NAME_BYTES);
    }

    #[test]
    fn an_interface_is_found_by_address_or_name() {
        assert_eq!(interface_address("10.1.2.3").unwrap(), IpAddr::from([10, 1, 2, 3]));
        assert_eq!(interface_address("lo").unwrap(), IpAddr::from([127, 0, 0, 1]));
        for unknown in ["no-such-interface", "0.0.0.0", ""] {
            let found = interface_address(unknown);
            assert!(matches!(found, Err(NetError::UnknownInterface { .. })), "{unknown}");
        }
    }

    #[test]
    fn a_name_that_means_this_machine_is_told_from_one_that_only_leads_here() {
        for name in ["localhost:1", "127.0.0.1:1", "[::1]:1"] {
            assert!(names_loopback(name), "{name}");
        }
        assert!(!names_loopback("head:1") && !names_loopback("10.0.0.1:1"));
    }

    #[test]
    fn ports_are_taken_from_the_range_until_it_is_used_up() {
        let address = IpAddr::from([127, 0, 0, 1]);
        // Let the system find a free port; the range is that one port.
        let port = listen_within(address, None).unwrap().local_addr().unwrap().port();
        let first = listen_within(address, Some(&(port..=port))).unwrap();
        assert_eq!(first.local_addr().unwrap().port(), port);
        let second = listen_within(address, Some(&(port..=port)));
        assert!(matches!(second, Err(NetError::PortRangeInUse { .. })));
    }
}
