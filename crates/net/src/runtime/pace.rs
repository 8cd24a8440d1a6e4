//! A line of a stated rate in front of a worker's connections, one for each direction: how many bytes may pass now, and how long
//! the next have to wait. It stands for a slow wire where there is none, without asking anybody for privileges. It knows no
//! frames: which of them goes first is said elsewhere.

use paceline_job::{Rate, Time};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What a line takes at once when it is free. A wire would carry it for a while; here it is all there at once, and the line busy
/// for that while.
const PACKET_BYTES: f64 = 1500.0;

/// Whoever drives may come late because others have the processor. A wire would have gone on with what its host had queued, so
/// the line makes up for so much.
const LATENESS: Duration = Duration::from_millis(20);

/// What a worker's connections may send, all together, and as much again what they may receive. Its clones are the same pace, so that it can be changed while the
/// worker runs. Memory that workers share is not paced.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Bytes a second, as the bits of an `f64`; 0 is no limit.
    bytes_per_second: Arc<AtomicU64>,
}

impl Pace {
    /// No more than this.
    pub fn new(rate: Rate) -> Pace {
        let pace = Pace::default();
        pace.set(Some(rate));
        pace
    }

    /// From now on no more than this, or as much as the network takes.
    pub fn set(&self, rate: Option<Rate>) {
        let bytes_per_second = rate.map_or(0.0, Rate::bytes_per_second);
        self.bytes_per_second.store(bytes_per_second.to_bits(), Ordering::Relaxed);
    }

    /// What is set.
    pub fn rate(&self) -> Option<Rate> {
        let bytes_per_second = f64::from_bits(self.bytes_per_second.load(Ordering::Relaxed));
        (bytes_per_second > 0.0).then(|| Rate::from_bytes_per_second(bytes_per_second))
    }
}

/// The line itself. In any span of time in which bytes wait it carries at most what its rate says and one packet.
#[derive(Debug)]
pub(crate) struct Line {
    pace: Pace,
    /// What has passed keeps it busy until then.
    busy_until: Time,
    /// Whether nothing waits: what it does not carry then is lost.
    idle: bool,
}

impl Line {
    pub(crate) fn new(pace: Pace) -> Line {
        Line { pace, busy_until: Time::ZERO, idle: true }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.pace.rate().is_some()
    }

    /// Bytes that may pass now, where some wait.
    pub(crate) fn allowance(&mut self, now: Time) -> usize {
        let Some(rate) = self.pace.rate() else { return usize::MAX };
        let latest =
            if std::mem::replace(&mut self.idle, false) { Duration::ZERO } else { LATENESS };
        self.busy_until = self.busy_until.max(Time(now.0.saturating_sub(latest.as_nanos() as u64)));
        if self.busy_until > now {
            return 0;
        }
        let unused = now.since(self.busy_until).as_secs_f64() * rate.bytes_per_second();
        (unused + PACKET_BYTES) as usize
    }

    /// So many bytes have passed.
    pub(crate) fn carry(&mut self, bytes: usize) {
        if let Some(rate) = self.pace.rate() {
            let seconds = bytes as f64 / rate.bytes_per_second();
            self.busy_until = self.busy_until.after(Duration::from_secs_f64(seconds));
        }
    }

    /// Nothing waits any more.
    pub(crate) fn rest(&mut self) {
        self.idle = true;
    }

    /// How long what waits has to, if the line is busy.
    pub(crate) fn wait(&self, now: Time) -> Option<Duration> {
        let busy = !self.idle && self.busy_until > now && self.is_limited();
        busy.then(|| self.busy_until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    /// A megabyte a second: a kilobyte in each millisecond.
    fn line() -> (Pace, Line) {
        let pace = Pace::new(Rate::from_bytes_per_second(1e6));
        (pace.clone(), Line::new(pace))
    }

    #[test]
    fn a_line_that_always_has_something_to_send_carries_its_rate() {
        let (_, mut line) = line();
        let mut carried = 0;
        for now in 0..1000 {
            let bytes = line.allowance(at(now));
            line.carry(bytes);
            carried += bytes;
        }
        assert!((998_000..=1_001_500).contains(&carried), "{carried}");
    }

    #[test]
    fn what_an_idle_line_did_not_carry_is_lost_and_what_a_late_one_did_not_is_made_up_for() {
        let (_, mut line) = line();
        line.carry(line.pace.rate().map_or(0, |_| 1500));
        line.rest();
        assert_eq!(line.allowance(at(500)), 1500);
        line.carry(1500);
        assert_eq!(line.allowance(at(510)), 1500 + 8500);
        line.carry(10_000);
        assert_eq!(line.allowance(at(900)), 1500 + 20_000, "up to a bound");
    }

    #[test]
    fn a_busy_line_says_how_long_it_is() {
        let (_, mut line) = line();
        assert_eq!(line.allowance(at(10)), 1500);
        line.carry(1500);
        assert_eq!(line.wait(at(11)), Some(Duration::from_micros(500)));
        assert_eq!(line.allowance(at(11)), 0);
        assert_eq!(line.wait(at(12)), None);
    }

    #[test]
    fn a_pace_that_is_taken_away_limits_nothing() {
        let (pace, mut line) = line();
        pace.set(None);
        assert_eq!(line.allowance(at(1)), usize::MAX);
        assert!(!line.is_limited() && line.wait(at(1)).is_none());
    }
}
