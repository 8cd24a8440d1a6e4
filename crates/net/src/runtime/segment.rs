//! Shared memory: one segment per worker, mapped by every worker of its host.
//!
//! A segment is an unnamed file (`memfd`) that peers open through `/proc/<pid>/fd`, so nothing has a
//! name in `/dev/shm` and nothing is left behind however a worker ends. Its size is virtual; pages are
//! reserved with `fallocate` as the heap grows, so that a machine without memory gives an error here
//! and not a bus error later. All pointer arithmetic into a segment is checked in this file.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd},
    ptr::NonNull,
};

/// Virtual size of a segment: the most a worker can have in its arena and scratch together.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 30;

/// Nobody can cut a segment short: whoever reads it then would end with a bus error.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK;

/// The heap is reserved in steps of this size.
const GROWTH_BYTES: u64 = 4 << 20;

/// A mapped segment; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    file: File,
}

// SAFETY: the mapping is plain memory; every access goes through raw pointers whose users coordinate.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new segment of this process, with `reserved` bytes usable from its start.
    pub(crate) fn create(reserved: u64) -> io::Result<Segment> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a NUL-terminated literal; the result is checked.
        let fd = unsafe { libc::memfd_create(c"paceline".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(SEGMENT_BYTES)?;
        // SAFETY: a plain system call on a descriptor we own.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let segment = Segment::map(file)?;
        segment.reserve(0, reserved)?;
        Ok(segment)
    }

    /// The segment of another process of this machine.
    pub(crate) fn open(pid: u32, fd: i32) -> io::Result<Segment> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::options().read(true).write(true).open(path)?;
        // SAFETY: a plain system call on a descriptor we own.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if file.metadata()?.len() != SEGMENT_BYTES || seals & SEALS != SEALS || seals < 0 {
            return Err(io::Error::other("the file there is not a segment"));
        }
        Segment::map(file)
    }

    fn map(file: File) -> io::Result<Segment> {
        // SAFETY: a fresh shared mapping of a file of that size; the result is checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SEGMENT_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("a successful mapping is not at zero");
        Ok(Segment { base, file })
    }

    /// What a peer needs to open it.
    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Make sure that the pages exist.
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: plain system call on a descriptor we own.
        let code = unsafe {
            libc::fallocate(self.file.as_raw_fd(), 0, offset as libc::off_t, bytes as libc::off_t)
        };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// A pointer to `bytes` bytes at `offset`, if they lie inside the segment.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if end > SEGMENT_BYTES {
            return None;
        }
        // SAFETY: inside the mapping, as just checked.
        Some(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Where a pointer lies in this segment, if it does.
    pub(crate) fn offset_of(&self, pointer: *const u8) -> Option<u64> {
        let offset = (pointer as usize).checked_sub(self.base.as_ptr() as usize)? as u64;
        (offset < SEGMENT_BYTES).then_some(offset)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever held pointers into it has been dropped before (field order).
        unsafe { libc::munmap(self.base.as_ptr().cast(), SEGMENT_BYTES as usize) };
    }
}

/// Allocations inside the own segment: powers of two, from free lists, else from the end.
///
/// Freed blocks are kept for reuse; the segment never shrinks while the worker lives.
#[derive(Debug)]
pub(crate) struct Heap {
    end: u64,
    reserved: u64,
    free: Vec<Vec<u64>>,
}

/// The smallest block; also the alignment of all blocks below a page.
const SMALLEST_BITS: u32 = 6;

impl Heap {
    /// A heap over the bytes of a segment from `start` on, `reserved` of which exist.
    pub(crate) fn new(start: u64, reserved: u64) -> Heap {
        Heap { end: start, reserved, free: vec![Vec::new(); 64] }
    }

    /// A block of at least `bytes` bytes. Fails when the machine has no memory left.
    pub(crate) fn take(&mut self, segment: &Segment, bytes: u64) -> io::Result<u64> {
        if bytes > SEGMENT_BYTES {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let class = class_of(bytes);
        if let Some(offset) = self.free[class as usize].pop() {
            return Ok(offset);
        }
        let size = 1_u64 << class;
        let align = size.min(4096);
        let offset = self.end.next_multiple_of(align);
        let end = offset + size;
        if end > SEGMENT_BYTES {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        if end > self.reserved {
            let wanted = (end - self.reserved).next_multiple_of(GROWTH_BYTES);
            segment.reserve(self.reserved, wanted)?;
            self.reserved += wanted;
        }
        self.end = end;
        Ok(offset)
    }

    /// Give a block back; `bytes` as it was asked for.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        self.free[class_of(bytes) as usize].push(offset);
    }
}

fn class_of(bytes: u64) -> u32 {
    bytes.max(1).next_power_of_two().trailing_zeros().max(SMALLEST_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_opened_by_its_descriptor_shows_the_same_bytes() {
        let own = Segment::create(4096).unwrap();
        let seen = Segment::open(std::process::id(), own.descriptor()).unwrap();
        // SAFETY: both pointers lie in the reserved first page.
        unsafe {
            own.at(100, 1).unwrap().write(42);
            assert_eq!(seen.at(100, 1).unwrap().read(), 42);
        }
        assert!(own.at(SEGMENT_BYTES - 1, 2).is_none());
        assert!(own.at(u64::MAX, 2).is_none());
    }

    #[test]
    fn blocks_do_not_overlap_and_are_reused() {
        let segment = Segment::create(0).unwrap();
        let mut heap = Heap::new(0, 0);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for bytes in [1, 64, 65, 4096, 5000, 1 << 20] {
            let offset = heap.take(&segment, bytes).unwrap();
            let free =
                |(other, size): &(u64, u64)| offset >= other + size || offset + bytes <= *other;
            assert!(taken.iter().all(free));
            taken.push((offset, bytes));
        }
        let (offset, bytes) = taken[3];
        heap.give(offset, bytes);
        assert_eq!(heap.take(&segment, 3000).unwrap(), offset);
        for bytes in [SEGMENT_BYTES / 2 + 1, SEGMENT_BYTES * 2, u64::MAX] {
            assert!(heap.take(&segment, bytes).is_err());
        }
    }
}
