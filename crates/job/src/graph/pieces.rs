//! The spans of a worker cut into pieces that follow each other on each lane: what a span does itself, between the spans
//! inside it.

use crate::trace::{Kind, LaneKind, SpanId, Stamp, WorkerTrace};
use std::collections::HashSet;

/// A part of a span during which nothing inside it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub span: SpanId,
    pub begin: Stamp,
    pub end: Stamp,
    /// Whether the span begins with it. A span may begin with a piece of no length.
    pub first: bool,
}

/// For each lane its pieces in order, of spans that begin from `from` on and before `to`. Behind them, what overlaps on its way between
/// workers: for each operation that something waits for, its own pieces.
pub(super) fn of(worker: &WorkerTrace, from: Stamp, to: Stamp) -> Vec<Vec<Piece>> {
    let awaited: HashSet<SpanId> = worker.spans.iter().flat_map(|it| &it.after).copied().collect();
    let mut apart = Vec::new();
    let mut lanes: Vec<Lane> = worker.lanes.iter().map(|_| Lane::default()).collect();
    for (index, span) in worker.spans.iter().enumerate() {
        let inside = span.begin >= from && span.begin < to;
        let Some(lane) = lanes.get_mut(span.lane.0 as usize).filter(|_| inside) else { continue };
        let timed = worker.lanes[span.lane.0 as usize].kind != LaneKind::Network;
        let id = SpanId(index as u32);
        if timed && !matches!(span.kind, Kind::Scope | Kind::Post | Kind::Message(_)) {
            lane.add(id, span.begin, span.end(), &span.kind);
        } else if !timed && matches!(span.kind, Kind::Collective(_)) && awaited.contains(&id) {
            let mut own = Lane::default();
            own.add(id, span.begin, span.end(), &span.kind);
            apart.push(own);
        }
    }
    lanes.into_iter().chain(apart).map(Lane::finish).collect()
}

/// A lane as its spans come in, by begin.
#[derive(Default)]
struct Lane {
    pieces: Vec<Piece>,
    /// Up to where pieces reach.
    cursor: Option<Stamp>,
    /// Spans that are not over, outermost first, with their ends.
    open: Vec<(SpanId, Stamp)>,
    /// Until here the innermost span has no parts: it waits, or is an operation.
    solid: Option<Stamp>,
}

impl Lane {
    fn add(&mut self, span: SpanId, begin: Stamp, end: Stamp, kind: &Kind) {
        if self.solid.is_some_and(|solid| end <= solid) {
            return;
        }
        self.close(begin);
        let begin = self.cursor.map_or(begin, |cursor| cursor.max(begin));
        let end = end.max(begin);
        if let Some(&(outer, _)) = self.open.last() {
            self.push(outer, begin, false);
        }
        self.cursor = Some(begin);
        match kind {
            Kind::Wait => {
                self.pieces.push(Piece { span, begin, end, first: true });
                self.cursor = Some(end);
                self.solid = Some(end);
            }
            Kind::Collective(_) => {
                self.pieces.push(Piece { span, begin, end: begin, first: true });
                self.pieces.push(Piece { span, begin, end, first: false });
                self.cursor = Some(end);
                self.solid = Some(end);
            }
            _ => {
                self.pieces.push(Piece { span, begin, end: begin, first: true });
                self.open.push((span, end));
            }
        }
    }

    /// End what ends before `until`, innermost first.
    fn close(&mut self, until: Stamp) {
        while let Some(&(span, end)) = self.open.last() {
            if end > until {
                break;
            }
            self.push(span, end, false);
            self.open.pop();
        }
    }

    /// The open span does something up to `end`.
    fn push(&mut self, span: SpanId, end: Stamp, first: bool) {
        let begin = self.cursor.unwrap_or(end);
        if begin < end {
            self.pieces.push(Piece { span, begin, end, first });
            self.cursor = Some(end);
        }
    }

    fn finish(mut self) -> Vec<Piece> {
        self.close(Stamp(i64::MAX));
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{self, LaneId, Phase, Span};

    fn span(begin: i64, end: i64, kind: Kind) -> Span {
        Span {
            name: "s".into(),
            lane: LaneId(0),
            begin: Stamp(begin),
            length: (end - begin) as u64,
            kind,
            after: Vec::new(),
        }
    }

    #[test]
    fn what_is_inside_is_cut_out_of_what_encloses_it() {
        let work = || Kind::Work(Phase::Forward);
        let spans = vec![
            span(0, 100, work()),
            span(10, 40, work()),
            span(20, 25, Kind::Launch),
            span(50, 60, Kind::Wait),
            span(52, 55, work()),
        ];
        let lanes = vec![trace::Lane { name: "t".into(), kind: LaneKind::Thread }];
        let worker = WorkerTrace { lanes, spans, ..WorkerTrace::default() };
        let pieces = of(&worker, Stamp(0), Stamp(200));
        let lengths: Vec<(u32, i64, i64)> = pieces[0]
            .iter()
            .filter(|piece| piece.begin < piece.end)
            .map(|piece| (piece.span.0, piece.begin.0, piece.end.0))
            .collect();
        let expected = [
            (0, 0, 10),
            (1, 10, 20),
            (2, 20, 25),
            (1, 25, 40),
            (0, 40, 50),
            (3, 50, 60),
            (0, 60, 100),
        ];
        assert_eq!(lengths, expected);
        let firsts = pieces[0].iter().filter(|piece| piece.first).count();
        assert_eq!(firsts, 4);
    }
}
