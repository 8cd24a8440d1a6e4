//! Reductions and casts over raw element buffers, vectorised for the CPU they run on.
//!
//! Everything a strategy needs to do with numbers is [`combine`] (two operands into one),
//! [`finish`] (a lone operand into its final value) and [`cast`] (another precision). The raw
//! functions take pointers, because the runtime's buffers are shared with other processes and a
//! destination may be an operand; [`combine_slices`], [`accumulate`], [`finish_slice`] and
//! [`cast_slice`] are the safe doors for everyone else.
//!
//! Two promises hold for every type and operation, so that replicas stay bit-identical on mixed
//! hardware: the result does not depend on the instruction set, the alignment or the length of the
//! buffer, and `a ⊕ b` equals `b ⊕ a` bit for bit (a NaN result is always the one canonical NaN).
//!
//! This crate knows nothing of programs, ranks, threads or transports.

#[cfg(test)]
mod agreement;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod cast;
mod dispatch;
mod error;
mod float;
mod half;
mod integer;
mod lanes;
#[cfg(test)]
mod oracle;
mod portable;
mod reduce;
mod slices;
mod squares;
mod stream;

pub use cast::cast;
pub use error::KernelError;
pub use reduce::{combine, copy, finish};
pub use slices::{accumulate, cast_slice, combine_slices, finish_slice};
pub use squares::{sum_of_squares, sum_of_squares_slice};
pub use stream::stream;
