//! The instruction set that every processor has: plain arithmetic on arrays. It is the definition
//! that the others are tested against. The conversions choose between results instead of branching,
//! so that a compiler can still make vectors of loops over them.

use crate::dispatch::{DOUBLES, InstructionSet, SINGLES};
use crate::lanes::each;

/// Needs no proof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl InstructionSet for Portable {
    type Singles = [f32; SINGLES];
    type Doubles = [f64; DOUBLES];

    #[inline(always)]
    fn load_singles(self, elements: [f32; SINGLES]) -> [f32; SINGLES] {
        elements
    }

    #[inline(always)]
    fn store_singles(self, singles: [f32; SINGLES]) -> [f32; SINGLES] {
        singles
    }

    #[inline(always)]
    fn load_doubles(self, elements: [f64; DOUBLES]) -> [f64; DOUBLES] {
        elements
    }

    #[inline(always)]
    fn store_doubles(self, doubles: [f64; DOUBLES]) -> [f64; DOUBLES] {
        doubles
    }

    #[inline(always)]
    fn widen_half(self, half: [u16; SINGLES]) -> [f32; SINGLES] {
        each(half, widen_half)
    }

    #[inline(always)]
    fn narrow_half(self, singles: [f32; SINGLES]) -> [u16; SINGLES] {
        each(singles, narrow_half)
    }

    #[inline(always)]
    fn widen_brain(self, brain: [u16; SINGLES]) -> [f32; SINGLES] {
        each(brain, widen_brain)
    }

    #[inline(always)]
    fn narrow_brain(self, singles: [f32; SINGLES]) -> [u16; SINGLES] {
        each(singles, narrow_brain)
    }

    #[inline(always)]
    fn disorder_brain(self, brain: [u16; SINGLES]) -> [f32; SINGLES] {
        self.widen_brain(brain)
    }

    #[inline(always)]
    fn reorder_brain(self, singles: [f32; SINGLES]) -> [u16; SINGLES] {
        self.narrow_brain(singles)
    }
}

const SINGLE_INFINITY: u32 = 0x7f80_0000;
const HALF_INFINITY: u32 = 0x7c00;
/// Exponents are biased by 127 in single and by 15 in half precision.
const REBIAS: u32 = (127 - 15) << 23;

#[inline(always)]
fn widen_half(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let normal = (magnitude << 13) + REBIAS;
    // Half's subnormals are whole multiples of 2^-24, which are normal numbers in single.
    let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
    let quiet = u32::from(magnitude > HALF_INFINITY) << 22;
    let special = SINGLE_INFINITY | (magnitude << 13) | quiet;
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= HALF_INFINITY { special } else { finite })
}

#[inline(always)]
fn narrow_half(single: f32) -> u16 {
    let bits = single.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Just under half of the last kept place, and one more if that place is odd: nearest even. The
    // carry may run into the exponent, up to infinity, which is right. Wrapping is for the lanes
    // that another choice will replace.
    let odd = (magnitude >> 13) & 1;
    let normal =
        (magnitude.wrapping_sub(REBIAS).wrapping_add(0x0fff + odd) >> 13).min(HALF_INFINITY);
    // The last place of 0.5 in single is the last place of half's subnormals, so the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let nan = 0x7e00 | ((magnitude >> 13) & 0x03ff);
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    (sign | if magnitude > SINGLE_INFINITY { nan } else { finite }) as u16
}

#[inline(always)]
fn widen_brain(brain: u16) -> f32 {
    f32::from_bits(u32::from(brain) << 16)
}

#[inline(always)]
fn narrow_brain(single: f32) -> u16 {
    let bits = single.to_bits();
    // As in `narrow_half`. Only a NaN could overflow, and a NaN takes the other value.
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let quiet = (bits >> 16) | 0x0040;
    (if single.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;

    #[test]
    fn every_half_widens_to_its_value() {
        for half in 0..=u16::MAX {
            assert_same(widen_half(half), oracle::half_value(half), half);
        }
    }

    #[test]
    fn every_brain_widens_to_its_value() {
        for brain in 0..=u16::MAX {
            assert_same(widen_brain(brain), oracle::brain_value(brain), brain);
        }
    }

    #[test]
    fn narrowing_to_half_rounds_to_nearest_even_between_every_two_neighbours() {
        check_rounding(narrow_half, oracle::half_value, 0x7c00);
    }

    #[test]
    fn narrowing_to_brain_rounds_to_nearest_even_between_every_two_neighbours() {
        check_rounding(narrow_brain, oracle::brain_value, 0x7f80);
    }

    #[test]
    fn a_nan_stays_a_nan_of_its_sign() {
        for bits in [0x7f80_0001_u32, 0x7fff_ffff, 0x7fc0_0000, 0x7f80_1fff] {
            for bits in [bits, bits | 0x8000_0000] {
                let (half, brain) =
                    (narrow_half(f32::from_bits(bits)), narrow_brain(f32::from_bits(bits)));
                assert!(half & 0x7fff > 0x7c00, "{bits:#x} became {half:#x}");
                assert!(brain & 0x7fff > 0x7f80, "{bits:#x} became {brain:#x}");
                assert_eq!(u32::from(half >> 15), bits >> 31);
                assert_eq!(u32::from(brain >> 15), bits >> 31);
            }
        }
    }

    fn assert_same(found: f32, expected: f64, code: u16) {
        if expected.is_nan() {
            assert!(found.is_nan(), "{code:#06x} became {found}");
        } else {
            assert_eq!(f64::from(found).to_bits(), expected.to_bits(), "{code:#06x}");
        }
    }

    /// Between two neighbours there is one midpoint, which single precision holds exactly: it goes
    /// to the even code, and the singles next to it go to their side. Infinity takes the place of
    /// the first value out of range.
    fn check_rounding(narrow: fn(f32) -> u16, value: fn(u16) -> f64, infinity: u16) {
        let step = value(infinity - 1) - value(infinity - 2);
        for low in 0..infinity {
            let high = low + 1;
            let upper = if high == infinity { value(low) + step } else { value(high) };
            let middle = ((value(low) + upper) / 2.0) as f32;
            assert_eq!(f64::from(middle), (value(low) + upper) / 2.0, "the midpoint is exact");
            for (single, expected) in [
                (value(low) as f32, low),
                (middle.next_down(), low),
                (middle, low + (low & 1)),
                (middle.next_up(), high),
            ] {
                assert_eq!(narrow(single), expected, "{single:e}");
                assert_eq!(narrow(-single), expected | 0x8000, "{:e}", -single);
            }
        }
        assert_eq!(narrow(f32::MAX), infinity);
        assert_eq!(narrow(f32::INFINITY), infinity);
        assert_eq!(narrow(f32::NEG_INFINITY), infinity | 0x8000);
    }
}
