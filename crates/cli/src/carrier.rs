//! What carries the operations of a job from worker to worker, and whether enough is known of it for the engines to play
//! them. Otherwise they take as long as they were recorded to take. What is asked about a job is not known here.

use crate::scenario::{Loaded, MemorySource, WireSource};
use paceline_job::{
    Link, Rank,
    graph::{Graph, Job, Operation, OperationKind},
    trace::{Kind, Trace},
};
use paceline_replay::graph::Scenario;
use std::collections::HashSet;

/// What carries operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// There is nobody to send to.
    Nothing,
    /// Memory of the host that all workers share.
    Memory,
    /// Wires between hosts, and memory inside those that have several workers.
    Wires,
    /// What nobody knows: operations are of workers that the trace does not have.
    Missing(Peers),
    /// Something, but nobody knows how much: not one operation says its size.
    Sizeless,
}

impl Carrier {
    /// Of a job under other conditions than its trace has.
    pub fn of(loaded: &Loaded, graph: &Graph) -> Carrier {
        match loaded.missing {
            Some(peers) => Carrier::Missing(peers),
            None => Carrier::among(graph),
        }
    }

    /// Of a job whose workers are all there.
    pub fn among(graph: &Graph) -> Carrier {
        let carries = |one: &Operation| one.kind != OperationKind::Barrier;
        let mut carrying = graph.operations.iter().filter(|one| carries(one)).peekable();
        let sizeless = carrying.peek().is_some() && carrying.all(|one| one.elements == 0);
        match (graph.workers.len(), hosts(graph)) {
            (0 | 1, _) => Carrier::Nothing,
            _ if sizeless => Carrier::Sizeless,
            (_, 1) => Carrier::Memory,
            _ => Carrier::Wires,
        }
    }

    /// Whether engines can play what it carries. A rate that the command line gives asks for it, whatever the rest is like.
    pub fn is_known(self, loaded: &Loaded) -> bool {
        match self {
            Carrier::Nothing => true,
            Carrier::Memory => {
                loaded.memory != MemorySource::Usual || loaded.wire == WireSource::Given
            }
            Carrier::Wires => loaded.wire != WireSource::Nowhere,
            Carrier::Missing(_) | Carrier::Sizeless => false,
        }
    }

    /// What an operation crosses that is taken as one transfer.
    pub fn link(self, scenario: &Scenario) -> Link {
        if self == Carrier::Memory { scenario.memory } else { scenario.wire }
    }

    /// Why engines cannot play what it carries, where they cannot.
    pub fn why_unknown(self) -> String {
        match self {
            Carrier::Nothing => "there is nobody to send to".to_string(),
            Carrier::Memory => {
                "all workers are on one host, so there is no wire, and the trace does not say what memory carries"
                    .to_string()
            }
            Carrier::Wires => "the trace does not show what the network carries; give --bandwidth".to_string(),
            Carrier::Sizeless => {
                "no operation says how much it carries (PyTorch's profiler does with record_shapes=True); all take as long as recorded"
                    .to_string()
            }
            Carrier::Missing(peers) => {
                let Peers { wanted, there, can_be_copied } = peers;
                let remedy = if can_be_copied {
                    format!("; --what-if workers={wanted} takes the missing ones to be like those that are there")
                } else {
                    String::new()
                };
                format!(
                    "its operations are of {wanted} workers, of whom the trace has {there}; they take as long as recorded, whatever \
                     the settings and the network. Give the traces of all workers{remedy}"
                )
            }
        }
    }
}

/// Workers that take part in operations together, not all of whom the trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// How many they are.
    pub wanted: usize,
    /// How many of them the trace has.
    pub there: usize,
    /// Whether others can be taken to be like those: where layers are known, operations are made from them.
    pub can_be_copied: bool,
}

/// On how many hosts workers are.
pub fn hosts(graph: &Graph) -> usize {
    graph.workers.iter().map(|worker| worker.host.as_str()).collect::<HashSet<_>>().len()
}

/// The largest operations that not all of their workers recorded, if there are any.
pub fn missing(trace: &Trace, job: &Job) -> Option<Peers> {
    let (world, there) = (trace.world(), trace.workers.len());
    if job.layered.is_some() {
        let sends = !job.graph.operations.is_empty();
        let peers = Peers { wanted: world, there, can_be_copied: true };
        return (sends && there < world).then_some(peers);
    }
    let ranks: HashSet<Rank> = trace.workers.iter().map(|worker| worker.rank).collect();
    let spans = trace.workers.iter().flat_map(|worker| &worker.spans);
    let peers = spans.filter_map(|span| match &span.kind {
        Kind::Collective(collective) if collective.members.is_empty() => Some((world, there)),
        Kind::Collective(collective) => {
            let members = &collective.members;
            Some((members.len(), members.iter().filter(|rank| ranks.contains(rank)).count()))
        }
        _ => None,
    });
    let (wanted, there) = peers.filter(|(wanted, there)| there < wanted).max()?;
    Some(Peers { wanted, there, can_be_copied: false })
}
