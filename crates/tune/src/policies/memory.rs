//! What policies remember, as text that travels to workers that come later and lies in checkpoints: whose it is, of which
//! version, and the rest as each policy has it. What is read is not believed: each policy looks at its numbers again.

use paceline_sync::policy::StateError;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Raised when any policy remembers something else.
const VERSION: u32 = 1;

/// More than any policy remembers.
const MOST_BYTES: usize = 1 << 20;

/// Batches, of one worker or of all, are smaller: products of what is read must not overflow.
pub(super) const MOST_SAMPLES: u64 = u32::MAX as u64;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<P, M> {
    policy: P,
    version: u32,
    memory: M,
}

/// As text.
pub(super) fn write<M: Serialize>(policy: &'static str, memory: M) -> Option<String> {
    serde_json::to_string(&Written { policy, version: VERSION, memory }).ok()
}

/// From text, if it is this policy's and `is_possible` holds.
pub(super) fn read<M: DeserializeOwned>(
    policy: &'static str,
    text: &str,
    is_possible: impl Fn(&M) -> bool,
) -> Result<M, StateError> {
    let wrong = |problem: String| StateError { policy, problem };
    if text.len() > MOST_BYTES {
        return Err(wrong(format!("it is longer than {MOST_BYTES} bytes")));
    }
    let whose: Written<String, serde::de::IgnoredAny> =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if whose.policy != policy {
        return Err(wrong(format!("it is of {:.40}", whose.policy)));
    }
    if whose.version != VERSION {
        return Err(wrong(format!("it is of version {}, this is {VERSION}", whose.version)));
    }
    let written: Written<String, M> =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if !is_possible(&written.memory) {
        return Err(wrong("it has numbers that cannot be".to_string()));
    }
    Ok(written.memory)
}

/// Whether it is a time that can have passed.
pub(super) fn is_duration(seconds: f64) -> bool {
    seconds > 0.0 && seconds.is_finite()
}

/// Whether these are a worker's batch and that of all.
pub(super) fn is_base(base: &Option<(u64, f64)>) -> bool {
    base.is_none_or(|(batch, all)| {
        (1..=MOST_SAMPLES).contains(&batch) && (batch as f64..=MOST_SAMPLES as f64).contains(&all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_nothing_else_is() {
        let read_pair = |policy, text: &str| read::<(u64, f64)>(policy, text, |pair| pair.0 > 0);
        let text = write("goodput", (3u64, 0.5)).unwrap();
        assert_eq!(read_pair("goodput", &text), Ok((3, 0.5)));
        let problem = |policy, text: &str| read_pair(policy, text).unwrap_err().to_string();
        assert!(problem("noise_scale", &text).contains("it is of goodput"));
        let other = text.replace("\"version\":1", "\"version\":2");
        assert!(problem("goodput", &other).contains("version 2"));
        assert!(problem("goodput", &write("goodput", (0u64, 0.5)).unwrap()).contains("cannot be"));
        assert!(problem("goodput", &" ".repeat(MOST_BYTES + 1)).contains("longer"));
        for broken in ["", "{", "[1]", &text[..text.len() - 1], &format!("{text}{text}")] {
            assert!(read_pair("goodput", broken).is_err(), "{broken}");
        }
    }
}
