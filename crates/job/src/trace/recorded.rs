//! Traces that our own workers recorded. What the words in such a file are is said here, once, for `paceline-net`, which
//! writes it, and for [`read`]. How a file is read event by event is [`chrome`](super::chrome)'s.

use super::{
    Collective, Direction, Kind, Lane, LaneId, LaneKind, Layer, Message, Phase, Problem, Span,
    SpanId, Stamp, Step, WorkerTrace,
    chrome::{Event, Header, Id, Reader},
    duplicates,
    problems::Problems,
};
use crate::{Dtype, Link, Rank, View};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Categories and arguments of events.
#[allow(missing_docs, reason = "the words explain themselves")]
pub mod words {
    pub const FORWARD: &str = "forward";
    pub const BACKWARD: &str = "backward";
    pub const UPDATE: &str = "update";
    pub const OTHER: &str = "other";
    pub const WAIT: &str = "wait";
    pub const POST: &str = "post";
    pub const STEP: &str = "step";
    pub const OPERATION: &str = "operation";
    pub const MESSAGE: &str = "message";
    pub const REDUCE: &str = "reduce";
    pub const KERNEL: &str = "kernel";

    pub const LAYER: &str = "layer";
    pub const NUMBER: &str = "number";
    pub const USE: &str = "use";
    pub const RANKS: &str = "ranks";
    pub const BYTES: &str = "bytes";
    pub const DTYPE: &str = "dtype";
    pub const PRIORITY: &str = "priority";
    pub const QUEUED: &str = "queued_us";
    pub const FAILED: &str = "failed";
    pub const DIRECTION: &str = "direction";
    pub const PEER: &str = "peer";
    pub const CHUNK: &str = "chunk";
    pub const PART: &str = "part";
}

/// What such a file says about itself beside what all trace files say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Of the file; see [`About::FORMAT`].
    pub format: u32,
    /// Of Paceline.
    pub version: String,
    /// Where the worker ran.
    pub host: String,
    /// Where each worker ran, by rank, in a file that holds all of them: each is the process whose number is its rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The view in force at the end.
    pub view: Option<View>,
    /// What memory carries between workers of a host, in a prediction: it was made with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Link>,
    /// By the numbers that events use.
    #[serde(default)]
    pub layers: Vec<Layer>,
    /// Whether updates cross the step.
    #[serde(default)]
    pub crosses_step: bool,
    /// Events that were lost because something could not keep up.
    #[serde(default)]
    pub dropped: u64,
    /// Whether workers take part in operations that are in no file, in a prediction.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl About {
    /// The field of the file that holds it.
    pub const FIELD: &'static str = "paceline";

    /// The format that is written, and the newest that is read.
    pub const FORMAT: u32 = 1;
}

/// Whether a file with these fields is one of ours.
pub fn is_ours(header: &Header) -> bool {
    header.fields.get(About::FIELD).is_some_and(|about| about.get("format").is_some())
}

/// Whether a file that begins like this is one of ours. It says so before its events, with whatever white space a
/// program that wrote it again put there.
pub(super) fn recognises(head: &str) -> bool {
    let name = format!("\"{}\"", About::FIELD);
    head.match_indices(&name).any(|(at, _)| {
        let value = head[at + name.len()..].trim_start().strip_prefix(':');
        value.is_some_and(|value| value.trim_start().starts_with('{'))
    })
}

/// Operations of PyTorch's process groups are numbered, so their names say nothing of tensors: `group 0, collective 7`.
const NUMBERED: &str = ", collective ";

/// Names of numbered operations are used again after so many.
const NUMBERED_NAMES: u64 = 1024;

/// What a numbered operation of a group is called.
pub fn numbered(group: &str, number: u64) -> String {
    format!("{group}{NUMBERED}{}", number % NUMBERED_NAMES)
}

