//! A recording as a file: Chrome's trace format in the shape that PyTorch's profiler gives it, so that Perfetto and
//! the tools for PyTorch's traces open it, with what only we know under `paceline`. Events come as they were
//! recorded; begin and end are put together here. `paceline-job`'s `trace::recorded` reads it back, and has the words.

use super::{
    event::{Event, MessageKey, Place},
    recording::Description,
    sublanes::Sublanes,
};
use paceline_job::{
    Dtype, Rank, View,
    trace::{
        Direction, Stamp,
        chrome::{self, Header},
        recorded::{About, words},
    },
};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
};

/// What to write besides events.
pub(crate) struct TraceFile<'a> {
    pub rank: Rank,
    pub view: &'a View,
    pub description: &'a Description,
    pub names: &'a Names,
    /// The zero of the file's times on the clock of events, and on the wall.
    pub monotonic: u64,
    pub wall: u64,
    pub dropped: u64,
}

/// What numbers in events stand for.
#[derive(Debug, Default)]
pub(crate) struct Names {
    threads: BTreeMap<u32, String>,
    tensors: FxHashMap<u64, TensorName>,
}

#[derive(Debug)]
struct TensorName {
    name: Arc<str>,
    group: Option<Arc<[Rank]>>,
}

impl Names {
    pub(crate) fn thread(&mut self, number: u32, name: String) {
        self.threads.insert(number, name);
    }

    pub(crate) fn tensor(&mut self, hash: u64, name: Arc<str>, group: Option<Arc<[Rank]>>) {
        self.tensors.insert(hash, TensorName { name, group });
    }

    fn name(&self, hash: u64) -> String {
        match self.tensors.get(&hash) {
            Some(tensor) => tensor.name.to_string(),
            // Never posted here while events were kept.
            None => format!("unknown {hash:016x}"),
        }
    }
}

/// A row of the viewer. In the order that people want to see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Lane {
    Steps,
    Thread(u32),
    Device(u32),
    Kernels(u32, u32),
    /// Those of them that overlap lie side by side.
    Operations(u32),
    Reductions,
    To(u32, u32),
    From(u32, u32),
}

/// An operation that is not over yet.
struct Open {
    begin: u64,
    first_message: Option<u64>,
    name: u64,
    uses: u32,
    operation: &'static str,
    dtype: Dtype,
    bytes: u64,
    priority: i64,
    lane: u32,
}

/// A message that is not through yet.
struct Underway {
    begin: u64,
    message: MessageKey,
    lane: u32,
}

struct Writer<'a, W: Write> {
    facts: &'a TraceFile<'a>,
    out: chrome::Writer<W>,
    lanes: BTreeMap<Lane, i64>,
    open: FxHashMap<u32, Open>,
    open_by_use: FxHashMap<(u64, u32), u32>,
    operations: Sublanes,
    sending: FxHashMap<u64, Underway>,
    receiving: FxHashMap<u64, Underway>,
    to: FxHashMap<u32, Sublanes>,
    from: FxHashMap<u32, Sublanes>,
}

/// Write the whole file. What began before the first event or ended after the last is left out.
pub(crate) fn write<W: Write>(
    facts: &TraceFile<'_>,
    events: impl Iterator<Item = io::Result<Event>>,
    out: W,
) -> io::Result<W> {
    let host = &facts.view.workers[facts.rank.index()].host;
    let size = facts.view.size() as u32;
    let about = About {
        format: About::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_string(),
        host: host.clone(),
        hosts: Vec::new(),
        view: Some(facts.view.clone()),
        memory: None,
        layers: facts.description.layers.clone(),
        crosses_step: facts.description.crosses_step,
        dropped: facts.dropped,
        partial: false,
    };
    let header = Header::of_worker(facts.rank, size)
        .with_base(facts.wall as i64)
        .with(
            "distributedInfo",
            json!({"rank": facts.rank, "world_size": size, "backend": "paceline"}),
        )
        .with(About::FIELD, serde_json::to_value(&about)?);
    let mut writer = Writer {
        facts,
        out: chrome::Writer::new(out, &header)?,
        lanes: BTreeMap::new(),
        open: FxHashMap::default(),
        open_by_use: FxHashMap::default(),
        operations: Sublanes::default(),
        sending: FxHashMap::default(),
        receiving: FxHashMap::default(),
        to: FxHashMap::default(),
        from: FxHashMap::default(),
    };
    for event in events {
        writer.event(event?)?;
    }
    for kernel in &facts.description.kernels {
        let lane = Lane::Kernels(kernel.device, kernel.stream);
        // Profilers count from 1970, as the file's base does.
        let begin = (kernel.begin - facts.wall as i64).wrapping_add_unsigned(facts.monotonic);
        let event = writer.complete(&kernel.name, lane, begin as u64, kernel.nanoseconds);
        writer.out.write(&event.category(words::KERNEL))?;
    }
    writer.name_lanes(host)?;
    writer.out.finish()
}

