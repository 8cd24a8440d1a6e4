//! When a link counts as contended, and when as healed: a state machine over what came from host to host, and how long that took.
//!
//! The job says whether anything is wrong: how much of the time in which it received its load would have taken, had nobody else been
//! there. Where that falls below a share of its best, the reason is the link whose flows are slower than usual by most: all others are
//! faster, because less shares the wires with them. A marked link is judged by its own rate, of all flows together, over the time in which the job received
//! anything: unlike a flow's rate, that does not rise when groups change and fewer flows share the link. So it is healed when it carries
//! clearly more than when it was marked, and the job is as fast as its load asks. A mark takes several looks in a row, and
//! taking it away several more, so that noise changes nothing. It reads no clock and moves no bytes; whoever looks decides how often.

use crate::metrics::Smoothed;
use paceline_job::{Contended, LinkName, Topology};
use std::sync::Arc;

/// What came from one host to another since the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Sender, as the topology numbers hosts.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// How much,
    pub bytes: f64,
    /// and how long something was on its way.
    pub seconds: f64,
}

/// When a link changes sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Something is contended where the job is as fast as this share of its best, or slower,
    pub contended_below: f64,
    /// and it is a link whose flows have this share of their usual rate, or less,
    pub unusual_below: f64,
    /// or both have this share while another link is marked,
    pub slow_below: f64,
    /// in so many looks in a row.
    pub looks_to_mark: u32,
    /// Healed where it carries so many times what it did when it was marked,
    pub healed_by: f64,
    /// and the job is as fast as its load asks, from this share of its best on upwards,
    pub healed_above: f64,
    /// in so many looks in a row.
    pub looks_to_heal: u32,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            contended_below: 0.8,
            unusual_below: 0.9,
            slow_below: 0.65,
            looks_to_mark: 4,
            healed_by: 1.15,
            healed_above: 0.85,
            looks_to_heal: 6,
        }
    }
}

/// Links whose flows are slower than usual by as much, but for this factor, may both be the reason.
const ALIKE: f64 = 1.05;

/// What is read faster than its way carries, by this factor, was there already: it came from a queue or a bucket on the way, and
/// says nothing about links. Small messages come so, however slow an uplink is.
const TOO_FAST: f64 = 1.25;

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
    /// All links together, as fast as the busiest could be.
    job: Gauge,
    /// In the last look.
    in_force: Contended,
}

/// A share, smoothed over looks under the same marks, and its best.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    now: Smoothed,
    best: f64,
}

impl Gauge {
    fn add(&mut self, share: f64) {
        self.now.add(share);
        self.best = self.best.max(self.now.value());
    }

    /// Of its best.
    fn value(&self) -> f64 {
        if self.best > 0.0 { self.now.value() / self.best } else { 1.0 }
    }
}

#[derive(Clone, Debug, Default)]
struct Standing {
    /// What it carried when it was marked.
    marked: Option<Mark>,
    /// Bytes a second of one flow, under the marks in force,
    flow: Smoothed,
    /// and what that is while nothing is marked and the job is as fast as it can be.
    usual: Smoothed,
    /// Bytes a second of all flows together, under the marks in force.
    rate: Smoothed,
    /// Looks in a row that spoke against it,
    against: u32,
    /// and what its flows had of their usual rate in those looks, together.
    had: f64,
}

#[derive(Clone, Copy, Debug)]
enum Mark {
    /// At this rate.
    At(f64),
    /// By somebody who is gone: what it carries is not known yet.
    Inherited,
}

/// A flow, and what it tells.
#[derive(Clone, Copy, Debug)]
struct Heard {
    flow: Flow,
    /// Seconds that the busiest link of its way needs for all that crosses it: so long it takes if nobody else is there.
    needed: f64,
}

impl Standing {
    /// What a rate of its flows is of the usual one; as usual where that is not known.
    fn of_usual(&self, rate: f64) -> f64 {
        if self.usual.count() > 0 { rate / self.usual.value() } else { 1.0 }
    }

