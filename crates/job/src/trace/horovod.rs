//! Horovod timelines: a Chrome array, often without its closing bracket, in which each tensor is a process. What a tensor
//! went through is a stack of events: `NEGOTIATE_ALLREDUCE`, during which a tick named by a rank says that this rank is
//! ready, then `ALLREDUCE` with what was done inside.
//!
//! Read are the collectives: from when this worker was ready to the end, on one lane where they overlap. What Horovod did
//! inside (copies into its fusion buffer, waits) is left out: several tensors share it. What the program did is not in a timeline:
//! a thread is put beside the operations that computes until each is ready, and waits for all before the next step.

use super::{
    Collective, Kind, Lane, LaneId, LaneKind, Lost, Phase, Span, SpanId, Stamp, Step, WorkerTrace,
    assemble, chrome,
    chrome::{Event, Id},
    kineto::Imported,
    problems::Problems,
    words,
};
use std::{collections::BTreeMap, sync::Arc};

/// Events of a tensor that begin inside each other; deeper ones are counted, not kept.
const DEEPEST: usize = 64;

/// Ranks beyond this are no ranks.
const MOST_RANKS: u32 = 1 << 20;

/// The thread that computes.
const TRAINING: LaneId = LaneId(0);

/// Where operations are.
const OPERATIONS: LaneId = LaneId(1);

/// What the negotiation of an operation is called begins with this. It is never inside anything else.
const NEGOTIATES: &str = "NEGOTIATE_";

/// Whether this is the beginning of a timeline.
pub(super) fn recognises(text: &str) -> bool {
    text.contains("\"NEGOTIATE_") || text.contains("\"CYCLE_START\"")
}

/// What is known of a tensor.
#[derive(Debug, Default)]
struct Tensor {
    name: Option<Arc<str>>,
    open: Vec<(String, Stamp)>,
    /// When this worker was ready for the operation that comes next.
    ready: Option<Stamp>,
    uses: u64,
}

impl Tensor {
    /// What is open does not end any more. A use of the tensor is a use, also without its end.
    fn give_up(&mut self, lost: &mut Lost, problems: &mut Problems) {
        problems
            .add_times("something began and did not end; it is left out", self.open.len() as u64);
        if let Some((name, _)) = self.open.first() {
            self.uses += u64::from(!name.starts_with(NEGOTIATES));
            self.ready = None;
        }
        lost.at.extend(self.open.drain(..).map(|(_, begin)| begin));
    }
}

/// Read a file to its end.
pub(super) fn import(mut reader: chrome::Reader, place: &str) -> Imported {
    let mut problems = Problems::at(place);
    let mut tensors: BTreeMap<Id, Tensor> = BTreeMap::new();
    let mut spans: Vec<Span> = Vec::new();
    let mut world = None;
    let mut lost = Lost::default();
    for event in in_order(reader.by_ref().collect(), &mut problems) {
        // While an operation is negotiated, every rank that is ready leaves a tick.
        let rank = event.name.parse::<u32>().ok().filter(|_| matches!(event.ph, 'X' | 'i'));
        world = world.max(rank.filter(|rank| *rank < MOST_RANKS).map(|rank| rank + 1));
        take(event, &mut tensors, &mut spans, &mut lost, &mut problems);
    }
    let whole = reader.is_whole();
    let (header, mut all_problems) = reader.finish();
    for tensor in tensors.values_mut() {
        tensor.give_up(&mut lost, &mut problems);
    }
    lost.of_file = !whole;
    let steps = steps(&spans);
    if !steps.is_empty() {
        problems.add("a timeline marks no steps; each use of the tensors is taken for one");
        problems.add(
            "a timeline does not say what was computed: the time until an operation is ready is taken for computation",
        );
    }
    compute_between(&mut spans, &steps, &mut problems);
    let lane = |name: &str, kind| Lane { name: name.into(), kind };
    let mut worker = WorkerTrace {
        world,
        lanes: vec![lane("training", LaneKind::Thread), lane("horovod", LaneKind::Network)],
        steps,
        spans,
        lost,
        ..WorkerTrace::default()
    };
    assemble::order(&mut worker);
    all_problems.extend(problems.into_list());
    Imported { worker, rank: header.rank(), problems: all_problems }
}

