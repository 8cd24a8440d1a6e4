//! How those who came to a running job get its state: in place, from all who have it, each a part of the pieces, and
//! compared at the end. Either all stand still for it ([`Worker::share`]), or those who have it go on and only leave the memory
//! as it is until it is there ([`Worker::begin_share`]). What the bytes mean is the caller's business.

use super::{Operation, Worker};
use crate::{
    element::Element,
    error::{NetError, Result},
    pending::Handle,
};
use paceline_job::{Dtype, Rank, ReduceOp};
use paceline_sync::{collective::Collective, event::OpError, scheduler::Priority};
use std::sync::Arc;

/// The bytes that one sender sends at a time: few enough that all senders have something to do, enough that an operation
/// costs nothing beside them.
const PIECE_BYTES: usize = 2 << 20;

/// What is said here goes ahead of tensors: those may wait for somebody who has not heard it.
const URGENT: Priority = -2;

/// Memory to be the same everywhere: address and bytes.
pub type Region = (*mut u8, usize);

/// State on its way to those who lack it, while the others go on; to be given to [`Worker::finish_share`].
#[derive(Debug)]
pub struct Sharing {
    name: Arc<str>,
    senders: Vec<Rank>,
    pieces: Vec<Region>,
    /// Of those that this worker sends or receives, with their numbers.
    started: Vec<(usize, Handle)>,
    receives: bool,
}

// SAFETY: the regions are the caller's promise, for any thread.
unsafe impl Send for Sharing {}

impl Worker {
    /// Everybody gets the bytes of those who have the state, in the memory it lies in. All workers of the view call it
    /// between the same two operations, with regions of the same lengths; `has_state` says who sends and who receives.
    /// Fails if all senders are lost, or bytes differ at the end.
    ///
    /// # Safety
    /// Each region is memory of so many bytes that nobody else reads or writes meanwhile. They do not overlap.
    pub unsafe fn share(&self, name: &str, regions: &[Region], has_state: bool) -> Result<()> {
        let standings = self.roll_call(u8::from(has_state))?;
        let senders = (0..).map(Rank).zip(standings).filter(|(_, has_it)| *has_it != 0);
        let senders: Vec<Rank> = senders.map(|(rank, _)| rank).collect();
        // SAFETY: the caller's promise.
        unsafe {
            self.share_from(&senders, name, regions)?;
            self.compare(name, regions)
        }
    }

    /// What each worker says of itself, by rank. All workers of the view call it between the same two operations.
    pub fn roll_call(&self, standing: u8) -> Result<Vec<u8>> {
        let mut standings = vec![0_u8; self.size()];
        standings[self.rank().index()] = standing;
        self.largest("state senders", &mut standings)?;
        Ok(standings)
    }

    /// The part of [`Worker::share`] in which bytes travel: from these senders, whom all workers name alike.
    ///
    /// # Safety
    /// As for [`Worker::share`].
    pub unsafe fn share_from(
        &self,
        senders: &[Rank],
        name: &str,
        regions: &[Region],
    ) -> Result<()> {
        let pieces: Vec<(usize, Region)> = cut(regions).into_iter().enumerate().collect();
        // SAFETY: the caller's promise.
        unsafe { self.send_to_all(name, pieces, senders) }
    }

    /// As [`Worker::share_from`], but those who are no senders get the bytes while the senders go on. All workers give what
    /// this returns to [`Worker::finish_share`], in the same step.
    ///
    /// # Safety
    /// Each region is memory of so many bytes until [`Worker::finish_share`] has returned or the worker has left. Senders may
    /// read them meanwhile, others neither read nor write. They do not overlap.
    pub unsafe fn begin_share(&self, senders: &[Rank], name: &str, regions: &[Region]) -> Sharing {
        let (me, pieces) = (self.rank(), cut(regions));
        let others = (0..self.size() as u32).map(Rank).filter(|rank| !senders.contains(rank));
        let others: Vec<Rank> = others.collect();
        let receives = others.contains(&me);
        let mut started = Vec::new();
        if !others.is_empty() && !senders.is_empty() {
            for (index, (start, bytes)) in pieces.iter().enumerate() {
                let sender = senders[index % senders.len()];
                if !receives && sender != me {
                    continue;
                }
                let group: Vec<Rank> = std::iter::once(sender).chain(others.clone()).collect();
                let collective = Collective::Broadcast { root: 0, len: *bytes as u64 };
                let operation =
                    Operation::new(format!("{name} {index}"), collective).group(group.into());
                // SAFETY: the caller's promise.
                let handle = unsafe { self.start_unwatched(operation, Dtype::U8, *start, *start) };
                started.push((index, handle));
            }
        }
        Sharing { name: name.into(), senders: senders.to_vec(), pieces, started, receives }
    }

