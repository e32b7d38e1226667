//! One sequence's place in the paged cache.

use glim_plan::CacheGeometry;

use crate::error::EngineError;
use crate::kv::{BlockId, KvCache};

/// Cached tokens of one sequence: how many, and in which blocks.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    blocks: Vec<BlockId>,
    computed: usize,
}

impl Sequence {
    /// A sequence whose first `computed` tokens are in these blocks.
    pub(crate) fn new(blocks: Vec<BlockId>, computed: usize) -> Self {
        Self { blocks, computed }
    }

    /// Its blocks, in order.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Tokens whose rows are in the cache.
    pub(crate) fn computed(&self) -> usize {
        self.computed
    }

    /// Blocks that it lacks for tokens up to `length`.
    pub(crate) fn lacks(&self, length: usize, block_size: usize) -> usize {
        length
            .div_ceil(block_size)
            .saturating_sub(self.blocks.len())
    }

    /// Makes room for tokens up to `length`.
    pub(crate) fn reserve(&mut self, length: usize, kv: &mut KvCache) -> Result<(), EngineError> {
        let lacks = self.lacks(length, kv.block_size());
        if lacks > 0 {
            self.blocks.extend(kv.take(lacks)?);
        }
        Ok(())
    }

    /// Notes that `n` more tokens are in the cache.
    pub(crate) fn advance(&mut self, n: usize) {
        self.computed += n;
    }

    /// Forgets the last `n` tokens; their blocks are kept.
    pub(crate) fn rewind(&mut self, n: usize) {
        self.computed = self.computed.saturating_sub(n);
    }

    /// Slot of a position in every paged state.
    pub(crate) fn slot(&self, position: usize, block_size: usize) -> i32 {
        let block = self.blocks[position / block_size].0 as usize;
        (block * block_size + position % block_size) as i32
    }

    /// The block table, padded to the plan's width.
    pub(crate) fn table(&self, geometry: CacheGeometry) -> impl Iterator<Item = i32> {
        let blocks = self.blocks.iter().map(|b| b.0 as i32);
        blocks
            .chain(std::iter::repeat(-1))
            .take(geometry.max_blocks)
    }

    /// Lets go of all blocks.
    pub(crate) fn release(self, kv: &mut KvCache) {
        kv.release(self.blocks);
    }
}
