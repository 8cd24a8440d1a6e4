//! Quantities as people write them: `256KiB`, `25gbit`, and a point in time that belongs to no clock.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};
use std::{fmt, marker::PhantomData, ops::RangeInclusive, str::FromStr, time::Duration};

/// A text that is not the quantity it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseQuantityError {
    text: String,
    expected: &'static str,
}

impl ParseQuantityError {
    pub(crate) fn new(text: &str, expected: &'static str) -> ParseQuantityError {
        ParseQuantityError { text: text.to_string(), expected }
    }
}

/// A number of bytes. Written `4096`, `64KiB`, `1.5MiB`, `1GB`; `unlimited` is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// No limit at all.
    pub const UNLIMITED: ByteSize = ByteSize(u64::MAX);

    /// `n` times 1024 bytes.
    pub const fn kib(n: u64) -> ByteSize {
        ByteSize(n << 10)
    }

    /// `n` times 1024² bytes.
    pub const fn mib(n: u64) -> ByteSize {
        ByteSize(n << 20)
    }
}

const BYTES_EXPECTED: &str = "a number of bytes such as 4096, 256KiB or 1.5MiB";

const BYTE_UNITS: [(&str, f64); 10] = [
    ("kib", 1024.0),
    ("mib", 1048576.0),
    ("gib", 1073741824.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("k", 1024.0),
    ("m", 1048576.0),
    ("g", 1073741824.0),
    ("b", 1.0),
];

impl FromStr for ByteSize {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase();
        if lower == "unlimited" {
            return Ok(ByteSize::UNLIMITED);
        }
        with_unit(&lower, &BYTE_UNITS)
            // Of what is written in larger units, parts of a byte are nobody's: 1.9MiB is 1992294 bytes.
            .filter(|bytes| (bytes.fract() == 0.0 || *bytes >= 1024.0) && *bytes < 9e18)
            .map(|bytes| ByteSize(bytes as u64))
            .ok_or_else(|| ParseQuantityError::new(text, BYTES_EXPECTED))
    }
}

impl ByteSize {
    /// As people say it: two digits or more of the largest unit.
    ///
    /// ```
    /// # use paceline_job::ByteSize;
    /// let said = [1, 1023, 4211, 64 << 20].map(|bytes| ByteSize(bytes).rounded());
    /// assert_eq!(said, ["1 byte", "1023 bytes", "4.1 KiB", "64 MiB"]);
    /// ```
    pub fn rounded(self) -> String {
        let ByteSize(bytes) = self;
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let Some((unit, shift)) = units.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
            return format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" });
        };
        let amount = bytes as f64 / (1_u64 << shift) as f64;
        if amount < 10.0 { format!("{amount:.1} {unit}") } else { format!("{amount:.0} {unit}") }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == ByteSize::UNLIMITED {
            return f.pad("unlimited");
        }
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >> shift > 0 && self.0 & ((1 << shift) - 1) == 0 {
                return f.pad(&format!("{}{unit}", self.0 >> shift));
            }
        }
        f.pad(&format!("{}B", self.0))
    }
}

/// Bytes per second of a link. Written in bits, as networks are: `100mbit`, `25gbit`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(f64);

impl Rate {
    /// A rate from bits per second.
    ///
    /// # Panics
    /// If the rate is not positive and finite: a link that carries nothing is a missing link.
    pub fn from_bits_per_second(bits: f64) -> Rate {
        assert!(bits.is_finite() && bits > 0.0, "a rate must be positive, got {bits}");
        Rate(bits / 8.0)
    }

    /// A rate from bytes per second; panics as [`Rate::from_bits_per_second`] does.
    pub fn from_bytes_per_second(bytes: f64) -> Rate {
        Rate::from_bits_per_second(bytes * 8.0)
    }

    /// Bytes each second.
    pub fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// The same link when only `share` of it is ours.
    pub fn scaled(self, share: f64) -> Rate {
        Rate::from_bytes_per_second(self.0 * share)
    }
}

const RATE_EXPECTED: &str = "a link rate such as 100mbit or 25gbit";

/// The largest first, and last the one that all others end in.
const BIT_UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

/// What can be meant by a rate that somebody wrote: from a bit to an exabit each second. Within it no
/// arithmetic on rates and lengths comes near the ends of its range.
const WRITTEN_BITS_PER_SECOND: RangeInclusive<f64> = 1.0..=1e18;

