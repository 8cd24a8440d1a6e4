//! The memory behind the engine's names: callers' buffers by operation, scratch by number, and copies
//! made for peers. This is where names become pointers, and where bytes are combined.

use super::segment::{Heap, Segment};
use paceline_job::Rank;
use paceline_kernels as kernels;
use paceline_sync::event::{BufId, Loc, OpId, Recipe};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

/// Results of operations from this size on are written around the caches: by the time all of it is there,
/// its beginning would have been pushed out again.
const STREAMED_BYTES: u64 = 8 << 20;

/// A caller's buffers. They may be the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpMemory {
    pub input: *const u8,
    pub output: *mut u8,
    /// What the longer side of the operation comes to.
    pub bytes: u64,
}

// SAFETY: whoever posts an operation promises that its buffers stay valid until it ends, on any thread.
unsafe impl Send for OpMemory {}

/// A worker's own segment with its heap: scratch, copies for peers, and the arena callers take
/// buffers from.
#[derive(Debug)]
pub(crate) struct Store {
    pub segment: Segment,
    heap: Mutex<Heap>,
}

impl Store {
    /// The first `layout_bytes` are the transport's; the heap begins after them.
    pub(crate) fn create(layout_bytes: u64) -> io::Result<Store> {
        let layout_bytes = layout_bytes.next_multiple_of(4096);
        let segment = Segment::create(layout_bytes)?;
        Ok(Store { segment, heap: Mutex::new(Heap::new(layout_bytes, layout_bytes)) })
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn take(&self, bytes: u64) -> io::Result<u64> {
        self.heap().take(&self.segment, bytes)
    }

    pub(crate) fn give(&self, offset: u64, bytes: u64) {
        self.heap().give(offset, bytes);
    }

    pub(crate) fn pointer(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.segment.at(offset, bytes).expect("the heap hands out offsets inside its segment")
    }
}

/// What a scratch number stands for.
#[derive(Debug)]
enum Scratch {
    Nothing,
    Own {
        offset: u64,
        bytes: u64,
    },
    /// The machine had no shared memory left: ordinary memory, which reaches local peers by a copy.
    Private(Box<[u8]>),
    /// Bytes that a peer of this host holds still for us; it is told when we are done with them.
    Peer {
        pointer: *const u8,
        from: Rank,
        receipt: u32,
    },
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Memory {
    pub store: Arc<Store>,
    ops: Vec<Option<OpMemory>>,
    scratch: Vec<Scratch>,
}

// SAFETY: pointers to peers' memory stay valid while the links that lent them live, in the same driver.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(store: Arc<Store>) -> Memory {
        Memory { store, ops: Vec::new(), scratch: Vec::new() }
    }

    pub(crate) fn enter(&mut self, op: OpId, memory: OpMemory) {
        let place = op.0 as usize;
        if self.ops.len() <= place {
            self.ops.resize(place + 1, None);
        }
        self.ops[place] = Some(memory);
    }

    pub(crate) fn leave(&mut self, op: OpId) {
        self.ops[op.0 as usize] = None;
    }

    /// Give a scratch number memory of its own.
    pub(crate) fn provide(&mut self, buf: BufId, bytes: u64) -> *mut u8 {
        let (scratch, pointer) = match self.store.take(bytes) {
            Ok(offset) => (Scratch::Own { offset, bytes }, self.store.pointer(offset, bytes)),
            Err(_) => {
                let mut memory = vec![0; bytes as usize].into_boxed_slice();
                let pointer = memory.as_mut_ptr();
                (Scratch::Private(memory), pointer)
            }
        };
        *self.place(buf) = scratch;
        pointer
    }

    /// Let a scratch number stand for bytes in a peer's memory.
    pub(crate) fn borrow(&mut self, buf: BufId, pointer: *const u8, from: Rank, receipt: u32) {
        *self.place(buf) = Scratch::Peer { pointer, from, receipt };
    }

