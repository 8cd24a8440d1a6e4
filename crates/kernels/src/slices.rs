//! The safe doors: the same kernels over byte slices, with lengths checked. Borrowing rules out
//! overlap, so in-place use has its own function. This file knows nothing of elements beyond their
//! size.

use crate::cast::cast;
use crate::error::KernelError;
use crate::reduce::{combine, finish};
use paceline_job::{Dtype, ReduceOp};

/// `dst = a ⊕ b`; see [`combine`].
///
/// # Errors
/// If the slices differ in length or end inside an element.
pub fn combine_slices(
    op: ReduceOp,
    dtype: Dtype,
    dst: &mut [u8],
    a: &[u8],
    b: &[u8],
    divisor: u32,
) -> Result<(), KernelError> {
    let elements = count(dtype, dst)?;
    expect(elements, count(dtype, a)?)?;
    expect(elements, count(dtype, b)?)?;
    // SAFETY: all three hold `elements` elements, and borrows keep them apart.
    unsafe { combine(op, dtype, dst.as_mut_ptr(), a.as_ptr(), b.as_ptr(), elements, divisor) };
    Ok(())
}

/// `dst = dst ⊕ with`; see [`combine`].
///
/// # Errors
/// If the slices differ in length or end inside an element.
pub fn accumulate(
    op: ReduceOp,
    dtype: Dtype,
    dst: &mut [u8],
    with: &[u8],
    divisor: u32,
) -> Result<(), KernelError> {
    let elements = count(dtype, dst)?;
    expect(elements, count(dtype, with)?)?;
    let base = dst.as_mut_ptr();
    // SAFETY: both hold `elements` elements, borrows keep them apart, and `dst` equals operand `a`.
    unsafe { combine(op, dtype, base, base, with.as_ptr(), elements, divisor) };
    Ok(())
}

/// `dst` = the final value of the lone contribution `src`; see [`finish`].
///
/// # Errors
/// If the slices differ in length or end inside an element.
pub fn finish_slice(
    op: ReduceOp,
    dtype: Dtype,
    dst: &mut [u8],
    src: &[u8],
    divisor: u32,
) -> Result<(), KernelError> {
    let elements = count(dtype, dst)?;
    expect(elements, count(dtype, src)?)?;
    // SAFETY: both hold `elements` elements, and borrows keep them apart.
    unsafe { finish(op, dtype, dst.as_mut_ptr(), src.as_ptr(), elements, divisor) };
    Ok(())
}

/// `dst` = `src` in another precision; see [`cast`].
///
/// # Errors
/// If the slices hold different numbers of elements, end inside one, or the cast does not exist.
pub fn cast_slice(from: Dtype, to: Dtype, dst: &mut [u8], src: &[u8]) -> Result<(), KernelError> {
    let elements = count(to, dst)?;
    expect(elements, count(from, src)?)?;
    // SAFETY: both hold `elements` elements of their type, and borrows keep them apart.
    unsafe { cast(from, to, dst.as_mut_ptr(), src.as_ptr(), elements) }
}

fn count(dtype: Dtype, slice: &[u8]) -> Result<usize, KernelError> {
    if slice.len().is_multiple_of(dtype.size()) {
        Ok(slice.len() / dtype.size())
    } else {
        Err(KernelError::PartialElement { dtype, bytes: slice.len() })
    }
}

fn expect(destination: usize, operand: usize) -> Result<(), KernelError> {
    if destination == operand {
        Ok(())
    } else {
        Err(KernelError::LengthMismatch { destination, operand })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_workers_average_in_place() {
        let bytes = |values: [f32; 3]| values.map(f32::to_le_bytes).concat();
        let mut sum = bytes([1.0, 2.0, -3.0]);
        let last = bytes([3.0, 6.0, 1.0]);
        accumulate(ReduceOp::Average, Dtype::F32, &mut sum, &last, 4).unwrap();
        assert_eq!(sum, bytes([1.0, 2.0, -0.5]));
    }

    #[test]
    fn unequal_lengths_are_refused_and_nothing_is_written() {
        let mut dst = [7; 8];
        let error = KernelError::LengthMismatch { destination: 2, operand: 1 };
        let (op, dtype) = (ReduceOp::Sum, Dtype::F32);
        assert_eq!(accumulate(op, dtype, &mut dst, &[0; 4], 1), Err(error));
        assert_eq!(finish_slice(op, dtype, &mut dst, &[0; 4], 1), Err(error));
        assert_eq!(combine_slices(op, dtype, &mut dst, &[0; 8], &[0; 4], 1), Err(error));
        assert_eq!(cast_slice(Dtype::F16, dtype, &mut dst, &[0; 2]), Err(error));
        assert_eq!(dst, [7; 8]);
    }

    #[test]
    fn a_cut_element_is_refused() {
        let error = KernelError::PartialElement { dtype: Dtype::I32, bytes: 7 };
        assert_eq!(accumulate(ReduceOp::Sum, Dtype::I32, &mut [0; 7], &[0; 7], 1), Err(error));
    }

    #[test]
    fn an_unknown_cast_is_refused_and_nothing_is_written() {
        let mut dst = [7; 8];
        let error = KernelError::UnsupportedCast { from: Dtype::F32, to: Dtype::I32 };
        assert_eq!(cast_slice(Dtype::F32, Dtype::I32, &mut dst, &[0; 8]), Err(error));
        assert_eq!(dst, [7; 8]);
    }
}
