//! Finding out where hosts sit, from transfers alone: which share a rack, and what hosts' wires and racks' uplinks carry.
//!
//! One transfer at a time shows slow hosts. Links that are shared show only under load: when all hosts send at once,
//! those who reach each other inside a rack keep their rate, and those who share an uplink fall together. So every
//! round pairs all hosts, and what each pair achieved speaks for or against one rack ([`racks`]). Whoever surveys
//! carries out the rounds, in real time or in virtual, and reads rates by [`Load::rate`]; all of them get the same plan from the same
//! readings. Nothing here sends or reads a clock: how long a round took is told, so that a survey ends in time.

mod notes;
mod pace;
mod racks;

use notes::{Notes, listed};
use paceline_job::{Link, Random, Topology};
use racks::{Matching, Verdicts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use pace::PIECES;

/// What one transfer achieved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Bytes a second; none if too few came to tell.
    pub rate: Option<f64>,
    /// Of one byte, one way, while nothing else was sent; none if it was not measured.
    pub latency: Option<Duration>,
}

/// What a round gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// Of each transfer.
    pub readings: Vec<Reading>,
    /// How long it took, the same for all who survey.
    pub took: Duration,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Hosts in racks, with what their links carry.
    pub topology: Topology,
    /// Rounds that it took.
    pub rounds: usize,
    /// Transfers in all of them.
    pub transfers: usize,
    /// How long it took.
    pub took: Duration,
    /// What did not fit together or was not measured, in plain words; empty if everything was and did.
    pub doubts: Vec<String>,
}

/// Between whom: places in the list of hosts, sender first.
pub type Transfer = (usize, usize);

/// Rounds under load until what is not known by then is left open: each pair of racks is met several times by then.
const MOST_ROUNDS: usize = 400;

/// Pairs that are measured alone: they show what the usual host carries. What the others carry shows as well under load.
const MOST_ALONE: usize = 8;

/// With fewer hosts no two pairs send at once, and their own wires explain all that can be seen.
const FEWEST: usize = 4;

/// How long a transfer lasts, if time allows: what queues and buckets on the way hold at once must be a small part of it, and so
/// must be the moments by which workers begin apart.
const SHORTEST_WINDOW: Duration = Duration::from_millis(20);
const LONGEST_WINDOW: Duration = Duration::from_millis(200);

/// Of a round's time, what transfers are to take: under load some take longer, and workers wait for each other.
const LOADED: f64 = 0.4;

/// A connection opens its window in so many times the latency of its way.
const LATENCIES: u32 = 24;

/// Of the time in which the fastest of several transfers should be through, what counts for all of them: it may be faster this time.
const TOGETHER: f64 = 0.8;

/// What the transfers of one round are to be.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// All at the same time,
    pub transfers: &'a [Transfer],
    /// each of so many bytes, in [`PIECES`].
    pub bytes: usize,
    /// Until when after its beginning each counts, where that is the same for several: those that are through first leave
    /// room to the others. Empty where each counts for itself.
    pub until: &'a [Duration],
}

impl Load<'_> {
    /// Bytes a second of one transfer, whose pieces came at these moments after the beginning; none if too few came to tell.
    pub fn rate(&self, transfer: usize, came: &[Duration]) -> Option<f64> {
        let piece = self.bytes / PIECES;
        match self.until.get(transfer) {
            Some(until) => pace::rate_until(came, piece, *until),
            None => pace::steady_rate(came, piece),
        }
    }
}

/// Survey hosts of these names within `limit`, and a round more at most. `probe` carries out one round,
/// and tells what each transfer achieved; `memory` is what joins workers of one host.
pub fn survey<E>(
    names: &[String],
    memory: Link,
    limit: Duration,
    probe: impl FnMut(Load) -> Result<Round, E>,
) -> Result<Finding, E> {
    let count = names.len();
    let mut surveyor = Surveyor {
        notes: Notes::new(count),
        limit,
        slowest: None,
        bytes: pace::FIRST_BYTES,
        probe,
    };
    if count > 1 {
        surveyor.try_out()?;
    }
    surveyor.alone(count)?;
    let mut doubts = Vec::new();
    if count < FEWEST {
        let all = vec![(0..count).collect()];
        return Ok(surveyor.notes.conclude(names, &all, &[], memory, doubts));
    }
    let mut verdicts = Verdicts::new(count);
    if !surveyor.under_load(&mut verdicts)? {
        // A rack that is not there costs more than one that is not known.
        doubts.push(format!(
            "time was up after {} ms, before it was clear who shares a rack, so all are taken to share one: give it longer",
            surveyor.notes.took.as_millis()
        ));
        let all = vec![(0..count).collect()];
        return Ok(surveyor.notes.conclude(names, &all, &[], memory, doubts));
    }
    doubts.extend(verdicts.doubts(names));
    for host in verdicts.take_in(&surveyor.notes.slow()) {
        let name = &names[host];
        doubts.push(format!(
            "{name} is too slow to show its rack; it is taken to be with its neighbour"
        ));
    }
    let racks = verdicts.racks();
    let (racks, uplinks) = surveyor.uplinks(racks, &mut doubts)?;
    if racks.len() > 1 {
        doubts.extend(surveyor.inside(&racks, names)?);
    }
    Ok(surveyor.notes.conclude(names, &racks, &uplinks, memory, doubts))
}

