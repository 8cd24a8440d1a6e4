//! Finding out where hosts sit, from transfers alone: which share a rack, and what hosts' wires and racks' uplinks carry.
//!
//! One transfer at a time shows slow hosts. Links that are shared show only under load: when all hosts send at once,
//! those who reach each other inside a rack keep their rate, and those who share an uplink fall together. So every
//! round pairs all hosts, and what each pair achieved speaks for or against one rack ([`racks`]). Whoever surveys
//! carries out the rounds, in real time or in virtual; all of them get the same plan from the same readings. Nothing here
//! sends or reads a clock.

mod racks;

use paceline_job::{Host, Link, Random, Rate, Topology};
use racks::{Matching, Verdicts};
use std::time::Duration;

/// What one transfer achieved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Bytes a second.
    pub rate: f64,
    /// Of one byte, one way.
    pub latency: Duration,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Hosts in racks, with what their links carry.
    pub topology: Topology,
    /// Rounds that it took.
    pub rounds: usize,
    /// Transfers in all of them.
    pub transfers: usize,
    /// What did not fit together, in plain words; empty if everything did.
    pub doubts: Vec<String>,
}

/// Between whom: places in the list of hosts, sender first.
pub type Transfer = (usize, usize);

/// Rounds under load until what is not known by then is left open: each pair of racks is met several times by then.
const MOST_ROUNDS: usize = 400;

/// A host that carries this share of what the usual one does is slow by itself.
const SLOW_BELOW: f64 = 0.6;

/// An uplink that carries this share of what its hosts could is not told from none.
const NO_TIGHTER: f64 = 0.93;

/// Survey hosts of these names. `probe` carries out the transfers of one round at the same time and tells what each
/// achieved; `memory` is what joins workers of one host.
pub fn survey<E>(
    names: &[String],
    memory: Link,
    mut probe: impl FnMut(&[Transfer]) -> Result<Vec<Reading>, E>,
) -> Result<Finding, E> {
    let mut notes = Notes::new(names.len());
    let mut look = |transfers: &[Transfer], notes: &mut Notes| -> Result<Vec<f64>, E> {
        let readings = probe(transfers)?;
        notes.note(transfers, &readings);
        Ok(readings.into_iter().map(|reading| reading.rate).collect())
    };
    // Alone: each host with a neighbour, both ways.
    for first in (0..names.len().saturating_sub(1)).step_by(2) {
        look(&[(first, first + 1), (first + 1, first)], &mut notes)?;
    }
    if names.len() % 2 == 1 && names.len() > 1 {
        look(&[(names.len() - 1, 0), (0, names.len() - 1)], &mut notes)?;
    }
    let mut verdicts = Verdicts::new(names.len());
    let mut random = Random::new(1);
    for round in 0..MOST_ROUNDS {
        let Some(Matching(pairs)) = verdicts.next(round, &mut random) else { break };
        let both: Vec<Transfer> = pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
        let rates = look(&both, &mut notes)?;
        let usual = notes.usual();
        for (pair, rates) in pairs.iter().zip(rates.chunks(2)) {
            // A slow host is as slow under load as alone, and would seem to share everybody's rack.
            let alone = notes.best[pair.0].min(notes.best[pair.1]).max(usual);
            verdicts.hear(*pair, rates[0].max(rates.get(1).copied().unwrap_or(0.0)) / alone);
        }
    }
    let mut doubts = verdicts.doubts(names);
    for host in verdicts.take_in(&notes.slow()) {
        let name = &names[host];
        doubts.push(format!(
            "{name} is too slow to show its rack; it is taken to be with its neighbour"
        ));
    }
    let racks = verdicts.racks();
    let uplinks = match racks.len() {
        0 | 1 => Vec::new(),
        _ => uplinks(&racks, &mut notes, &mut look)?,
    };
    // What belongs together stays fast when racks are busy inside.
    let inside: Vec<Transfer> = racks.iter().flat_map(|rack| turned(rack, rack, 1)).collect();
    if !inside.is_empty() {
        let rates = look(&inside, &mut notes)?;
        for ((from, to), rate) in inside.iter().zip(rates) {
            if rate < racks::SAME_ABOVE * notes.best[*from].min(notes.best[*to]) {
                doubts.push(format!(
                    "{} and {} are in one rack, but slow between each other",
                    names[*from], names[*to]
                ));
            }
        }
    }
    Ok(notes.conclude(names, &racks, &uplinks, memory, doubts))
}

