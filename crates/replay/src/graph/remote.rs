//! What happens between workers while a graph is played: how long an operation takes, once its members take part.

use super::{
    play::{Lanes, Posted, WorkerTraffic},
    prices::Prices,
    served::Served,
};
use crate::{Cluster, ClusterConfig, Waits, error::ReplayError};
use paceline_job::{
    ByteSize, Rank, Rate, ReduceOp, Time, Topology, View,
    graph::{Graph, Operation, OperationId, OperationKind},
};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    metrics::Traffic,
};
use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

/// Pieces that operations of a step may be cut into: those of a terabyte, at the usual size.
const MOST_PIECES: u64 = 1 << 20;

/// How operations take time.
#[derive(Clone, Debug)]
pub enum Network {
    /// They do not: an operation is over when its last member takes part.
    Free,
    /// As long as they were recorded to take after their last member took part.
    Recorded,
    /// One after another over one link, in the order they become complete: bytes over rate. This is how predictors
    /// work that do not look into an operation; it is here to compare with.
    Lumped(Rate),
    /// One after another, the most urgent first, each as long as it was found to take by itself: see [`Prices`].
    Served(Arc<Prices>),
    /// As the engines do them in virtual time.
    Engines {
        /// Who takes part, and the settings in force.
        view: Arc<View>,
        /// What joins them.
        topology: Topology,
        /// What they are like.
        config: Box<ClusterConfig>,
    },
}

impl Network {
    /// The same, where it is noted what everything waits for if engines run.
    pub fn watched(&self) -> Network {
        let mut network = self.clone();
        if let Network::Engines { config, .. } = &mut network {
            config.waits = true;
        }
        network
    }
}

/// The state of what is between workers.
pub(super) enum Remote {
    Apart(Apart),
    Lumped(Lumped),
    Served(Served),
    Engines(Box<Cluster>),
}

/// Operations that take a given time, whatever else is on its way: each member is through so long after the last that it needs.
pub(super) struct Apart {
    rule: Rule,
    /// For each operation, since when each member takes part; empty while nobody does.
    posts: Vec<Vec<Option<Time>>>,
}

/// Operations one after another over one link.
pub(super) struct Lumped {
    rate: Rate,
    joined: Joined,
    /// Operations whose members all take part, earliest first.
    whole: BinaryHeap<Reverse<(Time, OperationId)>>,
    /// When the link is free.
    free_at: Time,
}

/// Who takes part in what so far.
pub(super) struct Joined {
    /// For each operation, how many members, and since when the last of them does.
    so_far: Vec<(usize, Time)>,
}

impl Joined {
    pub fn new(graph: &Graph) -> Joined {
        Joined { so_far: vec![(0, Time::ZERO); graph.operations.len()] }
    }

    /// Those that the last of their members has joined now, with since when.
    pub fn complete<'a>(
        &'a mut self,
        graph: &'a Graph,
        posted: Vec<Posted>,
    ) -> impl Iterator<Item = (Time, OperationId)> + 'a {
        posted.into_iter().filter_map(|Posted { at, operation, .. }| {
            let all = self.members(graph, operation);
            let (members, last) = &mut self.so_far[operation.index()];
            *members += 1;
            *last = (*last).max(at);
            (*members == all).then_some((*last, operation))
        })
    }

    /// How many it has.
    pub fn members(&self, graph: &Graph, operation: OperationId) -> usize {
        size(&graph.operations[operation.index()], graph.workers.len())
    }
}

#[derive(Clone, Copy)]
enum Rule {
    Free,
    Recorded,
}

impl Remote {
    pub fn new(graph: &Graph, network: &Network) -> Result<Remote, ReplayError> {
        let rule = match network {
            Network::Free => Rule::Free,
            Network::Recorded => Rule::Recorded,
            Network::Lumped(rate) => {
                return Ok(Remote::Lumped(Lumped {
                    rate: *rate,
                    joined: Joined::new(graph),
                    whole: BinaryHeap::new(),
                    free_at: Time::ZERO,
                }));
            }
            Network::Served(prices) => return Ok(Remote::Served(Served::new(graph, prices))),
            Network::Engines { view, topology, config } => {
                let workers = if config.mirrored { 1 } else { view.size() };
                if workers != graph.workers.len() {
                    let (now, next) = (graph.workers.len(), workers);
                    return Err(ReplayError::Members { now, next });
                }
                refuse_too_many_pieces(graph, view.settings.partition)?;
                let cluster = Cluster::new(view.clone(), topology, ClusterConfig::clone(config))?;
                return Ok(Remote::Engines(Box::new(cluster)));
            }
        };
        Ok(Remote::Apart(Apart { rule, posts: vec![Vec::new(); graph.operations.len()] }))
    }

