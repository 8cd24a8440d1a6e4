//! What the reductions mean for integers, and for bytes that stand for true and false. This file
//! knows nothing of memory beyond the one rule that any byte but zero is true.

use crate::dispatch::InstructionSet;
use crate::lanes::{Format, Number, each};

macro_rules! integer_number {
    ($integer:ident) => {
        impl Number for $integer {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            // The divisor need not fit the element's type, so the division is 64 bits wide. The
            // quotient fits again, being no larger than the dividend.
            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                (i64::from(self) / i64::from(divisor)) as Self
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }
    };
}

integer_number!(i64);
integer_number!(i32);
integer_number!(i8);
integer_number!(u8);

/// The format of bytes that are true unless zero.
pub(crate) struct Truth;

/// A byte that is zero or one.
#[derive(Clone, Copy)]
pub(crate) struct TruthValue(u8);

impl<const WIDTH: usize> Format<WIDTH> for Truth {
    type Element = u8;
    type Lanes<I: InstructionSet> = [TruthValue; WIDTH];

    #[inline(always)]
    fn load<I: InstructionSet>(_isa: I, elements: [u8; WIDTH]) -> [TruthValue; WIDTH] {
        each(elements, |byte| TruthValue(u8::from(byte != 0)))
    }

    #[inline(always)]
    fn store<I: InstructionSet>(_isa: I, lanes: [TruthValue; WIDTH]) -> [u8; WIDTH] {
        each(lanes, |truth| truth.0)
    }
}

impl Number for TruthValue {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        TruthValue(self.0 | other.0)
    }

    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        TruthValue(self.0 & other.0)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        self.multiply(other)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.add(other)
    }

    /// The average of truths is whether any was true: there is nothing between.
    #[inline(always)]
    fn divide(self, _divisor: u32) -> Self {
        self
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        self
    }
}
