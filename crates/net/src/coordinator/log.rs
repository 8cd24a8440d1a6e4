//! Where the lines go that a coordinator or a joining worker has for its user. This file knows nothing of what
//! they say.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Takes lines of text, from any thread.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&str) + Send + Sync>);

impl Log {
    /// Hand each line to `sink`.
    pub fn to(sink: impl Fn(&str) + Send + Sync + 'static) -> Log {
        Log(Arc::new(sink))
    }

    /// Print each line to standard error.
    pub fn to_standard_error() -> Log {
        Log::to(|line| eprintln!("paceline: {line}"))
    }

    /// Say nothing.
    pub fn silent() -> Log {
        Log::to(|_| {})
    }

    pub(crate) fn line(&self, line: &str) {
        (self.0)(line);
    }

    /// Something happened now: a line that says when, so that it can be held against what others saw.
    pub(crate) fn event(&self, line: &str) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.line(&format!("{line} [{}]", moment(since.unwrap_or_default())));
    }
}

impl Default for Log {
    fn default() -> Log {
        Log::to_standard_error()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log(..)")
    }
}

/// A time since 1970 as `2026-11-17T00:25:42.123Z`.
fn moment(since: Duration) -> String {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years that begin in March end with the day that some of them lack; 400 of them are an era. Hinnant, "chrono-compatible
    // low-level date algorithms".
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..=9 => (400 * era + year, month + 3),
        _ => (400 * era + year + 1, month - 9),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let thousandths = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        let at = |seconds, milliseconds| {
            moment(Duration::from_secs(seconds) + Duration::from_millis(milliseconds))
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(at(1_709_251_200, 0), "2024-03-01T00:00:00.000Z");
        assert_eq!(at(4_102_444_799, 0), "2099-12-31T23:59:59.000Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }
}
