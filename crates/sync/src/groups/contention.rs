//! When a link counts as contended, and when as healed: a state machine over what flows between hosts achieved.
//!
//! A link is as good as the better flows that cross it: one slow flow may be another link's fault, many are not, and the best of many is so by chance. A mark
//! takes several looks in a row, and taking it away several more, so that noise changes nothing. Once a mark is in force, groups are
//! others, and fewer flows share the link: each gets more than before though nothing has healed. So a marked link is compared with itself, as it was when
//! the mark had just come into force. A mark that stays too long costs little; one that goes too soon brings back what it was set for. But what healed
//! before that was known would be marked for ever, so from time to time it is tried without, more and more rarely.
//! It reads no clock and moves no bytes; whoever looks decides how often.

use paceline_job::{Contended, Topology};
use std::sync::Arc;

/// What one host achieved towards another since the last look, while it had more to send than that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Sender, as the topology numbers hosts.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Its rate, in bytes a second,
    pub rate: f64,
    /// and as a share of what it had without others' traffic, under the same marks.
    pub share: f64,
}

/// When a link changes sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Contended from this share on downwards,
    pub contended_below: f64,
    /// in so many looks in a row.
    pub looks_to_mark: u32,
    /// Looks after a mark has come into force that do not count, because groups were still changing,
    pub looks_to_change: u32,
    /// and those after them whose middle one says what a flow gets while it is contended.
    pub looks_to_know: u32,
    /// Healed from so many times that on upwards,
    pub healed_above: f64,
    /// in so many looks in a row.
    pub looks_to_heal: u32,
    /// Tried without the mark after so many looks, and after twice as many each time that it is set again.
    pub looks_to_try: u32,
    /// But no more than this.
    pub most_looks_to_try: u32,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            contended_below: 0.65,
            looks_to_mark: 3,
            looks_to_change: 3,
            looks_to_know: 7,
            healed_above: 1.3,
            looks_to_heal: 6,
            looks_to_try: 100,
            most_looks_to_try: 3200,
        }
    }
}

/// Links whose shares differ by less than this factor are as slow as each other.
const ALIKE: f64 = 1.15;

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

#[derive(Clone, Debug, Default)]
struct Standing {
    contended: bool,
    /// Looks in a row that spoke against it.
    against: u32,
    /// Its shares in those looks, together.
    shares: f64,
    /// The best rates of the first looks since its mark is in force.
    since: Vec<f64>,
    /// Looks since then.
    looks: u32,
    /// How often it was tried without its mark since it was last found healed.
    tries: u32,
}

impl Standing {
    /// Looks until it is tried without its mark.
    fn patience(&self, thresholds: &Thresholds) -> u32 {
        let looks = thresholds.looks_to_try.saturating_mul(1 << self.tries.min(16));
        looks.min(thresholds.most_looks_to_try)
    }

    fn mean_share(&self) -> f64 {
        self.shares / f64::from(self.against.max(1))
    }

    /// What a flow gets while the link is contended, once that is known.
    fn while_contended(&self, thresholds: &Thresholds) -> Option<f64> {
        let known = (thresholds.looks_to_change + thresholds.looks_to_know) as usize;
        let mut rates = self.since.get(thresholds.looks_to_change as usize..known)?.to_vec();
        rates.sort_by(f64::total_cmp);
        Some(rates[rates.len() / 2])
    }
}

/// What the better flows tell about a link.
#[derive(Clone, Copy, Debug)]
struct Told {
    share: f64,
    rate: f64,
}

impl Told {
    /// A quarter of the flows is better.
    fn of(flows: &[&Flow]) -> Option<Told> {
        let better = |number: fn(&Flow) -> f64| {
            let mut numbers: Vec<f64> = flows.iter().map(|flow| number(flow)).collect();
            numbers.sort_by(|one, other| other.total_cmp(one));
            numbers.get(numbers.len() / 4).copied()
        };
        Some(Told { share: better(|flow| flow.share)?, rate: better(|flow| flow.rate)? })
    }
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

