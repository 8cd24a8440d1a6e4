//! What comes from each single worker, from one report to the next. Who is slow is not decided here.

use super::{Came, FlowMetrics, TOLD_FLOWS};
use paceline_job::Rank;

/// See the file's first paragraph.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    /// What had come from each worker, by rank, when this was last asked.
    came: Vec<Came>,
}

impl Flows {
    /// Rates of those that sent most since this was last asked, where what came from each so far is this; those that sent most
    /// first.
    pub fn since(&mut self, inward: impl IntoIterator<Item = (Rank, Came)>) -> Vec<FlowMetrics> {
        let mut fresh: Vec<FlowMetrics> = Vec::new();
        for (from, came) in inward {
            let place = from.index();
            self.came.resize(self.came.len().max(place + 1), Came::default());
            let before = std::mem::replace(&mut self.came[place], came);
            fresh.extend(came.since(&before, from));
        }
        fresh.sort_by(|one, other| other.all.total_cmp(&one.all));
        fresh.truncate(TOLD_FLOWS);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Carried;

    #[test]
    fn rates_are_of_what_came_since_and_of_those_that_sent_most() {
        let came = |looks: u64| {
            let from = move |rank: u32| {
                let bytes = looks * u64::from(rank) * 1_000_000;
                let timed = Carried { bytes, nanoseconds: looks * 1_000_000 };
                (Rank(rank), Came { bytes, timed })
            };
            (0..12).map(from)
        };
        let mut flows = Flows::default();
        flows.since(came(1));
        let told = flows.since(came(3));
        let ranks: Vec<u32> = told.iter().map(|flow| flow.from.0).collect();
        assert_eq!(ranks, [11, 10, 9, 8, 7, 6, 5, 4]);
        assert!(
            told.iter().all(|flow| (flow.rate() / f64::from(flow.from.0) / 1e9 - 1.0).abs() < 1e-9)
        );
        assert!(flows.since(came(3)).is_empty());
    }
}