impl<W: Write> Writer<'_, W> {
    fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Posted { at, op, name, uses, operation, dtype, bytes, priority } => {
                let lane = self.operations.take();
                let (begin, operation) = (at, operation.word());
                let open = Open {
                    begin,
                    first_message: None,
                    name,
                    uses,
                    operation,
                    dtype,
                    bytes,
                    priority,
                    lane,
                };
                self.open_by_use.insert((name, uses), op);
                if let Some(lost) = self.open.insert(op, open) {
                    // Its end was dropped.
                    self.operations.give_back(lost.lane);
                }
                Ok(())
            }
            Event::Over { at, op, well } => match self.open.remove(&op) {
                Some(open) => self.over(open, at, well),
                None => Ok(()),
            },
            Event::Sending { at, token, message } => {
                self.begin_operation(at, &message);
                underway(&mut self.sending, &mut self.to, at, token, message);
                Ok(())
            }
            Event::Delivered { at, token } => match self.sending.remove(&token) {
                Some(message) => self.message(&message, at, Direction::Sent),
                None => Ok(()),
            },
            Event::Receiving { at, token, message } => {
                self.begin_operation(at, &message);
                underway(&mut self.receiving, &mut self.from, at, token, message);
                Ok(())
            }
            Event::Received { at, token } => match self.receiving.remove(&token) {
                Some(message) => self.message(&message, at, Direction::Received),
                None => Ok(()),
            },
            Event::Reduced { begin, nanoseconds, bytes, part } => {
                let known = part.and_then(|(op, chunk)| Some((self.open.get(&op)?, chunk)));
                let known = known.map(|(open, chunk)| (open.name, open.uses, chunk));
                let name = known.map(|(name, ..)| self.facts.names.name(name));
                let name = name.as_deref().unwrap_or(words::REDUCE);
                let event = self.complete(name, Lane::Reductions, begin, nanoseconds);
                let event = event.category(words::REDUCE).with(words::BYTES, bytes);
                self.out.write(&match known {
                    Some((_, uses, chunk)) => {
                        event.with(words::USE, uses).with(words::CHUNK, chunk)
                    }
                    None => event,
                })
            }
            Event::Span { begin, nanoseconds, activity, place, layer } => {
                let lane = match place {
                    Place::Thread(number) => Lane::Thread(number),
                    Place::Device(number) => Lane::Device(number),
                };
                let layers = &self.facts.description.layers;
                let known = layer.and_then(|layer| layers.get(layer as usize));
                let name = known.map_or(activity.word(), |layer| &layer.name);
                let event = self.complete(name, lane, begin, nanoseconds);
                let event = event.category(activity.word());
                self.out.write(&match layer {
                    Some(layer) => event.with(words::LAYER, layer),
                    None => event,
                })
            }
            Event::Step { begin, nanoseconds, number } => {
                let name = format!("step {number}");
                let event = self.complete(&name, Lane::Steps, begin, nanoseconds);
                self.out.write(&event.category(words::STEP).with(words::NUMBER, number))
            }
        }
    }

    fn begin_operation(&mut self, at: u64, message: &MessageKey) {
        let op = self.open_by_use.get(&(message.name, message.uses));
        if let Some(open) = op.and_then(|op| self.open.get_mut(op)) {
            open.first_message.get_or_insert(at.max(open.begin));
        }
    }

    fn over(&mut self, open: Open, at: u64, well: bool) -> io::Result<()> {
        self.operations.give_back(open.lane);
        self.open_by_use.remove(&(open.name, open.uses));
        let name = self.facts.names.name(open.name);
        let lane = Lane::Operations(open.lane);
        let event = self
            .complete(&name, lane, open.begin, at.saturating_sub(open.begin))
            .category(words::OPERATION)
            .with(words::OPERATION, open.operation)
            .with(words::USE, open.uses)
            .with(words::BYTES, open.bytes)
            .with(words::DTYPE, open.dtype.to_string())
            .with(words::PRIORITY, open.priority);
        let tensor = self.facts.names.tensors.get(&open.name);
        let event = match tensor.and_then(|tensor| tensor.group.as_ref()) {
            Some(group) => event.with(words::RANKS, json!(group)),
            None => event,
        };
        let event = match open.first_message {
            Some(first) => event.with(words::QUEUED, (first - open.begin) as f64 / 1e3),
            None => event,
        };
        self.out.write(&if well { event } else { event.with(words::FAILED, true) })
    }

    fn message(&mut self, message: &Underway, at: u64, direction: Direction) -> io::Result<()> {
        let Underway { begin, message, lane: place } = message;
        let MessageKey { peer, name, uses, chunk, part, bytes } = *message;
        let (sublanes, lane) = match direction {
            Direction::Sent => (&mut self.to, Lane::To(peer, *place)),
            Direction::Received => (&mut self.from, Lane::From(peer, *place)),
        };
        if let Some(sublanes) = sublanes.get_mut(&peer) {
            sublanes.give_back(*place);
        }
        let name = self.facts.names.name(name);
        let event = self
            .complete(&name, lane, *begin, at.saturating_sub(*begin))
            .category(words::MESSAGE)
            .with(words::DIRECTION, serde_json::to_value(direction)?)
            .with(words::PEER, peer)
            .with(words::USE, uses)
            .with(words::CHUNK, chunk)
            .with(words::PART, part)
            .with(words::BYTES, bytes);
        self.out.write(&event)
    }

    fn complete(&mut self, name: &str, lane: Lane, begin: u64, nanoseconds: u64) -> chrome::Event {
        let count = self.lanes.len() as i64;
        let thread = *self.lanes.entry(lane).or_insert(count);
        // Clocks of one boot: the difference fits.
        let begin = Stamp(begin.wrapping_sub(self.facts.monotonic) as i64);
        chrome::Event::complete(name, begin, nanoseconds).on(i64::from(self.facts.rank.0), thread)
    }

    fn name_lanes(&mut self, host: &str) -> io::Result<()> {
        let rank = self.facts.rank;
        let process = i64::from(rank.0);
        self.out.name_process(process, &format!("worker {rank} on {host}"))?;
        for (place, (lane, thread)) in self.lanes.iter().enumerate() {
            let name = lane_name(*lane, self.facts.names);
            self.out.name_thread(process, *thread, &name, place as i64)?;
        }
        Ok(())
    }
}

