//! Settings change through the view, never in the middle of a tensor: whenever each worker comes to the
//! next view, tensors in progress keep the settings they began with. That workers come to a view between
//! the same two operations is for them to agree on; if they do not, nobody gets a result that others
//! lack.

mod scenario;

use paceline_job::{
    ByteSize, Dtype, Link, Rank, Rate, Settings, StrategyChoice, Time, Topology, View, ViewVersion,
};
use paceline_replay::{Cluster, ClusterConfig, Contents, Outcome, Random};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    frame::OpKey,
    program::Slot,
};
use scenario::{Run, STRATEGIES, Scenario, under_seeds};
use std::{cell::Cell, sync::Arc, time::Duration};

/// A data frame, without what depends on how far its receiver was.
type Message = (Rank, Rank, OpKey, u32, Slot, u32);

fn messages(cluster: &Cluster<Contents>) -> Vec<Message> {
    let departures = cluster.memory().departures().iter();
    let mut messages: Vec<Message> = departures
        .map(|frame| {
            let header = frame.header;
            (frame.from, frame.to, header.key, header.chunk, header.slot, header.len)
        })
        .collect();
    messages.sort_by_key(|(from, to, key, chunk, slot, len)| {
        (*from, *to, *key, *chunk, slot.lane, slot.pc, *len)
    });
    messages
}

/// The same operations, each view's alone: the next comes when nothing is in progress any more.
fn one_view_after_another(scenario: &Scenario) -> Run {
    let mut cluster = scenario.cluster();
    let mut finishes = Vec::new();
    for (index, view) in scenario.views.iter().enumerate() {
        let now = cluster.now();
        if index > 0 {
            cluster.install(now, view.clone()).expect("scenarios are well formed");
        }
        for (which, operation) in scenario.operations.iter().enumerate() {
            for rank in operation.members.iter().filter(|_| operation.view == index) {
                scenario.post(&mut cluster, now, *rank, which);
            }
        }
        cluster.run_with(|_, finish| finishes.push(finish));
    }
    let outcome = cluster.outcome(finishes);
    Run { outcome, cluster }
}

/// How many tensors a worker had in progress when it put another view in force.
fn overtaken_by_views(scenario: &Scenario, outcome: &Outcome) -> usize {
    let begun = |(at, rank, _): &(Time, Rank, usize), index: usize| {
        let posts = scenario.posts.iter();
        posts.clone().any(|post| post.1 == *rank && post.2 == index && post.0 <= *at)
    };
    let over = |(at, rank, _): &(Time, Rank, usize), index: usize| {
        outcome.finished_at(*rank, OpId(index as u32)).is_some_and(|end| end <= *at)
    };
    let tensors = |install: &(Time, Rank, usize)| {
        let earlier = |index: &usize| scenario.operations[*index].view < install.2;
        let mine = (0..scenario.operations.len()).filter(earlier);
        mine.filter(|index| begun(install, *index) && !over(install, *index)).count()
    };
    scenario.installs.iter().map(tensors).sum()
}

#[test]
fn tensors_exchange_the_messages_of_their_own_view_whenever_the_next_one_comes() {
    let overtaken = Cell::new(0);
    under_seeds(500, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(6) as u32;
        let scenario = Scenario::draw(&mut random, size);
        let mut run = scenario.run();
        let mut calm = one_view_after_another(&scenario);
        for (run, how) in [(&mut run, "views that come anywhen"), (&mut calm, "views in turn")] {
            run.ended_well(&scenario).map_err(|complaint| format!("{how}: {complaint}"))?;
        }
        overtaken.set(overtaken.get() + overtaken_by_views(&scenario, &run.outcome));
        if messages(&run.cluster) == messages(&calm.cluster) {
            return Ok(());
        }
        Err("the messages differ from those of views that come in turn".to_string())
    });
    assert!(overtaken.get() > 100, "{} tensors saw another view come", overtaken.get());
}

#[test]
fn a_view_that_comes_while_tensors_are_in_progress_changes_nothing_about_them() {
    // Not even when they end: partition, credit, strategy and patience are those they began with.
    under_seeds(500, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(6) as u32;
        let mut scenario = Scenario::draw(&mut random, size);
        let other = scenario.views.last().expect("a scenario has a view").clone();
        scenario.views.truncate(1);
        scenario.installs.clear();
        scenario.operations.iter_mut().for_each(|operation| operation.view = 0);
        let undisturbed = scenario.run();
        let mut cluster = scenario.cluster();
        scenario.post_all(&mut cluster);
        let mut settings = other.settings.clone();
        settings.timeout = Duration::from_nanos(1);
        settings.stall_report = Duration::from_nanos(1);
        let other = Arc::new(View { version: ViewVersion(9), settings, ..View::clone(&other) });
        for rank in (0..size).map(Rank) {
            let last = scenario.posts.iter().filter(|post| post.1 == rank).map(|post| post.0);
            let from = last.max().unwrap_or(Time::ZERO).0;
            let until = undisturbed.outcome.end.0.max(from);
            let at = Time(from + random.below(until - from + 1));
            cluster.install_on(at, rank, other.clone()).map_err(|error| error.to_string())?;
        }
        let outcome = cluster.run();
        if outcome.finishes != undisturbed.outcome.finishes {
            return Err("the other view changed what became of tensors, or when".to_string());
        }
        if messages(&cluster) != messages(&undisturbed.cluster) {
            return Err("the other view changed their messages".to_string());
        }
        Ok(())
    });
}

