//! Events in the Chrome trace format, which Kineto, Horovod and our own recorder write and Perfetto opens: how one event
//! looks, a [`Reader`] that takes what it can get, and a [`Writer`]. What the events mean is not known here.
//!
//! Times are microseconds with a fraction in the file and whole nanoseconds here. They are read and written digit by digit:
//! a double cannot hold nanoseconds since 1970.

mod event;
mod header;
mod read;
mod time;
mod write;

pub use event::{Event, Id};
pub use header::Header;
pub use read::Reader;
pub use write::Writer;
/// What an event, or a file, says besides: names and JSON values.
pub type Fields = serde_json::Map<String, serde_json::Value>;

#[cfg(test)]
mod tests;
