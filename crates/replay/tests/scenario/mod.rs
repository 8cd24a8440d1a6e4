//! Scenarios drawn by lot: a cluster, its settings and a set of operations with their inputs and right
//! results. Everything follows from the seed, so a run that failed can be run again.

#![allow(dead_code)] // Each test file uses its own part.

use paceline_job::{
    ByteSize, Dtype, Host, Link, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time, Topology,
    View,
};
use paceline_replay::{
    Cluster, ClusterConfig, Combine, Contents, NetworkConfig, Outcome, Random, WorkerConfig,
    contents::Tensor,
};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
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

/// One collective over a group.
#[derive(Clone, Debug)]
pub struct Operation {
    pub name: Arc<str>,
    pub group: Option<Arc<[Rank]>>,
    pub members: Vec<Rank>,
    /// What each member posts.
    pub collectives: Vec<Collective>,
    pub dtype: Dtype,
    pub reduce: ReduceOp,
    pub in_place: bool,
    pub priority: i64,
    pub inputs: Vec<Vec<u8>>,
}

/// A cluster and what it has to do.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub view: Arc<View>,
    pub topology: Topology,
    pub config: ClusterConfig,
    pub operations: Vec<Operation>,
    /// (when, who, which): each member of each operation once.
    pub posts: Vec<(Time, Rank, usize)>,
}

/// What came of a scenario.
pub struct Run {
    pub outcome: Outcome,
    pub cluster: Cluster<Contents>,
}

/// What strategies a scenario may draw.
pub const STRATEGIES: [&str; 9] = [
    "ring",
    "double_tree",
    "hierarchical",
    "parameter_server",
    "parameter_server:2",
    "recursive_doubling",
    "one_shot",
    "gossip",
    "auto",
];

impl Scenario {
    /// Anything at all on so many workers.
    pub fn draw(random: &mut Random, size: u32) -> Scenario {
        let settings = draw_settings(random);
        let host_count = 1 + random.below(u64::from(size)) as u32;
        let hosts: Vec<String> =
            (0..size).map(|_| format!("host{}", random.below(u64::from(host_count)))).collect();
        let view = Arc::new(View::on_hosts(hosts, settings));
        let topology = draw_topology(random, &view, host_count);
        let config = draw_config(random);
        let operations = draw_operations(random, size);
        let posts = draw_posts(random, &operations);
        Scenario { view, topology, config, operations, posts }
    }

    pub fn size(&self) -> u32 {
        self.view.size() as u32
    }

    pub fn cluster(&self) -> Cluster<Contents> {
        let memory = Contents::new(self.view.size());
        Cluster::with_memory(self.view.clone(), &self.topology, self.config.clone(), memory)
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
            op,
            name: operation.name.clone(),
            collective,
            dtype: operation.dtype,
            reduce: operation.reduce,
            priority: operation.priority,
            group: operation.group.clone(),
            in_place: operation.in_place,
        };
        cluster.post(at, rank, post).expect("scenarios name workers that exist");
    }

    pub fn post_all(&self, cluster: &mut Cluster<Contents>) {
        for (at, rank, index) in &self.posts {
            self.post(cluster, *at, *rank, *index);
        }
    }

    pub fn run(&self) -> Run {
        let mut cluster = self.cluster();
        self.post_all(&mut cluster);
        let outcome = cluster.run();
        Run { outcome, cluster }
    }
}

impl Operation {
    pub fn member(&self, rank: Rank) -> Option<usize> {
        self.members.iter().position(|member| *member == rank)
    }

    /// Compare a member's result with the right one.
    pub fn check(&self, strategy: &str, member: usize, tensor: &Tensor) -> Result<(), String> {
        let reads_output = !tensor.out.is_empty();
        if matches!(self.collectives[member], Collective::Barrier) || !reads_output {
            return Ok(());
        }
        if tensor.written.contains(&false) {
            return Err(format!("member {member} of {self:?} has output that nobody wrote"));
        }
        let is_gossip = strategy == "gossip";
        if is_gossip && matches!(self.collectives[member], Collective::AllReduce { .. }) {
            let mut pairs = (0..self.members.len())
                .map(|other| if other == member { vec![member] } else { vec![member, other] });
            let close = |pair: Vec<usize>| self.near(&self.reduced(&pair), &tensor.out);
            if pairs.any(close) {
                return Ok(());
            }
            return Err(format!("member {member} of {self:?} averaged with nobody"));
        }
        let right = self.right_result(member);
        if self.near(&right, &tensor.out) {
            return Ok(());
        }
        Err(format!("member {member} of {self:?} has {:?} and not {right:?}", tensor.out))
    }

    fn block(counts: &[u64], member: usize, size: usize) -> std::ops::Range<usize> {
        let start = counts[..member].iter().sum::<u64>() as usize * size;
        start..start + counts[member] as usize * size
    }

