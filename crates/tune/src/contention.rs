//! Marks links as contended, and as free again, by what workers of a running job get from each other, for strategies that keep
//! such links out of large groups. When a link changes sides is `paceline_sync::groups`' to say; this file knows who
//! sits where, and what each flow was at its best: how many others of the job share a wire with it is part of that, what
//! queues gave at once is not.

use paceline_job::{Contended, LinkName, Topology, View};
use paceline_sync::{
    groups::{Adjustment, Flow, Thresholds, Watch},
    metrics::{JobMetrics, Smoothed},
    policy::{Policy, Proposal},
};
use std::{collections::BTreeMap, sync::Arc};

/// The strategy that goes around contended links. Under others a flow is as slow as the slowest of those it waits for.
const DIVIDES: &str = "shuffle";

/// A proposal is in force, and metrics are of the time since, after so many observations; then it is made again if it is not.
const PATIENCE: u32 = 10;

/// What is read faster than its way carries, by this factor, was there already: it came from a queue or a bucket on the way, and
/// says nothing about links. Small messages come so, however slow an uplink is.
const TOO_FAST: f64 = 1.25;

/// Marks under which it is remembered what flows were at their best: none, and those of late.
const MOST_REMEMBERED: usize = 4;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct ContentionWatch {
    topology: Arc<Topology>,
    /// Of each worker, by rank; none where the topology does not have its host.
    hosts: Vec<Option<usize>>,
    watch: Watch,
    /// By the marks in force: groups are others under others, and flows with them. Those without marks come first, and stay: what a flow was
    /// then shows whether a link that counts as healed is.
    remembered: Vec<(Contended, Gauges)>,
    /// Links that it found free again, after it had marked them. What others mark is theirs.
    healed: Contended,
    reason: String,
    /// Observations until something may be proposed again.
    quiet: u32,
}

/// Of flows, by the numbers of their hosts.
type Gauges = BTreeMap<(usize, usize), Gauge>;

#[derive(Debug, Default)]
struct Gauge {
    rate: Smoothed,
    best: f64,
}

impl ContentionWatch {
    /// For the workers of a view whose settings say where hosts sit; none where they do not.
    pub fn of(view: &View) -> Option<ContentionWatch> {
        let topology = view.settings.topology.clone()?;
        let place = |name: &String| topology.hosts.iter().position(|host| host.name == *name);
        let hosts = view.workers.iter().map(|worker| place(&worker.host)).collect();
        let watch = Watch::new(topology.clone(), Thresholds::default());
        let remembered = vec![(view.settings.contended.clone(), Gauges::new())];
        let (healed, reason) = Default::default();
        Some(ContentionWatch { topology, hosts, watch, remembered, healed, reason, quiet: 0 })
    }

    /// Where in what is remembered these marks are.
    fn under(&mut self, marks: &Contended) -> usize {
        if let Some(place) = self.remembered.iter().position(|(known, _)| known == marks) {
            return place;
        }
        if self.remembered.len() == MOST_REMEMBERED {
            self.remembered.remove(1);
        }
        self.remembered.push((marks.clone(), Gauges::new()));
        self.remembered.len() - 1
    }

    fn flows(&mut self, metrics: &JobMetrics) -> Vec<Flow> {
        let place = self.under(&metrics.settings.contended);
        let gauges = &mut self.remembered[place].1;
        let host = |rank: usize| self.hosts.get(rank).copied().flatten();
        let mut flows = Vec::new();
        for (rank, worker) in metrics.workers.iter().enumerate() {
            for flow in &worker.flows {
                let (Some(from), Some(to)) = (host(flow.from.index()), host(rank)) else {
                    continue;
                };
                let most = free_rate(&self.topology, from, to);
                if from != to && flow.rate <= TOO_FAST * most {
                    let gauge = gauges.entry((from, to)).or_default();
                    gauge.rate.add(flow.rate);
                    let rate = gauge.rate.value();
                    gauge.best = gauge.best.max(rate.min(most));
                    flows.push(Flow { from, to, rate, share: rate / gauge.best });
                }
            }
        }
        flows
    }
}

