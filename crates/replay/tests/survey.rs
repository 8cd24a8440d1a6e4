//! Surveys of known topologies in virtual time: what is found is what was there.

use paceline_job::{
    ByteSize, Dtype, Link, Random, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time, Topology,
    View,
};
use paceline_replay::{Cluster, ClusterConfig};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    survey::{Finding, Reading, Transfer, survey},
};
use std::{convert::Infallible, sync::Arc, time::Duration};

/// Large enough that latency does not count.
const BLOCK: u64 = 1 << 20;

fn link(bits: f64) -> Link {
    Link { rate: Rate::from_bits_per_second(bits), latency: Duration::from_micros(20) }
}

/// Racks × hosts with oversubscribed uplinks; hosts listed in an order drawn by lot if `mixed`.
fn racked(racks: u32, hosts: u32, oversubscribed: f64, mixed: bool) -> Topology {
    let uplink = link(1e9 * f64::from(hosts) / oversubscribed);
    let mut topology = Topology::racked(racks * hosts, racks, link(1e9), uplink, link(32e9));
    if mixed {
        Random::new(u64::from(racks * hosts)).shuffle(&mut topology.hosts);
    }
    topology
}

/// All transfers of a round at the same time.
fn probe(topology: &Topology, transfers: &[Transfer]) -> Vec<Reading> {
    let names = topology.hosts.iter().map(|host| host.name.clone()).collect();
    let settings = Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize(BLOCK),
        eager: ByteSize::UNLIMITED,
        ..Settings::default()
    };
    let view = Arc::new(View::on_hosts(names, settings.fifo()));
    let mut cluster = Cluster::new(view, topology, ClusterConfig::default()).unwrap();
    for (number, (from, to)) in transfers.iter().enumerate() {
        let group: Arc<[Rank]> = vec![Rank(*from as u32), Rank(*to as u32)].into();
        let sides = [
            (*from, Collective::Send { to: 1, len: BLOCK }),
            (*to, Collective::Recv { from: 0, len: BLOCK }),
        ];
        for (rank, collective) in sides {
            let post = Post {
                op: OpId(number as u32),
                name: format!("probe {number}").into(),
                collective,
                dtype: Dtype::U8,
                reduce: ReduceOp::Sum,
                priority: 0,
                group: Some(group.clone()),
                in_place: false,
                listeners: 0,
            };
            cluster.post(Time::ZERO, Rank(rank as u32), post).unwrap();
        }
    }
    let outcome = cluster.run();
    let latency = Duration::from_micros(20);
    let reading = |(number, (_, to)): (usize, &Transfer)| {
        let end = outcome.finished_at(Rank(*to as u32), OpId(number as u32)).unwrap();
        let seconds = (end.since(Time::ZERO) - latency).as_secs_f64();
        Reading { rate: BLOCK as f64 / seconds, latency }
    };
    transfers.iter().enumerate().map(reading).collect()
}

fn surveyed(topology: &Topology) -> Finding {
    let names: Vec<String> = topology.hosts.iter().map(|host| host.name.clone()).collect();
    let found =
        survey(&names, topology.memory, |round| Ok::<_, Infallible>(probe(topology, round)));
    found.unwrap_or_else(|never| match never {})
}

/// The same racks, whatever they are called, and the same rates within 5 %.
fn assert_found(what: &str, topology: &Topology, found: &Finding) {
    assert!(found.doubts.is_empty(), "{what}: {:?}", found.doubts);
    let near = |found: Rate, real: Rate| {
        (found.bytes_per_second() / real.bytes_per_second() - 1.0).abs() < 0.05
    };
    for (one, mine) in topology.hosts.iter().zip(&found.topology.hosts) {
        assert!(near(mine.link.rate, one.link.rate), "{what}: {mine:?}, not {one:?}");
        for (other, theirs) in topology.hosts.iter().zip(&found.topology.hosts) {
            let together = (one.rack == other.rack, mine.rack == theirs.rack);
            assert_eq!(together.0, together.1, "{what}: {} and {}", one.name, other.name);
        }
        if !found.topology.uplinks.is_empty() {
            let (real, seen) =
                (topology.uplinks[one.rack as usize], found.topology.uplinks[mine.rack as usize]);
            assert!(
                near(seen.rate, real.rate),
                "{what}, rack {}: {seen:?}, not {real:?}",
                one.rack
            );
        }
    }
}

#[test]
fn racks_and_uplinks_are_found_whatever_order_hosts_come_in() {
    for (racks, hosts, oversubscribed) in
        [(2, 2, 2.0), (4, 3, 2.0), (4, 3, 8.0), (3, 5, 4.0), (8, 8, 4.0), (2, 6, 3.0)]
    {
        for mixed in [false, true] {
            let topology = racked(racks, hosts, oversubscribed, mixed);
            let found = surveyed(&topology);
            let what = format!("{racks} racks of {hosts}, {oversubscribed}:1, mixed {mixed}");
            println!("{what}: {} rounds, {} transfers", found.rounds, found.transfers);
            assert_found(&what, &topology, &found);
        }
    }
}

#[test]
fn a_slow_host_and_a_slow_uplink_are_told_apart() {
    let mut topology = racked(4, 4, 4.0, false);
    topology.hosts[5].link = link(2e8);
    topology.uplinks[2] = link(4e8);
    let mut found = surveyed(&topology);
    // No load shows the rack of a host that is slower than its share of a loaded uplink.
    assert_eq!(found.doubts.len(), 1, "{:?}", found.doubts);
    assert!(found.doubts.remove(0).starts_with("host5 is too slow"));
    assert_found("slow links", &topology, &found);
}

#[test]
fn hosts_whose_uplinks_hold_nobody_up_are_one_rack() {
    let found = surveyed(&racked(4, 4, 1.0, false));
    assert!(found.topology.uplinks.is_empty(), "{:?}", found.topology);
    assert!(found.topology.hosts.iter().all(|host| host.rack == 0));
    assert!(surveyed(&Topology::racked(1, 1, link(1e9), link(1e9), link(1e9))).doubts.is_empty());
}

#[test]
fn many_hosts_take_far_fewer_transfers_than_there_are_pairs() {
    let topology = racked(16, 16, 4.0, false);
    let found = surveyed(&topology);
    assert_found("16 racks of 16", &topology, &found);
    let pairs = topology.hosts.len() * (topology.hosts.len() - 1);
    println!("{} rounds, {} transfers of {pairs} pairs", found.rounds, found.transfers);
    assert!(3 * found.transfers < pairs, "{} of {pairs}", found.transfers);
}
