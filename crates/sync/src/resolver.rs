//! Which strategy a tensor follows: the one the view names, or `auto`, decided once per view and group
//! from what all its members know alike, so that ranks cannot differ.

use crate::{
    program::{Semantics, Site, Strategy},
    strategy::{AutoTable, CostModel, ParameterServer, UnknownStrategy, find},
};
use paceline_job::{ReduceOp, StrategyChoice, View};
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
    fixed: Option<Fixed>,
    /// One table per layout of hosts: a job has a handful of groups.
    tables: FxHashMap<Arc<[u32]>, AutoTable>,
}

/// The strategy that a view names.
#[derive(Clone, Debug)]
struct Fixed {
    /// Among all members of the view.
    everybody: Arc<dyn Strategy>,
    /// In groups. Members who only serve, serve the whole view: in a group everybody's contribution
    /// counts.
    groups: Arc<dyn Strategy>,
    /// Whether it averages. What is not an average must be exact, and is done as `auto` would.
    averages: bool,
}

impl Fixed {
    fn new(name: &str, members: u32) -> Result<Fixed, UnknownStrategy> {
        let everybody = find(name)?;
        let groups = match everybody.contributors(members) {
            workers if workers < members => Arc::new(ParameterServer::All),
            _ => everybody.clone(),
        };
        let averages = everybody.semantics() == Semantics::Averaging;
        Ok(Fixed { everybody, groups, averages })
    }
}

impl Resolver {
    pub(crate) fn for_view(view: &View) -> Result<Resolver, UnknownStrategy> {
        let fixed = match view.settings.strategy.0.as_str() {
            StrategyChoice::AUTO => None,
            name => Some(Fixed::new(name, view.size() as u32)?),
        };
        Ok(Resolver { model: CostModel::for_view(view), fixed, tables: FxHashMap::default() })
    }

    /// Another for the same view, with nothing decided yet; a strategy that the view names is shared.
    pub(crate) fn fresh(&self) -> Resolver {
        Resolver { model: self.model, fixed: self.fixed.clone(), tables: FxHashMap::default() }
    }

    /// `group`: whether the operation is one of a group, and not of the whole view.
    pub(crate) fn strategy(
        &mut self,
        bytes: u64,
        site: &Site,
        group: bool,
        reduce: ReduceOp,
    ) -> Arc<dyn Strategy> {
        let exact = reduce != ReduceOp::Average;
        if let Some(fixed) = self.fixed.as_ref().filter(|fixed| !(fixed.averages && exact)) {
            return if group { fixed.groups.clone() } else { fixed.everybody.clone() };
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
            Some(fixed) => AutoTable::fixed(fixed.everybody.clone()),
            None => AutoTable::new(hosts, &self.model),
        }
    }
}