fn lane_name(lane: Lane, names: &Names) -> String {
    let beside = |place: u32| match place {
        0 => String::new(),
        _ => format!(" ({})", place + 1),
    };
    match lane {
        Lane::Steps => "steps".to_string(),
        Lane::Thread(number) => match names.threads.get(&number) {
            Some(name) => name.clone(),
            None => format!("thread {number}"),
        },
        Lane::Device(number) => format!("device {number}"),
        Lane::Kernels(device, stream) => format!("device {device}, stream {stream}"),
        Lane::Operations(place) => format!("operations{}", beside(place)),
        Lane::Reductions => "reductions".to_string(),
        Lane::To(peer, place) => format!("to worker {peer}{}", beside(place)),
        Lane::From(peer, place) => format!("from worker {peer}{}", beside(place)),
    }
}

fn underway(
    messages: &mut FxHashMap<u64, Underway>,
    lanes: &mut FxHashMap<u32, Sublanes>,
    begin: u64,
    token: u64,
    message: MessageKey,
) {
    let lane = lanes.entry(message.peer).or_default().take();
    if let Some(lost) = messages.insert(token, Underway { begin, message, lane })
        && let Some(sublanes) = lanes.get_mut(&lost.message.peer)
    {
        // Its end was dropped.
        sublanes.give_back(lost.lane);
    }
}
