//! What a survey has read so far, and what follows from it for single links. Who shares a rack is not decided here.

use super::{Finding, Reading, Transfer};
use paceline_job::{Host, Link, Rate, Topology};
use std::{collections::BTreeMap, time::Duration};

/// A host that carries this share of what the usual one does is slow by itself.
const SLOW_BELOW: f64 = 0.6;

/// An uplink that carries this share of what its hosts could is not told from none.
pub(super) const NO_TIGHTER: f64 = 0.93;

/// Readings this close to the best are of a wire that nobody else used.
const ALIKE: f64 = 0.9;

/// Readings of a host that are kept: the highest.
const MOST_READINGS: usize = 16;

pub(super) struct Notes {
    /// By host, the highest rates of its transfers, falling: a link is as good as the best that crosses it.
    highest: Vec<Vec<f64>>,
    /// Between two hosts, smaller first: one byte, one way.
    latencies: BTreeMap<Transfer, Duration>,
    rounds: usize,
    transfers: usize,
    pub(super) took: Duration,
}

impl Notes {
    pub(super) fn new(hosts: usize) -> Notes {
        Notes {
            highest: vec![Vec::new(); hosts],
            latencies: BTreeMap::new(),
            rounds: 0,
            transfers: 0,
            took: Duration::ZERO,
        }
    }

    pub(super) fn note(&mut self, transfers: &[Transfer], readings: &[Reading], took: Duration) {
        for ((from, to), reading) in transfers.iter().zip(readings) {
            for host in [*from, *to] {
                if let Some(rate) = reading.rate.filter(|rate| rate.is_finite() && *rate > 0.0) {
                    let highest = &mut self.highest[host];
                    let place = highest.partition_point(|known| *known >= rate);
                    highest.insert(place, rate);
                    highest.truncate(MOST_READINGS);
                }
            }
            if let Some(latency) = reading.latency {
                let pair = ((*from).min(*to), (*from).max(*to));
                let known = self.latencies.entry(pair).or_insert(latency);
                *known = latency.min(*known);
            }
        }
        self.rounds += 1;
        self.transfers += transfers.len();
        self.took += took;
    }

    /// What a host's wire carries, as far as it was seen; 0 if it was not.
    ///
    /// The best reading is too high by whatever made it the best: of those beside it the middle one counts.
    pub(super) fn best(&self, host: usize) -> f64 {
        let highest = &self.highest[host];
        // With several, the first may be an accident.
        let Some(high) = highest.get(usize::from(highest.len() > 3)) else { return 0.0 };
        let alike = highest.iter().filter(|rate| **rate >= ALIKE * high).count();
        highest[alike / 2]
    }

    /// What the usual host carries.
    pub(super) fn usual(&self) -> f64 {
        let seen = (0..self.highest.len()).map(|host| self.best(host));
        let mut seen: Vec<f64> = seen.filter(|best| *best > 0.0).collect();
        seen.sort_by(f64::total_cmp);
        seen.get(seen.len() / 2).copied().unwrap_or(0.0)
    }

    /// Hosts that are so slow that a loaded uplink holds them up no further: they tell nothing about racks.
    pub(super) fn slow(&self) -> Vec<bool> {
        let usual = self.usual();
        (0..self.highest.len()).map(|host| self.best(host) < SLOW_BELOW * usual).collect()
    }

    /// The longest way that was seen.
    pub(super) fn longest_latency(&self) -> Duration {
        self.latencies.values().copied().max().unwrap_or_default()
    }

    /// What these transfers would get at the same time if nothing but the hosts' own wires held them up.
    pub(super) fn by_wires_alone(&self, transfers: &[Transfer]) -> Vec<f64> {
        let sharing = |count: fn(&Transfer) -> usize, host: usize| {
            transfers.iter().filter(|transfer| count(transfer) == host).count() as f64
        };
        let rate = |(from, to): &Transfer| {
            let out = self.best(*from) / sharing(|(from, _)| *from, *from);
            out.min(self.best(*to) / sharing(|(_, to)| *to, *to))
        };
        transfers.iter().map(rate).collect()
    }

    /// `uplinks` by rack: what each was seen to carry.
    pub(super) fn conclude(
        self,
        names: &[String],
        racks: &[Vec<usize>],
        uplinks: &[f64],
        memory: Link,
        mut doubts: Vec<String>,
    ) -> Finding {
        let mut rack_of = vec![0; names.len()];
        for (index, rack) in racks.iter().enumerate() {
            rack.iter().for_each(|host| rack_of[*host] = index);
        }
        let usual = self.usual();
        let unread: Vec<usize> = (0..names.len()).filter(|host| self.best(*host) == 0.0).collect();
        if names.len() > 1 && !unread.is_empty() {
            let known = if usual > 0.0 { "taken to be like the others'" } else { "unknown" };
            doubts.push(format!(
                "nothing was read of the wire of {}, which is {known}",
                listed(unread.iter().map(|host| names[*host].as_str()))
            ));
        }
        let rate = |rate: f64| Rate::from_bytes_per_second(rate);
        let hosts = (0..names.len()).map(|host| Host {
            name: names[host].clone(),
            rack: rack_of[host] as u32,
            link: match self.best(host) {
                best if best.max(usual) > 0.0 => Link {
                    rate: rate(if best > 0.0 { best } else { usual }),
                    latency: self.of_host(host, &rack_of),
                },
                // A host alone has nobody to send to.
                _ => memory,
            },
        });
        let hosts: Vec<Host> = hosts.collect();
        let uplink = |(index, rack): (usize, &Vec<usize>)| {
            // What hosts send together is the least that an uplink carries which they cannot fill.
            let together: f64 =
                rack.iter().map(|host| hosts[*host].link.rate.bytes_per_second()).sum();
            let carried = uplinks.get(index).copied().unwrap_or(0.0);
            let tight = carried > 0.0 && carried < NO_TIGHTER * together;
            let latency = self.between_racks(index, &rack_of);
            Link { rate: rate(if tight { carried } else { together }), latency }
        };
        let several = racks.len() > 1;
        let uplinks = racks.iter().enumerate().filter(|_| several).map(uplink).collect();
        let topology = Topology { hosts, uplinks, memory };
        let Notes { rounds, transfers, took, .. } = self;
        Finding { topology, rounds, transfers, took, doubts }
    }

    /// Of the shortest way to another host: inside its rack if there is one, so that uplinks are not part of it.
    fn of_host(&self, host: usize, rack_of: &[usize]) -> Duration {
        let ways = self.latencies.iter().filter(|((one, other), _)| [*one, *other].contains(&host));
        let apart = |pair: &Transfer| rack_of[pair.0] != rack_of[pair.1];
        let nearest = ways.min_by_key(|(pair, latency)| (apart(pair), **latency));
        nearest.map_or(self.longest_latency(), |(_, latency)| *latency)
    }

    /// Of the shortest way out of a rack.
    fn between_racks(&self, rack: usize, rack_of: &[usize]) -> Duration {
        let leaves = |pair: &Transfer| {
            let racks = [rack_of[pair.0], rack_of[pair.1]];
            racks[0] != racks[1] && racks.contains(&rack)
        };
        let ways = self.latencies.iter().filter(|(pair, _)| leaves(pair));
        ways.map(|(_, latency)| *latency).min().unwrap_or(self.longest_latency())
    }
}

/// Names for a sentence: a few of them, and how many more.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const LISTED: usize = 4;
    let more = names.len().saturating_sub(LISTED);
    let first: Vec<&str> = names.take(LISTED).collect();
    match more {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
