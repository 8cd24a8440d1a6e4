//! Which instructions a kernel may use, decided while running, and the loop that walks a buffer
//! vector by vector. This file knows nothing of what a kernel computes.
//!
//! A kernel is written once, over [`InstructionSet`], and compiled once per instruction set. Floats
//! have a vector type of their own in each, because compilers keep missing the conversions of half
//! precision and what surrounds them; integers are arrays, which compilers turn into vectors by
//! themselves, as wide as the function around them may use.

#[cfg(target_arch = "x86_64")]
use crate::avx2::Avx2;
use crate::lanes::Number;
use crate::portable::Portable;

/// Singles in a vector. Every float format but double is worked on in these.
pub(crate) const SINGLES: usize = 16;
/// Doubles in a vector.
pub(crate) const DOUBLES: usize = 8;

/// A value proves that its instructions exist on this processor. All of them compute the same bits.
pub(crate) trait InstructionSet: Copy {
    /// A vector of [`SINGLES`] singles.
    type Singles: Number;
    /// A vector of [`DOUBLES`] doubles.
    type Doubles: Number;

    /// Into a register.
    fn load_singles(self, elements: [f32; SINGLES]) -> Self::Singles;
    /// Out of a register.
    fn store_singles(self, singles: Self::Singles) -> [f32; SINGLES];
    /// Into a register.
    fn load_doubles(self, elements: [f64; DOUBLES]) -> Self::Doubles;
    /// Out of a register.
    fn store_doubles(self, doubles: Self::Doubles) -> [f64; DOUBLES];
    /// Half precision to single; a signalling NaN becomes quiet, its payload stays.
    fn widen_half(self, half: [u16; SINGLES]) -> Self::Singles;
    /// Single precision to half, to nearest even; a NaN becomes quiet and keeps its upper payload.
    fn narrow_half(self, singles: Self::Singles) -> [u16; SINGLES];
    /// bfloat16 to single, bit for bit.
    fn widen_brain(self, brain: [u16; SINGLES]) -> Self::Singles;
    /// Single precision to bfloat16, to nearest even; a NaN becomes quiet and keeps its upper payload.
    fn narrow_brain(self, singles: Self::Singles) -> [u16; SINGLES];
    /// As [`widen_brain`](Self::widen_brain), in any order of lanes that
    /// [`reorder_brain`](Self::reorder_brain) undoes: reductions need no order, and some cost less.
    fn disorder_brain(self, brain: [u16; SINGLES]) -> Self::Singles;
    /// As [`narrow_brain`](Self::narrow_brain), for lanes that hold no NaN but the canonical one.
    fn reorder_brain(self, singles: Self::Singles) -> [u16; SINGLES];
}

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// What every processor of the architecture has.
    Portable(Portable),
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// A computation on vectors of `WIDTH` elements.
pub(crate) trait Kernel<const WIDTH: usize> {
    /// Computes elements `at..at + count`, where `0 < count <= WIDTH`.
    ///
    /// # Safety
    /// Whatever the kernel promises about its buffers must hold for these elements.
    unsafe fn vector<I: InstructionSet>(&self, isa: I, at: usize, count: usize);
}

impl Level {
    /// The best this processor has.
    #[inline]
    pub(crate) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = Avx2::detect() {
            return Level::Avx2(isa);
        }
        Level::Portable(Portable)
    }

    /// Runs a kernel over elements `0..elements`.
    ///
    /// # Safety
    /// Whatever the kernel promises about its buffers must hold for all of these elements.
    #[inline]
    pub(crate) unsafe fn run<const WIDTH: usize>(
        self,
        kernel: &impl Kernel<WIDTH>,
        elements: usize,
    ) {
        match self {
            // SAFETY: the caller's promise is passed on.
            Level::Portable(isa) => unsafe { walk(isa, kernel, elements) },
            // SAFETY: likewise, and the token proves that the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(isa) => unsafe { walk_avx2(isa, kernel, elements) },
        }
    }
}

/// [`walk`], compiled with AVX2 and F16C.
///
/// # Safety
/// As [`Level::run`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn walk_avx2<const WIDTH: usize>(isa: Avx2, kernel: &impl Kernel<WIDTH>, elements: usize) {
    // SAFETY: the caller's promise is passed on.
    unsafe { walk(isa, kernel, elements) }
}

/// Vectors in one turn of the loop: enough to hide the loop's own instructions.
const UNROLL: usize = 2;

/// Turns of several vectors, then single vectors, then what is left. The rest goes through the same
/// code (its missing lanes are filled in), so a result cannot depend on where a buffer ends.
///
/// # Safety
/// As [`Level::run`].
#[inline(always)]
unsafe fn walk<I: InstructionSet, const WIDTH: usize>(
    isa: I,
    kernel: &impl Kernel<WIDTH>,
    elements: usize,
) {
    let mut at = 0;
    while elements - at >= UNROLL * WIDTH {
        for turn in 0..UNROLL {
            // SAFETY: at + UNROLL * WIDTH <= elements.
            unsafe { kernel.vector(isa, at + turn * WIDTH, WIDTH) };
        }
        at += UNROLL * WIDTH;
    }
    while elements - at >= WIDTH {
        // SAFETY: at + WIDTH <= elements.
        unsafe { kernel.vector(isa, at, WIDTH) };
        at += WIDTH;
    }
    if at < elements {
        // SAFETY: at + (elements - at) == elements.
        unsafe { kernel.vector(isa, at, elements - at) };
    }
}
