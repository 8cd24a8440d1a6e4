//! From events to raw spans with notes: which category, which lane, which ids. What they mean to each other is found out
//! later.

use super::{
    super::assemble::{Lanes, Names},
    nesting::Nesting,
};
use crate::trace::{
    Kind, LaneId, LaneKind, Span, Stamp,
    chrome::{Event, Fields, Id},
    problems::Problems,
};
use std::{cmp::Reverse, collections::HashMap, sync::Arc};

/// Fields that say what a collective is.
const COLLECTIVE_FIELDS: [&str; 11] = [
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "Group size",
    "Process Group Name",
    "Process Group Ranks",
    "Seq",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
];

/// What recorded an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An operator of PyTorch.
    Operator,
    /// Something that the program or PyTorch marked.
    Annotation,
    /// A Python frame.
    Python,
    /// A call of the runtime or driver of a device.
    Call,
    /// A kernel.
    Kernel,
    /// A copy to, from or on a device.
    Copy,
    /// Memory of a device is filled.
    Fill,
}

impl Class {
    /// Kineto's categories, the ones of its first versions, and those of other vendors' devices.
    fn of(category: &str) -> Option<Class> {
        Some(match category {
            "cpu_op" | "Operator" => Class::Operator,
            "user_annotation" => Class::Annotation,
            "python_function" => Class::Python,
            "cuda_runtime"
            | "cuda_driver"
            | "Runtime"
            | "xpu_runtime"
            | "hip_runtime"
            | "privateuse1_runtime" => Class::Call,
            "kernel" | "Kernel" => Class::Kernel,
            "gpu_memcpy" | "Memcpy" => Class::Copy,
            "gpu_memset" | "Memset" => Class::Fill,
            _ => return None,
        })
    }

    /// Whether a device did it.
    pub fn on_device(self) -> bool {
        matches!(self, Class::Kernel | Class::Copy | Class::Fill)
    }
}

/// When and where something happened.
#[derive(Clone, Debug)]
pub struct Raw {
    pub name: Arc<str>,
    pub lane: LaneId,
    pub begin: Stamp,
    pub length: u64,
}

impl Raw {
    pub fn end(&self) -> Stamp {
        self.begin.after(self.length)
    }
}

/// What else is known about it.
#[derive(Clone, Debug)]
pub struct Note {
    pub class: Class,
    pub correlation: Option<i64>,
    /// The operator on whose behalf something was launched.
    pub external: Option<i64>,
    /// Whether autograd numbered it in the forward pass.
    pub forward: bool,
    pub collective: Option<Box<Fields>>,
}

/// What a device says about a wait, by the correlation of the call that asked for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sync {
    pub device: i64,
    pub stream: Option<i64>,
    pub wait_on_stream: Option<i64>,
    /// The correlation of the call that recorded the event.
    pub record: Option<i64>,
    pub begin: Stamp,
}

/// Where something happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Thread(Id, Id),
    Stream(i64, i64),
}

/// Everything of a file. `raw` and `notes` have the same length.
#[derive(Debug, Default)]
pub struct Gathered {
    pub lanes: Lanes<Place>,
    pub raw: Vec<Raw>,
    pub notes: Vec<Note>,
    pub syncs: HashMap<i64, Sync>,
    /// Where arrows from forward to backward begin.
    pub forward_points: Vec<(LaneId, Stamp)>,
    /// When something happened whose length is not known.
    pub lost: Vec<Stamp>,
    names: Names,
    thread_names: HashMap<(Id, Id), String>,
}

impl Gathered {
    /// Keep what an event says, if it says something that a trace has room for.
    pub fn take(&mut self, event: Event, problems: &mut Problems) {
        match (event.ph, event.cat.as_str()) {
            ('X', "cuda_sync") => self.take_sync(&event),
            ('X', category) => {
                if let Some(class) = Class::of(category) {
                    self.take_span(event, class, problems);
                }
            }
            ('s', "fwdbwd") => {
                let lane = self.thread(event.pid, event.tid);
                self.forward_points.push((lane, event.ts));
            }
            ('M', _) if event.name == "thread_name" => {
                if let Some(name) = event.text("name").map(str::to_owned) {
                    self.thread_names.insert((event.pid, event.tid), name);
                }
            }
            _ => {}
        }
    }