    pub fn events(&self) -> u64 {
        match self {
            Remote::Apart(_) | Remote::Lumped(_) | Remote::Served(_) => 0,
            Remote::Engines(cluster) => cluster.events(),
        }
    }

    pub fn traffic(&self) -> Vec<WorkerTraffic> {
        match self {
            Remote::Apart(_) | Remote::Lumped(_) | Remote::Served(_) => Vec::new(),
            Remote::Engines(cluster) => {
                let of = |traffic: &Traffic| WorkerTraffic {
                    totals: traffic.totals(),
                    inward: traffic.inward().collect(),
                };
                cluster.traffic().iter().map(of).collect()
            }
        }
    }

    pub fn take_waits(&mut self) -> Option<Box<Waits>> {
        match self {
            Remote::Apart(_) | Remote::Lumped(_) | Remote::Served(_) => None,
            Remote::Engines(cluster) => cluster.take_waits(),
        }
    }

    /// Take what workers posted, and let the next thing happen between them. False if there is nothing left.
    pub fn go_on(&mut self, graph: &Graph, lanes: &mut Lanes<'_>) -> Result<bool, ReplayError> {
        let posted = lanes.take_posts();
        match self {
            Remote::Apart(apart) => apart.end_what_is_ready(graph, posted, lanes),
            Remote::Lumped(lumped) => {
                lumped.join(graph, posted);
                Ok(lumped.end_one(graph, lanes))
            }
            Remote::Served(served) => {
                served.join(graph, posted);
                Ok(served.end_one(graph, lanes))
            }
            Remote::Engines(cluster) => {
                for Posted { at, rank, operation } in posted {
                    let post = post(graph, operation, rank)?;
                    cluster.post(at, rank, post)?;
                }
                if !cluster.step() {
                    return Ok(false);
                }
                let finished: Vec<_> = cluster.take_finished().collect();
                for finish in finished {
                    let operation = OperationId(finish.op.0);
                    if let Err(problem) = finish.result {
                        let name = graph.operations[operation.index()].name.clone();
                        return Err(ReplayError::Operation { name, problem: problem.to_string() });
                    }
                    lanes.arrived(operation, finish.rank, finish.at);
                }
                lanes.go_on();
                Ok(true)
            }
        }
    }
}

impl Apart {
    /// Begin and end of everything follow from what comes before, so no order has to be kept. False if nobody took part in
    /// anything.
    fn end_what_is_ready(
        &mut self,
        graph: &Graph,
        posted: Vec<Posted>,
        lanes: &mut Lanes<'_>,
    ) -> Result<bool, ReplayError> {
        let any = !posted.is_empty();
        for Posted { at, rank, operation: id } in posted {
            let operation = &graph.operations[id.index()];
            let members = size(operation, graph.workers.len());
            let place = place_of(operation, rank)?;
            let posts = &mut self.posts[id.index()];
            posts.resize(members, None);
            posts[place] = Some(at);
            let ready = |member: usize| -> Option<Time> {
                let needed = (0..members).filter(|other| operation.kind.needs(member, *other));
                needed
                    .map(|other| posts[other])
                    .try_fold(Time::ZERO, |last, at| Some(last.max(at?)))
            };
            // Where everybody needs everybody, one speaks for all.
            let mutual = operation.kind.needs(1, 2);
            let of_all = mutual.then(|| ready(0));
            if of_all == Some(None) {
                continue;
            }
            // Only who needs this one can be ready because of it.
            for member in (0..members).filter(|member| operation.kind.needs(*member, place)) {
                let Some(last) = of_all.unwrap_or_else(|| ready(member)) else { continue };
                let rank = operation.members.get(member).copied().unwrap_or(Rank(member as u32));
                let length = match self.rule {
                    Rule::Free => 0,
                    Rule::Recorded => operation.recorded.get(member).copied().unwrap_or(0),
                };
                lanes.arrived(id, rank, Time(last.0 + length));
            }
        }
        lanes.go_on();
        Ok(any)
    }
}

impl Lumped {
    fn join(&mut self, graph: &Graph, posted: Vec<Posted>) {
        self.whole.extend(self.joined.complete(graph, posted).map(Reverse));
    }

