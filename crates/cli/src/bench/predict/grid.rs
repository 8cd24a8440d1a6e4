//! Which cells there are: hosts and rates make a network, strategies and sizes what is done on it. Pure; it
//! knows neither clocks nor sockets.

use super::super::workload::Sizes;
use crate::exit::UsageError;
use anyhow::Result;
use paceline_job::{ByteSize, Host, Link, Rate, Settings, StrategyChoice, Topology, View};
use paceline_testbed::{Spec, Target};
use std::time::Duration;

/// From one size of a range to the next.
const SIZE_STEP: u64 = 4;

/// Between workers of one host. Every worker has a host of its own here, so nothing takes this way.
const MEMORY: f64 = 10e9;

/// Everything that is to be predicted and measured: each network with each strategy and size.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Numbers of hosts.
    pub hosts: Vec<usize>,
    /// What each host's wire carries.
    pub rates: Vec<Rate>,
    /// How all-reduces are programmed.
    pub strategies: Vec<StrategyChoice>,
    /// Bytes of the tensor.
    pub sizes: Vec<ByteSize>,
    /// What holds for all cells; the strategy is that of the cell.
    pub settings: Settings,
}

impl Grid {
    /// Refuses what cannot be measured, with the remedy.
    pub fn new(
        hosts: Vec<usize>,
        rates: Vec<Rate>,
        strategies: Vec<StrategyChoice>,
        sizes: &Sizes,
        settings: Settings,
    ) -> Result<Grid> {
        let refuse = |text: String| UsageError::new(text);
        if let Some(few) = hosts.iter().find(|hosts| **hosts < 2) {
            let text = format!("--hosts {few}: all-reduce needs two hosts or more");
            return Err(refuse(text).into());
        }
        settings.validate().map_err(|error| refuse(error.to_string()))?;
        let grid = Grid { hosts, rates, strategies, sizes: sizes.expand(SIZE_STEP)?, settings };
        for spec in grid.networks() {
            spec.validate().map_err(|error| refuse(error.to_string()))?;
        }
        Ok(grid)
    }

    /// The networks to build, one after another.
    pub fn networks(&self) -> Vec<Spec> {
        let pairs =
            self.hosts.iter().flat_map(|hosts| self.rates.iter().map(|rate| (*hosts, *rate)));
        pairs.map(|(hosts, rate)| Spec::new(hosts, rate)).collect()
    }

    /// The settings in force for a strategy.
    pub fn settings_of(&self, strategy: &StrategyChoice) -> Settings {
        Settings { strategy: strategy.clone(), ..self.settings.clone() }
    }

    /// Cells in all.
    pub fn cells(&self) -> usize {
        self.hosts.len() * self.rates.len() * self.strategies.len() * self.sizes.len()
    }
}

/// One worker on each host of the network.
pub fn view_of(spec: &Spec, settings: Settings) -> View {
    View::on_hosts((0..spec.hosts).map(host_name).collect(), settings)
}

/// The network as the replay sees it: nominal rates, and the latency that was measured on it while it was idle.
pub fn topology_of(spec: &Spec, latency: Duration) -> Result<Topology> {
    let link = |target| Ok(Link { rate: spec.rate_of(target)?, latency });
    let host = |number: usize| -> Result<Host> {
        let rack = spec.rack_of(number) as u32;
        Ok(Host { name: host_name(number), rack, link: link(Target::Host(number))? })
    };
    let racks = if spec.racks > 1 { spec.racks } else { 0 };
    Ok(Topology {
        hosts: (0..spec.hosts).map(host).collect::<Result<_>>()?,
        uplinks: (0..racks).map(|rack| link(Target::Rack(rack))).collect::<Result<_>>()?,
        memory: Link { rate: Rate::from_bytes_per_second(MEMORY), latency: Duration::ZERO },
    })
}

fn host_name(number: usize) -> String {
    format!("host{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn grid(hosts: Vec<usize>, settings: Settings) -> Result<Grid> {
        let strategies = vec![StrategyChoice("ring".into()), StrategyChoice("gossip".into())];
        let sizes = "1MiB..16MiB".parse().unwrap();
        Grid::new(hosts, vec![rate("100mbit"), rate("1gbit")], strategies, &sizes, settings)
    }

    #[test]
    fn every_network_meets_every_strategy_and_size() {
        let grid = grid(vec![4, 8], Settings::default()).unwrap();
        let networks: Vec<(usize, Rate)> =
            grid.networks().iter().map(|spec| (spec.hosts, spec.rate)).collect();
        let (slow, fast) = (rate("100mbit"), rate("1gbit"));
        assert_eq!(networks, [(4, slow), (4, fast), (8, slow), (8, fast)]);
        assert_eq!(grid.sizes, [ByteSize::mib(1), ByteSize::mib(4), ByteSize::mib(16)]);
        assert_eq!(grid.cells(), 2 * 2 * 2 * 3);
        assert_eq!(grid.settings_of(&grid.strategies[1]).strategy.0, "gossip");
    }

    #[test]
    fn what_cannot_be_measured_is_wrong_usage() {
        let no_credit = Settings { credit: ByteSize(0), ..Settings::default() };
        for wrong in [grid(vec![4, 1], Settings::default()), grid(vec![4], no_credit)] {
            assert!(wrong.unwrap_err().is::<UsageError>());
        }
        assert!(grid(vec![100_000], Settings::default()).unwrap_err().is::<UsageError>());
    }

    #[test]
    fn each_worker_has_a_host_and_each_host_the_wire_of_the_testbed() {
        let mut spec = Spec::new(4, rate("500mbit"));
        spec.racks = 2;
        spec.uplink = Some(rate("250mbit"));
        spec.host_rates.insert(3, rate("100mbit"));
        let latency = Duration::from_micros(70);
        let topology = topology_of(&spec, latency).unwrap();
        let view = view_of(&spec, Settings::default());
        assert_eq!(view.host_indices(), [0, 1, 2, 3]);
        let hosts: Vec<(u32, Rate)> =
            topology.hosts.iter().map(|host| (host.rack, host.link.rate)).collect();
        let (fast, slow) = (rate("500mbit"), rate("100mbit"));
        assert_eq!(hosts, [(0, fast), (0, fast), (1, fast), (1, slow)]);
        assert_eq!(topology.uplinks, [Link { rate: rate("250mbit"), latency }; 2]);
        assert!(view.workers.iter().zip(&topology.hosts).all(|(w, h)| w.host == h.name));
    }
}