fn cluster_of(size: usize, settings: Settings) -> (Cluster, Arc<View>) {
    let hosts = (0..size).map(|rank| format!("host{rank}")).collect();
    let view = Arc::new(View::on_hosts(hosts, settings));
    let link = Link { rate: Rate::from_bytes_per_second(1e9), latency: Duration::from_micros(10) };
    let topology = Topology::uniform(&view, link, link);
    let cluster = Cluster::new(view.clone(), &topology, ClusterConfig::default()).unwrap();
    (cluster, view)
}

fn all_reduce(op: u32, name: &str) -> Post {
    Post::new(OpId(op), name, Collective::AllReduce { len: 1000 }, Dtype::F32)
}

#[test]
fn a_tensor_fails_after_the_time_that_was_in_force_when_it_was_posted() {
    let settings = |seconds| Settings {
        timeout: Duration::from_secs(seconds),
        stall_report: Duration::from_secs(2),
        ..Settings::default()
    };
    for (first, next) in [(20, 80), (80, 20)] {
        let (mut cluster, view) = cluster_of(3, settings(first));
        let version = ViewVersion(2);
        let next_view = View { version, settings: settings(next), ..View::clone(&view) };
        // Worker 2 posts neither.
        for rank in (0..2).map(Rank) {
            cluster.post(Time::ZERO, rank, all_reduce(0, "old")).unwrap();
            let at = Time(1 + u64::from(rank.0));
            cluster.install_on(at, rank, Arc::new(next_view.clone())).unwrap();
            cluster.post(Time(3), rank, all_reduce(1, "new")).unwrap();
        }
        let outcome = cluster.run();
        for (op, seconds) in [(0, first), (1, next)] {
            for rank in (0..2).map(Rank) {
                let end = outcome.finished_at(rank, OpId(op)).unwrap();
                assert_eq!(end.0 / 1_000_000_000, seconds, "operation {op} on worker {rank}");
            }
        }
    }
}

#[test]
fn a_tensor_that_workers_post_in_different_views_has_a_result_on_no_worker() {
    // One worker comes to the view an operation too late. Without agreement the engine cannot mend
    // that, but nobody may end up with a result that others lack, nor wait until the time is up.
    under_seeds(300, |seed| {
        let mut random = Random::new(seed);
        let size = 2 + random.below(6) as u32;
        // Gossip meets one partner a step: whoever is not the late one's partner cannot know.
        let strategies: Vec<&str> =
            STRATEGIES.into_iter().filter(|name| *name != "gossip").collect();
        let mut settings = || Settings {
            strategy: StrategyChoice(random.choose(&strategies).to_string()),
            partition: ByteSize(*random.choose(&[64, 1000, 1 << 20])),
            eager: ByteSize(*random.choose(&[0, 1000, 4 << 20])),
            ..Settings::default()
        };
        let (first, next) = (settings(), settings());
        let (mut cluster, view) = cluster_of(size as usize, first);
        let next = Arc::new(View { version: ViewVersion(2), settings: next, ..View::clone(&view) });
        let late = Rank(random.below(u64::from(size)) as u32);
        for rank in (0..size).map(Rank) {
            let at = random.below(100_000);
            cluster.post(Time(at), rank, all_reduce(0, "agreed")).unwrap();
            let (install, post) = if rank == late { (at + 2, at + 1) } else { (at + 1, at + 2) };
            cluster.install_on(Time(install), rank, next.clone()).unwrap();
            cluster.post(Time(post), rank, all_reduce(1, "early and late")).unwrap();
        }
        let outcome = cluster.run();
        if !outcome.stuck.is_empty() || outcome.finishes.len() != 2 * size as usize {
            return Err(format!("stuck: {:?}", outcome.stuck));
        }
        for finish in &outcome.finishes {
            match (finish.op.0, &finish.result) {
                (0, Ok(())) => {}
                (1, Err(error)) => {
                    let text = error.to_string();
                    let says_so = text.contains("in view 1") && text.contains("in view 2");
                    // Long before the time is up: when they ask each other, at the latest.
                    if !says_so || finish.at > Time(15_000_000_000) {
                        return Err(format!("worker {} at {:?}: {text}", finish.rank, finish.at));
                    }
                }
                (op, result) => return Err(format!("worker {}: {op} {result:?}", finish.rank)),
            }
        }
        Ok(())
    });
}