    /// Returns when everybody has what is shared. What came to nothing because somebody was lost is sent again, while all stand
    /// still. Fails if all senders are lost.
    pub fn finish_share(&self, sharing: Sharing) -> Result<()> {
        let Sharing { name, senders, pieces, started, receives } = sharing;
        let mut lacking = vec![0_u8; pieces.len()];
        let mut problem = None;
        for (index, handle) in started {
            match handle.wait() {
                Ok(()) => {}
                Err(error) if is_loss(&error) => lacking[index] = u8::from(receives),
                Err(other) => problem = Some(other),
            }
        }
        if let Some(problem) = problem {
            return Err(problem.into());
        }
        self.largest(&format!("{name} lacking"), &mut lacking)?;
        let pieces = pieces.into_iter().enumerate().filter(|(index, _)| lacking[*index] != 0);
        // SAFETY: promised where it began.
        unsafe { self.send_to_all(&name, pieces.collect(), &senders) }
    }

    /// Pieces by their numbers. Whose sender is lost fails on all alike, and the next sender takes its turn.
    ///
    /// # Safety
    /// As for [`Worker::share`].
    unsafe fn send_to_all(
        &self,
        name: &str,
        mut pieces: Vec<(usize, Region)>,
        senders: &[Rank],
    ) -> Result<()> {
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
                    let operation =
                        Operation::new(format!("{name} {index}"), collective).priority(URGENT);
                    // SAFETY: the caller's promise; all are waited for below.
                    unsafe { self.start_unwatched(operation, Dtype::U8, *start, *start) }
                })
                .collect();
            let mut failed = Vec::new();
            let mut problem = None;
            for (piece, handle) in pieces.drain(..).zip(started) {
                match handle.wait() {
                    Ok(()) => {}
                    Err(error) if is_loss(&error) => failed.push(piece),
                    Err(other) => problem = Some(other),
                }
            }
            if let Some(problem) = problem {
                return Err(problem.into());
            }
            pieces = failed;
        }
        Ok(())
    }

    /// The largest of what workers say, element by element.
    fn largest<T: Element>(&self, name: &str, data: &mut [T]) -> Result<()> {
        let collective = Collective::AllReduce { len: data.len() as u64 };
        let operation = Operation::new(name, collective).reduce(ReduceOp::Max).priority(URGENT);
        self.run_in_place(operation, data)
    }

    /// Fails on all workers if bytes differ on any two of them.
    ///
    /// # Safety
    /// The regions can be read, and nobody writes them meanwhile.
    pub unsafe fn compare(&self, name: &str, regions: &[Region]) -> Result<()> {
        // SAFETY: the caller's promise.
        let mine = unsafe { checksum(regions) } as i64;
        // The largest is the smallest if and only if all are equal.
        let mut largest = [mine, !mine];
        self.largest(&format!("{name} checksum"), &mut largest)?;
        match largest[0] == !largest[1] {
            true => {
                self.helm.with(|driver| driver.crew().map(|crew| crew.keeper().have_state()));
                Ok(())
            }
            false => Err(NetError::StateDiffers),
        }
    }
}

/// Into what one sender sends at a time.
fn cut(regions: &[Region]) -> Vec<Region> {
    let pieces = |(start, bytes): &Region| {
        let (start, bytes) = (*start, *bytes);
        let offsets = (0..bytes).step_by(PIECE_BYTES);
        offsets.map(move |at| (start.wrapping_add(at), PIECE_BYTES.min(bytes - at)))
    };
    regions.iter().flat_map(pieces).collect()
}

fn is_loss(error: &OpError) -> bool {
    matches!(error, OpError::PeerLost { .. })
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
