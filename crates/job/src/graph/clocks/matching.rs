//! The two ends of each message, and the ends of operations of several workers, brought together: what can be compared
//! between clocks. It decides nothing about them.

use super::bounds::Edge;
use crate::{
    CollectiveKind, Rank,
    trace::{Direction, Kind, Message, Problem, Stamp, Trace, WorkerTrace},
};
use std::collections::{BTreeMap, HashMap};

/// Where no two hosts send to each other, a message is taken to need so many nanoseconds.
const USUAL_LATENCY: f64 = 100_000.0;
/// Ends of an operation that differ by less are the same.
const TOGETHER: f64 = 1_000.0;
/// Stamps of one clock that are out of order by so many nanoseconds are of two clocks.
const ONE_CLOCK: i64 = 1_000;
/// Operations that end on all of their workers at the same time.
const ENDS_TOGETHER: [&str; 5] = [
    CollectiveKind::AllReduce.word(),
    CollectiveKind::ReduceScatter.word(),
    CollectiveKind::AllGather.word(),
    CollectiveKind::AllToAll.word(),
    CollectiveKind::Barrier.word(),
];

/// A clock: a host's, or a worker's whose host has none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Clock {
    pub host: String,
    /// The first worker that has it.
    pub rank: Rank,
    /// Stamps count from here, so that they have all their nanoseconds as floating-point numbers.
    pub since: Stamp,
}

/// A message with both ends, each on its own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub from: usize,
    pub to: usize,
    /// The same message of other steps has the same.
    pub family: u32,
    pub sent: f64,
    pub began: f64,
    pub received: f64,
}

/// An operation's end on two clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct End {
    clocks: [usize; 2],
    at: [f64; 2],
}

/// What can be compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Matched {
    pub clocks: Vec<Clock>,
    /// The clock of each worker, by its place in the trace.
    pub clock_of: Vec<usize>,
    /// By when they were sent.
    pub messages: Vec<Sample>,
    ends: Vec<End>,
    pub problems: Vec<Problem>,
}

/// Bounds, and what they lack.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    pub list: Vec<Edge>,
    /// Some follow from the ends of operations.
    pub by_ends: bool,
    /// Clocks between which messages go one way only.
    pub one_way: Vec<[usize; 2]>,
}

/// A message on the clocks of its workers, by their places in the trace.
struct Raw {
    workers: [usize; 2],
    family: u32,
    sent: Stamp,
    began: Stamp,
    received: Stamp,
}

/// An end of an operation on two workers.
struct RawEnd {
    workers: [usize; 2],
    at: [Stamp; 2],
}

/// Bring together what belongs together.
pub(super) fn of(trace: &Trace) -> Matched {
    let mut problems = Vec::new();
    let messages = messages(trace, &mut problems);
    let ends = ends(trace);
    let (mut clocks, clock_of) = clocks(trace, &messages, &mut problems);
    let mut touch = |worker: usize, stamp: Stamp| {
        let since = &mut clocks[clock_of[worker]].since;
        *since = stamp.min(*since);
    };
    for message in &messages {
        touch(message.workers[0], message.sent);
        touch(message.workers[1], message.began);
    }
    for end in &ends {
        touch(end.workers[0], end.at[0]);
        touch(end.workers[1], end.at[1]);
    }
    for clock in &mut clocks {
        // A clock that nothing is compared with.
        clock.since = if clock.since == Stamp(i64::MAX) { Stamp(0) } else { clock.since };
    }
    let on = |worker: usize, stamp: Stamp| {
        stamp.0.saturating_sub(clocks[clock_of[worker]].since.0) as f64
    };
    let between_clocks = |workers: &[usize; 2]| clock_of[workers[0]] != clock_of[workers[1]];
    let samples = messages.iter().filter(|raw| between_clocks(&raw.workers));
    let mut samples: Vec<Sample> = samples
        .map(|raw| Sample {
            from: clock_of[raw.workers[0]],
            to: clock_of[raw.workers[1]],
            family: raw.family,
            sent: on(raw.workers[0], raw.sent),
            began: on(raw.workers[1], raw.began),
            received: on(raw.workers[1], raw.received),
        })
        .collect();
    samples.sort_by(|one, other| one.sent.total_cmp(&other.sent));
    let ends = ends.iter().filter(|raw| between_clocks(&raw.workers));
    let ends = ends
        .map(|raw| End {
            clocks: raw.workers.map(|worker| clock_of[worker]),
            at: [on(raw.workers[0], raw.at[0]), on(raw.workers[1], raw.at[1])],
        })
        .collect();
    Matched { clocks, clock_of, messages: samples, ends, problems }
}

