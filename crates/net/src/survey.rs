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
    survey::{self, Finding, Load, PIECES, Reading, Round, Transfer},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long a survey at a job's start takes at most, unless somebody says otherwise.
pub const USUAL_SURVEY: Duration = Duration::from_secs(5);

/// Round trips of one byte, and after how long no other one is begun; the fastest counts.
const ROUND_TRIPS: usize = 8;
const ROUND_TRIPS_TIME: Duration = Duration::from_millis(10);

/// What joins workers of one host, where none was measured.
const USUAL_MEMORY: f64 = 4e9;

/// Every worker calls this with the same limit; all get the same answer. It loads the network until then, at most.
///
/// A finding names hosts as the view does.
pub fn survey(worker: &Worker, limit: Duration) -> Result<Finding> {
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
    let mut survey = Survey { worker, leaders, near: BTreeSet::new(), mark: Instant::now() };
    survey::survey(&names, memory, limit, |load| survey.round(load))
}

struct Survey<'a> {
    worker: &'a Worker,
    /// By host.
    leaders: Vec<Rank>,
    /// Pairs whose round trips are known.
    near: BTreeSet<Transfer>,
    /// Until when time is told.
    mark: Instant,
}

impl Survey<'_> {
    /// The transfers of one round at the same time; what each achieved, on all workers.
    fn round(&mut self, load: Load) -> Result<Round> {
        let transfers = load.transfers;
        let ordered = |(from, to): &Transfer| ((*from).min(*to), (*from).max(*to));
        let all: BTreeSet<Transfer> = transfers.iter().map(ordered).collect();
        let new: Vec<Transfer> = all.difference(&self.near).copied().collect();
        self.near.extend(&new);
        self.worker.barrier("paceline survey begins")?;
        // In the same order on all workers, so that nobody waits for somebody who waits.
        let latencies =
            new.iter().map(|pair| self.round_trips(*pair)).collect::<Result<Vec<f64>>>()?;
        if !new.is_empty() {
            self.worker.barrier("paceline survey loads")?;
        }
        let mut told = self.load(load)?;
        told.extend(&latencies);
        told.push(self.mark.elapsed().as_secs_f64());
        // Only one worker has a number, and all have a time: to take the highest is to tell.
        self.worker.all_reduce("paceline survey readings", &mut told, ReduceOp::Max)?;
        // Waiting for the slowest was told by that one.
        self.mark = Instant::now();
        let (rates, rest) = told.split_at(transfers.len());
        let (latencies, took) = rest.split_at(new.len());
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let readings = transfers.iter().zip(rates).map(|(transfer, rate)| {
            let place = new.iter().position(|pair| *pair == ordered(transfer));
            let latency = place.map(|place| latencies[place]).filter(|seconds| *seconds > 0.0);
            Reading { rate: Some(*rate).filter(|rate| *rate > 0.0), latency: latency.map(time) }
        });
        Ok(Round { readings: readings.collect(), took: time(took[0]) })
    }

    /// Bytes a second of each transfer that comes here; 0 where too few came to tell, and elsewhere.
    fn load(&self, load: Load) -> Result<Vec<f64>> {
        let (transfers, piece) = (load.transfers, load.bytes / PIECES);
        let begun = Instant::now();
        let came: Arc<Vec<Mutex<Vec<Duration>>>> =
            Arc::new(transfers.iter().map(|_| Mutex::default()).collect());
        let mut underway: Vec<Pending<u8>> = Vec::new();
        for _ in 0..PIECES {
            for (number, (from, to)) in transfers.iter().enumerate() {
                let group = [self.leaders[*from], self.leaders[*to]];
                let name = format!("paceline survey {number}");
                let (len, empty) = (piece as u64, || Vec::<u8>::new().into());
                let operation =
                    |collective| Operation::new(name.as_str(), collective).group(group.into());
                if self.worker.rank() == group[0] {
                    let buffers = Buffers::Pair(vec![0_u8; piece].into(), empty());
                    let send = operation(Collective::Send { to: 1, len });
                    underway.push(self.worker.start_with(send, buffers)?);
                }
                if self.worker.rank() == group[1] {
                    let buffers = Buffers::Pair(empty(), vec![0_u8; piece].into());
                    let receive = operation(Collective::Recv { from: 0, len });
                    let pending = self.worker.start_with(receive, buffers)?;
                    let came = came.clone();
                    pending.handle().when_done(move |_| {
                        let mut came = came[number].lock().unwrap_or_else(PoisonError::into_inner);
                        came.push(begun.elapsed());
                    });
                    underway.push(pending);
                }
            }
        }
        for pending in underway {
            pending.wait()?;
        }
        let rate = |(number, came): (usize, &Mutex<Vec<Duration>>)| {
            let came = came.lock().unwrap_or_else(PoisonError::into_inner);
            load.rate(number, &came).unwrap_or(0.0)
        };
        Ok(came.iter().enumerate().map(rate).collect())
    }

    /// Half of a round trip in seconds, the fastest of several, where it is measured; 0 elsewhere.
    fn round_trips(&self, (first, second): Transfer) -> Result<f64> {
        const NAME: &str = "paceline survey latency";
        let [first, second] = [first, second].map(|host| self.leaders[host]);
        let me = self.worker.rank();
        let begun = Instant::now();
        let mut fastest = 0.0_f64;
        for trip in 1..=ROUND_TRIPS {
            let mut word = [MORE];
            if me == first {
                let late = trip == ROUND_TRIPS || begun.elapsed() >= ROUND_TRIPS_TIME;
                word[0] = if late { ENOUGH } else { MORE };
                let leaves = Instant::now();
                self.worker.send(NAME, second, &word)?;
                self.worker.recv(NAME, second, &mut word)?;
                let seconds = leaves.elapsed().as_secs_f64() / 2.0;
                fastest = if trip == 1 { seconds } else { fastest.min(seconds) };
            } else if me == second {
                self.worker.recv(NAME, first, &mut word)?;
                self.worker.send(NAME, first, &word)?;
            }
            if word[0] == ENOUGH {
                break;
            }
        }
        Ok(fastest)
    }
}

/// What follows a round trip.
const ENOUGH: u8 = 0;
const MORE: u8 = 1;
