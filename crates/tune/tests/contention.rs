//! Links are marked and freed by what virtual workers get from each other while others' traffic comes and goes: the engines,
//! groups and metrics of a real job, over racks whose links carry less for a while.

use paceline_job::{
    ByteSize, Contended, Dtype, Host, Link, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time,
    Topology, View, ViewVersion,
};
use paceline_replay::{Cluster, ClusterConfig};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    metrics::{Came, JobMetrics, WorkerMetrics},
    policy::Policy,
};
use paceline_tune::ContentionWatch;
use std::{sync::Arc, time::Duration};

/// Steps between two looks.
const STEPS: u32 = 4;
const BYTES: u64 = 2 << 20;

fn link(megabits: f64) -> Link {
    let rate = Rate::from_bits_per_second(1e6 * megabits);
    Link { rate, latency: Duration::from_micros(50) }
}

/// Four racks of three, with wires of 100 Mbit/s.
fn topology(uplink: f64) -> Topology {
    let host = |n: u32| Host { name: format!("host{n}"), rack: n / 3, link: link(100.0) };
    Topology {
        hosts: (0..12).map(host).collect(),
        uplinks: vec![link(uplink); 4],
        memory: link(1e4),
    }
}

/// What workers tell after some steps over this network.
fn look(settings: &Settings, network: &Topology, seed: u64) -> JobMetrics {
    let names = network.hosts.iter().map(|host| host.name.clone()).collect();
    let view = Arc::new(View::on_hosts(names, settings.clone()));
    let mut config = ClusterConfig { traffic: true, seed, ..ClusterConfig::default() };
    config.network.jitter = Duration::from_micros(200);
    let mut cluster = Cluster::new(view, network, config).unwrap();
    let mut post = Post {
        reduce: ReduceOp::Mix,
        ..Post::new(OpId(0), "weights", Collective::AllReduce { len: BYTES / 4 }, Dtype::F32)
    };
    let mut nanoseconds = 0;
    for step in 0..STEPS {
        post.op = OpId(step);
        let begin = cluster.now().max(Time(1));
        for rank in 0..12 {
            cluster.post(begin, Rank(rank), post.clone()).unwrap();
        }
        let outcome = cluster.run();
        assert!(outcome.stuck.is_empty());
        nanoseconds += outcome.finishes.iter().map(|finish| finish.at.0).max().unwrap() - begin.0;
    }
    let seconds = 1e-9 * nanoseconds as f64 / f64::from(STEPS);
    let worker = |rank: u32| {
        let came = cluster.inward(Rank(rank));
        let flow = |(from, came): (Rank, Came)| came.since(&Came::default(), from);
        let flows = came.filter_map(flow).collect();
        WorkerMetrics { seconds, flows, ..WorkerMetrics::default() }
    };
    JobMetrics {
        step: 0,
        view: ViewVersion(1),
        settings: settings.clone(),
        shape: Default::default(),
        workers: (0..12).map(worker).collect(),
    }
}

/// By looks: which marks were proposed. Each is in force in the next look.
fn watched(uplink: f64, looks: u64, change: impl Fn(u64, &mut Topology)) -> Vec<(u64, Contended)> {
    let topology = topology(uplink);
    let mut settings = Settings {
        strategy: StrategyChoice("shuffle".to_string()),
        partition: ByteSize::kib(512),
        topology: Some(Arc::new(topology.clone())),
        ..Settings::default()
    };
    let names = topology.hosts.iter().map(|host| host.name.clone()).collect();
    let mut watch =
        ContentionWatch::of(&View::on_hosts(names, settings.clone()), &Contended::default())
            .unwrap();
    let mut seen = Vec::new();
    for at in 0..looks {
        let mut network = topology.clone();
        change(at, &mut network);
        let metrics = look(&settings, &network, at);
        if let Some(proposal) = watch.observe(&metrics) {
            seen.push((at, proposal.settings.contended.clone()));
            settings = proposal.settings;
        }
    }
    seen
}

fn racks(marks: &Contended) -> Vec<u32> {
    assert!(marks.hosts.is_empty(), "{marks:?}");
    marks.racks.iter().copied().collect()
}

#[test]
fn a_contended_uplink_is_marked_and_freed_when_others_are_gone() {
    for uplink in [150.0, 75.0] {
        for left in [1.0 / 3.0, 0.5] {
            let seen = watched(uplink, 50, |at, network| {
                if (10..30).contains(&at) {
                    network.uplinks[2] = link(left * uplink);
                }
            });
            let marks: Vec<_> = seen.iter().map(|(at, marks)| (*at, racks(marks))).collect();
            assert_eq!(marks.len(), 2, "{uplink} {left}: {marks:?}");
            assert!(
                (10..20).contains(&marks[0].0) && marks[0].1 == [2],
                "{uplink} {left}: {marks:?}"
            );
            assert!(
                (30..45).contains(&marks[1].0) && marks[1].1.is_empty(),
                "{uplink} {left}: {marks:?}"
            );
        }
    }
}

#[test]
fn a_contended_host_is_marked_and_freed_when_others_are_gone() {
    let seen = watched(150.0, 50, |at, network| {
        if (10..30).contains(&at) {
            network.hosts[11].link = link(40.0);
        }
    });
    let hosts = |marks: &Contended| marks.hosts.iter().cloned().collect::<Vec<_>>();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!((hosts(&seen[0].1), seen[0].1.racks.len()), (vec!["host11".to_string()], 0));
    assert!(seen[1].1.is_empty() && (30..45).contains(&seen[1].0), "{seen:?}");
}

#[test]
fn a_mark_is_taken_off_on_trial_only_as_long_as_others_are_there_and_nothing_else_is_marked() {
    let seen = watched(150.0, 200, |at, network| {
        if (10..150).contains(&at) {
            network.uplinks[3] = link(50.0);
        }
    });
    let marks: Vec<_> = seen.iter().map(|(at, marks)| (*at, racks(marks))).collect();
    let [on, off, on_again, off_for_good] = &marks[..] else { panic!("{marks:?}") };
    assert_eq!((&on.1[..], &on_again.1[..]), (&[3][..], &[3][..]));
    assert!(off.1.is_empty() && off_for_good.1.is_empty());
    assert!(
        off.0 - on.0 > 60 && on_again.0 - off.0 < 12 && (150..165).contains(&off_for_good.0),
        "{marks:?}"
    );
}

#[test]
fn nothing_is_marked_where_nobody_else_is() {
    for uplink in [300.0, 150.0, 75.0, 37.5] {
        assert_eq!(watched(uplink, 40, |_, _| {}), [], "{uplink}");
    }
}
