//! A number bit for bit, for `#[serde(with)]`: what workers know alike must stay alike, and text of decimals may be off by the last
//! digit, or has no words for what is no number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

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

impl Exact for [f64; 4] {
    type Bits = [u64; 4];
    fn bits(&self) -> [u64; 4] {
        self.map(f64::to_bits)
    }
    fn of(bits: [u64; 4]) -> [f64; 4] {
        bits.map(f64::from_bits)
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

impl<T: Exact> Exact for BTreeMap<String, T> {
    type Bits = BTreeMap<String, T::Bits>;
    fn bits(&self) -> Self::Bits {
        self.iter().map(|(name, value)| (name.clone(), value.bits())).collect()
    }
    fn of(bits: Self::Bits) -> Self {
        bits.into_iter().map(|(name, bits)| (name, T::of(bits))).collect()
    }
}

pub(super) fn serialize<T: Exact, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.bits().serialize(to)
}

pub(super) fn deserialize<'de, T: Exact, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::Bits::deserialize(from).map(T::of)
}
