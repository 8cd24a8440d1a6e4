//! What has happened in a job so far, bounded: the fold that all pages and `/metrics` read. It is told the time and asks nobody.

use super::{
    grouping::Grouping,
    record::{CHANGE, Job, Point, Record, SeenDecision, SeenView, What},
};
use paceline_net::coordinator::{Fate, MemberStatus, Observation, Sighting};
use paceline_tune::Decision;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Lines that are kept, without those about single workers' steps: some hours of a job.
const LINES: usize = 40_000;

/// Bytes of lines about single workers' steps, and how many of one worker.
const DETAIL_BYTES: usize = 8 << 20;
const DETAILS_OF_A_WORKER: usize = 6;

/// Groups change with every step, and are kept like a worker's steps. No worker has this name.
const EVERYBODY: u64 = u64::MAX;

/// Bytes of one answer; what is left comes with the next.
const ANSWER_BYTES: usize = 2 << 20;

/// A line, and which one it is.
#[derive(Clone, Debug)]
struct Line {
    number: u64,
    text: Arc<str>,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct History {
    /// The number of the last line; the first has 1.
    last: u64,
    lines: VecDeque<Line>,
    details: VecDeque<(u64, Line)>,
    detail_bytes: usize,
    /// What is known now.
    pub now: Now,
}

/// The job as it is now.
#[derive(Clone, Debug, Default)]
pub struct Now {
    pub job: Job,
    pub view: Option<SeenView>,
    pub members: Vec<MemberStatus>,
    /// Who averages with whom, where the view in force says so.
    pub grouping: Option<Grouping>,
    /// The last of every worker of the view, by rank.
    pub seen: BTreeMap<u32, Sighting>,
    pub point: Option<Point>,
    /// How often each was done.
    pub decisions: BTreeMap<String, u64>,
    /// Workers that had not done their work.
    pub lost: u64,
    pub paused: bool,
    pub ended: Option<String>,
}

impl History {
    /// Something happened; the lines that it makes, for whoever keeps them.
    pub fn add(&mut self, t: u64, what: What) -> Vec<Arc<str>> {
        let mut added = Vec::new();
        let point = self.now.see(&what);
        added.extend(self.push(t, what));
        if let Some(point) = point {
            self.now.point = Some(point.clone());
            // The step before the one that begins is the last that is over.
            let over = point.step.checked_sub(1);
            added.extend(self.push(t, What::Point(point)));
            let groups = over.and_then(|step| self.now.grouping.as_ref()?.at(step));
            added.extend(groups.and_then(|groups| self.push(t, What::Groups(groups))));
        }
        added
    }

    /// The coordinator heard something; as [`add`](History::add).
    pub fn observe(&mut self, t: u64, observation: Observation) -> Vec<Arc<str>> {
        if let Observation::View { view, since } = &observation {
            self.now.grouping = Some(Grouping::of(view, *since, self.now.grouping.as_ref()));
        }
        self.add(t, what_of(observation))
    }

    /// A line that was kept, with those that it made.
    pub fn again(&mut self, record: Record) {
        self.now.see(&record.what);
        self.push(record.t, record.what);
    }

    fn push(&mut self, t: u64, what: What) -> Option<Arc<str>> {
        let detail = match &what {
            What::Seen { id, .. } => Some(*id),
            What::Groups(_) => Some(EVERYBODY),
            What::Job(_) => {
                // Another job's workers are others.
                self.details.clear();
                self.detail_bytes = 0;
                None
            }
            _ => None,
        };
        let text: Arc<str> = serde_json::to_string(&Record { t, what }).ok()?.into();
        self.last += 1;
        let line = Line { number: self.last, text: text.clone() };
        match detail {
            None => {
                if self.lines.len() == LINES {
                    // The first says which job it is.
                    self.lines.remove(1);
                }
                self.lines.push_back(line);
            }
            Some(id) => {
                self.detail_bytes += text.len();
                self.details.push_back((id, line));
                let of_worker = self.details.iter().filter(|(other, _)| *other == id).count();
                if of_worker > DETAILS_OF_A_WORKER {
                    let first = self.details.iter().position(|(other, _)| *other == id);
                    self.forget(first.unwrap_or(0));
                }
                while self.detail_bytes > DETAIL_BYTES {
                    self.forget(0);
                }
            }
        }
        Some(text)
    }

    fn forget(&mut self, at: usize) {
        if let Some((_, line)) = self.details.remove(at) {
            self.detail_bytes -= line.text.len();
        }
    }

