//! The choice called `auto`: which strategy suits a message size, on this group and these wires.
//!
//! The model is latency plus bytes over rate (Hockney's), with a cost per message and with chunks
//! that follow each other through the busiest place. Where the topology is known, programs are
//! priced over it instead ([`cost`](crate::cost)). Both are pure functions, so every member that is
//! given the same numbers chooses alike; the choice is made once per view and kept as a table.

use super::{
    DoubleTree, Hierarchical, OneShot, ParameterServer, RecursiveDoubling, Ring, demand::Demand,
    double_tree, hierarchical, layout::Layout, one_shot, parameter_server, recursive_doubling,
    ring,
};
use crate::{
    cost::{Roads, Tariff},
    groups::Terrain,
    program::Strategy,
};
use paceline_job::{ByteSize, Link, Rate, Settings, Topology, View};
use std::{sync::Arc, time::Duration};

/// What messages cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Between members of one host.
    pub memory: Link,
    /// Between hosts: one wire per host and direction.
    pub wire: Link,
    /// A member's work for one message, apart from its bytes.
    pub overhead: Duration,
    /// How much longer bytes take on a wire where more than two hosts send to one at once: switches
    /// drop packets and senders back off. 0.25 is a quarter longer.
    pub incast: f64,
    /// The largest chunk: longer tensors are pipelined.
    pub partition: ByteSize,
}

impl CostModel {
    /// A member's work for one message where nothing was measured: a system call on each side.
    pub const USUAL_OVERHEAD: Duration = Duration::from_micros(5);

    /// The price of many senders meeting on one wire where nothing was measured.
    pub const USUAL_INCAST: f64 = 0.25;

    /// The costs of a known topology.
    pub fn of(topology: &Topology, settings: &Settings) -> CostModel {
        CostModel {
            memory: topology.memory,
            wire: topology.bottleneck(),
            overhead: CostModel::USUAL_OVERHEAD,
            incast: CostModel::USUAL_INCAST,
            partition: settings.partition,
        }
    }

    /// What was measured for a view; the usual where nothing was.
    pub fn for_view(view: &View) -> CostModel {
        let usual = CostModel::usual(&view.settings);
        let memory = view.measured.memory.unwrap_or(usual.memory);
        let wire = view.measured.wire.unwrap_or(usual.wire);
        // The latency of a message is in good part the work of its two ends.
        let nearest = view.measured.memory.or(view.measured.wire);
        let overhead = nearest.map_or(usual.overhead, |link| link.latency / 2);
        CostModel { memory, wire, overhead, ..usual }
    }

    /// The order of magnitude of today's machines, for when nothing was measured: memory between
    /// processes, and 10 gigabits per second between hosts.
    pub fn usual(settings: &Settings) -> CostModel {
        CostModel {
            memory: Link {
                rate: Rate::from_bytes_per_second(4e9),
                latency: Duration::from_micros(10),
            },
            wire: Link {
                rate: Rate::from_bits_per_second(10e9),
                latency: Duration::from_micros(50),
            },
            overhead: CostModel::USUAL_OVERHEAD,
            incast: CostModel::USUAL_INCAST,
            partition: settings.partition,
        }
    }

    /// How long an all-reduce of `bytes` takes.
    fn price(&self, layout: &Layout, bytes: u64, demand: DemandOf) -> Price {
        let chunk = bytes.min(self.partition.0).max(1);
        let one = demand(layout, chunk as f64);
        let chunks_after = (bytes.max(chunk) - chunk) as f64 / chunk as f64;
        let memory_byte = 1.0 / self.memory.rate.bytes_per_second();
        let incast = if one.fan_in > 2 { 1.0 + self.incast } else { 1.0 };
        let wire_byte = incast / self.wire.rate.bytes_per_second();
        let work = f64::from(one.messages) * self.overhead.as_secs_f64();
        let latency = f64::from(one.rounds.memory) * self.memory.latency.as_secs_f64()
            + f64::from(one.rounds.wire) * self.wire.latency.as_secs_f64();
        // The first chunk takes its whole path; each further one the time of the busiest place.
        let memory_busy = one.busiest_bytes.memory * memory_byte;
        let wire_busy = one.busiest_bytes.wire * wire_byte;
        let busiest = memory_busy.max(wire_busy).max(work) * chunks_after;
        let mut price = Price {
            latency,
            work,
            memory: one.path_bytes.memory * memory_byte,
            wire: one.path_bytes.wire * wire_byte,
        };
        if wire_busy >= memory_busy && wire_busy >= work {
            price.wire += busiest;
        } else if memory_busy >= work {
            price.memory += busiest;
        } else {
            price.work += busiest;
        }
        price
    }
}

