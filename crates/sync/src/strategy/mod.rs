//! Strategies: ways to all-reduce, one file each, and the registry that knows them by name.
//!
//! A strategy is a pure function to programs, so the checker can prove it for any group and the
//! replay can run it in virtual time. Nothing here knows bytes, time or transports; only `auto`,
//! which prices, knows rates.

mod alone;
mod auto;
pub(crate) mod demand;
mod double_tree;
mod fold;
mod gossip;
mod hierarchical;
mod layout;
mod one_shot;
mod pair;
mod parameter_server;
mod recursive_doubling;
mod ring;
mod shuffle;

pub use auto::{AutoTable, Choice, CostModel, choose};
pub use double_tree::DoubleTree;
pub use gossip::Gossip;
pub use hierarchical::Hierarchical;
pub use layout::{Layout, Place};
pub use one_shot::OneShot;
pub use parameter_server::ParameterServer;
pub use recursive_doubling::RecursiveDoubling;
pub use ring::Ring;
pub use shuffle::Shuffle;

use crate::{
    groups::Terrain,
    program::{Semantics, Strategy},
};
use std::sync::Arc;

/// Every strategy with its usual parameters, in the order people should meet them.
pub fn all() -> Vec<Arc<dyn Strategy>> {
    vec![
        Arc::new(Ring::default()),
        Arc::new(DoubleTree::default()),
        Arc::new(Hierarchical::default()),
        Arc::new(ParameterServer::default()),
        Arc::new(RecursiveDoubling::default()),
        Arc::new(OneShot),
        Arc::new(Gossip),
        Arc::new(Shuffle::default()),
    ]
}

/// Those that leave the same sum on every member.
pub fn exact() -> Vec<Arc<dyn Strategy>> {
    let mut strategies = all();
    strategies.retain(|strategy| strategy.semantics() == Semantics::Reduce);
    strategies
}

/// The strategy that a command or plan file names, with its parameter if it has one: `ring`,
/// `parameter_server`, `parameter_server:2`, `parameter_server:2:apart`, `hierarchical:racks`, `shuffle:16`. The name
/// `auto` is not one: see [`AutoTable`].
pub fn by_name(name: &str) -> Option<Arc<dyn Strategy>> {
    on_terrain(name, None)
}

fn on_terrain(name: &str, terrain: Option<Terrain>) -> Option<Arc<dyn Strategy>> {
    let (name, parameters) = match name.split_once(':') {
        None => (name, None),
        Some((name, parameters)) => (name, Some(parameters)),
    };
    match (name, parameters) {
        (Shuffle::NAME, parameters) => {
            Some(Arc::new(Shuffle::with_parameters(parameters, terrain)?))
        }
        (name, None) => all().into_iter().find(|strategy| strategy.name() == name),
        (Hierarchical::NAME, Some(Hierarchical::RACKS)) => {
            Some(Arc::new(Hierarchical::of_racks(terrain)))
        }
        (ParameterServer::NAME, Some(parameters)) => {
            Some(Arc::new(ParameterServer::with_parameters(parameters)?))
        }
        (_, Some(_)) => None,
    }
}

/// As [`by_name`], with an error that lists what there is.
pub fn find(name: &str) -> Result<Arc<dyn Strategy>, UnknownStrategy> {
    by_name(name).ok_or_else(|| UnknownStrategy(name.to_string()))
}

/// As [`find`], for hosts of which it is known where they sit.
pub fn find_on(name: &str, terrain: Option<Terrain>) -> Result<Arc<dyn Strategy>, UnknownStrategy> {
    on_terrain(name, terrain).ok_or_else(|| UnknownStrategy(name.to_string()))
}

/// No strategy has this name: use one of those listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown strategy `{0}`; known: auto, {names}, parameter_server:<servers>, \
     parameter_server:<servers>:apart, hierarchical:racks and shuffle:<steps>",
    names = names()
)]
pub struct UnknownStrategy(pub String);

fn names() -> String {
    all().iter().map(|strategy| strategy.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_found_by_its_name() {
        for strategy in all() {
            assert_eq!(find(&strategy.name()).unwrap().name(), strategy.name());
            assert!(strategy.about().ends_with('.'));
        }
    }

    #[test]
    fn a_name_keeps_its_parameter() {
        for name in [
            "parameter_server",
            "parameter_server:1",
            "parameter_server:2:apart",
            "hierarchical:racks",
            "shuffle:16",
        ] {
            assert_eq!(find(name).unwrap().name(), name);
        }
        assert_eq!(find("parameter_server:02").unwrap().name(), "parameter_server:2");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let servers = ["0", "x", "", "2:", "2:far", "0:apart", "2:apart:3"];
        let servers = servers.map(|wrong| format!("parameter_server:{wrong}"));
        let others =
            ["rong", "ring:3", "", "hierarchical:", "shuffle:0", "shuffle:x"].map(str::to_string);
        for wrong in servers.iter().chain(&others) {
            let error = find(wrong).unwrap_err().to_string();
            assert!(error.contains("ring, double_tree"), "{error}");
        }
    }
}
