//! What a worker shows to people who watch the job: its last steps, with what was computed, waited for and under way. Nothing is
//! noted before the coordinator says that somebody watches, and no other worker is asked for anything.

use crate::{
    coordinator::{
        SEEN_NAME, SEEN_OPERATIONS, SEEN_PEERS, SEEN_STEPS, SEEN_WAITS, SeenOperation, Sighting,
    },
    runtime::{helm::lock, trace::monotonic_nanoseconds},
};
use paceline_job::{Rank, View};
use rustc_hash::FxHashMap;
use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

/// The least seconds between two sightings of one worker, and for each worker of the job: the coordinator hears all of them.
const LEAST_SECONDS: f64 = 0.25;
const SECONDS_FOR_EACH_WORKER: f64 = 0.01;

/// Operations and waits that are kept of the last steps. More are counted only.
const KEPT: usize = 8192;

/// The share of the newest step in how long steps are taken to be.
const NEWEST: f64 = 0.25;

/// However fast steps are, one of so many is shown.
const LONGEST_PERIOD: u64 = 1 << 20;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    on: AtomicBool,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// Steps and when they began: the last [`SEEN_STEPS`] and the one that goes on.
    begun: VecDeque<(u64, u64)>,
    /// Seconds of a step, smoothed.
    usual: Option<f64>,
    operations: VecDeque<Noted>,
    /// The number of the first of them.
    first: u64,
    /// The last operation under each name.
    names: FxHashMap<u64, u64>,
    waits: VecDeque<(u64, u64)>,
    lost: u64,
    sent: FxHashMap<Rank, u64>,
    received: u64,
    losses: (f64, u64),
    samples: u64,
    /// When the last sighting was, and the step that began then.
    shown: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Noted {
    name: std::sync::Arc<str>,
    hash: u64,
    bytes: u64,
    posted: u64,
    started: Option<u64>,
    ended: Option<u64>,
}

impl Watching {
    /// Somebody watches from now on.
    pub(crate) fn begin(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The program hands an operation over; the number is for [`Watching::ended`].
    pub(crate) fn posted(&self, name: &std::sync::Arc<str>, hash: u64, bytes: u64) -> u64 {
        let mut notes = lock(&self.notes);
        if notes.operations.len() == KEPT {
            notes.drop_first();
            notes.lost += 1;
        }
        let number = notes.first + notes.operations.len() as u64;
        let posted = monotonic_nanoseconds();
        let (name, started, ended) = (name.clone(), None, None);
        notes.operations.push_back(Noted { name, hash, bytes, posted, started, ended });
        notes.names.insert(hash, number);
        number
    }

    /// It is over.
    pub(crate) fn ended(&self, number: u64) {
        if let Some(noted) = lock(&self.notes).operation(number) {
            noted.ended = Some(monotonic_nanoseconds());
        }
    }

    /// A message of the operation with this name leaves for a peer.
    pub(crate) fn sending(&self, to: Rank, hash: u64, bytes: u32) {
        if self.is_on() {
            let mut notes = lock(&self.notes);
            *notes.sent.entry(to).or_default() += u64::from(bytes);
            notes.start(hash);
        }
    }

    /// A message of the operation with this name comes.
    pub(crate) fn receiving(&self, hash: u64, bytes: u32) {
        if self.is_on() {
            let mut notes = lock(&self.notes);
            notes.received += u64::from(bytes);
            notes.start(hash);
        }
    }

    /// The program stood still.
    pub(crate) fn waited(&self, begin: u64, end: u64) {
        let mut notes = lock(&self.notes);
        if notes.waits.len() == KEPT {
            notes.waits.pop_front();
            notes.lost += 1;
        }
        notes.waits.push_back((begin, end));
    }

    /// What the program says of its step.
    pub(crate) fn told(&self, loss: Option<f64>, samples: Option<u64>) {
        if self.is_on() {
            let mut notes = lock(&self.notes);
            if let Some(loss) = loss.filter(|loss| loss.is_finite()) {
                notes.losses.0 += loss;
                notes.losses.1 += 1;
            }
            notes.samples += samples.unwrap_or(0);
        }
    }

    /// A step begins, and the one before it is over; what is to be shown now, if anything is.
    pub(crate) fn begin_step(&self, step: u64, rank: Rank, view: &View) -> Option<Sighting> {
        if !self.is_on() {
            return None;
        }
        let now = monotonic_nanoseconds();
        let mut notes = lock(&self.notes);
        notes.begin_step(step, now);
        let period = notes.period(view.size());
        if notes.begun.len() < 2 || !step.is_multiple_of(period) {
            return None;
        }
        Some(notes.sighting(now, period, rank, view))
    }
}

impl Notes {
    fn operation(&mut self, number: u64) -> Option<&mut Noted> {
        self.operations.get_mut(number.checked_sub(self.first)? as usize)
    }

