//! The model against what can be worked out by hand: bytes over rate plus latency, fair shares, and the
//! bound that a ring approaches.

use paceline_job::{
    ByteSize, Dtype, Host, Link, Rank, Rate, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{
    Cluster, ClusterConfig, Combine, Fault, LinkName, NetworkConfig, ReplayError, Shaping,
    TCP_OVER_ETHERNET, WorkerConfig,
};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    frame::HEADER_BYTES,
};
use std::{sync::Arc, time::Duration};

const GIGABYTE: f64 = 1e9;
const LATENCY: u64 = 50_000;

fn link(bytes_per_second: f64) -> Link {
    let rate = Rate::from_bytes_per_second(bytes_per_second);
    Link { rate, latency: Duration::from_nanos(LATENCY) }
}

fn view(hosts: &[&str]) -> Arc<View> {
    let settings = Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize::mib(64),
        eager: ByteSize::UNLIMITED,
        ..Settings::default()
    };
    Arc::new(View::on_hosts(hosts.iter().map(|host| host.to_string()).collect(), settings.fifo()))
}

/// Hosts `a` and `b` in rack 0, `c` and `d` in rack 1.
fn two_racks(uplink: f64) -> Topology {
    let host = |name: &str, rack| Host { name: name.to_string(), rack, link: link(GIGABYTE) };
    Topology {
        hosts: vec![host("a", 0), host("b", 0), host("c", 1), host("d", 1)],
        uplinks: vec![link(uplink); 2],
        memory: link(4.0 * GIGABYTE),
    }
}

fn one_rack(view: &View) -> Topology {
    Topology::uniform(view, link(GIGABYTE), link(4.0 * GIGABYTE))
}

/// Post a transfer on both its workers; its operation has the number of the transfer on both.
fn transfer(cluster: &mut Cluster, number: u32, from: u32, to: u32, at: u64, bytes: u64) {
    let group: Arc<[Rank]> = vec![Rank(from), Rank(to)].into();
    for (rank, collective) in [
        (from, Collective::Send { to: 1, len: bytes }),
        (to, Collective::Recv { from: 0, len: bytes }),
    ] {
        let post = Post {
            group: Some(group.clone()),
            in_place: false,
            ..Post::new(OpId(number), format!("transfer{number}"), collective, Dtype::U8)
        };
        cluster.post(Time(at), Rank(rank), post).unwrap();
    }
}

fn near(measured: Option<Time>, expected: f64) {
    let measured = measured.expect("it has ended").0 as f64;
    assert!((measured - expected).abs() < 10.0, "{measured} ns, not {expected}");
}

/// A message of `bytes` has a header as well.
fn on_wire(bytes: u64) -> f64 {
    (bytes + HEADER_BYTES as u64) as f64
}

#[test]
fn a_flow_takes_its_bytes_over_the_rate_and_the_latency() {
    let view = view(&["a", "b"]);
    for goodput in [1.0, TCP_OVER_ETHERNET] {
        let network = NetworkConfig { goodput, ..NetworkConfig::default() };
        let config = ClusterConfig { network, ..ClusterConfig::default() };
        let mut cluster = Cluster::new(view.clone(), &one_rack(&view), config).unwrap();
        transfer(&mut cluster, 0, 0, 1, 1000, 10_000_000);
        let expected = 1000.0 + on_wire(10_000_000) / goodput + LATENCY as f64;
        near(cluster.run().finished_at(Rank(1), OpId(0)), expected);
    }
}

#[test]
fn a_send_is_over_when_the_kernel_has_its_last_byte() {
    let view = view(&["a", "b"]);
    let mut cluster =
        Cluster::new(view.clone(), &one_rack(&view), ClusterConfig::default()).unwrap();
    transfer(&mut cluster, 0, 0, 1, 0, 10_000_000);
    transfer(&mut cluster, 1, 1, 0, 0, 1000);
    let outcome = cluster.run();
    near(outcome.finished_at(Rank(0), OpId(0)), on_wire(10_000_000) - (128 << 10) as f64);
    near(outcome.finished_at(Rank(1), OpId(1)), 0.0);
}

#[test]
fn flows_into_one_host_share_its_wire_and_the_rest_is_left_to_others() {
    let view = view(&["a", "b", "c", "d"]);
    let mut cluster =
        Cluster::new(view.clone(), &one_rack(&view), ClusterConfig::default()).unwrap();
    // Two into c, and b sends to d as well: a and b get half of c's wire each, b's other flow the other
    // half of b's wire.
    transfer(&mut cluster, 0, 0, 2, 0, 1_000_000);
    transfer(&mut cluster, 1, 1, 2, 0, 1_000_000);
    transfer(&mut cluster, 2, 1, 3, 0, 1_000_000);
    // Alone on its wires.
    transfer(&mut cluster, 3, 3, 0, 0, 1_000_000);
    let outcome = cluster.run();
    let shared = 2.0 * on_wire(1_000_000) + LATENCY as f64;
    near(outcome.finished_at(Rank(2), OpId(0)), shared);
    near(outcome.finished_at(Rank(2), OpId(1)), shared);
    near(outcome.finished_at(Rank(3), OpId(2)), shared);
    near(outcome.finished_at(Rank(0), OpId(3)), on_wire(1_000_000) + LATENCY as f64);
}

