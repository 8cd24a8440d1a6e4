//! Which cells there are: hosts and rates make a network, strategies and sizes what is done on it. Pure; it
//! knows neither clocks nor sockets.

use super::super::workload::Sizes;
use crate::exit::UsageError;
use anyhow::Result;
use paceline_job::{
    ByteSize, Contended, Host, Link, Rate, Settings, StrategyChoice, Topology, View,
};
use paceline_testbed::{Seat, Spec, Target};
use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

/// From one size of a range to the next.
const SIZE_STEP: u64 = 4;

/// Between workers of one host. Every worker has a host of its own here, so nothing takes this way.
const MEMORY: f64 = 10e9;

/// How hosts are joined, besides their number and their wires' rate.
#[derive(Clone, Debug, Default)]
pub struct Racks {
    /// How many there are; none is as good as one.
    pub racks: usize,
    /// What each rack's uplink carries.
    pub uplink: Option<Rate>,
    /// Links that carry less than the others, as if somebody else used them.
    pub slow: Slow,
    /// Links that somebody else does use, and what that takes of them.
    pub background: Slow,
}

impl Racks {
    /// What is left to the job of links that others slow down, in this network.
    pub fn left(&self, spec: &Spec) -> Slow {
        let mut left = self.slow.clone();
        for (link, taken) in &self.background {
            // A link that is not there was refused.
            let whole = left.get(link).copied().or_else(|| spec.rate_of(*link).ok());
            if let Some(whole) = whole {
                let rest = whole.bytes_per_second() - taken.bytes_per_second();
                left.insert(*link, Rate::from_bytes_per_second(rest));
            }
        }
        left
    }

    /// Somebody else's hosts, which others' traffic on these links needs: two for each uplink, inside the rack and beyond the core, and for each host's
    /// wire one in its rack.
    fn neighbours(&self, spec: &Spec) -> Vec<Seat> {
        let seats = self.background.keys().map(|link| match *link {
            Target::Rack(rack) => vec![Seat::Rack(rack), Seat::Core],
            Target::Host(host) => vec![Seat::Rack(spec.rack_of(host))],
        });
        seats.flatten().collect()
    }

    /// Between which hosts others' traffic goes, and how much.
    pub fn loads(&self, spec: &Spec) -> Vec<((usize, usize), Rate)> {
        let mut neighbours = spec.hosts..;
        let mut next = || neighbours.next().unwrap_or(spec.hosts);
        let pair = |(link, taken): (&Target, &Rate)| match *link {
            Target::Rack(_) => ((next(), next()), *taken),
            Target::Host(host) => ((host, next()), *taken),
        };
        self.background.iter().map(pair).collect()
    }
}

/// Links that carry less than they should.
pub type Slow = BTreeMap<Target, Rate>;

/// One of them, as people write it: `rack1=10mbit`.
#[derive(Clone, Copy, Debug)]
pub struct SlowLink(pub Target, pub Rate);

impl FromStr for SlowLink {
    type Err = String;

    fn from_str(text: &str) -> Result<SlowLink, String> {
        let (link, rate) =
            text.split_once('=').ok_or("it is a link and a rate, such as rack1=10mbit")?;
        Ok(SlowLink(link.parse()?, rate.parse().map_err(|_| format!("`{rate}` is no rate"))?))
    }
}