/// Put a file of ours together, with one worker or with all of them; `place` is how problems name it.
pub fn read(mut reader: Reader, place: &str) -> (Vec<WorkerTrace>, Vec<Problem>) {
    let events: Vec<Event> = reader.by_ref().collect();
    let whole = reader.is_whole();
    let (header, mut problems) = reader.finish();
    let about = header.fields.get(About::FIELD).and_then(|about| About::deserialize(about).ok());
    let Some(about) = about.filter(|about| !about.hosts.is_empty()) else {
        let (mut worker, more) = assemble(&header, events, place);
        worker.lost.of_file |= !whole;
        problems.extend(more);
        return (vec![worker], problems);
    };
    let there = about.hosts.len();
    let mut by_rank: Vec<Vec<Event>> = vec![Vec::new(); there];
    let mut strangers = Problems::at(place);
    for event in events {
        let rank = match event.pid {
            Id::Number(number) => usize::try_from(number).ok(),
            Id::Text(_) => None,
        };
        match rank.and_then(|rank| by_rank.get_mut(rank)) {
            Some(events) => events.push(event),
            None => strangers.add("an event belongs to no worker; it is left out"),
        }
    }
    problems.extend(strangers.into_list());
    let mut workers = Vec::with_capacity(there);
    for ((events, host), rank) in by_rank.into_iter().zip(&about.hosts).zip(0..) {
        let own = About { host: host.clone(), hosts: Vec::new(), ..about.clone() };
        // Some may be missing, and then there may be more of them than anybody knows.
        let header = Header::of_worker(Rank(rank), header.world())
            .with_base(header.base())
            .with(About::FIELD, serde_json::json!(own));
        let (mut worker, more) = assemble(&header, events, &format!("{place}, worker {rank}"));
        worker.lost.of_file |= !whole;
        problems.extend(more);
        // Who wrote all of them into one file had one clock.
        workers.push(WorkerTrace { common_clock: Some(place.to_string()), ..worker });
    }
    (workers, problems)
}

/// The same from what was read already. Local reductions, which are a part of operations, and what PyTorch's profiler
/// added, which happened inside the layers, are for viewers: they are left out.
pub fn assemble(header: &Header, events: Vec<Event>, place: &str) -> (WorkerTrace, Vec<Problem>) {
    let mut problems = Problems::at(place);
    let rank = header.rank().unwrap_or_else(|| {
        problems.add("the file does not say its rank; 0 is assumed");
        Rank(0)
    });
    let mut worker = WorkerTrace { rank, world: header.world(), ..WorkerTrace::default() };
    about(header, &mut worker, &mut problems);
    let mut lanes = Lanes::named_in(&events);
    for event in events.into_iter().filter(|event| event.ph == 'X') {
        let begin = Stamp(event.ts.0.saturating_add(header.base()));
        let Some(length) = event.dur else {
            problems.add("an event has no duration; it is left out");
            worker.lost.at.push(begin);
            continue;
        };
        let kind = match event.cat.as_str() {
            words::STEP => {
                let number = event.integer(words::NUMBER).and_then(|number| number.try_into().ok());
                match number {
                    Some(number) => {
                        worker.steps.push(Step { number, begin, end: begin.after(length) });
                    }
                    None => problems.add("a step has no number; it is left out"),
                }
                continue;
            }
            words::FORWARD => Some(Kind::Work(Phase::Forward)),
            words::BACKWARD => Some(Kind::Work(Phase::Backward)),
            words::UPDATE => Some(Kind::Work(Phase::Update)),
            words::OTHER => Some(Kind::Work(Phase::Other)),
            words::WAIT => Some(Kind::Wait),
            words::POST => Some(Kind::Post),
            words::OPERATION => collective(&event).map(|found| Kind::Collective(Box::new(found))),
            words::MESSAGE => message(&event).map(|found| Kind::Message(Box::new(found))),
            _ => continue,
        };
        let Some(kind) = kind else {
            let category = &event.cat;
            problems.add(format!("a {category} lacks what it must say; it is left out"));
            continue;
        };
        if event.args.contains_key(words::FAILED) {
            problems.add("an operation failed");
        }
        let lane = lanes.lane(&event, &kind, &mut worker.lanes);
        let name = lanes.shared(event.name);
        worker.spans.push(Span { name, lane, begin, length, kind, after: Vec::new() });
    }
    worker.spans.sort_by_key(|span| (span.begin, std::cmp::Reverse(span.length)));
    duplicates::keep_each_span_once(&mut worker, &mut problems);
    worker.steps.sort_by_key(|step| step.number);
    let steps = worker.steps.len();
    worker.steps.dedup_by_key(|step| step.number);
    problems
        .add_times("a step is there twice; one is left out", (steps - worker.steps.len()) as u64);
    if worker.steps.is_empty() {
        problems.add("no step was recorded from begin to end");
    }
    explain_waits(&mut worker);
    (worker, problems.into_list())
}

