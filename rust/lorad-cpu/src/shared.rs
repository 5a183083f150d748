//! Buffers of which several threads hold disjoint parts at once.
#![allow(unsafe_code)] // the borrow checker can't see that the parts are disjoint; each caller says why they are

use std::marker::PhantomData;

use crate::error::{length, require};
use crate::OpError;

/// A slice that is handed out in parts.
pub struct Parts<'a, T> {
    pointer: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`; access goes through unsafe methods whose callers keep parts disjoint.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Takes a slice apart.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to hand out.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where `len` elements from `begin` lie; they are in bounds.
    pub fn pointer(&self, begin: usize, len: usize) -> *mut T {
        assert!(begin <= self.len && len <= self.len - begin);
        self.pointer.wrapping_add(begin)
    }

    /// `len` elements from `begin`.
    ///
    /// # Safety
    /// No other part that overlaps may be in use while this one is.
    #[allow(clippy::mut_from_ref)] // that is what the type is for
    pub unsafe fn part(&self, begin: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(begin, len), len) }
    }

    /// `len` elements from `begin`, to read.
    ///
    /// # Safety
    /// No part that overlaps may be written while this one is in use.
    pub unsafe fn read(&self, begin: usize, len: usize) -> &[T] {
        // SAFETY: in bounds; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer(begin, len), len) }
    }
}

/// The page arena, u8 `[pages, page_bytes]`. Other threads may fill pages that this call doesn't name.
pub struct Arena<'a> {
    bytes: Parts<'a, u8>,
    page_bytes: usize,
}

impl<'a> Arena<'a> {
    /// Views `bytes` as pages.
    pub fn new(bytes: &'a mut [u8], page_bytes: usize) -> Result<Self, OpError> {
        require(page_bytes > 0, "arena: page_bytes must be positive", page_bytes)?;
        length("arena", bytes.len() / page_bytes * page_bytes, bytes.len())?;
        Ok(Self { bytes: Parts::new(bytes), page_bytes })
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.bytes.len() / self.page_bytes
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn start(&self, page: usize, offset: usize, len: usize) -> usize {
        assert!(page < self.pages() && offset <= self.page_bytes && len <= self.page_bytes - offset);
        page * self.page_bytes + offset
    }

    /// Where `len` bytes of a page lie; they are in bounds.
    pub fn pointer(&self, page: usize, offset: usize, len: usize) -> *mut u8 {
        self.bytes.pointer(self.start(page, offset, len), len)
    }

    /// `len` bytes of a page, to read.
    ///
    /// # Safety
    /// Nobody may write them while they are in use: the page belongs to this step.
    pub unsafe fn read(&self, page: usize, offset: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.read(self.start(page, offset, len), len) }
    }

    /// `len` bytes of a page, to write.
    ///
    /// # Safety
    /// Nobody else may use them meanwhile.
    #[allow(clippy::mut_from_ref)] // as for `Parts::part`
    pub unsafe fn write(&self, page: usize, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.part(self.start(page, offset, len), len) }
    }
}