/// One clock for each host. Where a host's own messages arrive before they were sent, one for each of its workers.
fn clocks(
    trace: &Trace,
    messages: &[Raw],
    problems: &mut Vec<Problem>,
) -> (Vec<Clock>, Vec<usize>) {
    let mut apart: BTreeMap<&str, u64> = BTreeMap::new();
    for message in messages {
        let [from, to] = message.workers.map(|worker| trace.workers[worker].clock());
        let early = message.sent.0.saturating_sub(message.received.0);
        if from == to && early > ONE_CLOCK {
            *apart.entry(from).or_default() += 1;
        }
    }
    for (host, times) in &apart {
        let text = "messages inside this host arrive before they were sent; its workers are taken to have clocks of their own";
        problems.push(Problem { place: host.to_string(), text: text.to_string(), times: *times });
    }
    let mut clocks: Vec<Clock> = Vec::new();
    let mut by_host: HashMap<&str, usize> = HashMap::new();
    let mut clock_of = Vec::with_capacity(trace.workers.len());
    for worker in &trace.workers {
        let next = clocks.len();
        let own = apart.contains_key(worker.clock());
        let clock = if own { next } else { *by_host.entry(worker.clock()).or_insert(next) };
        if clock == next {
            let host = if own {
                format!("{} (worker {})", worker.host, worker.rank)
            } else {
                worker.host.clone()
            };
            clocks.push(Clock { host, rank: worker.rank, since: Stamp(i64::MAX) });
        }
        clock_of.push(clock);
    }
    (clocks, clock_of)
}

/// Messages of which both ends were recorded.
fn messages(trace: &Trace, problems: &mut Vec<Problem>) -> Vec<Raw> {
    type Key<'t> = (usize, usize, &'t str, u32, u32, u64);
    let places: HashMap<Rank, usize> =
        trace.workers.iter().enumerate().map(|(place, worker)| (worker.rank, place)).collect();
    let mut sends: HashMap<Key<'_>, (Stamp, bool)> = HashMap::new();
    // That a worker is missing is said elsewhere, and where recordings begin and end the other one may not have begun or have ended.
    let both_recorded = |place: usize, at: Stamp| within_steps(&trace.workers[place], at);
    let mut missing: u64 = 0;
    let mut repeated: u64 = 0;
    for (place, worker) in trace.workers.iter().enumerate() {
        for span in &worker.spans {
            let Kind::Message(message) = &span.kind else { continue };
            if message.direction == Direction::Received {
                continue;
            }
            let Some(&peer) = places.get(&message.peer) else { continue };
            let key = key(place, peer, message);
            repeated += u64::from(sends.insert(key, (span.begin, false)).is_some());
        }
    }
    let mut families: HashMap<(usize, usize, &str, u32, u32), u32> = HashMap::new();
    let mut matched = Vec::new();
    for (place, worker) in trace.workers.iter().enumerate() {
        for span in &worker.spans {
            let Kind::Message(message) = &span.kind else { continue };
            if message.direction == Direction::Sent {
                continue;
            }
            let Some(&peer) = places.get(&message.peer) else { continue };
            let Some((sent, taken)) = sends.get_mut(&key(peer, place, message)) else {
                missing += u64::from(both_recorded(place, span.begin));
                continue;
            };
            if std::mem::replace(taken, true) {
                repeated += 1;
                continue;
            }
            let next = families.len() as u32;
            let family = (peer, place, &*message.tensor, message.chunk, message.part);
            matched.push(Raw {
                workers: [peer, place],
                family: *families.entry(family).or_insert(next),
                sent: *sent,
                began: span.begin,
                received: span.end(),
            });
        }
    }
    let lost = |((place, ..), (sent, taken)): &(&Key<'_>, &(Stamp, bool))| {
        !taken && both_recorded(*place, *sent)
    };
    missing += sends.iter().filter(lost).count() as u64;
    for (text, times) in [
        ("only one end was recorded, which says nothing about clocks", missing),
        ("recorded more than once; one of them counts", repeated),
    ] {
        if times > 0 {
            problems.push(Problem { place: "messages".to_string(), text: text.to_string(), times });
        }
    }
    matched
}