type DemandOf = fn(&Layout, f64) -> Demand;

/// Where the seconds go.
#[derive(Clone, Copy, Debug)]
struct Price {
    latency: f64,
    work: f64,
    memory: f64,
    wire: f64,
}

impl Price {
    fn seconds(self) -> f64 {
        self.latency + self.work + self.memory + self.wire
    }

    fn mostly(self) -> &'static str {
        let parts = [
            (self.latency, "waiting for messages one after another"),
            (self.work, "handling messages"),
            (self.memory, "moving bytes inside hosts"),
            (self.wire, "moving bytes between hosts"),
        ];
        let most = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        most.map_or("", |(_, name)| name)
    }
}

/// A strategy, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The strategy.
    pub strategy: Arc<dyn Strategy>,
    /// How long the model says it takes.
    pub expected: Duration,
    /// The reason in plain words, for logs and people.
    pub reason: String,
}

/// The strategy that an all-reduce of `bytes` should use on a group whose members sit on `hosts`.
pub fn choose(hosts: &[u32], bytes: u64, model: &CostModel) -> Choice {
    let candidates = candidates();
    Market::of_model(&candidates, hosts, model).choose(bytes).1
}

/// The choices for every message size, made once per view.
#[derive(Clone, Debug)]
pub struct AutoTable {
    /// Ascending; the last reaches to the end.
    entries: Vec<(u64, Arc<dyn Strategy>)>,
    reasons: Vec<String>,
}

impl AutoTable {
    /// Choose for all sizes.
    pub fn new(hosts: &[u32], model: &CostModel) -> AutoTable {
        let candidates = candidates();
        AutoTable::of_market(&Market::of_model(&candidates, hosts, model))
    }

    /// Choose for all sizes, by what programs take over roads that are known.
    pub(crate) fn on_roads(
        hosts: &Arc<[u32]>,
        roads: &Roads,
        terrain: Option<&Terrain>,
        model: &CostModel,
    ) -> AutoTable {
        let mut strategies: Vec<Arc<dyn Strategy>> =
            candidates().into_iter().map(|(strategy, _)| strategy).collect();
        if terrain.is_some() {
            strategies.push(Arc::new(Hierarchical::of_racks(terrain.cloned())));
        }
        AutoTable::of_market(&Market::of_roads(strategies, hosts, roads, model))
    }