/// What each rack's uplink carries: all of its hosts send to those of another rack, and the same the other way.
fn uplinks<E>(
    racks: &[Vec<usize>],
    notes: &mut Notes,
    look: &mut impl FnMut(&[Transfer], &mut Notes) -> Result<Vec<f64>, E>,
) -> Result<Vec<f64>, E> {
    let mut carried = vec![0.0_f64; racks.len()];
    // With two others as partners, one slow uplink does not speak for its neighbours'.
    for shift in 1..racks.len().min(3) {
        let mut transfers = Vec::new();
        let mut sender = Vec::new();
        for (at, rack) in racks.iter().enumerate() {
            let flows = turned(rack, &racks[(at + shift) % racks.len()], 0);
            sender.extend(flows.iter().map(|_| at));
            transfers.extend(flows);
        }
        let rates = look(&transfers, notes)?;
        let mut out = vec![0.0_f64; racks.len()];
        sender.iter().zip(rates).for_each(|(rack, rate)| out[*rack] += rate);
        for rack in 0..racks.len() {
            let into = out[(rack + racks.len() - shift) % racks.len()];
            carried[rack] = carried[rack].max(out[rack]).max(into);
        }
    }
    Ok(carried)
}

/// Each of one list to one of the other, `by` places further on; nobody to itself.
fn turned(from: &[usize], to: &[usize], by: usize) -> Vec<Transfer> {
    let pairs = from.iter().enumerate().map(|(at, host)| (*host, to[(at + by) % to.len()]));
    pairs.filter(|(from, to)| from != to).collect()
}

/// What was read so far.
struct Notes {
    /// By host, the best rate of any of its transfers: a link is as good as the best that crosses it.
    best: Vec<f64>,
    latency: Duration,
    rounds: usize,
    transfers: usize,
}

impl Notes {
    fn new(hosts: usize) -> Notes {
        Notes { best: vec![0.0; hosts], latency: Duration::MAX, rounds: 0, transfers: 0 }
    }

    /// What the usual host carries.
    fn usual(&self) -> f64 {
        let mut sorted = self.best.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    /// Hosts that are so slow that a loaded uplink holds them up no further: they tell nothing about racks.
    fn slow(&self) -> Vec<bool> {
        let usual = self.usual();
        self.best.iter().map(|best| *best < SLOW_BELOW * usual).collect()
    }

    fn note(&mut self, transfers: &[Transfer], readings: &[Reading]) {
        for ((from, to), reading) in transfers.iter().zip(readings) {
            for host in [*from, *to] {
                self.best[host] = self.best[host].max(reading.rate);
            }
            self.latency = self.latency.min(reading.latency);
        }
        self.rounds += 1;
        self.transfers += transfers.len();
    }

    fn conclude(
        self,
        names: &[String],
        racks: &[Vec<usize>],
        uplinks: &[f64],
        memory: Link,
        doubts: Vec<String>,
    ) -> Finding {
        let latency = if self.latency == Duration::MAX { Duration::ZERO } else { self.latency };
        let link = |rate: f64| Link { rate: Rate::from_bytes_per_second(rate), latency };
        let mut rack_of = vec![0; names.len()];
        for (index, rack) in racks.iter().enumerate() {
            rack.iter().for_each(|host| rack_of[*host] = index as u32);
        }
        let hosts = names.iter().zip(&self.best).zip(rack_of);
        let hosts = hosts.map(|((name, best), rack)| Host {
            name: name.clone(),
            rack,
            // A host alone has nobody to send to.
            link: if *best > 0.0 { link(*best) } else { memory },
        });
        // What hosts send together is the least that an uplink carries which they cannot fill.
        let tightness = |(carried, rack): (&f64, &Vec<usize>)| {
            let together: f64 = rack.iter().map(|host| self.best[*host]).sum();
            link(if *carried < NO_TIGHTER * together { *carried } else { together })
        };
        let uplinks = uplinks.iter().zip(racks).map(tightness).collect();
        let topology = Topology { hosts: hosts.collect(), uplinks, memory };
        let Notes { rounds, transfers, .. } = self;
        Finding { topology, rounds, transfers, doubts }
    }
}
