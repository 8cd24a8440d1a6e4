//! What a device did, tied to the calls that launched it, and calls that waited, tied to what they waited for.
//!
//! The profiler names launches by `correlation` ids. Waits it explains only if it records synchronisation
//! (`cuda_sync`); without that we say what we take a wait to be for, and report that we did.

use super::{
    ROUNDING,
    gather::{Class, Gathered, Place, Sync},
    nesting::Nesting,
};
use crate::trace::{Kind, LaneId, Span, SpanId, Stamp, problems::Problems};
use std::collections::{HashMap, HashSet, VecDeque};

/// Tie launches, what devices did, and waits to each other. When something began whose launch was lost: not what was launched
/// before anything was recorded.
pub fn link(
    gathered: &Gathered,
    nesting: &Nesting,
    spans: &mut [Span],
    problems: &mut Problems,
) -> Vec<Stamp> {
    let calls = calls_by_correlation(gathered, problems);
    let (mut orphans, mut early, mut again) = (Vec::new(), 0, 0);
    let mut first_known: Option<Stamp> = None;
    let mut launched = HashSet::new();
    for (at, note) in gathered.notes.iter().enumerate().filter(|(_, note)| note.class.on_device()) {
        let Some(call) = note.correlation.and_then(|id| calls.get(&id).copied()) else {
            orphans.push(gathered.raw[at].begin);
            continue;
        };
        let begun = gathered.raw[at].begin;
        first_known = Some(first_known.map_or(begun, |known| known.min(begun)));
        // A graph has many kernels; any other call launches one.
        let once = note.class == Class::Kernel && !gathered.raw[call].name.contains("GraphLaunch");
        if once && !launched.insert(call) {
            again += 1;
            continue;
        }
        early += u64::from(gathered.raw[call].begin.since(begun) > ROUNDING);
        spans[at].after.push(SpanId(call as u32));
        spans[at].kind = Kind::Work(nesting.phases[call]);
        spans[call].kind = Kind::Launch;
    }
    problems
        .add_times("the launch of something a device did is not in the file", orphans.len() as u64);
    orphans.retain(|begun| first_known.is_none_or(|known| known < *begun));
    problems.add_times(
        "a kernel has the correlation of another; the first one is tied to the launch",
        again,
    );
    problems.add_times("a device began something before it was launched", early);
    let queues = Queues::of(gathered, spans);
    problems.add_times(
        "what a stream did overlaps although it does one thing after another",
        queues.overlaps(gathered),
    );
    link_waits(gathered, &calls, &queues, spans, problems);
    link_stream_waits(gathered, &calls, &queues, spans);
    orphans
}

/// When something was launched that is not in the file. Memory of no length is filled by nobody, so a fill may be missing.
pub fn launches_of_nothing(gathered: &Gathered, spans: &[Span]) -> Vec<Stamp> {
    let launches = |name: &str| {
        ["LaunchKernel", "GraphLaunch", "MemcpyAsync"].iter().any(|part| name.contains(part))
    };
    let calls = gathered.notes.iter().zip(&gathered.raw).zip(spans);
    calls
        .filter(|((note, raw), _)| note.class == Class::Call && launches(&raw.name))
        .filter(|(_, span)| !matches!(span.kind, Kind::Launch))
        .map(|((_, raw), _)| raw.begin)
        .collect()
}

/// The call that launched something, if it is known.
pub fn launch_of(spans: &[Span], at: usize) -> Option<usize> {
    let call = spans[at].after.first()?.0 as usize;
    matches!(spans[call].kind, Kind::Launch).then_some(call)
}

fn calls_by_correlation(gathered: &Gathered, problems: &mut Problems) -> HashMap<i64, usize> {
    let mut calls = HashMap::new();
    let mut again = 0;
    for (at, note) in gathered.notes.iter().enumerate() {
        let Some(id) = note.correlation.filter(|_| note.class == Class::Call) else { continue };
        again += u64::from(*calls.entry(id).or_insert(at) != at);
    }
    problems.add_times("two calls have the same correlation; the first is believed", again);
    calls
}

/// What each stream was given to do, in the order in which it was launched.
struct Queues {
    /// With the time of the launch.
    streams: HashMap<LaneId, Vec<(Stamp, u32)>>,
}

impl Queues {
    fn of(gathered: &Gathered, spans: &[Span]) -> Queues {
        let mut streams: HashMap<LaneId, Vec<(Stamp, u32)>> = HashMap::new();
        for (at, note) in gathered.notes.iter().enumerate() {
            if note.class.on_device() {
                let launched = launch_of(spans, at).unwrap_or(at);
                let queue = streams.entry(gathered.raw[at].lane).or_default();
                queue.push((gathered.raw[launched].begin, at as u32));
            }
        }
        for queue in streams.values_mut() {
            // Stable: of what one call launched, the first to run comes first.
            queue.sort_by_key(|(launched, _)| *launched);
        }
        Queues { streams }
    }