/// Each event once, and those of a tensor by time. Files whose events lie in order stay as they are: what happens at one time
/// lies as it happened.
fn in_order(events: Vec<Event>, problems: &mut Problems) -> Vec<Event> {
    let mut by_tensor: BTreeMap<Id, Vec<Event>> = BTreeMap::new();
    for event in events {
        by_tensor.entry(event.pid.clone()).or_default().push(event);
    }
    let mut ordered = Vec::new();
    for (_, events) in by_tensor {
        let (names, mut events): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.ph == 'M');
        let backwards = events.windows(2).filter(|pair| pair[1].ts < pair[0].ts).count();
        if backwards > 0 {
            problems.add_times(
                "an event of a tensor is earlier than the one before it; events are sorted",
                backwards as u64,
            );
            events.sort_by_key(|event| event.ts);
            untie(&mut events);
        }
        let times = copies(&events);
        let before = events.len();
        keep_each_once(&mut events, times);
        problems
            .add_times("an event is there twice; one is left out", (before - events.len()) as u64);
        ordered.extend(names.into_iter().chain(events));
    }
    ordered
}

/// Among events of one time of which nobody knows the order, what is open ends first, and what is inside ends before what is
/// around it: that alone says what it carried.
fn untie(events: &mut [Event]) {
    let mut depth = 0_usize;
    for same in events.chunk_by_mut(|one, other| one.ts == other.ts) {
        let ends = same.iter().filter(|event| event.ph == 'E').count();
        let mut left = depth.min(ends);
        same.sort_by_key(|event| match event.ph {
            'E' => (1, !event.args.is_empty(), 0),
            'B' => {
                (2, false, if event.name.starts_with(NEGOTIATES) { 0 } else { event.name.len() })
            }
            _ => (0, false, 0),
        });
        // Whatever more ends there has begun there.
        let ticks = same.iter().take_while(|event| !matches!(event.ph, 'B' | 'E')).count();
        left = left.min(same.len() - ticks);
        same[ticks + left..].sort_by_key(|event| event.ph == 'E');
        let begins = same.iter().filter(|event| event.ph == 'B').count();
        depth = (depth + begins).saturating_sub(ends);
    }
}

/// How many times everything that begins is there: once, unless the file has everything several times.
fn copies(events: &[Event]) -> usize {
    let begins: Vec<&Event> = events.iter().filter(|event| event.ph == 'B').collect();
    let runs = begins.chunk_by(|one, other| one == other).map(<[_]>::len);
    runs.min().unwrap_or(1)
}

/// Leave out what is there several times at one time. An end says little, and several things may end together: of ends that say
/// nothing there are as many as of what begins.
fn keep_each_once(events: &mut Vec<Event>, times: usize) {
    let mut kept: Vec<Event> = Vec::with_capacity(events.len());
    let mut from = 0;
    let mut copies = 0;
    for event in events.drain(..) {
        if kept.last().is_none_or(|last| last.ts != event.ts) {
            (from, copies) = (kept.len(), 0);
        }
        let there = kept[from..].contains(&event);
        let plain = event.ph == 'E' && event.args.is_empty();
        copies += usize::from(plain);
        if !there || (plain && (times == 1 || copies % times == 1)) {
            kept.push(event);
        }
    }
    *events = kept;
}

fn take(
    event: Event,
    tensors: &mut BTreeMap<Id, Tensor>,
    spans: &mut Vec<Span>,
    lost: &mut Lost,
    problems: &mut Problems,
) {
    let tensor = tensors.entry(event.pid.clone()).or_default();
    if event.ph == 'M' {
        if event.name == "process_name" {
            tensor.name = event.text("name").map(Into::into);
        }
        return;
    }
    if event.ph == 'B' && event.name.starts_with(NEGOTIATES) {
        tensor.give_up(lost, problems);
    }
    match event.ph {
        'B' if tensor.open.len() < DEEPEST => tensor.open.push((event.name, event.ts)),
        'B' => problems.add("events of a tensor begin inside each other without end"),
        'E' => end(&event, tensor, spans, lost, problems),
        // A tick: the first is of whoever was ready first, and rank 0 writes the file.
        'X' | 'i' if event.name == "0" => tensor.ready = Some(event.ts),
        _ => {}
    }
}

