//! Reading events one after another, as far as a file goes. How a file is cut into items is not known here.

use super::{Event, Header};
use crate::trace::{
    Problem,
    items::{Items, Shape},
    problems::Problems,
};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The format allows an array to be left open.
const SHAPE: Shape =
    Shape { list: "traceEvents", one: "an event", many: "events", may_stay_open: true };

/// An iterator over the events of a file.
pub struct Reader {
    items: Items,
    place: String,
}

impl Reader {
    /// Of a file, whose problems are noted under its name.
    pub fn open(path: &Path) -> io::Result<Reader> {
        Reader::new(File::open(path)?, &path.display().to_string())
    }

    /// Of anything; `place` is how problems name it.
    pub fn new(input: impl Read + 'static, place: &str) -> io::Result<Reader> {
        Ok(Reader { items: Items::new(input, place, SHAPE)?, place: place.to_owned() })
    }

    /// Whether the file went on to its end and no event of it was left out, as far as it was read.
    pub fn is_whole(&self) -> bool {
        self.items.is_whole()
    }

    /// Everything beside the events: to be called once there are no more.
    pub fn finish(self) -> (Header, Vec<Problem>) {
        let (fields, mut problems) = self.items.finish();
        let header = Header { fields };
        let mut odd = Problems::at(self.place);
        header.oddities().into_iter().for_each(|text| odd.add(text));
        problems.extend(odd.into_list());
        (header, problems)
    }
}

impl Iterator for Reader {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let (event, bad_duration) = self.items.next(Event::parse)?;
        if bad_duration {
            self.items.report("a duration is negative or not a number; it is left out");
        }
        Some(event)
    }
}
