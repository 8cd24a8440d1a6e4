//! The bounded grid of candidates, and the places in it. What a candidate is worth is not known here.

use crate::Candidate;
use paceline_job::{ByteSize, Settings, StrategyChoice, Topology};
use paceline_sync::{metrics::JobShape, strategy::Hierarchical};
use std::collections::HashSet;

/// Partitions: powers of two from 64 KiB to 64 MiB.
const EXPONENTS: std::ops::RangeInclusive<u32> = 16..=26;
/// More chunks than this in a step cost more than they could ever gain.
const MOST_CHUNKS: u64 = 2048;
/// Credits in partitions; the last is no limit.
const CREDITS: [u64; 6] = [1, 2, 4, 8, 16, u64::MAX];

/// All candidates: every strategy with every partition with every credit. No list is ever empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    strategies: Vec<StrategyChoice>,
    partitions: Vec<ByteSize>,
    /// In partitions.
    credits: Vec<u64>,
}

/// Indices of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Of the strategy.
    pub strategy: usize,
    /// Of the partition, small ones first.
    pub partition: usize,
    /// Of the credit, small ones first.
    pub credit: usize,
}

impl Space {
    /// For a job of this shape: partitions that cut a step's tensors into a bearable number of chunks, and none that is
    /// far larger than the largest tensor.
    ///
    /// Without any strategy, `auto` is the only one.
    pub fn of(shape: &JobShape, mut strategies: Vec<StrategyChoice>) -> Space {
        if strategies.is_empty() {
            strategies.push(StrategyChoice::auto());
        }
        let sizes = shape.tensors.iter().map(|tensor| tensor.bytes);
        let least = sizes.clone().sum::<u64>() / MOST_CHUNKS;
        let most = sizes.max().unwrap_or(0).next_power_of_two();
        let all: Vec<ByteSize> = EXPONENTS.map(|exponent| ByteSize(1 << exponent)).collect();
        let fits = |size: &ByteSize| size.0 >= least && size.0 <= most;
        let mut partitions: Vec<ByteSize> = all.iter().copied().filter(fits).collect();
        if partitions.is_empty() {
            partitions.push(if most < all[0].0 { all[0] } else { all[all.len() - 1] });
        }
        Space { strategies, partitions, credits: CREDITS.to_vec() }
    }

    /// The same with every second partition and credit only: a quarter of the candidates.
    pub fn coarse(mut self) -> Space {
        let mut place = 0;
        self.partitions.retain(|_| {
            place += 1;
            place % 2 == 1
        });
        self.credits = vec![CREDITS[0], CREDITS[2], CREDITS[5]];
        self
    }

    /// How many candidates there are.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.strategies.len() * self.partitions.len() * self.credits.len()
    }

    /// How many strategies, partitions and credits there are.
    pub fn extent(&self) -> Place {
        Place {
            strategy: self.strategies.len(),
            partition: self.partitions.len(),
            credit: self.credits.len(),
        }
    }

    /// All places, in order.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        (0..self.len()).map(|index| self.place(index))
    }

    /// The place with this index, of [`Space::len`]; the last one for those beyond.
    pub fn place(&self, index: usize) -> Place {
        let index = index.min(self.len() - 1);
        let (credits, partitions) = (self.credits.len(), self.partitions.len());
        Place {
            credit: index % credits,
            partition: index / credits % partitions,
            strategy: index / credits / partitions,
        }
    }

    /// The candidate at a place; the nearest one for places outside.
    pub fn at(&self, place: Place) -> Candidate {
        let partition = self.partitions[place.partition.min(self.partitions.len() - 1)];
        let credit = self.credits[place.credit.min(self.credits.len() - 1)];
        Candidate {
            strategy: self.strategies[place.strategy.min(self.strategies.len() - 1)].clone(),
            partition,
            credit: ByteSize(partition.0.saturating_mul(credit)),
        }
    }

    /// All candidates, in the order of their places.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.places().map(|place| self.at(place)).collect()
    }

    /// Where a candidate is, or the nearest there is: by the logarithms of its sizes. An unknown strategy is taken for
    /// the first.
    pub fn nearest(&self, candidate: &Candidate) -> Place {
        let logarithm = |bytes: u64| (bytes.max(1) as f64).log2();
        let nearest = |values: &mut dyn Iterator<Item = u64>, wanted: u64| {
            let far = |value: u64| (logarithm(value) - logarithm(wanted)).abs();
            let best = values.map(far).enumerate().min_by(|one, other| one.1.total_cmp(&other.1));
            best.map_or(0, |(index, _)| index)
        };
        let strategy = self.strategies.iter().position(|one| *one == candidate.strategy);
        let partition =
            nearest(&mut self.partitions.iter().map(|size| size.0), candidate.partition.0);
        let unit = self.partitions[partition].0;
        let credits = &mut self.credits.iter().map(|credit| unit.saturating_mul(*credit));
        let credit = nearest(credits, candidate.credit.0);
        Place { strategy: strategy.unwrap_or(0), partition, credit }
    }
}

/// What a tuner may make of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Results {
    /// The same sum on every worker, always.
    #[default]
    Exact,
    /// Also averages that come together over steps: right for parameters, and for programs that say so.
    Averages,
}

