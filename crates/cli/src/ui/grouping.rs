//! In which groups the workers of a view average, step by step, for a page. Who is in which group is the strategy's to say; here
//! it is only known which use of a tensor a step is.

use super::record::SeenGroups;
use paceline_job::{View, WorkerId};
use paceline_sync::{groups::Terrain, program::Strategy, strategy::find_on};
use std::sync::Arc;

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Grouping {
    strategy: Option<Arc<dyn Strategy>>,
    hosts: Arc<[u32]>,
    workers: Vec<WorkerId>,
    /// The view is in force from this step on.
    since: u64,
    /// These workers are together since this step: uses of tensors are counted from it.
    together_since: u64,
}

impl Grouping {
    /// Of a view that is in force from this step on, after another.
    pub fn of(view: &View, since: u64, before: Option<&Grouping>) -> Grouping {
        let workers: Vec<WorkerId> = view.workers.iter().map(|worker| worker.id).collect();
        let same = before.filter(|before| before.workers == workers);
        Grouping {
            // `auto` is the name of none: it has no groups.
            strategy: find_on(&view.settings.strategy.0, Terrain::of_view(view)).ok(),
            hosts: view.host_indices().into(),
            together_since: same.map_or(since, |before| before.together_since),
            workers,
            since,
        }
    }

    /// The groups of a step of this view, if there are any.
    pub fn at(&self, step: u64) -> Option<SeenGroups> {
        let used = step.checked_sub(self.together_since).filter(|_| step >= self.since)?;
        let told = self.strategy.as_ref()?.groups(&self.hosts, used)?;
        Some(SeenGroups { step, groups: told.groups, parts: told.parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Settings, StrategyChoice};

    fn view(hosts: &[&str], strategy: &str) -> View {
        let strategy = StrategyChoice(strategy.to_string());
        let hosts = hosts.iter().map(ToString::to_string).collect();
        View::on_hosts(hosts, Settings { strategy, ..Settings::default() })
    }

    fn groups(grouping: &Grouping, step: u64) -> Vec<Vec<u32>> {
        grouping.at(step).unwrap().groups
    }

    #[test]
    fn groups_are_those_of_the_strategy_in_each_step() {
        let grouping = Grouping::of(&view(&["a"; 4], "shuffle:3"), 0, None);
        let two = |one: [u32; 2], other: [u32; 2]| vec![one.to_vec(), other.to_vec()];
        assert_eq!(groups(&grouping, 0), two([0, 1], [2, 3]));
        assert_eq!(groups(&grouping, 1), two([0, 2], [1, 3]));
        assert_eq!(groups(&grouping, 2), [[0, 1, 2, 3]], "every third step all are together");
        assert_eq!(groups(&grouping, 3), groups(&grouping, 1));
    }

    #[test]
    fn steps_count_from_where_these_workers_met_also_under_other_settings() {
        let first = Grouping::of(&view(&["a"; 4], "ring"), 7, None);
        assert_eq!(first.at(8), None, "a ring has no groups");
        let second = Grouping::of(&view(&["a"; 4], "shuffle"), 10, Some(&first));
        assert_eq!(second.at(9), None, "before the view is in force");
        assert_eq!(groups(&second, 11), groups(&second, 13));
        let afresh = Grouping::of(&view(&["a"; 4], "shuffle"), 0, None);
        assert_eq!(groups(&second, 11), groups(&afresh, 4));
        assert_eq!(groups(&second, 12), groups(&afresh, 5));
        let fewer = Grouping::of(&view(&["a"; 2], "shuffle"), 20, Some(&second));
        assert_eq!(groups(&fewer, 20), [[0, 1]]);
        assert_eq!(Grouping::of(&view(&["a"; 4], "auto"), 0, None).at(3), None);
    }
}
