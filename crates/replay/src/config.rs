//! What a modelled cluster is like, besides its topology: kernels, threads, memory.

use crate::error::ReplayError;
use paceline_job::{Rate, Time};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The share of a wire's nominal rate that TCP payload gets at an MTU of 1500 bytes: 1448 bytes of
/// payload in 1514 of frame, as rate limiters count them.
pub const TCP_OVER_ETHERNET: f64 = 1448.0 / 1514.0;

/// The network between workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Payload bytes per byte of a wire's rate. 1 if rates are of payload already (as measured ones
    /// are), [`TCP_OVER_ETHERNET`] if they are the nominal rates of wires. Memory is not affected.
    pub goodput: f64,
    /// Bytes that a sender's kernel takes without having sent them (`TCP_NOTSENT_LOWAT`). They count
    /// as delivered, and nothing passes them any more.
    pub queue_bytes: u64,
    /// Shaped wires, whose queues are followed segment by segment, and whose rates no fault changes.
    /// `None`: wires are shared like a fluid, which costs less and is right where many small packets
    /// interleave.
    pub shaping: Option<Shaping>,
    /// A frame takes up to this much longer than its link's latency; how much, the seed decides.
    pub jitter: Duration,
    /// Whether data frames that wait may be sent in any order, as transports with several lanes do.
    pub overtaking: bool,
}

impl Default for NetworkConfig {
    fn default() -> NetworkConfig {
        NetworkConfig {
            goodput: 1.0,
            queue_bytes: 128 << 10,
            shaping: None,
            jitter: Duration::ZERO,
            overtaking: false,
        }
    }
}

/// How a rate limiter with a token bucket treats a wire, and what TCP puts into its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shaping {
    /// What passes at once after the wire stood idle, in bytes of the wire's rate.
    pub burst_bytes: u64,
    /// Payload of what the kernel hands to a queue in one piece.
    pub segment_bytes: u64,
    /// A connection adds to its host's queue while it has no more than this in it (TCP small queues).
    pub small_queue_bytes: u64,
    /// A connection has at most this on the way.
    pub window_bytes: u64,
}

/// When a message that is combined with something counts as arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Combining goes on while bytes arrive: only the slower of the two is felt.
    #[default]
    Overlapped,
    /// Combining begins when the last byte has arrived.
    After,
}

/// A worker's own speed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// How long its thread is busy with each frame it sends or receives.
    pub per_frame: Duration,
    /// Bytes that it combines or copies each second, one piece after another; at once if `None`.
    pub combine_rate: Option<Rate>,
    /// Whether combining overlaps receiving.
    pub combine: Combine,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// The network.
    pub network: NetworkConfig,
    /// Every worker.
    pub worker: WorkerConfig,
    /// All workers do the same at the same time, so only worker 0 is played: what it sends to the worker so many places
    /// further on counts as sent to it by the worker so many places back. Right where workers, hosts and wires are
    /// alike, the strategy looks the same from every rank (`ring`), and chunks are whole multiples of the number of
    /// workers; a run of a thousand workers then costs what one of them costs.
    pub mirrored: bool,
    /// Whether it is counted what wires carry, and how long they take. It costs a few percent of a run's time.
    pub traffic: bool,
    /// Whether it is noted what everything waits for, so that ends of operations can be followed back to links
    /// ([`Waits`](crate::Waits)). For reports: it costs memory for each message. Not for `mirrored` runs.
    pub waits: bool,
    /// What jitter and overtaking follow from.
    pub seed: u64,
    /// A run stops after this many engine events: an engine that never comes to rest is a defect.
    pub most_events: u64,
    /// Nothing happens after this: whoever asks whether something takes longer need not see how much longer.
    pub until: Time,
}

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        ClusterConfig {
            network: NetworkConfig::default(),
            worker: WorkerConfig::default(),
            mirrored: false,
            traffic: false,
            waits: false,
            seed: 0,
            most_events: u64::MAX,
            until: Time(u64::MAX),
        }
    }
}

impl ClusterConfig {
    pub(crate) fn validate(&self) -> Result<(), ReplayError> {
        let goodput = self.network.goodput;
        let mut numbers = vec![("goodput", goodput)];
        if let Some(shaping) = self.network.shaping {
            numbers.push(("segment_bytes", shaping.segment_bytes as f64));
            numbers.push(("window_bytes", shaping.window_bytes as f64));
        }
        match numbers.into_iter().find(|(_, number)| !(number.is_finite() && *number > 0.0)) {
            Some((name, value)) => {
                Err(ReplayError::Configuration { name, value: value.to_string() })
            }
            None => Ok(()),
        }
    }
}
