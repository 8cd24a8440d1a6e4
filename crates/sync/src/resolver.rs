//! Which strategy a tensor follows: the one the view names, or `auto`, decided once per view and group
//! from what all its members know alike, so that ranks cannot differ.

use crate::{
    program::{Site, Strategy},
    strategy::{AutoTable, CostModel, UnknownStrategy, find},
};
use paceline_job::{StrategyChoice, View};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Whether a view may name this strategy.
pub fn check_strategy(choice: &StrategyChoice) -> Result<(), UnknownStrategy> {
    match choice.0.as_str() {
        StrategyChoice::AUTO => Ok(()),
        name => find(name).map(|_| ()),
    }
}

/// A view's choice for all its groups.
#[derive(Debug)]
pub(crate) struct Resolver {
    model: CostModel,
    fixed: Option<Arc<dyn Strategy>>,
    /// One table per layout of hosts: a job has a handful of groups.
    tables: FxHashMap<Arc<[u32]>, AutoTable>,
}

impl Resolver {
    pub(crate) fn for_view(view: &View) -> Result<Resolver, UnknownStrategy> {
        let name = view.settings.strategy.0.as_str();
        let fixed = if name == StrategyChoice::AUTO { None } else { Some(find(name)?) };
        Ok(Resolver { model: CostModel::for_view(view), fixed, tables: FxHashMap::default() })
    }

    /// Another for the same view, with nothing decided yet; a strategy that the view names is shared.
    pub(crate) fn fresh(&self) -> Resolver {
        Resolver { model: self.model, fixed: self.fixed.clone(), tables: FxHashMap::default() }
    }

    pub(crate) fn strategy(&mut self, bytes: u64, site: &Site) -> Arc<dyn Strategy> {
        if let Some(strategy) = &self.fixed {
            return strategy.clone();
        }
        let model = &self.model;
        let table = self
            .tables
            .entry(site.hosts.clone())
            .or_insert_with(|| AutoTable::new(&site.hosts, model));
        table.for_bytes(bytes).clone()
    }

    /// What a group on these hosts uses for which size, and why.
    pub(crate) fn table(&self, hosts: &[u32]) -> AutoTable {
        match &self.fixed {
            Some(strategy) => AutoTable::fixed(strategy.clone()),
            None => AutoTable::new(hosts, &self.model),
        }
    }
}
