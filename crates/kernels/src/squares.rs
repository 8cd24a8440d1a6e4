//! The sum of squares of a buffer, for the norms of gradients. Sums are taken in single precision over short blocks and in
//! double precision over blocks, in one order whatever the instruction set. This file knows nothing of what the numbers mean.

use paceline_job::Dtype;

/// Elements of a block: short enough for single precision to keep six digits.
const BLOCK: usize = 1024;

/// Sums that run side by side in a block: four vectors of AVX2, so that additions need not wait for each other.
const LANES: usize = 32;

/// The sum of the squares of `elements` elements; `None` for types that are not summed: integers, and half precision.
///
/// # Safety
/// `source` is valid for reads of so many elements of `dtype`, of any alignment, and nobody writes them meanwhile.
pub unsafe fn sum_of_squares(dtype: Dtype, source: *const u8, elements: usize) -> Option<f64> {
    // SAFETY: the caller's promise, with the type that the dtype is.
    unsafe {
        match dtype {
            Dtype::F32 => Some(sum(source.cast::<f32>(), elements, |value| value)),
            Dtype::Bf16 => {
                let widen = |value: u16| f32::from_bits(u32::from(value) << 16);
                Some(sum(source.cast::<u16>(), elements, widen))
            }
            Dtype::F64 => Some(doubles(source.cast::<f64>(), elements)),
            _ => None,
        }
    }
}

/// [`sum_of_squares`] of a slice.
pub fn sum_of_squares_slice(values: &[f32]) -> f64 {
    // SAFETY: a slice is valid for reads of its elements.
    unsafe { sum(values.as_ptr(), values.len(), |value| value) }
}

/// # Safety
/// As [`sum_of_squares`].
unsafe fn sum<T: Copy>(source: *const T, elements: usize, widen: impl Fn(T) -> f32 + Copy) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions; else the caller's promise.
        return unsafe { sum_avx2(source, elements, widen) };
    }
    // SAFETY: the caller's promise.
    unsafe { sum_blocks(source, elements, widen) }
}

/// [`sum_blocks`], compiled with AVX2.
///
/// # Safety
/// As [`sum_of_squares`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2<T: Copy>(
    source: *const T,
    elements: usize,
    widen: impl Fn(T) -> f32 + Copy,
) -> f64 {
    // SAFETY: the caller's promise.
    unsafe { sum_blocks(source, elements, widen) }
}

/// # Safety
/// As [`sum_of_squares`].
#[inline(always)]
unsafe fn sum_blocks<T: Copy>(
    source: *const T,
    elements: usize,
    widen: impl Fn(T) -> f32 + Copy,
) -> f64 {
    let mut total = 0.0;
    let mut at = 0;
    while at < elements {
        let end = elements.min(at + BLOCK);
        let mut lanes = [0.0_f32; LANES];
        while at + LANES <= end {
            for (lane, sum) in lanes.iter_mut().enumerate() {
                // SAFETY: at + LANES <= end <= elements; no alignment is assumed.
                let value = widen(unsafe { source.add(at + lane).read_unaligned() });
                *sum += value * value;
            }
            at += LANES;
        }
        let mut block: f64 = lanes.iter().map(|lane| f64::from(*lane)).sum();
        while at < end {
            // SAFETY: at < end <= elements.
            let value = f64::from(widen(unsafe { source.add(at).read_unaligned() }));
            block += value * value;
            at += 1;
        }
        total += block;
    }
    total
}

/// # Safety
/// As [`sum_of_squares`].
unsafe fn doubles(source: *const f64, elements: usize) -> f64 {
    // SAFETY: the caller's promise.
    (0..elements)
        .map(|at| unsafe { source.add(at).read_unaligned() })
        .map(|value| value * value)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    fn exact(values: impl Iterator<Item = f64>) -> f64 {
        values.map(|value| value * value).sum()
    }

    #[test]
    fn singles_are_summed_to_six_digits_whatever_the_length_and_alignment() {
        for count in [0, 1, 31, 32, 33, 1023, 1024, 1025, 100_003] {
            let values = values(count + 1);
            for part in [&values[..count], &values[1..]] {
                let expected = exact(part.iter().copied().map(f64::from));
                let found = sum_of_squares_slice(part);
                assert!((found - expected).abs() <= 1e-6 * expected, "{count}: {found} {expected}");
            }
        }
    }

    #[test]
    fn instruction_sets_agree_to_the_bit() {
        let values = values(70_001);
        // SAFETY: a slice is valid for reads of its elements.
        let portable = unsafe { sum_blocks(values.as_ptr(), values.len(), |value| value) };
        assert_eq!(sum_of_squares_slice(&values).to_bits(), portable.to_bits());
    }

    #[test]
    fn other_types_are_summed_or_refused() {
        let brain: Vec<u16> =
            values(3000).iter().map(|value| (value.to_bits() >> 16) as u16).collect();
        let widened = brain.iter().map(|bits| f64::from(f32::from_bits(u32::from(*bits) << 16)));
        // SAFETY: the vectors hold so many elements of these types.
        unsafe {
            let found = sum_of_squares(Dtype::Bf16, brain.as_ptr().cast(), 3000).unwrap();
            assert!((found / exact(widened) - 1.0).abs() < 1e-6);
            let doubles = [3.0_f64, -4.0];
            assert_eq!(sum_of_squares(Dtype::F64, doubles.as_ptr().cast(), 2), Some(25.0));
            assert_eq!(sum_of_squares(Dtype::F16, brain.as_ptr().cast(), 3000), None);
            assert_eq!(sum_of_squares(Dtype::I32, brain.as_ptr().cast(), 10), None);
        }
    }
}
