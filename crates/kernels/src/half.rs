//! The formats that are worked on in single precision: single itself, IEEE half precision and
//! bfloat16. The narrow ones are rounded once, to nearest even; single has more than twice their
//! digits, so the result of one operation is the same as if it had been computed exactly. This file
//! knows nothing of how an instruction set converts, nor of reductions.

use crate::dispatch::{InstructionSet, SINGLES};
use crate::lanes::Format;

/// A format whose working precision is single, whatever the instruction set; these cast into each
/// other.
pub(crate) trait SingleFormat {
    /// One element in memory.
    type Element: Copy + Default;

    /// From memory to single precision; exact.
    fn widen<I: InstructionSet>(isa: I, elements: [Self::Element; SINGLES]) -> I::Singles;

    /// From single precision to memory, rounding at most once.
    fn narrow<I: InstructionSet>(isa: I, singles: I::Singles) -> [Self::Element; SINGLES];

    /// As `widen`, where only a reduction will look at the lanes and their order is free.
    #[inline(always)]
    fn load<I: InstructionSet>(isa: I, elements: [Self::Element; SINGLES]) -> I::Singles {
        Self::widen(isa, elements)
    }

    /// As `narrow`, for lanes that [`load`](Self::load) ordered, without NaNs but the canonical one.
    #[inline(always)]
    fn store<I: InstructionSet>(isa: I, singles: I::Singles) -> [Self::Element; SINGLES] {
        Self::narrow(isa, singles)
    }
}

/// IEEE 754 single precision.
pub(crate) struct Single;

/// IEEE 754 half precision: 5 bits of exponent, 10 of fraction.
pub(crate) struct Half;

/// bfloat16: the upper half of a single.
pub(crate) struct Brain;

impl<S: SingleFormat> Format<SINGLES> for S {
    type Element = S::Element;
    type Lanes<I: InstructionSet> = I::Singles;

    #[inline(always)]
    fn load<I: InstructionSet>(isa: I, elements: [S::Element; SINGLES]) -> I::Singles {
        S::load(isa, elements)
    }

    #[inline(always)]
    fn store<I: InstructionSet>(isa: I, lanes: I::Singles) -> [S::Element; SINGLES] {
        S::store(isa, lanes)
    }
}

impl SingleFormat for Single {
    type Element = f32;

    #[inline(always)]
    fn widen<I: InstructionSet>(isa: I, elements: [f32; SINGLES]) -> I::Singles {
        isa.load_singles(elements)
    }

    #[inline(always)]
    fn narrow<I: InstructionSet>(isa: I, singles: I::Singles) -> [f32; SINGLES] {
        isa.store_singles(singles)
    }
}

impl SingleFormat for Half {
    type Element = u16;

    #[inline(always)]
    fn widen<I: InstructionSet>(isa: I, elements: [u16; SINGLES]) -> I::Singles {
        isa.widen_half(elements)
    }

    #[inline(always)]
    fn narrow<I: InstructionSet>(isa: I, singles: I::Singles) -> [u16; SINGLES] {
        isa.narrow_half(singles)
    }
}

impl SingleFormat for Brain {
    type Element = u16;

    #[inline(always)]
    fn widen<I: InstructionSet>(isa: I, elements: [u16; SINGLES]) -> I::Singles {
        isa.widen_brain(elements)
    }

    #[inline(always)]
    fn narrow<I: InstructionSet>(isa: I, singles: I::Singles) -> [u16; SINGLES] {
        isa.narrow_brain(singles)
    }

    #[inline(always)]
    fn load<I: InstructionSet>(isa: I, elements: [u16; SINGLES]) -> I::Singles {
        isa.disorder_brain(elements)
    }

    #[inline(always)]
    fn store<I: InstructionSet>(isa: I, singles: I::Singles) -> [u16; SINGLES] {
        isa.reorder_brain(singles)
    }
}
