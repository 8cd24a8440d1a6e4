//! Marks links as contended, and as free again, by what workers of a running job get from each other, for strategies that keep
//! such links out of large groups. When a link changes sides is `paceline_sync::groups`' to say; this file knows who
//! sits where, and whose marks are whose.

use paceline_job::{Contended, Topology, View};
use paceline_sync::{
    groups::{Adjustment, Flow, Watch},
    metrics::{FlowMetrics, JobMetrics},
    policy::{Policy, Proposal},
};
use std::sync::Arc;

/// The strategy that goes around contended links. Under others a flow is as slow as the slowest of those it waits for.
const DIVIDES: &str = "shuffle";

/// A proposal is in force, and metrics are of the time since, after so many observations; then it is made again if it is not.
const PATIENCE: u32 = 10;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct ContentionWatch {
    /// Of each worker, by rank; none where the topology does not have its host.
    hosts: Vec<Option<usize>>,
    watch: Watch,
    /// Links that it found free again, after it had marked them. What others mark is theirs.
    healed: Contended,
    reason: String,
    /// Observations until something may be proposed again.
    quiet: u32,
}

impl ContentionWatch {
    /// For the workers of a view whose settings say where hosts sit; none where they do not. What is marked there but not `given`, by a
    /// plan, say, was marked by a watch that is gone with its worker, and is this one's from now on.
    pub fn of(view: &View, given: &Contended) -> Option<ContentionWatch> {
        let topology: Arc<Topology> = view.settings.topology.clone()?;
        let place = |name: &String| topology.hosts.iter().position(|host| host.name == *name);
        let hosts = view.workers.iter().map(|worker| place(&worker.host)).collect();
        let mut inherited = view.settings.contended.clone();
        inherited.hosts.retain(|host| !given.hosts.contains(host));
        inherited.racks.retain(|rack| !given.racks.contains(rack));
        let watch = Watch::new(topology, &inherited);
        let (healed, reason) = Default::default();
        Some(ContentionWatch { hosts, watch, healed, reason, quiet: 0 })
    }

    fn flows(&self, metrics: &JobMetrics) -> Vec<Flow> {
        let host = |rank: usize| self.hosts.get(rank).copied().flatten();
        let told = metrics.workers.iter().enumerate();
        let told = told.flat_map(|(rank, worker)| worker.flows.iter().map(move |it| (rank, it)));
        let flow = |(rank, it): (usize, &FlowMetrics)| {
            let (from, to) = (host(it.from.index())?, host(rank)?);
            Some(Flow { from, to, bytes: it.bytes, seconds: it.seconds })
        };
        told.filter_map(flow).collect()
    }
}

impl Policy for ContentionWatch {
    fn observe(&mut self, metrics: &JobMetrics) -> Option<Proposal> {
        if !metrics.settings.strategy.0.starts_with(DIVIDES) {
            return None;
        }
        let (flows, before) = (self.flows(metrics), self.watch.contended());
        let seconds = metrics.speed().recip();
        if let Some(Adjustment { reason, .. }) =
            self.watch.look(&flows, seconds, &metrics.settings.contended)
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
    use paceline_job::{Link, Rank, Rate, Settings, StrategyChoice, ViewVersion};
    use paceline_sync::metrics::WorkerMetrics;
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

    /// Everybody receives from its neighbour, and those of other racks at this share. Marks help a little, whoever is there.
    fn seen(settings: &Settings, between: f64) -> JobMetrics {
        let mark = if settings.contended.racks.is_empty() { 1.0 } else { 0.9 };
        let worker = |rank: u32| {
            let from = Rank((rank + 5) % 6);
            let rate = if from.0 / 3 == rank / 3 { WIRE } else { between * WIRE };
            let flow = FlowMetrics { from, all: WIRE, bytes: WIRE, seconds: WIRE / rate };
            WorkerMetrics {
                seconds: mark * (1.0 + between.recip()),
                flows: vec![flow],
                ..WorkerMetrics::default()
            }
        };
        JobMetrics {
            step: 0,
            view: ViewVersion(1),
            settings: settings.clone(),
            shape: Default::default(),
            workers: (0..6).map(worker).collect(),
        }
    }

    /// Others are there in these looks: when which marks were proposed. Each is in force in the next look.
    fn proposed(
        watch: &mut ContentionWatch,
        settings: &mut Settings,
        others: std::ops::Range<u32>,
    ) -> Vec<(u32, Contended)> {
        let mut proposals = Vec::new();
        for look in 0..60 {
            let between = if others.contains(&look) { 0.2 } else { 0.97 };
            if let Some(proposal) = watch.observe(&seen(settings, between)) {
                proposals.push((look, proposal.settings.contended.clone()));
                *settings = proposal.settings;
            }
        }
        proposals
    }

    #[test]
    fn a_slow_uplink_is_marked_once_and_restored_when_it_heals() {
        let view = view();
        let mut watch = ContentionWatch::of(&view, &view.settings.contended).unwrap();
        let seen = proposed(&mut watch, &mut view.settings.clone(), 10..30);
        // Both racks' uplinks are on the only way between them.
        let marks: Vec<_> = seen.iter().map(|(look, marks)| (*look, marks.racks.len())).collect();
        assert_eq!(marks, [(16, 2), (32, 0)]);
    }

    #[test]
    fn what_a_watch_before_it_marked_comes_off_and_what_was_given_stays() {
        let mut view = view();
        let given = Contended { hosts: ["host4".to_string()].into(), ..Contended::default() };
        view.settings.contended = Contended { racks: [0, 1].into(), ..given.clone() };
        let mut watch = ContentionWatch::of(&view, &given).unwrap();
        let seen = proposed(&mut watch, &mut view.settings.clone(), 0..30);
        assert_eq!(seen, [(32, given)]);
    }

    #[test]
    fn what_others_marked_is_left_as_it_is() {
        let view = view();
        let mut watch = ContentionWatch::of(&view, &view.settings.contended).unwrap();
        let mut settings = view.settings.clone();
        settings.contended.hosts.insert("host4".to_string());
        let given = settings.contended.clone();
        assert_eq!(proposed(&mut watch, &mut settings, 10..30).len(), 2);
        assert_eq!(settings.contended, given);
    }

    #[test]
    fn what_was_refused_is_proposed_again_later() {
        let view = view();
        let mut watch = ContentionWatch::of(&view, &view.settings.contended).unwrap();
        let between = |look| if look < 10 { 1.0 } else { 0.2 };
        let looks =
            (0..40).filter(|look| watch.observe(&seen(&view.settings, between(*look))).is_some());
        assert_eq!(looks.collect::<Vec<_>>(), [16, 26, 36]);
    }

    #[test]
    fn strategies_that_go_everywhere_are_left_alone() {
        let view = view();
        let mut watch = ContentionWatch::of(&view, &view.settings.contended).unwrap();
        let settings = Settings { strategy: StrategyChoice::auto(), ..view.settings.clone() };
        assert_eq!(proposed(&mut watch, &mut settings.clone(), 10..30), []);
    }

    #[test]
    fn noise_marks_nothing() {
        let view = view();
        let mut watch = ContentionWatch::of(&view, &view.settings.contended).unwrap();
        for look in 0..50 {
            let between = if look % 4 == 0 { 0.3 } else { 0.9 };
            assert_eq!(watch.observe(&seen(&view.settings, between)), None);
        }
    }

    #[test]
    fn without_a_topology_nothing_is_watched() {
        assert!(
            ContentionWatch::of(&View::local(2, Settings::default()), &Contended::default())
                .is_none()
        );
    }
}