fn end(
    event: &Event,
    tensor: &mut Tensor,
    spans: &mut Vec<Span>,
    lost: &mut Lost,
    problems: &mut Problems,
) {
    let Some((name, begin)) = tensor.open.pop() else {
        problems.add("something ended that had not begun; it is left out");
        lost.at.push(event.ts);
        return;
    };
    if name.starts_with(NEGOTIATES) {
        tensor.ready = tensor.ready.or(Some(begin));
        return;
    }
    // Inside an operation lies what it is made of.
    let Some(operation) = words::operation(&name).filter(|_| tensor.open.is_empty()) else {
        return;
    };
    let begin = tensor.ready.take().map_or(begin, |ready| ready.min(begin));
    let dtype = event.text("dtype").and_then(words::dtype);
    let elements = event.text("shape").and_then(elements);
    let bytes = elements.zip(dtype).and_then(|(it, dtype)| it.checked_mul(dtype.size() as u64));
    if bytes.is_none() && operation != "barrier" {
        problems.add("a collective does not say how much it carries");
    }
    let shown = tensor.name.clone().unwrap_or_else(|| format!("tensor {}", event.pid).into());
    spans.push(Span {
        name: shown.clone(),
        lane: OPERATIONS,
        begin,
        length: event.ts.since(begin),
        kind: Kind::Collective(Box::new(Collective {
            operation: operation.into(),
            group: "".into(),
            members: Vec::new(),
            sequence: Some(tensor.uses),
            tensor: Some(shown),
            bytes: bytes.unwrap_or(0),
            dtype,
            priority: 0,
        })),
        after: Vec::new(),
    });
    tensor.uses += 1;
}

/// Elements of a shape that is written as `[256, 10]`.
fn elements(shape: &str) -> Option<u64> {
    let inside = shape.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
    sizes.try_fold(1_u64, |product, size| product.checked_mul(size.parse().ok()?))
}

/// From the first begin of a use of any tensor to the first begin of the next use of any.
fn steps(spans: &[Span]) -> Vec<Step> {
    let mut begins: BTreeMap<u64, Stamp> = BTreeMap::new();
    for span in spans {
        if let Kind::Collective(collective) = &span.kind
            && let Some(number) = collective.sequence
        {
            let begin = begins.entry(number).or_insert(span.begin);
            *begin = span.begin.min(*begin);
        }
    }
    let ordered: Vec<_> = begins.into_iter().collect();
    let step = |pair: &[(u64, Stamp)]| Step { number: pair[0].0, begin: pair[0].1, end: pair[1].1 };
    ordered.windows(2).map(step).filter(|step| step.begin < step.end).collect()
}

