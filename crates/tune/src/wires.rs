//! What joins the workers, as far as they measured it: a rate for every host, and racks where neighbours reach each other
//! more slowly than either reaches anybody else. What is sent over it is not known here.

use crate::Surroundings;
use paceline_job::{Host, Link, Rate, Topology};
use paceline_sync::metrics::JobMetrics;

/// A way between neighbours that is slower than both hosts by this factor crosses something slow between them. Less may be
/// noise.
const SLOW_BETWEEN: f64 = 0.6;

/// `None` if no worker that has others to reach measured a rate.
///
/// What a worker sends and receives most is exchanged with the workers before and after it, in rings and in blocks of
/// servers alike. A slow host shows on both of its ways; something slow between hosts shows on one way of each of the two
/// hosts beside it, and on neither of their others.
pub(crate) fn wires(seen: &JobMetrics, surroundings: &Surroundings) -> Option<Topology> {
    let mut names: Vec<&String> = Vec::new();
    for host in &surroundings.hosts {
        if !names.contains(&host) {
            names.push(host);
        }
    }
    let measured = |name: &str| {
        let on = seen.workers.iter().zip(&surroundings.hosts);
        let workers = on.filter(|(_, host)| **host == name).map(|(worker, _)| worker);
        let most = |pick: fn(&paceline_sync::metrics::WorkerMetrics) -> f64| {
            workers.clone().map(pick).filter(|rate| rate.is_finite()).fold(0.0, f64::max)
        };
        (most(|worker| worker.upload), most(|worker| worker.download))
    };
    let rates: Vec<(f64, f64)> = names.iter().map(|name| measured(name)).collect();
    let fastest = rates.iter().map(|(up, down)| up.max(*down)).fold(0.0, f64::max);
    if fastest <= 0.0 {
        return None;
    }
    // A worker that measured nothing is taken to be like the fastest: it holds nobody up.
    let own = |(up, down): &(f64, f64)| Some(up.max(*down)).filter(|rate| *rate > 0.0);
    let own: Vec<f64> = rates.iter().map(|rates| own(rates).unwrap_or(fastest)).collect();
    let link =
        |rate| Link { rate: Rate::from_bytes_per_second(rate), latency: surroundings.latency };
    let racks = racks(&rates, &own);
    let hosts = names.iter().enumerate().map(|(place, name)| Host {
        name: (*name).clone(),
        rack: racks.as_ref().map_or(0, |(racks, _)| racks[place]),
        link: link(own[place]),
    });
    let hosts = hosts.collect();
    let uplinks = racks.map_or(Vec::new(), |(_, uplinks)| uplinks.into_iter().map(link).collect());
    // Uplinks of their own take no time besides their bytes.
    let uplinks = uplinks.into_iter().map(|link| Link { latency: Default::default(), ..link });
    Some(Topology { hosts, uplinks: uplinks.collect(), memory: surroundings.memory })
}

/// The rack of each host and what each rack's uplink carries, if slow ways between neighbours part them.
fn racks(rates: &[(f64, f64)], own: &[f64]) -> Option<(Vec<u32>, Vec<f64>)> {
    let count = rates.len();
    let slow = |from: usize| {
        let to = (from + 1) % count;
        let (up, down) = (rates[from].0, rates[to].1);
        let way = if up > 0.0 && down > 0.0 { up.max(down) } else { return None };
        (way < SLOW_BETWEEN * own[from].min(own[to])).then_some(way)
    };
    let ways: Vec<Option<f64>> = (0..count).map(slow).collect();
    if ways.iter().flatten().count() < 2 {
        return None;
    }
    // What lies between two slow ways is a rack; hosts before the first one belong to the last.
    let first = ways.iter().position(Option::is_some)?;
    let mut rack_of = vec![0; count];
    let mut uplinks: Vec<f64> = Vec::new();
    let mut rack = 0;
    for turn in 1..=count {
        let host = (first + turn) % count;
        rack_of[host] = rack;
        if let Some(way) = ways[host] {
            uplinks.push(way);
            rack += 1;
        }
    }
    Some((rack_of, uplinks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Settings, View, ViewVersion};
    use paceline_sync::metrics::WorkerMetrics;

    fn seen(rates: &[(f64, f64)]) -> (JobMetrics, Surroundings) {
        let hosts = (0..rates.len()).map(|rank| format!("host{rank}")).collect();
        let view = View::on_hosts(hosts, Settings::default());
        let worker = |&(upload, download): &(f64, f64)| WorkerMetrics {
            seconds: 1.0,
            upload,
            download,
            ..WorkerMetrics::default()
        };
        let metrics = JobMetrics {
            step: 1,
            view: ViewVersion(1),
            settings: Settings::default(),
            shape: Default::default(),
            workers: rates.iter().map(worker).collect(),
        };
        (metrics, Surroundings::of(&view))
    }

    fn wires_of(rates: &[(f64, f64)]) -> Option<Topology> {
        let (metrics, surroundings) = seen(rates);
        wires(&metrics, &surroundings)
    }

    #[test]
    fn a_slow_host_is_told_from_its_neighbours() {
        // Host 2 is slow: host 1 sends to it slowly, and host 3 receives from it slowly.
        let fast = (1e9, 1e9);
        let topology = wires_of(&[fast, (2e8, 1e9), (2e8, 2e8), (1e9, 2e8)]).unwrap();
        let rates: Vec<f64> =
            topology.hosts.iter().map(|host| host.link.rate.bytes_per_second()).collect();
        assert_eq!(rates, [1e9, 1e9, 2e8, 1e9]);
        assert!(topology.uplinks.is_empty());
    }

    #[test]
    fn racks_show_as_slow_ways_between_fast_hosts() {
        let (fast, slow) = (1e9, 1e8);
        let topology = wires_of(&[(fast, slow), (slow, fast), (fast, slow), (slow, fast)]).unwrap();
        let racks: Vec<u32> = topology.hosts.iter().map(|host| host.rack).collect();
        assert_eq!(racks[0], racks[1]);
        assert_eq!(racks[2], racks[3]);
        assert_ne!(racks[0], racks[2]);
        assert_eq!(topology.uplinks.len(), 2);
        assert!(topology.hosts.iter().all(|host| host.link.rate.bytes_per_second() == fast));
    }

    #[test]
    fn what_nobody_measured_is_not_made_up() {
        assert_eq!(wires_of(&[(0.0, 0.0), (0.0, 0.0)]), None);
        let topology = wires_of(&[(0.0, 0.0), (1e9, 5e8)]).unwrap();
        assert_eq!(topology.hosts[0].link.rate, topology.hosts[1].link.rate);
    }
}
