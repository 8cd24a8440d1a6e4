//! Lengths of time as people write them: `30s`, `500ms`, `1.5h`. For fields that are a [`Duration`]:
//! `#[serde(with = "crate::duration")]`. It knows nothing of what the time is for.

use crate::quantity::{ParseQuantityError, Written};
use serde::{Deserializer, Serializer};
use std::{fmt, str::FromStr, time::Duration};

const EXPECTED: &str = "a length of time such as 30s, 500ms or 1.5h, or a whole number of seconds";

/// Units and their nanoseconds, ascending, and of two names the one that we write last: a name that ends
/// in another must be tried before it.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("µs", 1_000),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("min", 60 * SECOND),
    ("h", 3600 * SECOND),
];

const SECOND: u64 = 1_000_000_000;

/// A century is longer than any job; below it, sums of times stay far from the ends of their range.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn serialize<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    // What somebody computed may be longer: a century is as good as for ever.
    serializer.collect_str(&WrittenDuration(LONGEST.min(*duration)))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let written = deserializer.deserialize_any(Written::<WrittenDuration>::new(EXPECTED))?;
    Ok(written.0)
}

/// A length of time, read and written as people do.
///
/// ```
/// use paceline_job::WrittenDuration;
/// let time: WrittenDuration = "1.5ms".parse()?;
/// assert_eq!(time.to_string(), "1500us");
/// # Ok::<(), paceline_job::ParseQuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenDuration(pub Duration);

impl FromStr for WrittenDuration {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_lowercase();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| lower.strip_suffix(name).map(|number| (number.trim(), *unit)))
            .unwrap_or((&lower, SECOND));
        // Whole numbers exactly; a fraction to the nearest nanosecond.
        let duration = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(unit).map(Duration::from_nanos),
            Err(_) => number.parse().ok().and_then(|number: f64| {
                Duration::try_from_secs_f64(number * unit as f64 / SECOND as f64).ok()
            }),
        };
        duration
            .filter(|duration| *duration <= LONGEST)
            .map(WrittenDuration)
            .ok_or_else(|| ParseQuantityError::new(text, EXPECTED))
    }
}

/// A whole number of the largest unit that leaves nothing over.
impl fmt::Display for WrittenDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let whole = |unit: u64| nanos > 0 && nanos.is_multiple_of(u128::from(unit));
        match UNITS.iter().rev().find(|(_, unit)| whole(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", nanos / u128::from(*unit)),
            None => f.write_str("0s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Duration, ParseQuantityError> {
        text.parse().map(|written: WrittenDuration| written.0)
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, nanos) in [
            ("30s", 30 * SECOND),
            ("30", 30 * SECOND),
            (" 1.5 h ", 5400 * SECOND),
            ("90MIN", 5400 * SECOND),
            ("90m", 5400 * SECOND),
            ("500ms", SECOND / 2),
            ("0.5s", SECOND / 2),
            ("20µs", 20_000),
            ("20us", 20_000),
            ("7ns", 7),
            ("0s", 0),
        ] {
            assert_eq!(read(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for wrong in ["", "s", "soon", "-1s", "nan", "inf h", "1e30h", "30 apples", "1h30m", "101y"]
        {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")) && error.contains("500ms"), "{error}");
        }
        assert!(read("900000h").is_err());
    }

    #[test]
    fn a_time_is_written_in_the_largest_unit_that_leaves_nothing_over() {
        for text in ["2h", "90min", "61s", "1500ms", "20us", "1001ns", "0s"] {
            assert_eq!(WrittenDuration(read(text).unwrap()).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_again(nanos in 0..LONGEST.as_nanos() as u64) {
            let written = WrittenDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(read(&written.to_string()), Ok(written.0));
        }
    }
}
