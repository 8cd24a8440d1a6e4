//! Rust types that tensors can be made of.

use paceline_job::Dtype;

/// A type with a [`Dtype`]: plain bytes of that layout.
///
/// # Safety
/// The type is `Copy`, has exactly the size and layout its `DTYPE` says, and every result the kernels
/// produce for that type is a valid value.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Which type it is on the wire.
    const DTYPE: Dtype;
}

/// Half precision, as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// Brain float, as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

macro_rules! element {
    ($($type:ty => $dtype:ident),*) => {
        $(
            // SAFETY: sizes and layouts agree; reductions of `bool` give 0 or 1.
            unsafe impl Element for $type {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}

element!(f64 => F64, f32 => F32, F16 => F16, Bf16 => Bf16, i64 => I64, i32 => I32, i8 => I8, u8 => U8, bool => Bool);
