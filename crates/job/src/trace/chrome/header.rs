//! What a trace file says about itself, beside its events. Missing and malformed fields are absent, not errors.

use super::Fields;
use crate::Rank;
use serde_json::{Value, json};

/// The fields of a file beside `traceEvents`, as they were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// By name.
    pub fields: Fields,
}

impl Header {
    /// Of a worker of a job, for a file that Perfetto and the tools around PyTorch's profiler open. How many workers there were
    /// is not always known.
    pub fn of_worker(rank: Rank, world: impl Into<Option<u32>>) -> Header {
        let mut about = json!({"rank": rank.0});
        if let Some(world) = world.into() {
            about["world_size"] = json!(world);
        }
        Header::default()
            .with("schemaVersion", 1)
            .with("displayTimeUnit", "ms")
            .with("distributedInfo", about)
    }

    /// Nanoseconds since 1970 to which the times of the events are added.
    pub fn with_base(self, nanoseconds: i64) -> Header {
        self.with("baseTimeNanoseconds", nanoseconds)
    }

    /// With one field more.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Header {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// Who wrote it.
    pub fn rank(&self) -> Option<Rank> {
        self.distributed("rank").map(Rank)
    }

    /// How many workers took part.
    pub fn world(&self) -> Option<u32> {
        self.distributed("world_size").filter(|world| *world > 0)
    }

    /// Nanoseconds since 1970 to which the times of the events are to be added.
    pub fn base(&self) -> i64 {
        self.fields.get("baseTimeNanoseconds").and_then(Value::as_i64).unwrap_or(0)
    }

    /// What it says about its worker and cannot mean, as sentences without their full stops.
    pub(super) fn oddities(&self) -> Vec<String> {
        let odd = |name: &str, least: u32| {
            let value = self.fields.get("distributedInfo")?.get(name)?;
            let usable = self.distributed(name).is_some_and(|number| number >= least);
            let text = || {
                format!("`{name}` of distributedInfo is {value}, which cannot be; it is left out")
            };
            (!usable && !value.is_null()).then(text)
        };
        [odd("rank", 0), odd("world_size", 1)].into_iter().flatten().collect()
    }

    fn distributed(&self, name: &str) -> Option<u32> {
        let value = self.fields.get("distributedInfo")?.get(name)?;
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
        u32::try_from(number).ok()
    }
}
