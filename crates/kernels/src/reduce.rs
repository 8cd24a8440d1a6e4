//! The reductions: which operation on vectors a [`ReduceOp`] is, which format a [`Dtype`] is, and the
//! kernels that join the two. This file knows nothing of how a format is converted or of which
//! instructions are used.

use crate::dispatch::{DOUBLES, InstructionSet, Kernel, Level, SINGLES};
use crate::float::Double;
use crate::half::{Brain, Half, Single};
use crate::integer::Truth;
use crate::lanes::{Format, Native, Number, read, write};
use paceline_job::{Dtype, ReduceOp};
use std::marker::PhantomData;

/// `dst[i] = a[i] ⊕ b[i]`, and for an average with `divisor` above one, divided by it.
///
/// Pass `divisor` 1 for partial sums; other operations ignore it. f16 and bf16 are added and
/// divided in single precision and rounded once. Integers wrap and divide toward zero. A bool is
/// true unless zero, and the result is zero or one. A NaN operand gives the canonical NaN.
///
/// # Safety
/// `a` and `b` are valid for reads and `dst` for writes of `elements` elements of `dtype`, of any
/// alignment. `dst` may equal `a`, `b` or both, but may not overlap them otherwise. Nobody else
/// writes the operands or touches `dst` during the call.
#[inline]
pub unsafe fn combine(
    op: ReduceOp,
    dtype: Dtype,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    elements: usize,
    divisor: u32,
) {
    let operands = Operands { dst, a, b, elements };
    // SAFETY: the caller's promises are passed on.
    unsafe { combine_at(Level::best(), op, dtype, operands, divisor) }
}

/// The final value of a lone contribution: a copy, divided if `op` is an average and `divisor` is
/// above one. A plain copy keeps every bit, also of NaNs and of bools above one.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `elements` elements of `dtype`, of any
/// alignment. `dst` may equal `src`, but may not overlap it otherwise. Nobody else writes `src` or
/// touches `dst` during the call.
#[inline]
pub unsafe fn finish(
    op: ReduceOp,
    dtype: Dtype,
    dst: *mut u8,
    src: *const u8,
    elements: usize,
    divisor: u32,
) {
    // SAFETY: the caller's promises are passed on.
    unsafe { finish_at(Level::best(), op, dtype, dst, src, elements, divisor) }
}

/// Copies bytes; nothing happens if `dst` equals `src`.
///
/// The C library's copy is used as it is: above its own threshold it bypasses the cache already.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes; they are equal or do not overlap.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    if !std::ptr::addr_eq(dst, src) {
        // SAFETY: not equal, hence without overlap, by the caller's promise.
        unsafe { src.copy_to_nonoverlapping(dst, bytes) };
    }
}

/// The buffers of one [`combine`].
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) dst: *mut u8,
    pub(crate) a: *const u8,
    pub(crate) b: *const u8,
    pub(crate) elements: usize,
}

/// Calls `$function::<Format, WIDTH>` for the format that a dtype is. Vectors are 64 bytes wide in
/// working precision, but for bytes, whose products the compiler widens.
macro_rules! for_format {
    ($dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            Dtype::F64 => $function::<Double, DOUBLES> $arguments,
            Dtype::F32 => $function::<Single, SINGLES> $arguments,
            Dtype::F16 => $function::<Half, SINGLES> $arguments,
            Dtype::Bf16 => $function::<Brain, SINGLES> $arguments,
            Dtype::I64 => $function::<Native<i64>, 8> $arguments,
            Dtype::I32 => $function::<Native<i32>, 16> $arguments,
            Dtype::I8 => $function::<Native<i8>, 32> $arguments,
            Dtype::U8 => $function::<Native<u8>, 32> $arguments,
            Dtype::Bool => $function::<Truth, 32> $arguments,
        }
    };
}

/// [`combine`] with a chosen instruction set.
///
/// # Safety
/// As [`combine`].
pub(crate) unsafe fn combine_at(
    level: Level,
    op: ReduceOp,
    dtype: Dtype,
    operands: Operands,
    divisor: u32,
) {
    // SAFETY: the caller's promises are passed on, with the format that the dtype is.
    unsafe { for_format!(dtype, combine_format(level, op, operands, divisor)) }
}

/// [`finish`] with a chosen instruction set.
///
/// # Safety
/// As [`finish`].
pub(crate) unsafe fn finish_at(
    level: Level,
    op: ReduceOp,
    dtype: Dtype,
    dst: *mut u8,
    src: *const u8,
    elements: usize,
    divisor: u32,
) {
    // The average of truths is their "or", which for a lone one is itself.
    if !op.divides() || divisor <= 1 || dtype == Dtype::Bool {
        // SAFETY: the caller's promises are passed on, in bytes.
        unsafe { copy(dst, src, elements * dtype.size()) };
    } else {
        // SAFETY: the caller's promises are passed on, with the format that the dtype is.
        unsafe { for_format!(dtype, finish_format(level, dst, src, elements, divisor)) }
    }
}