fn about(header: &Header, worker: &mut WorkerTrace, problems: &mut Problems) {
    let field = header.fields.get(About::FIELD).cloned().unwrap_or_default();
    match About::deserialize(field) {
        Ok(about) => {
            if about.format > About::FORMAT {
                problems.add(format!(
                    "the file has format {}, this Paceline knows up to {}; what is new is left out",
                    about.format,
                    About::FORMAT
                ));
            }
            problems.add_times(
                "an event was lost while it was recorded: the disk or the processor could not keep up",
                about.dropped,
            );
            worker.lost.of_file = about.dropped > 0;
            worker.host = about.host;
            worker.view = about.view;
            worker.memory = about.memory;
            worker.layers = about.layers;
            worker.crosses_step = about.crosses_step;
            worker.partial = about.partial;
        }
        Err(error) => problems.add(format!("what Paceline says about the file is no use: {error}")),
    }
    if worker.host.is_empty() {
        worker.host = format!("host of worker {}", worker.rank);
        problems.add("the file does not name its host");
    }
}

fn collective(event: &Event) -> Option<Collective> {
    let uses = natural(event, words::USE)?;
    let ranks: Option<Vec<Rank>> = match event.args.get(words::RANKS) {
        None => Some(Vec::new()),
        Some(ranks) => Deserialize::deserialize(ranks).ok(),
    };
    let numbered = event.name.split_once(NUMBERED).and_then(|(group, number)| {
        let number: u64 = number.split('/').next()?.parse().ok()?;
        Some((group, uses.checked_mul(NUMBERED_NAMES)?.checked_add(number)?))
    });
    let members = ranks?;
    let (group, sequence, tensor) = match numbered {
        Some((group, sequence)) => (group.to_string(), sequence, None),
        // Equal names in different groups are different tensors.
        None => (listed(&members), uses, Some(event.name.as_str().into())),
    };
    Some(Collective {
        operation: event.text(words::OPERATION)?.into(),
        group: group.into(),
        members,
        sequence: Some(sequence),
        tensor,
        bytes: natural(event, words::BYTES)?,
        dtype: event.text(words::DTYPE).and_then(|dtype| dtype.parse::<Dtype>().ok()),
        priority: event.integer(words::PRIORITY).unwrap_or(0),
    })
}

/// A name for a group that has none: its ranks, or nothing for all.
fn listed(members: &[Rank]) -> String {
    members.iter().map(Rank::to_string).collect::<Vec<_>>().join(",")
}

fn message(event: &Event) -> Option<Message> {
    let small = |name| natural(event, name).and_then(|number| u32::try_from(number).ok());
    Some(Message {
        direction: Direction::deserialize(event.args.get(words::DIRECTION)?).ok()?,
        peer: Rank(small(words::PEER)?),
        tensor: event.name.as_str().into(),
        use_number: natural(event, words::USE)?,
        chunk: small(words::CHUNK)?,
        part: small(words::PART)?,
        bytes: natural(event, words::BYTES)?,
    })
}

fn natural(event: &Event, name: &str) -> Option<u64> {
    event.integer(name).and_then(|number| number.try_into().ok())
}

/// The lanes of a file. A viewer has several rows for a lane whose spans overlap; here they are one.
#[derive(Default)]
struct Lanes {
    names: HashMap<(Id, Id), String>,
    known: HashMap<(String, LaneKind), LaneId>,
    /// Names that were seen before: there are few different ones.
    texts: HashSet<Arc<str>>,
}

impl Lanes {
    fn named_in(events: &[Event]) -> Lanes {
        let mut lanes = Lanes::default();
        for event in events.iter().filter(|event| event.ph == 'M' && event.name == "thread_name") {
            if let Some(name) = event.text("name") {
                lanes.names.insert((event.pid.clone(), event.tid.clone()), name.to_string());
            }
        }
        lanes
    }

    fn lane(&mut self, event: &Event, kind: &Kind, lanes: &mut Vec<Lane>) -> LaneId {
        let (name, kind) = match kind {
            Kind::Collective(_) => ("operations".to_string(), LaneKind::Network),
            Kind::Message(message) => {
                let way = match message.direction {
                    Direction::Sent => "to",
                    Direction::Received => "from",
                };
                (format!("{way} worker {}", message.peer), LaneKind::Network)
            }
            _ => {
                let name = self.names.get(&(event.pid.clone(), event.tid.clone()));
                let name = name.cloned().unwrap_or_else(|| format!("thread {}", event.tid));
                let device = name.starts_with("device ");
                (name, if device { LaneKind::Stream } else { LaneKind::Thread })
            }
        };
        *self.known.entry((name, kind)).or_insert_with_key(|(name, kind)| {
            lanes.push(Lane { name: name.clone(), kind: *kind });
            LaneId(lanes.len() as u32 - 1)
        })
    }