/// What a message gets on its way while nobody else is there.
fn free_rate(topology: &Topology, from: usize, to: usize) -> f64 {
    // One worker on each, so that it is named like its host.
    let [from, to] = [from, to].map(|host| (host as u32, host as u32));
    let rate = |link: &LinkName| topology.rate(*link).bytes_per_second();
    topology.way(from, to).links().iter().map(rate).fold(f64::INFINITY, f64::min)
}

impl Policy for ContentionWatch {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        if !metrics.settings.strategy.0.starts_with(DIVIDES) {
            return None;
        }
        let (flows, before) = (self.flows(metrics), self.watch.contended());
        if let Some(Adjustment { reason, .. }) =
            self.watch.look(&flows, &metrics.settings.contended)
        {
            (self.reason, self.quiet) = (reason, 0);
            self.healed.hosts.extend(before.hosts);
            self.healed.racks.extend(before.racks);
        }
        self.quiet = self.quiet.saturating_sub(1);
        let mine = self.watch.contended();
        self.healed.hosts.retain(|host| !mine.hosts.contains(host));
        self.healed.racks.retain(|rack| !mine.racks.contains(rack));
        // What is gone is nobody's: whoever marks it again means it.
        self.healed.hosts.retain(|host| metrics.settings.contended.hosts.contains(host));
        self.healed.racks.retain(|rack| metrics.settings.contended.racks.contains(rack));
        let mut contended = metrics.settings.contended.clone();
        contended.hosts.retain(|host| !self.healed.hosts.contains(host));
        contended.racks.retain(|rack| !self.healed.racks.contains(rack));
        contended.hosts.extend(mine.hosts);
        contended.racks.extend(mine.racks);
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
    use paceline_job::{Link, Rank, Rate, Settings, StrategyChoice, Topology, ViewVersion};
    use paceline_sync::metrics::{FlowMetrics, WorkerMetrics};
    use std::{sync::Arc, time::Duration};

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
        assert_eq!(proposals, [(13, 2), (36, 0)]);
    }

    #[test]
    fn what_came_from_queues_at_once_frees_no_link() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let mut settings = view.settings.clone();
        let mut proposals = Vec::new();
        for look in 0..60 {
            // From the tenth on an uplink is slow; of small messages two of three come from memory.
            let between = match look {
                0..10 => 0.97,
                _ if look % 3 == 0 => 0.2,
                _ => 40.0,
            };
            if let Some(proposal) = watch.observe(&seen(&settings, between)) {
                proposals.push(proposal.settings.contended.racks.len());
                settings = proposal.settings;
            }
        }
        assert_eq!(proposals, [2]);
    }

    #[test]
    fn what_others_marked_is_left_as_it_is() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let mut settings = view.settings.clone();
        settings.contended.hosts.insert("host4".to_string());
        for look in 0..60 {
            let between = if (10..30).contains(&look) { 0.2 } else { 0.97 };
            if let Some(proposal) = watch.observe(&seen(&settings, between)) {
                settings = proposal.settings;
            }
        }
        let Contended { hosts, racks } = settings.contended;
        assert_eq!((hosts.len(), racks.len()), (1, 0));
    }

    #[test]
    fn what_was_refused_is_proposed_again_later() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let between = |look| if look < 5 { 1.0 } else { 0.2 };
        let looks =
            (0..30).filter(|look| watch.observe(&seen(&view.settings, between(*look))).is_some());
        assert_eq!(looks.count(), 3);
    }

    #[test]
    fn strategies_that_go_everywhere_are_left_alone() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        let settings = Settings { strategy: StrategyChoice::auto(), ..view.settings.clone() };
        let between = |look| if look < 5 { 1.0 } else { 0.2 };
        assert!((0..20).all(|look| watch.observe(&seen(&settings, between(look))).is_none()));
    }

    #[test]
    fn noise_marks_nothing() {
        let view = view();
        let mut watch = ContentionWatch::of(&view).unwrap();
        for look in 0..50 {
            let between = if look % 4 == 0 { 0.3 } else { 0.9 };
            assert_eq!(watch.observe(&seen(&view.settings, between)), None);
        }
    }

    #[test]
    fn without_a_topology_nothing_is_watched() {
        assert!(ContentionWatch::of(&View::local(2, Settings::default())).is_none());
    }
}
