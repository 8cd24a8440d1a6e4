//! Reading events one after another, from a plain or a compressed file, as far as it goes. A file that was cut off gives the
//! events before the cut; an event that cannot be read is left out; both are noted as problems.

use super::{
    Event, Header,
    scan::{Scanner, Taken},
};
use crate::trace::{Problem, problems::Problems};
use flate2::read::MultiGzDecoder;
use std::{
    fs::File,
    io::{self, Cursor, Read},
    path::Path,
};

/// Bytes of one event; longer ones are left out. Shapes and stacks make some long, but not so long.
pub const MOST_EVENT_BYTES: usize = 16 << 20;

/// Bytes of one field beside the events; longer ones are left out.
pub const MOST_FIELD_BYTES: usize = 64 << 20;

/// Events read from one file; the rest is left out. Their number must fit a [`SpanId`](crate::trace::SpanId).
pub const MOST_EVENTS: u64 = 100_000_000;

/// Levels of gzip: one inside the other happens by accident.
const MOST_GZIP_LEVELS: usize = 2;

/// Where in the file we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Between the fields of an object.
    Fields,
    /// In the array `traceEvents` of an object.
    Events,
    /// In an array that is the whole file.
    BareEvents,
    End,
}

/// An iterator over the events of a file.
pub struct Reader {
    scanner: Scanner<Box<dyn Read>>,
    state: State,
    header: Header,
    problems: Problems,
    value: Vec<u8>,
    events: u64,
}

impl Reader {
    /// Of a file, whose problems are noted under its name.
    pub fn open(path: &Path) -> io::Result<Reader> {
        Reader::new(File::open(path)?, &path.display().to_string())
    }

    /// Of anything; `place` is how problems name it.
    pub fn new(input: impl Read + 'static, place: &str) -> io::Result<Reader> {
        Ok(Reader {
            scanner: Scanner::new(plain(input)?),
            state: State::Start,
            header: Header::default(),
            problems: Problems::at(place),
            value: Vec::new(),
            events: 0,
        })
    }

    /// What the file said beside the events that were read so far; all of it once there are no more.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Everything beside the events: to be called once there are no more.
    pub fn finish(self) -> (Header, Vec<Problem>) {
        (self.header, self.problems.into_list())
    }

    fn start(&mut self) {
        if self.scanner.peek() == Some(0xef) {
            // A byte order mark has three bytes.
            for _ in 0..3 {
                self.scanner.peek();
                self.scanner.skip();
            }
        }
        self.state = match self.scanner.peek() {
            Some(b'{') => State::Fields,
            Some(b'[') => State::BareEvents,
            _ => return self.end("the file holds no JSON object or array, so no events"),
        };
        self.scanner.skip();
    }

    /// Step over one field, or to the first event.
    fn field(&mut self) {
        match self.scanner.peek() {
            Some(b',') => return self.scanner.skip(),
            Some(b'}') => return self.close(),
            Some(b'"') => {}
            Some(_) => return self.end("the JSON is broken between fields; the rest is left out"),
            None => return self.end(&self.cut_off("between its fields")),
        }
        let name = match self.scanner.take(&mut self.value, MOST_FIELD_BYTES) {
            Taken::Cut => return self.end(&self.cut_off("in the name of a field")),
            Taken::TooLong => None,
            Taken::Whole => serde_json::from_slice::<String>(&self.value).ok(),
        };
        if self.scanner.peek() != Some(b':') {
            return self.end(&self.cut_off("after the name of a field"));
        }
        self.scanner.skip();
        if name.as_deref() == Some("traceEvents") && self.scanner.peek() == Some(b'[') {
            self.scanner.skip();
            self.state = State::Events;
            return;
        }
        let taken = self.scanner.take(&mut self.value, MOST_FIELD_BYTES);
        match (name, taken) {
            (_, Taken::Cut) => self.end(&self.cut_off("in a field")),
            (Some(name), Taken::Whole) => match lenient(&self.value, |json| {
                serde_json::from_slice(json)
            }) {
                Some(value) => _ = self.header.fields.insert(name, value),
                None => self.problems.add(format!("the field `{name}` is no JSON; it is left out")),
            },
            _ => self.problems.add("a field is too long; it is left out"),
        }
    }

