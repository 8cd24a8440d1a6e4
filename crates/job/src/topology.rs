//! Where workers sit and what joins them: hosts, racks, and link rates, measured or given.

use crate::{Rate, View};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One direction of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Payload bytes it carries.
    pub rate: Rate,
    /// From the last byte sent to the last byte received.
    pub latency: Duration,
}

/// A machine: its workers share memory, and share its wire to the rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The name workers of this host give in the view.
    pub name: String,
    /// Index of its rack.
    pub rack: u32,
    /// The host's wire, the same in both directions and independent of each other.
    pub link: Link,
}

/// Hosts and racks. A message between racks also crosses both racks' uplinks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// All hosts.
    pub hosts: Vec<Host>,
    /// One per rack, if racks are joined by anything slower than their switches.
    pub uplinks: Vec<Link>,
    /// Between workers of one host: memory.
    pub memory: Link,
}

impl Topology {
    /// All hosts of the view in one rack, every wire alike.
    pub fn uniform(view: &View, link: Link, memory: Link) -> Topology {
        let mut hosts: Vec<Host> = Vec::new();
        for worker in &view.workers {
            if hosts.iter().all(|host| host.name != worker.host) {
                hosts.push(Host { name: worker.host.clone(), rack: 0, link });
            }
        }
        Topology { hosts, uplinks: Vec::new(), memory }
    }

    /// The slowest wire between any two hosts, and the longest way.
    pub fn bottleneck(&self) -> Link {
        let wires = self.hosts.iter().map(|host| host.link);
        let wires = wires.chain(self.uplinks.iter().copied());
        wires
            .reduce(|a, b| Link {
                rate: if a.rate <= b.rate { a.rate } else { b.rate },
                latency: a.latency.max(b.latency),
            })
            .unwrap_or(self.memory)
    }
}