#[test]
fn a_flow_speeds_up_when_another_ends() {
    let view = view(&["a", "b", "c"]);
    let mut cluster =
        Cluster::new(view.clone(), &one_rack(&view), ClusterConfig::default()).unwrap();
    transfer(&mut cluster, 0, 0, 2, 0, 3_000_000);
    transfer(&mut cluster, 1, 1, 2, 1_000_000, 500_000);
    let outcome = cluster.run();
    // 1 ms alone, then half rate until the short one is through, then alone again.
    let short = 1_000_000.0 + 2.0 * on_wire(500_000);
    near(outcome.finished_at(Rank(2), OpId(1)), short + LATENCY as f64);
    let long = on_wire(3_000_000) + on_wire(500_000);
    near(outcome.finished_at(Rank(2), OpId(0)), long + LATENCY as f64);
}

#[test]
fn racks_share_their_uplink_and_memory_is_apart_from_wires() {
    let view = view(&["a", "b", "c", "d", "a"]);
    let topology = two_racks(0.5 * GIGABYTE);
    let mut cluster = Cluster::new(view, &topology, ClusterConfig::default()).unwrap();
    transfer(&mut cluster, 0, 0, 2, 0, 1_000_000);
    transfer(&mut cluster, 1, 1, 3, 0, 1_000_000);
    transfer(&mut cluster, 2, 0, 4, 0, 1_000_000);
    transfer(&mut cluster, 3, 2, 3, 0, 1_000_000);
    let outcome = cluster.run();
    let quarter = 4.0 * on_wire(1_000_000) + LATENCY as f64;
    near(outcome.finished_at(Rank(2), OpId(0)), quarter);
    near(outcome.finished_at(Rank(3), OpId(1)), quarter);
    near(outcome.finished_at(Rank(4), OpId(2)), on_wire(1_000_000) / 4.0 + LATENCY as f64);
    // Three quarters of d's wire are left, until the flow from b to d is the only one.
    near(outcome.finished_at(Rank(3), OpId(3)), on_wire(1_000_000) / 0.75 + LATENCY as f64);
}

#[test]
fn a_change_of_rate_is_felt_at_once() {
    let view = view(&["a", "b"]);
    let mut cluster =
        Cluster::new(view.clone(), &one_rack(&view), ClusterConfig::default()).unwrap();
    transfer(&mut cluster, 0, 0, 1, 0, 3_000_000);
    let slow = Fault::Rate(LinkName::HostIn(1), Rate::from_bytes_per_second(0.1 * GIGABYTE));
    cluster.inject(Time(1_000_000), slow).unwrap();
    cluster.inject(Time(2_000_000), Fault::Cut(LinkName::HostOut(0))).unwrap();
    cluster.inject(Time(5_000_000), Fault::Restore(LinkName::HostOut(0))).unwrap();
    cluster.inject(Time(6_000_000), Fault::Restore(LinkName::HostIn(1))).unwrap();
    // 1 MB in the first ms, 0.1 MB in the second, none until 5 ms, 0.1 MB in the sixth.
    let expected = 6_000_000.0 + on_wire(3_000_000) - 1_200_000.0 + LATENCY as f64;
    near(cluster.run().finished_at(Rank(1), OpId(0)), expected);
}

fn shaped(shaping: Shaping) -> ClusterConfig {
    let network = NetworkConfig { shaping: Some(shaping), ..NetworkConfig::default() };
    ClusterConfig { network, ..ClusterConfig::default() }
}

const SHAPING: Shaping = Shaping {
    burst_bytes: 100_000,
    segment_bytes: 64 << 10,
    small_queue_bytes: 256 << 10,
    window_bytes: 1 << 30,
};

#[test]
fn a_flow_over_shaped_wires_is_ahead_by_the_burst_and_its_last_segment() {
    let view = view(&["a", "b"]);
    let mut cluster = Cluster::new(view.clone(), &one_rack(&view), shaped(SHAPING)).unwrap();
    transfer(&mut cluster, 0, 0, 1, 1000, 10_000_000);
    let last = on_wire(10_000_000) % SHAPING.segment_bytes as f64;
    let ahead = SHAPING.burst_bytes as f64 + last;
    let expected = 1000.0 + on_wire(10_000_000) - ahead + LATENCY as f64;
    near(cluster.run().finished_at(Rank(1), OpId(0)), expected);
}