    /// Take a look, while these marks are in force. Flows of hosts that the topology does not have are passed over.
    pub fn look(&mut self, flows: &[Flow], in_force: &Contended) -> Option<Adjustment> {
        let shares = self.shares(flows);
        let mut reasons = Vec::new();
        let least = self.least_share(&shares);
        for (link, told) in shares.into_iter().enumerate() {
            let Some(Told { share, rate }) = told else { continue };
            let is_in_force = self.is_marked(link, in_force);
            let thresholds = self.thresholds;
            let standing = &mut self.links[link];
            let (speaks_against, needed) = match standing.contended {
                false => (share <= thresholds.contended_below, thresholds.looks_to_mark),
                // Nobody followed it: what it was marked for may be over.
                true if !is_in_force => {
                    (share > thresholds.contended_below, thresholds.looks_to_heal)
                }
                true => {
                    standing.looks += 1;
                    let usual = standing.while_contended(&thresholds);
                    if usual.is_none() {
                        standing.since.push(rate);
                    }
                    let healed = usual.is_some_and(|usual| rate >= thresholds.healed_above * usual);
                    (healed, thresholds.looks_to_heal)
                }
            };
            (standing.against, standing.shares) = match speaks_against {
                true => (standing.against + 1, standing.shares + share),
                false => (0, 0.0),
            };
            let is_worst = standing.contended || standing.mean_share() <= ALIKE * least;
            let is_healed = standing.contended && standing.against >= needed;
            let is_tried = standing.contended && standing.looks >= standing.patience(&thresholds);
            if standing.against >= needed && is_worst || is_tried {
                let contended = !standing.contended;
                let tries = match (is_healed, is_tried) {
                    (true, _) => 0,
                    (_, tried) => standing.tries + u32::from(tried),
                };
                *standing = Standing { contended, tries, ..Standing::default() };
                let (link, percent) = (self.name(link), (100.0 * share).round());
                reasons.push(match contended {
                    true => format!(
                        "{link} is contended: {percent} % of its rate in {needed} looks in a row"
                    ),
                    false if is_healed => format!(
                        "{link} is free again: {} times what it was in {needed} looks in a row",
                        thresholds.healed_above
                    ),
                    false => format!("{link} is tried again: nothing was heard of it being better"),
                });
            }
        }
        let reason = reasons.join("; ");
        (!reason.is_empty()).then(|| Adjustment { contended: self.contended(), reason })
    }

    /// The least share of a link that is slow in this look and was in all of those before it.
    ///
    /// A ring that crosses one slow link is slow everywhere, but there most.
    fn least_share(&self, told: &[Option<Told>]) -> f64 {
        let slow = |(link, told): (&Standing, &Option<Told>)| {
            let share = told.filter(|told| told.share <= self.thresholds.contended_below)?.share;
            let mean = (link.shares + share) / f64::from(link.against + 1);
            (!link.contended).then_some(mean)
        };
        self.links.iter().zip(told).filter_map(slow).fold(f64::INFINITY, f64::min)
    }

    fn is_marked(&self, link: usize, marks: &Contended) -> bool {
        match self.topology.hosts.get(link) {
            Some(host) => marks.hosts.contains(&host.name),
            None => marks.racks.contains(&((link - self.topology.hosts.len()) as u32)),
        }
    }

