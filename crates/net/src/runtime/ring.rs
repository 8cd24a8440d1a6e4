//! A queue of records in shared memory, from one writer to one reader.
//!
//! Records are eight-byte aligned and never wrap. The reader trusts nothing it reads: a length that
//! does not fit is an error, never a wild read. This file knows bytes only.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of records a ring holds.
pub(crate) const RING_BYTES: u64 = 64 << 10;

/// Bytes of shared memory a ring takes: two counters on lines of their own, then the records.
pub(crate) const RING_AREA_BYTES: u64 = RING_BYTES + 256;

/// A record is at most this long, so that a few always fit.
pub(crate) const RECORD_LIMIT: usize = 16 << 10;

/// Marks the unused end of the ring.
const SKIP: u64 = u64::MAX;

/// Bytes a record takes: its length, and its content up to the next whole word.
const fn record_bytes(len: u64) -> u64 {
    8 + len.next_multiple_of(8)
}

/// Counters are positions in an endless stream; the place in memory is the remainder.
#[derive(Debug)]
struct Area {
    base: *mut u8,
}

impl Area {
    fn written(&self) -> &AtomicU64 {
        // SAFETY: the area is mapped, aligned and outlives the ring (constructors demand it).
        unsafe { &*self.base.cast::<AtomicU64>() }
    }

    fn read(&self) -> &AtomicU64 {
        // SAFETY: as above; the second line of the area.
        unsafe { &*self.base.add(128).cast::<AtomicU64>() }
    }

    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: the remainder lies inside the records' part of the area.
        unsafe { self.base.add(256 + (position % RING_BYTES) as usize) }
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Writer {
    area: Area,
    written: u64,
    /// The reader's position when we last looked.
    read: u64,
}

// SAFETY: one thread at a time uses an end; the memory is shared by design.
unsafe impl Send for Writer {}

impl Writer {
    /// # Safety
    /// `base` points to [`RING_AREA_BYTES`] zeroed, 128-byte aligned bytes that outlive the ring, and
    /// nobody else writes records there.
    pub(crate) unsafe fn new(base: *mut u8) -> Writer {
        Writer { area: Area { base }, written: 0, read: 0 }
    }

