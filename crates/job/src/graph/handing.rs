//! What handing an operation over takes the thread that computes. Sending tensors together spares it, so planners want to know.

use crate::trace::{Kind, LaneId, Phase, Span, Trace};
use std::{collections::HashSet, time::Duration};

/// In the middle of all posts. Known where lanes show posts and backward passes: then the times of layers contain it, which
/// those of a device do not.
pub(super) fn post(trace: &Trace) -> Option<Duration> {
    let mut lengths = Vec::new();
    for worker in &trace.workers {
        let of = |wanted: Kind| worker.spans.iter().filter(move |span: &&Span| span.kind == wanted);
        let lanes: HashSet<LaneId> =
            of(Kind::Work(Phase::Backward)).map(|span| span.lane).collect();
        let posts = of(Kind::Post).filter(|span| lanes.contains(&span.lane));
        lengths.extend(posts.map(|span| span.length));
    }
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).map(|length| Duration::from_nanos(*length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Stamp, WorkerTrace};

    fn span(lane: u32, length: u64, kind: Kind) -> Span {
        let (name, begin) = ("".into(), Stamp(0));
        Span { name, lane: LaneId(lane), begin, length, kind, after: Vec::new() }
    }

    fn of(spans: Vec<Span>) -> Option<Duration> {
        let workers = vec![WorkerTrace { spans, ..WorkerTrace::default() }];
        post(&Trace { workers, ..Trace::default() })
    }

    #[test]
    fn posts_count_where_the_same_lane_computes() {
        let backward = |lane| span(lane, 100, Kind::Work(Phase::Backward));
        let posted = |lane, length| span(lane, length, Kind::Post);
        let on_host = vec![backward(0), posted(0, 5), posted(0, 90), posted(0, 7)];
        assert_eq!(of(on_host), Some(Duration::from_nanos(7)));
        assert_eq!(of(vec![backward(1), posted(0, 5)]), None, "a device computes");
        assert_eq!(of(vec![backward(0)]), None, "an older recording");
    }
}
