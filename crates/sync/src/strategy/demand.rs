//! What a strategy asks of the network for one chunk, as numbers that a cost model can price.
//!
//! Each strategy states its own demand in a closed formula; a test counts the same numbers from its
//! programs. It knows nothing of rates or latencies.

/// The same quantity inside hosts and between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sides<T> {
    /// Between members of one host.
    pub memory: T,
    /// Between hosts.
    pub wire: T,
}

/// What one chunk demands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Messages one after another on the longest way from a contribution to the last result.
    pub rounds: Sides<u32>,
    /// Bytes that pass one after another on that way.
    pub path_bytes: Sides<f64>,
    /// Bytes that the busiest member moves through memory, and the busiest host over its wire, one
    /// way. When many chunks follow each other, this is what limits them.
    pub busiest_bytes: Sides<f64>,
    /// Messages that the busiest member sends.
    pub messages: u32,
    /// How many hosts send to the same one at once.
    pub fan_in: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checker::{Delivery, trace},
        program::{Program, Site, Span, Strategy},
        strategy::{
            DoubleTree, Hierarchical, Layout, OneShot, ParameterServer, RecursiveDoubling, Ring,
            double_tree, hierarchical, one_shot, parameter_server, recursive_doubling, ring,
        },
    };
    use std::{collections::HashMap, hash::Hash, sync::Arc};

    fn messages(strategy: &dyn Strategy, hosts: &[u32], len: u64) -> Vec<Delivery> {
        let hosts: Arc<[u32]> = hosts.into();
        let programs: Vec<Box<dyn Program>> = (0..hosts.len() as u32)
            .map(|me| {
                let site = Site { hosts: hosts.clone(), me, step: 0, seed: 0 };
                strategy.program(&site, Span { offset: 0, len })
            })
            .collect();
        trace(&programs).unwrap()
    }

    /// The largest sum over messages with the same key.
    fn busiest<K: Hash + Eq>(counted: impl Iterator<Item = (K, u64)>) -> u64 {
        let mut sums: HashMap<K, u64> = HashMap::new();
        for (key, amount) in counted {
            *sums.entry(key).or_default() += amount;
        }
        sums.into_values().max().unwrap_or(0)
    }

    /// Counted from the programs: rounds, messages, and the busiest bytes of either side.
    fn counted(deliveries: &[Delivery], hosts: &[u32]) -> (u32, u64, Sides<f64>) {
        let host = |member: u32| hosts[member as usize];
        let (near, far): (Vec<&Delivery>, Vec<&Delivery>) =
            deliveries.iter().partition(|each| host(each.send.member) == host(each.receive.member));
        let rounds = deliveries.iter().map(|each| each.arrives).max().unwrap_or(0);
        let sent = busiest(deliveries.iter().map(|each| (each.send.member, 1)));
        let memory_out = busiest(near.iter().map(|each| (each.send.member, each.len)));
        let memory_in = busiest(near.iter().map(|each| (each.receive.member, each.len)));
        let wire_out = busiest(far.iter().map(|each| (host(each.send.member), each.len)));
        let wire_in = busiest(far.iter().map(|each| (host(each.receive.member), each.len)));
        let bytes =
            Sides { memory: memory_out.max(memory_in) as f64, wire: wire_out.max(wire_in) as f64 };
        (rounds, sent, bytes)
    }

    #[test]
    fn what_strategies_say_they_demand_is_what_their_programs_send() {
        let ring_strategy = Ring::default();
        let doubling = RecursiveDoubling::default();
        let server = ParameterServer::default();
        let hierarchy = Hierarchical::default();
        type Formula = fn(&Layout, f64) -> Demand;
        let exact: [(&dyn Strategy, Formula); 5] = [
            (&ring_strategy, ring::demand),
            (&OneShot, one_shot::demand),
            (&doubling, recursive_doubling::demand),
            (&server, parameter_server::demand),
            (&hierarchy, hierarchical::demand),
        ];
        let even = |hosts: u32, each: u32| (0..hosts * each).map(|member| member / each).collect();
        let layouts: [Vec<u32>; 5] = [even(1, 2), even(1, 8), even(8, 1), even(2, 4), even(4, 4)];
        for (strategy, formula) in exact {
            for hosts in &layouts {
                let len = 4096;
                let found = counted(&messages(strategy, hosts, len), hosts);
                let said = formula(&Layout::new(hosts), len as f64);
                let said_rounds = said.rounds.memory + said.rounds.wire;
                let said = (said_rounds, u64::from(said.messages), said.busiest_bytes);
                assert_eq!(said, found, "{} on {hosts:?}", strategy.name());
            }
        }
    }

    #[test]
    fn two_trees_demand_what_they_say_on_any_layout() {
        for (hosts, each) in [(1, 2), (1, 8), (8, 1), (2, 4), (4, 4), (3, 5), (1, 33)] {
            let hosts: Vec<u32> = (0..hosts * each).map(|member| member / each).collect();
            let (rounds, sent, bytes) =
                counted(&messages(&DoubleTree::default(), &hosts, 4096), &hosts);
            let said = double_tree::demand(&Layout::new(&hosts), 4096.0);
            assert_eq!(said.rounds.memory + said.rounds.wire, rounds, "{hosts:?}");
            assert!(sent <= u64::from(said.messages), "{hosts:?}");
            assert_eq!(said.busiest_bytes, bytes, "{hosts:?}");
        }
    }
}
