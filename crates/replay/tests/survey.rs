//! Surveys of known topologies in virtual time: what is found is what was there.

use paceline_job::{
    ByteSize, Dtype, Link, Random, Rank, Rate, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig, Shaping};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    survey::{Finding, Load, PIECES, Reading, Round, Transfer, survey},
};
use std::{convert::Infallible, sync::Arc, time::Duration};

/// More than any survey here takes.
const LONG: Duration = Duration::from_secs(3600);

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

/// When the pieces of each transfer came, if all begin at the same time.
fn arrivals(
    topology: &Topology,
    config: ClusterConfig,
    transfers: &[Transfer],
    (pieces, bytes): (u32, u64),
) -> Vec<Vec<Duration>> {
    let names = topology.hosts.iter().map(|host| host.name.clone()).collect();
    let settings = Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize::mib(1),
        eager: ByteSize::UNLIMITED,
        ..Settings::default()
    };
    let view = Arc::new(View::on_hosts(names, settings.fifo()));
    let mut cluster = Cluster::new(view, topology, config).unwrap();
    let op = |number: usize, piece: u32| OpId(number as u32 * pieces + piece);
    for (number, (from, to)) in transfers.iter().enumerate() {
        let group: Arc<[Rank]> = vec![Rank(*from as u32), Rank(*to as u32)].into();
        for piece in 0..pieces {
            let sides = [
                (*from, Collective::Send { to: 1, len: bytes }),
                (*to, Collective::Recv { from: 0, len: bytes }),
            ];
            for (rank, collective) in sides {
                let post = Post {
                    group: Some(group.clone()),
                    in_place: false,
                    ..Post::new(op(number, piece), format!("probe {number}"), collective, Dtype::U8)
                };
                cluster.post(Time::ZERO, Rank(rank as u32), post).unwrap();
            }
        }
    }
    let outcome = cluster.run();
    let came = |(number, (_, to)): (usize, &Transfer)| {
        let end = |piece| outcome.finished_at(Rank(*to as u32), op(number, piece)).unwrap();
        (0..pieces).map(|piece| end(piece).since(Time::ZERO)).collect()
    };
    transfers.iter().enumerate().map(came).collect()
}

/// All transfers of a round at the same time, after a byte each.
fn probe(topology: &Topology, config: &ClusterConfig, load: Load) -> Round {
    let Load { transfers, bytes, .. } = load;
    let byte = arrivals(topology, ClusterConfig::default(), transfers, (1, 1));
    let pieces = (PIECES as u32, (bytes / PIECES) as u64);
    let came = arrivals(topology, config.clone(), transfers, pieces);
    let took = came.iter().filter_map(|came| came.last()).max().copied().unwrap_or_default();
    let readings = came.iter().zip(byte).enumerate().map(|(number, (came, byte))| Reading {
        rate: load.rate(number, came),
        latency: Some(byte[0]),
    });
    Round { readings: readings.collect(), took }
}

fn surveyed_within(limit: Duration, topology: &Topology, config: &ClusterConfig) -> Finding {
    let names: Vec<String> = topology.hosts.iter().map(|host| host.name.clone()).collect();
    let found = survey(&names, topology.memory, limit, |load| {
        Ok::<_, Infallible>(probe(topology, config, load))
    });
    found.unwrap_or_else(|never| match never {})
}

fn surveyed(topology: &Topology) -> Finding {
    surveyed_within(LONG, topology, &ClusterConfig::default())
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

/// Wires of testbeds: what stood idle lets 128 KiB through at once.
fn shaped() -> ClusterConfig {
    let mut config = ClusterConfig::default();
    config.network.shaping = Some(Shaping {
        burst_bytes: 128 << 10,
        segment_bytes: 16 << 10,
        small_queue_bytes: 64 << 10,
        window_bytes: 2 << 20,
    });
    config
}

#[test]
fn what_passes_shaped_wires_at_once_makes_them_no_faster() {
    for (racks, hosts) in [(3, 1), (2, 3), (3, 2)] {
        let uplink = link(0.75 * 60e6 * f64::from(hosts));
        let topology = Topology::racked(racks * hosts, racks, link(60e6), uplink, link(32e9));
        let found = surveyed_within(LONG, &topology, &shaped());
        if hosts == 1 {
            // Each host's uplink is as good as its wire.
            assert!(found.topology.uplinks.is_empty(), "{:?}", found.topology);
            for host in &found.topology.hosts {
                let share = host.link.rate.bytes_per_second() / uplink.rate.bytes_per_second();
                assert!((share - 1.0).abs() < 0.05, "{host:?}");
            }
        } else {
            assert_found(&format!("{racks} shaped racks of {hosts}"), &topology, &found);
        }
    }
}

#[test]
fn hosts_that_have_their_racks_to_themselves_are_not_put_together_by_chance() {
    for count in [2, 3, 4, 5, 6] {
        let found = surveyed(&Topology::racked(count, count, link(1e9), link(1e9), link(32e9)));
        assert!(found.topology.uplinks.is_empty(), "{count}: {:?}", found.topology);
        assert!(found.topology.hosts.iter().all(|host| host.rack == 0));
        assert!(found.doubts.is_empty(), "{count}: {:?}", found.doubts);
    }
}

#[test]
fn each_link_has_the_latency_of_its_way() {
    let mut topology = racked(3, 4, 4.0, false);
    topology.uplinks.iter_mut().for_each(|uplink| uplink.latency = Duration::from_micros(300));
    topology.uplinks[2].latency = Duration::from_millis(2);
    topology.hosts[5].link.latency = Duration::from_micros(150);
    let found = surveyed(&topology);
    assert_found("latencies", &topology, &found);
    let near = |found: Duration, real: Duration| {
        (found.as_secs_f64() / real.as_secs_f64() - 1.0).abs() < 0.05
    };
    for (real, seen) in topology.hosts.iter().zip(&found.topology.hosts) {
        assert!(near(seen.link.latency, real.link.latency), "{seen:?}, not {real:?}");
    }
    for (real, seen) in topology.uplinks.iter().zip(&found.topology.uplinks) {
        assert!(near(seen.latency, real.latency), "{seen:?}, not {real:?}");
    }
}

#[test]
fn a_survey_ends_in_time_and_says_what_it_did_not_measure() {
    let topology = racked(4, 3, 4.0, true);
    let config = ClusterConfig::default();
    let all = surveyed(&topology);
    let mut found = 0;
    for part in [0.0, 0.02, 0.1, 0.3, 0.6, 0.9, 1.3] {
        let limit = all.took.mul_f64(part);
        let short = surveyed_within(limit, &topology, &config);
        // No round takes longer than the slowest of all.
        let round = all.took.mul_f64(4.0 / all.rounds as f64);
        assert!(short.took <= limit + round, "{part}: {:?} of {limit:?}", short.took);
        assert_eq!(short.topology.check().map_err(|problem| problem.to_string()), Ok(()));
        let same = short.topology.uplinks.len() == topology.uplinks.len();
        assert!(same || !short.doubts.is_empty(), "{part}: {:?}", short);
        found += usize::from(same);
    }
    assert!(found >= 1);
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