/// Whether a worker was in one of its steps but the last.
fn within_steps(worker: &WorkerTrace, at: Stamp) -> bool {
    let (first, last) = (worker.steps.first(), worker.steps.last());
    let Some((first, last)) = first.zip(last) else { return true };
    (first.begin..last.begin).contains(&at)
}

fn key(from: usize, to: usize, message: &Message) -> (usize, usize, &str, u32, u32, u64) {
    (from, to, &message.tensor, message.chunk, message.part, message.use_number)
}

/// Operations that several workers recorded: each worker's end with the first one's.
fn ends(trace: &Trace) -> Vec<RawEnd> {
    let mut firsts: HashMap<(&str, &[Rank], u64), (usize, Stamp)> = HashMap::new();
    let mut found = Vec::new();
    for (place, worker) in trace.workers.iter().enumerate() {
        let mut ordinals: HashMap<(&str, &[Rank]), u64> = HashMap::new();
        for span in &worker.spans {
            let Kind::Collective(collective) = &span.kind else { continue };
            let group = (&*collective.group, collective.members.as_slice());
            let ordinal = ordinals.entry(group).or_default();
            *ordinal += 1;
            if !ENDS_TOGETHER.contains(&&*collective.operation) {
                continue;
            }
            let number = collective.sequence.unwrap_or(*ordinal);
            let (first, at) =
                *firsts.entry((group.0, group.1, number)).or_insert((place, span.end()));
            if first != place {
                found.push(RawEnd { workers: [first, place], at: [at, span.end()] });
            }
        }
    }
    found
}

impl Matched {
    /// Take known drifts out of all stamps.
    pub fn correct(&mut self, rates: &[f64]) {
        for message in &mut self.messages {
            message.sent *= 1.0 + rates[message.from];
            message.began *= 1.0 + rates[message.to];
            message.received *= 1.0 + rates[message.to];
        }
        for end in &mut self.ends {
            end.at = [0, 1].map(|side| end.at[side] * (1.0 + rates[end.clocks[side]]));
        }
    }

    /// How many comparisons there are.
    pub fn len(&self) -> usize {
        self.messages.len().max(self.ends.len())
    }

    /// The bounds that follow from part `part` of so many parts of all comparisons.
    pub fn edges(&self, part: usize, parts: usize) -> Edges {
        let slice = |count: usize| count * part / parts..count * (part + 1) / parts;
        let mut tightest: BTreeMap<(usize, usize), (f64, u64)> = BTreeMap::new();
        for message in &self.messages[slice(self.messages.len())] {
            let least = message.sent - message.received;
            let bound = tightest.entry((message.from, message.to)).or_insert((least, 0));
            *bound = (bound.0.max(least), bound.1 + 1);
        }
        let list = tightest.iter().map(|(&(from, to), &(least, count))| Edge {
            from,
            to,
            least,
            count,
            assumed: false,
        });
        let mut edges = Edges { list: list.collect(), ..Edges::default() };
        self.add_ends(&mut edges, &self.ends[slice(self.ends.len())]);
        self.close(&mut edges);
        edges
    }

