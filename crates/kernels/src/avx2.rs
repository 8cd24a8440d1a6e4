//! AVX2 and F16C: vectors of 32 bytes, and half precision converted by the processor. All x86
//! instructions of the crate are named here. What each must compute is defined by `portable` and
//! `float`; this file knows nothing of memory beyond single vectors.
//!
//! Every function here is inlined into one that is compiled with these features, or it would be a
//! call per instruction: hence `inline(always)` throughout.

use crate::dispatch::{DOUBLES, InstructionSet, SINGLES};
use crate::lanes::Number;
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proves that the processor has AVX2 and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2 {
    _only_detection_makes_one: (),
}

impl Avx2 {
    /// The proof, if there is one. Detection is cached by the standard library: a load or two.
    #[inline]
    pub(crate) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"))
            .then_some(Avx2 { _only_detection_makes_one: () })
    }
}

/// Singles in a register. Made only by an [`Avx2`], so one more proof.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct SingleVector(__m256);

/// Doubles in a register. Made only by an [`Avx2`], so one more proof.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct DoubleVector(__m256d);

macro_rules! float_vector {
    (
        $vector:ident, $float:ident,
        $add:ident, $multiply:ident, $divide:ident, $min:ident, $max:ident,
        $or:ident, $and:ident, $fill:ident, $compare:ident, $choose:ident
    ) => {
        impl Number for $vector {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the vector proves AVX2.
                unsafe { $vector($add(self.0, other.0)) }
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                // SAFETY: the vector proves AVX2.
                unsafe { $vector($multiply(self.0, other.0)) }
            }

            // The instruction yields its second operand for zeros and for NaNs, exactly as the
            // comparisons of the scalar definition do.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                // SAFETY: the vector proves AVX2.
                unsafe { $vector($or($min(self.0, other.0), $min(other.0, self.0))) }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                // SAFETY: the vector proves AVX2.
                unsafe {
                    let ordered = $and($max(self.0, other.0), $max(other.0, self.0));
                    // All bits set, where the comparison holds, are a NaN too.
                    $vector($or(ordered, $compare::<_CMP_UNORD_Q>(self.0, other.0)))
                }
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                // SAFETY: the vector proves AVX2.
                unsafe { $vector($divide(self.0, $fill(divisor as $float))) }
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                // SAFETY: the vector proves AVX2.
                unsafe {
                    let nan = $compare::<_CMP_UNORD_Q>(self.0, self.0);
                    $vector($choose(self.0, $fill($float::NAN), nan))
                }
            }
        }
    };
}

float_vector!(
    SingleVector,
    f32,
    _mm256_add_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_min_ps,
    _mm256_max_ps,
    _mm256_or_ps,
    _mm256_and_ps,
    _mm256_set1_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps
);

float_vector!(
    DoubleVector,
    f64,
    _mm256_add_pd,
    _mm256_mul_pd,
    _mm256_div_pd,
    _mm256_min_pd,
    _mm256_max_pd,
    _mm256_or_pd,
    _mm256_and_pd,
    _mm256_set1_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd
);

// Arrays and registers of one size hold the same bits; `transmute` checks the sizes and leaves the
// choice of the instruction to the compiler.
impl InstructionSet for Avx2 {
    type Singles = [SingleVector; 2];
    type Doubles = [DoubleVector; 2];

    #[inline(always)]
    fn load_singles(self, elements: [f32; SINGLES]) -> [SingleVector; 2] {
        // SAFETY: any bits are a vector.
        unsafe { transmute(elements) }
    }

    #[inline(always)]
    fn store_singles(self, singles: [SingleVector; 2]) -> [f32; SINGLES] {
        // SAFETY: any bits are floats.
        unsafe { transmute(singles) }
    }

    #[inline(always)]
    fn load_doubles(self, elements: [f64; DOUBLES]) -> [DoubleVector; 2] {
        // SAFETY: any bits are a vector.
        unsafe { transmute(elements) }
    }

    #[inline(always)]
    fn store_doubles(self, doubles: [DoubleVector; 2]) -> [f64; DOUBLES] {
        // SAFETY: any bits are floats.
        unsafe { transmute(doubles) }
    }

    #[inline(always)]
    fn widen_half(self, half: [u16; SINGLES]) -> [SingleVector; 2] {
        // SAFETY: the token proves F16C; any bits are a vector.
        unsafe {
            let [first, second]: [__m128i; 2] = transmute(half);
            [SingleVector(_mm256_cvtph_ps(first)), SingleVector(_mm256_cvtph_ps(second))]
        }
    }

    #[inline(always)]
    fn narrow_half(self, [first, second]: [SingleVector; 2]) -> [u16; SINGLES] {
        // SAFETY: the token proves F16C; any bits are integers.
        unsafe {
            transmute([
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(first.0),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(second.0),
            ])
        }
    }

    #[inline(always)]
    fn widen_brain(self, brain: [u16; SINGLES]) -> [SingleVector; 2] {
        // SAFETY: the token proves AVX2; any bits are a vector.
        unsafe {
            let [first, second]: [__m128i; 2] = transmute(brain);
            [shifted_up(_mm256_cvtepu16_epi32(first)), shifted_up(_mm256_cvtepu16_epi32(second))]
        }
    }

    #[inline(always)]
    fn narrow_brain(self, [first, second]: [SingleVector; 2]) -> [u16; SINGLES] {
        // SAFETY: the token proves AVX2; any bits are integers.
        unsafe {
            let first = _mm256_srli_epi32::<16>(rounded_or_quiet(first));
            let second = _mm256_srli_epi32::<16>(rounded_or_quiet(second));
            // Packing works within each 16 bytes; the permutation puts the quarters in order.
            let packed = _mm256_packus_epi32(first, second);
            transmute(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
        }
    }

    // Even elements in one register, odd ones in the other: no bytes cross lanes.
    #[inline(always)]
    fn disorder_brain(self, brain: [u16; SINGLES]) -> [SingleVector; 2] {
        // SAFETY: the token proves AVX2; any bits are a vector.
        unsafe {
            let bits: __m256i = transmute(brain);
            let odd = _mm256_and_si256(bits, _mm256_set1_epi32(UPPER));
            [shifted_up(bits), SingleVector(_mm256_castsi256_ps(odd))]
        }
    }

    #[inline(always)]
    fn reorder_brain(self, [even, odd]: [SingleVector; 2]) -> [u16; SINGLES] {
        // SAFETY: the token proves AVX2; any bits are integers.
        unsafe {
            let even = _mm256_srli_epi32::<16>(rounded(even));
            transmute(_mm256_blend_epi16::<0b1010_1010>(even, rounded(odd)))
        }
    }
}

/// The half of a single that bfloat16 keeps.
const UPPER: i32 = 0xffff_0000_u32.cast_signed();

/// The lower half of each 32 bits, as bfloat16.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn shifted_up(bits: __m256i) -> SingleVector {
    // SAFETY: the caller's promise.
    SingleVector(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)) })
}

/// bfloat16 in the upper half of each 32 bits, to nearest even; wrong for a NaN whose payload can
/// overflow. The lower half is left over from rounding.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn rounded(singles: SingleVector) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(singles.0);
        let last_kept = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last_kept)
    }
}

/// As [`rounded`], with every NaN made quiet and cut instead.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn rounded_or_quiet(singles: SingleVector) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let quiet = _mm256_or_ps(singles.0, _mm256_set1_ps(f32::from_bits(0x0040_0000)));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles.0, singles.0);
        let rounded = _mm256_castsi256_ps(rounded(singles));
        _mm256_castps_si256(_mm256_blendv_ps(rounded, quiet, nan))
    }
}
