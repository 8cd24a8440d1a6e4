//! Which hosts share a rack: pairs to be met under load, and what becomes of their verdicts. It knows rates as shares of
//! what a pair could do alone, and nothing of how they are read.

use super::{Transfer, notes::listed};
use paceline_job::Random;
use std::collections::{BTreeMap, BTreeSet};

/// A pair that keeps this share of its rate under load speaks for one rack.
pub(super) const SAME_ABOVE: f64 = 0.85;

/// Fast meetings after which two clusters are one, where no slow one speaks against it. One is not enough: an uplink
/// that few others use at the moment is as good as none.
const TO_JOIN: u32 = 5;
/// Slow meetings after which two clusters are apart; one may be noise.
const TO_PART: u32 = 2;

/// Hosts that meet in a round, each in one pair at most.
pub(super) struct Matching(pub(super) Vec<Transfer>);

#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    fast: u32,
    slow: u32,
}

impl Evidence {
    fn apart(self) -> bool {
        self.slow >= TO_PART && 2 * self.slow > self.fast
    }

    fn one(self) -> bool {
        self.fast >= TO_JOIN * (1 + self.slow)
    }
}

/// Clusters of hosts, and what is known between them.
pub(super) struct Verdicts {
    /// By host, its cluster: the number of one that was in it first.
    cluster: Vec<usize>,
    /// Between clusters, smaller first.
    between: BTreeMap<(usize, usize), Evidence>,
}

impl Verdicts {
    pub(super) fn new(hosts: usize) -> Verdicts {
        Verdicts { cluster: (0..hosts).collect(), between: BTreeMap::new() }
    }

    /// Whom to let meet next; none if it is known of any two clusters whether they are one.
    ///
    /// A third of the hosts are in pairs that are asked about, suspects first. The others load the uplinks: they meet
    /// hosts that are known to be elsewhere, or may be.
    pub(super) fn next(&self, round: usize, random: &mut Random) -> Option<Matching> {
        let mut hosts: Vec<usize> = (0..self.cluster.len()).collect();
        let clusters: Vec<usize> = self.by_cluster().into_keys().collect();
        let mut open: Vec<(usize, usize)> = Vec::new();
        for (at, one) in clusters.iter().enumerate() {
            open.extend(clusters[at + 1..].iter().map(|other| (*one, *other)));
        }
        open.retain(|pair| !self.evidence(*pair).apart());
        if open.is_empty() {
            return None;
        }
        if round < 2 {
            // Whoever numbered the hosts had their racks in mind, most likely.
            let pairs = (round..hosts.len()).step_by(2).filter(|at| at + 1 < hosts.len());
            return Some(Matching(pairs.map(|at| (at, at + 1)).collect()));
        }
        random.shuffle(&mut hosts);
        random.shuffle(&mut open);
        open.sort_by_key(|pair| std::cmp::Reverse(self.evidence(*pair).fast));
        let mut free = vec![true; hosts.len()];
        let mut pairs = Vec::new();
        let asked = (hosts.len() / 6).max(1);
        let mut busy = BTreeSet::new();
        for (one, other) in open {
            if pairs.len() == asked || busy.contains(&one) || busy.contains(&other) {
                continue;
            }
            let of = |cluster| hosts.iter().copied().find(|host| self.cluster[*host] == cluster);
            if let (Some(from), Some(to)) = (of(one), of(other)) {
                busy.extend([one, other]);
                (free[from], free[to]) = (false, false);
                pairs.push((from, to));
            }
        }
        let mut rest: Vec<usize> = hosts.into_iter().filter(|host| free[*host]).collect();
        while let Some(from) = rest.pop() {
            // The least suspected: known to be apart, then never fast, then whoever is left.
            let suspicion = |to: &usize| match self.cluster[from] == self.cluster[*to] {
                true => u32::MAX,
                false => {
                    let evidence = self.evidence(ordered(self.cluster[from], self.cluster[*to]));
                    if evidence.apart() { 0 } else { 1 + evidence.fast }
                }
            };
            let Some(at) = (0..rest.len()).min_by_key(|at| suspicion(&rest[*at])) else { break };
            pairs.push((from, rest.swap_remove(at)));
        }
        Some(Matching(pairs))
    }

    /// What a pair achieved, as a share of what it could alone.
    pub(super) fn hear(&mut self, (one, other): Transfer, share: f64) {
        let pair = ordered(self.cluster[one], self.cluster[other]);
        if pair.0 == pair.1 {
            return;
        }
        let evidence = self.between.entry(pair).or_default();
        match share >= SAME_ABOVE {
            true => evidence.fast += 1,
            false => evidence.slow += 1,
        }
        if evidence.one() {
            self.join(pair);
        }
    }

    fn evidence(&self, pair: (usize, usize)) -> Evidence {
        self.between.get(&pair).copied().unwrap_or_default()
    }

    /// Two clusters are one; what was known of either is known of both.
    fn join(&mut self, (kept, gone): (usize, usize)) {
        self.cluster
            .iter_mut()
            .filter(|cluster| **cluster == gone)
            .for_each(|cluster| *cluster = kept);
        let named = |one: usize| if one == gone { kept } else { one };
        let mut between: BTreeMap<(usize, usize), Evidence> = BTreeMap::new();
        for ((one, other), evidence) in std::mem::take(&mut self.between) {
            let pair = ordered(named(one), named(other));
            if pair.0 != pair.1 {
                let sum = between.entry(pair).or_default();
                sum.fast += evidence.fast;
                sum.slow += evidence.slow;
            }
        }
        self.between = between;
    }

    /// Hosts by cluster, in order of their first.
    pub(super) fn racks(&self) -> Vec<Vec<usize>> {
        let mut racks: Vec<Vec<usize>> = self.by_cluster().into_values().collect();
        racks.sort();
        racks
    }

    fn by_cluster(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut clusters: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (host, cluster) in self.cluster.iter().enumerate() {
            clusters.entry(*cluster).or_default().push(host);
        }
        clusters
    }

    /// Put each of the slow that is by itself with the next before it that is not, or the first after it. Who that was.
    pub(super) fn take_in(&mut self, slow: &[bool]) -> Vec<usize> {
        let clusters = self.by_cluster();
        let alone = |host: &usize| slow[*host] && clusters[&self.cluster[*host]].len() == 1;
        let taken: Vec<usize> = (0..slow.len()).filter(alone).collect();
        for host in &taken {
            let fits = |other: &usize| !taken.contains(other);
            let before = (0..*host).rev().find(fits);
            let neighbour = before.or_else(|| (*host..slow.len()).find(fits));
            if let Some(neighbour) = neighbour {
                self.cluster[*host] = self.cluster[neighbour];
            }
        }
        taken
    }

    /// Clusters of which it was not found out whether they are one.
    pub(super) fn doubts(&self, names: &[String]) -> Vec<String> {
        let racks: Vec<Vec<usize>> = self.by_cluster().into_values().collect();
        let mut open = Vec::new();
        for (at, one) in racks.iter().enumerate() {
            for other in &racks[at + 1..] {
                let clusters = ordered(self.cluster[one[0]], self.cluster[other[0]]);
                if !self.evidence(clusters).apart() {
                    let [one, other] = [one[0], other[0]].map(|host| &names[host]);
                    open.push(format!("{one} and {other}"));
                }
            }
        }
        let named = listed(open.iter().map(String::as_str));
        let doubt = format!("whether {named} share a rack stayed open");
        if open.is_empty() { Vec::new() } else { vec![doubt] }
    }
}

fn ordered(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}
