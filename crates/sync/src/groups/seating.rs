//! Who sits where, as far as groups follow from it: racks, and links that others' traffic slows down.
//!
//! A [`Terrain`] is about the hosts of a view, a [`Seating`] about the members of one group. Neither knows rates.

use crate::{program::Member, strategy::Layout};
use paceline_job::View;
use std::collections::HashMap;

/// A rack's members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackSeats {
    /// Those who share a link inside the rack, together: each host's members. Where one host has the rack to itself, nothing
    /// lies between its members and the uplink, and each sits alone. Nothing here is empty.
    pub hosts: Vec<Vec<Member>>,
    /// Whether others' traffic slows its uplink down.
    pub contended: bool,
}

/// Where the members of a group sit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seating {
    /// Racks in order of first appearance.
    pub racks: Vec<RackSeats>,
    /// By member: whether others' traffic slows its own link down.
    pub contended: Vec<bool>,
}

impl Seating {
    /// Where nothing is known but hosts: hosts that have several members are taken for racks.
    pub fn of_hosts(hosts: &[u32]) -> Seating {
        let layout = Layout::new(hosts);
        let crowded = layout.largest_host() > 1;
        Seating::with(hosts, |host| if crowded { host } else { 0 }, |_| false, |_| false)
    }

    /// Members on these hosts of a terrain. Where all are in one rack, hosts that have several members are taken for racks, whose
    /// uplinks are their own links.
    pub fn on(terrain: &Terrain, hosts: &[u32]) -> Seating {
        let rack = |host: u32| terrain.racks.get(host as usize).copied().unwrap_or(0);
        let marked = |marks: &[bool], index: u32| marks.get(index as usize) == Some(&true);
        let together = hosts.iter().all(|host| rack(*host) == rack(hosts[0]));
        if together && Layout::new(hosts).largest_host() > 1 {
            let contended = |host| marked(&terrain.contended_hosts, host);
            return Seating::with(hosts, |host| host, |_| false, contended);
        }
        Seating::with(
            hosts,
            rack,
            |host| marked(&terrain.contended_hosts, host),
            |rack| marked(&terrain.contended_racks, rack),
        )
    }

    fn with(
        hosts: &[u32],
        rack_of: impl Fn(u32) -> u32,
        host_contended: impl Fn(u32) -> bool,
        rack_contended: impl Fn(u32) -> bool,
    ) -> Seating {
        let layout = Layout::new(hosts);
        let mut numbers: Vec<u32> = Vec::new();
        let mut racks: Vec<RackSeats> = Vec::new();
        for host in 0..layout.hosts() {
            let members: Vec<Member> =
                (0..layout.host_size(host)).map(|index| layout.member(host, index)).collect();
            let number = rack_of(hosts[members[0] as usize]);
            let at = numbers.iter().position(|known| *known == number).unwrap_or_else(|| {
                numbers.push(number);
                racks.push(RackSeats { hosts: Vec::new(), contended: rack_contended(number) });
                numbers.len() - 1
            });
            racks[at].hosts.push(members);
        }
        for rack in &mut racks {
            if let [only] = &rack.hosts[..] {
                rack.hosts = only.iter().map(|member| vec![*member]).collect();
            }
        }
        let contended = hosts.iter().map(|host| host_contended(*host)).collect();
        Seating { racks, contended }
    }

    /// Number of members.
    pub fn members(&self) -> u32 {
        self.contended.len() as u32
    }

    /// Whether nobody is nearer than another and nothing is contended.
    pub fn is_flat(&self) -> bool {
        self.racks.len() < 2 && !self.contended.contains(&true)
    }

    /// For each member the index of its rack.
    pub fn rack_of_each(&self) -> Vec<u32> {
        let mut indices = vec![0; self.contended.len()];
        for (index, rack) in self.racks.iter().enumerate() {
            for member in rack.hosts.iter().flatten() {
                indices[*member as usize] = index as u32;
            }
        }
        indices
    }
}

/// The hosts of a view, numbered as [`View::host_indices`] does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terrain {
    /// The rack of each host.
    pub racks: Vec<u32>,
    /// Hosts whose link is contended.
    pub contended_hosts: Vec<bool>,
    /// Racks whose uplink is contended.
    pub contended_racks: Vec<bool>,
}

