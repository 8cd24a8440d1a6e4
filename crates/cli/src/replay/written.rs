//! A predicted run as a trace file in the format of our own recordings, so that whatever opens those opens it too, with the layers
//! and the view of the job, so that it can be replayed like one. All workers are in one file: each is a process.

use super::bars::{self, Bar, Row};
use crate::{
    carrier::Carrier,
    scenario::{Loaded, WireSource},
};
use paceline_job::{
    Fusion, Link, Measured, Rank, Time, View,
    graph::{
        Graph, Operation,
        layered::{Group, Layered},
    },
    trace::{
        Stamp,
        chrome::{Event, Header, Writer},
        recorded::{About, numbered, words},
    },
};
use paceline_replay::graph::Played;
use serde_json::json;
use std::{collections::HashMap, io};

/// The row of each worker that has its steps.
const STEPS: i64 = 0;

/// The bytes of the file.
pub fn trace(loaded: &Loaded, played: &Played) -> io::Result<Vec<u8>> {
    let graph = &loaded.job.graph;
    let world = graph.workers.len();
    let mut writer = Writer::new(Vec::new(), &header(loaded)?)?;
    for (rank, worker) in graph.workers.iter().enumerate() {
        let name = format!("worker {rank} on {} (predicted)", worker.host);
        writer.name_process(rank as i64, &name)?;
        writer.name_thread(rank as i64, STEPS, "steps", STEPS)?;
    }
    let mut begins = vec![Time::ZERO; world];
    for (number, ends) in played.steps.iter().enumerate() {
        for (rank, (begin, end)) in begins.iter_mut().zip(ends).enumerate() {
            let event = Event::complete(format!("step {number}"), stamp(begin.0), end.0 - begin.0);
            let event = event.category(words::STEP).with(words::NUMBER, number);
            writer.write(&event.on(rank as i64, STEPS))?;
            *begin = *end;
        }
    }
    let names = names(graph, loaded.job.layered.as_ref());
    let mut threads: HashMap<(Rank, String), usize> = HashMap::new();
    let mut thread = STEPS;
    for Row { rank, name, bars } in bars::rows(graph, played, world, Time::ZERO, Time(u64::MAX)) {
        let process = i64::from(rank.0);
        for bars in side_by_side(bars) {
            thread += 1;
            // Rows with the same name would be read as one.
            let before = threads.entry((rank, name.clone())).or_default();
            *before += 1;
            let name = if *before > 1 { format!("{name} ({before})") } else { name.clone() };
            writer.name_thread(process, thread, &name, thread)?;
            for bar in bars {
                let (from, length) = (stamp(bar.from), bar.to - bar.from);
                let event = match bar.operation {
                    Some(id) => {
                        let (name, uses) = &names[id.index()];
                        let event = Event::complete(name.clone(), from, length);
                        described(event, &graph.operations[id.index()], *uses)
                    }
                    None => Event::complete(bar.name, from, length).category(bar.look.name()),
                };
                let event = event.on(process, thread);
                writer.write(&if bar.critical { event.with("critical", 1) } else { event })?;
            }
        }
    }
    writer.finish()
}

fn header(loaded: &Loaded) -> io::Result<Header> {
    let (graph, layered) = (&loaded.job.graph, loaded.job.layered.as_ref());
    let hosts: Vec<String> = graph.workers.iter().map(|worker| worker.host.clone()).collect();
    let about = About {
        format: About::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_string(),
        host: String::new(),
        view: Some(view(loaded, hosts.clone())),
        memory: known_memory(loaded),
        hosts,
        layers: layered.map(|layered| layered.layers.clone()).unwrap_or_default(),
        crosses_step: layered.is_some_and(|layered| layered.crosses_step),
        dropped: 0,
        partial: loaded.missing.is_some(),
    };
    // Whoever reads it should know of those who are missing.
    let said = loaded.trace.workers.iter().any(|worker| worker.world.is_some());
    let world = match loaded.missing {
        Some(_) => said.then_some(loaded.trace.world() as u32),
        None => Some(graph.workers.len() as u32),
    };
    let header = Header::of_worker(Rank(0), world).with("predicted", true);
    Ok(header.with(About::FIELD, serde_json::to_value(&about)?))
}

