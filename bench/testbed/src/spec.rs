//! What network to build: hosts, racks, rates, as data. It knows nothing of how it is built, and
//! refuses what cannot be before anything is.

use crate::{
    error::{Error, Result},
    shaping::Shaper,
};
use paceline_job::{Rate, script::Target};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Hosts have addresses in one network of 254.
pub(crate) const MAX_HOSTS: usize = 250;

/// A network reserved for documentation: no machine is reached at it, and none is hidden by it.
const NETWORK: [u8; 3] = [198, 51, 100];
pub(crate) const PREFIX_BITS: u8 = 24;

/// Below it, one burst would be more than a second; above it, the shapers' arithmetic overflows.
const RATES: std::ops::RangeInclusive<f64> = 125e3..=125e9;

/// Where somebody else's host is joined to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// In a rack, beside its hosts.
    Rack(usize),
    /// Behind no uplink, where racks meet.
    Core,
}

/// A network to build.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// How many hosts; host `i` has address 198.51.100.(i+1).
    pub hosts: usize,
    /// How many racks. Hosts fill them in order, as evenly as can be.
    pub racks: usize,
    /// What each host's wire carries, in each direction.
    pub rate: Rate,
    /// What each rack's uplink carries, in each direction. `None`: as much as its hosts together.
    pub uplink: Option<Rate>,
    /// Hosts whose wire differs.
    pub host_rates: BTreeMap<usize, Rate>,
    /// Hosts of somebody else, whose traffic meets that of the hosts: their numbers follow those. Their wires hold nobody up:
    /// they carry as much as all hosts together.
    pub neighbours: Vec<Seat>,
    /// Which shaper; `None`: the first that the kernel has.
    pub shaper: Option<Shaper>,
    /// TCP congestion control of the hosts; `None`: the kernel's default.
    pub congestion: Option<String>,
}

impl Spec {
    /// Hosts in one rack with equal wires, under reno: it shares a link fairly, so that what it does
    /// can be predicted.
    pub fn new(hosts: usize, rate: Rate) -> Spec {
        Spec {
            hosts,
            racks: 1,
            rate,
            uplink: None,
            host_rates: BTreeMap::new(),
            neighbours: Vec::new(),
            shaper: None,
            congestion: Some("reno".to_string()),
        }
    }

    /// Refuse what cannot be built, with the remedy.
    pub fn validate(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Spec(reason));
        if self.hosts == 0 || self.all_hosts() > MAX_HOSTS {
            return refuse(format!("{} hosts; there can be 1 to {MAX_HOSTS}", self.all_hosts()));
        }
        if self.racks == 0 || self.racks > self.hosts {
            return refuse(format!(
                "{} racks for {} hosts; every rack needs a host",
                self.racks, self.hosts
            ));
        }
        if self.racks == 1 && self.uplink.is_some() {
            return refuse("one rack has no uplink; ask for two racks or leave it out".to_string());
        }
        if let Some(host) = self.host_rates.keys().find(|host| **host >= self.hosts) {
            return refuse(format!(
                "a rate for host {host}, but the hosts are 0 to {}",
                self.hosts - 1
            ));
        }
        for seat in &self.neighbours {
            match *seat {
                Seat::Core if self.racks == 1 => {
                    return refuse("one rack has no core to sit at; ask for two racks".to_string());
                }
                Seat::Rack(rack) if rack >= self.racks => {
                    return refuse(format!(
                        "a neighbour in rack {rack}, but the racks are 0 to {}",
                        self.racks - 1
                    ));
                }
                Seat::Core | Seat::Rack(_) => {}
            }
        }
        let given = [Some(self.rate), self.uplink].into_iter().flatten();
        given.chain(self.host_rates.values().copied()).try_for_each(validate_rate)
    }

    /// How many there are with the neighbours.
    pub fn all_hosts(&self) -> usize {
        self.hosts + self.neighbours.len()
    }

    /// Where a host or a neighbour sits.
    pub(crate) fn seat_of(&self, host: usize) -> Seat {
        match host.checked_sub(self.hosts).and_then(|number| self.neighbours.get(number)) {
            Some(seat) => *seat,
            None => Seat::Rack(self.rack_of(host)),
        }
    }

    /// The rack a host sits in.
    pub fn rack_of(&self, host: usize) -> usize {
        host * self.racks / self.hosts
    }

    /// Where a host is reached by the others.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        assert!(host < self.all_hosts().min(MAX_HOSTS), "host {host} of {}", self.all_hosts());
        let [a, b, c] = NETWORK;
        Ipv4Addr::new(a, b, c, host as u8 + 1)
    }

    /// The rate a link begins with.
    ///
    /// # Errors
    /// [`Error::NoSuchTarget`].
    pub fn rate_of(&self, target: Target) -> Result<Rate> {
        self.expect(target)?;
        Ok(match target {
            Target::Host(host) if host >= self.hosts => {
                Rate::from_bytes_per_second(self.hosts as f64 * self.rate.bytes_per_second())
            }
            Target::Host(host) => self.host_rates.get(&host).copied().unwrap_or(self.rate),
            Target::Rack(rack) => self.uplink.unwrap_or_else(|| {
                let members = (0..self.hosts).filter(|host| self.rack_of(*host) == rack);
                let rates =
                    members.map(|host| self.host_rates.get(&host).copied().unwrap_or(self.rate));
                Rate::from_bytes_per_second(rates.map(Rate::bytes_per_second).sum())
            }),
        })
    }

    /// Refuse a link that this network does not have.
    pub(crate) fn expect(&self, target: Target) -> Result<()> {
        let reason = match target {
            Target::Host(host) if host >= self.all_hosts() => {
                format!("no {target}; the hosts are host0 to host{}", self.hosts - 1)
            }
            Target::Rack(_) if self.racks == 1 => {
                format!("no uplink of {target}: there is one rack; ask for two")
            }
            Target::Rack(rack) if rack >= self.racks => {
                format!("no {target}; the racks are rack0 to rack{}", self.racks - 1)
            }
            _ => return Ok(()),
        };
        Err(Error::NoSuchTarget(reason))
    }
}