    fn right_result(&self, member: usize) -> Vec<u8> {
        let size = self.dtype.size();
        let everybody: Vec<usize> = (0..self.members.len()).collect();
        match &self.collectives[member] {
            Collective::AllReduce { .. } | Collective::Reduce { .. } => self.reduced(&everybody),
            Collective::ReduceScatter { counts } => {
                self.reduced(&everybody)[Operation::block(counts, member, size)].to_vec()
            }
            Collective::AllGather { .. } | Collective::Gather { .. } => self.inputs.concat(),
            Collective::Broadcast { root, .. } => self.inputs[*root as usize].clone(),
            Collective::Scatter { root, counts } => {
                self.inputs[*root as usize][Operation::block(counts, member, size)].to_vec()
            }
            Collective::AllToAll { .. } => {
                let blocks = self.inputs.iter().zip(&self.collectives).map(|(input, theirs)| {
                    let Collective::AllToAll { sends, .. } = theirs else { unreachable!() };
                    input[Operation::block(sends, member, size)].to_vec()
                });
                blocks.collect::<Vec<_>>().concat()
            }
            Collective::Recv { from, .. } => self.inputs[*from as usize].clone(),
            Collective::Send { .. } | Collective::Barrier => Vec::new(),
        }
    }

    /// The combination of some members' inputs, in this order.
    fn reduced(&self, members: &[usize]) -> Vec<u8> {
        macro_rules! with_type {
            ($type:ty, $add:expr, $multiply:expr) => {{
                let mut sums: Vec<$type> = numbers!($type, &self.inputs[members[0]]);
                for member in &members[1..] {
                    for (sum, value) in sums.iter_mut().zip(numbers!($type, &self.inputs[*member]))
                    {
                        *sum = match self.reduce {
                            ReduceOp::Sum | ReduceOp::Average => $add(*sum, value),
                            ReduceOp::Product => $multiply(*sum, value),
                            ReduceOp::Min => {
                                if value < *sum {
                                    value
                                } else {
                                    *sum
                                }
                            }
                            ReduceOp::Max => {
                                if value > *sum {
                                    value
                                } else {
                                    *sum
                                }
                            }
                        };
                    }
                }
                if self.reduce == ReduceOp::Average {
                    sums.iter_mut().for_each(|sum| *sum /= members.len() as $type);
                }
                sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
            }};
        }
        match self.dtype {
            Dtype::F32 => with_type!(f32, |a, b| a + b, |a, b| a * b),
            Dtype::I64 => with_type!(i64, i64::wrapping_add, i64::wrapping_mul),
            _ => with_type!(u8, u8::wrapping_add, u8::wrapping_mul),
        }
    }

    /// Equal, or for floats nearly so: they are summed in another order here.
    fn near(&self, right: &[u8], result: &[u8]) -> bool {
        if self.dtype != Dtype::F32 {
            return right == result;
        }
        let pairs = numbers!(f32, right).into_iter().zip(numbers!(f32, result));
        right.len() == result.len()
            && pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + a.abs()))
    }
}

macro_rules! numbers {
    ($type:ty, $bytes:expr) => {{
        let chunks = $bytes.chunks_exact(size_of::<$type>());
        let number = |bytes: &[u8]| <$type>::from_le_bytes(bytes.try_into().expect("exact"));
        chunks.map(number).collect::<Vec<$type>>()
    }};
}
use numbers;

fn draw_settings(random: &mut Random) -> Settings {
    let partition = *random.choose(&[64, 100, 256, 1000, 1 << 20]);
    let credit = *random.choose(&[1, partition, 4 * partition, u64::MAX]);
    let eager = *random.choose(&[0, partition, 3 * partition, 4 << 20]);
    Settings {
        strategy: StrategyChoice(random.choose(&STRATEGIES).to_string()),
        partition: ByteSize(partition),
        credit: ByteSize(credit),
        eager: ByteSize(eager),
        ..Settings::default()
    }
}

fn draw_topology(random: &mut Random, view: &View, host_count: u32) -> Topology {
    let link = |random: &mut Random, megabytes: u64| Link {
        rate: Rate::from_bytes_per_second(1e6 * (1 + random.below(megabytes)) as f64),
        latency: Duration::from_nanos(random.below(50_000)),
    };
    let racks = *random.choose(&[0_u32, 1, 2, 3]);
    let uplinks = (0..racks).map(|_| link(random, 500)).collect();
    let hosts = (0..host_count)
        .map(|number| Host {
            name: format!("host{number}"),
            rack: random.below(u64::from(racks.max(1))) as u32,
            link: link(random, 1000),
        })
        .collect();
    assert!(view.size() > 0);
    Topology { hosts, uplinks, memory: link(random, 8000) }
}

