//! Divide and shuffle over racks in virtual time, with real numbers: what workers hold after each step is what the plan
//! of groups says, also where messages overtake each other and a link is contended.

use paceline_job::{
    ByteSize, Contended, Dtype, Host, Link, Random, Rank, Rate, ReduceOp, Settings, StrategyChoice,
    Time, Topology, View,
};
use paceline_replay::{Cluster, ClusterConfig, Contents, NetworkConfig};
use paceline_sync::{
    collective::Collective,
    event::{OpId, Post},
    groups::{Plan, Seating, Terrain},
    program::Span,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const STEPS: u32 = 12;
const ELEMENTS: u64 = 3000;

/// Racks × hosts × workers.
fn view(racks: u32, hosts: u32, workers: u32, contended: Contended) -> (Arc<View>, Arc<Topology>) {
    let link =
        |rate| Link { rate: Rate::from_bits_per_second(rate), latency: Duration::from_micros(20) };
    let host =
        |index: u32| Host { name: format!("host{index}"), rack: index / hosts, link: link(1e9) };
    let topology = Arc::new(Topology {
        hosts: (0..racks * hosts).map(host).collect(),
        uplinks: vec![link(1e9); racks as usize],
        memory: link(8e9),
    });
    let settings = Settings {
        strategy: StrategyChoice("shuffle".to_string()),
        partition: ByteSize::kib(4),
        topology: Some(topology.clone()),
        contended,
        ..Settings::default()
    };
    let names = topology.hosts.iter().map(|host| host.name.clone());
    let names = names.flat_map(|name| vec![name; workers as usize]).collect();
    (Arc::new(View::on_hosts(names, settings)), topology)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// One step of averaging on everybody, in virtual time.
fn step(cluster: &mut Cluster<Contents>, held: &mut [Vec<f32>], op: OpId) {
    for (rank, own) in (0..).map(Rank).zip(held.iter()) {
        cluster.memory_mut().lend(rank, op, bytes(own), 4 * own.len(), true);
        let post = Post {
            reduce: ReduceOp::Mix,
            ..Post::new(op, "weights", Collective::AllReduce { len: own.len() as u64 }, Dtype::F32)
        };
        cluster.post(cluster.now().max(Time(1)), rank, post).unwrap();
    }
    let outcome = cluster.run();
    assert!(outcome.stuck.is_empty(), "{:?}", outcome.stuck);
    assert!(outcome.finishes.iter().all(|finish| finish.result.is_ok()));
    for (rank, own) in (0..).map(Rank).zip(held) {
        *own = values(&cluster.memory_mut().take(rank, op).unwrap().out);
    }
    assert!(cluster.memory().violations().is_empty(), "{:?}", cluster.memory().violations());
}

/// The same, by the plan: lane by lane of each chunk.
fn expected(plan: &Plan, step: u64, held: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut result = held.to_vec();
    let chunk = 1024;
    for start in (0..ELEMENTS).step_by(chunk) {
        let span = Span { offset: start, len: (ELEMENTS - start).min(chunk as u64) };
        for lane in 0..plan.lanes() {
            let part = span.part(lane, plan.lanes());
            for group in plan.at(step + u64::from(lane)).groups() {
                for element in part.offset..part.end() {
                    let of = |member: &u32| f64::from(held[*member as usize][element as usize]);
                    let mean = group.iter().map(of).sum::<f64>() / group.len() as f64;
                    for member in group {
                        result[*member as usize][element as usize] = mean as f32;
                    }
                }
            }
        }
    }
    result
}

#[test]
fn workers_hold_what_the_plan_says_after_every_step() {
    let uplink = Contended { racks: BTreeSet::from([1]), ..Contended::default() };
    let host = Contended { hosts: BTreeSet::from(["host2".into()]), ..Contended::default() };
    let cases = [
        (view(4, 3, 1, Contended::default()), 0.3),
        (view(4, 3, 1, uplink.clone()), 0.3),
        (view(4, 3, 1, host), 0.3),
        // Fewer leave their hosts, so agreeing takes more steps.
        (view(2, 2, 3, uplink), 0.5),
    ];
    for (case, ((view, topology), most_apart)) in cases.into_iter().enumerate() {
        let terrain = Terrain::of_view(&view).unwrap();
        let plan = Plan::of(&Seating::on(&terrain, &view.host_indices()));
        let network = NetworkConfig {
            jitter: Duration::from_micros(300),
            overtaking: true,
            ..NetworkConfig::default()
        };
        let config = ClusterConfig { network, seed: case as u64, ..ClusterConfig::default() };
        let contents = Contents::new(view.size());
        let mut cluster = Cluster::with_memory(view.clone(), &topology, config, contents).unwrap();
        let mut random = Random::new(7);
        let mut held: Vec<Vec<f32>> = (0..view.size())
            .map(|_| (0..ELEMENTS).map(|_| random.between(-1.0, 1.0) as f32).collect())
            .collect();
        for number in 0..STEPS {
            let wanted = expected(&plan, u64::from(number), &held);
            step(&mut cluster, &mut held, OpId(number));
            let far = held.iter().flatten().zip(wanted.iter().flatten());
            let most = far.map(|(found, wanted)| (found - wanted).abs()).fold(0.0, f32::max);
            assert!(most < 1e-5, "case {case}, step {number}: {most}");
        }
        let column = |element: usize| held.iter().map(move |own| own[element]);
        let apart = (0..ELEMENTS as usize).map(|element| {
            column(element).fold(f32::MIN, f32::max) - column(element).fold(f32::MAX, f32::min)
        });
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < most_apart, "case {case}: members are still {apart} apart");
    }
}
