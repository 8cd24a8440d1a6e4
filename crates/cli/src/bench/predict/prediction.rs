//! The predicted side: the engines of all workers in virtual time, doing what the measured workers do, all-reduce
//! after all-reduce. It starts nothing and looks at no clock.

use super::{
    super::{ours::reduction, protocol::Turn},
    calibration::barrier_post,
};
use anyhow::{Result, ensure};
use paceline_job::{Dtype, Rank, ReduceOp, Time, Topology, View};
use paceline_replay::{Cluster, ClusterConfig};
use paceline_sync::{collective::Collective, event::Post};
use std::{sync::Arc, time::Duration};

/// All-reduces before those that count: the first finds the network idle for longer than the others do.
const WARMUP: usize = 2;
/// All-reduces that count: as with those that are measured, no two are alike.
const ITERATIONS: usize = 25;

/// Predicts the times of all-reducing `bytes`, over and over with a rest and a barrier between.
pub fn predict(
    view: &Arc<View>,
    topology: &Topology,
    config: &ClusterConfig,
    bytes: u64,
    rest: Duration,
) -> Result<Turn> {
    let mut cluster = Cluster::new(view.clone(), topology, config.clone())?;
    let ranks = view.size();
    let reduce = reduction(&view.settings.strategy);
    // Every all-reduce has a barrier before it.
    let steps = 2 * (WARMUP + ITERATIONS);
    for rank in 0..ranks {
        cluster.post(Time::ZERO, Rank(rank as u32), post(0, bytes, reduce))?;
    }
    let mut done = vec![0; ranks];
    // When the last worker was through with each step.
    let mut stamps = vec![Time::ZERO; steps];
    let mut failure = None;
    cluster.run_with(|cluster, finish| {
        let step = &mut done[finish.rank.index()];
        if let Err(error) = finish.result {
            failure.get_or_insert(error);
            return;
        }
        stamps[*step] = stamps[*step].max(finish.at);
        *step += 1;
        if *step < steps {
            // The rank is one of the view's, so it cannot be refused.
            let rest = if step.is_multiple_of(2) { rest } else { Duration::ZERO };
            let _ = cluster.post(finish.at.after(rest), finish.rank, post(*step, bytes, reduce));
        }
    });
    ensure!(failure.is_none(), "the prediction failed: {failure:?}");
    ensure!(done.iter().all(|step| *step == steps), "the prediction came to a halt");
    let pairs = stamps[2 * WARMUP..].chunks_exact(2);
    let seconds = pairs.map(|pair| pair[1].since(pair[0]).as_secs_f64()).collect();
    Ok(Turn { seconds, cpu_seconds: 0.0 })
}

/// What a worker does in a step: barriers and all-reduces take turns.
fn post(step: usize, bytes: u64, reduce: ReduceOp) -> Post {
    if step.is_multiple_of(2) {
        return barrier_post();
    }
    Post {
        name: "tensor 0".into(),
        collective: Collective::AllReduce { len: bytes / 4 },
        dtype: Dtype::F32,
        reduce,
        ..barrier_post()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            super::statistics::median,
            grid::{Slow, topology_of, view_of},
        },
        *,
    };
    use paceline_job::{ByteSize, Settings, StrategyChoice};
    use paceline_replay::{NetworkConfig, TCP_OVER_ETHERNET};
    use paceline_testbed::Spec;
    use std::time::Duration;

    #[test]
    fn a_ring_takes_its_bytes_over_the_payload_rate_of_the_wires() {
        let spec = Spec::new(4, "100mbit".parse().unwrap());
        let settings = Settings {
            strategy: StrategyChoice("ring".into()),
            partition: ByteSize::mib(1),
            ..Settings::default()
        };
        let view = Arc::new(view_of(&spec, settings));
        let topology = topology_of(&spec, &Slow::new(), Duration::from_micros(50)).unwrap();
        let network = NetworkConfig { goodput: TCP_OVER_ETHERNET, ..NetworkConfig::default() };
        let config = ClusterConfig { network, ..ClusterConfig::default() };
        let bytes = 16 << 20;
        let turn = predict(&view, &topology, &config, bytes, Duration::ZERO).unwrap();
        assert_eq!(turn.seconds.len(), ITERATIONS);
        let bound = 1.5 * bytes as f64 / (12.5e6 * TCP_OVER_ETHERNET);
        let seconds = median(&turn.seconds).unwrap();
        assert!((1.0..1.03).contains(&(seconds / bound)), "{seconds} s, bound {bound} s");
    }
}
