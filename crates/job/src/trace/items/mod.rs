//! Reading the items of a list in a JSON file one after another, from a plain or a compressed file, as far as it goes. A file that was
//! cut off gives the items before the cut; an item that cannot be read is left out; both are noted as problems. What an
//! item is, and what it means, is not known here.

mod scan;

use super::{Problem, problems::Problems};
use flate2::read::MultiGzDecoder;
use scan::{Scanner, Taken};
use serde_json::{Map, Value};
use std::io::{self, Cursor, Read};

/// Bytes of one item; longer ones are left out. Shapes and stacks make some long, but not so long.
pub const MOST_ITEM_BYTES: usize = 16 << 20;

/// Bytes of one field beside the list; longer ones are left out.
pub const MOST_FIELD_BYTES: usize = 64 << 20;

/// Items read from one file; the rest is left out. Their number must fit a [`SpanId`](crate::trace::SpanId).
pub const MOST_ITEMS: u64 = 100_000_000;

/// Levels of gzip: one inside the other happens by accident.
const MOST_GZIP_LEVELS: usize = 2;

/// Where a format has its items, and what they are called in problems.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The field of the file's object that is the list. A file may also be the list itself.
    pub list: &'static str,
    /// With its article.
    pub one: &'static str,
    pub many: &'static str,
    /// Whether a file that is the list itself may lack its last bracket.
    pub may_stay_open: bool,
}

/// Where in the file we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Between the fields of an object.
    Fields,
    /// In the list of an object.
    Items,
    /// In a list that is the whole file.
    BareItems,
    End,
}

/// The items of a file.
pub struct Items {
    shape: Shape,
    scanner: Scanner<Box<dyn Read>>,
    state: State,
    fields: Map<String, Value>,
    problems: Problems,
    value: Vec<u8>,
    taken: u64,
    whole: bool,
}

impl Items {
    /// Of anything; `place` is how problems name it.
    pub fn new(input: impl Read + 'static, place: &str, shape: Shape) -> io::Result<Items> {
        Ok(Items {
            shape,
            scanner: Scanner::new(plain(input)?),
            state: State::Start,
            fields: Map::new(),
            problems: Problems::at(place),
            value: Vec::new(),
            taken: 0,
            whole: true,
        })
    }

    /// The next item that `parse` understands; none at the end. Bounded: every turn takes bytes from the file or ends it.
    pub fn next<T>(&mut self, parse: impl Fn(&[u8]) -> Result<T, serde_json::Error>) -> Option<T> {
        loop {
            match self.state {
                State::Start => self.start(),
                State::Fields => self.field(),
                State::Items | State::BareItems => {
                    if let Some(item) = self.item(&parse) {
                        return Some(item);
                    }
                }
                State::End => return None,
            }
        }
    }

    /// Whether the file went on to its end and no item of it was left out, as far as it was read.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Something was found about an item.
    pub fn report(&mut self, text: &str) {
        self.problems.add(text);
    }

    /// Everything beside the items: to be called once there are no more.
    pub fn finish(self) -> (Map<String, Value>, Vec<Problem>) {
        (self.fields, self.problems.into_list())
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
            Some(b'[') => State::BareItems,
            _ => {
                let many = self.shape.many;
                return self.end(&format!("the file holds no JSON object or array, so no {many}"));
            }
        };
        self.scanner.skip();
    }

    /// Step over one field, or to the first item.
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
        if name.as_deref() == Some(self.shape.list) && self.scanner.peek() == Some(b'[') {
            self.scanner.skip();
            self.state = State::Items;
            return;
        }
        let taken = self.scanner.take(&mut self.value, MOST_FIELD_BYTES);
        match (name, taken) {
            (_, Taken::Cut) => self.end(&self.cut_off("in a field")),
            (Some(name), Taken::Whole) => match lenient(&self.value, |json| {
                serde_json::from_slice(json)
            }) {
                Some(value) => _ = self.fields.insert(name, value),
                None => self.problems.add(format!("the field `{name}` is no JSON; it is left out")),
            },
            _ => self.problems.add("a field is too long; it is left out"),
        }
    }

    /// The next item of the list, or none if it was left out or is over.
    fn item<T>(&mut self, parse: impl Fn(&[u8]) -> Result<T, serde_json::Error>) -> Option<T> {
        let Shape { one, many, may_stay_open, .. } = self.shape;
        match self.scanner.peek() {
            Some(b',') => {
                self.scanner.skip();
                return None;
            }
            Some(b']') if self.state == State::BareItems => {
                self.close();
                return None;
            }
            Some(b']') => {
                self.scanner.skip();
                self.state = State::Fields;
                return None;
            }
            Some(b'}' | b':') => {
                self.end(&format!("the JSON is broken between {many}; the rest is left out"));
                return None;
            }
            None if may_stay_open
                && self.state == State::BareItems
                && self.scanner.failure.is_none() =>
            {
                self.state = State::End;
                return None;
            }
            None => {
                self.end(&self.cut_off(&format!("between {many}")));
                return None;
            }
            Some(_) => {}
        }
        if self.taken == MOST_ITEMS {
            self.end(&format!("only the first {MOST_ITEMS} {many} are read"));
            return None;
        }
        match self.scanner.take(&mut self.value, MOST_ITEM_BYTES) {
            Taken::Cut => {
                self.end(&self.cut_off(&format!("in the middle of {one}")));
                return None;
            }
            Taken::TooLong => {
                self.problems.add(format!("{one} is too long; it is left out"));
                self.whole = false;
                return None;
            }
            Taken::Whole => {}
        }
        self.taken += 1;
        // An empty object ends the arrays of writers that put a comma after each item.
        if self.value == b"{}" || self.value == b"null" {
            return None;
        }
        let item = lenient(&self.value, parse);
        if item.is_none() {
            self.problems.add(format!("{one} cannot be read; it is left out"));
            self.whole = false;
        }
        item
    }

    /// Step over the last bracket and see that nothing follows.
    fn close(&mut self) {
        self.scanner.skip();
        self.state = State::End;
        if self.scanner.peek().is_some() {
            self.problems.add("there is more after the end of the JSON; it is left out");
        } else if self.scanner.failure.is_some() {
            self.problems.add(self.cut_off(&format!("after its {}", self.shape.many)));
            self.whole = false;
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
        let (taken, many) = (self.taken, self.shape.many);
        format!("the file ends {place}{why}; the {taken} {many} before are read")
    }

    fn end(&mut self, problem: &str) {
        self.state = State::End;
        self.whole = false;
        self.problems.add(problem.to_owned());
    }
}

/// The bytes of a file, out of their compression if they begin as gzip does.
pub fn plain(input: impl Read + 'static) -> io::Result<Box<dyn Read>> {
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
