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
mod parameter_server;
mod recursive_doubling;
mod ring;

pub use auto::{AutoTable, Choice, CostModel, choose};
pub use double_tree::DoubleTree;
pub use gossip::Gossip;
pub use hierarchical::Hierarchical;
pub use layout::{Layout, Place};
pub use one_shot::OneShot;
pub use parameter_server::ParameterServer;
pub use recursive_doubling::RecursiveDoubling;
pub use ring::Ring;

use crate::program::Strategy;
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
    ]
}

/// The strategy that a command or plan file names, with its parameter if it has one: `ring`,
/// `parameter_server`, `parameter_server:2`, `parameter_server:2:apart`. The name `auto` is not one: see [`AutoTable`].
pub fn by_name(name: &str) -> Option<Arc<dyn Strategy>> {
    match name.split_once(':') {
        None => all().into_iter().find(|strategy| strategy.name() == name),
        Some((ParameterServer::NAME, parameters)) => {
            Some(Arc::new(ParameterServer::with_parameters(parameters)?))
        }
        Some(_) => None,
    }
}

/// As [`by_name`], with an error that lists what there is.
pub fn find(name: &str) -> Result<Arc<dyn Strategy>, UnknownStrategy> {
    by_name(name).ok_or_else(|| UnknownStrategy(name.to_string()))
}

/// No strategy has this name: use one of those listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown strategy `{0}`; known: auto, {names}, parameter_server:<servers> and \
     parameter_server:<servers>:apart",
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
        for name in ["parameter_server", "parameter_server:1", "parameter_server:2:apart"] {
            assert_eq!(find(name).unwrap().name(), name);
        }
        assert_eq!(find("parameter_server:02").unwrap().name(), "parameter_server:2");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let servers = ["0", "x", "", "2:", "2:far", "0:apart", "2:apart:3"];
        let servers = servers.map(|wrong| format!("parameter_server:{wrong}"));
        let others = ["rong", "ring:3", ""].map(str::to_string);
        for wrong in servers.iter().chain(&others) {
            let error = find(wrong).unwrap_err().to_string();
            assert!(error.contains("ring, double_tree"), "{error}");
        }
    }
}