    fn shared(&mut self, name: String) -> Arc<str> {
        if let Some(text) = self.texts.get(name.as_str()) {
            return text.clone();
        }
        let text: Arc<str> = name.into();
        self.texts.insert(text.clone());
        text
    }
}

/// What each wait was for: a layer's own tensors, or else every operation that ended while it lasted.
fn explain_waits(worker: &mut WorkerTrace) {
    let operations: Vec<(SpanId, Stamp, Stamp)> = worker
        .spans
        .iter()
        .enumerate()
        .filter(|(_, span)| matches!(span.kind, Kind::Collective(_)))
        .map(|(place, span)| (SpanId(place as u32), span.begin, span.end()))
        .collect();
    let mut by_tensor: HashMap<&str, Vec<(SpanId, Stamp)>> = HashMap::new();
    for (id, begin, _) in &operations {
        let name = &worker.spans[id.0 as usize].name;
        by_tensor.entry(whole(name)).or_default().push((*id, *begin));
    }
    let layers: HashMap<&str, &Layer> =
        worker.layers.iter().map(|layer| (layer.name.as_ref(), layer)).collect();
    let mut explained = Vec::new();
    for (place, span) in worker.spans.iter().enumerate() {
        if !matches!(span.kind, Kind::Wait) {
            continue;
        }
        let after: Vec<SpanId> = match layers.get(span.name.as_ref()) {
            Some(layer) => (layer.tensors.iter())
                .filter_map(|tensor| by_tensor.get(tensor.name.as_ref()))
                .flat_map(|uses| last_use(uses, span.end(), &worker.spans))
                .collect(),
            None => (operations.iter())
                .filter(|(_, _, end)| *end > span.begin && *end <= span.end())
                .map(|(id, ..)| *id)
                .collect(),
        };
        explained.push((place, after));
    }
    for (place, after) in explained {
        worker.spans[place].after = after;
    }
}

/// The operations, one for each piece, of a tensor's last use that began before a time. They are sorted by begin.
fn last_use<'a>(
    uses: &'a [(SpanId, Stamp)],
    before: Stamp,
    spans: &'a [Span],
) -> impl Iterator<Item = SpanId> + 'a {
    let number = |id: SpanId| match &spans[id.0 as usize].kind {
        Kind::Collective(collective) => collective.sequence,
        _ => None,
    };
    let begun = uses.partition_point(|(_, begin)| *begin < before);
    let last = uses[..begun].last().map(|(id, _)| number(*id));
    let same = move |id: &SpanId| Some(number(*id)) == last;
    uses[..begun].iter().rev().map(|(id, _)| *id).take_while(same)
}