    fn overlaps(&self, gathered: &Gathered) -> u64 {
        let overlap = |pair: &&[(Stamp, u32)]| {
            let [one, next] = [pair[0], pair[1]].map(|(_, at)| &gathered.raw[at as usize]);
            one.end().since(next.begin) > ROUNDING && next.end().since(one.begin) > ROUNDING
        };
        self.streams.values().map(|queue| queue.windows(2).filter(overlap).count() as u64).sum()
    }

    /// The last thing given to a stream before a time.
    fn last_before(&self, stream: LaneId, time: Stamp) -> Option<usize> {
        let queue = self.streams.get(&stream)?;
        let before = queue.partition_point(|(launched, _)| *launched < time);
        Some(queue[before.checked_sub(1)?].1 as usize)
    }

    /// The first thing given to a stream from a time on.
    fn first_from(&self, stream: LaneId, time: Stamp) -> Option<usize> {
        let queue = self.streams.get(&stream)?;
        let before = queue.partition_point(|(launched, _)| *launched < time);
        Some(queue.get(before)?.1 as usize)
    }
}

/// What a call blocks for.
enum Target {
    Stream,
    Device,
    Event,
}

fn target(name: &str) -> Option<Target> {
    let rest = ["cuda", "hip", "cu"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    Some(match rest {
        "StreamSynchronize" | "StreamSynchronize_ptsz" => Target::Stream,
        "DeviceSynchronize" | "CtxSynchronize" | "ThreadSynchronize" => Target::Device,
        "EventSynchronize" => Target::Event,
        _ => return None,
    })
}

fn link_waits(
    gathered: &Gathered,
    calls: &HashMap<i64, usize>,
    queues: &Queues,
    spans: &mut [Span],
    problems: &mut Problems,
) {
    let mut unknown = 0;
    for (at, (raw, note)) in gathered.raw.iter().zip(&gathered.notes).enumerate() {
        let Some(target) = target(&raw.name).filter(|_| note.class == Class::Call) else {
            continue;
        };
        let sync = note.correlation.and_then(|id| gathered.syncs.get(&id)).copied();
        let stream = |sync: Sync, stream: Option<i64>| {
            gathered.lanes.get(&Place::Stream(sync.device, stream?))
        };
        // An event may have been recorded long before the wait.
        let recorded = |sync: Sync| {
            let call = sync.record.and_then(|id| calls.get(&id));
            call.map_or(raw.begin, |call| gathered.raw[*call].begin)
        };
        let last = |stream: LaneId, time: Stamp| queues.last_before(stream, time);
        let mut ends: Vec<usize> = match (target, sync) {
            (Target::Device, _) => {
                queues.streams.keys().filter_map(|stream| last(*stream, raw.begin)).collect()
            }
            (Target::Stream, Some(sync)) if sync.stream.is_some() => {
                stream(sync, sync.stream).and_then(|it| last(it, raw.begin)).into_iter().collect()
            }
            (Target::Event, Some(sync)) if sync.wait_on_stream.is_some() => {
                let it = stream(sync, sync.wait_on_stream);
                it.and_then(|it| last(it, recorded(sync))).into_iter().collect()
            }
            _ => {
                unknown += 1;
                // Of what was over by then, what was over last.
                let over = queues.streams.keys().filter_map(|stream| last(*stream, raw.begin));
                let over = over.filter(|it| gathered.raw[*it].end() <= raw.end());
                over.max_by_key(|it| gathered.raw[*it].end()).into_iter().collect()
            }
        };
        // A wait that was over earlier was not for this.
        ends.retain(|it| gathered.raw[*it].end().since(raw.end()) <= ROUNDING);
        spans[at].kind = Kind::Wait;
        spans[at].after.extend(ends.iter().map(|it| SpanId(*it as u32)));
    }
    problems.add_times(
        "a wait does not say for what; it is taken to be for what a device finished last before its end",
        unknown,
    );
}

/// A stream that waits for an event of another: what it is given next begins after what the other was given before.
fn link_stream_waits(
    gathered: &Gathered,
    calls: &HashMap<i64, usize>,
    queues: &Queues,
    spans: &mut [Span],
) {
    for (id, sync) in &gathered.syncs {
        let (Some(waiting), Some(awaited)) = (sync.stream, sync.wait_on_stream) else { continue };
        let lane = |stream| gathered.lanes.get(&Place::Stream(sync.device, stream));
        let (Some(waiting), Some(awaited)) = (lane(waiting), lane(awaited)) else { continue };
        let begin = |id: &i64| calls.get(id).map(|call| gathered.raw[*call].begin);
        let waited = begin(id).unwrap_or(sync.begin);
        let recorded = sync.record.as_ref().and_then(begin).unwrap_or(waited);
        let pair = (queues.last_before(awaited, recorded), queues.first_from(waiting, waited));
        if let (Some(before), Some(next)) = pair
            && before != next
            && waiting != awaited
        {
            spans[next].after.push(SpanId(before as u32));
        }
    }
}

/// Without synchronisation records, what PyTorch's process groups do with streams: a collective waits for the stream on
/// which its thread computed, and each later `cudaStreamWaitEvent` outside collectives makes that stream wait for the
/// oldest collective that nothing has waited for yet.
pub fn wait_for_collectives(
    gathered: &Gathered,
    nesting: &Nesting,
    spans: &mut [Span],
    problems: &mut Problems,
) {
    let told = gathered.syncs.values().any(|sync| sync.wait_on_stream.is_some());
    let mut launches: Vec<(usize, usize)> = (0..gathered.raw.len())
        .filter(|at| gathered.notes[*at].class.on_device())
        .filter_map(|at| Some((launch_of(spans, at)?, at)))
        .collect();
    launches.sort_unstable();
    let is_collective = |spans: &[Span], at: usize| matches!(spans[at].kind, Kind::Collective(_));
    if told || !launches.iter().any(|(_, at)| is_collective(spans, *at)) {
        return;
    }
    let launched: HashMap<usize, usize> = launches.iter().copied().collect();
    let talking: HashSet<usize> = launches
        .iter()
        .filter(|(_, at)| is_collective(spans, *at))
        .flat_map(|(call, _)| nesting.ancestors(*call))
        .filter(|at| gathered.notes[*at].collective.is_some())
        .collect();
    // By thread: what it computed last, and what its next computation must wait for.
    let mut computed: HashMap<LaneId, usize> = HashMap::new();
    let mut owed: HashMap<LaneId, Vec<usize>> = HashMap::new();
    let mut pending: VecDeque<usize> = VecDeque::new();
    let (mut tied, mut refuted) = (0, 0);
    let mut tie = |spans: &mut [Span], before: usize, next: usize| {
        if gathered.raw[before].end().since(gathered.raw[next].begin) <= ROUNDING {
            spans[next].after.push(SpanId(before as u32));
            tied += 1;
        } else {
            refuted += 1;
        }
    };
    for (call, (raw, note)) in gathered.raw.iter().zip(&gathered.notes).enumerate() {
        if note.class != Class::Call {
            continue;
        }
        match launched.get(&call) {
            Some(at) if is_collective(spans, *at) => {
                if let Some(before) = computed.get(&raw.lane) {
                    tie(spans, *before, *at);
                }
                pending.push_back(*at);
            }
            Some(at) => {
                for before in owed.remove(&raw.lane).unwrap_or_default() {
                    tie(spans, before, *at);
                }
                computed.insert(raw.lane, *at);
            }
            None if raw.name.contains("StreamWaitEvent")
                && !nesting.ancestors(call).any(|at| talking.contains(&at)) =>
            {
                owed.entry(raw.lane).or_default().extend(pending.pop_front());
            }
            None => {}
        }
    }
    problems.add_times(
        "streams wait for each other and the file does not say how; collectives are taken to wait, and to be waited for, as \
         PyTorch's process groups do it",
        tied,
    );
    problems
        .add_times("a wait between streams that was taken to be there cannot have been", refuted);
}

/// A copy that blocks its caller is two things: the launch, until the device begins, and the wait for it. Adds spans.
pub fn split_blocking_copies(gathered: &Gathered, spans: &mut Vec<Span>) {
    let copies: Vec<(usize, usize)> = (gathered.notes.iter().enumerate())
        .filter(|(_, note)| note.class == Class::Copy)
        .filter_map(|(at, _)| Some((launch_of(spans, at)?, at)))
        .collect();
    for (call, at) in copies {
        let copy = &gathered.raw[at];
        let blocks = gathered.raw[call].name.starts_with("cudaMemcpy")
            && (!gathered.raw[call].name.contains("Async") || copy.name.contains("Pageable"));
        let end = spans[call].end();
        // Already split, or gone on before the copy was over.
        if !blocks || copy.end() > end || copy.begin <= spans[call].begin {
            continue;
        }
        spans[call].length = copy.begin.since(spans[call].begin);
        spans.push(Span {
            name: spans[call].name.clone(),
            lane: spans[call].lane,
            begin: copy.begin,
            length: end.since(copy.begin),
            kind: Kind::Wait,
            after: vec![SpanId(at as u32)],
        });
    }
}
