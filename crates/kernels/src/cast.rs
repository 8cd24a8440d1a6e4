//! Casts between the float formats that are worked on in single precision. This file knows nothing
//! of how a format is converted; it loads from one and stores to the other.

use crate::dispatch::{InstructionSet, Kernel, Level, SINGLES};
use crate::error::KernelError;
use crate::half::{Brain, Half, Single, SingleFormat};
use crate::lanes::{read, write};
use crate::reduce::copy;
use paceline_job::Dtype;
use std::marker::PhantomData;

/// `dst[i] = src[i]` in another precision: f32, f16 and bf16 into each other, to nearest even.
///
/// Too large becomes infinity. A NaN stays a NaN of its sign, with as much of its payload as fits;
/// where digits are lost, or half precision is involved, it becomes quiet. A cast to the same type
/// is a copy, and exists for every type.
///
/// # Errors
/// [`KernelError::UnsupportedCast`], before anything is written.
///
/// # Safety
/// `src` is valid for reads of `elements` elements of `from`, and `dst` for writes of as many of
/// `to`, of any alignment. They do not overlap (for a cast to the same type they may be equal).
/// Nobody else writes `src` or touches `dst` during the call.
pub unsafe fn cast(
    from: Dtype,
    to: Dtype,
    dst: *mut u8,
    src: *const u8,
    elements: usize,
) -> Result<(), KernelError> {
    // SAFETY: the caller's promises are passed on.
    unsafe { cast_at(Level::best(), from, to, dst, src, elements) }
}

/// [`cast`] with a chosen instruction set.
///
/// # Errors
/// As [`cast`].
///
/// # Safety
/// As [`cast`].
pub(crate) unsafe fn cast_at(
    level: Level,
    from: Dtype,
    to: Dtype,
    dst: *mut u8,
    src: *const u8,
    elements: usize,
) -> Result<(), KernelError> {
    // SAFETY: the caller's promises are passed on, with the formats that the dtypes are.
    unsafe {
        match (from, to) {
            (Dtype::F32, Dtype::F16) => convert::<Single, Half>(level, dst, src, elements),
            (Dtype::F32, Dtype::Bf16) => convert::<Single, Brain>(level, dst, src, elements),
            (Dtype::F16, Dtype::F32) => convert::<Half, Single>(level, dst, src, elements),
            (Dtype::F16, Dtype::Bf16) => convert::<Half, Brain>(level, dst, src, elements),
            (Dtype::Bf16, Dtype::F32) => convert::<Brain, Single>(level, dst, src, elements),
            (Dtype::Bf16, Dtype::F16) => convert::<Brain, Half>(level, dst, src, elements),
            (from, to) if from == to => copy(dst, src, elements * from.size()),
            (from, to) => return Err(KernelError::UnsupportedCast { from, to }),
        }
    }
    Ok(())
}

/// # Safety
/// As [`cast`], for elements of `From` and `To`.
unsafe fn convert<From, To>(level: Level, dst: *mut u8, src: *const u8, elements: usize)
where
    From: SingleFormat,
    To: SingleFormat,
{
    // SAFETY: the caller's promises are passed on.
    unsafe { level.run(&Convert::<From, To> { dst, src, formats: PhantomData }, elements) }
}

struct Convert<From, To> {
    dst: *mut u8,
    src: *const u8,
    formats: PhantomData<(From, To)>,
}

impl<From, To> Kernel<SINGLES> for Convert<From, To>
where
    From: SingleFormat,
    To: SingleFormat,
{
    #[inline(always)]
    unsafe fn vector<I: InstructionSet>(&self, isa: I, at: usize, count: usize) {
        // SAFETY: elements at..at + count of src are readable, and count <= SINGLES.
        let singles = From::widen(isa, unsafe { read(self.src, at, count) });
        // SAFETY: elements at..at + count of dst are writable.
        unsafe { write(self.dst, at, count, To::narrow(isa, singles)) };
    }
}
