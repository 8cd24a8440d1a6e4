//! How those who came to a running job get its state: in place, from all who have it, each a part of the pieces, and
//! compared at the end. What the bytes mean is the caller's business.

use super::{Operation, Worker};
use crate::error::{NetError, Result};
use paceline_job::{Dtype, Rank, ReduceOp};
use paceline_sync::{collective::Collective, event::OpError};

/// The bytes that one sender sends at a time: few enough that all senders have something to do, enough that an operation
/// costs nothing beside them.
const PIECE_BYTES: usize = 2 << 20;

/// Memory to be the same everywhere: address and bytes.
pub type Region = (*mut u8, usize);

impl Worker {
    /// Everybody gets the bytes of those who have the state, in the memory it lies in. All workers of the view call it
    /// between the same two operations, with regions of the same lengths; `has_state` says who sends and who receives.
    /// Fails if all senders are lost, or bytes differ at the end.
    ///
    /// # Safety
    /// Each region is memory of so many bytes that nobody else reads or writes meanwhile. They do not overlap.
    pub unsafe fn share(&self, name: &str, regions: &[Region], has_state: bool) -> Result<()> {
        let view = self.view();
        let mut flags = vec![0_u8; view.size()];
        flags[self.rank().index()] = u8::from(has_state);
        self.all_reduce(&format!("{name} senders"), &mut flags, ReduceOp::Max)?;
        let has_it = |rank: &Rank| flags[rank.index()] != 0;
        let senders: Vec<Rank> = (0..view.size() as u32).map(Rank).filter(has_it).collect();
        let mut pieces: Vec<(usize, Region)> = regions
            .iter()
            .flat_map(|(start, bytes)| {
                let offsets = (0..*bytes).step_by(PIECE_BYTES);
                offsets.map(move |at| (start.wrapping_add(at), PIECE_BYTES.min(bytes - at)))
            })
            .enumerate()
            .collect();
        // A piece whose sender is lost fails on all alike, and the next sender takes its turn.
        for turn in 0..=senders.len() {
            if pieces.is_empty() {
                break;
            }
            if turn == senders.len() {
                return Err(NetError::StateLost);
            }
            let started: Vec<_> = pieces
                .iter()
                .map(|(index, (start, bytes))| {
                    let root = senders[(index + turn) % senders.len()].0;
                    let collective = Collective::Broadcast { root, len: *bytes as u64 };
                    let operation = Operation::new(format!("{name} {index}"), collective);
                    // SAFETY: the caller's promise; all are waited for below.
                    unsafe { self.start_unwatched(operation, Dtype::U8, *start, *start) }
                })
                .collect();
            let mut failed = Vec::new();
            let mut problem = None;
            for (piece, handle) in pieces.drain(..).zip(started) {
                match handle.wait() {
                    Ok(()) => {}
                    Err(error) if matches!(*error, OpError::PeerLost { .. }) => failed.push(piece),
                    Err(other) => problem = Some(other),
                }
            }
            if let Some(problem) = problem {
                return Err(problem.into());
            }
            pieces = failed;
        }
        // SAFETY: the caller's promise, and everything has ended.
        self.compare(name, unsafe { checksum(regions) })
    }

    /// All or nobody.
    fn compare(&self, name: &str, checksum: u64) -> Result<()> {
        let mine = checksum as i64;
        // The largest is the smallest if and only if all are equal.
        let mut largest = [mine, !mine];
        self.all_reduce(&format!("{name} checksum"), &mut largest, ReduceOp::Max)?;
        match largest[0] == !largest[1] {
            true => Ok(()),
            false => Err(NetError::StateDiffers),
        }
    }
}

/// Of all bytes in their order. It finds what was mixed up on the way, not what somebody forged: four lanes, so that it
/// takes as long as reading the bytes.
///
/// # Safety
/// The regions can be read.
unsafe fn checksum(regions: &[Region]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [1_u64, 2, 3, 4];
    for (start, bytes) in regions {
        // SAFETY: the caller's promise.
        let region = unsafe { std::slice::from_raw_parts(*start, *bytes) };
        let (blocks, rest) = region.as_chunks::<32>();
        for block in blocks {
            let (words, _) = block.as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = mix(*lane, u64::from_le_bytes(*word));
            }
        }
        let tail = rest.iter().fold(*bytes as u64, |sum, byte| mix(sum, u64::from(*byte)));
        lanes[0] = mix(lanes[0], tail);
    }
    lanes.into_iter().fold(0, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &mut [u8]) -> u64 {
        // SAFETY: a slice of that length.
        unsafe { checksum(&[(bytes.as_mut_ptr(), bytes.len())]) }
    }

    #[test]
    fn a_changed_swapped_or_missing_byte_changes_the_checksum() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let right = sum(&mut bytes);
        assert_eq!(sum(&mut bytes), right);
        for at in [0, 31, 32, 99] {
            bytes[at] ^= 1;
            assert_ne!(sum(&mut bytes), right);
            bytes[at] ^= 1;
        }
        bytes.swap(3, 40);
        assert_ne!(sum(&mut bytes), right);
        bytes.swap(3, 40);
        assert_ne!(sum(&mut bytes[..99]), right);
    }
}