    fn had(&self) -> f64 {
        self.had / f64::from(self.against.max(1))
    }
}

impl Watch {
    /// Knows nothing of the links yet, but that these were marked by one before it that is gone.
    pub fn new(topology: Arc<Topology>, thresholds: Thresholds, inherited: &Contended) -> Watch {
        let links = topology.hosts.len() + topology.uplinks.len();
        let mut watch = Watch {
            topology,
            thresholds,
            links: vec![Standing::default(); links],
            job: Gauge::default(),
            in_force: Contended::default(),
        };
        for link in 0..links {
            if watch.is_among(link, inherited) {
                // The job's best is what the topology says: nobody has seen it.
                (watch.links[link].marked, watch.job.best) = (Some(Mark::Inherited), 1.0);
            }
        }
        watch
    }

    /// What counts as contended now.
    pub fn contended(&self) -> Contended {
        let (hosts, racks) = self.links.split_at(self.topology.hosts.len());
        let hosts = self.topology.hosts.iter().zip(hosts);
        let hosts = hosts.filter(|(_, link)| link.marked.is_some()).map(|(host, _)| &host.name);
        let racks = (0_u32..).zip(racks).filter(|(_, link)| link.marked.is_some());
        Contended { hosts: hosts.cloned().collect(), racks: racks.map(|(rack, _)| rack).collect() }
    }

    /// Take a look at what came in so many seconds in which anything did, while these marks are in force. Flows of hosts that the
    /// topology does not have are passed over.
    pub fn look(
        &mut self,
        flows: &[Flow],
        seconds: f64,
        in_force: &Contended,
    ) -> Option<Adjustment> {
        if self.in_force != *in_force {
            // Groups are others, and loads with them.
            self.in_force = in_force.clone();
            self.job.now = Smoothed::default();
            for link in &mut self.links {
                (link.flow, link.rate) = Default::default();
            }
            self.begin_anew();
        }
        self.hear(flows, seconds);
        let thresholds = self.thresholds;
        // What crosses one slow link is slow on all others of its way, and a ring everywhere, but nowhere as slow.
        let slow = self.links.iter().filter(|link| link.marked.is_none() && link.against > 0);
        let least = slow.map(Standing::had).fold(f64::INFINITY, f64::min);
        let mut reasons = Vec::new();
        for link in 0..self.links.len() {
            let name = self.name(link);
            let standing = &mut self.links[link];
            let (rate, against) = (standing.rate.value(), standing.against);
            match standing.marked {
                None if against >= thresholds.looks_to_mark && standing.had() <= ALIKE * least => {
                    standing.marked = Some(Mark::At(rate));
                    let percent = 100.0 * standing.had();
                    reasons.push(format!(
                        "{name} is contended: its flows had {percent:.0} % of their usual rate in {against} looks in a row"
                    ));
                }
                Some(Mark::At(before)) if against >= thresholds.looks_to_heal => {
                    standing.marked = None;
                    let times = rate / before;
                    reasons.push(format!(
                        "{name} is free again: it carries {times:.1} times what it did when it was marked"
                    ));
                }
                _ => {}
            }
        }
        if !reasons.is_empty() {
            // What is marked now may be why others were slow.
            self.begin_anew();
        }
        let reason = reasons.join("; ");
        (!reason.is_empty()).then(|| Adjustment { contended: self.contended(), reason })
    }

    /// What speaks for a change has to be seen again.
    fn begin_anew(&mut self) {
        for link in &mut self.links {
            (link.against, link.had) = Default::default();
        }
    }

