//! What carries the operations of a job from worker to worker, and whether enough is known of it for the engines to play
//! them. Otherwise they take as long as they were recorded to take. What is asked about a job is not known here.

use crate::{
    exit::UsageError,
    scenario::{Loaded, MemorySource, WireSource, met_on_one_host},
};
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
                let remedy = match wanted {
                    Some(wanted) if can_be_copied => {
                        format!("; --what-if workers={wanted} takes the missing ones to be like those that are there")
                    }
                    _ => String::new(),
                };
                let whose = match wanted {
                    Some(wanted) => format!("{wanted} workers, of whom the trace has {there}"),
                    None => format!("more workers than the {there} of the trace, which does not say how many"),
                };
                format!(
                    "its operations are of {whose}; they take as long as recorded, whatever the settings and the network. Give the \
                     traces of all workers{remedy}"
                )
            }
        }
    }
}

/// Workers that take part in operations together, not all of whom the trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// How many they are, where the trace says so.
    pub wanted: Option<usize>,
    /// How many of them the trace has.
    pub there: usize,
    /// Whether others can be taken to be like those: where layers are known, operations are made from them.
    pub can_be_copied: bool,
}

impl Peers {
    /// Why these are not enough for something that concerns all, which would be for another job.
    pub fn not_enough_for(self, what: &str) -> UsageError {
        let Peers { wanted, there, can_be_copied } = self;
        let (all, remedy) = match wanted {
            Some(wanted) if can_be_copied => (
                format!("{wanted} workers"),
                format!(", or --workers {wanted} to take all to be like the first"),
            ),
            Some(wanted) => (format!("{wanted} workers"), String::new()),
            None => ("workers".to_string(), String::new()),
        };
        UsageError::new(format!(
            "the trace has {there} of the {all} of its operations, and {what} for those would be one for another job; give the traces of \
             all workers{remedy}"
        ))
    }
}

/// On how many hosts workers are.
pub fn hosts(graph: &Graph) -> usize {
    graph.workers.iter().map(|worker| worker.host.as_str()).collect::<HashSet<_>>().len()
}

/// The largest operations that not all of their workers recorded, if there are any. One worker whose trace does not say how many
/// others there were is not taken to be alone.
pub fn missing(trace: &Trace, job: &Job, wire: WireSource) -> Option<Peers> {
    let (world, there) = (trace.world(), trace.workers.len());
    if job.layered.is_some() {
        let sends = !job.graph.operations.is_empty();
        // What memory carries between workers of one host is known from operations of all of them only.
        let can_be_copied = !met_on_one_host(trace) || wire == WireSource::Given;
        let peers = Peers { wanted: Some(world), there, can_be_copied };
        return (sends && there < world).then_some(peers);
    }
    let ranks: HashSet<Rank> = trace.workers.iter().map(|worker| worker.rank).collect();
    let spans = trace.workers.iter().flat_map(|worker| &worker.spans);
    let mut of_all = false;
    let mut largest = None;
    for span in spans {
        let Kind::Collective(collective) = &span.kind else { continue };
        let members = &collective.members;
        of_all |= members.is_empty();
        let present = members.iter().filter(|rank| ranks.contains(rank)).count();
        if present < members.len() {
            largest = largest.max(Some((members.len(), present)));
        }
    }
    let unsaid = trace.workers.iter().all(|worker| worker.world.is_none());
    let partial = trace.workers.iter().any(|worker| worker.partial);
    if of_all && there == 1 && unsaid || partial && largest.is_none() {
        let wanted = largest.map(|(wanted, _)| wanted).or((there < world).then_some(world));
        return Some(Peers { wanted, there, can_be_copied: false });
    }
    if of_all && there < world {
        largest = largest.max(Some((world, there)));
    }
    let (wanted, there) = largest?;
    Some(Peers { wanted: Some(wanted), there, can_be_copied: false })
}
