//! Requests about interfaces: bridges, pairs of virtual wires, addresses, up and down. Pure: it builds
//! messages. Interfaces are given their index when they are made, so that nothing has to be asked back.

use crate::message::Message;
use std::{net::Ipv4Addr, os::fd::RawFd};

/// The kernel's number for an interface, within one namespace.
pub type Index = u32;

/// The loopback interface of every namespace.
pub const LOOPBACK: Index = 1;

/// The first attribute of a veth's data: its other end.
const VETH_INFO_PEER: u16 = 1;

/// One end of a wire, before it exists.
#[derive(Clone, Debug)]
pub struct End<'a> {
    /// Its index in its namespace.
    pub index: Index,
    /// Its name there: at most 15 bytes.
    pub name: &'a str,
}

/// Make a bridge.
pub fn new_bridge(index: Index, name: &str) -> Message {
    new_link(index)
        .text(libc::IFLA_IFNAME, name)
        .nested(libc::IFLA_LINKINFO, |info| info.text(libc::IFLA_INFO_KIND, "bridge"))
}

/// Make a wire whose near end is a port of `bridge`. The far end appears in the namespace open as
/// `far_namespace`, or beside the near one.
pub fn new_wire(near: &End, bridge: Index, far: &End, far_namespace: Option<RawFd>) -> Message {
    new_link(near.index)
        .text(libc::IFLA_IFNAME, near.name)
        .number(libc::IFLA_MASTER, bridge)
        .nested(libc::IFLA_LINKINFO, |info| {
            info.text(libc::IFLA_INFO_KIND, "veth").nested(libc::IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |peer| {
                    let peer = peer.raw(&header(far.index, 0, 0)).text(libc::IFLA_IFNAME, far.name);
                    match far_namespace {
                        Some(descriptor) => peer.number(libc::IFLA_NET_NS_FD, descriptor as u32),
                        None => peer,
                    }
                })
            })
        })
}

/// Make an interface a port of `bridge`.
pub fn join_bridge(index: Index, bridge: Index) -> Message {
    Message::new(libc::RTM_NEWLINK, 0, &header(index, 0, 0)).number(libc::IFLA_MASTER, bridge)
}

/// Switch an interface on.
pub fn up(index: Index) -> Message {
    Message::new(libc::RTM_NEWLINK, 0, &header(index, libc::IFF_UP as u32, libc::IFF_UP as u32))
}

/// Switch an interface off; the other end of its wire loses its carrier.
pub fn down(index: Index) -> Message {
    Message::new(libc::RTM_NEWLINK, 0, &header(index, 0, libc::IFF_UP as u32))
}

/// Give an interface an address; the kernel adds the route to its network.
pub fn new_address(index: Index, address: Ipv4Addr, prefix_bits: u8) -> Message {
    let host_bits = u32::MAX.checked_shr(u32::from(prefix_bits)).unwrap_or(0);
    let broadcast = Ipv4Addr::from(u32::from(address) | host_bits);
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut header = [libc::AF_INET as u8, prefix_bits, 0, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&index.to_ne_bytes());
    Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &header)
        .attribute(libc::IFA_LOCAL, &address.octets())
        .attribute(libc::IFA_ADDRESS, &address.octets())
        .attribute(libc::IFA_BROADCAST, &broadcast.octets())
}

fn new_link(index: Index) -> Message {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    Message::new(libc::RTM_NEWLINK, flags, &header(index, 0, 0))
}

/// `struct ifinfomsg`: family, padding, type, index, flags, and which flags to change.
fn header(index: Index, flags: u32, change: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn a_wire_names_both_ends_and_the_namespace_of_the_far_one() {
        let near = End { index: 4003, name: "port3" };
        let far = End { index: 5000, name: "eth0" };
        let bytes = new_wire(&near, 1000, &far, Some(17)).finish(1);
        for part in [&b"port3\0"[..], b"eth0\0", b"veth\0"] {
            assert!(contains(&bytes, part), "{part:?} in {bytes:?}");
        }
        assert!(contains(&bytes, &[8, 0, 28, 0, 17, 0, 0, 0]), "the namespace of the far end");
        let beside = new_wire(&near, 1000, &far, None).finish(1);
        assert_eq!(beside.len(), bytes.len() - 8, "no namespace attribute");
    }

    #[test]
    fn an_address_carries_the_broadcast_of_its_network() {
        let bytes = new_address(9, Ipv4Addr::new(198, 51, 100, 7), 24).finish(1);
        assert!(contains(&bytes, &[198, 51, 100, 7]));
        assert!(contains(&bytes, &[198, 51, 100, 255]));
        assert_eq!(&bytes[16..24], &[2, 24, 0, 0, 9, 0, 0, 0]);
    }
}
