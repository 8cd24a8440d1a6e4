//! A copy that goes around the caches, for values that nobody reads soon. This file knows nothing of
//! when that is so.

use crate::reduce::copy;

/// Copies `bytes` bytes by stores that do not read the destination into a cache first.
///
/// For memory larger than the caches this saves a third of the traffic, and leaves what is in them
/// where it is; for memory that somebody reads next it costs more than it saves. Whoever is told of the
/// copy by an atomic store sees all of it.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes, of any alignment; they do not overlap.
/// Nobody else writes `src` or touches `dst` during the call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const VECTOR: usize = size_of::<__m128i>();
    /// A line of the cache: the processor sends whole ones.
    const LINE: usize = 4 * VECTOR;

    let head = dst.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head + lines + tail are the caller's bytes; stores begin at a line's start. The
    // instructions belong to every processor of the architecture.
    unsafe {
        copy(dst, src, head);
        for line in 0..lines {
            let (from, into) = (src.add(head + line * LINE), dst.add(head + line * LINE));
            // All loads of a line before its stores: a line that waits half written for a load is
            // sent in pieces, and the copy takes five times as long.
            let vectors: [__m128i; LINE / VECTOR] =
                std::array::from_fn(|vector| _mm_loadu_si128(from.add(vector * VECTOR).cast()));
            for (vector, value) in vectors.into_iter().enumerate() {
                _mm_stream_si128(into.add(vector * VECTOR).cast(), value);
            }
        }
        copy(dst.add(tail), src.add(tail), bytes - tail);
        // These stores are not ordered with others by themselves.
        _mm_sfence();
    }
}

/// As on x86, by ordinary stores.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes; they do not overlap. Nobody else
/// writes `src` or touches `dst` during the call.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise is passed on.
    unsafe { copy(dst, src, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_at_any_alignment_and_none_besides() {
        let source: Vec<u8> = (0..1000_u32).map(|index| (index * 7 + 1) as u8 | 1).collect();
        for from in 0..3 {
            for at in [0, 1, 15, 16, 17, 63, 64] {
                for bytes in [0, 1, 15, 16, 63, 64, 65, 128, 300, 777] {
                    let mut into = vec![0; 1000];
                    // SAFETY: 64 + 777 < 1000, in buffers of their own.
                    unsafe { stream(into.as_mut_ptr().add(at), source.as_ptr().add(from), bytes) };
                    assert_eq!(into[at..at + bytes], source[from..from + bytes]);
                    assert!(into[..at].iter().chain(&into[at + bytes..]).all(|byte| *byte == 0));
                }
            }
        }
    }
}
