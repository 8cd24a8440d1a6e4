//! Vectors of elements: what a kernel loads, computes on and stores at once. A [`Format`] says how
//! elements lie in memory and what they become in a register; a [`Number`] says what the operations
//! mean there. This file knows nothing of which formats there are, nor of any instruction set beyond
//! passing it on.
//!
//! A kernel has read its operands into a vector before it writes anything. That is what lets the
//! destination be an operand.

use crate::dispatch::InstructionSet;

/// What the reductions mean, in working precision: for one value, or for each value of a vector.
pub(crate) trait Number: Copy {
    /// a + b; integers wrap.
    fn add(self, other: Self) -> Self;
    /// a × b; integers wrap.
    fn multiply(self, other: Self) -> Self;
    /// The smaller, whichever side it is on; some NaN if either is one.
    fn smaller(self, other: Self) -> Self;
    /// The larger, whichever side it is on; some NaN if either is one.
    fn larger(self, other: Self) -> Self;
    /// The mean of `divisor` contributions whose sum this is; integers round toward zero.
    fn divide(self, divisor: u32) -> Self;
    /// The one representation of equal results. Processors choose the bits of a NaN by operand
    /// order; replicas must not.
    fn canonical(self) -> Self;
}

/// An array is a vector for every instruction set: the compiler finds the instructions.
impl<T: Number, const WIDTH: usize> Number for [T; WIDTH] {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        each_pair(self, other, T::add)
    }

    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        each_pair(self, other, T::multiply)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        each_pair(self, other, T::smaller)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        each_pair(self, other, T::larger)
    }

    #[inline(always)]
    fn divide(self, divisor: u32) -> Self {
        each(self, |value| value.divide(divisor))
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        each(self, T::canonical)
    }
}

/// `function` of every lane.
#[inline(always)]
pub(crate) fn each<T: Copy, U: Copy, const WIDTH: usize>(
    lanes: [T; WIDTH],
    function: impl Fn(T) -> U,
) -> [U; WIDTH] {
    std::array::from_fn(|lane| function(lanes[lane]))
}

#[inline(always)]
fn each_pair<T: Copy, const WIDTH: usize>(
    a: [T; WIDTH],
    b: [T; WIDTH],
    function: impl Fn(T, T) -> T,
) -> [T; WIDTH] {
    std::array::from_fn(|lane| function(a[lane], b[lane]))
}

/// How elements lie in memory, and what `WIDTH` of them become in a register.
pub(crate) trait Format<const WIDTH: usize> {
    /// One element in memory.
    type Element: Copy + Default;
    /// `WIDTH` elements in working precision.
    type Lanes<I: InstructionSet>: Number;

    /// From memory to working precision; exact. Lanes may be in any order that `store` undoes.
    fn load<I: InstructionSet>(isa: I, elements: [Self::Element; WIDTH]) -> Self::Lanes<I>;

    /// From working precision to memory, rounding at most once. The lanes are canonical.
    fn store<I: InstructionSet>(isa: I, lanes: Self::Lanes<I>) -> [Self::Element; WIDTH];
}

/// Elements that are worked on as they are stored, in arrays.
pub(crate) struct Native<T>(std::marker::PhantomData<T>);

impl<T: Number + Default, const WIDTH: usize> Format<WIDTH> for Native<T> {
    type Element = T;
    type Lanes<I: InstructionSet> = [T; WIDTH];

    #[inline(always)]
    fn load<I: InstructionSet>(_isa: I, elements: [T; WIDTH]) -> [T; WIDTH] {
        elements
    }

    #[inline(always)]
    fn store<I: InstructionSet>(_isa: I, lanes: [T; WIDTH]) -> [T; WIDTH] {
        lanes
    }
}

/// Reads the `count` elements that start at element `at`; the lanes beyond them hold zero.
///
/// # Safety
/// `base` is valid for reads of elements `at..at + count`, of any alignment, and `count <= WIDTH`.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy + Default, const WIDTH: usize>(
    base: *const u8,
    at: usize,
    count: usize,
) -> [T; WIDTH] {
    // SAFETY: `at` is inside the readable range.
    let first = unsafe { base.cast::<T>().add(at) };
    if count == WIDTH {
        // SAFETY: a whole vector is readable; no alignment is assumed.
        return unsafe { first.cast::<[T; WIDTH]>().read_unaligned() };
    }
    let mut elements = [T::default(); WIDTH];
    let bytes = count * size_of::<T>();
    // SAFETY: `count` elements are readable and fit, since count <= WIDTH; the array is ours alone.
    unsafe { first.cast::<u8>().copy_to_nonoverlapping(elements.as_mut_ptr().cast(), bytes) };
    elements
}

/// Writes the first `count` elements to the elements that start at element `at`.
///
/// # Safety
/// `base` is valid for writes of elements `at..at + count`, of any alignment, and `count <= WIDTH`.
#[inline(always)]
pub(crate) unsafe fn write<T: Copy, const WIDTH: usize>(
    base: *mut u8,
    at: usize,
    count: usize,
    elements: [T; WIDTH],
) {
    // SAFETY: `at` is inside the writable range.
    let first = unsafe { base.cast::<T>().add(at) };
    if count == WIDTH {
        // SAFETY: a whole vector is writable; no alignment is assumed.
        unsafe { first.cast::<[T; WIDTH]>().write_unaligned(elements) };
        return;
    }
    let bytes = count * size_of::<T>();
    // SAFETY: `count` elements are writable, and the array holds at least as many.
    unsafe { first.cast::<u8>().copy_from_nonoverlapping(elements.as_ptr().cast(), bytes) };
}
