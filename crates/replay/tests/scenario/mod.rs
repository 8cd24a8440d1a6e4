//! Scenarios drawn by lot: a cluster, the views it goes through and a set of operations with their inputs
//! and right results. Everything follows from the seed, so a run that failed can be run again.

#![allow(dead_code)] // Each test file uses its own part.

mod lots;
mod operation;

pub use operation::Operation;

use paceline_job::{Rank, Time, Topology, View};
use paceline_replay::{Cluster, ClusterConfig, Contents, Outcome};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// Run a check under many seeds and name those that fail. `PACELINE_SEEDS` asks for more of them,
/// `PACELINE_SEED` for a single one.
pub fn under_seeds(usual: u64, check: impl Fn(u64) -> Result<(), String>) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("PACELINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PACELINE_SEEDS").unwrap_or(usual),
    };
    for seed in seeds {
        let complaint = match catch_unwind(AssertUnwindSafe(|| check(seed))) {
            Ok(Ok(())) => continue,
            Ok(Err(complaint)) => complaint,
            Err(_) => "panicked, see above".to_string(),
        };
        panic!("seed {seed}: {complaint}\nPACELINE_SEED={seed} runs it again");
    }
}

/// A cluster and what it has to do.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The first is in force when the run begins. They have the same members and any settings.
    pub views: Vec<Arc<View>>,
    pub topology: Topology,
    pub config: ClusterConfig,
    /// In the order of their views.
    pub operations: Vec<Operation>,
    /// (when, who, which): each view but the first once per worker.
    pub installs: Vec<(Time, Rank, usize)>,
    /// (when, who, which): each member of each operation once.
    pub posts: Vec<(Time, Rank, usize)>,
}

/// What came of a scenario.
pub struct Run {
    pub outcome: Outcome,
    pub cluster: Cluster<Contents>,
}

/// What strategies a view may draw.
pub const STRATEGIES: [&str; 10] = [
    "ring",
    "double_tree",
    "hierarchical",
    "parameter_server",
    "parameter_server:2",
    "parameter_server:1:apart",
    "recursive_doubling",
    "one_shot",
    "gossip",
    "auto",
];

impl Scenario {
    pub fn size(&self) -> u32 {
        self.views[0].size() as u32
    }

    /// The strategy that the operation's view names.
    pub fn strategy(&self, operation: &Operation) -> &str {
        &self.views[operation.view].settings.strategy.0
    }

    pub fn cluster(&self) -> Cluster<Contents> {
        let memory = Contents::new(self.views[0].size());
        Cluster::with_memory(self.views[0].clone(), &self.topology, self.config.clone(), memory)
            .expect("scenarios are well formed")
    }

    /// Lend a member its memory and have it post.
    pub fn post(&self, cluster: &mut Cluster<Contents>, at: Time, rank: Rank, index: usize) {
        let operation = &self.operations[index];
        let member = operation.member(rank).expect("only members post");
        let op = OpId(index as u32);
        let collective = operation.collectives[member].clone();
        let out_bytes = collective.output_len(member as u32) as usize * operation.dtype.size();
        let input = operation.inputs[member].clone();
        cluster.memory_mut().lend(rank, op, input, out_bytes, operation.in_place);
        let post = Post {
            reduce: operation.reduce,
            priority: operation.priorities[member],
            group: operation.group.clone(),
            in_place: operation.in_place,
            ..Post::new(op, operation.name.clone(), collective, operation.dtype)
        };
        cluster.post(at, rank, post).expect("scenarios name workers that exist");
    }

    /// Write everything down. What a worker does at one time it does in the order of views.
    pub fn post_all(&self, cluster: &mut Cluster<Contents>) {
        for view in 0..self.views.len() {
            for (at, rank, _) in self.installs.iter().filter(|(.., which)| *which == view) {
                let view = self.views[view].clone();
                cluster.install_on(*at, *rank, view).expect("scenarios name workers that exist");
            }
            let in_view = |index: usize| self.operations[index].view == view;
            for (at, rank, index) in self.posts.iter().filter(|(.., which)| in_view(*which)) {
                self.post(cluster, *at, *rank, *index);
            }
        }
    }

    pub fn run(&self) -> Run {
        let mut cluster = self.cluster();
        self.post_all(&mut cluster);
        let outcome = cluster.run();
        Run { outcome, cluster }
    }
}

impl Run {
    /// Everything ended, with the right results, and nothing is left behind.
    pub fn ended_well(&mut self, scenario: &Scenario) -> Result<(), String> {
        let Run { outcome, cluster } = self;
        if outcome.cut_short {
            return Err("it never ends".to_string());
        }
        if !outcome.stuck.is_empty() {
            return Err(format!("stuck: {:?}", outcome.stuck));
        }
        if let Some(finish) = outcome.finishes.iter().find(|finish| finish.result.is_err()) {
            return Err(format!("failed: {finish:?}"));
        }
        if outcome.finishes.len() != scenario.posts.len() {
            return Err(format!("{} of {} ended", outcome.finishes.len(), scenario.posts.len()));
        }
        if let Some(violation) = cluster.memory().violations().first() {
            return Err(violation.clone());
        }
        for rank in (0..scenario.size()).map(Rank) {
            let load = cluster.load(rank);
            if load.operations != 0 || load.in_transport_bytes != 0 || load.scratch_bytes != 0 {
                return Err(format!("worker {rank} keeps {load:?}"));
            }
            if cluster.memory().scratch_in_use(rank) != 0 {
                return Err(format!("worker {rank} keeps scratch"));
            }
        }
        for (index, operation) in scenario.operations.iter().enumerate() {
            let strategy = scenario.strategy(operation);
            let mut outputs = Vec::new();
            for (member, rank) in operation.members.iter().enumerate() {
                let tensor = cluster.memory_mut().take(*rank, OpId(index as u32));
                let tensor =
                    tensor.ok_or_else(|| format!("worker {rank} kept operation {index}"))?;
                operation.check(strategy, member, &tensor)?;
                outputs.push(tensor.out);
            }
            let replicated = matches!(operation.collectives[0], Collective::AllReduce { .. });
            if replicated && strategy != "gossip" && outputs.iter().any(|out| *out != outputs[0]) {
                return Err(format!("replicas of operation {index} differ: {operation:?}"));
            }
        }
        Ok(())
    }
}
