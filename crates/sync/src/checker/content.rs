//! Memory as intervals: what a range holds is a short list of pieces, however many elements it has.
//!
//! It knows nothing of lanes or messages.

use super::expression::{ExprId, Expressions};
use crate::program::{Member, Span};

/// What consecutive elements hold: element `i` of the piece is the sum `expr` of the members' input
/// elements `start + i`, divided by `divisor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) expr: ExprId,
    pub(super) start: u64,
    pub(super) divisor: u32,
}

impl Value {
    fn skip(self, elements: u64) -> Value {
        Value { start: self.start + elements, ..self }
    }
}

/// A run of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) len: u64,
    pub(super) value: Value,
}

/// Consecutive pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content(pub(super) Vec<Piece>);

/// Why two contents cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discord {
    /// Two different elements would be added.
    Elements(u64, u64),
    /// This member would be counted twice.
    Twice(Member),
    /// One of them is final already.
    Final,
}

impl Content {
    /// A member's own contribution.
    pub(super) fn own(member: Member, span: Span) -> Content {
        let expr = Expressions::contribution(member);
        Content(vec![Piece {
            len: span.len,
            value: Value { expr, start: span.offset, divisor: 1 },
        }])
    }

    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.len).sum()
    }

    /// The part `offset..offset+len`; `None` if there is less.
    pub(super) fn slice(&self, offset: u64, len: u64) -> Option<Content> {
        let (mut skip, mut left) = (offset, len);
        let mut pieces = Vec::new();
        for piece in &self.0 {
            if left == 0 {
                break;
            }
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            let taken = (piece.len - skip).min(left);
            pieces.push(Piece { len: taken, value: piece.value.skip(skip) });
            (skip, left) = (0, left - taken);
        }
        (left == 0).then_some(Content(pieces))
    }

    /// The sum, element by element, of two contents of equal length.
    pub(super) fn add(&self, other: &Content, all: &mut Expressions) -> Result<Content, Discord> {
        let mut pieces = Vec::with_capacity(self.0.len().max(other.0.len()));
        let (mut ours, mut theirs) = (self.0.iter().copied(), other.0.iter().copied());
        let (mut a, mut b) = (ours.next(), theirs.next());
        while let (Some(left), Some(right)) = (a, b) {
            let len = left.len.min(right.len);
            if left.value.start != right.value.start {
                return Err(Discord::Elements(left.value.start, right.value.start));
            }
            if left.value.divisor != 1 || right.value.divisor != 1 {
                return Err(Discord::Final);
            }
            let expr = all.sum(left.value.expr, right.value.expr).map_err(Discord::Twice)?;
            pieces.push(Piece { len, value: Value { expr, ..left.value } });
            let rest = |piece: Piece| Piece { len: piece.len - len, value: piece.value.skip(len) };
            a = if left.len > len { Some(rest(left)) } else { ours.next() };
            b = if right.len > len { Some(rest(right)) } else { theirs.next() };
        }
        Ok(Content(pieces))
    }

    /// Divided by `divisor`, once; `None` if it was divided before.
    pub(super) fn divided(mut self, divisor: u32) -> Option<Content> {
        if divisor == 1 {
            return Some(self);
        }
        for piece in &mut self.0 {
            if piece.value.divisor != 1 {
                return None;
            }
            piece.value.divisor = divisor;
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_split_where_they_meet() {
        let mut all = Expressions::new(3);
        let span = |offset, len| Span { offset, len };
        let mut left = Content::own(0, span(10, 4));
        left.0.extend(Content::own(1, span(14, 4)).0);
        let right = Content::own(2, span(10, 8));
        let sum = left.add(&right, &mut all).unwrap();
        let found: Vec<_> = sum
            .0
            .iter()
            .map(|piece| (piece.len, piece.value.start, all.show(piece.value.expr)))
            .collect();
        assert_eq!(found, [(4, 10, "(0+2)".to_string()), (4, 14, "(1+2)".to_string())]);
        assert_eq!(sum.slice(3, 2).unwrap().0.len(), 2);
        assert_eq!(sum.slice(3, 6), None);
        assert_eq!(left.add(&Content::own(2, span(9, 8)), &mut all), Err(Discord::Elements(10, 9)));
    }

    #[test]
    fn a_value_is_divided_once() {
        let once = Content::own(0, Span { offset: 0, len: 4 }).divided(3).unwrap();
        assert_eq!(once.clone().divided(1), Some(once.clone()));
        assert_eq!(once.divided(3), None);
    }
}