    /// The mean time on a clock of what part `part` compares.
    pub fn middle(&self, clock: usize, part: usize, parts: usize) -> Option<f64> {
        let slice = |count: usize| count * part / parts..count * (part + 1) / parts;
        let messages = self.messages[slice(self.messages.len())].iter().filter_map(|message| {
            let sent = (message.from == clock).then_some(message.sent);
            sent.or((message.to == clock).then_some(message.received))
        });
        let ends = self.ends[slice(self.ends.len())].iter().filter_map(|end| {
            let side = end.clocks.iter().position(|other| *other == clock)?;
            Some(end.at[side])
        });
        let (sum, count) =
            messages.chain(ends).fold((0.0, 0.0), |(sum, count), time| (sum + time, count + 1.0));
        (count > 0.0).then_some(sum / count)
    }

    /// Operations end together where no message says more.
    fn add_ends(&self, edges: &mut Edges, ends: &[End]) {
        let island = islands(self.clocks.len(), &edges.list);
        let mut differences: BTreeMap<[usize; 2], Vec<f64>> = BTreeMap::new();
        for end in ends.iter().filter(|end| island[end.clocks[0]] != island[end.clocks[1]]) {
            differences.entry(end.clocks).or_default().push(end.at[0] - end.at[1]);
        }
        edges.by_ends = !differences.is_empty();
        for ([from, to], mut differences) in differences {
            let count = differences.len() as u64;
            let middle = median(&mut differences);
            differences
                .iter_mut()
                .for_each(|difference| *difference = (*difference - middle).abs());
            let width = median(&mut differences) + TOGETHER;
            let edge = |from, to, least| Edge { from, to, least, count, assumed: true };
            edges.list.push(edge(from, to, middle - width));
            edges.list.push(edge(to, from, -middle - width));
        }
    }

    /// Where messages go one way only, and not even a detour leads back, the quickest is taken to have been as quick as
    /// the quickest ones elsewhere.
    fn close(&self, edges: &mut Edges) {
        let leads = reach(self.clocks.len(), &edges.list);
        let mut round_trips: Vec<f64> = Vec::new();
        for edge in &edges.list {
            let back = edges.list.iter().find(|back| back.from == edge.to && back.to == edge.from);
            round_trips
                .extend(back.map(|back| -(edge.least + back.least)).filter(|trip| *trip > 0.0));
        }
        let trip =
            if round_trips.is_empty() { 2.0 * USUAL_LATENCY } else { median(&mut round_trips) };
        let mut missing = Vec::new();
        for edge in edges.list.iter().filter(|edge| !leads[edge.to][edge.from]) {
            edges.one_way.push([edge.from, edge.to]);
            let least = -edge.least - trip;
            missing.push(Edge { from: edge.to, to: edge.from, least, count: 0, assumed: true });
        }
        edges.list.extend(missing);
    }
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Which clocks lead to which.
fn reach(count: usize, edges: &[Edge]) -> Vec<Vec<bool>> {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); count];
    edges.iter().for_each(|edge| next[edge.from].push(edge.to));
    let from = |start: usize| {
        let mut seen = vec![false; count];
        let mut open = vec![start];
        while let Some(clock) = open.pop() {
            if !std::mem::replace(&mut seen[clock], true) {
                open.extend(&next[clock]);
            }
        }
        seen
    };
    (0..count).map(from).collect()
}

/// Clocks that bounds join, in whatever direction, have the same number.
fn islands(count: usize, edges: &[Edge]) -> Vec<usize> {
    let both = edges.iter().flat_map(|edge| {
        let back = Edge { from: edge.to, to: edge.from, ..edge.clone() };
        [edge.clone(), back]
    });
    let leads = reach(count, &both.collect::<Vec<Edge>>());
    (0..count)
        .map(|clock| (0..=clock).find(|other| leads[*other][clock]).unwrap_or(clock))
        .collect()
}
