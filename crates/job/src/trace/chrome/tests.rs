//! Claims about reading and writing files of events.

use super::*;
use crate::{
    Rank,
    trace::{Problem, Stamp},
};
use proptest::prelude::*;
use std::io::{Cursor, Write};

fn read(bytes: impl Into<Vec<u8>>) -> (Vec<Event>, Header, Vec<Problem>) {
    let mut reader = Reader::new(Cursor::new(bytes.into()), "test").unwrap();
    let events = reader.by_ref().collect();
    let (header, problems) = reader.finish();
    (events, header, problems)
}

fn written(events: &[Event]) -> Vec<u8> {
    let header = Header::of_worker(Rank(3), 8).with_base(7).with("extra", vec![1, 2]);
    let mut writer = Writer::new(Vec::new(), &header).unwrap();
    for event in events {
        writer.write(event).unwrap();
    }
    writer.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn some_events(count: i64) -> Vec<Event> {
    let event = |number: i64| {
        // Nanoseconds since 1970, which a double of microseconds cannot hold.
        let begin = Stamp(1_700_000_000_000_000_001 + number * 1_001);
        Event::complete(format!("\"op\" {{{number}"), begin, 999)
            .category("kernel")
            .on(number, "stream")
            .joined(number)
            .with("correlation", number)
    };
    (0..count).map(event).collect()
}

#[test]
fn what_was_written_is_read_again_to_the_nanosecond() {
    let events = some_events(1000);
    let (again, header, problems) = read(written(&events));
    assert_eq!(again, events);
    assert_eq!(problems, []);
    assert_eq!((header.rank(), header.world(), header.base()), (Some(Rank(3)), Some(8), 7));
    assert_eq!(header.fields["extra"], serde_json::json!([1, 2]));
}

#[test]
fn fields_may_stand_before_and_after_the_events() {
    let text = r#" {"a": "x]}\"", "traceEvents": [ {"ph":"i"} ], "b": {"c": [1]}, "d": 4 } "#;
    let (events, header, problems) = read(text);
    assert_eq!((events.len(), problems.len()), (1, 0));
    assert_eq!(header.fields["a"], "x]}\"");
    assert_eq!(header.fields["b"]["c"][0], 1);
    assert_eq!(header.fields["d"], 4);
}

#[test]
fn a_bare_array_may_be_left_open_or_end_in_a_comma() {
    for text in [r#"[{"ph":"B"}"#, r#"[{"ph":"B"},"#, r#"[{"ph":"B"},{}]"#, r#"[{"ph":"B"}]"#] {
        let (events, _, problems) = read(text);
        assert_eq!((events.len(), problems.len()), (1, 0), "{text}");
        assert_eq!((events[0].ts, events[0].dur), (Stamp(0), None));
    }
}

#[test]
fn a_file_cut_anywhere_gives_the_events_before_the_cut_and_says_so() {
    let events = some_events(5);
    let whole = written(&events);
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&whole[..]), &mut plain).unwrap();
    for length in 1..plain.len() - 2 {
        let (found, _, problems) = read(&plain[..length]);
        assert!(events.starts_with(&found));
        assert_eq!(problems.len(), 1, "{:?}", String::from_utf8_lossy(&plain[..length]));
    }
    for length in 0..whole.len() {
        let (found, _, problems) = read(&whole[..length]);
        assert!(events.starts_with(&found));
        assert_eq!(problems.len(), 1, "{length}");
    }
}

#[test]
fn much_of_a_compressed_file_is_read_although_its_end_is_missing() {
    let events = some_events(20_000);
    let whole = written(&events);
    let (found, _, problems) = read(&whole[..whole.len() / 2]);
    assert!(found.len() > 8_000 && events.starts_with(&found), "{}", found.len());
    assert!(problems[0].text.contains("compression is not complete"), "{}", problems[0]);
}

#[test]
fn an_event_that_cannot_be_read_is_left_out_and_the_next_is_read() {
    let text = r#"[{"ph":"X","ts":"soon"},{"ph":7},5,"x",[1],{"ph":"X","name":"good","ts":1e3}]"#;
    let (events, _, problems) = read(text);
    assert_eq!(events, [Event::new('X', "good", Stamp(1_000_000))]);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].times, 5);
}

#[test]
fn durations_that_are_none_are_problems_and_their_events_are_kept() {
    let text = r#"[{"ph":"X","dur":-1},{"ph":"X","dur":NaN},{"ph":"X","dur":"x"},
        {"ph":"X","dur":0.0004},{"ph":"X","dur":"2.5","args":{"loss":-Infinity,"text":"NaN"}}]"#;
    let (events, _, problems) = read(text);
    let lengths: Vec<_> = events.iter().map(|event| event.dur).collect();
    assert_eq!(lengths, [None, None, None, Some(0), Some(2500)]);
    assert_eq!(events[4].args["text"], "NaN");
    assert!(events[4].args["loss"].is_null());
    assert_eq!(problems.iter().map(|problem| problem.times).sum::<u64>(), 3, "{problems:?}");
}

#[test]
fn ids_are_numbers_or_names() {
    let text = r#"[{"ph":"X","pid":"Spans","tid":18446744073709551615,"id":"0x1f"},
        {"ph":"X","pid":7.0,"tid":-1,"id":1.5}]"#;
    let (events, _, problems) = read(text);
    assert_eq!(problems, []);
    assert_eq!(events[0].pid, Id::from("Spans"));
    assert_eq!(events[0].tid, Id::from("18446744073709551615"));
    assert_eq!((&events[1].pid, &events[1].tid), (&Id::Number(7), &Id::Number(-1)));
    assert_eq!(events[1].id, Some(Id::from("1.5")));
}

#[test]
fn compression_is_known_by_its_first_bytes_and_may_be_twofold() {
    let text = br#"{"traceEvents":[{"ph":"i"}]}"#;
    let twice = gzip(&gzip(text));
    let (events, _, problems) = read(twice);
    assert_eq!((events.len(), problems.len()), (1, 0));
    // Writers that append begin a new member.
    let (head, tail) = text.split_at(10);
    let (events, _, problems) = read([gzip(head), gzip(tail)].concat());
    assert_eq!((events.len(), problems.len()), (1, 0));
}

#[test]
fn what_is_no_trace_has_no_events_and_says_so() {
    for text in ["", "  ", "hello", "{]", "{\"a\" 1}"] {
        let (events, _, problems) = read(text);
        assert_eq!((events.len(), problems.len()), (0, 1), "{text}");
    }
}

proptest! {
    #[test]
    fn any_time_is_read_as_it_was_written(nanoseconds in any::<i64>()) {
        let nanoseconds = nanoseconds / 2;
        let event = Event::new('i', "", Stamp(nanoseconds));
        let (again, _, _) = read(written(std::slice::from_ref(&event)));
        prop_assert_eq!(&again[0], &event);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read(bytes.clone());
        read([b"{\"traceEvents\":[".to_vec(), bytes].concat());
    }
}
