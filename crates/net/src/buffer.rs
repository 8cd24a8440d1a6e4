//! Memory for tensors: a vector of the caller's, or a block of the worker's shared arena, which peers
//! of the same host read without a copy.

use crate::{element::Element, runtime::memory::Store};
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// Elements that a collective can read and write.
#[derive(Debug)]
pub enum Buffer<T: Element> {
    /// Private memory.
    Vec(Vec<T>),
    /// Memory that local peers can read.
    Shared(SharedBuffer<T>),
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Buffer::Vec(vec) => vec,
            Buffer::Shared(shared) => shared,
        }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Buffer::Vec(vec) => vec,
            Buffer::Shared(shared) => shared,
        }
    }
}

impl<T: Element> From<Vec<T>> for Buffer<T> {
    fn from(vec: Vec<T>) -> Buffer<T> {
        Buffer::Vec(vec)
    }
}

impl<T: Element> From<SharedBuffer<T>> for Buffer<T> {
    fn from(shared: SharedBuffer<T>) -> Buffer<T> {
        Buffer::Shared(shared)
    }
}

/// A block of the worker's arena; given back when dropped.
pub struct SharedBuffer<T: Element> {
    store: Arc<Store>,
    offset: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> SharedBuffer<T> {
    /// `len` elements, all zero.
    pub(crate) fn zeroed(store: Arc<Store>, len: usize) -> std::io::Result<SharedBuffer<T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(std::io::ErrorKind::OutOfMemory)? as u64;
        let offset = store.take(bytes)?;
        let pointer = store.pointer(offset, bytes);
        // SAFETY: a fresh block of that many bytes. A block may have been used before.
        unsafe { pointer.write_bytes(0, bytes as usize) };
        Ok(SharedBuffer { store, offset, len, element: PhantomData })
    }

    fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }
}

impl<T: Element> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let pointer = self.store.pointer(self.offset, self.bytes());
        // SAFETY: our own block, 64-byte aligned, initialised; all-zero bytes are a value of every
        // element type. Peers read it only while a collective holds it.
        unsafe { std::slice::from_raw_parts(pointer.cast(), self.len) }
    }
}

impl<T: Element> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let pointer = self.store.pointer(self.offset, self.bytes());
        // SAFETY: as above, and `&mut self` is the only way in.
        unsafe { std::slice::from_raw_parts_mut(pointer.cast(), self.len) }
    }
}

impl<T: Element> Drop for SharedBuffer<T> {
    fn drop(&mut self) {
        self.store.give(self.offset, self.bytes());
    }
}

impl<T: Element> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
