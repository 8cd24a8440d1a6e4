//! Where workers sit and what joins them: hosts, racks, and link rates, measured or given.

use crate::{Rate, View};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr, time::Duration};

/// Racks are few: something is kept for each.
pub(crate) const MOST_RACKS: u32 = 1 << 16;

/// One direction of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Payload bytes it carries.
    pub rate: Rate,
    /// From the last byte sent to the last byte received.
    #[serde(with = "crate::duration")]
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

/// One direction of something that carries bytes. Hosts are numbered as in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkName {
    /// From a host to its rack.
    HostOut(u32),
    /// From its rack to a host.
    HostIn(u32),
    /// From a rack to the others.
    RackUp(u32),
    /// From the others to a rack.
    RackDown(u32),
    /// From a worker to its host's other workers.
    MemoryOut(u32),
    /// From its host's other workers to a worker.
    MemoryIn(u32),
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkName::HostOut(host) => write!(f, "out of host {host}"),
            LinkName::HostIn(host) => write!(f, "into host {host}"),
            LinkName::RackUp(rack) => write!(f, "out of rack {rack}"),
            LinkName::RackDown(rack) => write!(f, "into rack {rack}"),
            LinkName::MemoryOut(worker) => write!(f, "memory from worker {worker}"),
            LinkName::MemoryIn(worker) => write!(f, "memory to worker {worker}"),
        }
    }
}

/// The links that a message crosses, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Latencies of the links do not add up: each is that of a whole way through it, as [`Topology::bottleneck`] has it.
    pub latency: Duration,
    links: [LinkName; Way::MOST_LINKS],
    count: usize,
}

impl Way {
    /// The sender's wire, two racks' uplinks, the receiver's wire.
    pub const MOST_LINKS: usize = 4;

    fn over(latency: Duration, names: &[LinkName]) -> Way {
        let mut links = [names[0]; Way::MOST_LINKS];
        links[..names.len()].copy_from_slice(names);
        Way { latency, links, count: names.len() }
    }

    /// The links.
    pub fn links(&self) -> &[LinkName] {
        &self.links[..self.count]
    }
}

/// A topology file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// It is no TOML, or lacks a field: the message names the line.
    #[error("{0}")]
    Unreadable(#[from] toml::de::Error),
    /// Give each host one entry.
    #[error("the host `{0}` is there twice")]
    Twice(String),
    /// Add uplinks, one for each rack, or correct the host's rack.
    #[error("host `{host}` is in rack {rack}, and there are uplinks of {racks} racks, from 0")]
    NoUplink {
        /// Whose rack it is.
        host: String,
        /// Which.
        rack: u32,
        /// How many uplinks there are.
        racks: u32,
    },
    /// Number racks from 0.
    #[error("host `{host}` is in rack {rack}; racks are numbered from 0 to {}", MOST_RACKS - 1)]
    TooManyRacks {
        /// Whose rack it is.
        host: String,
        /// Which.
        rack: u32,
    },
    /// Give every link a rate above zero.
    #[error("a link carries nothing; leave its host out, or give it a rate")]
    NoRate,
}

/// Where it is known from where hosts sit: `FILE`, `survey` or `survey:SECONDS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologySource {
    /// A topology file.
    File(PathBuf),
    /// Workers find it out when they have met, within this time if it is said.
    Survey(Option<Duration>),
}

impl FromStr for TopologySource {
    type Err = String;

    fn from_str(text: &str) -> Result<TopologySource, String> {
        /// Longer than anybody would wait for a job to begin.
        const MOST_SECONDS: f64 = 600.0;
        let seconds = match text.strip_prefix("survey") {
            Some("") => return Ok(TopologySource::Survey(None)),
            Some(rest) if rest.starts_with(':') => &rest[1..],
            _ => return Ok(TopologySource::File(PathBuf::from(text))),
        };
        match seconds.parse::<f64>() {
            Ok(seconds) if (0.1..=MOST_SECONDS).contains(&seconds) => {
                Ok(TopologySource::Survey(Some(Duration::from_secs_f64(seconds))))
            }
            _ => Err(format!(
                "a survey takes from 0.1 to {MOST_SECONDS} seconds, such as survey:5; a file of that name is ./{text}"
            )),
        }
    }
}

