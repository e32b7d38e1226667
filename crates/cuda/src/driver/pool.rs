//! What was given up and is kept for the next who wants the same.
//!
//! Pinning a page, mapping one, making a stream: the driver takes up to a millisecond for each, holds a lock of the whole process meanwhile, and waits for
//! the GPU when it takes one back. Who makes backend after backend, as tests do, would spend his time there. So small blocks of memory,
//! streams and events that are let go of are kept by the GPU's context, up to a limit, and handed out again to whoever asks for
//! exactly as much. A block keeps its size: what watches allocations, such as compute-sanitizer, still sees where each ends.
//!
//! Two rules. Who lets go of memory has waited for the kernels that use it: `cuMemFree` would wait by itself, the pool does not. And nothing
//! is kept of a GPU that was opened [apart](super::Gpu::apart): then each block is new, and gone when it is freed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Things of one kind that nobody holds. Where a thing has no size, all are alike.
#[derive(Debug)]
pub(super) struct Pool<T> {
    kept: Mutex<Kept<T>>,
    /// Bytes of the largest that is kept.
    largest: usize,
    /// Bytes of all that are kept, at most.
    most: usize,
}

#[derive(Debug)]
struct Kept<T> {
    /// With their bytes, in the order in which they came.
    things: VecDeque<(usize, T)>,
    bytes: usize,
}

/// Things of a pool, at most.
const MOST_THINGS: usize = 1024;

impl<T> Pool<T> {
    pub(super) fn new(largest: usize, most: usize) -> Self {
        let things = VecDeque::new();
        Self {
            kept: Mutex::new(Kept { things, bytes: 0 }),
            largest,
            most,
        }
    }

    /// A thing of exactly so many bytes, if there is one.
    pub(super) fn take(&self, bytes: usize) -> Option<T> {
        if bytes > self.largest {
            return None;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The last one that came is the likeliest to be in a cache.
        let at = kept.things.iter().rposition(|(size, _)| *size == bytes)?;
        let (size, thing) = kept.things.remove(at)?;
        kept.bytes -= size;
        Some(thing)
    }

    /// Keeps a thing. What it returns is not kept: older things that make room for it, or the thing itself if it is too large.
    pub(super) fn keep(&self, bytes: usize, thing: T) -> Vec<T> {
        if bytes > self.largest {
            return vec![thing];
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.things.push_back((bytes, thing));
        kept.bytes += bytes;
        let mut out = Vec::new();
        while kept.bytes > self.most || kept.things.len() > MOST_THINGS {
            let Some((size, oldest)) = kept.things.pop_front() else {
                break;
            };
            kept.bytes -= size;
            out.push(oldest);
        }
        out
    }

    /// Gives up all that is kept.
    pub(super) fn clear(&self) -> Vec<T> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes = 0;
        kept.things.drain(..).map(|(_, thing)| thing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_to_who_wants_exactly_as_much() {
        let pool = Pool::new(100, 1000);
        assert!(pool.keep(64, 'a').is_empty());
        assert!(pool.keep(65, 'b').is_empty());
        assert_eq!(pool.take(63), None);
        assert_eq!(pool.take(64), Some('a'));
        assert_eq!(pool.take(64), None, "it has one holder");
        assert_eq!(pool.take(65), Some('b'));
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let pool = Pool::new(100, 1000);
        assert_eq!(pool.keep(101, 'a'), ['a']);
        assert_eq!(pool.take(101), None);
    }

    #[test]
    fn the_oldest_go_when_the_limit_is_reached() {
        let pool = Pool::new(100, 250);
        assert!(pool.keep(100, 'a').is_empty());
        assert!(pool.keep(100, 'b').is_empty());
        assert_eq!(pool.keep(90, 'c'), ['a']);
        assert_eq!(pool.clear(), ['b', 'c']);
        assert_eq!(pool.take(90), None);
    }

    #[test]
    fn things_without_a_size_are_limited_too() {
        let pool = Pool::new(0, 0);
        for i in 0..MOST_THINGS {
            assert!(pool.keep(0, i).is_empty());
        }
        assert_eq!(pool.keep(0, MOST_THINGS), [0]);
        assert_eq!(pool.take(0), Some(MOST_THINGS));
    }
}