    /// What flows tell about each link.
    ///
    /// Inside racks only hosts' own links are crossed, so those speak first. A flow between racks speaks about the
    /// racks if both of its hosts are not the reason, and about its hosts if nothing else does. A flow that crosses a link
    /// that counts as contended speaks about no other: that link is reason enough.
    fn shares(&self, flows: &[Flow]) -> Vec<Option<Told>> {
        let hosts = self.topology.hosts.len();
        let known = |flow: &&Flow| flow.from < hosts && flow.to < hosts && flow.from != flow.to;
        let rack = |host: usize| self.topology.hosts[host].rack as usize;
        let mut about: Vec<Vec<&Flow>> = vec![Vec::new(); hosts + self.racks];
        let (inside, between): (Vec<&Flow>, Vec<&Flow>) =
            flows.iter().filter(known).partition(|flow| rack(flow.from) == rack(flow.to));
        let contended = |link: usize| self.links[link].contended;
        for flow in inside {
            let ends = [flow.from, flow.to];
            for end in ends
                .into_iter()
                .filter(|end| contended(*end) || !ends.map(contended).contains(&true))
            {
                about[end].push(flow);
            }
        }
        let heard: Vec<bool> = about[..hosts].iter().map(|flows| !flows.is_empty()).collect();
        let slow = |flows: &Vec<&Flow>| {
            Told::of(flows).is_some_and(|told| told.share <= self.thresholds.contended_below)
        };
        let slow_hosts: Vec<bool> = about[..hosts].iter().map(slow).collect();
        for flow in between {
            let crossed = [flow.from, flow.to, hosts + rack(flow.from), hosts + rack(flow.to)];
            let known = crossed.map(contended).contains(&true);
            let speaks = |link: usize| contended(link) || !known;
            for end in [flow.from, flow.to] {
                let uplink = hosts + rack(end);
                if !heard[end] && speaks(end) {
                    about[end].push(flow);
                }
                if !slow_hosts[flow.from] && !slow_hosts[flow.to] && speaks(uplink) {
                    about[uplink].push(flow);
                }
            }
        }
        // A host that was heard of between racks only shares its rack's fault.
        for host in 0..hosts {
            if !heard[host] && slow(&about[hosts + rack(host)]) && !self.is_alone(host) {
                about[host].clear();
            }
        }
        about.iter().map(|flows| Told::of(flows)).collect()
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
            let share = if slow(from, to) { share } else { 1.0 };
            Flow { from, to, rate: 1e8 * share, share }
        };
        (0..hosts).map(flow).collect()
    }

    /// With its own marks in force.
    fn look(watch: &mut Watch, flows: &[Flow]) -> Option<Adjustment> {
        let in_force = watch.contended();
        watch.look(flows, &in_force)
    }

    #[test]
    fn an_uplink_is_marked_by_all_of_its_flows_and_restored_when_it_heals() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        let slow =
            round(12, 0.3, |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1));
        assert_eq!(look(&mut watch, &slow), None);
        assert_eq!(look(&mut watch, &slow), None);
        let marked = look(&mut watch, &slow).unwrap();
        assert_eq!(marked.contended.racks.iter().collect::<Vec<_>>(), [&1]);
        assert!(marked.contended.hosts.is_empty(), "{marked:?}");
        assert!(marked.reason.contains("the uplink of rack 1 is contended"), "{}", marked.reason);
        // It takes some looks to know what is usual while it is contended.
        assert!((0..10).all(|_| look(&mut watch, &slow).is_none()));
        let sound = round(12, 1.0, |_, _| false);
        let healed: Vec<_> = (0..6).filter_map(|_| look(&mut watch, &sound)).collect();
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
            (0..3).map(move |host| Flow {
                from: 3 * from + host,
                to: 3 * to + host,
                rate: 1e8 * share,
                share,
            })
        });
        let inside = round(12, 1.0, |_, _| false)
            .into_iter()
            .filter(|flow| rack(flow.from) == rack(flow.to));
        let flows: Vec<Flow> = ring.chain(inside).collect();
        let marked = (0..3).filter_map(|_| look(&mut watch, &flows)).last().unwrap();
        assert_eq!(marked.contended.racks.into_iter().collect::<Vec<u32>>(), [2]);
        assert!(marked.contended.hosts.is_empty());
    }

    #[test]
    fn a_slow_host_is_marked_and_its_rack_is_not() {
        let mut watch = watch(2, 3);
        let slow = round(6, 0.2, |from, to| from == 2 || to == 2);
        let marked = (0..3).filter_map(|_| look(&mut watch, &slow)).last().unwrap();
        assert_eq!(marked.contended.hosts.iter().collect::<Vec<_>>(), ["host2"]);
        assert!(marked.contended.racks.is_empty(), "{marked:?}");
    }

    #[test]
    fn noise_changes_nothing() {
        for seed in 0..50 {
            let (mut watch, mut random) = (watch(4, 3), Random::new(seed));
            for _ in 0..500 {
                let noisy = |flow: Flow| Flow { share: 0.66 + 0.34 * random.unit(), ..flow };
                let flows: Vec<Flow> =
                    round(12, 1.0, |_, _| false).into_iter().map(noisy).collect();
                assert_eq!(look(&mut watch, &flows), None, "seed {seed}");
            }
        }
    }

    #[test]
    fn between_the_thresholds_a_mark_stays() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        (0..3).for_each(|_| drop(look(&mut watch, &at(0.6))));
        // Fewer share the link now, and get more than before the mark; then it heals a little.
        assert!((0..40).all(|_| look(&mut watch, &at(0.8)).is_none()));
        assert!((0..40).all(|_| look(&mut watch, &at(1.0)).is_none()));
        assert!(!watch.contended().is_empty());
    }

    #[test]
    fn a_mark_that_nothing_speaks_for_is_tried_without_more_and_more_rarely() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        // Whoever is marked gets more, so that only without the mark it shows that nothing has healed.
        let tried: Vec<usize> = (0..1000)
            .filter(|_| {
                let share = if watch.contended().is_empty() { 0.5 } else { 0.9 };
                look(&mut watch, &at(share)).is_some_and(|it| it.contended.is_empty())
            })
            .collect();
        assert_eq!(tried, [102, 305, 708]);
        // It healed, unseen: at the next try it stays free.
        (0..2000).for_each(|_| drop(look(&mut watch, &at(1.0))));
        assert!(watch.contended().is_empty());
    }

    #[test]
    fn a_mark_that_nobody_follows_stays_until_the_link_has_healed() {
        let mut watch = watch(2, 3);
        let at = |share| round(6, share, |from, to| from == 2 || to == 2);
        (0..3).for_each(|_| drop(look(&mut watch, &at(0.2))));
        assert!((0..100).all(|_| watch.look(&at(0.2), &Contended::default()).is_none()));
        assert!(!watch.contended().is_empty());
        let healed = (0..6).filter_map(|_| watch.look(&at(1.0), &Contended::default()));
        assert!(healed.last().unwrap().contended.is_empty());
    }

    #[test]
    fn a_contended_uplink_is_reason_enough_for_whoever_meets_it() {
        let mut watch = watch(4, 3);
        let rack = |host: usize| host / 3;
        let slow =
            round(12, 0.3, |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1));
        assert!((0..3).filter_map(|_| look(&mut watch, &slow)).count() == 1);
        // From then on the next rack is heard of through it only.
        let met: Vec<Flow> = slow.into_iter().filter(|flow| rack(flow.from) == 1).collect();
        assert!((0..20).all(|_| look(&mut watch, &met).is_none()));
        assert_eq!(watch.contended().racks.into_iter().collect::<Vec<u32>>(), [1]);
    }

    #[test]
    fn flows_that_name_no_host_are_passed_over() {
        let mut watch = watch(2, 2);
        let flow = Flow { from: 0, to: 9, rate: 1e7, share: 0.1 };
        assert!((0..10).all(|_| look(&mut watch, &[flow]).is_none()));
    }
}
