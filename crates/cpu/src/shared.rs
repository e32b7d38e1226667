//! One output written by many threads, each its own part.

use std::marker::PhantomData;

/// A mutable slice that threads of a parallel section write disjoint parts of.
#[derive(Debug)]
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Parts<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Parts<'_, T> {}

// SAFETY: parts are handed out by `part` and `shared`, whose callers keep them disjoint or unwritten. What is handed out is a
// `&mut T`, or a `&T` that several threads may hold.
unsafe impl<T: Send + Sync> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    fn check(&self, start: usize, len: usize) {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "a part lies inside its slice"
        );
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// - As long as the part is alive, no other part, shared or not, overlaps it.
    ///
    /// # Panics
    /// If the part reaches beyond the slice.
    #[inline]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        self.check(start, len);
        // SAFETY: inside the slice (checked), which is borrowed mutably for 'a; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// `len` elements from `start` on, to read.
    ///
    /// # Safety
    /// - As long as the part is alive, no part that is not shared overlaps it.
    ///
    /// # Panics
    /// If the part reaches beyond the slice.
    pub(crate) unsafe fn shared(&self, start: usize, len: usize) -> &'a [T] {
        self.check(start, len);
        // SAFETY: inside the slice (checked), which is borrowed for 'a; unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
    }
}

impl<T: Copy> Parts<'_, T> {
    /// Writes one element.
    ///
    /// # Safety
    /// - No other thread touches this element in the same section, and no part that is alive covers it.
    ///
    /// # Panics
    /// If the element lies beyond the slice.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        assert!(index < self.len, "an element lies inside its slice");
        // SAFETY: inside the slice; nobody else's by the caller's promise. `T` is `Copy`: nothing is dropped.
        unsafe { self.start.add(index).write(value) };
    }
}
