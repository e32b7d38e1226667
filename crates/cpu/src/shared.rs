//! One output written by many threads, each its own part.

use std::marker::PhantomData;

/// A mutable slice that threads of a parallel section write disjoint parts of.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out by `part`, whose callers keep them disjoint; `T` itself may move between threads.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// - No two parts that are alive at the same time overlap.
    ///
    /// # Panics
    /// If the part reaches beyond the slice.
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "a part lies inside its slice"
        );
        // SAFETY: inside the slice (checked), which is borrowed mutably for 'a; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// - No other thread touches this element in the same section.
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        // SAFETY: passed on.
        unsafe { self.part(index, 1)[0] = value };
    }
}
