//! What credit and priority are for: an urgent tensor that comes late overtakes bulk that came first.

use paceline_job::{
    ByteSize, Dtype, Link, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig, Outcome};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use std::{sync::Arc, time::Duration};

const BULK: OpId = OpId(0);
const URGENT: OpId = OpId(1);

/// Four workers all-reduce 64 MiB; 5 ms later they all-reduce 256 KiB that the next layer waits for.
fn run(strategy: &str, settings: Settings) -> Outcome {
    let settings = Settings { strategy: StrategyChoice(strategy.to_string()), ..settings };
    let hosts = (0..4).map(|rank| format!("host{rank}")).collect();
    let view = Arc::new(View::on_hosts(hosts, settings));
    let link = Link { rate: Rate::from_bits_per_second(10e9), latency: Duration::from_micros(20) };
    let topology = Topology::uniform(&view, link, link);
    let mut cluster = Cluster::new(view, &topology, ClusterConfig::default()).unwrap();
    for rank in (0..4).map(Rank) {
        let post = |op: OpId, name: &str, bytes: u64, priority| Post {
            op,
            name: name.into(),
            collective: Collective::AllReduce { len: bytes / 4 },
            dtype: Dtype::F32,
            reduce: ReduceOp::Sum,
            priority,
            group: None,
            in_place: true,
        };
        cluster.post(Time::ZERO, rank, post(BULK, "bulk", 64 << 20, 100)).unwrap();
        cluster.post(Time(5_000_000), rank, post(URGENT, "urgent", 256 << 10, 0)).unwrap();
    }
    let outcome = cluster.run();
    assert!(outcome.stuck.is_empty() && outcome.finishes.len() == 8);
    assert!(outcome.finishes.iter().all(|finish| finish.result.is_ok()));
    outcome
}

fn last(outcome: &Outcome, op: OpId) -> Time {
    (0..4).filter_map(|rank| outcome.finished_at(Rank(rank), op)).max().expect("all have ended")
}

#[test]
fn an_urgent_tensor_overtakes_bulk_when_credit_is_small_and_queues_behind_it_without() {
    for strategy in ["ring", "hierarchical", "parameter_server", "double_tree"] {
        let settings = Settings { partition: ByteSize::mib(1), ..Settings::default() };
        let small = run(strategy, Settings { credit: ByteSize::mib(1), ..settings.clone() });
        let fifo = run(strategy, settings.fifo());
        let (overtaking, queueing) = (last(&small, URGENT), last(&fifo, URGENT));
        assert!(
            overtaking.0 - 5_000_000 < (queueing.0 - 5_000_000) / 4,
            "{strategy}: {overtaking:?} with credit, {queueing:?} first come first served"
        );
        // The order is not paid for with the whole: bulk ends about as soon.
        let (with, without) = (last(&small, BULK).0 as f64, last(&fifo, BULK).0 as f64);
        assert!(with < 1.2 * without, "{strategy}: bulk took {with} ns, not {without}");
        assert!(last(&small, URGENT) < last(&small, BULK), "{strategy}");
    }
}