    /// The number is free again. If it stood for a peer's bytes: whom to tell, and what.
    pub(crate) fn free(&mut self, buf: BufId) -> Option<(Rank, u32)> {
        match std::mem::replace(self.place(buf), Scratch::Nothing) {
            Scratch::Nothing | Scratch::Private(_) => None,
            Scratch::Own { offset, bytes } => {
                self.store.give(offset, bytes);
                None
            }
            Scratch::Peer { from, receipt, .. } => Some((from, receipt)),
        }
    }

    fn place(&mut self, buf: BufId) -> &mut Scratch {
        let place = buf.0 as usize;
        if self.scratch.len() <= place {
            self.scratch.resize_with(place + 1, || Scratch::Nothing);
        }
        &mut self.scratch[place]
    }

    /// Where a name's bytes can be read.
    pub(crate) fn read(&self, loc: Loc) -> *const u8 {
        match loc {
            Loc::Own(op, at) => self.op(op).input.wrapping_add(at as usize),
            Loc::Out(op, at) => self.op(op).output.wrapping_add(at as usize),
            Loc::Buf(buf, at) => match &self.scratch[buf.0 as usize] {
                Scratch::Own { offset, bytes } => {
                    self.store.pointer(*offset, *bytes).wrapping_add(at as usize)
                }
                Scratch::Private(memory) => memory.as_ptr().wrapping_add(at as usize),
                Scratch::Peer { pointer, .. } => pointer.wrapping_add(at as usize),
                Scratch::Nothing => unreachable!("the engine names scratch it was given"),
            },
        }
    }

    /// Where a name's bytes can be written; scratch that has no memory yet gets it.
    pub(crate) fn write(&mut self, loc: Loc, bytes: u64) -> *mut u8 {
        let (buf, at) = match loc {
            Loc::Own(..) => unreachable!("the engine never writes a caller's input"),
            Loc::Out(op, at) => return self.op(op).output.wrapping_add(at as usize),
            Loc::Buf(buf, at) => (buf, at as usize),
        };
        let start = match self.place(buf) {
            Scratch::Nothing => self.provide(buf, bytes),
            Scratch::Private(memory) => memory.as_mut_ptr(),
            Scratch::Peer { .. } => unreachable!("a peer's bytes are never written"),
            Scratch::Own { offset, bytes } => {
                let (offset, bytes) = (*offset, *bytes);
                self.store.pointer(offset, bytes)
            }
        };
        start.wrapping_add(at)
    }

    /// How a final value is best copied to or from this place.
    pub(crate) fn copying(&self, loc: Loc) -> Copying {
        match loc {
            Loc::Own(op, _) | Loc::Out(op, _) if self.op(op).bytes >= STREAMED_BYTES => {
                Copying::AroundCaches
            }
            _ => Copying::Through,
        }
    }

    fn op(&self, op: OpId) -> OpMemory {
        self.ops[op.0 as usize].expect("the engine names operations in progress")
    }
}

/// How bytes get from place to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copying {
    /// Through the caches: somebody reads them soon.
    Through,
    /// Around the caches.
    AroundCaches,
}

impl Copying {
    /// # Safety
    /// Both are valid for `bytes` bytes, do not overlap, and nobody else touches `into` meanwhile.
    pub(crate) unsafe fn copy(self, source: *const u8, into: *mut u8, bytes: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Copying::Through => std::ptr::copy_nonoverlapping(source, into, bytes),
                Copying::AroundCaches => kernels::stream(into, source, bytes),
            }
        }
    }
}

/// `into = source ⊕ with`, or a copy with an average's division.
///
/// # Safety
/// All pointers are valid for `elements` elements; `into` may equal an operand but not overlap it partly.
pub(crate) unsafe fn combine(
    recipe: Recipe,
    into: *mut u8,
    source: *const u8,
    with: Option<*const u8>,
    elements: usize,
) {
    let Recipe { dtype, reduce, divisor } = recipe;
    // SAFETY: passed on to the caller.
    unsafe {
        match with {
            Some(with) => kernels::combine(reduce, dtype, into, source, with, elements, divisor),
            None if reduce.divides() && divisor > 1 => {
                kernels::finish(reduce, dtype, into, source, elements, divisor)
            }
            None if into.cast_const() != source => {
                std::ptr::copy_nonoverlapping(source, into, elements * dtype.size());
            }
            None => {}
        }
    }
}
