//! Which strategy a tensor follows: the one the view names, or `auto`, decided once per view and group
//! from what all its members know alike, so that ranks cannot differ.

use crate::{
    cost::Roads,
    groups::Terrain,
    program::{Semantics, Site, Strategy},
    strategy::{AutoTable, CostModel, ParameterServer, UnknownStrategy, by_name, find, find_on},
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

/// Whether a strategy averages in groups what is to be mixed ([`ReduceOp::Mix`]), so that members come to differ.
pub fn mixes(choice: &StrategyChoice) -> bool {
    by_name(&choice.0).is_some_and(|strategy| strategy.semantics() == Semantics::Averaging)
}

/// A view's choice for all its groups.
#[derive(Debug)]
pub(crate) struct Resolver {
    model: CostModel,
    /// If the view's settings say where hosts sit.
    known: Option<Known>,
    fixed: Option<Fixed>,
    /// One table per layout of hosts: a job has a handful of groups.
    tables: FxHashMap<Arc<[u32]>, AutoTable>,
}

/// Where the hosts of a view sit and what joins them.
#[derive(Clone, Debug)]
struct Known {
    roads: Arc<Roads>,
    terrain: Option<Terrain>,
    /// For each host of the view, a worker on it.
    worker_on: Arc<[usize]>,
}

impl Known {
    /// Pricing runs every strategy's programs once: a second of a processor with so many members.
    const MOST_MEMBERS: usize = 256;

    fn of(view: &View) -> Option<Known> {
        let roads = Arc::new(Roads::of(view, view.settings.topology.as_ref()?)?);
        let mut worker_on = Vec::new();
        for (worker, host) in view.host_indices().into_iter().enumerate() {
            if host as usize == worker_on.len() {
                worker_on.push(worker);
            }
        }
        Some(Known { roads, terrain: Terrain::of_view(view), worker_on: worker_on.into() })
    }
}

/// The strategy that a view names.
#[derive(Clone, Debug)]
struct Fixed {
    /// Among all members of the view.
    everybody: Arc<dyn Strategy>,
    /// In groups. Members who only serve, serve the whole view: in a group everybody's contribution
    /// counts.
    groups: Arc<dyn Strategy>,
    /// Whether it averages in groups. What is not to be mixed must be exact, and is done as `auto` would.
    averages: bool,
}

impl Fixed {
    fn new(name: &str, view: &View) -> Result<Fixed, UnknownStrategy> {
        let everybody = find_on(name, Terrain::of_view(view))?;
        let members = view.size() as u32;
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
            name => Some(Fixed::new(name, view)?),
        };
        let (model, known) = (CostModel::for_view(view), Known::of(view));
        Ok(Resolver { model, known, fixed, tables: FxHashMap::default() })
    }

    /// Another for the same view, with nothing decided yet; a strategy that the view names is shared.
    pub(crate) fn fresh(&self) -> Resolver {
        let (known, fixed) = (self.known.clone(), self.fixed.clone());
        Resolver { model: self.model, known, fixed, tables: FxHashMap::default() }
    }

    /// `group`: whether the operation is one of a group, and not of the whole view.
    pub(crate) fn strategy(
        &mut self,
        bytes: u64,
        site: &Site,
        group: bool,
        reduce: ReduceOp,
    ) -> Arc<dyn Strategy> {
        let exact = reduce != ReduceOp::Mix;
        if let Some(fixed) = self.fixed.as_ref().filter(|fixed| !(fixed.averages && exact)) {
            return if group { fixed.groups.clone() } else { fixed.everybody.clone() };
        }
        let (model, known) = (&self.model, self.known.as_ref());
        let table = self
            .tables
            .entry(site.hosts.clone())
            .or_insert_with(|| table(model, known, &site.hosts));
        table.for_bytes(bytes).clone()
    }

    /// What a group on these hosts uses for which size, and why.
    pub(crate) fn table(&self, hosts: &[u32]) -> AutoTable {
        match &self.fixed {
            Some(fixed) => AutoTable::fixed(fixed.everybody.clone()),
            None => table(&self.model, self.known.as_ref(), &hosts.into()),
        }
    }
}

impl AutoTable {
    /// What all workers of a view use for which size where nobody named a strategy, and why.
    pub fn for_view(view: &View) -> AutoTable {
        let hosts: Arc<[u32]> = view.host_indices().into();
        table(&CostModel::for_view(view), Known::of(view).as_ref(), &hosts)
    }
}

fn table(model: &CostModel, known: Option<&Known>, hosts: &Arc<[u32]>) -> AutoTable {
    match known.filter(|_| hosts.len() <= Known::MOST_MEMBERS) {
        None => AutoTable::new(hosts, model),
        Some(Known { roads, terrain, worker_on }) => {
            let roads = roads.among(hosts.iter().map(|host| worker_on[*host as usize]));
            AutoTable::on_roads(hosts, &roads, terrain.as_ref(), model)
        }
    }
}