#[test]
fn a_shaped_network_refuses_what_it_cannot_model() {
    let view = view(&["a", "b"]);
    let mut cluster = Cluster::new(view.clone(), &one_rack(&view), shaped(SHAPING)).unwrap();
    let link = LinkName::HostIn(1);
    let slow = Fault::Rate(link, Rate::from_bytes_per_second(GIGABYTE));
    for fault in [slow, Fault::Cut(link), Fault::Restore(link)] {
        assert_eq!(cluster.inject(Time(1), fault), Err(ReplayError::ShapedLink(link)));
    }
    cluster.inject(Time(1), Fault::Sever(Rank(0), Rank(1))).unwrap();
    for (shaping, name) in [
        (Shaping { segment_bytes: 0, ..SHAPING }, "segment_bytes"),
        (Shaping { window_bytes: 0, ..SHAPING }, "window_bytes"),
    ] {
        let refused = Cluster::new(view.clone(), &one_rack(&view), shaped(shaping)).map(drop);
        let value = "0".to_string();
        assert_eq!(refused, Err(ReplayError::Configuration { name, value }));
    }
}

fn all_reduce_time(workers: u32, bytes: u64, settings: Settings, worker: WorkerConfig) -> f64 {
    let hosts = (0..workers).map(|rank| format!("host{rank}")).collect();
    let view = Arc::new(View::on_hosts(hosts, settings));
    let config = ClusterConfig { worker, ..ClusterConfig::default() };
    let mut cluster = Cluster::new(view.clone(), &one_rack(&view), config).unwrap();
    for rank in (0..workers).map(Rank) {
        let post =
            Post::new(OpId(0), "gradient", Collective::AllReduce { len: bytes / 4 }, Dtype::F32);
        cluster.post(Time::ZERO, rank, post).unwrap();
    }
    let outcome = cluster.run();
    assert!(outcome.stuck.is_empty());
    outcome.end.0 as f64
}

fn ring_settings(partition: ByteSize) -> Settings {
    let strategy = StrategyChoice("ring".to_string());
    Settings { strategy, partition, ..Settings::default() }.fifo()
}

#[test]
fn a_ring_approaches_the_bound_of_its_wires() {
    for workers in [2, 4, 8] {
        let bytes = 256 << 20;
        let settings = ring_settings(ByteSize::mib(8));
        let took = all_reduce_time(workers, bytes, settings, WorkerConfig::default());
        let n = f64::from(workers);
        let bound = 2.0 * (n - 1.0) / n * bytes as f64;
        assert!(took > bound && took < 1.02 * bound, "{workers} workers: {took} ns, bound {bound}");
    }
}

#[test]
fn a_ring_of_one_chunk_pays_latency_and_segment_at_each_of_its_rounds() {
    let bytes = 8_000_000;
    let settings = ring_settings(ByteSize::mib(64));
    let took = all_reduce_time(8, bytes, settings, WorkerConfig::default());
    let round = on_wire(bytes / 8) + LATENCY as f64;
    // Grants go the other way round and share the wires: at most a header a round.
    let grants = 14.0 * HEADER_BYTES as f64;
    assert!((took - 14.0 * round).abs() < grants, "{took} ns, not {}", 14.0 * round);
}

#[test]
fn slow_hands_are_felt_after_receiving_and_hidden_while_receiving() {
    let bytes = 8_000_000;
    let with = |combine, rate: f64| {
        let combine_rate = Some(Rate::from_bytes_per_second(rate));
        let worker = WorkerConfig { combine_rate, combine, ..WorkerConfig::default() };
        all_reduce_time(8, bytes, ring_settings(ByteSize::mib(64)), worker)
    };
    let round = on_wire(bytes / 8) + LATENCY as f64;
    let hidden = with(Combine::Overlapped, 2e9);
    assert!((hidden - 14.0 * round).abs() < 500.0, "{hidden} ns, not {}", 14.0 * round);
    // Seven of the fourteen rounds combine.
    let felt = 14.0 * round + 7.0 * (bytes / 8) as f64 / 2.0;
    let after = with(Combine::After, 2e9);
    assert!((after - felt).abs() < 500.0, "{after} ns, not {felt}");
}

#[test]
fn a_thread_that_needs_time_for_each_frame_slows_small_frames_most() {
    let per_frame = Duration::from_micros(10);
    let worker = WorkerConfig { per_frame, ..WorkerConfig::default() };
    let settings = ring_settings(ByteSize::mib(64));
    let free = all_reduce_time(4, 4096, settings.clone(), WorkerConfig::default());
    let busy = all_reduce_time(4, 4096, settings, worker);
    // Six rounds, each a send and a receive one after the other.
    let expected = free + 6.0 * 20_000.0;
    assert!((busy - expected).abs() < 100.0, "{busy} ns, not {expected}");
}