/// Strategies that workers on these hosts can use under settings such as these, that leave what `results` allows, and that are no
/// other under another name; `auto` and what is in force come first.
pub fn strategies(hosts: &[String], settings: &Settings, results: Results) -> Vec<StrategyChoice> {
    let present = &settings.strategy;
    let different: HashSet<&String> = hosts.iter().collect();
    // Hierarchies need hosts with several workers, and several hosts.
    let levels = different.len() > 1 && different.len() < hosts.len();
    let mut choices = vec![present.clone()];
    if *present != StrategyChoice::auto() {
        choices.push(StrategyChoice::auto());
    }
    let known = match results {
        Results::Exact => paceline_sync::strategy::exact(),
        Results::Averages => paceline_sync::strategy::all(),
    };
    for strategy in known {
        let name = strategy.name().to_string();
        let fits = levels || name != "hierarchical";
        if fits && name != present.0 {
            choices.push(StrategyChoice(name));
        }
    }
    // Of racks it makes use only where settings say which there are, and only if there are some that hold several hosts.
    let by_racks = StrategyChoice(format!("{}:{}", Hierarchical::NAME, Hierarchical::RACKS));
    let racks = settings.topology.as_deref().map_or(0, racks_among(&different));
    if racks > 1 && racks < different.len() && by_racks != *present {
        choices.push(by_racks);
    }
    choices
}

/// How many racks of a topology these hosts are in.
fn racks_among(hosts: &HashSet<&String>) -> impl Fn(&Topology) -> usize {
    |topology| {
        let among = topology.hosts.iter().filter(|host| hosts.contains(&host.name));
        among.map(|host| host.rack).collect::<HashSet<u32>>().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Host, Link, Rate};
    use paceline_sync::metrics::TensorShape;
    use std::{sync::Arc, time::Duration};

    fn shape(bytes: &[u64]) -> JobShape {
        let tensor = |&bytes: &u64| TensorShape { name: "t".into(), bytes };
        JobShape { tensors: bytes.iter().map(tensor).collect(), scheduled: true }
    }

    fn space() -> Space {
        let ring = StrategyChoice("ring".to_string());
        Space::of(&shape(&[1 << 20, 100 << 20]), vec![StrategyChoice::auto(), ring])
    }

    #[test]
    fn every_candidate_is_found_where_it_is() {
        let space = space();
        assert_eq!(space.candidates().len(), space.len());
        for place in space.places() {
            assert_eq!(space.nearest(&space.at(place)), place);
        }
    }

    #[test]
    fn a_foreign_candidate_has_a_nearest_place() {
        let space = space();
        let strategy = StrategyChoice("tree".to_string());
        let (partition, credit) = (ByteSize(3 << 20), ByteSize(1));
        let near = space.at(space.nearest(&Candidate { strategy, partition, credit }));
        assert_eq!(near.to_string(), "auto 4MiB/4MiB");
    }

    #[test]
    fn jobs_of_any_size_have_candidates() {
        for bytes in [vec![], vec![4], vec![1 << 40], vec![4; 100_000]] {
            assert!(Space::of(&shape(&bytes), Vec::new()).len() >= CREDITS.len(), "{bytes:?}");
        }
    }

    #[test]
    fn hierarchies_are_for_hosts_of_several_workers() {
        let hosts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let has = |names: &[&str]| {
            let all = strategies(&hosts(names), &Settings::default(), Results::Exact);
            all.iter().any(|choice| choice.0 == "hierarchical")
        };
        assert!(has(&["a", "a", "b", "b"]));
        assert!(!has(&["a", "b"]) && !has(&["a", "a"]));
    }

    #[test]
    fn racks_that_settings_name_are_made_use_of_where_they_hold_several_hosts() {
        let link = Link { rate: Rate::from_bits_per_second(1e10), latency: Duration::ZERO };
        let has = |racks: &[u32]| {
            let host =
                |(place, rack): (usize, &u32)| Host { name: place.to_string(), rack: *rack, link };
            let hosts: Vec<Host> = racks.iter().enumerate().map(host).collect();
            let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
            let topology = Topology { hosts, uplinks: Vec::new(), memory: link };
            let settings = Settings { topology: Some(Arc::new(topology)), ..Settings::default() };
            let all = strategies(&names, &settings, Results::Exact);
            all.iter().any(|choice| choice.0 == "hierarchical:racks")
        };
        assert!(has(&[0, 0, 1, 1]) && !has(&[0; 4]) && !has(&[0, 1, 2, 3]));
        let names = ["0", "1"].map(str::to_string);
        let unknown = strategies(&names, &Settings::default(), Results::Exact);
        assert!(unknown.iter().all(|choice| choice.0 != "hierarchical:racks"));
    }

    #[test]
    fn averages_are_chosen_only_where_they_are_allowed() {
        let hosts = ["a".to_string(), "b".to_string()];
        let has = |results| {
            let all = strategies(&hosts, &Settings::default(), results);
            ["gossip", "shuffle"].map(|name| all.iter().any(|choice| choice.0 == name))
        };
        assert_eq!(has(Results::Exact), [false; 2]);
        assert_eq!(has(Results::Averages), [true; 2]);
    }
}
