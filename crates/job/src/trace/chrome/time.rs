//! Microseconds with a fraction, as text, and nanoseconds: exact both ways as long as the text is plain. It knows no event.

use serde::{Serialize, Serializer, ser::Error};
use serde_json::value::RawValue;

/// Nanoseconds of a JSON number of microseconds, or of such a number in a string; rounded, and none if it is not finite or
/// out of range.
pub(super) fn nanoseconds(text: &str) -> Option<i64> {
    let text = text.trim().trim_matches('"').trim();
    plain(text).or_else(|| {
        let nanoseconds = (text.parse::<f64>().ok()? * 1e3).round();
        // Below the limits of an i64 with room to spare: doubles near them would not round to themselves.
        (nanoseconds.abs() < 9e18).then_some(nanoseconds as i64)
    })
}

/// Digits with at most one point, without an exponent.
fn plain(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let digit = |place: usize| i64::from(fraction.as_bytes().get(place).map_or(0, |it| it - b'0'));
    let below = digit(0) * 100 + digit(1) * 10 + digit(2) + i64::from(digit(3) >= 5);
    let nanoseconds = whole.parse::<i64>().ok()?.checked_mul(1000)?.checked_add(below)?;
    Some(if negative { -nanoseconds } else { nanoseconds })
}

/// As a JSON number of microseconds. Only for JSON.
pub(super) fn write<S: Serializer>(nanoseconds: i64, serializer: S) -> Result<S::Ok, S::Error> {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (whole, below) = (nanoseconds.unsigned_abs() / 1000, nanoseconds.unsigned_abs() % 1000);
    let text =
        if below == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{below:03}") };
    RawValue::from_string(text).map_err(S::Error::custom)?.serialize(serializer)
}