    fn drop_first(&mut self) {
        if let Some(gone) = self.operations.pop_front() {
            if self.names.get(&gone.hash) == Some(&self.first) {
                self.names.remove(&gone.hash);
            }
            self.first += 1;
        }
    }

    fn start(&mut self, hash: u64) {
        let Some(number) = self.names.get(&hash).copied() else { return };
        if let Some(noted) = self.operation(number).filter(|noted| noted.started.is_none()) {
            noted.started = Some(monotonic_nanoseconds());
        }
    }

    fn begin_step(&mut self, step: u64, now: u64) {
        if self.begun.back().is_some_and(|(last, _)| step != last + 1) {
            // Steps were left out: what lies between is none of them.
            self.begun.clear();
        }
        if self.shown.is_none() {
            // Of what came before nobody knows how long it took.
            self.shown = Some((now, step));
            self.sent.clear();
            (self.received, self.losses, self.samples) = Default::default();
        }
        if let Some((_, before)) = self.begun.back() {
            let seconds = now.saturating_sub(*before) as f64 / 1e9;
            self.usual =
                Some(self.usual.map_or(seconds, |usual| usual + NEWEST * (seconds - usual)));
        }
        self.begun.push_back((step, now));
        if self.begun.len() > SEEN_STEPS + 1 {
            self.begun.pop_front();
        }
        // What was over before the first of these steps belongs to none of them.
        let oldest = self.begun.front().map_or(now, |(_, at)| *at);
        while self.operations.front().is_some_and(|one| one.ended.is_some_and(|end| end < oldest)) {
            self.drop_first();
        }
        while self.waits.front().is_some_and(|(_, end)| *end < oldest) {
            self.waits.pop_front();
        }
    }

    /// One of so many steps is shown: a power of two, so that workers whose steps take about as long show the same ones.
    fn period(&self, workers: usize) -> u64 {
        let apart = LEAST_SECONDS.max(SECONDS_FOR_EACH_WORKER * workers as f64);
        match self.usual {
            // Conversion saturates.
            Some(seconds) if seconds > 0.0 => {
                ((apart / seconds).ceil() as u64).clamp(1, LONGEST_PERIOD).next_power_of_two()
            }
            _ => 1,
        }
    }

    fn sighting(&mut self, now: u64, period: u64, rank: Rank, view: &View) -> Sighting {
        let steps = (period as usize).min(SEEN_STEPS).min(self.begun.len() - 1);
        let first = self.begun.len() - 1 - steps;
        let (step, begin) = self.begun[first];
        let since = |at: u64| (at as i64 - begin as i64) / 1000;
        let ends = self.begun.range(first + 1..).map(|(_, at)| since(*at) as u64).collect();
        let mut left_out = std::mem::take(&mut self.lost);

        let seen = self.operations.iter().filter(|one| one.ended.is_none_or(|end| end >= begin));
        let mut operations: Vec<SeenOperation> = seen
            .map(|one| SeenOperation {
                name: one.name.chars().map(plain).take(SEEN_NAME).collect(),
                bytes: one.bytes,
                posted: since(one.posted),
                started: one.started.map(since),
                ended: one.ended.map(since),
            })
            .collect();
        let end = since(now);
        left_out += keep_longest(&mut operations, SEEN_OPERATIONS, |one| {
            one.ended.unwrap_or(end) - one.posted
        });
        let seen = self.waits.iter().filter(|(_, end)| *end >= begin);
        let mut waits: Vec<(u64, u64)> = seen
            .map(|(from, to)| (since(*from).max(0), since(*to)))
            .map(|(from, to)| (from as u64, (to - from).max(0) as u64))
            .collect();
        left_out += keep_longest(&mut waits, SEEN_WAITS, |(_, length)| *length as i64);

        let last = self.begun.back().map_or(step, |(step, _)| *step);
        let before = self.shown.replace((now, last));
        let (since_when, since_step) = before.unwrap_or((begin, step));
        let seconds = now.saturating_sub(since_when).max(1) as f64 / 1e9;
        let rate = |bytes: u64| bytes as f64 / seconds;
        let mut sent: Vec<(Rank, f64)> =
            self.sent.drain().map(|(rank, bytes)| (rank, rate(bytes))).collect();
        let upload = sent.iter().map(|(_, rate)| rate).sum();
        sent.sort_by(|one, other| other.1.total_cmp(&one.1));
        sent.truncate(SEEN_PEERS);
        let (sum, count) = std::mem::take(&mut self.losses);
        let samples = std::mem::take(&mut self.samples);
        Sighting {
            rank,
            view: view.version,
            step,
            at: clock_at(begin),
            ends,
            speed: last.saturating_sub(since_step) as f64 / seconds,
            waits,
            operations,
            left_out,
            sent,
            upload,
            download: rate(std::mem::take(&mut self.received)),
            loss: (count > 0).then(|| sum / count as f64),
            samples: (samples > 0).then(|| samples as f64 / seconds),
        }
    }
}

/// A character that is as long in a message as it is here.
fn plain(character: char) -> char {
    match character {
        '"' | '\\' => '\'',
        control if control.is_control() => ' ',
        other => other,
    }
}

/// Of too many keep the longest, in the order they have; how many were left out.
fn keep_longest<T>(list: &mut Vec<T>, most: usize, length: impl Fn(&T) -> i64) -> u64 {
    if list.len() <= most {
        return 0;
    }
    let left_out = list.len() - most;
    let mut lengths: Vec<(i64, usize)> =
        list.iter().enumerate().map(|(at, one)| (length(one), at)).collect();
    lengths.sort_unstable();
    let mut short: Vec<usize> = lengths[..left_out].iter().map(|(_, at)| *at).collect();
    short.sort_unstable();
    let mut at = 0;
    list.retain(|_| {
        at += 1;
        short.binary_search(&(at - 1)).is_err()
    });
    left_out as u64
}

/// Microseconds since 1970 at a moment of the monotonic clock.
fn clock_at(moment: u64) -> u64 {
    let ago = Duration::from_nanos(monotonic_nanoseconds().saturating_sub(moment));
    let then = SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH);
    let since = then.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{WORKER_MESSAGE_BYTES, WorkerMessage, encode};
    use paceline_job::Settings;

