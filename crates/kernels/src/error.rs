//! The one error type of this crate. The raw functions state their conditions as safety contracts
//! instead; only what can be checked cheaply is reported here.

use paceline_job::Dtype;

/// Why a kernel refused its arguments. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Only f32, f16 and bf16 convert into each other; convert the tensor before handing it over.
    #[error("no cast from {from} to {to}: only f32, f16 and bf16 convert into each other")]
    UnsupportedCast {
        /// Type of the source.
        from: Dtype,
        /// Type asked for.
        to: Dtype,
    },
    /// The buffer was cut in the middle of an element; cut it at a multiple of [`Dtype::size`].
    #[error("{bytes} bytes are not a whole number of {dtype} elements")]
    PartialElement {
        /// Type of the elements.
        dtype: Dtype,
        /// Length of the buffer.
        bytes: usize,
    },
    /// The buffers hold different numbers of elements; pass ranges of equal length.
    #[error("the destination holds {destination} elements, an operand {operand}")]
    LengthMismatch {
        /// Elements of the destination.
        destination: usize,
        /// Elements of the operand that differs.
        operand: usize,
    },
}
