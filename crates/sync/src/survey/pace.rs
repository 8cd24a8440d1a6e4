//! How one transfer of a survey is carried out, and what its arrivals say of the rate: for whoever carries them out, on
//! whichever clock. It sends nothing and reads no clock.

use std::time::Duration;

/// Fewer bytes say nothing.
pub(super) const LEAST_BYTES: usize = 128 << 10;

/// To begin with.
pub(super) const FIRST_BYTES: usize = 256 << 10;

/// Fewer are sent only where time is short: rate limiters let an eighth of them through at once, and again whenever a sender has
/// paused.
pub(super) const USUAL_BYTES: usize = 1 << 20;

/// More say no more.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// Into how many pieces a transfer is cut, so that it can be told when its parts came.
pub const PIECES: usize = 32;

/// The part of a transfer's time that does not count: what had gathered in token buckets while nobody sent passes at once, and
/// connections begin slowly.
const DISCARDED: f64 = 1.0 / 3.0;

/// Pieces that are this share of the mean pause apart were read together.
const AT_ONCE: f64 = 0.25;

/// With fewer pieces after that it is not told.
const LEAST_PIECES: usize = 6;

/// Bytes a second once it had become steady, where pieces of this many bytes each came at these moments, in order; none if
/// too few came to tell.
pub(super) fn steady_rate(came: &[Duration], piece_bytes: usize) -> Option<f64> {
    let (first, last) = (came.first()?, came.last()?);
    let steady = *first + last.saturating_sub(*first).mul_f64(DISCARDED);
    let mut begin = came.iter().position(|at| *at >= steady)?;
    // A reader that was elsewhere finds several at once: what it has caught up with came before.
    let at_once = last.saturating_sub(*first).mul_f64(AT_ONCE / came.len() as f64);
    while came.get(begin + 1).is_some_and(|next| next.saturating_sub(came[begin]) < at_once) {
        begin += 1;
    }
    let seconds = last.saturating_sub(came[begin]).as_secs_f64();
    let pieces = came.len() - 1 - begin;
    let enough = came.len() * piece_bytes >= LEAST_BYTES / 2;
    (enough && pieces >= LEAST_PIECES && seconds > 0.0)
        .then(|| (pieces * piece_bytes) as f64 / seconds)
}

/// Bytes a second of what came up to a moment, where it went on after it: once it had become steady.
pub(super) fn rate_until(came: &[Duration], piece_bytes: usize, until: Duration) -> Option<f64> {
    let from = until.mul_f64(DISCARDED);
    let pieces = pieces_at(came, until) - pieces_at(came, from);
    let seconds = until.saturating_sub(from).as_secs_f64();
    (pieces >= LEAST_PIECES as f64 / 2.0 && seconds > 0.0)
        .then(|| pieces * piece_bytes as f64 / seconds)
}

/// How many had come by then, with the part that had come of the next one.
fn pieces_at(came: &[Duration], at: Duration) -> f64 {
    let whole = came.partition_point(|moment| *moment <= at);
    let Some(next) = came.get(whole) else { return whole as f64 };
    let before = whole.checked_sub(1).map_or(Duration::ZERO, |last| came[last]);
    let [part, pause] = [at, *next].map(|end| end.saturating_sub(before).as_secs_f64());
    whole as f64 + if pause > 0.0 { part / pause } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through a bucket that holds so many bytes, at this rate.
    fn through_a_bucket(burst: f64, rate: f64, bytes: usize) -> Vec<Duration> {
        let piece = (bytes / PIECES) as f64;
        let at = |number: usize| {
            let bytes = (number + 1) as f64 * piece;
            Duration::from_secs_f64(((bytes - burst) / rate).max(bytes / 1e10))
        };
        (0..PIECES).map(at).collect()
    }

    #[test]
    fn what_passes_at_once_makes_no_rate_higher() {
        for rate in [1e6, 7.5e6, 1e8, 1e9] {
            for bytes in [384 << 10, 1 << 20, MOST_BYTES] {
                let came = through_a_bucket(131_072.0, rate, bytes);
                let seen = steady_rate(&came, bytes / PIECES).unwrap();
                assert!((seen / rate - 1.0).abs() < 0.02, "{seen} instead of {rate}, {bytes}");
            }
        }
    }

    #[test]
    fn what_a_reader_finds_when_it_comes_back_makes_no_rate_higher() {
        let rate = 7.5e6;
        let bytes = 1 << 20;
        // It was elsewhere for a while, in the middle.
        let stalled = |at: Duration| {
            let away = Duration::from_millis(25)..Duration::from_millis(60);
            if away.contains(&at) { away.end } else { at }
        };
        let came: Vec<Duration> =
            through_a_bucket(131_072.0, rate, bytes).into_iter().map(stalled).collect();
        let seen = steady_rate(&came, bytes / PIECES).unwrap();
        // A piece more or less, of fourteen.
        assert!((seen / rate - 1.0).abs() < 0.08, "{seen}");
    }

    #[test]
    fn transfers_that_are_through_first_make_those_together_no_faster() {
        let (rate, bytes) = (1e7, 1_usize << 20);
        let piece = (bytes / PIECES) as f64;
        // Two thirds of the link and one third; when the first is through, the second has it all.
        let first: Vec<Duration> = (1..=PIECES)
            .map(|at| Duration::from_secs_f64(at as f64 * piece / (rate * 2.0 / 3.0)))
            .collect();
        let end = *first.last().unwrap();
        let second: Vec<Duration> = (1..=PIECES)
            .map(|at| match at <= PIECES / 2 {
                true => Duration::from_secs_f64(at as f64 * piece / (rate / 3.0)),
                false => end + Duration::from_secs_f64((at - PIECES / 2) as f64 * piece / rate),
            })
            .collect();
        let alone = [&first, &second].map(|came| steady_rate(came, bytes / PIECES).unwrap());
        assert!(alone.iter().sum::<f64>() > 1.2 * rate, "{alone:?}");
        let until = end.mul_f64(0.8);
        let together =
            [&first, &second].map(|came| rate_until(came, bytes / PIECES, until).unwrap());
        assert!((together.iter().sum::<f64>() / rate - 1.0).abs() < 0.02, "{together:?}");
        assert_eq!(rate_until(&first[..1], bytes / PIECES, until), None);
    }

    #[test]
    fn what_came_at_once_or_not_at_all_says_nothing() {
        assert_eq!(steady_rate(&[], 1 << 20), None);
        assert_eq!(steady_rate(&[Duration::from_millis(3)], 1 << 20), None);
        assert_eq!(steady_rate(&[Duration::from_millis(3); PIECES], 1 << 20), None);
        let came: Vec<Duration> = (0..8).map(Duration::from_millis).collect();
        assert_eq!(steady_rate(&came, 1000), None);
    }
}