/// What was in force, and the network that was assumed, as if workers had measured it when they met.
fn view(loaded: &Loaded, hosts: Vec<String>) -> View {
    let scenario = &loaded.scenario;
    let recorded = loaded.trace.workers.iter().find_map(|worker| worker.view.as_ref());
    let measured = Measured {
        memory: scenario.met.or_else(|| known_memory(loaded)),
        wire: (loaded.wire != WireSource::Nowhere).then_some(scenario.wire),
    };
    View {
        measured,
        fusion: loaded.job.layered.as_ref().map(fusion).unwrap_or_default(),
        batch: recorded.map(|view| view.batch).unwrap_or_default(),
        ..View::on_hosts(hosts, scenario.settings.clone())
    }
}

fn known_memory(loaded: &Loaded) -> Option<Link> {
    Carrier::Memory.is_known(loaded).then_some(loaded.scenario.memory)
}

/// What is sent together by the program's own decision has no name in a view.
fn fusion(layered: &Layered) -> Fusion {
    let tensors: Vec<_> = layered.layers.iter().flat_map(|layer| &layer.tensors).collect();
    let name = |tensor: &u32| tensors[*tensor as usize].name.to_string();
    let groups = layered.groups.iter().filter(|_| !layered.own_buckets);
    Fusion { groups: groups.map(|group| group.tensors.iter().map(name).collect()).collect() }
}

fn stamp(nanoseconds: u64) -> Stamp {
    Stamp(i64::try_from(nanoseconds).unwrap_or(i64::MAX))
}

/// For each operation what a worker would call it, and how many before it have that name.
fn names(graph: &Graph, layered: Option<&Layered>) -> Vec<(String, u64)> {
    let groups = layered.map(|layered| (layered, layered.all_groups()));
    let mut uses: HashMap<String, u64> = HashMap::new();
    let named = graph.operations.iter().enumerate().map(|(place, operation)| {
        let name = match &groups {
            // Behind those of groups come the others.
            Some((layered, groups)) if place < groups.len() * layered.steps() => {
                group_name(layered, &groups[place % groups.len()], place)
            }
            Some((layered, _)) if layered.own_buckets => numbered("group 0", place as u64),
            _ => operation.name.to_string(),
        };
        let next = uses.entry(name.clone()).or_default();
        *next += 1;
        (name, *next - 1)
    });
    named.collect()
}

/// Buckets of the program's own are numbered, as PyTorch's process groups do it; groups have the names of their tensors.
fn group_name(layered: &Layered, group: &Group, place: usize) -> String {
    if layered.own_buckets {
        return numbered("group 0", place as u64);
    }
    let mut tensors = layered.layers.iter().flat_map(|layer| &layer.tensors);
    let first = tensors.nth(group.tensors[0] as usize);
    Fusion::operation_name(first.map_or("", |tensor| &tensor.name), group.tensors.len())
}

/// What readers must know of an operation to find it on other workers.
fn described(event: Event, operation: &Operation, uses: u64) -> Event {
    let event = event
        .category(words::OPERATION)
        .with(words::OPERATION, operation.kind.word())
        .with(words::USE, uses)
        .with(words::BYTES, operation.bytes())
        .with(words::DTYPE, operation.dtype.to_string())
        .with(words::PRIORITY, operation.priority);
    if operation.members.is_empty() {
        return event;
    }
    event.with(words::RANKS, json!(operation.members))
}

/// Viewers want what is on one row to follow or enclose each other: bars that overlap are put on rows of their own.
fn side_by_side(mut bars: Vec<Bar>) -> Vec<Vec<Bar>> {
    bars.sort_by_key(|bar| bar.from);
    let mut rows: Vec<Vec<Bar>> = Vec::new();
    for bar in bars {
        let free = |row: &&mut Vec<Bar>| row.last().is_none_or(|last| last.to <= bar.from);
        match rows.iter_mut().find(free) {
            Some(row) => row.push(bar),
            None => rows.push(vec![bar]),
        }
    }
    rows
}