    fn of_market(market: &Market<'_>) -> AutoTable {
        let at = |bytes| market.choose(bytes);
        let mut table = AutoTable { entries: Vec::new(), reasons: Vec::new() };
        let (mut winner, mut choice) = at(1);
        // Winners are compared at powers of two up to 2^45, where the fastest per byte has long
        // won; where two neighbours differ, the border is found by halving, in at most 45 steps.
        for exponent in 0..45 {
            let (mut low, mut high) = (1_u64 << exponent, 1_u64 << (exponent + 1));
            if at(high).0 == winner {
                continue;
            }
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if at(middle).0 == winner {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            table.push(low, choice);
            (winner, choice) = at(1 << (exponent + 1));
        }
        table.push(u64::MAX, choice);
        table
    }

    /// One strategy for all sizes, because somebody said so.
    pub fn fixed(strategy: Arc<dyn Strategy>) -> AutoTable {
        let reason = format!("{}: as the settings say", strategy.name());
        AutoTable { entries: vec![(u64::MAX, strategy)], reasons: vec![reason] }
    }

    /// The strategy for a tensor of this size.
    pub fn for_bytes(&self, bytes: u64) -> &Arc<dyn Strategy> {
        let index = self.entries.partition_point(|(most, _)| *most < bytes);
        // The last entry reaches to u64::MAX, so the index is one of an entry.
        &self.entries[index].1
    }

    /// The largest size, the strategy and the reason of each entry, ascending.
    pub fn entries(&self) -> impl Iterator<Item = (u64, &Arc<dyn Strategy>, &str)> {
        let reasons = self.reasons.iter().map(String::as_str);
        self.entries.iter().zip(reasons).map(|((most, strategy), reason)| (*most, strategy, reason))
    }

    fn push(&mut self, most: u64, choice: Choice) {
        self.entries.push((most, choice.strategy));
        self.reasons.push(choice.reason);
    }
}

/// Those that leave the same sum on every member, simplest first: a tie goes to the simpler one.
fn candidates() -> Vec<(Arc<dyn Strategy>, DemandOf)> {
    vec![
        (Arc::new(Ring::default()), ring::demand),
        (Arc::new(OneShot), one_shot::demand),
        (Arc::new(RecursiveDoubling::default()), recursive_doubling::demand),
        (Arc::new(ParameterServer::default()), parameter_server::demand),
        (Arc::new(Hierarchical::default()), hierarchical::demand),
        (Arc::new(DoubleTree::default()), double_tree::demand),
    ]
}

/// Candidates, and what each would take.
struct Market<'a> {
    strategies: Vec<Arc<dyn Strategy>>,
    /// Of a candidate, by its index, for so many bytes.
    price: Box<dyn Fn(usize, u64) -> Price + 'a>,
    members: u32,
    hosts: u32,
}

impl<'a> Market<'a> {
    /// Priced by formulas: one memory and one wire for all.
    fn of_model(
        candidates: &'a [(Arc<dyn Strategy>, DemandOf)],
        hosts: &[u32],
        model: &'a CostModel,
    ) -> Market<'a> {
        let layout = Layout::new(hosts);
        Market {
            strategies: candidates.iter().map(|(strategy, _)| strategy.clone()).collect(),
            members: layout.members(),
            hosts: layout.hosts(),
            price: Box::new(move |at, bytes| model.price(&layout, bytes, candidates[at].1)),
        }
    }

    /// Priced by letting their programs run over the roads.
    fn of_roads(
        strategies: Vec<Arc<dyn Strategy>>,
        hosts: &Arc<[u32]>,
        roads: &Roads,
        model: &CostModel,
    ) -> Market<'a> {
        let layout = Layout::new(hosts);
        let overhead = model.overhead.as_secs_f64();
        let tariff = |strategy: &Arc<dyn Strategy>| {
            Tariff::of(strategy.as_ref(), hosts, roads, model.partition)
        };
        let tariffs: Vec<Tariff> = strategies.iter().map(tariff).collect();
        let price = move |at: usize, bytes: u64| {
            let tariff: &Tariff = &tariffs[at];
            let cost = tariff.cost(ByteSize(bytes));
            let latency = cost.latency.as_secs_f64();
            let moving = cost.total.as_secs_f64() - latency;
            // Handling messages and moving bytes go on side by side from chunk to chunk.
            let work = overhead * tariff.messages(bytes);
            Price { latency, work: (work - moving).max(0.0), memory: 0.0, wire: moving }
        };
        let (members, hosts) = (layout.members(), layout.hosts());
        Market { strategies, price: Box::new(price), members, hosts }
    }

    /// The winner's index among the candidates, and the choice.
    fn choose(&self, bytes: u64) -> (usize, Choice) {
        if self.members < 2 {
            let strategy = Arc::clone(&self.strategies[0]);
            let reason = "ring: the group has one member, so nothing is sent".to_string();
            return (0, Choice { strategy, expected: Duration::ZERO, reason });
        }
        let indices = 0..self.strategies.len();
        let mut priced: Vec<_> = indices.map(|at| (at, (self.price)(at, bytes))).collect();
        // The sort is stable, so that ties go to the earlier candidate.
        priced.sort_by(|a, b| a.1.seconds().total_cmp(&b.1.seconds()));
        let ((best, price), (second, second_price)) = (priced[0], priced[1]);
        let expected = Duration::from_secs_f64(price.seconds());
        let reason = format!(
            "{}: {} on {} and {} take about {}, mostly {}; {} would take {}",
            self.strategies[best].name(),
            ByteSize(bytes),
            count(self.members, "member"),
            count(self.hosts, "host"),
            people_time(price.seconds()),
            price.mostly(),
            self.strategies[second].name(),
            people_time(second_price.seconds()),
        );
        let strategy = Arc::clone(&self.strategies[best]);
        (best, Choice { strategy, expected, reason })
    }
}

