//! When a link counts as contended, and when as healed: a state machine over what flows between hosts achieved.
//!
//! A link is as good as the best flow that crosses it: one slow flow may be another link's fault, many are not. A mark
//! takes several looks in a row, and taking it away several more and a better rate than the one that set it, so that
//! noise changes nothing. It reads no clock and moves no bytes; whoever looks decides how often.

use paceline_job::{Contended, Topology};
use std::sync::Arc;

/// What one host achieved towards another since the last look, while it had more to send than that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Sender, as the topology numbers hosts.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Its rate, as a share of what it had without others' traffic.
    pub share: f64,
}

/// When a link changes sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Contended from this share on downwards,
    pub contended_below: f64,
    /// in so many looks in a row.
    pub looks_to_mark: u32,
    /// Healed from this share on upwards,
    pub healed_above: f64,
    /// in so many looks in a row.
    pub looks_to_heal: u32,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { contended_below: 0.6, looks_to_mark: 3, healed_above: 0.8, looks_to_heal: 6 }
    }
}

/// Other marks than before, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// All links that count as contended now.
    pub contended: Contended,
    /// In plain words, one sentence for each change.
    pub reason: String,
}

/// Follows all links of a topology.
#[derive(Clone, Debug)]
pub struct Watch {
    topology: Arc<Topology>,
    thresholds: Thresholds,
    /// By host, then by rack.
    links: Vec<Standing>,
    /// How many racks there are.
    racks: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    contended: bool,
    /// Looks in a row that spoke against it.
    against: u32,
}

impl Watch {
    /// Nothing is contended yet.
    pub fn new(topology: Arc<Topology>, thresholds: Thresholds) -> Watch {
        let racks = topology.hosts.iter().map(|host| host.rack as usize + 1).max().unwrap_or(0);
        let links = vec![Standing::default(); topology.hosts.len() + racks];
        Watch { topology, thresholds, links, racks }
    }

    /// What counts as contended now.
    pub fn contended(&self) -> Contended {
        let hosts = self.topology.hosts.iter().zip(&self.links);
        let hosts = hosts.filter(|(_, link)| link.contended).map(|(host, _)| host.name.clone());
        let racks = (0_u32..).zip(&self.links[self.topology.hosts.len()..]);
        let racks = racks.filter(|(_, link)| link.contended).map(|(rack, _)| rack);
        Contended { hosts: hosts.collect(), racks: racks.collect() }
    }

    /// Take a look. Flows of hosts that the topology does not have are passed over.
    pub fn look(&mut self, flows: &[Flow]) -> Option<Adjustment> {
        let shares = self.shares(flows);
        let mut reasons = Vec::new();
        for (link, share) in shares.into_iter().enumerate() {
            let Some(share) = share else { continue };
            let Thresholds { contended_below, looks_to_mark, healed_above, looks_to_heal } =
                self.thresholds;
            let standing = &mut self.links[link];
            let (speaks_against, needed) = match standing.contended {
                false => (share <= contended_below, looks_to_mark),
                true => (share >= healed_above, looks_to_heal),
            };
            standing.against = if speaks_against { standing.against + 1 } else { 0 };
            if standing.against >= needed {
                *standing = Standing { contended: !standing.contended, against: 0 };
                let verb = if standing.contended { "contended" } else { "free again" };
                let percent = (100.0 * share).round();
                reasons.push(format!(
                    "{} is {verb}: {percent} % of its rate in {needed} looks in a row",
                    self.name(link)
                ));
            }
        }
        let reason = reasons.join("; ");
        (!reason.is_empty()).then(|| Adjustment { contended: self.contended(), reason })
    }

    /// For each link the best share of a flow that tells something about it.
    ///
    /// Inside racks only hosts' own links are crossed, so those speak first. A flow between racks speaks about the
    /// racks if both of its hosts are not the reason, and about its hosts if nothing else does. A flow that crosses a link
    /// that counts as contended speaks about no other: that link is reason enough.
    fn shares(&self, flows: &[Flow]) -> Vec<Option<f64>> {
        let hosts = self.topology.hosts.len();
        let known = |flow: &&Flow| flow.from < hosts && flow.to < hosts && flow.from != flow.to;
        let rack = |host: usize| self.topology.hosts[host].rack as usize;
        let mut best: Vec<Option<f64>> = vec![None; hosts + self.racks];
        let tell = |link: &mut Option<f64>, share: f64| {
            *link = Some(link.map_or(share, |known| known.max(share)));
        };
        let (inside, between): (Vec<&Flow>, Vec<&Flow>) =
            flows.iter().filter(known).partition(|flow| rack(flow.from) == rack(flow.to));
        let contended = |link: usize| self.links[link].contended;
        for flow in &inside {
            let ends = [flow.from, flow.to];
            for end in ends
                .into_iter()
                .filter(|end| contended(*end) || !ends.map(contended).contains(&true))
            {
                tell(&mut best[end], flow.share);
            }
        }
        let heard: Vec<bool> = best[..hosts].iter().map(Option::is_some).collect();
        let slow = |share: Option<f64>| {
            share.is_some_and(|share| share <= self.thresholds.contended_below)
        };
        let slow_hosts: Vec<bool> = best[..hosts].iter().map(|share| slow(*share)).collect();
        for flow in &between {
            let crossed = [flow.from, flow.to, hosts + rack(flow.from), hosts + rack(flow.to)];
            let known = crossed.map(contended).contains(&true);
            let speaks = |link: usize| contended(link) || !known;
            for end in [flow.from, flow.to] {
                let uplink = hosts + rack(end);
                if !heard[end] && speaks(end) {
                    tell(&mut best[end], flow.share);
                }
                if !slow_hosts[flow.from] && !slow_hosts[flow.to] && speaks(uplink) {
                    tell(&mut best[uplink], flow.share);
                }
            }
        }
        // A host that was heard of between racks only shares its rack's fault.
        for host in 0..hosts {
            if !heard[host] && slow(best[hosts + rack(host)]) && !self.is_alone(host) {
                best[host] = None;
            }
        }
        best
    }

