//! Blocks of the paged cache: who has which, and none twice.
//!
//! Pure bookkeeping: the pool knows numbers, not memory.

use crate::error::EngineError;

/// A physical block of the cache, the same in every paged state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// Hands out blocks. Freed blocks are reused last-in first-out: their rows are the likeliest to be in a cache of the machine.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<BlockId>,
    taken: Vec<bool>,
}

impl BlockPool {
    /// A pool of `total` free blocks.
    pub fn new(total: u32) -> Self {
        Self {
            free: (0..total).rev().map(BlockId).collect(),
            taken: vec![false; total as usize],
        }
    }

    /// Blocks in all.
    pub fn blocks_total(&self) -> usize {
        self.taken.len()
    }

    /// Free blocks.
    pub fn blocks_free(&self) -> usize {
        self.free.len()
    }

    /// Takes `n` blocks, or none.
    ///
    /// # Errors
    /// [`EngineError::OutOfBlocks`] if fewer are free.
    pub fn take(&mut self, n: usize) -> Result<Vec<BlockId>, EngineError> {
        let Some(rest) = self.free.len().checked_sub(n) else {
            return Err(EngineError::OutOfBlocks {
                needed: n,
                free: self.free.len(),
                total: self.taken.len(),
            });
        };
        let mut blocks = self.free.split_off(rest);
        blocks.reverse();
        for block in &blocks {
            self.taken[block.0 as usize] = true;
        }
        Ok(blocks)
    }

    /// Gives blocks back.
    ///
    /// # Panics
    /// If a block is not taken: two owners would write one row, so this is a bug and not to be survived.
    pub fn give_back(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        for block in blocks {
            let taken = &mut self.taken[block.0 as usize];
            assert!(*taken, "block {} is given back twice", block.0);
            *taken = false;
            self.free.push(block);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_conserved_and_never_shared() {
        let mut pool = BlockPool::new(5);
        let a = pool.take(2).unwrap();
        let b = pool.take(3).unwrap();
        assert!(a.iter().all(|block| !b.contains(block)));
        assert_eq!(pool.blocks_free(), 0);
        let refused = pool.take(1).unwrap_err().to_string();
        assert_eq!(
            refused,
            "1 cache blocks are needed, but only 0 of 5 are free"
        );
        pool.give_back(a);
        assert_eq!((pool.blocks_free(), pool.blocks_total()), (2, 5));
        assert_eq!(
            pool.take(3).unwrap_err().to_string(),
            "3 cache blocks are needed, but only 2 of 5 are free"
        );
        assert_eq!(pool.blocks_free(), 2, "a refused request takes nothing");
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_block_has_one_owner() {
        let mut pool = BlockPool::new(2);
        let blocks = pool.take(1).unwrap();
        pool.give_back(blocks.clone());
        pool.give_back(blocks);
    }
}
