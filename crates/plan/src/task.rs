//! What is to be planned, and what a plan may cost.

use paceline_job::{
    ByteSize, Settings,
    graph::{Graph, layered::Layered},
};
use paceline_replay::graph::Scenario;

/// A job and the conditions it runs under.
#[derive(Clone, Debug)]
pub struct Task {
    /// The job as it is, and what is in force.
    pub scenario: Scenario,
    /// Its layers, where they are known, with what handing operations over takes. Without them only settings can be planned.
    pub layered: Option<Layered>,
}

impl Task {
    /// Another graph and other settings under the same conditions.
    pub(crate) fn scenario(&self, graph: Graph, settings: Settings) -> Scenario {
        let Scenario { wire, memory, met, ref config, .. } = self.scenario;
        Scenario { graph, settings, wire, memory, met, config: config.clone() }
    }

    /// Length of all gradients.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.layered {
            Some(layered) => {
                let tensors = layered.layers.iter().flat_map(|layer| &layer.tensors);
                tensors.map(|tensor| tensor.bytes()).sum()
            }
            None => {
                let graph = &self.scenario.graph;
                let lengths = graph.operations.iter();
                let all: u64 = lengths.map(|one| one.elements * one.dtype.size() as u64).sum();
                all / u64::from(graph.steps.max(1))
            }
        }
    }
}

/// How plans are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Along the critical path.
    #[default]
    Search,
    /// By chance, and less and less so.
    Annealing,
    /// Both, each with as many replays; the better one is taken.
    Both,
}

/// What a plan must keep to, and what the search may cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// What a worker's device has; no limit if `None`.
    pub memory: Option<ByteSize>,
    /// How plans are looked for.
    pub engine: Engine,
    /// Short replays that each engine may use.
    pub replays: usize,
    /// Rounds of the search.
    pub rounds: usize,
    /// What chance follows from.
    pub seed: u64,
    /// Whether partial replays sort candidates out before whole ones; otherwise every candidate is replayed.
    pub partial: bool,
    /// A setting, or the groups, that gain less than this share of a step stay as they are. A replay knows nothing of what
    /// a message costs the processors, and gains of a few thousandths are lost there.
    pub least_gain: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory: None,
            engine: Engine::Search,
            replays: 400,
            rounds: 5,
            seed: 1,
            partial: true,
            least_gain: 0.0,
        }
    }
}
