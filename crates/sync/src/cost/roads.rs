//! The links of a topology as a cost sees them: seconds for each byte, and which of them a message crosses.

use paceline_job::{Host, LinkName, Topology, View};
use std::{collections::HashMap, sync::Arc};

/// Links, numbered, and the ways over them between the members of a group.
#[derive(Clone, Debug)]
pub struct Roads {
    topology: Arc<Topology>,
    /// By member, its host as the topology numbers hosts.
    hosts: Vec<u32>,
}

/// A message's way.
pub(super) struct Route {
    pub(super) latency: f64,
    links: [usize; 4],
    hops: usize,
}

impl Route {
    pub(super) fn links(&self) -> &[usize] {
        &self.links[..self.hops]
    }
}

impl Roads {
    /// The ways between the workers of a view; `None` if the topology lacks one of their hosts, or a rack.
    pub fn of(view: &View, topology: &Arc<Topology>) -> Option<Roads> {
        let names = topology.hosts.iter().map(|host| host.name.as_str());
        let numbers: HashMap<&str, u32> = names.zip(0..).collect();
        let of_worker = |host: &str| numbers.get(host).copied();
        let hosts = view.workers.iter().map(|worker| of_worker(&worker.host));
        let racks = topology.uplinks.len();
        let whole = |host: &Host| racks == 0 || (host.rack as usize) < racks;
        let hosts = hosts.collect::<Option<_>>()?;
        let topology = topology.clone();
        topology.hosts.iter().all(whole).then_some(Roads { hosts, topology })
    }

    /// The ways between members of a group, of whom each has the host that the worker `like` has.
    pub(crate) fn among(&self, like: impl Iterator<Item = usize>) -> Roads {
        let hosts = like.map(|worker| self.hosts[worker]).collect();
        Roads { hosts, topology: self.topology.clone() }
    }

    /// How many links there are.
    pub(super) fn len(&self) -> usize {
        2 * (self.topology.hosts.len() + self.topology.uplinks.len() + self.hosts.len())
    }

    /// A link by its number.
    pub(super) fn name(&self, link: usize) -> LinkName {
        let (hosts, racks) = (self.topology.hosts.len(), self.topology.uplinks.len());
        let (index, inward) = (link / 2, link % 2 == 1);
        let number = |base: usize| (index - base) as u32;
        match (index, inward) {
            (_, false) if index < hosts => LinkName::HostOut(number(0)),
            (_, true) if index < hosts => LinkName::HostIn(number(0)),
            (_, false) if index < hosts + racks => LinkName::RackUp(number(hosts)),
            (_, true) if index < hosts + racks => LinkName::RackDown(number(hosts)),
            (_, false) => LinkName::MemoryOut(number(hosts + racks)),
            (_, true) => LinkName::MemoryIn(number(hosts + racks)),
        }
    }

    fn number(&self, name: LinkName) -> usize {
        let (hosts, racks) = (self.topology.hosts.len(), self.topology.uplinks.len());
        let at = |base: usize, index: u32, inward: usize| 2 * (base + index as usize) + inward;
        match name {
            LinkName::HostOut(host) => at(0, host, 0),
            LinkName::HostIn(host) => at(0, host, 1),
            LinkName::RackUp(rack) => at(hosts, rack, 0),
            LinkName::RackDown(rack) => at(hosts, rack, 1),
            LinkName::MemoryOut(worker) => at(hosts + racks, worker, 0),
            LinkName::MemoryIn(worker) => at(hosts + racks, worker, 1),
        }
    }

    /// Seconds that a byte takes on a link.
    pub(super) fn byte(&self, link: usize) -> f64 {
        self.topology.rate(self.name(link)).bytes_per_second().recip()
    }

    pub(super) fn route(&self, from: u32, to: u32) -> Route {
        let way =
            self.topology.way((from, self.hosts[from as usize]), (to, self.hosts[to as usize]));
        let mut route = Route { latency: way.latency.as_secs_f64(), links: [0; 4], hops: 0 };
        for name in way.links() {
            route.links[route.hops] = self.number(*name);
            route.hops += 1;
        }
        route
    }
}
