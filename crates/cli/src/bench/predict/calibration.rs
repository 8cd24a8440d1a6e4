//! What the prediction knows of this machine and its network, apart from nominal rates: constants of TCP over Ethernet,
//! and one latency, which is measured on the idle network. No measured all-reduce enters here.

use anyhow::{Context, Result};
use paceline_job::{Dtype, Rank, ReduceOp, Time, View};
use paceline_replay::{Cluster, ClusterConfig, NetworkConfig, Shaping, TCP_OVER_ETHERNET};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use paceline_testbed::{Spec, burst_bytes};
use std::{sync::Arc, time::Duration};

use super::grid::{Slow, topology_of};

/// The share of the latency by which a message may come earlier or later: a sleeper is not always woken as fast.
const SPREAD: f64 = 1.0 / 3.0;

/// What the kernel hands to a queue in one piece: as many packets of 1448 bytes as fit into 64 KiB with their headers.
const SEGMENT_BYTES: u64 = 45 * 1448;

/// How long a message takes from one worker's thread to another's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// At least.
    pub least: Duration,
    /// And up to this much more.
    pub jitter: Duration,
}

impl Latency {
    /// From the time that `view`'s workers take for a barrier: the messages that follow one another in it share
    /// that time evenly. Waking a thread is part of it, as it is whenever a worker waits for a message.
    pub fn from_barrier(barrier: Duration, spec: &Spec, view: &Arc<View>) -> Result<Latency> {
        let unit = Duration::from_millis(1);
        let mut cluster = Cluster::new(
            view.clone(),
            &topology_of(spec, &Slow::new(), unit)?,
            ClusterConfig::default(),
        )?;
        for rank in 0..view.size() as u32 {
            cluster.post(Time::ZERO, Rank(rank), barrier_post())?;
        }
        let messages = (cluster.run().end.0 as f64 / unit.as_nanos() as f64).round().max(1.0);
        Ok(Latency::around(barrier.div_f64(messages)))
    }

    /// With this mean.
    pub fn around(mean: Duration) -> Latency {
        Latency { least: mean.mul_f64(1.0 - SPREAD), jitter: mean.mul_f64(2.0 * SPREAD) }
    }
}

/// The barrier between all-reduces.
pub fn barrier_post() -> Post {
    Post { reduce: ReduceOp::Max, ..Post::new(OpId(0), "bench", Collective::Barrier, Dtype::U8) }
}

/// How long workers rest between all-reduces: long enough for any of the network's token buckets to fill.
pub fn rest(spec: &Spec) -> Duration {
    let burst = f64::from(burst_bytes(spec.rate));
    Duration::from_secs_f64(2.0 * burst / spec.rate.bytes_per_second())
}

/// What the replay is told of the network, apart from its topology.
pub fn model(spec: &Spec, latency: Latency) -> ClusterConfig {
    let shaping = Shaping {
        burst_bytes: u64::from(burst_bytes(spec.rate)),
        segment_bytes: SEGMENT_BYTES,
        // The kernel's own rule suffices: no more than two others of its size in front of a segment.
        small_queue_bytes: 0,
        // Windows open far beyond what these transfers need.
        window_bytes: u64::MAX,
    };
    let network = NetworkConfig {
        goodput: TCP_OVER_ETHERNET,
        jitter: latency.jitter,
        shaping: Some(shaping),
        ..NetworkConfig::default()
    };
    ClusterConfig { network, ..ClusterConfig::default() }
}

/// The middle of some seconds, as a span.
pub fn middle(seconds: &[f64]) -> Result<Duration> {
    let seconds = super::super::statistics::median(seconds).context("nothing was measured")?;
    Ok(Duration::from_secs_f64(seconds.max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::{super::grid::view_of, *};
    use paceline_job::Settings;

    #[test]
    fn the_messages_of_a_barrier_share_its_time() {
        let spec = Spec::new(8, "100mbit".parse().unwrap());
        let view = Arc::new(view_of(&spec, Settings::default()));
        let barrier = Duration::from_micros(900);
        let latency = Latency::from_barrier(barrier, &spec, &view).unwrap();
        let mean = latency.least + latency.jitter / 2;
        // A barrier of eight needs at least three messages one after another, and at most one to each other worker
        // and back.
        assert!(mean <= barrier / 3 && mean >= barrier / 14, "{latency:?}");
    }
}
