//! Networks to learn from: how many workers on how many hosts, their wires, who contends with whom, who computes slowly.
//! All of it follows from a seed.

use paceline_job::{Host, Link, Measured, Rate, Settings, Topology, View};
use paceline_learn::Random;
use paceline_replay::{ClusterConfig, NetworkConfig, WorkerConfig};
use std::time::Duration;

/// Numbers of workers that are tried, the usual ones more often.
const WORKERS: [usize; 12] = [2, 2, 3, 4, 4, 4, 4, 4, 6, 8, 8, 16];

/// Workers and what joins them.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// Of each worker.
    pub hosts: Vec<String>,
    /// Wires, contention included.
    pub topology: Topology,
    /// What workers and kernels are like.
    pub config: ClusterConfig,
    /// How much longer each worker computes than the fastest.
    pub slowness: Vec<f64>,
    /// What a step computes besides its layers, as a share of theirs.
    pub rest: f64,
    /// Whether tensors cross the step.
    pub crosses_step: bool,
}

impl Environment {
    /// One of very many.
    pub fn invented(random: &mut Random) -> Environment {
        let workers = WORKERS[random.place(WORKERS.len())];
        let on_each = match random.below(10) {
            0 if workers.is_multiple_of(4) && workers > 4 => 4,
            0..=2 if workers.is_multiple_of(2) && workers > 2 => 2,
            _ => 1,
        };
        let hosts: Vec<String> =
            (0..workers).map(|rank| format!("host{}", rank / on_each)).collect();
        let count = workers / on_each;
        let latency = Duration::from_secs_f64(random.ratio(10e-6, 300e-6));
        let rate = random.ratio(50e6 / 8.0, 120e9 / 8.0);
        let (shares, uplink) = contention(count, random);
        let link = |rate: f64, latency| Link { rate: Rate::from_bytes_per_second(rate), latency };
        let in_second_rack = |place: usize| uplink.is_some() && place >= count / 2;
        let host = |(place, share): (usize, f64)| Host {
            name: format!("host{place}"),
            rack: u32::from(in_second_rack(place)),
            link: link(rate * share, latency),
        };
        let uplinks =
            uplink.map_or(Vec::new(), |share| vec![link(rate * share, Duration::ZERO); 2]);
        let topology = Topology {
            hosts: shares.into_iter().enumerate().map(host).collect(),
            uplinks,
            memory: link(
                random.ratio(2e9, 1e10),
                Duration::from_secs_f64(random.ratio(3e-6, 2e-5)),
            ),
        };
        let network = NetworkConfig { jitter: latency / 3, ..NetworkConfig::default() };
        let worker = WorkerConfig {
            per_frame: Duration::from_secs_f64(random.ratio(1e-6, 20e-6)),
            combine_rate: Some(Rate::from_bytes_per_second(random.ratio(1e9, 1e10))),
            ..WorkerConfig::default()
        };
        let seed = random.bits();
        let config = ClusterConfig { network, worker, seed, ..ClusterConfig::default() };
        Environment {
            slowness: stragglers(workers, random),
            hosts,
            topology,
            config,
            rest: if random.chance(0.5) { 0.0 } else { random.between(0.0, 0.15) },
            crosses_step: random.chance(0.8),
        }
    }

    /// The view that such workers would agree on.
    pub fn view(&self, settings: Settings) -> View {
        let wire = Some(self.topology.bottleneck());
        let measured = Measured { memory: Some(self.topology.memory), wire };
        View { measured, ..View::on_hosts(self.hosts.clone(), settings) }
    }

    /// What a worker's wire carries, in bytes a second.
    pub fn rate(&self, rank: usize) -> f64 {
        let named = |host: &&Host| self.hosts.get(rank) == Some(&host.name);
        let host = self.topology.hosts.iter().find(named);
        host.map_or(0.0, |host| host.link.rate.bytes_per_second())
    }

    /// Whether workers, hosts and wires are all alike, each worker on a host of its own: one may stand for all then.
    pub fn is_even(&self) -> bool {
        let slowness = self.slowness.windows(2).all(|pair| pair[0] == pair[1]);
        let wires = self.topology.hosts.windows(2).all(|pair| pair[0].link == pair[1].link);
        let apart = self.topology.hosts.len() == self.hosts.len();
        apart && slowness && wires && self.topology.uplinks.is_empty()
    }
}

/// What contention leaves of each host's wire, and of a wire's rate for the uplink of each of two racks, if there are
/// any.
fn contention(hosts: usize, random: &mut Random) -> (Vec<f64>, Option<f64>) {
    let mut shares = vec![1.0; hosts];
    match random.below(10) {
        // One host.
        0..=3 => shares[random.place(hosts)] = random.ratio(0.05, 0.8),
        // As many as share a switch.
        4 => {
            let share = random.ratio(0.1, 0.8);
            shares[hosts / 2..].fill(share);
        }
        // Everywhere a little.
        5 => shares.iter_mut().for_each(|share| *share = random.between(0.5, 1.0)),
        // What joins two racks.
        6 if hosts >= 4 => return (shares, Some(random.ratio(0.05, 1.5))),
        _ => {}
    }
    (shares, None)
}

fn stragglers(workers: usize, random: &mut Random) -> Vec<f64> {
    let mut slowness = vec![1.0; workers];
    match random.below(10) {
        0..=2 => slowness[random.place(workers)] = random.between(1.2, 3.0),
        3..=4 => slowness.iter_mut().for_each(|slow| *slow = random.between(1.0, 1.2)),
        _ => {}
    }
    slowness
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_networks_come_up_and_the_same_seed_gives_the_same() {
        let of = |seed| Environment::invented(&mut Random::new(seed));
        assert_eq!(of(3), of(3));
        let many: Vec<Environment> = (0..200).map(of).collect();
        assert!(many.iter().any(Environment::is_even));
        assert!(many.iter().any(|one| !one.is_even()));
        assert!(many.iter().any(|one| one.topology.hosts.len() < one.hosts.len()));
        assert!(many.iter().any(|one| !one.topology.uplinks.is_empty()));
        for one in &many {
            assert!((0..one.hosts.len()).all(|rank| one.rate(rank) > 0.0));
        }
    }
}