    /// Whether a host has its rack for itself.
    fn is_alone(&self, host: usize) -> bool {
        let hosts = &self.topology.hosts;
        hosts.iter().filter(|other| other.rack == hosts[host].rack).count() == 1
    }

    fn name(&self, link: usize) -> String {
        match self.topology.hosts.get(link) {
            Some(host) => format!("the link of {}", host.name),
            None => format!("the uplink of rack {}", link - self.topology.hosts.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Host, Link, Random, Rate};
    use std::time::Duration;

    /// Racks × hosts.
    fn watch(racks: u32, hosts: u32) -> Watch {
        let link = Link { rate: Rate::from_bits_per_second(1e9), latency: Duration::ZERO };
        let host = |index: u32| Host { name: format!("host{index}"), rack: index / hosts, link };
        let hosts = (0..racks * hosts).map(host).collect();
        let topology = Topology { hosts, uplinks: vec![link; racks as usize], memory: link };
        Watch::new(Arc::new(topology), Thresholds::default())
    }

    /// Every host to its neighbour, round all; `share` for the flows that `slow` names.
    fn round(hosts: usize, share: f64, slow: impl Fn(usize, usize) -> bool) -> Vec<Flow> {
        let flow = |from: usize| {
            let to = (from + 1) % hosts;
            Flow { from, to, share: if slow(from, to) { share } else { 1.0 } }
        };
        (0..hosts).map(flow).collect()
    }

    #[test]
    fn an_uplink_is_marked_by_all_of_its_flows_and_restored_when_it_heals() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        let slow =
            round(12, 0.3, |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1));
        assert_eq!(watch.look(&slow), None);
        assert_eq!(watch.look(&slow), None);
        let marked = watch.look(&slow).unwrap();
        assert_eq!(marked.contended.racks.iter().collect::<Vec<_>>(), [&1]);
        assert!(marked.contended.hosts.is_empty(), "{marked:?}");
        assert!(marked.reason.contains("the uplink of rack 1 is contended"), "{}", marked.reason);
        let sound = round(12, 1.0, |_, _| false);
        let healed: Vec<_> = (0..6).filter_map(|_| watch.look(&sound)).collect();
        assert_eq!(healed.len(), 1);
        assert!(healed[0].contended.is_empty());
    }

    #[test]
    fn a_slow_host_is_marked_and_its_rack_is_not() {
        let mut watch = watch(2, 3);
        let slow = round(6, 0.2, |from, to| from == 2 || to == 2);
        let marked = (0..3).filter_map(|_| watch.look(&slow)).last().unwrap();
        assert_eq!(marked.contended.hosts.iter().collect::<Vec<_>>(), ["host2"]);
        assert!(marked.contended.racks.is_empty(), "{marked:?}");
    }

    #[test]
    fn noise_changes_nothing() {
        for seed in 0..50 {
            let (mut watch, mut random) = (watch(4, 3), Random::new(seed));
            for _ in 0..500 {
                let noisy = |flow: Flow| Flow { share: 0.65 + 0.35 * random.unit(), ..flow };
                let flows: Vec<Flow> =
                    round(12, 1.0, |_, _| false).into_iter().map(noisy).collect();
                assert_eq!(watch.look(&flows), None, "seed {seed}");
            }
        }
    }

    #[test]
    fn between_the_thresholds_a_mark_stays() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        (0..3).for_each(|_| drop(watch.look(&at(0.2))));
        assert!((0..100).all(|_| watch.look(&at(0.7)).is_none()));
        assert!(!watch.contended().is_empty());
    }

    #[test]
    fn a_contended_uplink_is_reason_enough_for_whoever_meets_it() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        let slow =
            round(12, 0.3, |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1));
        assert!((0..3).filter_map(|_| watch.look(&slow)).count() == 1);
        // From then on the next rack is heard of through it only.
        let met: Vec<Flow> = slow.into_iter().filter(|flow| rack(flow.from) == 1).collect();
        assert!((0..20).all(|_| watch.look(&met).is_none()));
        assert_eq!(watch.contended().racks.into_iter().collect::<Vec<u32>>(), [1]);
    }

    #[test]
    fn flows_that_name_no_host_are_passed_over() {
        let mut watch = watch(2, 2);
        let flow = Flow { from: 0, to: 9, share: 0.1 };
        assert!((0..10).all(|_| watch.look(&[flow]).is_none()));
    }
}
