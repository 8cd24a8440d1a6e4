//! What the reductions mean for single and double precision (the 16-bit formats work in single), and
//! the format of doubles. This file knows nothing of instructions.

use crate::dispatch::{DOUBLES, InstructionSet};
use crate::lanes::{Format, Number};

/// IEEE 754 double precision.
pub(crate) struct Double;

impl Format<DOUBLES> for Double {
    type Element = f64;
    type Lanes<I: InstructionSet> = I::Doubles;

    #[inline(always)]
    fn load<I: InstructionSet>(isa: I, elements: [f64; DOUBLES]) -> I::Doubles {
        isa.load_doubles(elements)
    }

    #[inline(always)]
    fn store<I: InstructionSet>(isa: I, lanes: I::Doubles) -> [f64; DOUBLES] {
        isa.store_doubles(lanes)
    }
}

macro_rules! float_number {
    ($float:ident) => {
        impl Number for $float {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            // Both orders are taken and their bits joined: they differ only for zeros of unlike
            // sign, where "or" keeps the minus, and for NaNs, where "or" keeps the NaN.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }

            // As `smaller`, but "and" drops the minus; it could also drop a NaN, hence the check.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                let ordered = Self::from_bits(one.to_bits() & two.to_bits());
                if self.is_nan() | other.is_nan() { Self::NAN } else { ordered }
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                self / divisor as Self
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                if self.is_nan() { Self::NAN } else { self }
            }
        }
    };
}

float_number!(f32);
float_number!(f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlike_zeros_have_an_order() {
        for (a, b) in [(0.0_f32, -0.0), (-0.0, 0.0)] {
            assert_eq!(a.smaller(b).to_bits(), (-0.0_f32).to_bits());
            assert_eq!(a.larger(b).to_bits(), 0.0_f32.to_bits());
        }
        for (a, b) in [(0.0_f64, -0.0), (-0.0, 0.0)] {
            assert_eq!(a.smaller(b).to_bits(), (-0.0_f64).to_bits());
            assert_eq!(a.larger(b).to_bits(), 0.0_f64.to_bits());
        }
    }

    #[test]
    fn a_nan_wins_on_either_side() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (-f32::NAN, f32::NEG_INFINITY)] {
            assert!(a.smaller(b).is_nan() && a.larger(b).is_nan());
        }
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (-f64::NAN, f64::NEG_INFINITY)] {
            assert!(a.smaller(b).is_nan() && a.larger(b).is_nan());
        }
    }
}
