//! Who takes part, and what is in force: an immutable, versioned [`View`].

use crate::{Batch, ByteSize, Contended, Fusion, Link, Topology, topology::MOST_RACKS};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

/// A worker's place in the current view.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// For indexing a list that has one entry per worker.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts the views of a job. Every message carries its view's version.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ViewVersion(pub u32);

impl fmt::Display for ViewVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a worker for as long as the job lives. Unlike its rank it never changes, and it is never given twice.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WorkerId(pub u64);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One process of the job, as its peers know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Who it is, whatever its rank.
    #[serde(default)]
    pub id: WorkerId,
    /// Workers with the same host can share memory.
    pub host: String,
    /// Where it accepts connections from its peers (`address:port`); empty where nothing listens.
    pub address: String,
}

/// An immutable list of workers, in rank order, with the settings in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// One more than the view before it.
    pub version: ViewVersion,
    /// Indexed by rank.
    pub workers: Vec<Worker>,
    /// What the scheduler and the strategies follow while this view is in force.
    pub settings: Settings,
    /// What messages cost, as far as it was measured; `auto` decides by it.
    #[serde(default)]
    pub measured: Measured,
    /// How long workers may survey their links before the first step, if they are to: where hosts sit is then part of the
    /// settings of the next view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<Duration>,
    /// Tensors that are sent together.
    #[serde(default, skip_serializing_if = "Fusion::is_empty")]
    pub fusion: Fusion,
    /// How the batch of a step is worked through.
    #[serde(default, skip_serializing_if = "Batch::is_whole")]
    pub batch: Batch,
    /// Whether workers may come and go.
    #[serde(default, skip_serializing_if = "Membership::is_fixed")]
    pub membership: Membership,
}

/// What the loss of a worker means to the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Membership {
    /// It fails what the worker takes part in: the job has the workers it began with.
    #[default]
    Fixed,
    /// The others go on in a view without it, and new ones may join.
    Elastic,
}

impl Membership {
    /// Whether the job has the workers it began with.
    pub fn is_fixed(&self) -> bool {
        *self == Membership::Fixed
    }
}

/// Latency and rate of a message between two workers. Part of the view, so that all ranks decide by
/// the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Between workers of one host.
    pub memory: Option<Link>,
    /// Between hosts.
    pub wire: Option<Link>,
}

impl View {
    /// A first view of `size` workers who all sit on one host and listen nowhere.
    pub fn local(size: usize, settings: Settings) -> View {
        View::on_hosts(vec!["local".to_string(); size], settings)
    }

    /// A first view with the given host for each rank.
    pub fn on_hosts(hosts: Vec<String>, settings: Settings) -> View {
        let workers = (0..).map(WorkerId).zip(hosts);
        let workers = workers.map(|(id, host)| Worker { id, host, address: String::new() });
        View {
            version: ViewVersion(1),
            workers: workers.collect(),
            settings,
            measured: Measured::default(),
            survey: None,
            fusion: Fusion::default(),
            batch: Batch::default(),
            membership: Membership::Fixed,
        }
    }

    /// The next view: the same, but for what its links were found to cost, and for where its hosts were found to sit.
    pub fn with_measured(&self, measured: Measured, topology: Option<Arc<Topology>>) -> View {
        let mut settings = self.settings.clone();
        settings.topology = topology.or(settings.topology);
        View { version: ViewVersion(self.version.0 + 1), measured, settings, ..self.clone() }
    }

    /// Number of workers.
    pub fn size(&self) -> usize {
        self.workers.len()
    }

    /// A worker's place here, if it has one.
    pub fn rank_of(&self, id: WorkerId) -> Option<Rank> {
        let place = self.workers.iter().position(|worker| worker.id == id);
        place.map(|place| Rank(place as u32))
    }

    /// Who has these ranks, in that order; ranks that nobody has are passed over.
    pub fn workers_at(&self, ranks: &[Rank]) -> Arc<[WorkerId]> {
        ranks.iter().filter_map(|rank| Some(self.workers.get(rank.index())?.id)).collect()
    }

    /// Who they are, in rank order.
    pub fn ids(&self) -> impl Iterator<Item = WorkerId> {
        self.workers.iter().map(|worker| worker.id)
    }

    /// For each rank the index of its host, hosts numbered in the order they first appear.
    pub fn host_indices(&self) -> Vec<u32> {
        let mut seen: HashMap<&str, u32> = HashMap::new();
        let mut indices = Vec::with_capacity(self.workers.len());
        for worker in &self.workers {
            let next = seen.len() as u32;
            indices.push(*seen.entry(&worker.host).or_insert(next));
        }
        indices
    }
}

/// The name of a strategy, or `auto`.
///
/// `auto` is resolved once per view, before the view is agreed, so that ranks cannot differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StrategyChoice(pub String);

impl StrategyChoice {
    /// Let Paceline choose by message size and topology.
    pub const AUTO: &'static str = "auto";

    /// Let Paceline choose.
    pub fn auto() -> StrategyChoice {
        StrategyChoice(StrategyChoice::AUTO.to_string())
    }
}

