//! What pages hold of workers' steps, as a trace that Perfetto opens: for each worker what its program did, and its operations.

use super::record::{Record, What};
use serde_json::{Value, json};

/// The trace, from lines about workers' steps.
pub fn text<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut events = Vec::new();
    let mut named = Vec::new();
    for line in lines {
        let Ok(Record { what: What::Seen { sighting, .. }, .. }) = serde_json::from_str(line)
        else {
            continue;
        };
        let pid = sighting.rank.0;
        if !named.contains(&pid) {
            named.push(pid);
            events.push(name("process_name", pid, format!("worker {pid}")));
            events.push(name("thread_name", pid, "program".to_string()));
        }
        let at = |time: i64| sighting.at as i64 + time;
        let span = |name: &str, from: i64, to: i64| json!({ "ph": "X", "pid": pid, "tid": 0, "name": name, "ts": at(from), "dur": to - from });
        let mut begin = 0;
        for (number, end) in sighting.ends.iter().enumerate() {
            let step = format!("step {}", sighting.step + number as u64);
            events.push(span(&step, begin, *end as i64));
            begin = *end as i64;
        }
        let waits = sighting.waits.iter().map(|(from, length)| (*from as i64, *length as i64));
        events.extend(waits.map(|(from, length)| span("waiting", from, from + length)));
        for (number, one) in sighting.operations.iter().enumerate() {
            let end = one.ended.unwrap_or(begin);
            let started = one.started.unwrap_or(end);
            let id = format!("{pid}.{}.{number}", sighting.step);
            for (part, from, to) in
                [("queueing", one.posted, started), ("communicating", started, end)]
            {
                if to > from {
                    let name = format!("{} {part}", one.name);
                    let one = |phase: &str, time: i64| json!({ "ph": phase, "cat": part, "id": id, "pid": pid, "name": name, "ts": at(time) });
                    events.extend([one("b", from), one("e", to)]);
                }
            }
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

fn name(kind: &str, pid: u32, name: String) -> Value {
    json!({ "ph": "M", "pid": pid, "tid": 0, "name": kind, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::Rank;
    use paceline_net::coordinator::{SeenOperation, Sighting};

    #[test]
    fn steps_waits_and_operations_are_in_the_trace() {
        let one = SeenOperation {
            name: "layer".to_string(),
            bytes: 4,
            posted: 10,
            started: Some(20),
            ended: None,
        };
        let sighting = Sighting {
            rank: Rank(2),
            step: 5,
            at: 1000,
            ends: vec![50, 100],
            waits: vec![(60, 10)],
            operations: vec![one],
            ..Sighting::default()
        };
        let what = What::Seen { id: 2, sighting: Box::new(sighting) };
        let line = serde_json::to_string(&Record { t: 1, what }).unwrap();
        let trace: Value = serde_json::from_str(&text([&*line, "nonsense"].into_iter())).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let found = |phase: &str, name: &str| {
            let one = events.iter().find(|one| one["ph"] == phase && one["name"] == name);
            one.unwrap_or_else(|| panic!("{phase} {name} in {events:?}"))["ts"].as_i64().unwrap()
        };
        assert_eq!((found("X", "step 6"), found("X", "waiting")), (1050, 1060));
        assert_eq!((found("b", "layer queueing"), found("e", "layer queueing")), (1010, 1020));
        assert_eq!(found("e", "layer communicating"), 1100);
    }
}
