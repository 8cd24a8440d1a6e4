//! What an all-reduce costs on a known topology: derived from the programs themselves, and as published.
//!
//! [`price`] lets one chunk of the programs run over the topology's links, message by message; each further chunk adds the
//! time that its bytes take where links are shared fairly. [`published`] is Table II of the DS-Sync paper, to
//! be printed beside it. Nothing here reads a clock or decides anything.

mod chunk;
mod fluid;
pub mod published;
mod roads;

pub use roads::Roads;

use crate::program::{Semantics, Site, Span, Strategy};
use chunk::{Passage, pass};
use fluid::{Flow, drain};
use paceline_job::{ByteSize, LinkName};
use std::{sync::Arc, time::Duration};

/// Steps over which the cost of a strategy that changes from step to step is averaged.
const STEPS: u64 = 6;
/// The same where partners are drawn by lot, and a few draws are no mean.
const DRAWS: u64 = 64;

/// Bytes of an element: what most gradients are made of.
const ELEMENT: u64 = 4;

/// What one all-reduce costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// From the first byte to the last result.
    pub total: Duration,
    /// Of that, what is left of one element alone: latencies one after another.
    pub latency: Duration,
    /// The link that carries longest; none where nothing is sent.
    pub busiest: Option<LinkName>,
    /// How long it does.
    pub busy: Duration,
}

/// The cost of an all-reduce of `bytes`, cut into chunks of `partition`, by members on `hosts` (numbered as in the
/// site of a program).
pub fn price(
    strategy: &dyn Strategy,
    hosts: &Arc<[u32]>,
    roads: &Roads,
    bytes: ByteSize,
    partition: ByteSize,
) -> Cost {
    Tariff::of(strategy, hosts, roads, partition.min(bytes)).cost(bytes)
}

/// What all-reduces of one strategy cost over some roads, whatever their size. Seconds.
#[derive(Clone, Debug)]
pub struct Tariff {
    /// Bytes of a whole chunk.
    chunk: f64,
    /// One element alone.
    latency: f64,
    /// The first whole chunk.
    first: f64,
    /// Each further one.
    further: f64,
    /// How long a chunk keeps the busiest link.
    busy: f64,
    busiest: Option<LinkName>,
    /// Messages that the busiest member sends for a chunk.
    messages: f64,
}

impl Tariff {
    /// Let a chunk of `partition` pass.
    pub fn of(
        strategy: &dyn Strategy,
        hosts: &Arc<[u32]>,
        roads: &Roads,
        partition: ByteSize,
    ) -> Tariff {
        let steps = match strategy.semantics() {
            Semantics::Reduce => 1,
            _ if strategy.groups(hosts, 0).is_some() => STEPS,
            _ => DRAWS,
        };
        let elements = (partition.0 / ELEMENT).max(1);
        let mut mean = Tariff {
            chunk: (elements * ELEMENT) as f64,
            latency: 0.0,
            first: 0.0,
            further: 0.0,
            busy: 0.0,
            busiest: None,
            messages: 0.0,
        };
        for step in 0..steps {
            let passage = |len| {
                let site = |me| Site { hosts: hosts.clone(), me, step, seed: 0 };
                let span = Span { offset: 0, len };
                let all = 0..hosts.len() as u32;
                let programs: Vec<_> = all.map(|me| strategy.program(&site(me), span)).collect();
                pass(&programs, roads, ELEMENT)
            };
            let Passage { seconds, busy, sent, messages } = passage(elements);
            let busiest = (0..busy.len()).max_by(|a, b| busy[*a].total_cmp(&busy[*b]));
            let most = busiest.map_or(0.0, |link| busy[link]);
            let flow =
                |((from, to), bytes)| Flow { route: roads.route(from, to), bytes: bytes as f64 };
            let share = 1.0 / steps as f64;
            mean.latency += share * passage(1).seconds;
            mean.first += share * seconds;
            mean.further += share * drain(sent.into_iter().map(flow).collect(), roads);
            mean.busy += share * most;
            mean.messages += share * f64::from(messages);
            let name = busiest.filter(|_| most > 0.0).map(|link| roads.name(link));
            mean.busiest = mean.busiest.or(name);
        }
        mean
    }

    /// An all-reduce of `bytes`.
    pub fn cost(&self, bytes: ByteSize) -> Cost {
        let chunks = bytes.0 as f64 / self.chunk;
        // Less than a chunk takes its latency, and its share of the bytes' time.
        let first = self.latency + (self.first - self.latency).max(0.0) * chunks.min(1.0);
        let further = self.further * (chunks - 1.0).max(0.0);
        Cost {
            total: Duration::from_secs_f64(first + further),
            latency: Duration::from_secs_f64(self.latency),
            busiest: self.busiest,
            busy: Duration::from_secs_f64(self.busy * chunks),
        }
    }

    /// Messages that the busiest member sends for `bytes`.
    pub(crate) fn messages(&self, bytes: u64) -> f64 {
        self.messages * (bytes as f64 / self.chunk).max(1.0)
    }
}
