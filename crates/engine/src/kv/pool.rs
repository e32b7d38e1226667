//! Blocks of the paged cache: who refers to which, and which are free.
//!
//! Pure bookkeeping: the pool knows numbers, not memory and not content. A block that is free may still hold rows that somebody
//! could use again; such blocks are handed out last, and of them the one that has been free longest.

use std::collections::BTreeMap;

/// A physical block of the cache, the same in every paged state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// What a block's rows are worth once nobody refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing.
    Dead,
    /// They have a name and can be used again.
    Reusable,
}

/// Reference counts and free blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    refs: Vec<u32>,
    /// When a reusable block became free: its key in `reusable`.
    freed: Vec<u64>,
    /// Free blocks without content, used last-in first-out: their rows are the likeliest to be in a cache of the machine.
    empty: Vec<BlockId>,
    /// Free blocks with content, by the time at which they became free.
    reusable: BTreeMap<u64, BlockId>,
    clock: u64,
}

impl BlockPool {
    /// A pool of `total` free blocks.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            refs: vec![0; total as usize],
            freed: vec![0; total as usize],
            empty: (0..total).rev().map(BlockId).collect(),
            reusable: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Blocks in all.
    pub(crate) fn total(&self) -> usize {
        self.refs.len()
    }

    /// Blocks that nobody refers to.
    pub(crate) fn free(&self) -> usize {
        self.empty.len() + self.reusable.len()
    }

    /// Of these, the ones with content.
    pub(crate) fn reusable(&self) -> usize {
        self.reusable.len()
    }

    /// Whether nobody refers to a block.
    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.refs[block.0 as usize] == 0
    }

    /// Takes a free block, and says what it held; `None` if none is free.
    pub(crate) fn take(&mut self) -> Option<(BlockId, Content)> {
        let (block, content) = match self.empty.pop() {
            Some(block) => (block, Content::Dead),
            None => (self.reusable.pop_first()?.1, Content::Reusable),
        };
        self.refs[block.0 as usize] = 1;
        Some((block, content))
    }

    /// One more refers to a block with content, free or not.
    pub(crate) fn share(&mut self, block: BlockId) {
        let refs = &mut self.refs[block.0 as usize];
        if *refs == 0 {
            self.reusable.remove(&self.freed[block.0 as usize]);
        }
        *refs += 1;
    }

    /// One less refers to a block.
    ///
    /// # Panics
    /// If nobody does: two owners would write one row, so this is a bug and not to be survived.
    pub(crate) fn give_back(&mut self, block: BlockId, content: Content) {
        let refs = &mut self.refs[block.0 as usize];
        assert!(*refs > 0, "block {} is given back twice", block.0);
        *refs -= 1;
        if *refs > 0 {
            return;
        }
        match content {
            Content::Dead => self.empty.push(block),
            Content::Reusable => {
                self.clock += 1;
                self.freed[block.0 as usize] = self.clock;
                self.reusable.insert(self.clock, block);
            }
        }
    }

    /// A block's content is of no more use.
    pub(crate) fn forget(&mut self, block: BlockId) {
        let freed = &mut self.freed[block.0 as usize];
        if self.refs[block.0 as usize] == 0 && self.reusable.remove(freed).is_some() {
            self.empty.push(block);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn take(pool: &mut BlockPool, n: usize) -> Vec<BlockId> {
        (0..n).map(|_| pool.take().unwrap().0).collect()
    }

    #[test]
    fn blocks_are_conserved_and_have_one_taker() {
        let mut pool = BlockPool::new(5);
        let a = take(&mut pool, 2);
        let b = take(&mut pool, 3);
        assert!(a.iter().all(|block| !b.contains(block)));
        assert_eq!((pool.free(), pool.take()), (0, None));
        a.into_iter()
            .for_each(|block| pool.give_back(block, Content::Dead));
        assert_eq!((pool.free(), pool.total()), (2, 5));
    }

    #[test]
    fn content_is_overwritten_last_and_oldest_first() {
        let mut pool = BlockPool::new(3);
        let blocks = take(&mut pool, 3);
        pool.give_back(blocks[1], Content::Reusable);
        pool.give_back(blocks[0], Content::Reusable);
        pool.give_back(blocks[2], Content::Dead);
        assert_eq!(pool.reusable(), 2);
        assert_eq!(pool.take(), Some((blocks[2], Content::Dead)));
        assert_eq!(pool.take(), Some((blocks[1], Content::Reusable)));
        pool.share(blocks[0]);
        assert_eq!(pool.take(), None, "a block in use is nobody else's");
    }

    #[test]
    fn a_shared_block_is_free_when_the_last_lets_go() {
        let mut pool = BlockPool::new(1);
        let block = take(&mut pool, 1)[0];
        pool.share(block);
        pool.give_back(block, Content::Reusable);
        assert_eq!(pool.free(), 0);
        pool.give_back(block, Content::Reusable);
        assert_eq!((pool.free(), pool.reusable()), (1, 1));
        pool.forget(block);
        assert_eq!((pool.free(), pool.reusable()), (1, 0));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_a_bug() {
        let mut pool = BlockPool::new(2);
        let block = take(&mut pool, 1)[0];
        pool.give_back(block, Content::Dead);
        pool.give_back(block, Content::Dead);
    }
}