    fn take_span(&mut self, event: Event, class: Class, problems: &mut Problems) {
        if event.args.get("finished") == Some(&serde_json::Value::Bool(false)) {
            problems.add("an event did not end while the profiler ran; it is left out");
            self.lost.push(event.ts);
            return;
        }
        if event.dur.is_none() {
            problems.add("an event has no duration; it is taken to have none");
            self.lost.push(event.ts);
        }
        let lane = if class.on_device() {
            let number = |key, id: &Id| match (event.integer(key), id) {
                (Some(number), _) => Some(number),
                (None, Id::Number(number)) => Some(*number),
                (None, Id::Text(text)) => text.trim_start_matches("stream ").parse().ok(),
            };
            let (Some(device), Some(stream)) =
                (number("device", &event.pid), number("stream", &event.tid))
            else {
                problems.add("something a device did names no stream; it is left out");
                return;
            };
            let place = Place::Stream(device, stream);
            self.lanes.of(place, LaneKind::Stream, |_| format!("device {device} stream {stream}"))
        } else {
            self.thread(event.pid.clone(), event.tid.clone())
        };
        // Zero and minus one stand for none.
        let id = |key| event.integer(key).filter(|id| *id > 0);
        let note = Note {
            class,
            correlation: id("correlation"),
            external: id("External id"),
            forward: event.integer("Sequence number").is_some_and(|number| number >= 0)
                && event.integer("Fwd thread id").unwrap_or(0) == 0,
            collective: collective_fields(&event, class),
        };
        self.raw.push(Raw {
            name: self.names.keep(&event.name),
            lane,
            begin: event.ts,
            length: event.dur.unwrap_or(0),
        });
        self.notes.push(note);
    }

    fn take_sync(&mut self, event: &Event) {
        let Some(correlation) = event.integer("correlation") else { return };
        // The runtime writes minus one as an unsigned number.
        let stream = |key| event.integer(key).filter(|id| (0..i64::from(u32::MAX)).contains(id));
        let sync = Sync {
            device: event.integer("device").unwrap_or(0),
            stream: stream("stream"),
            wait_on_stream: stream("wait_on_stream"),
            record: event.integer("wait_on_cuda_event_record_corr_id").filter(|id| *id > 0),
            begin: event.ts,
        };
        self.syncs.insert(correlation, sync);
    }

    fn thread(&mut self, pid: Id, tid: Id) -> LaneId {
        self.lanes.of(Place::Thread(pid, tid), LaneKind::Thread, |_| String::new())
    }

    /// Sort by begin, the longer first; drop what is there twice; count times from 1970.
    pub fn order(&mut self, base: i64, problems: &mut Problems) {
        let mut order: Vec<usize> = (0..self.raw.len()).collect();
        // Calls lie in operators that begin in the same rounded microsecond.
        order.sort_by_key(|at| {
            let raw = &self.raw[*at];
            (raw.begin, Reverse(raw.length), self.notes[*at].class == Class::Call)
        });
        let before = order.len();
        order.dedup_by(|a, b| {
            let key = |at: usize| {
                let (raw, note) = (&self.raw[at], &self.notes[at]);
                let ids = (note.correlation, note.external, note.class.on_device());
                (raw.lane, raw.begin, raw.length, raw.name.clone(), ids)
            };
            // Operators without an id may follow each other within one rounded microsecond.
            self.notes[*a].external.is_some() && key(*a) == key(*b)
        });
        let dropped = before - order.len();
        problems.add_times("an event is there twice; one is kept", dropped as u64);
        self.raw = order.iter().map(|at| self.raw[*at].clone()).collect();
        self.notes = order.iter().map(|at| self.notes[*at].clone()).collect();
        for raw in &mut self.raw {
            raw.begin = Stamp(raw.begin.0.saturating_add(base));
        }
        for (_, point) in &mut self.forward_points {
            point.0 = point.0.saturating_add(base);
        }
        for lost in &mut self.lost {
            *lost = Stamp(lost.0.saturating_add(base));
        }
        for sync in self.syncs.values_mut() {
            sync.begin = Stamp(sync.begin.0.saturating_add(base));
        }
        self.name_threads();
    }

    fn name_threads(&mut self) {
        for (place, lane) in self.lanes.iter_mut() {
            if let Place::Thread(pid, tid) = place {
                let name = self.thread_names.get(&(pid.clone(), tid.clone()));
                lane.name = name.cloned().unwrap_or_else(|| format!("thread {tid}"));
            }
        }
    }

    /// As spans, not yet tied to each other.
    pub fn spans(&self, nesting: &Nesting) -> Vec<Span> {
        let span = |(at, raw): (usize, &Raw)| Span {
            name: raw.name.clone(),
            lane: raw.lane,
            begin: raw.begin,
            length: raw.length,
            kind: match self.notes[at].class {
                Class::Annotation | Class::Python if nesting.encloses[at] => Kind::Scope,
                Class::Annotation if raw.name.starts_with("ProfilerStep#") => Kind::Scope,
                _ => Kind::Work(nesting.phases[at]),
            },
            after: Vec::new(),
        };
        self.raw.iter().enumerate().map(span).collect()
    }
}

fn collective_fields(event: &Event, class: Class) -> Option<Box<Fields>> {
    let talks = match class {
        Class::Kernel => event.name.contains("nccl"),
        Class::Operator => event.name == "record_param_comms" || event.name.starts_with("c10d::"),
        Class::Annotation => event.name.starts_with("nccl:") || event.name.starts_with("gloo:"),
        _ => false,
    };
    talks.then(|| {
        let known = COLLECTIVE_FIELDS.iter();
        Box::new(
            known
                .filter_map(|key| Some(((*key).to_owned(), event.args.get(*key)?.clone())))
                .collect(),
        )
    })
}
