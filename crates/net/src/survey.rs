//! A survey of real links: one worker of each host carries out the rounds that `paceline_sync::survey` asks for. All workers
//! of the job call it at the same point; readings are shared after each round, so that all follow the same plan and end
//! with the same finding. What the readings mean is not known here.

use crate::{
    error::Result,
    pending::{Buffers, Pending},
    worker::{Operation, Worker},
};
use paceline_job::{Link, Rank, Rate, ReduceOp};
use paceline_sync::{
    collective::Collective,
    survey::{self, Finding, Reading, Transfer},
};
use std::time::{Duration, Instant};

/// How long a transfer takes that has its wire alone: what queues and buckets on the way hold at once must be a small part
/// of it, and so must be the moments by which workers begin apart.
const ALONE: Duration = Duration::from_millis(200);

/// Whatever was measured of wires, a transfer is not shorter or longer than this.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 512 << 10..=64 << 20;

/// Bytes of a transfer where no wire was measured.
const USUAL_BYTES: usize = 4 << 20;

/// Round trips of one byte; the fastest counts.
const ROUND_TRIPS: usize = 8;

/// What joins workers of one host, where none was measured.
const USUAL_MEMORY: f64 = 4e9;

/// Every worker calls this; all get the same answer. It loads the network for some seconds.
pub fn survey(worker: &Worker) -> Result<Finding> {
    let view = worker.view();
    let mut names: Vec<String> = Vec::new();
    let mut leaders: Vec<Rank> = Vec::new();
    for (rank, each) in (0..).map(Rank).zip(&view.workers) {
        if !names.contains(&each.host) {
            names.push(each.host.clone());
            leaders.push(rank);
        }
    }
    let memory = view.measured.memory.unwrap_or(Link {
        rate: Rate::from_bytes_per_second(USUAL_MEMORY),
        latency: Duration::from_micros(10),
    });
    // The same on all workers, as the view is.
    let bytes = view.measured.wire.map_or(USUAL_BYTES, |wire| {
        let bytes = (wire.rate.bytes_per_second() * ALONE.as_secs_f64()) as usize;
        bytes.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end())
    });
    let latency = latency(worker, &leaders)?;
    survey::survey(&names, memory, |transfers| {
        let rates = round(worker, &leaders, transfers, bytes)?;
        Ok(rates.into_iter().map(|rate| Reading { rate, latency }).collect())
    })
}

/// The transfers of one round at the same time; what each achieved, on all workers.
fn round(
    worker: &Worker,
    leaders: &[Rank],
    transfers: &[Transfer],
    bytes: usize,
) -> Result<Vec<f64>> {
    worker.barrier("paceline survey begins")?;
    let begun = Instant::now();
    let mut sending: Vec<Pending<u8>> = Vec::new();
    let mut receiving: Vec<(usize, Pending<u8>)> = Vec::new();
    for (number, (from, to)) in transfers.iter().enumerate() {
        let (from, to) = (leaders[*from], leaders[*to]);
        let name = format!("paceline survey {number}");
        let len = bytes as u64;
        let block = || vec![0_u8; bytes].into();
        let empty = || Vec::<u8>::new().into();
        let operation =
            |collective| Operation::new(name.as_str(), collective).group([from, to].into());
        if worker.rank() == to {
            let buffers = Buffers::Pair(empty(), block());
            let receive = operation(Collective::Recv { from: 0, len });
            receiving.push((number, worker.start_with(receive, buffers)?));
        }
        if worker.rank() == from {
            let buffers = Buffers::Pair(block(), empty());
            sending.push(worker.start_with(operation(Collective::Send { to: 1, len }), buffers)?);
        }
    }
    let mut rates = vec![0.0_f64; transfers.len()];
    // A worker receives from one other in most rounds; of several, the later ones count from the same beginning.
    for (number, pending) in receiving {
        pending.wait()?;
        rates[number] = bytes as f64 / begun.elapsed().as_secs_f64();
    }
    for pending in sending {
        pending.wait()?;
    }
    // Only the receiver has a number; to sum is to tell.
    worker.all_reduce("paceline survey readings", &mut rates, ReduceOp::Sum)?;
    Ok(rates)
}

/// Half of a round trip between the first two hosts, on all workers.
fn latency(worker: &Worker, leaders: &[Rank]) -> Result<Duration> {
    const NAME: &str = "paceline survey latency";
    let mut told = [0.0_f64];
    if let [first, second, ..] = leaders {
        let mut byte = [0_u8];
        for _ in 0..ROUND_TRIPS {
            if worker.rank() == *first {
                let begun = Instant::now();
                worker.send(NAME, *second, &byte)?;
                worker.recv(NAME, *second, &mut byte)?;
                let seconds = begun.elapsed().as_secs_f64() / 2.0;
                told[0] = if told[0] == 0.0 { seconds } else { told[0].min(seconds) };
            } else if worker.rank() == *second {
                worker.recv(NAME, *first, &mut byte)?;
                worker.send(NAME, *first, &byte)?;
            }
        }
    }
    worker.all_reduce("paceline survey latency told", &mut told, ReduceOp::Sum)?;
    Ok(Duration::from_secs_f64(told[0]))
}
