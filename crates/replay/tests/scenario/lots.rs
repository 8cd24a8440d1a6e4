//! What a scenario is drawn from: settings, wires, workers, operations and the order in which each worker
//! comes to them.

use super::{Operation, STRATEGIES, Scenario};
use paceline_job::{
    ByteSize, Dtype, Host, Link, Measured, Rank, Rate, ReduceOp, Settings, StrategyChoice, Time,
    Topology, View, ViewVersion,
};
use paceline_replay::{ClusterConfig, Combine, NetworkConfig, Random, WorkerConfig};
use paceline_sync::collective::Collective;
use std::{sync::Arc, time::Duration};

impl Scenario {
    /// Anything at all on so many workers.
    pub fn draw(random: &mut Random, size: u32) -> Scenario {
        let views = 1 + random.below(5);
        let settings = (0..views).map(|_| draw_settings(random)).collect();
        let operations = 1 + random.below(8);
        Scenario::with(random, size, settings, operations)
    }

    /// Every strategy in one run, with the least credit and the fewest eager bytes that programs are
    /// promised.
    pub fn tightest(random: &mut Random, size: u32) -> Scenario {
        let partition = *random.choose(&[64, 100, 256]);
        let (credit, eager) = *random.choose(&[(partition, partition), (1, partition), (1, 0)]);
        let mut strategies = STRATEGIES;
        random.shuffle(&mut strategies);
        let settings = strategies.map(|strategy| Settings {
            strategy: StrategyChoice(strategy.to_string()),
            partition: ByteSize(partition),
            credit: ByteSize(credit),
            eager: ByteSize(eager),
            ..Settings::default()
        });
        let operations = 2 * STRATEGIES.len() as u64;
        Scenario::with(random, size, settings.into(), operations)
    }

    fn with(random: &mut Random, size: u32, settings: Vec<Settings>, operations: u64) -> Scenario {
        let host_count = 1 + random.below(u64::from(size)) as u32;
        let hosts: Vec<String> =
            (0..size).map(|_| format!("host{}", random.below(u64::from(host_count)))).collect();
        let topology = draw_topology(random, host_count);
        let views: Vec<Arc<View>> = settings
            .into_iter()
            .enumerate()
            .map(|(index, settings)| {
                let version = ViewVersion(1 + index as u32);
                let measured = draw_measured(random);
                let view = View::on_hosts(hosts.clone(), settings);
                Arc::new(View { version, measured, ..view })
            })
            .collect();
        let config = draw_config(random);
        let operations = draw_operations(random, size, operations, views.len());
        let (installs, posts) = draw_order(random, size, &operations, views.len());
        Scenario { views, topology, config, operations, installs, posts }
    }
}

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

fn draw_link(random: &mut Random, megabytes: u64) -> Link {
    Link {
        rate: Rate::from_bytes_per_second(1e6 * (1 + random.below(megabytes)) as f64),
        latency: Duration::from_nanos(random.below(50_000)),
    }
}

/// What `auto` goes by.
fn draw_measured(random: &mut Random) -> Measured {
    let mut link = |megabytes| (random.below(2) == 0).then(|| draw_link(random, megabytes));
    Measured { memory: link(8000), wire: link(1000) }
}

fn draw_topology(random: &mut Random, host_count: u32) -> Topology {
    let racks = *random.choose(&[0_u32, 1, 2, 3]);
    let uplinks = (0..racks).map(|_| draw_link(random, 500)).collect();
    let hosts = (0..host_count)
        .map(|number| Host {
            name: format!("host{number}"),
            rack: random.below(u64::from(racks.max(1))) as u32,
            link: draw_link(random, 1000),
        })
        .collect();
    Topology { hosts, uplinks, memory: draw_link(random, 8000) }
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
        mirrored: false,
        traffic: false,
        // Drawn by nobody: it must not change anything, and what is drawn after it must stay as it is.
        waits: true,
        seed: random.bits(),
        most_events: 20_000_000,
        until: Time(u64::MAX),
    }
}

/// Views go forward, and so do the uses of a name on every worker: operations are in the order of views.
fn draw_operations(random: &mut Random, size: u32, count: u64, views: usize) -> Vec<Operation> {
    let mut of_views: Vec<usize> = (0..count)
        .map(|number| match number < views as u64 {
            // Every view has one, if there are enough.
            true => number as usize,
            false => random.place(views),
        })
        .collect();
    of_views.sort();
    of_views.into_iter().map(|view| draw_operation(random, size, view)).collect()
}

fn draw_operation(random: &mut Random, size: u32, view: usize) -> Operation {
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
    let priorities = members.iter().map(|_| random.below(5) as i64).collect();
    Operation {
        name,
        group,
        members,
        collectives,
        dtype,
        reduce,
        in_place,
        priorities,
        view,
        inputs,
    }
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

type Moments = Vec<(Time, Rank, usize)>;

/// When each worker installs which view, and posts which operation: any order and any times, but views
/// and the uses of one name in the order that all agree on.
fn draw_order(
    random: &mut Random,
    size: u32,
    operations: &[Operation],
    views: usize,
) -> (Moments, Moments) {
    let (mut installs, mut posts) = (Vec::new(), Vec::new());
    let spread = *random.choose(&[0, 100_000, 2_000_000]);
    for rank in (0..size).map(Rank) {
        let mut at = 0;
        for view in 0..views {
            if view > 0 {
                at += random.below(spread + 1);
                installs.push((Time(at), rank, view));
            }
            let mine = |index: &usize| {
                operations[*index].view == view && operations[*index].member(rank).is_some()
            };
            let mut order: Vec<usize> = (0..operations.len()).filter(mine).collect();
            random.shuffle(&mut order);
            in_order_of_use(operations, &mut order);
            for index in order {
                at += random.below(spread + 1);
                posts.push((Time(at), rank, index));
            }
        }
    }
    (installs, posts)
}

fn in_order_of_use(operations: &[Operation], order: &mut [usize]) {
    let tensor = |index: usize| (&operations[index].name, &operations[index].group);
    for at in 0..order.len() {
        for later in at + 1..order.len() {
            if tensor(order[at]) == tensor(order[later]) && order[later] < order[at] {
                order.swap(at, later);
            }
        }
    }
}
