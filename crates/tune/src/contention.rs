//! Marks links as contended, and as free again, by what workers of a running job get from each other, for strategies that keep
//! such links out of large groups. When a link changes sides is `paceline_sync::groups`' to say; this file knows who
//! sits where, and what wires carry when they are free.

use paceline_job::{Contended, LinkName, Topology, View};
use paceline_sync::{
    groups::{Adjustment, Flow, Thresholds, Watch},
    metrics::JobMetrics,
    policy::{Policy, Proposal},
};
use std::sync::Arc;

/// The strategy that goes around contended links. There each worker hears one other at a time: where several share a wire,
/// each would seem slow.
const DIVIDES: &str = "shuffle";

/// A proposal is in force, and metrics are of the time since, after so many observations; then it is made again if it is not.
const PATIENCE: u32 = 10;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct ContentionWatch {
    topology: Arc<Topology>,
    /// Of each worker, by rank; none where the topology does not have its host.
    hosts: Vec<Option<usize>>,
    watch: Watch,
    reason: String,
    /// Observations until something may be proposed again.
    quiet: u32,
}

impl ContentionWatch {
    /// For the workers of a view whose settings say where hosts sit; none where they do not.
    pub fn of(view: &View) -> Option<ContentionWatch> {
        let topology = view.settings.topology.clone()?;
        let place = |name: &String| topology.hosts.iter().position(|host| host.name == *name);
        let hosts = view.workers.iter().map(|worker| place(&worker.host)).collect();
        let watch = Watch::new(topology.clone(), Thresholds::default());
        Some(ContentionWatch { topology, hosts, watch, reason: String::new(), quiet: 0 })
    }

    fn flows(&self, metrics: &JobMetrics) -> Vec<Flow> {
        let host = |rank: usize| self.hosts.get(rank).copied().flatten();
        let mut flows = Vec::new();
        for (rank, worker) in metrics.workers.iter().enumerate() {
            for flow in &worker.flows {
                let (Some(from), Some(to)) = (host(flow.from.index()), host(rank)) else {
                    continue;
                };
                if from != to {
                    flows.push(Flow { from, to, share: flow.rate / self.free_rate(from, to) });
                }
            }
        }
        flows
    }

    /// What a single message gets on its way while nobody else is there.
    fn free_rate(&self, from: usize, to: usize) -> f64 {
        let [from, to] = [from, to].map(|host| (host as u32, host as u32));
        let rate = |link: &LinkName| self.topology.rate(*link).bytes_per_second();
        self.topology.way(from, to).links().iter().map(rate).fold(f64::INFINITY, f64::min)
    }
}

impl Policy for ContentionWatch {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        if !metrics.settings.strategy.0.starts_with(DIVIDES) {
            return None;
        }
        if let Some(Adjustment { reason, .. }) = self.watch.look(&self.flows(metrics)) {
            (self.reason, self.quiet) = (reason, 0);
        }
        self.quiet = self.quiet.saturating_sub(1);
        let contended: Contended = self.watch.contended();
        if metrics.settings.contended == contended || self.quiet > 0 {
            return None;
        }
        self.quiet = PATIENCE;
        let settings = paceline_job::Settings { contended, ..metrics.settings.clone() };
        Some(Proposal { settings, reason: self.reason.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Link, Rank, Rate, Settings, StrategyChoice, ViewVersion};
    use paceline_sync::metrics::{FlowMetrics, WorkerMetrics};
    use std::time::Duration;

    const WIRE: f64 = 1e8;

    fn view() -> View {
        let link = |rate| Link { rate: Rate::from_bytes_per_second(rate), latency: Duration::ZERO };
        let topology = Topology::racked(6, 2, link(WIRE), link(2.0 * WIRE), link(100.0 * WIRE));
        let hosts = topology.hosts.iter().map(|host| host.name.clone()).collect();
        let strategy = StrategyChoice("shuffle:8".to_string());
        let topology = Some(Arc::new(topology));
        let settings = Settings { strategy, topology, ..Settings::default() };
        View::on_hosts(hosts, settings)
    }

    /// Everybody receives from its neighbour, and those of other racks at this share.
    fn seen(settings: &Settings, between: f64) -> JobMetrics {
        let worker = |rank: u32| {
            let from = Rank((rank + 5) % 6);
            let rate = if from.0 / 3 == rank / 3 { WIRE } else { between * WIRE };
            WorkerMetrics { flows: vec![FlowMetrics { from, rate }], ..WorkerMetrics::default() }
        };
        JobMetrics {
            step: 0,
            view: ViewVersion(1),
            settings: settings.clone(),
            shape: Default::default(),
            workers: (0..6).map(worker).collect(),
        }
    }

    #[test]
    fn a_slow_uplink_is_marked_once_and_restored_when_it_heals() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let mut settings = view.settings.clone();
        let mut proposals = Vec::new();
        for look in 0..60 {
            let between = if (10..30).contains(&look) { 0.2 } else { 0.97 };
            if let Some(proposal) = watch.observe(&seen(&settings, between)) {
                proposals.push((look, proposal.settings.contended.racks.len()));
                settings = proposal.settings;
            }
        }
        // Both racks' uplinks are on the only way between them.
        assert_eq!(proposals, [(12, 2), (35, 0)]);
    }

    #[test]
    fn what_was_refused_is_proposed_again_later() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let looks = (0..20).filter(|_| watch.observe(&seen(&view.settings, 0.2)).is_some());
        assert_eq!(looks.count(), 2);
    }

    #[test]
    fn strategies_that_go_everywhere_are_left_alone() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let settings = Settings { strategy: StrategyChoice::auto(), ..view.settings.clone() };
        assert!((0..20).all(|_| watch.observe(&seen(&settings, 0.2)).is_none()));
    }

    #[test]
    fn noise_marks_nothing() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        for look in 0..50 {
            let between = if look % 3 == 0 { 0.3 } else { 0.9 };
            assert_eq!(watch.observe(&seen(&view.settings, between)), None);
        }
    }

    #[test]
    fn without_a_topology_nothing_is_watched() {
        assert!(ContentionWatch::of(&View::local(2, Settings::default())).is_none());
    }
}