/// Put a thread beside operations. Adds spans.
fn compute_between(spans: &mut Vec<Span>, steps: &[Step], problems: &mut Problems) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|at| spans[*at].begin);
    let mut rest = &order[..];
    // What the thread did last.
    let mut before: Option<SpanId> = None;
    let mut left = 0;
    for step in steps {
        let from = rest.partition_point(|at| spans[*at].begin < step.begin);
        let to = rest.partition_point(|at| spans[*at].begin < step.end);
        let of_step = &rest[from..to];
        rest = &rest[to..];
        let mut now = step.begin;
        let mut add = |spans: &mut Vec<Span>, name: &str, kind: Kind, until: Stamp, after| {
            let (name, length) = (name.into(), until.since(now));
            spans.push(Span { name, lane: TRAINING, begin: now, length, kind, after });
            now = until.max(now);
            Some(SpanId(spans.len() as u32 - 1))
        };
        let mut last = step.begin;
        for &at in of_step {
            let ready = spans[at].begin;
            if ready > last {
                let name = format!("gradient of {}", spans[at].name);
                before = add(spans, &name, Kind::Work(Phase::Backward), ready, Vec::new());
                last = ready;
            }
            spans[at].after.extend(before);
        }
        let (over, late): (Vec<usize>, Vec<usize>) =
            of_step.iter().partition(|at| spans[**at].end() <= step.end);
        left += late.len() as u64;
        if let Some(end) = over.iter().map(|at| spans[*at].end()).max() {
            let after = over.iter().map(|at| SpanId(*at as u32)).collect();
            add(spans, "wait", Kind::Wait, end.max(last), after);
        }
        before = add(spans, "computation", Kind::Work(Phase::Forward), step.end, Vec::new());
    }
    problems.add_times(
        "an operation was not over when the next step began; nothing waits for it",
        left,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Two tensors, three uses; the file is not closed and ends inside the last.
    fn timeline() -> String {
        let mut text = String::from("[\n");
        for pid in [1, 2] {
            text += &format!(
                r#"{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": "grad/{pid}"}}}},
"#
            );
        }
        for step in 0..3 {
            for pid in [1, 2] {
                let begin = step * 1000 + pid * 10;
                let mut event = |ph: &str, name: &str, at: i64, args: &str| {
                    let ts = begin + at;
                    text += &format!(
                        r#"{{"ph": "{ph}", "name": "{name}", "ts": {ts}, "pid": {pid}{args}}},
"#
                    );
                };
                event("B", "NEGOTIATE_ALLREDUCE", 0, "");
                event("X", "1", 1, r#", "dur": 0"#);
                event("X", "0", 5, r#", "dur": 0"#);
                event("E", "", 6, "");
                event("B", "ALLREDUCE", 7, "");
                event("B", "NCCL_ALLREDUCE", 8, "");
                if step < 2 {
                    event("E", "", 90, "");
                    event("E", "", 100, r#", "args": {"dtype": "float32", "shape": "[256, 10]"}"#);
                }
            }
        }
        text
    }

    fn import(text: &str) -> Imported {
        let reader = chrome::Reader::new(Cursor::new(text.to_owned()), "test").unwrap();
        super::import(reader, "test")
    }

    #[test]
    fn tensors_become_collectives_from_being_ready_to_the_end() {
        let text = timeline();
        assert!(recognises(&text));
        let Imported { worker, problems, .. } = import(&text);
        let collectives = worker.spans.iter().filter(|it| matches!(it.kind, Kind::Collective(_)));
        let collectives: Vec<_> = collectives.collect();
        assert_eq!((collectives.len(), worker.world), (4, Some(2)));
        let span = collectives[1];
        assert_eq!((&*span.name, span.begin, span.length), ("grad/2", Stamp(25_000), 95_000));
        let Kind::Collective(collective) = &span.kind else { panic!("no collective") };
        assert_eq!((&*collective.operation, collective.bytes), ("all_reduce", 10_240));
        assert_eq!(collective.sequence, Some(0));
        let step = Step { number: 0, begin: Stamp(15_000), end: Stamp(1_015_000) };
        assert_eq!(worker.steps, [step]);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert_eq!(problems[0].times, 4);
    }

    #[test]
    fn a_thread_computes_until_tensors_are_ready_and_waits_for_all_of_them() {
        let worker = import(&timeline()).worker;
        let thread = worker.spans.iter().filter(|span| span.lane == TRAINING);
        let thread: Vec<_> = thread
            .map(|span| (&*span.name, span.begin.0, span.end().0, span.after.len()))
            .collect();
        let expected = [
            ("gradient of grad/2", 15_000, 25_000, 0),
            ("wait", 25_000, 120_000, 2),
            ("computation", 120_000, 1_015_000, 0),
        ];
        assert_eq!(thread, expected);
        let second = worker.spans.iter().find(|span| &*span.name == "grad/2");
        let cause = second.map(|span| &*worker.spans[span.after[0].0 as usize].name);
        assert_eq!(cause, Some("gradient of grad/2"));
    }

    /// The lines of a timeline of three whole steps, names of tensors first.
    fn lines() -> Vec<String> {
        let mut text = timeline();
        for (pid, begin) in [(1, 2010), (2, 2020)] {
            for (at, args) in [(90, "null"), (100, r#"{"dtype": "float32", "shape": "[256, 10]"}"#)]
            {
                let ts = begin + at;
                text += &format!(
                    r#"{{"ph": "E", "name": "", "ts": {ts}, "pid": {pid}, "args": {args}}},"#
                );
                text += "\n";
            }
        }
        text.lines().skip(1).map(|line| line.trim_end_matches(',').to_string()).collect()
    }

    fn of_lines(lines: &[String]) -> Imported {
        import(&format!("[{}]", lines.join(",")))
    }

    #[test]
    fn the_order_of_events_in_a_file_and_copies_of_them_change_nothing_but_the_report() {
        let lines = lines();
        let expected = of_lines(&lines).worker;
        assert_eq!((expected.steps.len(), &expected.lost), (2, &Lost::default()));
        let reversed: Vec<String> = lines.iter().rev().cloned().collect();
        let half = lines.len() / 2;
        let mixed: Vec<String> =
            (0..lines.len()).map(|at| lines[(at * 17 + half) % lines.len()].clone()).collect();
        assert_eq!(mixed.iter().collect::<std::collections::HashSet<_>>().len(), lines.len());
        let doubled: Vec<String> =
            lines.iter().flat_map(|line| [line.clone(), line.clone()]).collect();
        let appended: Vec<String> = [lines.clone(), lines.clone()].concat();
        for (other, said) in [
            (reversed, "are sorted"),
            (mixed, "are sorted"),
            (doubled, "there twice"),
            (appended, "there twice"),
        ] {
            let imported = of_lines(&other);
            assert_eq!(imported.worker, expected, "{said}: {:?}", imported.problems);
            let texts = imported.problems.iter().map(|problem| problem.text.clone());
            assert!(
                texts.clone().any(|text| text.contains(said)),
                "{:?}",
                texts.collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn an_operation_without_its_end_is_lost_and_those_after_it_keep_their_numbers() {
        let mut lines = lines();
        // The end of the first tensor's second use.
        let place = lines.iter().position(|line| line.contains("\"ts\": 1110")).unwrap();
        lines.remove(place);
        let Imported { worker, problems, .. } = of_lines(&lines);
        assert!(
            problems.iter().any(|problem| problem.text.contains("did not end")),
            "{problems:?}"
        );
        assert_eq!(worker.lost.at, [Stamp(1_017_000)]);
        let uses = worker.spans.iter().filter(|span| &*span.name == "grad/1");
        let uses = uses.map(|span| match &span.kind {
            Kind::Collective(collective) => collective.sequence,
            _ => None,
        });
        assert_eq!(uses.collect::<Vec<_>>(), [Some(0), Some(2)]);
        assert!(worker.steps.iter().any(|step| worker.lost.concerns(step)));
    }

    #[test]
    fn disorder_is_reported_and_the_rest_is_read() {
        let ends = r#"{"ph": "E", "ts": 5, "pid": 1}"#;
        let imported = import(&format!(
            "[{ends},{ends},{{\"ph\":\"B\",\"pid\":1,\"ts\":4,\"name\":\"BROADCAST\"}},{ends}"
        ));
        assert_eq!(imported.worker.spans.len(), 1);
        let texts: Vec<_> = imported.problems.iter().map(|it| it.text.as_str()).collect();
        for part in ["had not begun", "earlier than", "how much it carries"] {
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
    }

    #[test]
    fn events_that_never_end_are_bounded() {
        let text = "[".to_string() + &r#"{"ph":"B","pid":1,"name":"ALLREDUCE"},"#.repeat(1000);
        let imported = import(&text);
        assert!(imported.worker.spans.is_empty());
        assert_eq!(imported.problems.iter().map(|it| it.times).sum::<u64>(), 1000);
    }
}