fn count(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn people_time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::Host;

    fn name(hosts: &[u32], bytes: u64) -> std::borrow::Cow<'static, str> {
        choose(hosts, bytes, &CostModel::usual(&Settings::default())).strategy.name()
    }

    #[test]
    fn tiny_messages_take_few_rounds_and_large_ones_spare_the_wire() {
        let eight_hosts: Vec<u32> = (0..8).collect();
        assert!(["one_shot", "recursive_doubling"].contains(&&*name(&eight_hosts, 64)));
        assert!(["ring", "hierarchical"].contains(&&*name(&eight_hosts, 1 << 28)));
        let two_of_eight: Vec<u32> = (0..16).map(|member| member / 8).collect();
        assert_eq!(name(&two_of_eight, 1 << 28), "hierarchical");
        let thousand: Vec<u32> = (0..1024).collect();
        assert_eq!(name(&thousand, 1 << 26), "double_tree");
        assert_ne!(name(&thousand, 16), "one_shot");
    }

    #[test]
    fn the_table_says_what_choosing_one_by_one_says() {
        let model = CostModel::usual(&Settings::default());
        for hosts in [vec![0], vec![0, 0], vec![0, 0, 1, 1], (0..8).collect(), vec![0; 64]] {
            let table = AutoTable::new(&hosts, &model);
            assert_eq!(table.entries().last().map(|(most, ..)| most), Some(u64::MAX));
            for exponent in 0..40 {
                let bytes = 1 << exponent;
                let one = choose(&hosts, bytes, &model);
                assert_eq!(table.for_bytes(bytes).name(), one.strategy.name(), "{bytes} {hosts:?}");
            }
            let bounds: Vec<_> = table.entries().map(|(most, ..)| most).collect();
            assert!(bounds.is_sorted(), "{bounds:?}");
            assert_eq!(table.for_bytes(u64::MAX).name(), table.entries().last().unwrap().1.name());
        }
    }

    #[test]
    fn where_racks_share_uplinks_sums_are_made_inside_racks_first() {
        let link = |bits| Link {
            rate: Rate::from_bits_per_second(bits),
            latency: Duration::from_micros(20),
        };
        let host = |at: u32| Host { name: format!("host{at}"), rack: at / 4, link: link(1e9) };
        let topology = Arc::new(Topology {
            hosts: (0..16).map(host).collect(),
            // A ring through all racks goes over each uplink once, and would fill one of a host's rate.
            uplinks: vec![link(5e8); 4],
            memory: link(32e9),
        });
        let settings = Settings { topology: Some(topology.clone()), ..Settings::default() };
        let names = topology.hosts.iter().map(|host| host.name.clone()).collect();
        let view = View::on_hosts(names, settings);
        let roads = Roads::of(&view, &topology).unwrap();
        let terrain = Terrain::of_view(&view);
        let model = CostModel::for_view(&view);
        let hosts = view.host_indices().into();
        let table = AutoTable::on_roads(&hosts, &roads, terrain.as_ref(), &model);
        assert_eq!(table.for_bytes(1 << 28).name(), "hierarchical:racks");
        assert_ne!(table.for_bytes(16).name(), "ring");
    }

    #[test]
    fn the_reason_names_the_winner_the_size_and_the_second() {
        let choice = choose(&[0, 0, 1, 1], 1 << 20, &CostModel::usual(&Settings::default()));
        assert!(choice.reason.starts_with(&*choice.strategy.name()), "{}", choice.reason);
        assert!(choice.reason.contains("1MiB on 4 members and 2 hosts"), "{}", choice.reason);
    }
}
