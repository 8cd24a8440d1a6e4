//! What makes two spans of a worker the same one, recorded twice. It knows no file, and no other worker.

use super::{Kind, LaneId, Phase, Span, Stamp, WorkerTrace, problems::Problems};
use std::{
    collections::HashSet,
    mem::{Discriminant, discriminant},
    sync::Arc,
};

/// Who a span is. Of two with the same identity, one is too many.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    /// A worker takes part in an operation once, whenever that was.
    Operation { name: Arc<str>, group: Arc<str>, sequence: u64 },
    /// Anything else happens once at a time.
    Other {
        name: Arc<str>,
        lane: LaneId,
        begin: Stamp,
        length: u64,
        kind: Discriminant<Kind>,
        phase: Option<Phase>,
        /// Use, chunk and part of a message.
        message: Option<(u64, u32, u32)>,
    },
}

impl Identity {
    fn of(span: &Span) -> Identity {
        let name = span.name.clone();
        if let Kind::Collective(collective) = &span.kind
            && let Some(sequence) = collective.sequence
        {
            return Identity::Operation { name, group: collective.group.clone(), sequence };
        }
        let (phase, message) = match &span.kind {
            Kind::Work(phase) => (Some(*phase), None),
            Kind::Message(it) => (None, Some((it.use_number, it.chunk, it.part))),
            _ => (None, None),
        };
        let Span { lane, begin, length, .. } = *span;
        Identity::Other {
            name,
            lane,
            begin,
            length,
            kind: discriminant(&span.kind),
            phase,
            message,
        }
    }
}

/// Keep the first of spans that are the same. To be called before anything names a span by its place.
pub(super) fn keep_each_span_once(worker: &mut WorkerTrace, problems: &mut Problems) {
    let mut seen = HashSet::with_capacity(worker.spans.len());
    let before = worker.spans.len();
    worker.spans.retain(|span| seen.insert(Identity::of(span)));
    let dropped = before - worker.spans.len();
    problems.add_times("a span is there twice; the first one is kept", dropped as u64);
}