    /// What was said about each link, and whether it speaks against it.
    fn hear(&mut self, flows: &[Flow], seconds: f64) {
        let flows = self.heard(flows);
        let paces = self.paces(&flows);
        let load = self.load(flows.iter().map(|heard| &heard.flow));
        let needed = flows.iter().map(|heard| heard.needed).fold(0.0, f64::max);
        if needed > 0.0 && seconds > 0.0 {
            self.job.add((needed / seconds).min(1.0));
        }
        let thresholds = self.thresholds;
        let job = self.job.value();
        let is_unmarked = self.links.iter().all(|link| link.marked.is_none());
        let is_usual = job >= thresholds.healed_above && is_unmarked;
        // Beside a mark groups are others, and flows a little slower or faster than usual.
        let (contended_below, unusual_below) = match is_unmarked {
            true => (thresholds.contended_below, thresholds.unusual_below),
            false => (thresholds.slow_below, thresholds.slow_below),
        };
        for (link, standing) in self.links.iter_mut().enumerate() {
            let Some(pace) = paces[link] else { continue };
            standing.flow.add(pace);
            if is_usual {
                standing.usual.add(pace);
            }
            let rates = load[link].into_iter().filter(|bytes| *bytes > 0.0);
            standing.rate.add(rates.map(|bytes| bytes / seconds).fold(f64::INFINITY, f64::min));
            let rate = standing.rate.value();
            if standing.rate.count() > thresholds.looks_to_heal
                && matches!(standing.marked, Some(Mark::Inherited))
            {
                standing.marked = Some(Mark::At(rate));
            }
            let had = standing.of_usual(standing.flow.value());
            let speaks_against = match standing.marked {
                None => job <= contended_below && had <= unusual_below,
                Some(Mark::At(before)) => {
                    job >= thresholds.healed_above && rate >= thresholds.healed_by * before
                }
                Some(Mark::Inherited) => false,
            };
            (standing.against, standing.had) = match speaks_against {
                true => (standing.against + 1, standing.had + had),
                false => (0, 0.0),
            };
        }
    }

    fn is_among(&self, link: usize, marks: &Contended) -> bool {
        match self.topology.hosts.get(link) {
            Some(host) => marks.hosts.contains(&host.name),
            None => marks.racks.contains(&((link - self.topology.hosts.len()) as u32)),
        }
    }

    /// The links of this watch that a flow crosses, each with its direction, and their rates.
    fn way(&self, flow: &Flow) -> impl Iterator<Item = (Directed, f64)> {
        let hosts = self.topology.hosts.len() as u32;
        // One worker on each host, so that it is named like it.
        let [from, to] = [flow.from, flow.to].map(|host| (host as u32, host as u32));
        let way = self.topology.way(from, to);
        let topology = self.topology.clone();
        (0..way.links().len()).filter_map(move |at| {
            let name = way.links()[at];
            let (link, inward) = match name {
                LinkName::HostOut(host) => (host, 0),
                LinkName::HostIn(host) => (host, 1),
                LinkName::RackUp(rack) => (hosts + rack, 0),
                LinkName::RackDown(rack) => (hosts + rack, 1),
                LinkName::MemoryOut(_) | LinkName::MemoryIn(_) => return None,
            };
            let rate = topology.rate(name).bytes_per_second();
            Some((Directed { link: link as usize, inward }, rate))
        })
    }

