//! What carries the operations of a job from worker to worker, and whether enough is known of it for the engines to play
//! them. Otherwise they take as long as they were recorded to take. What is asked about a job is not known here.

use crate::scenario::{Loaded, MemorySource, WireSource};
use paceline_job::{
    Link,
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
    /// What nobody knows: operations are of so many workers, of whom the trace has one.
    Missing(usize),
    /// Something, but nobody knows how much: not one operation says its size.
    Sizeless,
}

impl Carrier {
    /// Of a job under other conditions than its trace has.
    pub fn of(loaded: &Loaded, graph: &Graph) -> Carrier {
        if let Some(peers) = loaded.missing {
            return Carrier::Missing(peers);
        }
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
            Carrier::Missing(peers) => format!(
                "its operations are of {peers} workers, of whom the trace has one; they take as long as recorded, \
                 whatever the number of workers, the settings and the network"
            ),
        }
    }
}

/// On how many hosts workers are.
pub fn hosts(graph: &Graph) -> usize {
    graph.workers.iter().map(|worker| worker.host.as_str()).collect::<HashSet<_>>().len()
}

/// How many workers take part in operations that only one of them recorded. Where layers are known, operations are made
/// from them and have all workers that there are.
pub fn missing(trace: &Trace, job: &Job) -> Option<usize> {
    let [worker] = &trace.workers[..] else { return None };
    if job.layered.is_some() {
        return None;
    }
    let world = worker.world.map_or(1, |world| world as usize);
    let members = worker.spans.iter().filter_map(|span| match &span.kind {
        Kind::Collective(collective) if collective.members.is_empty() => Some(world),
        Kind::Collective(collective) => Some(collective.members.len()),
        _ => None,
    });
    members.max().filter(|members| *members > 1)
}
