//! Where the ends of a chain's nodes lie in a recording: when the backward pass of a layer was over, and when who waited for an
//! operation went on. What happens between them is not looked at.

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

/// Let operations last until the thread that waited for them went on. A wait is for the last of those that were over by its end.
pub(super) fn until_waits_end<'t>(spans: impl Iterator<Item = &'t Span>, over: &mut [Stamp]) {
    for wait in spans.filter(|span| span.kind == Kind::Wait) {
        let last = over.iter_mut().filter(|over| **over <= wait.end()).max();
        if let Some(over) = last {
            *over = wait.end();
        }
    }
}

/// The same where layers wait for their own tensors: `layers` has the one that each operation is needed for first.
pub(super) fn until_layers_go_on<'t>(
    spans: impl Iterator<Item = &'t Span>,
    layers: &[&str],
    over: &mut [Stamp],
) {
    for wait in spans.filter(|span| span.kind == Kind::Wait) {
        let own = over.iter_mut().zip(layers).filter(|(_, layer)| **layer == &*wait.name);
        let ended = own.map(|(over, _)| over).filter(|over| **over <= wait.end());
        if let Some(over) = ended.max() {
            *over = wait.end();
        }
    }
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
    fn a_wait_ends_the_last_operation_that_was_over() {
        let waits = [span("a", 10, 30, Kind::Wait), span("b", 40, 50, Kind::Wait)];
        let mut over = [Stamp(20), Stamp(25), Stamp(45), Stamp(60)];
        until_waits_end(waits.iter(), &mut over);
        assert_eq!(over.map(|stamp| stamp.0), [20, 30, 50, 60]);
    }

    #[test]
    fn a_layer_goes_on_with_the_last_of_its_own_operations() {
        let waits = [span("a", 10, 30, Kind::Wait), span("c", 40, 50, Kind::Wait)];
        let mut over = [Stamp(20), Stamp(15), Stamp(25), Stamp(45)];
        until_layers_go_on(waits.iter(), &["a", "a", "b", "c"], &mut over);
        assert_eq!(over.map(|stamp| stamp.0), [30, 15, 25, 50]);
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