/// Refuse a rate that the shapers cannot hold.
pub(crate) fn validate_rate(rate: Rate) -> Result<()> {
    if RATES.contains(&rate.bytes_per_second()) {
        return Ok(());
    }
    Err(Error::Spec(format!("a rate of {rate}; links can carry 1mbit to 1000gbit")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(hosts: usize, racks: usize) -> Spec {
        Spec { racks, ..Spec::new(hosts, "100mbit".parse().unwrap()) }
    }

    #[test]
    fn hosts_fill_racks_in_order_and_evenly() {
        let racks = |hosts, racks| {
            let spec = spec(hosts, racks);
            (0..hosts).map(|host| spec.rack_of(host)).collect::<Vec<_>>()
        };
        assert_eq!(racks(4, 1), [0, 0, 0, 0]);
        assert_eq!(racks(8, 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(racks(5, 2), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn neighbours_sit_where_they_are_put_and_move_no_host() {
        let spec = Spec { neighbours: vec![Seat::Rack(0), Seat::Core], ..spec(4, 2) };
        let seats: Vec<Seat> = (0..6).map(|host| spec.seat_of(host)).collect();
        let [near, far] = [Seat::Rack(0), Seat::Rack(1)];
        assert_eq!(seats, [near, near, far, far, near, Seat::Core]);
        assert_eq!(spec.rate_of(Target::Rack(0)).unwrap(), "200mbit".parse().unwrap());
        assert_eq!(spec.rate_of(Target::Host(5)).unwrap(), "400mbit".parse().unwrap());
    }

    #[test]
    fn an_uplink_left_out_carries_what_its_hosts_can() {
        let mut spec = spec(4, 2);
        spec.host_rates.insert(3, "20mbit".parse().unwrap());
        assert_eq!(spec.rate_of(Target::Rack(0)).unwrap(), "200mbit".parse().unwrap());
        assert_eq!(spec.rate_of(Target::Rack(1)).unwrap(), "120mbit".parse().unwrap());
        assert_eq!(spec.rate_of(Target::Host(3)).unwrap(), "20mbit".parse().unwrap());
        assert!(spec.rate_of(Target::Host(4)).is_err());
    }

    #[test]
    fn what_cannot_be_built_is_refused_with_a_reason() {
        let refusal = |spec: Spec| spec.validate().unwrap_err().to_string();
        assert!(refusal(spec(0, 1)).contains("0 hosts"));
        assert!(refusal(spec(251, 1)).contains("251 hosts"));
        assert!(refusal(spec(2, 3)).contains("every rack needs a host"));
        let uplink = Some("1gbit".parse().unwrap());
        assert!(refusal(Spec { uplink, ..spec(2, 1) }).contains("no uplink"));
        let slow = "8kbit".parse().unwrap();
        assert!(refusal(Spec { rate: slow, ..spec(2, 1) }).contains("8kbit"));
        let host_rates = BTreeMap::from([(2, "1gbit".parse().unwrap())]);
        assert!(refusal(Spec { host_rates, ..spec(2, 1) }).contains("hosts are 0 to 1"));
        assert!(refusal(Spec { neighbours: vec![Seat::Core], ..spec(2, 1) }).contains("no core"));
        let neighbours = vec![Seat::Rack(2)];
        assert!(refusal(Spec { neighbours, ..spec(2, 2) }).contains("racks are 0 to 1"));
        assert!(spec(250, 250).validate().is_ok());
    }
}