impl fmt::Display for StrategyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What the scheduler and the strategies follow. Equal on all ranks of a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How all-reduces are programmed.
    pub strategy: StrategyChoice,
    /// The largest chunk. Small: urgent tensors overtake sooner, and stages overlap. Large: fewer messages.
    pub partition: ByteSize,
    /// Bytes handed to the transport and not yet delivered, above which no further chunk is started.
    /// Small: an urgent tensor waits less. Large: the link never runs dry.
    pub credit: ByteSize,
    /// Bytes each peer may send to a worker for tensors that worker has not posted yet.
    /// It bounds the memory a worker that lags behind must set aside, per peer. Workers keep what their
    /// first view says.
    pub eager: ByteSize,
    /// After this long without progress on a tensor, ask everybody who lacks it, and report.
    #[serde(with = "crate::duration")]
    pub stall_report: Duration,
    /// After this long without progress a tensor fails.
    #[serde(with = "crate::duration")]
    pub timeout: Duration,
    /// Where hosts sit, if it is known: racks, and what their wires carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Arc<Topology>>,
    /// Links that others' traffic slows down for now.
    #[serde(skip_serializing_if = "Contended::is_empty")]
    pub contended: Contended,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            strategy: StrategyChoice::auto(),
            partition: ByteSize::mib(1),
            credit: ByteSize::mib(1),
            eager: ByteSize::mib(4),
            stall_report: Duration::from_secs(10),
            timeout: Duration::from_secs(30 * 60),
            topology: None,
            contended: Contended::default(),
        }
    }
}

/// Settings that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A chunk must hold at least one element of every type.
    #[error("partition is {0}; it must be at least 64 bytes")]
    PartitionTooSmall(ByteSize),
    /// Lengths on the wire are 32 bits.
    #[error("partition is {0}; it must be at most 1GiB (use 1GiB to send tensors whole)")]
    PartitionTooLarge(ByteSize),
    /// Without credit nothing is ever sent.
    #[error("credit is 0; give at least 1 byte (a chunk may overdraw it), or `unlimited`")]
    NoCredit,
    /// An operation takes some time, and whoever asks again at once asks for ever.
    #[error("{0} is 0; give it some time, such as 10s")]
    NoTime(&'static str),
    /// See what is wrong with it.
    #[error("topology: {0}")]
    Topology(String),
    /// Name racks that there are.
    #[error("contended: there is no rack {rack}; the topology has {racks}, from 0")]
    NoRack {
        /// Which.
        rack: u32,
        /// How many there are.
        racks: u32,
    },
}

impl Settings {
    /// No credit: chunks enter the network as fast as they come. With one priority for all, tensors leave first come,
    /// first served.
    pub fn fifo(self) -> Settings {
        Settings { credit: ByteSize::UNLIMITED, ..self }
    }

    /// Refuse what cannot work, with the remedy.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.partition < ByteSize(64) {
            return Err(SettingsError::PartitionTooSmall(self.partition));
        }
        if self.partition > ByteSize(1 << 30) {
            return Err(SettingsError::PartitionTooLarge(self.partition));
        }
        if self.credit == ByteSize(0) {
            return Err(SettingsError::NoCredit);
        }
        for (name, time) in [("stall_report", self.stall_report), ("timeout", self.timeout)] {
            if time.is_zero() {
                return Err(SettingsError::NoTime(name));
            }
        }
        let mut racks = MOST_RACKS;
        if let Some(topology) = &self.topology {
            topology.check().map_err(|problem| SettingsError::Topology(problem.to_string()))?;
            racks = topology.racks();
        }
        match self.contended.racks.iter().find(|rack| **rack >= racks) {
            Some(rack) => Err(SettingsError::NoRack { rack: *rack, racks }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Rate};

    #[test]
    fn hosts_are_numbered_in_order_of_appearance() {
        let hosts = ["b", "a", "b", "c"].map(String::from).to_vec();
        assert_eq!(View::on_hosts(hosts, Settings::default()).host_indices(), [0, 1, 0, 2]);
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        assert_eq!(Settings::default().validate(), Ok(()));
        let with = |partition, credit| Settings { partition, credit, ..Settings::default() };
        assert!(with(ByteSize(8), ByteSize(1)).validate().is_err());
        assert!(with(ByteSize::UNLIMITED, ByteSize(1)).validate().is_err());
        assert!(with(ByteSize::kib(1), ByteSize(0)).validate().is_err());
        let timeout = Duration::ZERO;
        let none = Settings { timeout, ..Settings::default() };
        assert_eq!(none.validate(), Err(SettingsError::NoTime("timeout")));
        let link = Link { rate: Rate::from_bytes_per_second(1e6), latency: Duration::ZERO };
        let host = |rack| Host { name: "a".to_string(), rack, link };
        let topology =
            |rack| Topology { hosts: vec![host(rack)], uplinks: vec![link; 2], memory: link };
        let on = |rack, contended: &[u32]| Settings {
            topology: Some(Arc::new(topology(rack))),
            contended: Contended {
                racks: contended.iter().copied().collect(),
                ..Contended::default()
            },
            ..Settings::default()
        };
        assert_eq!(on(1, &[0, 1]).validate(), Ok(()));
        assert!(matches!(on(7, &[]).validate(), Err(SettingsError::Topology(_))));
        let (rack, racks) = (u32::MAX, 2);
        assert_eq!(on(1, &[rack]).validate(), Err(SettingsError::NoRack { rack, racks }));
        let none = Settings { stall_report: timeout, ..Settings::default() };
        assert_eq!(none.validate(), Err(SettingsError::NoTime("stall_report")));
    }
}
