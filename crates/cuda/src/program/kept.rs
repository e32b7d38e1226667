//! What operations leave for later ones beside their buffers (rounded activations, angles): where it lies.
//!
//! A region is taken by the operation that writes it, and is free again behind the last one that reads it, so that all layers of
//! a model share a few. That is as safe as the arena is: every kernel waits for all before it, and writes nothing before that.

/// Regions begin at multiples of this.
const ALIGN: usize = 256;

/// The regions in use, in the order of their offsets.
#[derive(Debug, Default)]
pub(super) struct Kept {
    regions: Vec<Region>,
    /// Bytes that they have taken at most.
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct Region {
    start: usize,
    end: usize,
    /// The last operation that reads it.
    until: usize,
}

impl Kept {
    /// The offset of a region that operation `now` writes, and none after `until` reads: the lowest that is free.
    pub(super) fn take(&mut self, bytes: usize, now: usize, until: usize) -> usize {
        self.regions.retain(|region| region.until >= now);
        let bytes = bytes.next_multiple_of(ALIGN);
        let mut start = 0;
        let mut at = 0;
        for region in &self.regions {
            if start + bytes <= region.start {
                break;
            }
            start = region.end;
            at += 1;
        }
        let end = start + bytes;
        self.regions.insert(at, Region { start, end, until });
        self.bytes = self.bytes.max(end);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_in_use_are_apart_and_those_that_are_not_are_used_again() {
        let mut kept = Kept::default();
        assert_eq!(kept.take(300, 0, 4), 0);
        assert_eq!(kept.take(100, 1, 2), 512);
        assert_eq!(kept.take(100, 1, 9), 768);
        // Operation 2 still reads the second; operation 3 does not.
        assert_eq!(kept.take(10, 2, 3), 1024);
        assert_eq!(kept.take(256, 3, 5), 512);
        // The first has become free; what does not fit goes behind the last.
        assert_eq!(kept.take(512, 5, 6), 0);
        assert_eq!(kept.take(512, 5, 6), 1024);
        assert_eq!(kept.bytes, 1536);
    }
}
