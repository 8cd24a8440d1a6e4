//! What `auto` chooses for each message size, as a table and as JSON. The choosing itself is the strategies'.

use super::{text, world::WorldSize};
use paceline_job::{ByteSize, Link, Rate, Settings};
use paceline_sync::strategy::{AutoTable, CostModel};
use serde::Serialize;
use std::borrow::Cow;

/// The choices of a small world.
#[derive(Serialize)]
pub struct Choices {
    ranks: u32,
    hosts: u32,
    /// Between ranks of one host.
    memory: Link,
    /// Between hosts.
    wire: Link,
    choices: Vec<Choice>,
}

#[derive(Serialize)]
struct Choice {
    /// The largest message it is for; none for the last.
    up_to_bytes: Option<u64>,
    strategy: Cow<'static, str>,
    /// At the smallest message that it is for, or near it.
    reason: String,
}

impl Choices {
    /// With the usual costs of messages, or with this rate between hosts.
    pub fn new(size: WorldSize, bandwidth: Option<Rate>) -> Choices {
        let mut model = CostModel::usual(&Settings::default());
        model.wire.rate = bandwidth.unwrap_or(model.wire.rate);
        let table = AutoTable::new(&size.host_of_each_rank(), &model);
        let choices = table
            .entries()
            .map(|(most, strategy, reason)| Choice {
                up_to_bytes: (most < u64::MAX).then_some(most),
                strategy: strategy.name(),
                reason: reason.to_string(),
            })
            .collect();
        let WorldSize { ranks, hosts } = size;
        Choices { ranks, hosts, memory: model.memory, wire: model.wire, choices }
    }

    /// For people.
    pub fn table(&self) -> String {
        let link = |link: &Link| format!("{}, {:?}", link.rate, link.latency);
        let mut shown = format!(
            "auto on {} and {}\n    memory between processes: {}\n    wire between hosts: {}\n\n",
            text::count(self.ranks.into(), "rank"),
            text::count(self.hosts.into(), "host"),
            link(&self.memory),
            link(&self.wire),
        );
        let mut below = 0;
        for Choice { up_to_bytes, strategy, reason } in &self.choices {
            let sizes = match up_to_bytes {
                Some(most) => format!("up to {}", ByteSize(*most).rounded()),
                None if below == 0 => "any size".to_string(),
                None => format!("above {}", ByteSize(below).rounded()),
            };
            below = up_to_bytes.unwrap_or(below);
            // The reason begins with the name, which the line above it says.
            let why = reason.split_once(": ").map_or(reason.as_str(), |(_, why)| why);
            shown += &format!("{sizes}: {strategy}\n{}\n", text::wrapped(&format!("{why}.")));
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_covers_all_sizes() {
        for (ranks, hosts) in [(1, 1), (4, 1), (8, 2), (64, 64)] {
            let choices = Choices::new(WorldSize { ranks, hosts }, None);
            assert_eq!(choices.choices.last().unwrap().up_to_bytes, None);
            let table = choices.table();
            assert!(table.contains("above") || table.contains("any size"), "{table}");
        }
    }
}