    /// Lines after the one with this number, in their order, as a list of JSON; the number of the last, and whether there are
    /// more.
    pub fn after(&self, number: u64) -> (String, u64, bool) {
        // Whoever saw more than there was looks at another job's page.
        let number = if number > self.last { 0 } else { number };
        let from = self.lines.partition_point(|line| line.number <= number);
        let mut lines = self.lines.range(from..).peekable();
        let from = self.details.partition_point(|(_, line)| line.number <= number);
        let mut details = self.details.range(from..).map(|(_, line)| line).peekable();
        let (mut text, mut last) = (String::from("["), number);
        loop {
            let detail_first = match (lines.peek(), details.peek()) {
                (None, None) => break,
                (Some(line), Some(detail)) => detail.number < line.number,
                (line, _) => line.is_none(),
            };
            let next = if detail_first { details.next() } else { lines.next() };
            let Some(line) = next else { break };
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&line.text);
            last = line.number;
            if text.len() > ANSWER_BYTES {
                break;
            }
        }
        let more = lines.peek().is_some() || details.peek().is_some();
        text.push(']');
        // Lines that were forgotten meanwhile are none that anybody waits for.
        (text, if more { last } else { self.last }, more)
    }

    /// The last that was seen of each worker, for a trace.
    pub fn details(&self) -> impl Iterator<Item = &str> {
        self.details.iter().map(|(_, line)| &*line.text)
    }
}

impl Now {
    /// Follow; how fast the job is, if that is news.
    fn see(&mut self, what: &What) -> Option<Point> {
        match what {
            What::Job(job) => {
                let (decisions, lost) = (std::mem::take(&mut self.decisions), self.lost);
                *self = Now { job: job.clone(), decisions, lost, ..Now::default() };
            }
            What::View(view) => {
                self.seen.retain(|rank, _| (*rank as usize) < view.workers.len());
                self.view = Some(view.clone());
            }
            What::Members { members } => self.members.clone_from(members),
            What::Gone { finished, .. } => self.lost += u64::from(!finished),
            What::Point(point) => self.point = Some(point.clone()),
            What::Seen { sighting, .. } => {
                self.seen.insert(sighting.rank.0, (**sighting).clone());
                return (sighting.rank.0 == 0).then(|| self.point_of(sighting));
            }
            What::Decision(decision) => {
                *self.decisions.entry(decision.action.clone()).or_default() += 1;
            }
            What::Tuning { paused } => self.paused = *paused,
            What::Groups(_) | What::Note { .. } => {}
            What::End { text } => self.ended = Some(text.clone()),
        }
        None
    }

    fn point_of(&self, first: &Sighting) -> Point {
        let all = || self.seen.values();
        let said: Vec<f64> = all().filter_map(|seen| seen.loss).collect();
        let samples: Vec<f64> = all().filter_map(|seen| seen.samples).collect();
        Point {
            step: first.step + first.ends.len() as u64,
            speed: first.speed,
            samples: (!samples.is_empty()).then(|| samples.iter().sum()),
            loss: (!said.is_empty()).then(|| said.iter().sum::<f64>() / said.len() as f64),
            waiting: all().map(waiting).sum::<f64>() / self.seen.len().max(1) as f64,
            sent: all().map(|seen| seen.upload).sum(),
            workers: self.view.as_ref().map_or(self.seen.len(), |view| view.workers.len()),
        }
    }
}

/// The share of its steps in which a worker's program stood still.
pub fn waiting(seen: &Sighting) -> f64 {
    let whole = seen.ends.last().copied().unwrap_or(0);
    let waited: u64 = seen.waits.iter().map(|(_, length)| length).sum();
    if whole == 0 { 0.0 } else { (waited as f64 / whole as f64).min(1.0) }
}

/// What a coordinator heard, for a page.
fn what_of(observation: Observation) -> What {
    match observation {
        Observation::View { view, since } => {
            What::View(SeenView { since, ..SeenView::from(&*view) })
        }
        Observation::Gone { id, rank, fate } => What::Gone {
            id: id.0,
            rank: rank.map(|rank| rank.0),
            finished: fate == Fate::Finished,
            text: fate.to_string(),
        },
        Observation::Seen { id, sighting } => What::Seen { id: id.0, sighting },
        Observation::Decided { text, .. } => What::Decision(decision_of(text)),
    }
}

