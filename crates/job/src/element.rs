//! What a tensor is made of, and how contributions are combined.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The type of one element of a tensor. The discriminant is the wire representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 double precision.
    F64 = 0,
    /// IEEE 754 single precision.
    F32 = 1,
    /// IEEE 754 half precision.
    F16 = 2,
    /// The upper half of a single: 8 bits of exponent, 7 of fraction.
    Bf16 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Signed byte.
    I8 = 6,
    /// Unsigned byte.
    U8 = 7,
    /// A byte that is zero or one; sum and max are "or", product and min are "and".
    Bool = 8,
}

impl Dtype {
    /// Every type, in wire order.
    pub const ALL: [Dtype; 9] = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I64,
        Dtype::I32,
        Dtype::I8,
        Dtype::U8,
        Dtype::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }

    /// The type with this wire code, if there is one.
    pub fn from_wire(code: u8) -> Option<Dtype> {
        Dtype::ALL.get(usize::from(code)).copied()
    }

    /// Whether dividing by the number of workers is exact enough to mean anything.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16)
    }

    /// The name that commands and errors use.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::I64 => "i64",
            Dtype::I32 => "i32",
            Dtype::I8 => "i8",
            Dtype::U8 => "u8",
            Dtype::Bool => "bool",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| format!("unknown element type `{text}`; known: {}", names(&Dtype::ALL)))
    }
}

/// How two contributions become one. The discriminant is the wire representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b (integers wrap).
    Sum = 0,
    /// The sum divided by the number of contributions, once, where the sum is finished.
    /// Integers round toward zero.
    Average = 1,
    /// The smaller; a NaN wins, so that all ranks see it.
    Min = 2,
    /// The larger; a NaN wins, so that all ranks see it.
    Max = 3,
    /// a × b (integers wrap).
    Product = 4,
    /// An average over those whom the strategy says: all members, or under one that averages a group that changes from
    /// step to step. For parameters of workers that may differ.
    Mix = 5,
}

impl ReduceOp {
    /// Every operation, in wire order.
    pub const ALL: [ReduceOp; 6] = [
        ReduceOp::Sum,
        ReduceOp::Average,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Product,
        ReduceOp::Mix,
    ];

    /// Whether the sum is divided by the number of contributions.
    pub const fn divides(self) -> bool {
        matches!(self, ReduceOp::Average | ReduceOp::Mix)
    }

    /// The operation with this wire code, if there is one.
    pub fn from_wire(code: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.get(usize::from(code)).copied()
    }

    /// The name that commands and errors use.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Average => "average",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
            ReduceOp::Mix => "mix",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ReduceOp::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| format!("unknown reduction `{text}`; known: {}", names(&ReduceOp::ALL)))
    }
}

fn names<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_codes_and_names_lead_back_to_the_value() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_wire(dtype as u8), Some(dtype));
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        for op in ReduceOp::ALL {
            assert_eq!(ReduceOp::from_wire(op as u8), Some(op));
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert_eq!(Dtype::from_wire(9), None);
        assert_eq!(ReduceOp::from_wire(6), None);
    }
}