    /// Bytes on each link, out and in.
    fn load<'a>(&self, flows: impl IntoIterator<Item = &'a Flow>) -> Vec<[f64; 2]> {
        let mut load = vec![[0.0; 2]; self.links.len()];
        for flow in flows {
            self.way(flow).for_each(|(it, _)| load[it.link][it.inward] += flow.bytes);
        }
        load
    }

    /// Flows that say something, and what.
    fn heard(&self, flows: &[Flow]) -> Vec<Heard> {
        let hosts = self.topology.hosts.len();
        let tells = |flow: &&Flow| {
            let free = || self.way(flow).map(|(_, rate)| rate).fold(f64::INFINITY, f64::min);
            flow.from.max(flow.to) < hosts
                && flow.from != flow.to
                && flow.bytes <= TOO_FAST * free() * flow.seconds
        };
        let flows: Vec<&Flow> = flows.iter().filter(tells).collect();
        let load = self.load(flows.iter().copied());
        let heard = |flow: &Flow| {
            let alone = self.way(flow).map(|(it, rate)| load[it.link][it.inward] / rate);
            Heard { flow: *flow, needed: alone.fold(0.0, f64::max) }
        };
        flows.into_iter().map(heard).collect()
    }

    fn is_contended(&self, link: usize) -> bool {
        self.links[link].marked.is_some() || self.is_among(link, &self.in_force)
    }

    /// How fast a flow of each link is, both ways.
    ///
    /// Inside racks only hosts' own links are crossed, so those speak first. A flow between racks speaks about the
    /// racks if both of its hosts are not the reason, and about its hosts if nothing else does. A flow that crosses a link
    /// that counts as contended speaks about no other: that link is reason enough.
    fn paces(&self, flows: &[Heard]) -> Vec<Option<f64>> {
        let hosts = self.topology.hosts.len();
        let contended = |it: Directed| self.is_contended(it.link);
        let mut about: Vec<Vec<Heard>> = vec![Vec::new(); self.links.len()];
        let (inside, between): (Vec<Heard>, Vec<Heard>) =
            flows.iter().partition(|heard| self.way(&heard.flow).count() == 2);
        for heard in inside {
            let way: Vec<Directed> = self.way(&heard.flow).map(|(it, _)| it).collect();
            let known = way.iter().any(|it| contended(*it));
            for it in way.into_iter().filter(|it| !known || contended(*it)) {
                about[it.link].push(heard);
            }
        }
        let slow = |about: &[Vec<Heard>], link: usize| {
            let of_usual = |rate: f64| self.links[link].of_usual(rate);
            pace(&about[link]).is_some_and(|it| of_usual(it) <= self.thresholds.slow_below)
        };
        let was_heard: Vec<bool> = (0..hosts).map(|host| !about[host].is_empty()).collect();
        let slow_hosts: Vec<bool> = (0..hosts).map(|host| slow(&about, host)).collect();
        for heard in between {
            let way: Vec<Directed> = self.way(&heard.flow).map(|(it, _)| it).collect();
            let known = way.iter().any(|it| contended(*it));
            let host_is_slow = slow_hosts[heard.flow.from] || slow_hosts[heard.flow.to];
            for it in way.into_iter().filter(|it| !known || contended(*it)) {
                let is_reason = match was_heard.get(it.link) {
                    Some(host_was_heard) => !host_was_heard,
                    None => !host_is_slow,
                };
                if is_reason {
                    about[it.link].push(heard);
                }
            }
        }
        // A host that was heard of between racks only shares its rack's fault.
        for host in (0..hosts).filter(|host| !was_heard[*host] && !self.is_alone(*host)) {
            let uplink = hosts + self.topology.hosts[host].rack as usize;
            if uplink < self.links.len() && slow(&about, uplink) {
                about[host].clear();
            }
        }
        about.iter().map(|flows| pace(flows)).collect()
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

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
struct Directed {
    link: usize,
    /// 0 from hosts to the others, 1 to hosts.
    inward: usize,
}

/// Bytes a second of one of these flows, on average over the time in which they were under way.
fn pace(flows: &[Heard]) -> Option<f64> {
    let bytes: f64 = flows.iter().map(|heard| heard.flow.bytes).sum();
    let seconds: f64 = flows.iter().map(|heard| heard.flow.seconds).sum();
    (!flows.is_empty()).then(|| bytes / seconds)
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
        Watch::new(Arc::new(topology), Thresholds::default(), &Contended::default())
    }

    /// What a link carries in a second, in so much time as leaves this share of it.
    fn flow(from: usize, to: usize, share: f64) -> Flow {
        Flow { from, to, bytes: 1.25e8, seconds: share.recip() }
    }

    /// Every host to its neighbour, round all; `share` for the flows that `slow` names.
    fn round(hosts: usize, share: f64, slow: impl Fn(usize, usize) -> bool) -> Vec<Flow> {
        let flow = |from: usize| {
            let to = (from + 1) % hosts;
            flow(from, to, if slow(from, to) { share } else { 1.0 })
        };
        (0..hosts).map(flow).collect()
    }

    /// With its own marks in force.
    fn look(watch: &mut Watch, flows: &[Flow]) -> Option<Adjustment> {
        let in_force = watch.contended();
        watch.look(flows, longest(flows), &in_force)
    }

    fn longest(flows: &[Flow]) -> f64 {
        flows.iter().map(|flow| flow.seconds).fold(0.0, f64::max)
    }

    /// Without anybody else.
    fn begin(watch: &mut Watch) {
        let hosts = watch.topology.hosts.len();
        assert!((0..5).all(|_| look(watch, &round(hosts, 1.0, |_, _| false)).is_none()));
    }

    #[test]
    fn an_uplink_is_marked_by_all_of_its_flows_and_restored_when_it_heals() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        let slow =
            round(12, 0.3, |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1));
        begin(&mut watch);
        let marked = (0..6).filter_map(|_| look(&mut watch, &slow)).last().unwrap();
        assert_eq!(marked.contended.racks.iter().collect::<Vec<_>>(), [&1]);
        assert!(marked.contended.hosts.is_empty(), "{marked:?}");
        assert!(marked.reason.contains("the uplink of rack 1 is contended"), "{}", marked.reason);
        assert!((0..100).all(|_| look(&mut watch, &slow).is_none()));
        let sound = round(12, 1.0, |_, _| false);
        let healed: Vec<_> = (0..8).filter_map(|_| look(&mut watch, &sound)).collect();
        assert_eq!(healed.len(), 1);
        assert!(healed[0].contended.is_empty());
    }

    #[test]
    fn of_links_that_one_of_them_slows_down_the_slowest_is_marked() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        // A ring round all racks: everything between them is slow, and what crosses the uplink of rack 2 most.
        let ring = (0..4).flat_map(|from| {
            let to = (from + 1) % 4;
            let share = if [from, to].contains(&2) { 0.4 } else { 0.6 };
            // Three share an uplink of one wire's rate.
            (0..3).map(move |host| flow(3 * from + host, 3 * to + host, share / 3.0))
        });
        let inside = round(12, 1.0, |_, _| false)
            .into_iter()
            .filter(|flow| rack(flow.from) == rack(flow.to));
        let flows: Vec<Flow> = ring.chain(inside).collect();
        let sound = |flow: &Flow| Flow {
            seconds: if rack(flow.from) == rack(flow.to) { 1.0 } else { 3.0 },
            ..*flow
        };
        let before: Vec<Flow> = flows.iter().map(sound).collect();
        assert!((0..5).all(|_| look(&mut watch, &before).is_none()));
        let marked = (0..6).filter_map(|_| look(&mut watch, &flows)).last().unwrap();
        assert_eq!(marked.contended.racks.into_iter().collect::<Vec<u32>>(), [2]);
        assert!(marked.contended.hosts.is_empty());
    }

    #[test]
    fn a_slow_host_is_marked_and_its_rack_is_not() {
        let mut watch = watch(2, 3);
        let slow = round(6, 0.2, |from, to| from == 2 || to == 2);
        begin(&mut watch);
        let marked = (0..6).filter_map(|_| look(&mut watch, &slow)).last().unwrap();
        assert_eq!(marked.contended.hosts.iter().collect::<Vec<_>>(), ["host2"]);
        assert!(marked.contended.racks.is_empty(), "{marked:?}");
    }

    #[test]
    fn noise_changes_nothing() {
        for seed in 0..50 {
            let (mut watch, mut random) = (watch(4, 3), Random::new(seed));
            for _ in 0..500 {
                let noisy =
                    |flow: Flow| Flow { seconds: (0.66 + 0.34 * random.unit()).recip(), ..flow };
                let flows: Vec<Flow> =
                    round(12, 1.0, |_, _| false).into_iter().map(noisy).collect();
                assert_eq!(look(&mut watch, &flows), None, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_mark_stays_while_the_link_is_not_as_fast_as_its_load_asks() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        begin(&mut watch);
        (0..6).for_each(|_| drop(look(&mut watch, &at(0.4))));
        assert!(!watch.contended().is_empty());
        assert!((0..100).all(|_| look(&mut watch, &at(0.8)).is_none()));
        assert_eq!((0..8).filter_map(|_| look(&mut watch, &at(0.95))).count(), 1);
    }

    #[test]
    fn a_mark_stays_where_fewer_flows_share_what_others_leave() {
        let mut watch = watch(2, 3);
        let of = |bytes: f64, share: f64| {
            let slow = round(6, share, |from, to| from == 2 || to == 2);
            let part = |flow: Flow| Flow {
                bytes: bytes * flow.bytes,
                seconds: bytes * flow.seconds,
                ..flow
            };
            slow.into_iter().map(part).collect::<Vec<Flow>>()
        };
        begin(&mut watch);
        (0..6).for_each(|_| drop(look(&mut watch, &of(1.0, 0.5))));
        assert!(!watch.contended().is_empty());
        assert!((0..100).all(|_| look(&mut watch, &of(0.5, 0.5)).is_none()));
        assert_eq!((0..8).filter_map(|_| look(&mut watch, &of(0.5, 1.0))).count(), 1);
    }

    #[test]
    fn an_inherited_mark_comes_off_when_the_link_carries_more() {
        let topology = watch(2, 3).topology;
        let inherited = Contended { hosts: ["host2".to_string()].into(), ..Contended::default() };
        let mut watch = Watch::new(topology, Thresholds::default(), &inherited);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        assert!((0..100).all(|_| look(&mut watch, &at(0.3)).is_none()));
        assert_eq!(watch.contended(), inherited);
        assert_eq!((0..8).filter_map(|_| look(&mut watch, &at(1.0))).count(), 1);
        assert!(watch.contended().is_empty());
    }

    #[test]
    fn what_came_from_queues_at_once_frees_no_link() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        begin(&mut watch);
        (0..6).for_each(|_| drop(look(&mut watch, &at(0.2))));
        // Of small messages two of three come from memory.
        assert!(
            (0..60).all(|n| look(&mut watch, &at(if n % 3 == 0 { 0.2 } else { 40.0 })).is_none())
        );
        assert!(!watch.contended().is_empty());
    }

    #[test]
    fn a_mark_that_nobody_follows_stays_until_the_link_has_healed() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        begin(&mut watch);
        (0..6).for_each(|_| drop(watch.look(&at(0.2), 5.0, &Contended::default())));
        assert!((0..100).all(|_| watch.look(&at(0.2), 5.0, &Contended::default()).is_none()));
        assert!(!watch.contended().is_empty());
        let healed = (0..8).filter_map(|_| watch.look(&at(1.0), 1.0, &Contended::default()));
        assert!(healed.last().unwrap().contended.is_empty());
    }

    #[test]
    fn a_contended_uplink_is_reason_enough_for_whoever_meets_it() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        let slow =
            round(12, 0.3, |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1));
        begin(&mut watch);
        assert!((0..6).filter_map(|_| look(&mut watch, &slow)).count() == 1);
        // From then on the next rack is heard of through it only.
        let met: Vec<Flow> = slow.into_iter().filter(|flow| rack(flow.from) == 1).collect();
        assert!((0..20).all(|_| look(&mut watch, &met).is_none()));
        assert_eq!(watch.contended().racks.into_iter().collect::<Vec<u32>>(), [1]);
    }

    #[test]
    fn flows_that_name_no_host_are_passed_over() {
        let mut watch = watch(2, 2);
        let flow = flow(0, 9, 0.1);
        assert!((0..10).all(|_| look(&mut watch, &[flow]).is_none()));
    }
}