/// Everything that is to be predicted and measured: each network with each strategy and size.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Numbers of hosts.
    pub hosts: Vec<usize>,
    /// What each host's wire carries.
    pub rates: Vec<Rate>,
    /// How hosts are joined.
    pub racks: Racks,
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
        racks: Racks,
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
        let sizes = sizes.expand(SIZE_STEP)?;
        let grid = Grid { hosts, rates, racks, strategies, sizes, settings };
        for spec in grid.networks() {
            spec.validate().map_err(|error| refuse(error.to_string()))?;
            for link in grid.racks.slow.keys().chain(grid.racks.background.keys()) {
                spec.rate_of(*link).map_err(|error| refuse(error.to_string()))?;
                if matches!(link, Target::Host(host) if *host >= spec.hosts) {
                    let last = spec.hosts - 1;
                    return Err(
                        refuse(format!("no {link}; the hosts are host0 to host{last}")).into()
                    );
                }
            }
            for (link, taken) in &grid.racks.background {
                let slow = grid.racks.slow.get(link).copied();
                let whole = slow.or_else(|| spec.rate_of(*link).ok());
                if whole.is_some_and(|whole| taken.bytes_per_second() >= whole.bytes_per_second()) {
                    let text = format!("--background {link}: it takes all of the link; leave some");
                    return Err(refuse(text).into());
                }
            }
        }
        Ok(grid)
    }

    /// The networks to build, one after another.
    pub fn networks(&self) -> Vec<Spec> {
        let pairs =
            self.hosts.iter().flat_map(|hosts| self.rates.iter().map(|rate| (*hosts, *rate)));
        let Racks { racks, uplink, .. } = self.racks;
        let bare = |(hosts, rate)| Spec { racks: racks.max(1), uplink, ..Spec::new(hosts, rate) };
        pairs
            .map(bare)
            .map(|spec| Spec { neighbours: self.racks.neighbours(&spec), ..spec })
            .collect()
    }

    /// The settings in force for a strategy. Where there are racks, they say so, and which links are slow.
    pub fn settings_of(&self, strategy: &StrategyChoice, spec: &Spec) -> Result<Settings> {
        let settings = Settings { strategy: strategy.clone(), ..self.settings.clone() };
        if spec.racks == 1 {
            return Ok(settings);
        }
        let mut contended = Contended::default();
        for link in self.racks.slow.keys().chain(self.racks.background.keys()) {
            match link {
                Target::Host(host) => drop(contended.hosts.insert(host_name(*host))),
                Target::Rack(rack) => drop(contended.racks.insert(*rack as u32)),
            }
        }
        let topology = Arc::new(topology_of(spec, &Slow::new(), Duration::from_micros(50))?);
        Ok(Settings { topology: Some(topology), contended, ..settings })
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
pub fn topology_of(spec: &Spec, slow: &Slow, latency: Duration) -> Result<Topology> {
    let link = |target| {
        let rate = slow.get(&target).copied().map_or_else(|| spec.rate_of(target), Ok)?;
        Ok(Link { rate, latency })
    };
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

/// What a worker calls its host.
pub fn host_name(number: usize) -> String {
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
        let (rates, racks) = (vec![rate("100mbit"), rate("1gbit")], Racks::default());
        Grid::new(hosts, rates, racks, strategies, &sizes, settings)
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
        let settings = grid.settings_of(&grid.strategies[1], &grid.networks()[0]).unwrap();
        assert_eq!((settings.strategy.0.as_str(), settings.topology), ("gossip", None));
    }

    #[test]
    fn others_who_leave_nothing_of_a_link_are_refused() {
        for taken in ["100mbit", "2gbit"] {
            let background = [(Target::Host(1), rate(taken))].into();
            let racks = Racks { background, ..Racks::default() };
            let (strategies, sizes) =
                (vec![StrategyChoice("ring".into())], "1MiB".parse().unwrap());
            let settings = Settings::default();
            let grid =
                Grid::new(vec![4], vec![rate("100mbit")], racks, strategies, &sizes, settings);
            let error = grid.err().unwrap().to_string();
            assert!(error.contains("takes all of the link"), "{error}");
        }
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
        let topology = topology_of(&spec, &Slow::new(), latency).unwrap();
        let view = view_of(&spec, Settings::default());
        assert_eq!(view.host_indices(), [0, 1, 2, 3]);
        let hosts: Vec<(u32, Rate)> =
            topology.hosts.iter().map(|host| (host.rack, host.link.rate)).collect();
        let (fast, slow) = (rate("500mbit"), rate("100mbit"));
        assert_eq!(hosts, [(0, fast), (0, fast), (1, fast), (1, slow)]);
        assert_eq!(topology.uplinks, [Link { rate: rate("250mbit"), latency }; 2]);
        assert!(view.workers.iter().zip(&topology.hosts).all(|(w, h)| w.host == h.name));
    }

    #[test]
    fn settings_name_racks_and_slow_links_and_the_topology_has_their_rates() {
        let slow: Slow = ["rack1=10mbit", "host0=20mbit"]
            .map(|text| text.parse::<SlowLink>().map(|SlowLink(link, rate)| (link, rate)).unwrap())
            .into();
        let background = Slow::from([(Target::Rack(0), rate("30mbit"))]);
        let racks =
            Racks { racks: 2, uplink: Some(rate("100mbit")), slow: slow.clone(), background };
        let strategies = vec![StrategyChoice("shuffle".into())];
        let sizes = "1MiB".parse().unwrap();
        let rates = vec![rate("100mbit")];
        let grid =
            Grid::new(vec![4], rates, racks, strategies, &sizes, Settings::default()).unwrap();
        let spec = &grid.networks()[0];
        let settings = grid.settings_of(&grid.strategies[0], spec).unwrap();
        assert_eq!(settings.contended.racks.iter().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(settings.contended.hosts.first().map(String::as_str), Some("host0"));
        let nominal = settings.topology.unwrap();
        assert_eq!(nominal.uplinks[1].rate, rate("100mbit"));
        assert_eq!(spec.neighbours, [Seat::Rack(0), Seat::Core]);
        assert_eq!(grid.racks.loads(spec), [((4, 5), rate("30mbit"))]);
        let left = grid.racks.left(spec);
        let real = topology_of(spec, &left, Duration::ZERO).unwrap();
        assert_eq!(real.uplinks[0].rate, rate("70mbit"));
        assert_eq!(
            (real.uplinks[1].rate, real.hosts[0].link.rate),
            (rate("10mbit"), rate("20mbit"))
        );
        assert!("rack1".parse::<SlowLink>().is_err() && "wire=1mbit".parse::<SlowLink>().is_err());
    }
}
