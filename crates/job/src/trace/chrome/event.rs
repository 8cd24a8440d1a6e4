//! One event of the Chrome trace format. What its fields mean to a producer is not known here.

use super::{Fields, time};
use crate::trace::Stamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// An event. The names are the format's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// What sort of event: `X` has a duration, `B` and `E` begin and end one, `M` names a process or thread, `s` and `f`
    /// are the ends of an arrow, `i` is an instant, `C` a counter.
    pub ph: char,
    /// Categories, separated by commas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cat: String,
    /// For people, and for importers that know the producer.
    pub name: String,
    /// The process, or whatever the producer groups by.
    pub pid: Id,
    /// The thread, or the stream.
    pub tid: Id,
    /// When; microseconds in the file.
    #[serde(serialize_with = "write_stamp")]
    pub ts: Stamp,
    /// How many nanoseconds; microseconds in the file.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "write_length")]
    pub dur: Option<u64>,
    /// Joins the ends of an arrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// `e` where an arrow ends at the slice that encloses its end, instead of the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bp: Option<String>,
    /// Whatever else the producer says.
    #[serde(skip_serializing_if = "Fields::is_empty")]
    pub args: Fields,
}

impl Event {
    /// Something that took time.
    pub fn complete(name: impl Into<String>, begin: Stamp, length: u64) -> Event {
        Event { dur: Some(length), ..Event::new('X', name, begin) }
    }

    /// An event of any sort, at a time, with nothing else said.
    pub fn new(ph: char, name: impl Into<String>, ts: Stamp) -> Event {
        Event {
            ph,
            cat: String::new(),
            name: name.into(),
            pid: Id::default(),
            tid: Id::default(),
            ts,
            dur: None,
            id: None,
            bp: None,
            args: Fields::new(),
        }
    }

    /// In a category.
    pub fn category(self, cat: impl Into<String>) -> Event {
        Event { cat: cat.into(), ..self }
    }

    /// On a lane.
    pub fn on(self, pid: impl Into<Id>, tid: impl Into<Id>) -> Event {
        Event { pid: pid.into(), tid: tid.into(), ..self }
    }

    /// Joined with the other end of an arrow.
    pub fn joined(self, id: impl Into<Id>) -> Event {
        Event { id: Some(id.into()), ..self }
    }

    /// Saying one thing more.
    pub fn with(mut self, key: &str, value: impl Into<serde_json::Value>) -> Event {
        self.args.insert(key.into(), value.into());
        self
    }

    /// A whole number among what is said, also where it is written as text.
    pub fn integer(&self, key: &str) -> Option<i64> {
        let value = self.args.get(key)?;
        match value.as_str() {
            Some(text) => text.trim().parse().ok(),
            None => value.as_i64(),
        }
    }

    /// Text among what is said.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.args.get(key)?.as_str()
    }

    /// Read one; also whether it had a duration that is no length of time, which is left out.
    pub(super) fn parse(json: &[u8]) -> Result<(Event, bool), serde_json::Error> {
        let wire: Wire = serde_json::from_slice(json)?;
        let number = |raw: &RawValue| time::nanoseconds(raw.get());
        let ts = match wire.ts {
            None => 0,
            Some(raw) => number(raw).ok_or_else(|| de::Error::custom("`ts` is not a time"))?,
        };
        let dur = wire.dur.and_then(number).and_then(|length| u64::try_from(length).ok());
        let event = Event {
            ph: wire.ph,
            cat: wire.cat.map(Cow::into_owned).unwrap_or_default(),
            name: wire.name.map(Cow::into_owned).unwrap_or_default(),
            pid: wire.pid.unwrap_or_default(),
            tid: wire.tid.unwrap_or_default(),
            ts: Stamp(ts),
            dur,
            id: wire.id,
            bp: wire.bp,
            args: wire.args.unwrap_or_default(),
        };
        Ok((event, wire.dur.is_some() && dur.is_none()))
    }
}

/// An event as it is read: everything but its sort may be missing.
#[derive(Deserialize)]
struct Wire<'a> {
    ph: char,
    #[serde(borrow, default)]
    cat: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(default)]
    pid: Option<Id>,
    #[serde(default)]
    tid: Option<Id>,
    #[serde(borrow, default, deserialize_with = "given")]
    ts: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    dur: Option<&'a RawValue>,
    #[serde(default)]
    id: Option<Id>,
    #[serde(default)]
    bp: Option<String>,
    #[serde(default)]
    args: Option<Fields>,
}

/// What is there, even if it is null: a time that is null is not a time that is missing.
fn given<'a, 'de: 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn write_stamp<S: Serializer>(stamp: &Stamp, serializer: S) -> Result<S::Ok, S::Error> {
    time::write(stamp.0, serializer)
}

fn write_length<S: Serializer>(length: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let length = length.unwrap_or(0);
    time::write(i64::try_from(length).unwrap_or(i64::MAX), serializer)
}

/// Whom an event belongs to: a number or a name, as the producer likes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Id {
    /// Most often.
    Number(i64),
    /// Also numbers that are too large or not whole.
    Text(String),
}

impl Default for Id {
    fn default() -> Id {
        Id::Number(0)
    }
}

impl From<i64> for Id {
    fn from(number: i64) -> Id {
        Id::Number(number)
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Id {
        Id::Text(text.into())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Number(number) => number.fmt(f),
            Id::Text(text) => text.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Id, E> {
                Ok(Id::Number(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Id, E> {
                Ok(i64::try_from(number).map_or_else(|_| Id::Text(number.to_string()), Id::Number))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Id, E> {
                // Exact: doubles hold whole numbers up to 2^53.
                let whole = number.fract() == 0.0 && number.abs() < 9e15;
                Ok(if whole { Id::Number(number as i64) } else { Id::Text(number.to_string()) })
            }

            fn visit_str<E>(self, text: &str) -> Result<Id, E> {
                Ok(Id::Text(text.into()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
