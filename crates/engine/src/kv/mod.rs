//! The paged cache as the engine keeps its books: blocks, what is in them, and who may use it again.
//!
//! A block is private to one sequence while its rows are being written. Once all of them are in the cache, and the step that wrote
//! them is over, it gets a [name](BlockHash) and is never written again while it has one: other sequences may then refer to it.
//! All paged states of a model (latents and index keys of every layer) share the numbers of blocks, so a hit restores them all.
//!
//! Pure: numbers and names, no memory and no clock.

mod event;
mod hash;
mod pool;
mod prefix;

pub use event::{KV_EVENTS_MAX, KvEvent};
pub use hash::BlockHash;
pub use pool::BlockId;
pub use prefix::MissReason;

pub(crate) use hash::Chain;
pub(crate) use prefix::MISS_REASONS;

use event::EventLog;
use glim_text::TokenId;
use pool::{BlockPool, Content};
use prefix::PrefixIndex;

use crate::error::EngineError;

/// How prompts fared, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lookups {
    pub(crate) queries: u64,
    pub(crate) hits: u64,
    /// By [`MissReason`].
    pub(crate) misses: [u64; MISS_REASONS],
}

/// Whole blocks that a sequence has computed.
pub(crate) struct Computed<'a> {
    pub(crate) blocks: &'a [BlockId],
    pub(crate) hashes: &'a [BlockHash],
    /// The name of the block before them.
    pub(crate) parent: Option<BlockHash>,
    /// Their tokens.
    pub(crate) tokens: &'a [TokenId],
    /// [`Chain::opening`], if the first of them is the sequence's first.
    pub(crate) opening: Option<BlockHash>,
}

/// Blocks and their content.
#[derive(Debug)]
pub(crate) struct KvCache {
    block_size: usize,
    pool: BlockPool,
    /// `None`: nothing is used again.
    index: Option<PrefixIndex>,
    events: Option<EventLog>,
    lookups: Lookups,
}