    /// Append a record made of parts, if there is room.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(len <= RECORD_LIMIT, "records are short");
        let size = record_bytes(len as u64);
        let to_end = RING_BYTES - self.written % RING_BYTES;
        let skip = if size > to_end { to_end } else { 0 };
        if self.written + skip + size - self.read > RING_BYTES {
            let read = self.area.read().load(Ordering::Acquire);
            // A reader that claims to be ahead of us, or a whole ring behind, is broken; it gets nothing.
            let unread = self.written.wrapping_sub(read);
            if unread > RING_BYTES || unread + skip + size > RING_BYTES {
                return false;
            }
            self.read = read;
        }
        // SAFETY: between `written` and `read + RING_BYTES` the memory is ours, contiguous after the
        // skip, and 8-byte aligned; the reader looks at it only after the release below.
        unsafe {
            if skip > 0 {
                self.area.at(self.written).cast::<u64>().write(SKIP);
                self.written += skip;
            }
            let mut at = self.area.at(self.written);
            at.cast::<u64>().write(len as u64);
            at = at.add(8);
            for part in parts {
                std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
        }
        self.written += size;
        self.area.written().store(self.written, Ordering::Release);
        true
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Reader {
    area: Area,
    read: u64,
    written: u64,
}

// SAFETY: as for the writer.
unsafe impl Send for Reader {}

impl Reader {
    /// # Safety
    /// As for [`Writer::new`]; nobody else reads records there.
    pub(crate) unsafe fn new(base: *mut u8) -> Reader {
        Reader { area: Area { base }, read: 0, written: 0 }
    }

    /// The next record, if there is one. It stays valid until [`Reader::pop`]. An error means that the
    /// writer is broken.
    pub(crate) fn peek(&mut self) -> Result<Option<&[u8]>, &'static str> {
        loop {
            if self.read == self.written {
                let written = self.area.written().load(Ordering::Acquire);
                if self.read == written {
                    return Ok(None);
                }
                if written.wrapping_sub(self.read) > RING_BYTES || !written.is_multiple_of(8) {
                    return Err("its queue claims more than it holds");
                }
                self.written = written;
            }
            let at = self.area.at(self.read);
            // SAFETY: aligned, inside the area, and written before the acquire above.
            let len = unsafe { at.cast::<u64>().read() };
            let to_end = RING_BYTES - self.read % RING_BYTES;
            let unread = self.written - self.read;
            if len == SKIP {
                // A writer skips the end of the ring, never all of it: so this happens once at most.
                if to_end > unread || to_end == RING_BYTES {
                    return Err("its queue skips past its own end");
                }
                self.read += to_end;
                continue;
            }
            if len > RECORD_LIMIT as u64 || record_bytes(len) > to_end.min(unread) {
                return Err("its queue holds a record longer than itself");
            }
            // SAFETY: the bytes lie inside the area and the writer leaves them alone until `pop`.
            return Ok(Some(unsafe { std::slice::from_raw_parts(at.add(8), len as usize) }));
        }
    }

    /// Let the writer have the space of a record of `len` bytes back.
    pub(crate) fn pop(&mut self, len: usize) {
        self.read += record_bytes(len as u64);
        self.area.read().store(self.read, Ordering::Release);
    }

    /// Whether a record waits.
    pub(crate) fn has_record(&self) -> bool {
        self.read != self.area.written().load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(128))]
    struct Memory(#[allow(dead_code)] [u8; RING_AREA_BYTES as usize]);

    fn ring() -> (Box<Memory>, Writer, Reader) {
        let mut memory = Box::new(Memory([0; RING_AREA_BYTES as usize]));
        let base: *mut u8 = (&raw mut *memory).cast();
        // SAFETY: zeroed, aligned, and returned together with the ends.
        let (writer, reader) = unsafe { (Writer::new(base), Reader::new(base)) };
        (memory, writer, reader)
    }

    #[test]
    fn records_come_out_as_they_went_in_across_many_turns_of_the_ring() {
        let (_memory, mut writer, mut reader) = ring();
        let mut expected = std::collections::VecDeque::new();
        let mut next = 1_u64;
        for round in 0..20_000_u64 {
            next = next.wrapping_mul(6364136223846793005).wrapping_add(round);
            let len = (next >> 33) as usize % 3000;
            let record = vec![round as u8; len];
            if writer.push(&[&record[..len / 3], &record[len / 3..]]) {
                expected.push_back(record);
            }
            if next & 3 != 0 {
                while let Some(record) = reader.peek().unwrap() {
                    let record = record.to_vec();
                    assert_eq!(Some(&record), expected.pop_front().as_ref());
                    reader.pop(record.len());
                }
            }
        }
        assert!(round_trip_is_empty(&mut reader, expected));
    }

    fn round_trip_is_empty(
        reader: &mut Reader,
        mut expected: std::collections::VecDeque<Vec<u8>>,
    ) -> bool {
        while let Some(record) = reader.peek().unwrap() {
            let record = record.to_vec();
            assert_eq!(Some(&record), expected.pop_front().as_ref());
            reader.pop(record.len());
        }
        expected.is_empty()
    }

    #[test]
    fn a_full_ring_refuses_and_a_lying_one_is_an_error() {
        let (mut memory, mut writer, mut reader) = ring();
        while writer.push(&[&[1; 1000]]) {}
        assert!(reader.peek().unwrap().is_some());
        memory.0[256..264].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        assert!(reader.peek().is_err());
    }

    #[test]
    fn counters_that_lie_are_noticed_on_both_sides() {
        let (mut memory, mut writer, mut reader) = ring();
        // A record of 5 bytes takes 16; a counter that says 13 would leave the reader ahead of it.
        assert!(writer.push(&[&[1; 5]]));
        memory.0[..8].copy_from_slice(&13_u64.to_le_bytes());
        assert!(reader.peek().is_err());
        while writer.push(&[&[1; 1000]]) {}
        for read in [u64::MAX, 1 << 40, RING_BYTES + 8] {
            memory.0[128..136].copy_from_slice(&read.to_le_bytes());
            assert!(!writer.push(&[&[1; 1000]]), "{read}");
        }
        memory.0[128..136].copy_from_slice(&4096_u64.to_le_bytes());
        assert!(writer.push(&[&[1; 1000]]));
    }

    #[test]
    fn a_ring_that_is_all_skips_ends_in_an_error() {
        let (mut memory, _writer, mut reader) = ring();
        memory.0[256..].fill(0xff);
        memory.0[..8].copy_from_slice(&RING_BYTES.to_le_bytes());
        assert!(reader.peek().is_err());
    }

    #[test]
    fn two_threads_agree() {
        let (_memory, mut writer, mut reader) = ring();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..200_000_u64 {
                    while !writer.push(&[&value.to_le_bytes()]) {
                        std::thread::yield_now();
                    }
                }
            });
            for value in 0..200_000_u64 {
                loop {
                    match reader.peek().unwrap() {
                        Some(record) => {
                            assert_eq!(record, value.to_le_bytes());
                            break reader.pop(8);
                        }
                        None => std::thread::yield_now(),
                    }
                }
            }
        });
    }
}
