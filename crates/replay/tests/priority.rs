//! What credit and priority are for: an urgent tensor that comes late overtakes bulk that came first.

use paceline_job::{
    ByteSize, Dtype, Link, Rank, Rate, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig, Outcome};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use std::{sync::Arc, time::Duration};

const BULK: OpId = OpId(0);
const URGENT: OpId = OpId(1);

const STRATEGIES: [&str; 4] = ["ring", "hierarchical", "parameter_server", "double_tree"];

/// A tensor that is posted some time after the start, with its size and its priority.
type Posted = (Time, u64, i64);

/// Four workers of 10 Gbit/s all-reduce these tensors; their numbers are their places.
fn run(strategy: &str, settings: Settings, tensors: &[Posted]) -> Outcome {
    let settings = Settings { strategy: StrategyChoice(strategy.to_string()), ..settings };
    let hosts = (0..4).map(|rank| format!("host{rank}")).collect();
    let view = Arc::new(View::on_hosts(hosts, settings));
    let link = Link { rate: Rate::from_bits_per_second(10e9), latency: Duration::from_micros(20) };
    let topology = Topology::uniform(&view, link, link);
    let mut cluster = Cluster::new(view, &topology, ClusterConfig::default()).unwrap();
    for rank in (0..4).map(Rank) {
        for (place, (at, bytes, priority)) in tensors.iter().enumerate() {
            let post = Post {
                priority: *priority,
                ..Post::new(
                    OpId(place as u32),
                    format!("tensor {place}"),
                    Collective::AllReduce { len: bytes / 4 },
                    Dtype::F32,
                )
            };
            cluster.post(*at, rank, post).unwrap();
        }
    }
    let outcome = cluster.run();
    assert!(outcome.stuck.is_empty() && outcome.finishes.len() == 4 * tensors.len());
    assert!(outcome.finishes.iter().all(|finish| finish.result.is_ok()));
    outcome
}

fn last(outcome: &Outcome, op: OpId) -> Time {
    (0..4).filter_map(|rank| outcome.finished_at(Rank(rank), op)).max().expect("all have ended")
}

fn mebibyte_chunks() -> Settings {
    Settings { partition: ByteSize::mib(1), credit: ByteSize::mib(1), ..Settings::default() }
}

#[test]
fn an_urgent_tensor_overtakes_bulk_that_came_first() {
    let late = Time(5_000_000);
    for strategy in STRATEGIES {
        let with_priorities =
            |bulk, urgent| [(Time::ZERO, 64 << 20, bulk), (late, 256 << 10, urgent)];
        let ordered = run(strategy, mebibyte_chunks(), &with_priorities(100, 0));
        let fifo = run(strategy, mebibyte_chunks().fifo(), &with_priorities(0, 0));
        let (overtaking, queueing) = (last(&ordered, URGENT), last(&fifo, URGENT));
        assert!(
            overtaking.0 - late.0 < (queueing.0 - late.0) / 4,
            "{strategy}: {overtaking:?} by priority, {queueing:?} first come first served"
        );
        // The order is not paid for with the whole: bulk ends about as soon.
        let (with, without) = (last(&ordered, BULK).0 as f64, last(&fifo, BULK).0 as f64);
        assert!(with < 1.2 * without, "{strategy}: bulk took {with} ns, not {without}");
        assert!(last(&ordered, URGENT) < last(&ordered, BULK), "{strategy}");
    }
}

#[test]
fn an_urgent_tensor_overtakes_even_what_has_begun_everywhere() {
    let late = Time(5_000_000);
    for strategy in STRATEGIES {
        let tensors = [(Time::ZERO, 64 << 20, 100), (late, 256 << 10, 0)];
        let outcome = run(strategy, mebibyte_chunks().fifo(), &tensors);
        let (urgent, bulk) = (last(&outcome, URGENT).0 - late.0, last(&outcome, BULK).0);
        assert!(urgent < bulk / 8, "{strategy}: {urgent} ns of {bulk}");
    }
}

#[test]
fn tensors_of_one_priority_finish_one_after_another() {
    for strategy in STRATEGIES {
        let tensors = vec![(Time::ZERO, 4 << 20, 0); 20];
        let outcome = run(strategy, mebibyte_chunks().fifo(), &tensors);
        let ends: Vec<u64> = (0..20).map(|op| last(&outcome, OpId(op)).0).collect();
        assert!(ends.is_sorted(), "{strategy}: {ends:?}");
        assert!(
            ends[9] < ends[19] * 2 / 3,
            "{strategy}: half is done at {} of {}",
            ends[9],
            ends[19]
        );
    }
}