impl FromStr for Rate {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        with_unit(&text.trim().to_ascii_lowercase(), &BIT_UNITS)
            .filter(|bits| WRITTEN_BITS_PER_SECOND.contains(bits))
            .map(Rate::from_bits_per_second)
            .ok_or_else(|| ParseQuantityError::new(text, RATE_EXPECTED))
    }
}

impl Rate {
    /// Every digit, in the largest unit that keeps them all, for files and messages: what is read there
    /// is what was written. In bits it always is.
    fn exact(self) -> String {
        let bits = self.0 * 8.0;
        let texts = BIT_UNITS.iter().filter(|(_, factor)| bits >= *factor);
        texts
            .map(|(unit, factor)| format!("{}{unit}", bits / factor))
            .find(|text| text.parse() == Ok(self))
            .unwrap_or_else(|| format!("{bits}bit"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8.0;
        let (unit, factor) =
            BIT_UNITS.into_iter().find(|(_, factor)| bits >= *factor).unwrap_or(("bit", 1.0));
        let rounded = (bits / factor * 1000.0).round() / 1000.0;
        f.pad(&format!("{rounded}{unit}"))
    }
}

fn with_unit(lower: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| lower.strip_suffix(unit).map(|number| (number, *factor)))
        .unwrap_or((lower, 1.0));
    let value: f64 = number.trim().parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value * factor)
}

macro_rules! serde_as_text {
    ($type:ty, $text:expr, $expected:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&$text(*self))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Written::new($expected))
            }
        }
    };
}

serde_as_text!(ByteSize, std::convert::identity, BYTES_EXPECTED);
serde_as_text!(Rate, Rate::exact, RATE_EXPECTED);

/// Reads a quantity from a text, or from a whole number that means what it would as a text.
pub(crate) struct Written<T> {
    expected: &'static str,
    read: PhantomData<T>,
}

impl<T> Written<T> {
    pub(crate) fn new(expected: &'static str) -> Written<T> {
        Written { expected, read: PhantomData }
    }
}

impl<T: FromStr<Err = ParseQuantityError>> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// Nanoseconds since an origin that the driver chose. Real and virtual time are both this.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// This long after `self`; saturates.
    pub fn after(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!("4096".parse(), Ok(ByteSize(4096)));
        assert_eq!("256KiB".parse(), Ok(ByteSize::kib(256)));
        assert_eq!("1.5 MiB".parse(), Ok(ByteSize::kib(1536)));
        assert_eq!("1.9MiB".parse(), Ok(ByteSize(1_992_294)));
        assert_eq!("1GB".parse(), Ok(ByteSize(1_000_000_000)));
        assert_eq!("unlimited".parse(), Ok(ByteSize::UNLIMITED));
        for wrong in ["", "KiB", "-1", "1.5", "nan", "1e30", "4 apples"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
        assert_eq!(ByteSize::mib(4).to_string(), "4MiB");
        assert_eq!(ByteSize(1500).to_string(), "1500B");
    }

    #[test]
    fn rates_are_in_bits_and_never_zero() {
        assert_eq!("100mbit".parse(), Ok(Rate::from_bytes_per_second(12.5e6)));
        assert_eq!("25gbit".parse::<Rate>().unwrap().to_string(), "25gbit");
        assert!("0gbit".parse::<Rate>().is_err());
        assert!("fast".parse::<Rate>().is_err());
    }

    #[test]
    fn rates_beyond_all_sense_are_refused() {
        for wrong in ["1e308gbit", "1e19", "1e-320bit", "0.9bit", "inf", "-1gbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_rate_keeps_every_digit_in_files_and_messages(digits in 0.0..18.0) {
            let rate = Rate::from_bits_per_second(10f64.powf(digits));
            prop_assert_eq!(rate.exact().parse(), Ok(rate));
            prop_assert_eq!(rate.exact().parse::<Rate>().unwrap().exact(), rate.exact());
        }
    }

    #[test]
    fn a_round_rate_is_written_as_people_write_it() {
        for text in ["25gbit", "2.5gbit", "100mbit", "9.6kbit", "1bit", "1000gbit"] {
            assert_eq!(text.parse::<Rate>().unwrap().exact(), text);
        }
    }
}
