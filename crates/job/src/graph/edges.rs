//! Where the ends of a chain's nodes lie in a recording: when the backward pass of a layer was over, and which operation a wait
//! was for. What happens between them is not looked at.

use crate::trace::{Kind, Phase, Span, Stamp};
use std::collections::HashMap;

/// When the backward pass of each layer was over, among the spans of a step.
pub(super) fn backward_ends<'t>(spans: impl Iterator<Item = &'t Span>) -> HashMap<&'t str, Stamp> {
    let mut ends = HashMap::new();
    for span in spans.filter(|span| span.kind == Kind::Work(Phase::Backward)) {
        let end: &mut Stamp = ends.entry(&*span.name).or_insert(span.end());
        *end = span.end().max(*end);
    }
    ends
}

/// For each wait, when the operation was over that it was for: of `over`, the last that was by its end.
pub(super) fn waited_until<'t>(
    waits: impl Iterator<Item = &'t Span>,
    over: &[Stamp],
) -> Vec<(&'t Span, usize)> {
    let last = |wait: &Span| {
        let ended = over.iter().enumerate().filter(|(_, over)| **over <= wait.end());
        ended.max_by_key(|(_, over)| **over).map(|(place, _)| place)
    };
    waits.filter_map(|wait| Some((wait, last(wait)?))).collect()
}

/// Waits for something, and those after which nothing more was over than after the one before: whoever waits again before updates,
/// as programs do that clip gradients, finds everything there. Such a wait is time that passes, like any other.
pub(super) fn apart_from_idle(waits: Vec<(&Span, usize)>) -> (Vec<(&Span, usize)>, Vec<&Span>) {
    let (mut busy, mut idle): (Vec<(&Span, usize)>, _) = (Vec::new(), Vec::new());
    for (wait, operation) in waits {
        match busy.last() {
            Some((_, before)) if *before == operation => idle.push(wait),
            _ => busy.push((wait, operation)),
        }
    }
    (busy, idle)
}

/// For each wait, the operation that it was for, where layers wait for their own tensors: `layers` has the one that each operation is needed for first.
pub(super) fn layers_waited_until<'t>(
    waits: impl Iterator<Item = &'t Span>,
    layers: &[&str],
    over: &[Stamp],
) -> Vec<(&'t Span, usize)> {
    let last = |wait: &Span| {
        let own = over.iter().zip(layers).enumerate();
        let ended = own.filter(|(_, (over, layer))| **layer == &*wait.name && **over <= wait.end());
        ended.max_by_key(|(_, (over, _))| **over).map(|(place, _)| place)
    };
    waits.filter_map(|wait| Some((wait, last(wait)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::LaneId;

    fn span(name: &str, begin: i64, end: i64, kind: Kind) -> Span {
        Span {
            name: name.into(),
            lane: LaneId(0),
            begin: Stamp(begin),
            length: (end - begin) as u64,
            kind,
            after: Vec::new(),
        }
    }

    #[test]
    fn a_wait_is_for_the_last_operation_that_was_over() {
        let waits = [span("a", 10, 30, Kind::Wait), span("b", 40, 50, Kind::Wait)];
        let over = [Stamp(20), Stamp(25), Stamp(45), Stamp(60)];
        let found = waited_until(waits.iter(), &over);
        assert_eq!(found, [(&waits[0], 1), (&waits[1], 2)]);
    }

    #[test]
    fn a_wait_after_which_nothing_more_is_over_is_idle() {
        let waits = [(10, 30), (40, 41), (44, 50), (52, 53)];
        let waits = waits.map(|(begin, end)| span("a", begin, end, Kind::Wait));
        let found = waited_until(waits.iter(), &[Stamp(20), Stamp(25), Stamp(45)]);
        let (busy, idle) = apart_from_idle(found);
        assert_eq!(busy, [(&waits[0], 1), (&waits[2], 2)]);
        assert_eq!(idle, [&waits[1], &waits[3]]);
    }

    #[test]
    fn a_layer_waits_for_the_last_of_its_own_operations() {
        let waits = [span("a", 10, 30, Kind::Wait), span("c", 40, 50, Kind::Wait)];
        let over = [Stamp(20), Stamp(15), Stamp(25), Stamp(45)];
        let found = layers_waited_until(waits.iter(), &["a", "a", "b", "c"], &over);
        assert_eq!(found, [(&waits[0], 0), (&waits[1], 3)]);
    }

    #[test]
    fn a_backward_pass_in_parts_is_over_with_the_last_of_them() {
        let work = |phase| Kind::Work(phase);
        let spans = [
            span("a", 0, 99, work(Phase::Forward)),
            span("a", 100, 110, work(Phase::Backward)),
            span("a", 115, 120, work(Phase::Backward)),
            span("b", 120, 130, work(Phase::Backward)),
        ];
        let ends = HashMap::from([("a", Stamp(120)), ("b", Stamp(130))]);
        assert_eq!(backward_ends(spans.iter()), ends);
    }
}
