//! What joins the workers, as far as they measured it: a rate for every host, and racks where something slow lies between them.
//! What is sent over it is not known here.

use crate::{
    Surroundings,
    parts::{flows, parts},
};
use paceline_job::{Host, Link, Rate, Topology};
use paceline_sync::metrics::JobMetrics;

/// `None` if no worker that has others to reach measured a rate.
pub(crate) fn wires(seen: &JobMetrics, surroundings: &Surroundings) -> Option<Topology> {
    let mut names: Vec<&String> = Vec::new();
    let mut places: Vec<usize> = Vec::with_capacity(surroundings.hosts.len());
    for host in &surroundings.hosts {
        let known = names.iter().position(|name| *name == host);
        places.push(known.unwrap_or(names.len()));
        if known.is_none() {
            names.push(host);
        }
    }
    let mut own = vec![0.0_f64; names.len()];
    for (worker, place) in seen.workers.iter().zip(&places) {
        for rate in [worker.upload, worker.download].into_iter().filter(|rate| rate.is_finite()) {
            own[*place] = own[*place].max(rate);
        }
    }
    let fastest = own.iter().copied().fold(0.0, f64::max);
    if fastest <= 0.0 {
        return None;
    }
    // A worker that measured nothing is taken to be like the fastest: it holds nobody up.
    own.iter_mut().filter(|rate| **rate <= 0.0).for_each(|rate| *rate = fastest);
    let link =
        |rate| Link { rate: Rate::from_bytes_per_second(rate), latency: surroundings.latency };
    let known = seen.workers.len() <= places.len();
    let racks =
        known.then(|| parts(names.len(), &flows(&seen.workers, |rank| places[rank]))).flatten();
    let hosts = names.iter().zip(&own).enumerate().map(|(place, (name, rate))| Host {
        name: (*name).clone(),
        rack: racks.as_ref().map_or(0, |racks| racks.of[place]),
        link: link(*rate),
    });
    let hosts = hosts.collect();
    // Uplinks of their own take no time besides their bytes.
    let uplink = |rate| Link { latency: Default::default(), ..link(rate) };
    let uplinks = racks.map_or(Vec::new(), |racks| racks.between);
    let uplinks = uplinks.into_iter().map(uplink).collect();
    Some(Topology { hosts, uplinks, memory: surroundings.memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Rank, Settings, View, ViewVersion};
    use paceline_sync::metrics::{FlowMetrics, WorkerMetrics};

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

    fn rates(topology: &Topology) -> Vec<f64> {
        topology.hosts.iter().map(|host| host.link.rate.bytes_per_second()).collect()
    }

    #[test]
    fn a_slow_host_is_told_from_its_neighbours() {
        // Host 2 is slow: host 1 sends to it slowly, and host 3 receives from it slowly.
        let fast = (1e9, 1e9);
        let topology = wires_of(&[fast, (2e8, 1e9), (2e8, 2e8), (1e9, 2e8)]).unwrap();
        assert_eq!(rates(&topology), [1e9, 1e9, 2e8, 1e9]);
        assert!(topology.uplinks.is_empty());
    }

    #[test]
    fn racks_show_as_slow_ways_between_fast_hosts() {
        let (fast, slow) = (1e9, 1e8);
        let (mut metrics, surroundings) =
            seen(&[(fast, slow), (slow, fast), (fast, slow), (slow, fast)]);
        for rank in 0..4 {
            let rate = metrics.workers[rank].download;
            let from = Rank((rank as u32 + 3) % 4);
            metrics.workers[rank].flows =
                vec![FlowMetrics { from, all: 1e9, bytes: 1e9, seconds: 1e9 / rate }];
        }
        let topology = wires(&metrics, &surroundings).unwrap();
        let racks: Vec<u32> = topology.hosts.iter().map(|host| host.rack).collect();
        assert_eq!(racks, [0, 0, 1, 1]);
        let uplinks: Vec<f64> =
            topology.uplinks.iter().map(|link| link.rate.bytes_per_second()).collect();
        assert_eq!(uplinks, [slow; 2]);
        assert_eq!(rates(&topology), [fast; 4]);
    }

    #[test]
    fn what_nobody_measured_is_not_made_up() {
        assert_eq!(wires_of(&[(0.0, 0.0), (0.0, 0.0)]), None);
        let topology = wires_of(&[(0.0, 0.0), (1e9, 5e8)]).unwrap();
        assert_eq!(topology.hosts[0].link.rate, topology.hosts[1].link.rate);
    }
}
