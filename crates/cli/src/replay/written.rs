//! A predicted run as a trace file in the format of our own recordings, so that whatever opens those opens it too. All
//! workers are in one file: each is a process.

use super::bars::{self, Bar, Row};
use paceline_job::{
    Rank, Time,
    graph::{Graph, Operation},
    trace::{
        Stamp,
        chrome::{Event, Header, Writer},
        recorded::{About, words},
    },
};
use paceline_replay::graph::Played;
use serde_json::json;
use std::{collections::HashMap, io};

/// The row of each worker that has its steps.
const STEPS: i64 = 0;

/// The bytes of the file.
pub fn trace(graph: &Graph, played: &Played) -> io::Result<Vec<u8>> {
    let world = graph.workers.len();
    let mut writer = Writer::new(Vec::new(), &header(graph)?)?;
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
    let uses = uses(graph);
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
                let event = Event::complete(bar.name, stamp(bar.from), bar.to - bar.from);
                let event = match bar.operation {
                    Some(id) => described(event, &graph.operations[id.index()], uses[id.index()]),
                    None => event.category(bar.look.name()),
                };
                let event = event.on(process, thread);
                writer.write(&if bar.critical { event.with("critical", 1) } else { event })?;
            }
        }
    }
    writer.finish()
}

fn header(graph: &Graph) -> io::Result<Header> {
    let about = About {
        format: About::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_string(),
        host: String::new(),
        hosts: graph.workers.iter().map(|worker| worker.host.clone()).collect(),
        view: None,
        layers: Vec::new(),
        crosses_step: false,
        dropped: 0,
    };
    let header = Header::of_worker(Rank(0), graph.workers.len() as u32).with("predicted", true);
    Ok(header.with(About::FIELD, serde_json::to_value(&about)?))
}

fn stamp(nanoseconds: u64) -> Stamp {
    Stamp(i64::try_from(nanoseconds).unwrap_or(i64::MAX))
}

/// For each operation, how many before it have its name.
fn uses(graph: &Graph) -> Vec<u64> {
    let mut names: HashMap<&str, u64> = HashMap::new();
    let mut uses = Vec::with_capacity(graph.operations.len());
    for operation in &graph.operations {
        let next = names.entry(&operation.name).or_default();
        uses.push(*next);
        *next += 1;
    }
    uses
}

/// What readers must know of an operation to find it on other workers.
fn described(event: Event, operation: &Operation, uses: u64) -> Event {
    let event = event
        .category(words::OPERATION)
        .with(words::OPERATION, operation.kind.word())
        .with(words::USE, uses)
        .with(words::BYTES, operation.elements * operation.dtype.size() as u64)
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