fn draw_config(random: &mut Random) -> ClusterConfig {
    ClusterConfig {
        network: NetworkConfig {
            shaping: None,
            goodput: *random.choose(&[1.0, 0.95]),
            queue_bytes: *random.choose(&[1, 200, 2000, 128 << 10]),
            jitter: Duration::from_nanos(*random.choose(&[0, 1, 10_000, 100_000])),
            overtaking: random.below(2) == 0,
        },
        worker: WorkerConfig {
            per_frame: Duration::from_nanos(*random.choose(&[0, 0, 1, 2_000])),
            combine_rate: random
                .choose(&[None, Some(1e7), Some(1e9)])
                .map(Rate::from_bytes_per_second),
            combine: *random.choose(&[Combine::Overlapped, Combine::After]),
        },
        seed: random.bits(),
        most_events: 20_000_000,
    }
}

fn draw_operations(random: &mut Random, size: u32) -> Vec<Operation> {
    let count = 1 + random.below(8);
    (0..count).map(|_| draw_operation(random, size)).collect()
}

fn draw_operation(random: &mut Random, size: u32) -> Operation {
    let mut everybody: Vec<Rank> = (0..size).map(Rank).collect();
    let whole = random.below(2) == 0;
    let members = if whole {
        everybody
    } else {
        random.shuffle(&mut everybody);
        let count = 1 + random.below(u64::from(size)) as usize;
        everybody.truncate(count);
        everybody
    };
    let group = (!whole).then(|| members.clone().into());
    let dtype = *random.choose(&[Dtype::F32, Dtype::I64, Dtype::U8]);
    let reduce = *random.choose(&ReduceOp::ALL);
    let collectives = draw_collectives(random, members.len() as u32);
    let in_place = collectives[0].in_place_allowed() && random.below(2) == 0;
    let inputs = collectives
        .iter()
        .enumerate()
        .map(|(member, collective)| draw_input(random, dtype, collective.input_len(member as u32)))
        .collect();
    // Few names, so that they are used again.
    let name = format!("tensor{}", random.below(4)).into();
    let priority = random.below(5) as i64;
    Operation { name, group, members, collectives, dtype, reduce, in_place, priority, inputs }
}

/// What each member of a group posts.
pub fn draw_collectives(random: &mut Random, members: u32) -> Vec<Collective> {
    let len = *random.choose(&[0, 1, 7, 64, 300, 1000]);
    let root = random.below(u64::from(members)) as u32;
    let mut counts = || -> Arc<[u64]> { (0..members).map(|_| random.below(len + 1)).collect() };
    let alike = |collective: Collective| vec![collective; members as usize];
    let (counts, rows) = (counts(), (0..members).map(|_| counts()).collect::<Vec<_>>());
    match random.below(if members == 2 { 13 } else { 12 }) {
        0 => alike(Collective::ReduceScatter { counts }),
        1 => alike(Collective::AllGather { counts }),
        2 => alike(Collective::Broadcast { root, len }),
        3 => alike(Collective::Reduce { root, len }),
        4 => alike(Collective::Gather { root, counts }),
        5 => alike(Collective::Scatter { root, counts }),
        6 => (0..members as usize)
            .map(|me| Collective::AllToAll {
                sends: rows[me].clone(),
                receives: rows.iter().map(|row| row[me]).collect(),
            })
            .collect(),
        7 => alike(Collective::Barrier),
        12 => {
            let (send, receive) =
                (Collective::Send { to: 1 - root, len }, Collective::Recv { from: root, len });
            if root == 0 { vec![send, receive] } else { vec![receive, send] }
        }
        _ => alike(Collective::AllReduce { len }),
    }
}

fn draw_input(random: &mut Random, dtype: Dtype, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..len {
        match dtype {
            Dtype::F32 => {
                let value = 0.5 + random.below(1 << 20) as f32 / (1 << 20) as f32;
                bytes.extend_from_slice(&value.to_le_bytes());
            }
            Dtype::I64 => {
                bytes.extend_from_slice(&(random.below(2001) as i64 - 1000).to_le_bytes())
            }
            _ => bytes.push(random.bits() as u8),
        }
    }
    bytes
}

/// Any order and any times, but uses of one name in the order that all members agree on.
fn draw_posts(random: &mut Random, operations: &[Operation]) -> Vec<(Time, Rank, usize)> {
    let mut posts = Vec::new();
    let spread = *random.choose(&[0, 100_000, 2_000_000]);
    let ranks = operations.iter().flat_map(|operation| &operation.members).max();
    for rank in (0..=ranks.map_or(0, |rank| rank.0)).map(Rank) {
        let mine = |index: &usize| operations[*index].member(rank).is_some();
        let mut order: Vec<usize> = (0..operations.len()).filter(mine).collect();
        random.shuffle(&mut order);
        let tensor = |index: usize| (&operations[index].name, &operations[index].group);
        for at in 0..order.len() {
            for later in at + 1..order.len() {
                if tensor(order[at]) == tensor(order[later]) && order[later] < order[at] {
                    order.swap(at, later);
                }
            }
        }
        let mut at = 0;
        for index in order {
            at += random.below(spread + 1);
            posts.push((Time(at), rank, index));
        }
    }
    posts
}
