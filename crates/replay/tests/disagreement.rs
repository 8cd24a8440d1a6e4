//! Workers that do not post the same: everybody concerned hears of it, by name, and nobody waits for ever.

mod scenario;

use paceline_job::{
    ByteSize, Dtype, Link, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig, Fault, LinkName, Outcome, Random};
use paceline_sync::{
    collective::Collective,
    event::{OpError, OpId, Post, Report, Standing},
};
use scenario::{STRATEGIES, under_seeds};
use std::{sync::Arc, time::Duration};

fn cluster(size: usize, settings: Settings) -> Cluster {
    let hosts = (0..size).map(|rank| format!("host{rank}")).collect();
    let view = Arc::new(View::on_hosts(hosts, settings));
    let link = Link { rate: Rate::from_bytes_per_second(1e9), latency: Duration::from_micros(10) };
    let topology = Topology::uniform(&view, link, link);
    Cluster::new(view, &topology, ClusterConfig::default()).unwrap()
}

fn all_reduce(op: u32, name: &str, len: u64) -> Post {
    Post::new(OpId(op), name, Collective::AllReduce { len }, Dtype::F32)
}

fn settings_with(strategy: &str) -> Settings {
    Settings {
        strategy: StrategyChoice(strategy.to_string()),
        partition: ByteSize::kib(1),
        ..Settings::default()
    }
}

/// Every operation on every worker is over, and each error is as it should be.
fn all_failed(
    outcome: &Outcome,
    posts: usize,
    fits: impl Fn(&OpError) -> bool,
) -> Result<(), String> {
    if !outcome.stuck.is_empty() || outcome.finishes.len() != posts {
        return Err(format!("stuck: {:?}", outcome.stuck));
    }
    for finish in &outcome.finishes {
        match &finish.result {
            Ok(()) => return Err(format!("worker {} noticed nothing", finish.rank)),
            Err(error) if !fits(error) => return Err(error.to_string()),
            Err(_) => {}
        }
    }
    Ok(())
}

#[test]
fn sizes_that_differ_fail_everywhere_and_the_error_says_so() {
    under_seeds(300, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(7) as u32;
        // Gossip meets one partner a step: whoever is not the odd one's partner cannot know.
        let strategies: Vec<&str> =
            STRATEGIES.into_iter().filter(|name| *name != "gossip").collect();
        let mut settings = settings_with(strategies[random.place(strategies.len())]);
        settings.eager = ByteSize(*random.choose(&[0, 1000, 1 << 22]));
        let mut cluster = cluster(size as usize, settings);
        let odd = random.below(u64::from(size)) as u32;
        for rank in 0..size {
            let len = if rank == odd { 999 } else { 1000 };
            let at = Time(random.below(100_000));
            cluster.post(at, Rank(rank), all_reduce(0, "gradient", len)).unwrap();
        }
        let fits =
            |error: &OpError| matches!(error, OpError::Mismatch { .. } | OpError::Aborted { .. });
        let outcome = cluster.run();
        all_failed(&outcome, size as usize, fits)?;
        let text = |finish: &paceline_replay::Finish| match &finish.result {
            Err(error) => error.to_string(),
            Ok(()) => String::new(),
        };
        let told = outcome.finishes.iter().all(|finish| text(finish).contains("999"));
        if told { Ok(()) } else { Err(outcome.finishes.iter().map(text).collect()) }
    });
}

#[test]
fn types_operations_and_collectives_that_differ_fail_everywhere() {
    let base = all_reduce(0, "gradient", 1000);
    let broadcast = Collective::Broadcast { root: 0, len: 1000 };
    let pairs = [
        (base.clone(), Post { dtype: Dtype::I32, ..base.clone() }),
        (base.clone(), Post { reduce: ReduceOp::Max, ..base.clone() }),
        (base.clone(), Post { collective: broadcast, ..base.clone() }),
    ];
    for (most, odd) in pairs {
        let mut cluster = cluster(4, settings_with("ring"));
        for rank in 0..4 {
            let post = if rank == 2 { odd.clone() } else { most.clone() };
            cluster.post(Time::ZERO, Rank(rank), post).unwrap();
        }
        let outcome = cluster.run();
        let fits =
            |error: &OpError| matches!(error, OpError::Mismatch { .. } | OpError::Aborted { .. });
        all_failed(&outcome, 4, fits).unwrap();
    }
}

#[test]
fn a_tensor_that_one_worker_never_posts_is_reported_and_then_fails() {
    for strategy in STRATEGIES.into_iter().filter(|name| *name != "gossip") {
        let mut settings = settings_with(strategy);
        settings.stall_report = Duration::from_secs(10);
        settings.timeout = Duration::from_secs(100);
        let mut cluster = cluster(4, settings);
        for rank in 0..4 {
            cluster.post(Time::ZERO, Rank(rank), all_reduce(0, "first", 1000)).unwrap();
            if rank != 3 {
                cluster.post(Time(1), Rank(rank), all_reduce(1, "second", 1000)).unwrap();
            }
        }
        let outcome = cluster.run();
        assert!(outcome.stuck.is_empty(), "{strategy}: {:?}", outcome.stuck);
        let stalls: Vec<_> = outcome
            .notices
            .iter()
            .filter_map(|notice| match &notice.report {
                Report::Stall { name, ranks, .. } => Some((notice.at, name, ranks)),
                Report::WaitedFor { .. } => None,
            })
            .collect();
        let (at, name, ranks) = stalls.first().expect("somebody reports");
        assert_eq!((&***name, at.0 / 1_000_000_000), ("second", 10), "{strategy}");
        let absent: Vec<Rank> = ranks
            .iter()
            .filter(|state| matches!(state.answer, Some((Standing::Absent, _))))
            .map(|state| state.rank)
            .collect();
        assert_eq!(absent, [Rank(3)], "{strategy}");
        let waited_for = outcome.notices.iter().any(|notice| {
            notice.rank == Rank(3)
                && matches!(&notice.report, Report::WaitedFor { name, last, .. }
                    if name == "second" && &**last == "first")
        });
        assert!(waited_for, "{strategy}: worker 3 is not told who waits for it");
        for finish in outcome.finishes.iter().filter(|finish| finish.op == OpId(1)) {
            let Err(error) = &finish.result else {
                panic!("{strategy}: worker {} has a result without worker 3", finish.rank)
            };
            assert!(finish.at >= Time(100_000_000_000), "{strategy}: gave up at {:?}", finish.at);
            assert!(error.to_string().contains("Not posted by worker 3"), "{strategy}: {error}");
        }
        assert!(outcome.finishes.iter().filter(|f| f.op == OpId(0)).all(|f| f.result.is_ok()));
    }
}

#[test]
fn a_link_that_stays_cut_ends_in_a_stall_and_not_in_silence() {
    let mut settings = settings_with("ring");
    settings.timeout = Duration::from_secs(60);
    let mut cluster = cluster(3, settings);
    cluster.inject(Time::ZERO, Fault::Cut(LinkName::HostOut(1))).unwrap();
    for rank in 0..3 {
        cluster.post(Time::ZERO, Rank(rank), all_reduce(0, "gradient", 1000)).unwrap();
    }
    let outcome = cluster.run();
    all_failed(&outcome, 3, |error| {
        matches!(error, OpError::Stalled { .. } | OpError::Aborted { .. })
    })
    .unwrap();
}