impl KvCache {
    /// A cache of `blocks` free blocks of `block_size` tokens.
    pub(crate) fn new(blocks: usize, block_size: usize, prefix_cache: bool, events: bool) -> Self {
        Self {
            block_size,
            pool: BlockPool::new(u32::try_from(blocks).unwrap_or(u32::MAX)),
            index: prefix_cache.then(|| PrefixIndex::new(blocks)),
            events: events.then(EventLog::new),
            lookups: Lookups::default(),
        }
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    /// Whether blocks are used again.
    pub(crate) fn reuses(&self) -> bool {
        self.index.is_some()
    }

    pub(crate) fn blocks_total(&self) -> usize {
        self.pool.total()
    }

    /// Blocks that nobody refers to.
    pub(crate) fn blocks_free(&self) -> usize {
        self.pool.free()
    }

    /// Of these, the ones that can be hit.
    pub(crate) fn blocks_cached(&self) -> usize {
        self.pool.reusable()
    }

    pub(crate) fn lookups(&self) -> &Lookups {
        &self.lookups
    }

    /// How many blocks of a chain, from its first on, can be hit.
    pub(crate) fn hits(&self, hashes: &[BlockHash]) -> usize {
        let Some(index) = &self.index else { return 0 };
        hashes
            .iter()
            .take_while(|hash| index.get(hash).is_some())
            .count()
    }

    /// The blocks of a chain's first hits.
    pub(crate) fn blocks_of<'a>(
        &'a self,
        hits: &'a [BlockHash],
    ) -> impl Iterator<Item = BlockId> + 'a {
        let index = self.index.as_ref();
        hits.iter().filter_map(move |hash| index?.get(hash))
    }

    /// Whether nobody refers to a block.
    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.pool.is_free(block)
    }

    /// Blocks of a new sequence: those of its hits, and `new` free ones after them.
    ///
    /// # Errors
    /// [`EngineError::OutOfBlocks`] if fewer are free; nothing is taken then.
    pub(crate) fn acquire(
        &mut self,
        hits: &[BlockHash],
        new: usize,
    ) -> Result<Vec<BlockId>, EngineError> {
        let mut blocks: Vec<BlockId> = self.blocks_of(hits).collect();
        // Referred to first: what is taken next must not be one of them.
        blocks.iter().for_each(|block| self.pool.share(*block));
        match self.take(new) {
            Ok(taken) => blocks.extend(taken),
            Err(error) => {
                self.release(blocks);
                return Err(error);
            }
        }
        Ok(blocks)
    }

    /// Takes `n` free blocks, or none.
    ///
    /// # Errors
    /// [`EngineError::OutOfBlocks`] if fewer are free.
    pub(crate) fn take(&mut self, n: usize) -> Result<Vec<BlockId>, EngineError> {
        if self.pool.free() < n {
            return Err(EngineError::OutOfBlocks {
                needed: n,
                free: self.pool.free(),
                total: self.pool.total(),
            });
        }
        let taken: Vec<(BlockId, Content)> = (0..n).filter_map(|_| self.pool.take()).collect();
        for (block, content) in &taken {
            if *content == Content::Reusable
                && let Some(hash) = self.index.as_mut().and_then(|index| index.evict(*block))
            {
                self.say_removed(hash);
            }
        }
        Ok(taken.into_iter().map(|(block, _)| block).collect())
    }

    /// Lets go of a sequence's blocks. The last is free first, so that the end of a prefix is evicted before its beginning.
    pub(crate) fn release(&mut self, blocks: Vec<BlockId>) {
        for block in blocks.into_iter().rev() {
            let content = match self.index.as_ref().is_some_and(|index| index.has(block)) {
                true => Content::Reusable,
                false => Content::Dead,
            };
            self.pool.give_back(block, content);
        }
    }

    /// Names blocks whose rows are all in the cache, so that they can be hit.
    pub(crate) fn store(&mut self, computed: &Computed<'_>) {
        let Some(index) = &mut self.index else { return };
        let mut parent = computed.parent;
        let mut stored: Option<KvEvent> = None;
        let tokens = computed.tokens.chunks_exact(self.block_size);
        let blocks = computed.blocks.iter().zip(computed.hashes).zip(tokens);
        for (i, ((block, hash), tokens)) in blocks.enumerate() {
            let opening = computed.opening.filter(|_| i == 0);
            let is_new = index.insert(*hash, *block, opening);
            if let Some(log) = &mut self.events {
                match (&mut stored, is_new) {
                    (
                        Some(KvEvent::BlockStored {
                            hashes, token_ids, ..
                        }),
                        true,
                    ) => {
                        hashes.push(hash.0);
                        token_ids.extend(tokens.iter().map(|t| t.0));
                    }
                    (_, true) => {
                        stored = Some(KvEvent::BlockStored {
                            hashes: vec![hash.0],
                            parent: parent.map(|hash| hash.0),
                            token_ids: tokens.iter().map(|t| t.0).collect(),
                            block_size: self.block_size,
                        });
                    }
                    (_, false) => {
                        if let Some(event) = stored.take() {
                            log.push(event);
                        }
                    }
                }
            }
            parent = Some(*hash);
        }
        if let (Some(log), Some(event)) = (&mut self.events, stored) {
            log.push(event);
        }
    }

    /// Counts how a prompt of `tokens` tokens fared, of which the first `hits` of its blocks `hashes` were hit.
    pub(crate) fn count(&mut self, tokens: usize, chain: Option<&Chain>, hits: usize) {
        let block = self.block_size as u64;
        let tokens = tokens as u64;
        // The last token is always computed.
        let whole = (tokens.saturating_sub(1)) / block;
        let hits = hits as u64;
        self.lookups.queries += tokens;
        self.lookups.hits += hits * block;
        let mut miss = |reason: MissReason, n: u64| self.lookups.misses[reason as usize] += n;
        let (Some(index), Some(chain)) = (&self.index, chain) else {
            return miss(MissReason::Disabled, tokens);
        };
        miss(MissReason::Short, tokens - whole * block);
        if hits < whole
            && let Some(first) = chain.hashes().get(hits as usize)
        {
            let opening = chain.opening().filter(|_| hits == 0);
            miss(index.reason(first, opening), (whole - hits) * block);
        }
    }

    /// Blocks whose rows cannot be trusted are not hit any more, whoever refers to them.
    pub(crate) fn forget(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            if let Some(hash) = self.index.as_mut().and_then(|index| index.remove(*block)) {
                self.pool.forget(*block);
                self.say_removed(hash);
            }
        }
    }

    /// No block is hit any more.
    pub(crate) fn clear(&mut self) {
        let Some(index) = &mut self.index else { return };
        for block in index.clear() {
            self.pool.forget(block);
        }
        if let Some(log) = &mut self.events {
            log.push(KvEvent::AllBlocksCleared);
        }
    }

    /// What happened to reusable blocks since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<KvEvent> {
        self.events.as_mut().map(EventLog::take).unwrap_or_default()
    }

    fn say_removed(&mut self, hash: BlockHash) {
        if let Some(log) = &mut self.events {
            let hashes = vec![hash.0];
            log.push(KvEvent::BlockRemoved { hashes });
        }
    }
}