/// Carries a survey through its parts.
struct Surveyor<P> {
    notes: Notes,
    limit: Duration,
    /// The lowest rate of the last round.
    slowest: Option<f64>,
    /// Of each of its transfers.
    bytes: usize,
    probe: P,
}

impl<E, P: FnMut(Load) -> Result<Round, E>> Surveyor<P> {
    /// What these transfers achieve at the same time; nothing is tried once time is up.
    fn look(&mut self, transfers: &[Transfer]) -> Result<Vec<Option<f64>>, E> {
        self.look_until(transfers, &[])
    }

    /// The same, where each transfer counts only as long as none with this rate is through.
    fn look_until(
        &mut self,
        transfers: &[Transfer],
        fastest: &[f64],
    ) -> Result<Vec<Option<f64>>, E> {
        let left = self.limit.saturating_sub(self.notes.took);
        if left.is_zero() || transfers.is_empty() {
            return Ok(vec![None; transfers.len()]);
        }
        // About as many rounds as virtual time shows that so many hosts need.
        let hosts = self.notes.slow().len() as u32;
        let share = (self.limit / (20 + (3 * hosts / 4).min(32))).mul_f64(LOADED);
        let open = LATENCIES * self.notes.longest_latency();
        let window = share.clamp(SHORTEST_WINDOW, LONGEST_WINDOW).max(open).min(left);
        // The slowest that was seen of late takes so long; others are over sooner.
        let slowest = self.slowest.unwrap_or(f64::INFINITY);
        let [wanted, possible] = [window, left / 4].map(|time| slowest * time.as_secs_f64());
        let bytes = (wanted as usize).max(pace::USUAL_BYTES.min(possible as usize));
        // A first rate may be that of a bucket on the way.
        let bytes = bytes.min(4 * self.bytes);
        let bytes = bytes.clamp(pace::LEAST_BYTES, pace::MOST_BYTES) / PIECES * PIECES;
        self.bytes = bytes;
        let until = |rate: &f64| Duration::from_secs_f64(TOGETHER * bytes as f64 / rate);
        let until: Vec<Duration> = fastest.iter().map(until).collect();
        let Round { readings, took } = (self.probe)(Load { transfers, bytes, until: &until })?;
        self.notes.note(transfers, &readings, took);
        let rates = readings.iter().filter_map(|reading| reading.rate);
        self.slowest = rates.reduce(f64::min).or(self.slowest);
        Ok(readings.into_iter().map(|reading| reading.rate).collect())
    }

    /// How much is worth sending is not known before something was sent.
    fn try_out(&mut self) -> Result<(), E> {
        let transfers = [(0, 1), (1, 0)];
        let load = Load { transfers: &transfers, bytes: pace::FIRST_BYTES, until: &[] };
        let Round { readings, took } = (self.probe)(load)?;
        self.slowest = readings.iter().filter_map(|reading| reading.rate).reduce(f64::min);
        // So little shows how long a byte takes, and not what a wire carries.
        let latencies = readings.into_iter().map(|reading| Reading { rate: None, ..reading });
        self.notes.note(&transfers, &latencies.collect::<Vec<_>>(), took);
        Ok(())
    }

    /// Whether less than this part of the time is spent.
    fn within(&self, part: f64) -> bool {
        self.notes.took < self.limit.mul_f64(part)
    }

    /// Hosts with their neighbours, both ways.
    fn alone(&mut self, count: usize) -> Result<(), E> {
        let pairs: Vec<usize> = (0..count.saturating_sub(1)).step_by(2).collect();
        let step = pairs.len().div_ceil(MOST_ALONE).max(1);
        for first in pairs.into_iter().step_by(step) {
            if self.within(0.25) {
                self.look(&[(first, first + 1), (first + 1, first)])?;
            }
        }
        if count % 2 == 1 && count > 1 && self.within(0.3) {
            self.look(&[(count - 1, 0), (0, count - 1)])?;
        }
        Ok(())
    }