/// A decision of a tuner's log, or whatever else was said.
pub fn decision_of(text: String) -> SeenDecision {
    match serde_json::from_str::<Decision>(&text) {
        Ok(decision) => SeenDecision {
            by: decision.method.clone(),
            action: decision.action.word().to_string(),
            step: Some(decision.step),
            text: decision.to_string(),
            predicted: decision.predicted_gain.filter(|gain| gain.is_finite()),
            measured: decision.measured_gain.filter(|gain| gain.is_finite()),
        },
        Err(_) => SeenDecision {
            by: "policy".to_string(),
            action: CHANGE.to_string(),
            text,
            ..SeenDecision::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::record::SeenGroups;
    use paceline_job::{Rank, Settings, StrategyChoice, View};

    fn seen(rank: u32, step: u64) -> What {
        let sighting = Sighting {
            rank: Rank(rank),
            step,
            ends: vec![1000],
            waits: vec![(0, 250)],
            speed: 10.0,
            upload: 5.0,
            loss: Some(f64::from(rank)),
            ..Sighting::default()
        };
        What::Seen { id: rank.into(), sighting: Box::new(sighting) }
    }

    fn numbers(history: &History, after: u64) -> usize {
        let (text, _, _) = history.after(after);
        serde_json::from_str::<Vec<Record>>(&text).unwrap().len()
    }

    #[test]
    fn a_page_is_told_everything_once_and_in_order() {
        let mut history = History::default();
        history.add(1, What::Job(Job::default()));
        history.add(2, What::Note { text: "a".to_string() });
        history.add(3, seen(1, 7));
        let (text, last, more) = history.after(0);
        let records: Vec<Record> = serde_json::from_str(&text).unwrap();
        assert_eq!(records.iter().map(|record| record.t).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(!more);
        assert_eq!(numbers(&history, last), 0);
        history.add(4, What::Note { text: "b".to_string() });
        assert_eq!(numbers(&history, last), 1);
        assert_eq!(numbers(&history, 1_000_000), 4, "of another job");
    }

    #[test]
    fn the_first_worker_makes_points_of_what_all_said() {
        let mut history = History::default();
        history.add(1, seen(1, 7));
        assert!(history.now.point.is_none());
        history.add(2, seen(0, 8));
        let (text, _, _) = history.after(0);
        let points: Vec<Record> = serde_json::from_str(&text).unwrap();
        let What::Point(point) = &points[2].what else { panic!("{points:?}") };
        assert_eq!((point.step, point.speed, point.sent), (9, 10.0, 10.0));
        assert_eq!((point.loss, point.waiting), (Some(0.5), 0.25));
        assert_eq!(history.now.point.as_ref(), Some(point));
    }

    #[test]
    fn groups_follow_a_point_where_the_strategy_has_some() {
        let mut history = History::default();
        let mut told = |strategy: &str| {
            let settings =
                Settings { strategy: StrategyChoice(strategy.to_string()), ..Settings::default() };
            let view = Box::new(View::on_hosts(vec!["a".to_string(); 4], settings));
            history.observe(1, Observation::View { view, since: 0 });
            let added = history.add(2, seen(0, 4));
            let last = serde_json::from_str::<Record>(added.last().unwrap()).unwrap();
            (added.len(), last.what)
        };
        let groups = vec![vec![0, 1], vec![2, 3]];
        let expected = What::Groups(SeenGroups { step: 4, groups, parts: 1 });
        assert_eq!(told("shuffle"), (3, expected));
        assert!(matches!(told("ring"), (2, What::Point(_))));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut history = History::default();
        history.add(0, What::Job(Job { name: "it".to_string(), ..Job::default() }));
        for step in 0..100 {
            (0..4).for_each(|rank| drop(history.add(step, seen(rank, step))));
        }
        assert_eq!(history.details.len(), 4 * DETAILS_OF_A_WORKER);
        for _ in 0..LINES + 10 {
            history.add(1, What::Tuning { paused: false });
        }
        assert_eq!(history.lines.len(), LINES);
        assert!(history.lines[0].text.contains("\"name\":\"it\""));
    }

    #[test]
    fn long_histories_come_in_parts() {
        let mut history = History::default();
        let text = "x".repeat(1 << 20);
        (0..7).for_each(|_| drop(history.add(0, What::Note { text: text.clone() })));
        let (mut last, mut parts, mut lines) = (0, 0, 0);
        loop {
            let (text, next, more) = history.after(last);
            lines += serde_json::from_str::<Vec<Record>>(&text).unwrap().len();
            (last, parts) = (next, parts + 1);
            if !more {
                break;
            }
        }
        assert_eq!((lines, parts > 2), (7, true));
    }

    #[test]
    fn a_decision_of_a_log_is_shown_with_its_gains_and_other_words_as_they_are() {
        let line = r#"{"step":40,"method":"replay","action":"confirm","cause":"measured","conditions":{"speed":2.0,
            "slowest_wire":1e9,"usual_wire":1e9,"slowest_computation":0.1,"usual_computation":0.1},
            "present":{"strategy":"ring","partition":"1MiB","credit":"4MiB"},"predicted_gain":1.2,"measured_gain":1.18}"#;
        let shown = decision_of(line.to_string());
        assert_eq!((&*shown.by, &*shown.action, shown.step), ("replay", "confirm", Some(40)));
        assert_eq!((shown.predicted, shown.measured), (Some(1.2), Some(1.18)));
        assert!(shown.text.contains("+18.0 %"), "{}", shown.text);
        assert_eq!(decision_of("batch 64".to_string()).text, "batch 64");
    }
}
