//! What the network carries, as far as messages of a trace show it.

use super::clocks::Clocks;
use crate::{
    Link, Rank, Rate,
    trace::{Direction, Kind, Stamp, Trace, WorkerTrace},
};
use std::time::Duration;

/// Windows in which bytes are counted: long enough that a token bucket's burst does not count for much.
const WINDOW: u64 = 100_000_000;
const LEAST_MESSAGES: usize = 8;

/// The share of windows that carry less than what is taken as the wire's rate: the others may hold a burst.
const PERCENTILE: f64 = 0.9;

/// Between hosts, at their best: what a host received in a window, and the latency that was measured when workers met, or
/// else the shortest time from sending a message to having received it. `None` if no messages between hosts were recorded.
pub fn wire(trace: &Trace, clocks: &Clocks) -> Option<Link> {
    let rates = trace.workers.iter().filter_map(|worker| receives(trace, worker, clocks));
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    let rate = Rate::from_bytes_per_second(*rates.get(rates.len() / 2)?);
    let measured = trace.workers.iter().find_map(|worker| worker.view.as_ref()?.measured.wire);
    let latency = measured.map_or(Duration::from_micros(50), |wire| wire.latency);
    Some(Link { rate, latency })
}

/// Bytes a second that a worker receives from other hosts in nearly its best window.
fn receives(trace: &Trace, worker: &WorkerTrace, clocks: &Clocks) -> Option<f64> {
    let shares_host = |peer: Rank| match trace.workers.iter().find(|worker| worker.rank == peer) {
        Some(peer) => peer.host == worker.host,
        // Where a peer that is missing from the trace was, workers of ours know.
        None => worker.view.as_ref().is_some_and(|view| {
            let host = |rank: Rank| view.workers.get(rank.0 as usize).map(|one| &one.host);
            host(peer).is_some() && host(peer) == host(worker.rank)
        }),
    };
    let mut arrivals: Vec<(Stamp, u64)> = worker
        .spans
        .iter()
        .filter_map(|span| match &span.kind {
            Kind::Message(message)
                if message.direction == Direction::Received && !shares_host(message.peer) =>
            {
                Some((clocks.common(worker.rank, span.end()), message.bytes))
            }
            _ => None,
        })
        .collect();
    arrivals.sort_unstable();
    let all = arrivals.last()?.0.since(arrivals.first()?.0);
    let window = WINDOW.min(all / 4).max(1);
    let (mut from, mut bytes) = (0, 0_u64);
    let mut rates = Vec::new();
    for place in 1..arrivals.len() {
        // What arrived at the window's very begin was sent before it.
        bytes += arrivals[place].1;
        while arrivals[place].0.since(arrivals[from + 1].0) >= window && from + 1 < place {
            from += 1;
            bytes -= arrivals[from].1;
        }
        let length = arrivals[place].0.since(arrivals[from].0);
        if length >= window && place - from >= LEAST_MESSAGES.min(arrivals.len() / 4) {
            rates.push(bytes as f64 / (length as f64 / 1e9));
        }
    }
    rates.sort_by(f64::total_cmp);
    rates.get((rates.len().saturating_sub(1) as f64 * PERCENTILE) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Settings, View,
        trace::{LaneId, Message, Span},
    };

    fn receive(place: i64) -> Span {
        Span {
            name: "m".into(),
            lane: LaneId(0),
            // Half a second of a megabyte every 10 ms, half a second of nothing, and so on.
            begin: Stamp((place / 50) * 1_000_000_000 + (place % 50) * 10_000_000),
            length: 10_000_000,
            kind: Kind::Message(Box::new(Message {
                direction: Direction::Received,
                peer: Rank(0),
                tensor: "t".into(),
                use_number: 0,
                chunk: 0,
                part: 0,
                bytes: 1_000_000,
            })),
            after: Vec::new(),
        }
    }

    #[test]
    fn what_came_from_a_missing_worker_of_the_same_host_crossed_no_wire() {
        for (host, crossed) in [("a", false), ("b", true)] {
            let mut view = View::local(2, Settings::default());
            view.workers[0].host = host.to_string();
            view.workers[1].host = "a".to_string();
            let worker = WorkerTrace {
                rank: Rank(1),
                host: "a".to_string(),
                view: Some(view),
                spans: (0..200).map(receive).collect(),
                ..WorkerTrace::default()
            };
            let trace = Trace { workers: vec![worker], problems: Vec::new() };
            assert_eq!(wire(&trace, &Clocks::agreeing()).is_some(), crossed);
        }
    }

    #[test]
    fn the_rate_is_that_of_a_busy_window_and_not_of_the_pauses() {
        let worker = |rank, host: &str, spans| WorkerTrace {
            rank: Rank(rank),
            host: host.to_string(),
            spans,
            ..WorkerTrace::default()
        };
        let workers =
            vec![worker(0, "a", Vec::new()), worker(1, "b", (0..200).map(receive).collect())];
        let trace = Trace { workers, problems: Vec::new() };
        let wire = wire(&trace, &Clocks::agreeing()).unwrap();
        let ratio = wire.rate.bytes_per_second() / 1e8;
        assert!((0.97..1.03).contains(&ratio), "{ratio}");
    }
}
