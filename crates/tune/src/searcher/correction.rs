//! What links could carry, by what they are seen to carry. Bytes over the time in which some were on their way are less than a
//! link's rate where pieces are small, or wires are shared, or whoever sends waits for others: so what a model shows of itself
//! under the same settings is compared with what the job shows. Who plays the model is not known here.

use crate::parts::flows;
use paceline_job::{Rate, Topology};
use paceline_sync::metrics::{JobMetrics, WorkerMetrics};

/// So much of what crosses a link is seen to be faster than what counts.
const QUARTILE: f64 = 0.25;
/// No correction makes a link slower than by this factor.
const LARGEST: f64 = 8.0;
/// How much faster than what it was seen to carry a wire may be, where workers did not measure it when they met.
const UNKNOWN: f64 = 4.0;

/// Links of a topology, with the fastest they may be.
#[derive(Debug)]
pub(super) struct Links {
    /// Of each worker, the place of its host in the topology.
    places: Vec<usize>,
    hosts: Vec<Rate>,
    uplinks: Vec<Rate>,
}

impl Links {
    /// Make all links as fast as they may be: hosts as workers met them, and uplinks as all their hosts together. From there
    /// [`Links::correct`] goes downwards only: slower ones might show the same, but whoever believes in them never finds out.
    pub fn at_their_fastest(topology: &mut Topology, met: Option<Rate>, hosts: &[String]) -> Links {
        for host in &mut topology.hosts {
            host.link.rate = match met {
                Some(met) if met > host.link.rate => met,
                Some(_) => host.link.rate,
                None => host.link.rate.scaled(UNKNOWN),
            };
        }
        for (rack, uplink) in topology.uplinks.iter_mut().enumerate() {
            let members = topology.hosts.iter().filter(|host| host.rack as usize == rack);
            let together = members.map(|host| host.link.rate.bytes_per_second()).sum();
            uplink.rate = Rate::from_bytes_per_second(together);
        }
        let place = |name: &String| topology.hosts.iter().position(|host| host.name == *name);
        Links {
            places: hosts.iter().map(|name| place(name).unwrap_or(0)).collect(),
            hosts: topology.hosts.iter().map(|host| host.link.rate).collect(),
            uplinks: topology.uplinks.iter().map(|uplink| uplink.rate).collect(),
        }
    }

    /// Make links slower, or faster again, by the share of what the model shows that was seen. The largest change, relative to what
    /// it was.
    pub fn correct(
        &self,
        topology: &mut Topology,
        seen: &JobMetrics,
        shown: &[WorkerMetrics],
    ) -> f64 {
        let mut hosts = vec![Vec::new(); topology.hosts.len()];
        let mut uplinks = vec![Vec::new(); topology.uplinks.len()];
        let place = |rank: usize| self.places[rank];
        let modelled = flows(shown, place);
        for flow in flows(&seen.workers, place) {
            let same = |other: &&crate::parts::Flow| (other.from, other.to) == (flow.from, flow.to);
            let Some(model) = modelled.iter().find(same) else { continue };
            let share = (flow.rate / model.rate, flow.bytes);
            let ends = [flow.from, flow.to];
            let racks = ends.map(|end| topology.hosts[end].rack as usize);
            // Between racks it says nothing of hosts.
            match racks[0] == racks[1] || uplinks.is_empty() {
                true => ends.into_iter().for_each(|end| hosts[end].push(share)),
                false => racks.into_iter().for_each(|rack| uplinks[rack].push(share)),
            }
        }
        if uplinks.is_empty() {
            for (rank, (seen, model)) in seen.workers.iter().zip(shown).enumerate() {
                let [up, down] = [seen.upload / model.upload, seen.download / model.download];
                // Each as much as all flows together.
                let weight = seen.flows.iter().map(|flow| flow.all).sum::<f64>().max(1.0);
                hosts[place(rank)].extend([(up, weight), (down, weight)]);
            }
        }
        let hosts =
            topology.hosts.iter_mut().map(|host| &mut host.link).zip(hosts).zip(&self.hosts);
        let uplinks = topology.uplinks.iter_mut().zip(uplinks).zip(&self.uplinks);
        hosts.chain(uplinks).fold(0.0, |largest, ((link, shares), limit)| {
            let before = link.rate;
            link.rate = corrected(before, shares, *limit);
            let change = link.rate.bytes_per_second() / before.bytes_per_second() - 1.0;
            largest.max(change.abs())
        })
    }
}

/// A slow link is slow in all that crosses it; what is slow in a part of that is slow elsewhere. So the upper quartile counts, by
/// bytes: the best may have been read from a queue.
fn corrected(rate: Rate, mut shares: Vec<(f64, f64)>, limit: Rate) -> Rate {
    shares.retain(|(share, _)| share.is_finite() && *share > 0.0);
    shares.sort_unstable_by(|(one, _), (other, _)| other.total_cmp(one));
    let mut left = QUARTILE * shares.iter().map(|(_, bytes)| bytes).sum::<f64>();
    let place = shares.iter().position(|(_, bytes)| {
        left -= bytes;
        left <= 0.0
    });
    let Some((share, _)) = place.map(|place| shares[place]) else { return rate };
    let rate = rate.scaled(share.max(LARGEST.recip()));
    if rate > limit { limit } else { rate }
}
