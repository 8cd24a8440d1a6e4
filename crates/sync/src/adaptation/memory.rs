//! What policies' host remembers, as text for workers that come later: what was read, wanted and chosen, and each policy's own
//! memory.

use super::Adaptation;
use crate::policy::{StateError, Wishes};
use serde::{Deserialize, Serialize};

/// Ways to stay together, in one order on all workers: they tell each other a number.
const MODES: [&str; 6] = ["synchronous", "averaging", "pairs", "groups", "local", "asynchronous"];

pub(super) fn number_of_mode(mode: &str) -> Option<f64> {
    MODES.iter().position(|known| *known == mode).map(|place| place as f64 + 1.0)
}

pub(super) fn mode_of_number(number: f64) -> Option<&'static str> {
    let place = (number as usize).checked_sub(1)?;
    MODES.get(place).copied()
}

/// A number bit for bit: what workers know alike must stay alike, and decimals that are read may be off by the last digit.
mod exact {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Numbers in whatever holds them, and their bits in the same.
    pub(super) trait Exact: Sized {
        type Bits: Serialize + for<'de> Deserialize<'de>;
        fn bits(&self) -> Self::Bits;
        fn of(bits: Self::Bits) -> Self;
    }

    impl Exact for f64 {
        type Bits = u64;
        fn bits(&self) -> u64 {
            self.to_bits()
        }
        fn of(bits: u64) -> f64 {
            f64::from_bits(bits)
        }
    }

    impl<T: Exact> Exact for Option<T> {
        type Bits = Option<T::Bits>;
        fn bits(&self) -> Self::Bits {
            self.as_ref().map(T::bits)
        }
        fn of(bits: Self::Bits) -> Self {
            bits.map(T::of)
        }
    }

    impl<T: Exact> Exact for Vec<T> {
        type Bits = Vec<T::Bits>;
        fn bits(&self) -> Self::Bits {
            self.iter().map(T::bits).collect()
        }
        fn of(bits: Self::Bits) -> Self {
            bits.into_iter().map(T::of).collect()
        }
    }

    pub(super) fn serialize<T: Exact, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.bits().serialize(to)
    }

    pub(super) fn deserialize<'de, T: Exact, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        T::Bits::deserialize(from).map(T::of)
    }
}

/// What all know of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Observed {
    #[serde(with = "exact")]
    pub(super) seconds: Option<f64>,
    /// In the order of the names that workers tell each other.
    #[serde(with = "exact")]
    pub(super) reported: Vec<Option<f64>>,
    #[serde(with = "exact")]
    pub(super) interference: Option<f64>,
}

/// What all are to follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    pub(super) batch: Option<u64>,
    #[serde(with = "exact")]
    pub(super) learning_rate: Option<f64>,
    pub(super) size: Option<usize>,
    pub(super) mode: Option<String>,
}

impl Wanted {
    /// What another policy wants as well; of two the later counts.
    pub(super) fn add(&mut self, wishes: Wishes) {
        self.batch = wishes.batch.or(self.batch);
        self.learning_rate = wishes.learning_rate.or(self.learning_rate);
        self.size = wishes.size.or(self.size);
        self.mode = wishes.mode.or(self.mode.take());
    }
}

/// What is to be gone on from cannot be used: give all workers the same program and policies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// It is not what another worker wrote.
    #[error(
        "what another worker's policies remember cannot be read ({0}); start the same program everywhere"
    )]
    Unreadable(String),
    /// There are others here.
    #[error(
        "another worker has {theirs} policies, and this one {ours}; attach the same everywhere"
    )]
    Others {
        /// So many here.
        ours: usize,
        /// So many there.
        theirs: usize,
    },
    /// One of them refuses.
    #[error(transparent)]
    Refused(#[from] StateError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    step: u64,
    epoch: u64,
    batch: Option<u64>,
    #[serde(with = "exact")]
    learning_rate: f64,
    mode: String,
    #[serde(with = "exact")]
    noise: Vec<f64>,
    #[serde(with = "exact")]
    throughput: Option<f64>,
    observed: Observed,
    speakers: usize,
    wanted: Wanted,
    agreed: Wanted,
    policies: Vec<Option<String>>,
    /// What was said in the last step, summed, and not heard yet.
    #[serde(with = "exact")]
    said: Option<Vec<f64>>,
}

impl Adaptation {
    /// For a worker that comes later; `said` is the sum that is to be heard at the end of this step.
    pub fn remember(&self, said: Option<&[f64]>) -> String {
        let memory = Memory {
            step: self.step,
            epoch: self.epoch,
            batch: self.batch,
            learning_rate: self.learning_rate,
            mode: self.mode.clone(),
            noise: self.noise.known().to_vec(),
            throughput: self.throughput,
            observed: self.observed.clone(),
            speakers: self.speakers,
            wanted: self.wanted.clone(),
            agreed: self.agreed.clone(),
            policies: self.policies.iter().map(|policy| policy.state()).collect(),
            said: said.map(<[f64]>::to_vec),
        };
        serde_json::to_string(&memory).unwrap_or_default()
    }

    /// Go on as the others do; the sum that they are about to hear.
    pub fn resume(&mut self, text: &str) -> Result<Option<Vec<f64>>, MemoryError> {
        let read = serde_json::from_str(text);
        let memory: Memory = read.map_err(|error| MemoryError::Unreadable(error.to_string()))?;
        let (ours, theirs) = (self.policies.len(), memory.policies.len());
        if ours != theirs {
            return Err(MemoryError::Others { ours, theirs });
        }
        let noise: [f64; 4] = memory
            .noise
            .try_into()
            .map_err(|_| MemoryError::Unreadable("gradient noise is four numbers".to_string()))?;
        for (policy, state) in self.policies.iter_mut().zip(&memory.policies) {
            state.as_ref().map_or(Ok(()), |state| policy.restore(state))?;
        }
        (self.step, self.epoch, self.batch) = (memory.step, memory.epoch, memory.batch);
        (self.learning_rate, self.mode) = (memory.learning_rate, memory.mode);
        self.noise.resume(noise);
        (self.throughput, self.observed) = (memory.throughput, memory.observed);
        (self.speakers, self.wanted, self.agreed) = (memory.speakers, memory.wanted, memory.agreed);
        Ok(memory.said)
    }
}