    /// Whatever is posted later follows from an operation that ends later than the earliest one, so that one is next.
    fn end_one(&mut self, graph: &Graph, lanes: &mut Lanes<'_>) -> bool {
        let Some(Reverse((last, id))) = self.whole.pop() else { return false };
        let operation = &graph.operations[id.index()];
        let workers = graph.workers.len();
        let seconds = wire_bytes(operation, workers) / self.rate.bytes_per_second();
        self.free_at = Time(self.free_at.max(last).0 + (seconds * 1e9) as u64);
        for place in 0..size(operation, workers) {
            let rank = operation.members.get(place).copied().unwrap_or(Rank(place as u32));
            lanes.arrived(id, rank, self.free_at);
        }
        lanes.go_on();
        true
    }
}

/// A worker's place among the members.
fn place_of(operation: &Operation, rank: Rank) -> Result<usize, ReplayError> {
    if operation.members.is_empty() {
        return Ok(rank.index());
    }
    let found = operation.members.iter().position(|member| *member == rank);
    found.ok_or(ReplayError::UnknownWorker(rank))
}

fn size(operation: &Operation, workers: usize) -> usize {
    if operation.members.is_empty() { workers } else { operation.members.len() }
}

/// Length of the tensor.
pub(super) fn bytes(operation: &Operation) -> f64 {
    operation.bytes() as f64
}

/// Bytes that cross each member's wire if all members send alike.
fn wire_bytes(operation: &Operation, workers: usize) -> f64 {
    let bytes = bytes(operation);
    let members = size(operation, workers) as f64;
    match operation.kind {
        OperationKind::AllReduce => 2.0 * (members - 1.0) / members * bytes,
        OperationKind::ReduceScatter | OperationKind::AllToAll => (members - 1.0) / members * bytes,
        OperationKind::AllGather => (members - 1.0) * bytes,
        OperationKind::Broadcast | OperationKind::Reduce | OperationKind::SendReceive => bytes,
        OperationKind::Barrier => 0.0,
    }
}

/// Sizes come from files that say what they like, and engines hold something for each piece.
fn refuse_too_many_pieces(graph: &Graph, partition: ByteSize) -> Result<(), ReplayError> {
    let size = partition.0.max(1);
    let sizes = graph.operations.iter().map(|operation| operation.bytes().div_ceil(size));
    let pieces = sizes.fold(0_u64, u64::saturating_add) / u64::from(graph.steps.max(1));
    match pieces {
        pieces if pieces > MOST_PIECES => {
            Err(ReplayError::TooManyPieces { pieces, partition, most: MOST_PIECES })
        }
        _ => Ok(()),
    }
}

/// What a worker posts to take part in an operation.
pub(super) fn post(graph: &Graph, id: OperationId, rank: Rank) -> Result<Post, ReplayError> {
    let operation = &graph.operations[id.index()];
    let members = &operation.members;
    let place = place_of(operation, rank)?;
    let (elements, count) = (operation.elements, size(operation, graph.workers.len()) as u64);
    let shares = || -> Arc<[u64]> {
        (0..count).map(|place| elements / count + u64::from(place < elements % count)).collect()
    };
    let alike = |elements: u64| -> Arc<[u64]> { (0..count).map(|_| elements).collect() };
    let collective = match operation.kind {
        OperationKind::AllReduce => Collective::AllReduce { len: elements },
        OperationKind::ReduceScatter => Collective::ReduceScatter { counts: shares() },
        OperationKind::AllGather => Collective::AllGather { counts: alike(elements) },
        OperationKind::Broadcast => Collective::Broadcast { root: 0, len: elements },
        OperationKind::Reduce => Collective::Reduce { root: 0, len: elements },
        OperationKind::AllToAll => {
            let sends = alike(elements / count);
            Collective::AllToAll { sends: sends.clone(), receives: sends }
        }
        OperationKind::Barrier => Collective::Barrier,
        OperationKind::SendReceive if place == 0 => Collective::Send { to: 1, len: elements },
        OperationKind::SendReceive => Collective::Recv { from: 0, len: elements },
    };
    Ok(Post {
        // Whoever asks for a strategy that averages in groups asks what it would do with the job's tensors.
        reduce: if operation.dtype.is_float() { ReduceOp::Mix } else { ReduceOp::Sum },
        priority: operation.priority,
        group: (!members.is_empty()).then(|| members.as_slice().into()),
        in_place: matches!(operation.kind, OperationKind::AllReduce | OperationKind::Broadcast),
        ..Post::new(OpId(id.0), operation.name.clone(), collective, operation.dtype)
    })
}