impl Terrain {
    /// What a view's settings say, if they say anything. A host that the topology does not know is a rack of its own.
    pub fn of_view(view: &View) -> Option<Terrain> {
        let settings = &view.settings;
        let topology = settings.topology.as_deref()?;
        let known: HashMap<&str, u32> =
            topology.hosts.iter().map(|host| (host.name.as_str(), host.rack)).collect();
        let mut unknown_racks =
            topology.hosts.iter().map(|host| host.rack + 1).max().unwrap_or(0)..;
        let (mut terrain, mut seen) = (Terrain::default(), 0);
        for (worker, index) in view.workers.iter().zip(view.host_indices()) {
            if index < seen {
                continue;
            }
            seen = index + 1;
            let rack = known.get(worker.host.as_str()).copied().or_else(|| unknown_racks.next());
            terrain.racks.push(rack.unwrap_or(u32::MAX));
            terrain.contended_hosts.push(settings.contended.hosts.contains(&worker.host));
        }
        let racks = settings.contended.racks.iter().max().map_or(0, |most| most + 1);
        terrain.contended_racks =
            (0..racks).map(|rack| settings.contended.racks.contains(&rack)).collect();
        Some(terrain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Contended, Host, Link, Rate, Settings, Topology};
    use std::{collections::BTreeSet, sync::Arc, time::Duration};

    #[test]
    fn hosts_with_several_members_are_racks_and_lone_hosts_are_not() {
        let racks = |hosts: &[u32]| Seating::of_hosts(hosts).racks.len();
        assert_eq!(racks(&[0, 0, 1, 1]), 2);
        assert_eq!(racks(&[0, 1, 2, 3]), 1);
        assert_eq!(racks(&[0, 0, 0]), 1);
        assert!(Seating::of_hosts(&[]).is_flat());
    }

    #[test]
    fn in_one_rack_hosts_with_several_members_are_racks_with_their_own_links_as_uplinks() {
        let contended_hosts = vec![false, true];
        let one = Terrain { racks: vec![0, 0], contended_hosts, contended_racks: vec![true] };
        let seating = Seating::on(&one, &[0, 0, 1, 1]);
        let racks = [([0, 1], false), ([2, 3], true)];
        let alone = |members: [u32; 2]| members.map(|member| vec![member]).to_vec();
        let rack = |(members, contended)| RackSeats { hosts: alone(members), contended };
        assert_eq!(seating.racks, racks.map(rack));
        assert_eq!(seating.contended, [false; 4]);
        assert_eq!(Seating::on(&one, &[0, 1]).racks.len(), 1, "lone hosts stay where they are");
    }

    #[test]
    fn a_view_is_seated_by_the_names_of_its_hosts() {
        let link = Link { rate: Rate::from_bits_per_second(1e9), latency: Duration::ZERO };
        let host = |name: &str, rack| Host { name: name.to_string(), rack, link };
        let hosts = vec![host("a", 0), host("b", 1), host("c", 0)];
        let topology = Topology { hosts, uplinks: vec![link; 2], memory: link };
        let contended =
            Contended { hosts: BTreeSet::from(["c".to_string()]), racks: BTreeSet::from([1]) };
        let settings =
            Settings { topology: Some(Arc::new(topology)), contended, ..Settings::default() };
        let names = ["b", "c", "x", "b", "a"].map(String::from).to_vec();
        let terrain = Terrain::of_view(&View::on_hosts(names, settings)).unwrap();
        assert_eq!(terrain.racks, [1, 0, 2, 0]);
        let seating = Seating::on(&terrain, &[0, 1, 2, 0, 3]);
        let hosts: Vec<_> = seating.racks.iter().map(|rack| rack.hosts.clone()).collect();
        assert_eq!(hosts, [vec![vec![0], vec![3]], vec![vec![1], vec![4]], vec![vec![2]]]);
        assert_eq!(
            seating.racks.iter().map(|rack| rack.contended).collect::<Vec<_>>(),
            [true, false, false]
        );
        assert_eq!(seating.contended, [false, true, false, false, false]);
        assert_eq!(seating.rack_of_each(), [0, 1, 2, 0, 1]);
    }
}