/// # Safety
/// As [`combine`], for elements of `F`.
unsafe fn combine_format<F: Format<WIDTH>, const WIDTH: usize>(
    level: Level,
    op: ReduceOp,
    operands: Operands,
    divisor: u32,
) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        match op {
            ReduceOp::Average | ReduceOp::Mix if divisor > 1 => level
                .run::<WIDTH>(&Combine::<F, _>::new(operands, Mean { divisor }), operands.elements),
            ReduceOp::Sum | ReduceOp::Average | ReduceOp::Mix => {
                level.run(&Combine::<F, _>::new(operands, Sum), operands.elements)
            }
            ReduceOp::Min => level.run(&Combine::<F, _>::new(operands, Minimum), operands.elements),
            ReduceOp::Max => level.run(&Combine::<F, _>::new(operands, Maximum), operands.elements),
            ReduceOp::Product => {
                level.run(&Combine::<F, _>::new(operands, Product), operands.elements)
            }
        }
    }
}

/// # Safety
/// As [`finish`], for elements of `F`.
unsafe fn finish_format<F: Format<WIDTH>, const WIDTH: usize>(
    level: Level,
    dst: *mut u8,
    src: *const u8,
    elements: usize,
    divisor: u32,
) {
    // SAFETY: the caller's promises are passed on.
    unsafe { level.run::<WIDTH>(&Divide::<F> { dst, src, divisor, format: PhantomData }, elements) }
}

/// What happens when two operands meet.
trait VectorOperation: Copy {
    fn apply<T: Number>(self, a: T, b: T) -> T;
}

#[derive(Clone, Copy)]
struct Sum;
#[derive(Clone, Copy)]
struct Mean {
    divisor: u32,
}
#[derive(Clone, Copy)]
struct Minimum;
#[derive(Clone, Copy)]
struct Maximum;
#[derive(Clone, Copy)]
struct Product;

impl VectorOperation for Sum {
    #[inline(always)]
    fn apply<T: Number>(self, a: T, b: T) -> T {
        a.add(b)
    }
}

impl VectorOperation for Mean {
    #[inline(always)]
    fn apply<T: Number>(self, a: T, b: T) -> T {
        a.add(b).divide(self.divisor)
    }
}

impl VectorOperation for Minimum {
    #[inline(always)]
    fn apply<T: Number>(self, a: T, b: T) -> T {
        a.smaller(b)
    }
}

impl VectorOperation for Maximum {
    #[inline(always)]
    fn apply<T: Number>(self, a: T, b: T) -> T {
        a.larger(b)
    }
}

impl VectorOperation for Product {
    #[inline(always)]
    fn apply<T: Number>(self, a: T, b: T) -> T {
        a.multiply(b)
    }
}

struct Combine<F, O> {
    operands: Operands,
    operation: O,
    format: PhantomData<F>,
}

impl<F, O> Combine<F, O> {
    fn new(operands: Operands, operation: O) -> Self {
        Combine { operands, operation, format: PhantomData }
    }
}

impl<F: Format<WIDTH>, O: VectorOperation, const WIDTH: usize> Kernel<WIDTH> for Combine<F, O> {
    #[inline(always)]
    unsafe fn vector<I: InstructionSet>(&self, isa: I, at: usize, count: usize) {
        let Operands { dst, a, b, .. } = self.operands;
        // SAFETY: elements at..at + count of the operands are readable, and count <= WIDTH.
        let (a, b) = unsafe { (read(a, at, count), read(b, at, count)) };
        let lanes = self.operation.apply(F::load(isa, a), F::load(isa, b)).canonical();
        // SAFETY: elements at..at + count of dst are writable; both operands have been read.
        unsafe { write(dst, at, count, F::store(isa, lanes)) };
    }
}

struct Divide<F> {
    dst: *mut u8,
    src: *const u8,
    divisor: u32,
    format: PhantomData<F>,
}

impl<F: Format<WIDTH>, const WIDTH: usize> Kernel<WIDTH> for Divide<F> {
    #[inline(always)]
    unsafe fn vector<I: InstructionSet>(&self, isa: I, at: usize, count: usize) {
        // SAFETY: elements at..at + count of src are readable, and count <= WIDTH.
        let lanes = F::load(isa, unsafe { read(self.src, at, count) });
        let mean = lanes.divide(self.divisor).canonical();
        // SAFETY: elements at..at + count of dst are writable; src has been read.
        unsafe { write(self.dst, at, count, F::store(isa, mean)) };
    }
}
