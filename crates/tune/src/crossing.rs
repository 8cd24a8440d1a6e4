//! What settings take where something slow lies between racks: how long their bytes keep the busiest uplink, by the programs of
//! their strategies. Who looks for racks, and what else a step takes, is not known here.

use crate::{Candidate, Surroundings, wires::wires};
use paceline_job::{ByteSize, Rate, StrategyChoice, View};
use paceline_sync::{
    cost::{Roads, Tariff},
    groups::Terrain,
    metrics::JobMetrics,
    program::Strategy,
    strategy::{AutoTable, find_on},
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Programs of more workers take long to price.
const MOST_WORKERS: usize = 256;
/// A wire in bytes a second that is no limit.
const UNLIMITED: f64 = 1e15;
/// What crosses racks is in proportion to bytes, so that one chunk says it for all.
const CHUNK: ByteSize = ByteSize::mib(1);

/// A job between whose workers something slow lies.
pub(crate) struct Crossing {
    /// What is in force included.
    view: View,
    hosts: Arc<[u32]>,
    roads: Roads,
    tensors: Vec<u64>,
    /// Of a step, as it was seen.
    seconds: f64,
}

impl Crossing {
    /// `None` where workers show nothing slow between them.
    pub fn of(seen: &JobMetrics, surroundings: &Surroundings) -> Option<Crossing> {
        let workers = surroundings.hosts.len();
        let seconds = seen.speed().recip();
        if !seconds.is_normal() || seen.workers.len() != workers || workers > MOST_WORKERS {
            return None;
        }
        let mut topology = wires(seen, surroundings)?;
        if topology.uplinks.is_empty() {
            return None;
        }
        // What hosts were seen to carry is what they waited for: only uplinks are to count.
        for host in &mut topology.hosts {
            host.link.rate = Rate::from_bytes_per_second(UNLIMITED);
        }
        let mut view = View::on_hosts(surroundings.hosts.clone(), seen.settings.clone());
        view.measured = surroundings.met;
        let roads = Roads::of(&view, &Arc::new(topology))?;
        let hosts = view.host_indices().into();
        let tensors = seen.shape.tensors.iter().map(|tensor| tensor.bytes).collect();
        Some(Crossing { view, hosts, roads, tensors, seconds })
    }

    /// Steps a second of each candidate: what is in force keeps the uplink busy for a part of its step, and another for longer or
    /// shorter; the rest of the step stays. Not a number for strategies that are not known. `None` if nothing can be said.
    pub fn speeds(&self, candidates: &[Candidate]) -> Option<Vec<f64>> {
        let present = Candidate::of(&self.view.settings);
        let busy = self.busy(&present).filter(|busy| *busy > 0.0)?;
        // An uplink that was seen to carry little may have been waited for less than that says, but not for longer than a step.
        let factor = (self.seconds / busy).min(1.0);
        let mut known: FxHashMap<String, f64> = FxHashMap::default();
        let speed = |candidate: &Candidate| {
            let other = *known
                .entry(candidate.strategy.0.clone())
                .or_insert_with(|| self.busy(candidate).unwrap_or(f64::NAN));
            (self.seconds + factor * (other - busy)).recip()
        };
        Some(candidates.iter().map(speed).collect())
    }

    /// Seconds of a step in which a candidate's bytes keep the busiest uplink.
    fn busy(&self, candidate: &Candidate) -> Option<f64> {
        let settings = candidate.settings(&self.view.settings);
        let view = View { settings, ..self.view.clone() };
        let table = match candidate.strategy.0.as_str() {
            StrategyChoice::AUTO => AutoTable::for_view(&view),
            name => AutoTable::fixed(find_on(name, Terrain::of_view(&view)).ok()?),
        };
        let mut tariffs: Vec<(Arc<dyn Strategy>, Tariff)> = Vec::new();
        let mut busy = 0.0;
        for bytes in &self.tensors {
            let strategy = table.for_bytes(*bytes);
            let found = tariffs.iter().position(|(other, _)| Arc::ptr_eq(other, strategy));
            let place = found.unwrap_or_else(|| {
                let tariff = Tariff::of(strategy.as_ref(), &self.hosts, &self.roads, CHUNK);
                tariffs.push((strategy.clone(), tariff));
                tariffs.len() - 1
            });
            busy += tariffs[place].1.cost(ByteSize(*bytes)).busy.as_secs_f64();
        }
        Some(busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Link, Measured, Rank, Settings, ViewVersion};
    use paceline_sync::metrics::{FlowMetrics, JobShape, TensorShape, WorkerMetrics};
    use std::time::Duration;

    /// Four hosts in two racks, as a ring of 4 MiB a step shows them: of `seconds` a step, all but a second is for what crosses.
    fn seen(uplink: f64, seconds: f64) -> (JobMetrics, Surroundings) {
        let bytes = 6.0 * 1048576.0;
        let flow = |from: u32| {
            let seconds = bytes / if from % 2 == 1 { uplink } else { 1e9 };
            FlowMetrics { from: Rank(from), all: bytes, bytes, seconds }
        };
        let worker = |rank: u32| WorkerMetrics {
            seconds,
            upload: 1e9,
            download: 1e9,
            flows: vec![flow((rank + 3) % 4)],
            ..WorkerMetrics::default()
        };
        let tensor = TensorShape { name: "t".into(), bytes: 4 << 20 };
        let strategy = StrategyChoice("ring".to_string());
        let link = |rate| Link { rate: Rate::from_bytes_per_second(rate), latency: Duration::ZERO };
        let seen = JobMetrics {
            step: 1,
            view: ViewVersion(1),
            settings: Settings { strategy, ..Settings::default() },
            shape: Arc::new(JobShape { tensors: vec![tensor], scheduled: true }),
            workers: (0..4).map(worker).collect(),
        };
        let surroundings = Surroundings {
            hosts: (0..4).map(|rank| format!("host{rank}")).collect(),
            met: Measured::default(),
            latency: Duration::ZERO,
            memory: link(4e9),
            crosses_step: true,
        };
        (seen, surroundings)
    }

    fn gain(seen: &JobMetrics, surroundings: &Surroundings, name: &str) -> f64 {
        let present = Candidate::of(&seen.settings);
        let other = Candidate { strategy: StrategyChoice(name.to_string()), ..present.clone() };
        let speeds = Crossing::of(seen, surroundings).unwrap().speeds(&[present, other]).unwrap();
        speeds[1] / speeds[0]
    }

    #[test]
    fn strategies_take_as_long_as_their_bytes_keep_the_uplink() {
        // A ring of four sends one and a half times the bytes over each uplink, servers twice; a ring of racks once.
        let (seen, surroundings) = seen(1e6, 6.0 * 1.048576);
        for (name, bytes) in [("parameter_server", 2.0), ("ring", 1.5), ("rong", f64::NAN)] {
            let gain = gain(&seen, &surroundings, name);
            assert!(
                (gain - 1.5 / bytes).abs() < 0.01 || bytes.is_nan() && gain.is_nan(),
                "{name}: {gain}"
            );
        }
    }

    #[test]
    fn the_rest_of_a_step_stays() {
        let crossing = 6.0 * 1.048576;
        let (seen, surroundings) = seen(1e6, 2.0 * crossing);
        let gain = gain(&seen, &surroundings, "parameter_server");
        assert!((gain - 2.0 / (1.0 + 2.0 / 1.5)).abs() < 0.01, "{gain}");
    }

    #[test]
    fn where_nothing_slow_is_seen_it_has_nothing_to_say() {
        let (seen, surroundings) = seen(8e8, 1.0);
        assert!(Crossing::of(&seen, &surroundings).is_none());
    }
}