    fn view() -> View {
        View::local(4, Settings::default())
    }

    #[test]
    fn nobody_is_shown_anything_before_somebody_watches() {
        let watching = Watching::default();
        assert!((0..9).all(|step| watching.begin_step(step, Rank(0), &view()).is_none()));
    }

    #[test]
    fn an_operation_is_seen_from_its_post_over_its_first_message_to_its_end() {
        let (watching, mut seen) = (Watching::default(), Vec::new());
        watching.begin();
        for step in 0..200 {
            seen.extend(watching.begin_step(step, Rank(1), &view()));
            let number = watching.posted(&"layer".into(), 7, 4000);
            watching.sending(Rank(2), 7, 3000);
            watching.receiving(7, 1000);
            watching.told(Some(0.5), Some(8));
            let begin = monotonic_nanoseconds();
            std::thread::sleep(Duration::from_millis(5));
            watching.waited(begin, monotonic_nanoseconds());
            watching.ended(number);
        }
        let last = seen.last().expect("a second is long enough");
        assert!(last.is_sound(), "{last:?}");
        assert_eq!((last.rank, last.ends.len(), last.loss), (Rank(1), 2, Some(0.5)));
        assert_eq!(last.operations.len(), 2);
        for one in &last.operations {
            let (started, ended) = (one.started.unwrap(), one.ended.unwrap());
            assert!(one.posted <= started && started <= ended, "{one:?}");
            assert!(ended as u64 <= *last.ends.last().unwrap());
        }
        assert_eq!(last.waits.len(), 2);
        assert_eq!(last.sent.len(), 1);
        assert_eq!((last.sent[0].0, last.sent[0].1), (Rank(2), last.upload));
        assert!((last.upload / last.download - 3.0).abs() < 1e-9);
        for one in &seen {
            assert!((one.samples.unwrap() / one.speed - 8.0).abs() < 1e-6, "{one:?}");
        }
    }

    #[test]
    fn a_sighting_fits_into_a_message_however_much_there_was_to_see() {
        let watching = Watching::default();
        watching.begin();
        watching.begin_step(0, Rank(0), &view());
        for number in 0..2 * KEPT as u64 {
            let name = format!("{}{number}", "\u{10ffff}\"\\\n".repeat(20));
            let number = watching.posted(&name.into(), number, u64::MAX);
            watching.waited(0, monotonic_nanoseconds());
            watching.sending(Rank(number as u32), number, u32::MAX);
            watching.ended(number);
        }
        let seen = (1..).find_map(|step| watching.begin_step(step, Rank(0), &view())).unwrap();
        assert!(seen.is_sound());
        assert!(seen.left_out > 0);
        let bytes = encode(&WorkerMessage::Seen(Box::new(seen)));
        assert!(bytes.len() <= WORKER_MESSAGE_BYTES, "{}", bytes.len());
    }

    #[test]
    fn workers_whose_steps_take_about_as_long_show_the_same_steps() {
        let period = |seconds: f64| Notes { usual: Some(seconds), ..Notes::default() }.period(4);
        assert_eq!(period(0.05), period(0.06));
        assert_eq!((period(10.0), period(0.2), period(0.1)), (1, 2, 4));
        assert_eq!(period(0.0), 1);
        assert!(period(1e-12).is_power_of_two());
    }
}
