//! Which elements of a tensor a worker holds final, and whose contributions are in them: ranges, each with the view it
//! was reduced in. Plain bookkeeping.

use paceline_job::ViewVersion;
use std::ops::Range;

/// A range that is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first element.
    pub start: u64,
    /// One past its last.
    pub end: u64,
    /// All workers of this view contributed to it, and nobody else.
    pub view: ViewVersion,
}

/// See the file's first paragraph. In order, without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held(Vec<Span>);

impl Held {
    /// Everything.
    pub fn whole(len: u64, view: ViewVersion) -> Held {
        let mut held = Held::default();
        held.add(0..len, view);
        held
    }

    /// Take spans that somebody sent; nothing if they are not in order, overlap, or go beyond `len`.
    pub fn checked(spans: Vec<Span>, len: u64) -> Option<Held> {
        let rising = spans.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let sound = spans.iter().all(|span| span.start < span.end && span.end <= len);
        (rising && sound).then_some(Held(spans))
    }

    /// The spans, in order.
    pub fn spans(&self) -> &[Span] {
        &self.0
    }

    /// A range became final. What was held before stays as it was: a final value is never written again.
    pub fn add(&mut self, range: Range<u64>, view: ViewVersion) {
        let mut added: Vec<Span> = Vec::new();
        let mut at = range.start;
        for span in self.0.iter().filter(|span| span.end > range.start && span.start < range.end) {
            if at < span.start {
                added.push(Span { start: at, end: span.start, view });
            }
            at = at.max(span.end);
        }
        if at < range.end {
            added.push(Span { start: at, end: range.end, view });
        }
        self.0.extend(added);
        self.0.sort_unstable_by_key(|span| span.start);
        self.0.dedup_by(|next, span| {
            let joins = span.end == next.start && span.view == next.view;
            if joins {
                span.end = next.end;
            }
            joins
        });
    }

    /// Whether all of `len` elements are final.
    pub fn covers(&self, len: u64) -> bool {
        self.0.iter().map(|span| span.end - span.start).sum::<u64>() == len
    }

    /// The view in which an element was reduced, if it is final.
    pub fn at(&self, element: u64) -> Option<ViewVersion> {
        let after = self.0.partition_point(|span| span.end <= element);
        self.0.get(after).filter(|span| span.start <= element).map(|span| span.view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_final_stays_as_it_was_and_neighbours_of_one_view_join() {
        let mut held = Held::default();
        held.add(4..6, ViewVersion(1));
        held.add(0..8, ViewVersion(2));
        held.add(8..9, ViewVersion(2));
        let view = |element| held.at(element).map(|view| view.0);
        assert_eq!(
            [0, 3, 4, 5, 6, 8, 9].map(view),
            [2, 2, 1, 1, 2, 2, 0].map(|v| (v > 0).then_some(v))
        );
        assert_eq!(held.spans().len(), 3);
        assert!(held.covers(9) && !held.covers(10));
    }

    #[test]
    fn spans_that_cannot_be_are_refused() {
        let span = |start, end| Span { start, end, view: ViewVersion(1) };
        for bad in [vec![span(1, 1)], vec![span(0, 9)], vec![span(2, 4), span(3, 5)]] {
            assert_eq!(Held::checked(bad, 8), None);
        }
        assert!(Held::checked(vec![span(0, 4), span(4, 8)], 8).is_some());
    }
}