/// A tensor that crosses devices does so in pieces: `name/1`, `name/2`.
fn whole(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((whole, piece)) if piece.bytes().all(|byte| byte.is_ascii_digit()) => whole,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Tensor;
    use serde_json::json;

    fn header(layers: &[Layer]) -> Header {
        let about = About {
            format: 1,
            version: "0".into(),
            host: "one".into(),
            hosts: Vec::new(),
            view: None,
            memory: None,
            layers: layers.to_vec(),
            crosses_step: true,
            dropped: 2,
            partial: false,
        };
        Header::of_worker(Rank(1), 4).with_base(1000).with("paceline", json!(about))
    }

    fn operation(name: &str, uses: u64, begin: i64, length: u64) -> Event {
        Event::complete(name, Stamp(begin), length)
            .category(words::OPERATION)
            .with(words::OPERATION, "all_reduce")
            .with(words::USE, uses)
            .with(words::BYTES, 8)
            .with(words::DTYPE, "f32")
    }

    fn layer(name: &str, tensors: &[&str]) -> Layer {
        let tensor = |name: &&str| Tensor { name: (*name).into(), elements: 2, dtype: Dtype::F32 };
        Layer {
            name: name.into(),
            tensors: tensors.iter().map(tensor).collect(),
            activation_bytes: 0,
        }
    }

    #[test]
    fn a_layer_waits_for_the_last_use_of_its_own_tensors_and_others_for_what_ended_meanwhile() {
        let header = header(&[layer("fc", &["fc.weight"])]);
        let wait = |name: &str, begin, length| {
            Event::complete(name, Stamp(begin), length).category(words::WAIT)
        };
        let events = vec![
            operation("fc.weight", 0, 0, 10),
            operation("fc.weight/1", 1, 20, 30),
            operation("fc.weight/2", 1, 21, 30),
            operation("group 0, collective 3", 2, 22, 60),
            wait("fc", 40, 12),
            wait("wait", 45, 40),
        ];
        assert!(is_ours(&header));
        let (worker, problems) = assemble(&header, events, "file");
        let names = |of: &str| {
            let wait = worker.spans.iter().find(|span| &*span.name == of).unwrap();
            let mut names: Vec<&str> =
                wait.after.iter().map(|id| &*worker.spans[id.0 as usize].name).collect();
            names.sort_unstable();
            names.join(" ")
        };
        assert_eq!(names("fc"), "fc.weight/1 fc.weight/2");
        assert_eq!(names("wait"), "fc.weight/1 fc.weight/2 group 0, collective 3");
        let numbered = worker.spans.iter().find_map(|span| match &span.kind {
            Kind::Collective(found) if found.tensor.is_none() => Some(found.clone()),
            _ => None,
        });
        let numbered = numbered.unwrap();
        assert_eq!((&*numbered.group, numbered.sequence), ("group 0", Some(2 * 1024 + 3)));
        assert_eq!(worker.spans[0].begin, Stamp(1000), "times are counted from the file's base");
        assert_eq!((worker.rank, worker.world, worker.crosses_step), (Rank(1), Some(4), true));
        let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("an event was lost") && texts[0].ends_with("(2 times)"));
        assert!(texts[1].contains("no step"));
    }

    #[test]
    fn a_file_of_ours_is_recognised_whatever_its_white_space() {
        let field = json!(header(&[]).fields);
        assert!(recognises(&field.to_string()));
        assert!(recognises(&serde_json::to_string_pretty(&field).unwrap()));
        assert!(recognises("{\"backend\": \"paceline\",\n\"paceline\"\t:\r\n {\"format\": 1}"));
        assert!(!recognises(
            "{\"distributedInfo\": {\"backend\": \"paceline\"}, \"traceEvents\": []}"
        ));
    }

    #[test]
    fn spans_that_are_there_twice_are_reported_and_the_first_is_kept() {
        let message = |chunk: u32| {
            Event::complete("a", Stamp(3), 2)
                .category(words::MESSAGE)
                .with(words::DIRECTION, "sent")
                .with(words::PEER, 0)
                .with(words::USE, 0)
                .with(words::CHUNK, chunk)
                .with(words::PART, 0)
                .with(words::BYTES, 4)
        };
        let work = Event::complete("fc", Stamp(1), 5);
        let whole = vec![
            work.clone().category(words::FORWARD),
            work.category(words::BACKWARD),
            operation("a", 0, 2, 4),
            operation("a", 1, 2, 4),
            message(0),
            message(1),
        ];
        let (once, problems) = assemble(&header(&[]), whole.clone(), "file");
        assert!(problems.iter().all(|problem| !problem.text.contains("twice")), "{problems:?}");
        // An operation is the same one also where its second record has another time.
        let again = whole.iter().cloned().chain([operation("a", 1, 9, 4)]);
        let (twice, problems) =
            assemble(&header(&[]), [whole.clone(), again.collect()].concat(), "file");
        assert_eq!(once, twice);
        let found = problems.iter().find(|problem| problem.text.contains("a span is there twice"));
        assert_eq!(found.map(|problem| problem.times), Some(7), "{problems:?}");
    }

    #[test]
    fn what_lacks_its_arguments_is_reported_and_what_is_for_viewers_is_passed_over() {
        let mut cut = operation("a", 0, 0, 1);
        cut.args.remove(words::USE);
        let message = Event::complete("a", Stamp(0), 1).category(words::MESSAGE);
        let kernel = Event::complete("sgemm", Stamp(0), 1).category("kernel");
        let (worker, problems) = assemble(&header(&[]), vec![cut, message, kernel], "file");
        assert!(worker.spans.is_empty());
        let left_out = problems.iter().filter(|problem| problem.text.contains("lacks")).count();
        assert_eq!(left_out, 2);
    }
}
