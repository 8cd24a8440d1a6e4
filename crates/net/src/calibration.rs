//! What a message costs on this job's links, measured once when the workers have met: latency by a
//! round trip of one byte, rate by a block. Rank 0 measures to one worker of its own host and to one
//! of another, then tells everybody, so that all decide by the same numbers. Links between other pairs
//! are taken to be alike; finding out where they differ is the topology's business.

use crate::{error::Result, worker::Worker};
use paceline_job::{Link, Measured, Rank, Rate, StrategyChoice, View};
use std::time::{Duration, Instant};

/// Round trips of one byte; the first few find cold caches and closed windows.
const ROUND_TRIPS: usize = 24;
const COLD_ROUND_TRIPS: usize = 8;

/// Large enough that a slow link shows, small enough for 100 Mbit/s (a twentieth of a second in all).
const BLOCK_BYTES: usize = 128 << 10;
const BLOCKS: usize = 5;

/// Whether workers of a first view measure: only `auto` decides by it, and surveys begin with it, and only where somebody is to
/// be measured to.
pub(crate) fn is_due(view: &View) -> bool {
    // Workers that come later were not measured, and nobody waits for them: an elastic job goes by the usual prices.
    let fixed = view.membership.is_fixed();
    let auto = view.settings.strategy == StrategyChoice::auto();
    fixed && view.size() > 1 && (auto || is_surveyed(view))
}

/// Whether workers of a first view find out where their hosts sit.
pub(crate) fn is_surveyed(view: &View) -> bool {
    let several = view.workers.iter().any(|worker| worker.host != view.workers[0].host);
    let unknown = view.settings.topology.is_none();
    view.survey.is_some() && view.membership.is_fixed() && unknown && several
}

/// Every worker calls this at the same point; all get the same answer.
pub(crate) fn measure(worker: &Worker) -> Result<Measured> {
    let view = worker.view();
    let first = &view.workers[0].host;
    let partner = |same: bool| {
        let others = (1..view.size()).find(|rank| (view.workers[*rank].host == *first) == same);
        others.map(|rank| Rank(rank as u32))
    };
    let mut told = [f64::NAN; 4];
    for (at, partner) in [(0, partner(true)), (2, partner(false))] {
        if let Some(partner) = partner
            && let Some(link) = measure_pair(worker, partner)?
        {
            told[at] = link.latency.as_secs_f64();
            told[at + 1] = link.rate.bytes_per_second();
        }
    }
    worker.broadcast("paceline calibration", Rank(0), &mut told)?;
    let link = |at: usize| {
        let [latency, rate] = [told[at], told[at + 1]];
        (latency >= 0.0 && rate > 0.0).then(|| Link {
            latency: Duration::from_secs_f64(latency),
            rate: Rate::from_bytes_per_second(rate),
        })
    };
    Ok(Measured { memory: link(0), wire: link(2) })
}

/// Rank 0's side returns the link; everybody else nothing.
fn measure_pair(worker: &Worker, partner: Rank) -> Result<Option<Link>> {
    const NAME: &str = "paceline calibration";
    let first = Rank(0);
    let mut byte = [0_u8];
    let mut block = vec![0_u8; BLOCK_BYTES];
    if worker.rank() == partner {
        for _ in 0..ROUND_TRIPS {
            worker.recv(NAME, first, &mut byte)?;
            worker.send(NAME, first, &byte)?;
        }
        for _ in 0..BLOCKS {
            worker.recv(NAME, first, &mut block)?;
            worker.send(NAME, first, &byte)?;
        }
        return Ok(None);
    }
    if worker.rank() != first {
        return Ok(None);
    }
    let mut round_trips = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        worker.send(NAME, partner, &byte)?;
        worker.recv(NAME, partner, &mut byte)?;
        round_trips.push(start.elapsed());
    }
    let mut blocks = Vec::with_capacity(BLOCKS);
    for _ in 0..BLOCKS {
        let start = Instant::now();
        worker.send(NAME, partner, &block)?;
        worker.recv(NAME, partner, &mut byte)?;
        blocks.push(start.elapsed());
    }
    let round_trip = median(&mut round_trips[COLD_ROUND_TRIPS..]);
    // A block that takes no longer than a byte says that the link is faster than the clock.
    let moving = median(&mut blocks).saturating_sub(round_trip).max(Duration::from_nanos(100));
    let rate = Rate::from_bytes_per_second(BLOCK_BYTES as f64 / moving.as_secs_f64());
    Ok(Some(Link { rate, latency: round_trip / 2 }))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