    /// The next event of the array, or none if it was left out or is over.
    fn event(&mut self) -> Option<Event> {
        match self.scanner.peek() {
            Some(b',') => {
                self.scanner.skip();
                return None;
            }
            Some(b']') if self.state == State::BareEvents => {
                self.close();
                return None;
            }
            Some(b']') => {
                self.scanner.skip();
                self.state = State::Fields;
                return None;
            }
            Some(b'}' | b':') => {
                self.end("the JSON is broken between events; the rest is left out");
                return None;
            }
            // The format allows an array to be left open.
            None if self.state == State::BareEvents && self.scanner.failure.is_none() => {
                self.state = State::End;
                return None;
            }
            None => {
                self.end(&self.cut_off("between events"));
                return None;
            }
            Some(_) => {}
        }
        if self.events == MOST_EVENTS {
            self.end(&format!("only the first {MOST_EVENTS} events are read"));
            return None;
        }
        match self.scanner.take(&mut self.value, MOST_EVENT_BYTES) {
            Taken::Cut => {
                self.end(&self.cut_off("in the middle of an event"));
                return None;
            }
            Taken::TooLong => {
                self.problems.add("an event is too long; it is left out");
                return None;
            }
            Taken::Whole => {}
        }
        self.events += 1;
        // An empty object ends the arrays of writers that put a comma after each event.
        if self.value == b"{}" || self.value == b"null" {
            return None;
        }
        let Some((event, bad_duration)) = lenient(&self.value, Event::parse) else {
            self.problems.add("an event cannot be read; it is left out");
            return None;
        };
        if bad_duration {
            self.problems.add("a duration is negative or not a number; it is left out");
        }
        Some(event)
    }

    /// Step over the last bracket and see that nothing follows.
    fn close(&mut self) {
        self.scanner.skip();
        self.state = State::End;
        if self.scanner.peek().is_some() {
            self.problems.add("there is more after the end of the JSON; it is left out");
        } else if self.scanner.failure.is_some() {
            self.problems.add(self.cut_off("after its events"));
        }
    }

    fn cut_off(&self, place: &str) -> String {
        let why = match &self.scanner.failure {
            None => String::new(),
            Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                ", and its compression is not complete".into()
            }
            Some(error) => format!(", because it cannot be read further ({error})"),
        };
        format!("the file ends {place}{why}; the {} events before are read", self.events)
    }

    fn end(&mut self, problem: &str) {
        self.state = State::End;
        self.problems.add(problem.to_owned());
    }
}

impl Iterator for Reader {
    type Item = Event;

    /// Bounded: every turn takes bytes from the file or ends it.
    fn next(&mut self) -> Option<Event> {
        loop {
            match self.state {
                State::Start => self.start(),
                State::Fields => self.field(),
                State::Events | State::BareEvents => {
                    if let Some(event) = self.event() {
                        return Some(event);
                    }
                }
                State::End => return None,
            }
        }
    }
}

/// The bytes of a file, out of their compression if they begin as gzip does.
pub(in crate::trace) fn plain(input: impl Read + 'static) -> io::Result<Box<dyn Read>> {
    let mut input: Box<dyn Read> = Box::new(input);
    for _ in 0..MOST_GZIP_LEVELS {
        let mut head = Vec::new();
        // A level that cannot even begin is found out by whoever reads on.
        let begun = input.by_ref().take(2).read_to_end(&mut head);
        let compressed = head == [0x1f, 0x8b];
        match begun {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        input = Box::new(Cursor::new(head).chain(input));
        if !compressed {
            break;
        }
        input = Box::new(MultiGzDecoder::new(input));
    }
    Ok(input)
}

/// Parse JSON; if that fails, once more with what Python and C++ print for numbers that are none, and with bytes that are no
/// text, put right.
fn lenient<T>(json: &[u8], parse: impl Fn(&[u8]) -> Result<T, serde_json::Error>) -> Option<T> {
    parse(json).or_else(|_| parse(&mended(json))).ok()
}

/// Numbers that are none outside strings become null, bytes that are no text become the sign for that.
fn mended(json: &[u8]) -> Vec<u8> {
    const WORDS: [&str; 8] =
        ["-Infinity", "Infinity", "-infinity", "infinity", "-inf", "inf", "NaN", "nan"];
    let text = String::from_utf8_lossy(json);
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = text.as_ref();
    while let Some(character) = rest.chars().next() {
        if !in_string {
            // `-nan` is what C++ prints for one of the two.
            let bare = rest
                .strip_prefix("-nan")
                .or_else(|| WORDS.iter().find_map(|word| rest.strip_prefix(word)));
            if let Some(after) = bare {
                out.push_str("null");
                rest = after;
                continue;
            }
        }
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        // Control characters inside strings must be written as escapes; some producers do not.
        if in_string && (character as u32) < 0x20 {
            out.push(' ');
        } else {
            out.push(character);
        }
        rest = &rest[character.len_utf8()..];
    }
    out.into_bytes()
}
