//! What the next view may have otherwise than the one before, and what it may not. Pure functions of two views: whoever
//! computes them gets the same.

use super::Objection;
use crate::{
    resolver::check_strategy,
    strategy::{UnknownStrategy, by_name},
};
use paceline_job::{Membership, Settings, StrategyChoice, View, ViewVersion, Worker, WorkerId};
use serde::{Deserialize, Serialize};

/// The most workers that come or go in one change, so that a message about it is bounded.
pub const MEMBERS_AT_ONCE: usize = 1024;

/// What the next view has otherwise than the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// Other settings, for the same workers.
    Settings(Settings),
    /// Other workers, with the same settings. Those who stay keep their order, those who come follow them.
    Members {
        /// Who is in it no longer.
        leave: Vec<WorkerId>,
        /// Who is in it for the first time.
        join: Vec<Worker>,
    },
}

impl Change {
    /// The view after `view`: equal wherever it is computed.
    pub fn apply(&self, view: &View) -> View {
        let version = ViewVersion(view.version.0 + 1);
        match self {
            Change::Settings(settings) => {
                View { version, settings: settings.clone(), ..view.clone() }
            }
            Change::Members { leave, join } => {
                let staying = view.workers.iter().filter(|worker| !leave.contains(&worker.id));
                let workers = staying.chain(join).cloned().collect();
                View { version, workers, ..view.clone() }
            }
        }
    }

    /// Whether `view` is as it would be with this change.
    pub fn is_made(&self, view: &View) -> bool {
        match self {
            Change::Settings(settings) => view.settings == *settings,
            Change::Members { leave, join } => {
                leave.iter().all(|id| view.rank_of(*id).is_none())
                    && join.iter().all(|worker| view.rank_of(worker.id).is_some())
            }
        }
    }

    /// Whether workers come or go: then everything of the view before ends before anything of the next begins.
    pub fn is_of_members(&self) -> bool {
        matches!(self, Change::Members { .. })
    }

    /// Whether it can be meant, whatever the view.
    pub fn is_sound(&self) -> bool {
        match self {
            Change::Settings(settings) => settings.validate().is_ok(),
            Change::Members { leave, join } => leave.len() + join.len() <= MEMBERS_AT_ONCE,
        }
    }

    /// Refuse what cannot follow `view`.
    pub fn check(&self, view: &View) -> Result<(), Objection> {
        match self {
            Change::Settings(settings) => check_settings(settings, view).and_then(|()| {
                match is_for_any_members(&settings.strategy) || view.membership.is_fixed() {
                    true => Ok(()),
                    false => unusable(format!(
                        "workers come and go, and `{}` does not count what all of them have",
                        settings.strategy
                    )),
                }
            }),
            Change::Members { leave, join } => check_members(leave, join, view),
        }
    }
}

/// Whether a strategy counts what every member has, whoever they are. An elastic job needs one that does.
pub fn is_for_any_members(choice: &StrategyChoice) -> bool {
    // `auto` has no name there: it chooses among those that do.
    by_name(&choice.0).is_none_or(|strategy| strategy.contributors(2) == 2)
}

fn unusable(reason: impl Into<String>) -> Result<(), Objection> {
    Err(Objection::Unusable { reason: reason.into() })
}

fn check_settings(settings: &Settings, view: &View) -> Result<(), Objection> {
    if let Err(error) = settings.validate() {
        return unusable(error.to_string());
    }
    if let Err(UnknownStrategy(name)) = check_strategy(&settings.strategy) {
        return unusable(UnknownStrategy(name).to_string());
    }
    if settings.eager != view.settings.eager {
        return unusable(format!(
            "eager is {} for as long as the job runs; leave it as it is",
            view.settings.eager
        ));
    }
    // Whether a worker trains or only serves was decided when the programs started.
    let members = view.size() as u32;
    let trains = |name: &str| by_name(name).map_or(members, |found| found.contributors(members));
    if trains(&settings.strategy.0) != trains(&view.settings.strategy.0) {
        return unusable(format!(
            "`{}` has other workers contribute than `{}`; start the job with it",
            settings.strategy, view.settings.strategy
        ));
    }
    Ok(())
}

fn check_members(leave: &[WorkerId], join: &[Worker], view: &View) -> Result<(), Objection> {
    if view.membership == Membership::Fixed {
        return unusable("the job has the workers it began with; start it as an elastic one");
    }
    let mut joining: Vec<WorkerId> = join.iter().map(|worker| worker.id).collect();
    joining.sort_unstable();
    if joining.windows(2).any(|pair| pair[0] == pair[1])
        || joining.iter().any(|id| view.rank_of(*id).is_some())
    {
        return unusable("a worker cannot join twice");
    }
    let staying = view.ids().filter(|id| !leave.contains(id)).count();
    if staying == 0 {
        return unusable("nobody would be left who knows the state; let the job end instead");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elastic(size: usize) -> View {
        let view = View::local(size, Settings::default());
        View { membership: Membership::Elastic, ..view }
    }

    fn newcomer(id: u64) -> Worker {
        Worker { id: WorkerId(id), host: "b".to_string(), address: String::new() }
    }

    #[test]
    fn those_who_stay_keep_their_order_and_those_who_come_follow() {
        let change =
            Change::Members { leave: vec![WorkerId(1)], join: vec![newcomer(9), newcomer(7)] };
        let view = elastic(4);
        assert_eq!(change.check(&view), Ok(()));
        assert!(!change.is_made(&view));
        let next = change.apply(&view);
        assert_eq!(next.ids().map(|id| id.0).collect::<Vec<_>>(), [0, 2, 3, 9, 7]);
        assert_eq!(next.version, ViewVersion(2));
        assert!(change.is_made(&next));
    }

    #[test]
    fn members_that_cannot_be_are_refused_with_the_remedy() {
        let leave = |ids: &[u64]| Change::Members {
            leave: ids.iter().copied().map(WorkerId).collect(),
            join: Vec::new(),
        };
        let join = |ids: &[u64]| Change::Members {
            leave: Vec::new(),
            join: ids.iter().copied().map(newcomer).collect(),
        };
        let fixed = View::local(2, Settings::default());
        for (change, view, words) in [
            (leave(&[1]), &fixed, "start it as an elastic one"),
            (leave(&[0, 1]), &elastic(2), "nobody would be left"),
            (join(&[1]), &elastic(2), "twice"),
            (join(&[5, 5]), &elastic(2), "twice"),
        ] {
            let objection = change.check(view).unwrap_err().to_string();
            assert!(objection.contains(words), "{objection}");
        }
    }
}