/// Links that others' traffic slows down for now. Strategies that divide by racks keep them out of large groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Contended {
    /// Names of hosts whose own wire it is.
    pub hosts: BTreeSet<String>,
    /// Racks whose uplink it is.
    pub racks: BTreeSet<u32>,
}

impl Contended {
    /// Whether no link is.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.racks.is_empty()
    }
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

    /// Hosts in racks, neighbours together and racks as even as can be, all wires alike and all uplinks alike. Hosts are
    /// named `host0`, `host1` and so on.
    pub fn racked(hosts: u32, racks: u32, link: Link, uplink: Link, memory: Link) -> Topology {
        let racks = racks.clamp(1, hosts.max(1));
        let host = |at: u32| {
            let rack = (u64::from(at) * u64::from(racks) / u64::from(hosts)) as u32;
            Host { name: format!("host{at}"), rack, link }
        };
        let uplinks = if racks > 1 { vec![uplink; racks as usize] } else { Vec::new() };
        Topology { hosts: (0..hosts).map(host).collect(), uplinks, memory }
    }

    /// Read a topology file (TOML), and refuse what cannot be.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        let topology: Topology = toml::from_str(text)?;
        topology.check()?;
        Ok(topology)
    }

    /// Whether it makes sense, wherever it comes from.
    pub fn check(&self) -> Result<(), TopologyError> {
        let racks = self.uplinks.len() as u32;
        let mut names = BTreeSet::new();
        for Host { name, rack, .. } in &self.hosts {
            if !names.insert(name) {
                return Err(TopologyError::Twice(name.clone()));
            }
            if racks > 0 && *rack >= racks {
                return Err(TopologyError::NoUplink { host: name.clone(), rack: *rack, racks });
            }
            if *rack >= MOST_RACKS {
                return Err(TopologyError::TooManyRacks { host: name.clone(), rack: *rack });
            }
        }
        if self.links().any(|link| link.rate.bytes_per_second() <= 0.0) {
            return Err(TopologyError::NoRate);
        }
        Ok(())
    }

    /// All links, hosts' wires and uplinks.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.hosts.iter().map(|host| host.link).chain(self.uplinks.iter().copied())
    }

    /// Those of these hosts that it does not name, in order and each once.
    pub fn strangers<'a>(&self, hosts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let known: BTreeSet<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let mut strangers: Vec<&str> = Vec::new();
        for host in hosts {
            if !known.contains(host) && !strangers.contains(&host) {
                strangers.push(host);
            }
        }
        strangers
    }

    /// How many racks it has.
    pub fn racks(&self) -> u32 {
        let of_hosts = self.hosts.iter().map(|host| host.rack.saturating_add(1)).max();
        of_hosts.unwrap_or(0).max(self.uplinks.len() as u32)
    }

    /// As a file that [`Topology::parse`] reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field of a topology has a TOML form")
    }

    /// From one worker to another, each with the number of its host.
    ///
    /// # Panics
    /// If there is no such host, or no such rack.
    pub fn way(&self, from: (u32, u32), to: (u32, u32)) -> Way {
        let ((sender, here), (receiver, there)) = (from, to);
        if here == there {
            let names = [LinkName::MemoryOut(sender), LinkName::MemoryIn(receiver)];
            return Way::over(self.memory.latency, &names);
        }
        let [near, far] = [here, there].map(|host| &self.hosts[host as usize]);
        let latency = near.link.latency.max(far.link.latency);
        if near.rack == far.rack || self.uplinks.is_empty() {
            return Way::over(latency, &[LinkName::HostOut(here), LinkName::HostIn(there)]);
        }
        let uplinks = [near, far].map(|host| self.uplinks[host.rack as usize].latency);
        let names = [
            LinkName::HostOut(here),
            LinkName::RackUp(near.rack),
            LinkName::RackDown(far.rack),
            LinkName::HostIn(there),
        ];
        Way::over(latency.max(uplinks[0]).max(uplinks[1]), &names)
    }

    /// What a link carries.
    ///
    /// # Panics
    /// If there is no such host or rack.
    pub fn rate(&self, name: LinkName) -> Rate {
        match name {
            LinkName::HostOut(host) | LinkName::HostIn(host) => self.hosts[host as usize].link.rate,
            LinkName::RackUp(rack) | LinkName::RackDown(rack) => self.uplinks[rack as usize].rate,
            LinkName::MemoryOut(_) | LinkName::MemoryIn(_) => self.memory.rate,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn link(bits: f64, micros: u64) -> Link {
        let rate = Rate::from_bits_per_second(bits);
        Link { rate, latency: Duration::from_micros(micros) }
    }

    fn racked() -> Topology {
        Topology::racked(5, 2, link(1e9, 20), link(5e8, 30), link(3.2e10, 5))
    }

    #[test]
    fn a_file_reads_back_as_it_was_written() {
        let topology = racked();
        assert_eq!(Topology::parse(&topology.to_toml()).unwrap(), topology);
        let racks: Vec<u32> = topology.hosts.iter().map(|host| host.rack).collect();
        assert_eq!(racks, [0, 0, 0, 1, 1]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refusal =
            |topology: &Topology| Topology::parse(&topology.to_toml()).unwrap_err().to_string();
        let mut twice = racked();
        twice.hosts[1].name = "host0".to_string();
        assert!(refusal(&twice).contains("host0"));
        let mut outside = racked();
        outside.hosts[4].rack = 7;
        assert!(refusal(&outside).contains("rack 7"));
        assert!(Topology::parse("hosts = 3").is_err());
    }

    #[test]
    fn a_topology_comes_from_a_file_or_from_a_survey() {
        let source = |text: &str| text.parse::<TopologySource>();
        assert_eq!(source("survey"), Ok(TopologySource::Survey(None)));
        let five = Some(Duration::from_secs(5));
        assert_eq!(source("survey:5"), Ok(TopologySource::Survey(five)));
        for file in ["net.toml", "./survey", "surveys/net.toml"] {
            assert_eq!(source(file), Ok(TopologySource::File(file.into())));
        }
        for wrong in ["survey:", "survey:0", "survey:x", "survey:1e9", "survey:-1", "survey:nan"] {
            assert!(source(wrong).unwrap_err().contains("seconds"), "{wrong}");
        }
    }

    #[test]
    fn hosts_that_it_does_not_name_are_strangers() {
        let hosts = ["host0", "a", "host4", "b", "a"];
        assert_eq!(racked().strangers(hosts.into_iter()), ["a", "b"]);
    }

    #[test]
    fn a_way_between_racks_crosses_both_uplinks_and_takes_the_longest_latency() {
        let topology = racked();
        let inside = topology.way((0, 0), (1, 1));
        assert_eq!(inside.links(), [LinkName::HostOut(0), LinkName::HostIn(1)]);
        assert_eq!(inside.latency, Duration::from_micros(20));
        let between = topology.way((0, 0), (1, 4));
        let (up, down) = (LinkName::RackUp(0), LinkName::RackDown(1));
        assert_eq!(between.links(), [LinkName::HostOut(0), up, down, LinkName::HostIn(4)]);
        assert_eq!(between.latency, Duration::from_micros(30));
        assert_eq!(topology.rate(up), topology.uplinks[0].rate);
        let memory = topology.way((0, 3), (1, 3));
        assert_eq!(memory.links(), [LinkName::MemoryOut(0), LinkName::MemoryIn(1)]);
    }
}