    /// All hosts in pairs, again and again; whether it became clear who shares a rack.
    fn under_load(&mut self, verdicts: &mut Verdicts) -> Result<bool, E> {
        let mut random = Random::new(1);
        for round in 0..MOST_ROUNDS {
            let Some(Matching(pairs)) = verdicts.next(round, &mut random) else { return Ok(true) };
            if !self.within(0.85) {
                return Ok(false);
            }
            let both: Vec<Transfer> =
                pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
            let rates = self.look(&both)?;
            let usual = self.notes.usual();
            for (pair, rates) in pairs.iter().zip(rates.chunks(2)) {
                let Some(rate) = rates.iter().flatten().copied().reduce(f64::max) else { continue };
                // A slow host is as slow under load as alone, and would seem to share everybody's rack.
                let alone = self.notes.best(pair.0).min(self.notes.best(pair.1)).max(usual);
                verdicts.hear(*pair, rate / alone);
            }
        }
        Ok(false)
    }

    /// What each rack's uplink carries: all of its hosts send to those of another rack, and the same the other way. Racks that
    /// nothing holds up but their hosts' own wires are one.
    fn uplinks(
        &mut self,
        racks: Vec<Vec<usize>>,
        doubts: &mut Vec<String>,
    ) -> Result<(Vec<Vec<usize>>, Vec<f64>), E> {
        let mut carried = vec![0.0_f64; racks.len()];
        let mut tight = vec![false; racks.len()];
        // With two others as partners, one slow uplink does not speak for its neighbours'.
        for shift in 1..racks.len().min(3) {
            let mut transfers = Vec::new();
            let mut sender = Vec::new();
            for (at, rack) in racks.iter().enumerate() {
                let flows = turned(rack, &racks[(at + shift) % racks.len()], 0);
                sender.extend(flows.iter().map(|_| at));
                transfers.extend(flows);
            }
            let alone = self.look(&transfers)?;
            // Those of a rack count for as long as all of them send, which is known of a second time only.
            let mut fastest = vec![f64::MIN_POSITIVE; racks.len()];
            for (rack, rate) in sender.iter().zip(&alone) {
                fastest[*rack] = fastest[*rack].max(rate.unwrap_or(0.0));
            }
            let fastest: Vec<f64> = sender.iter().map(|rack| fastest[*rack]).collect();
            let known = fastest.iter().all(|rate| *rate > f64::MIN_POSITIVE);
            let together = if known { self.look_until(&transfers, &fastest)? } else { Vec::new() };
            if together.iter().all(Option::is_none) {
                if shift > 1 {
                    // What is known is worth more.
                    break;
                }
                doubts.push(
                    "time was up before uplinks were measured: they may carry less than it seems, or be there where none seems \
                     to be"
                        .to_string(),
                );
            }
            let rates = alone.iter().enumerate();
            let rates = rates.map(|(at, rate)| together.get(at).copied().flatten().or(*rate));
            let wires = self.notes.by_wires_alone(&transfers);
            let mut out = vec![(0.0_f64, 0.0_f64); racks.len()];
            for ((rack, rate), wire) in sender.iter().zip(rates).zip(wires) {
                // What was not read holds nobody up, as far as is known.
                out[*rack].0 += rate.unwrap_or(wire);
                out[*rack].1 += wire;
            }
            for rack in 0..racks.len() {
                let into = out[(rack + racks.len() - shift) % racks.len()];
                for (together, by_wires) in [out[rack], into] {
                    carried[rack] = carried[rack].max(together);
                    tight[rack] |= together < notes::NO_TIGHTER * by_wires;
                }
            }
        }
        let (mut kept, mut free) = (Vec::new(), Vec::new());
        for (at, rack) in racks.into_iter().enumerate() {
            if tight[at] { kept.push((rack, carried[at])) } else { free.extend(rack) }
        }
        if !free.is_empty() {
            free.sort_unstable();
            kept.push((free, 0.0));
        }
        kept.sort_by_key(|(rack, _)| rack[0]);
        Ok(kept.into_iter().unzip())
    }

    /// What belongs together stays fast when racks are busy inside; who does not.
    fn inside(&mut self, racks: &[Vec<usize>], names: &[String]) -> Result<Vec<String>, E> {
        let inside: Vec<Transfer> = racks.iter().flat_map(|rack| turned(rack, rack, 1)).collect();
        let rates = self.look(&inside)?;
        let slow = inside.iter().zip(rates).filter(|((from, to), rate)| {
            let wires = self.notes.best(*from).min(self.notes.best(*to));
            rate.is_some_and(|rate| rate < racks::SAME_ABOVE * wires)
        });
        let slow: Vec<String> =
            slow.map(|((from, to), _)| format!("{} and {}", names[*from], names[*to])).collect();
        let named = listed(slow.iter().map(String::as_str));
        let doubt = format!("{named} are in one rack, but slow between each other");
        Ok(if slow.is_empty() { Vec::new() } else { vec![doubt] })
    }
}

/// Each of one list to one of the other, `by` places further on; nobody to itself.
fn turned(from: &[usize], to: &[usize], by: usize) -> Vec<Transfer> {
    let pairs = from.iter().enumerate().map(|(at, host)| (*host, to[(at + by) % to.len()]));
    pairs.filter(|(from, to)| from != to).collect()
}
