//! Recording: what the engine and the program did, written down while they run.
//!
//! Whoever has something to tell pushes fixed-size [`event`]s into a ring of its own ([`source`]); one thread
//! ([`collector`]) moves them into a temporary file and, at the end, turns that into the trace ([`file`]). Nobody
//! who trains ever waits for it: a full ring, a full disk and a folder that cannot be written cost events, which are
//! counted, and nothing else. What a trace means is not known here; `paceline-job` reads it.

mod collector;
pub(crate) mod event;
mod file;
mod recording;
mod source;
mod sublanes;

pub(crate) use collector::stand_back;
pub use event::{Activity, Place};
pub use recording::{Description, Kernel, Recording, Summary, TraceConfig, monotonic_nanoseconds};
pub(crate) use source::EngineSource;
