//! Which block holds which content, and why a prompt's beginning was not found.

use std::collections::{HashMap, VecDeque};

use super::hash::BlockHash;
use super::pool::BlockId;

/// Names of evicted blocks that are remembered, to tell a miss by eviction from one by novelty.
const EVICTED_MAX: usize = 1 << 16;

/// Number of [`MissReason`]s.
pub(crate) const MISS_REASONS: usize = 5;

/// Why tokens of a prompt had to be computed. A prompt's missing blocks all count under the reason of the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissReason {
    /// This content was not here before, as far as is remembered.
    Cold,
    /// It was here, and its block was needed for something else.
    Evicted,
    /// It is here, under another salt.
    Salt,
    /// Not a whole block, or the last token of the prompt: always computed.
    Short,
    /// The engine was started without a prefix cache.
    Disabled,
}

impl MissReason {
    /// All of them, in the order of the counters.
    pub const ALL: [Self; MISS_REASONS] = [
        Self::Cold,
        Self::Evicted,
        Self::Salt,
        Self::Short,
        Self::Disabled,
    ];

    /// The label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Evicted => "evicted",
            Self::Salt => "salt",
            Self::Short => "short",
            Self::Disabled => "disabled",
        }
    }
}

/// Blocks by name, and names by block.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    blocks: HashMap<BlockHash, BlockId>,
    /// By block.
    names: Vec<Option<Name>>,
    /// How many first blocks have this name if salts are left out.
    openings: HashMap<BlockHash, usize>,
    evicted: Evicted,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    hash: BlockHash,
    /// Of a sequence's first block.
    opening: Option<BlockHash>,
}

impl PrefixIndex {
    /// An empty index over `blocks` blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            blocks: HashMap::new(),
            names: vec![None; blocks],
            openings: HashMap::new(),
            evicted: Evicted::default(),
        }
    }

    /// The block that holds this content.
    pub(crate) fn get(&self, hash: &BlockHash) -> Option<BlockId> {
        self.blocks.get(hash).copied()
    }

    /// Whether a block has a name.
    pub(crate) fn has(&self, block: BlockId) -> bool {
        self.names[block.0 as usize].is_some()
    }

    /// Names a block; says whether it now has the name. If another block holds the same content already, that one keeps it.
    ///
    /// # Panics
    /// If the block has a name: its rows would have changed under those who share it.
    pub(crate) fn insert(
        &mut self,
        hash: BlockHash,
        block: BlockId,
        opening: Option<BlockHash>,
    ) -> bool {
        assert!(!self.has(block), "block {} has a name already", block.0);
        if self.blocks.contains_key(&hash) {
            return false;
        }
        self.blocks.insert(hash, block);
        self.names[block.0 as usize] = Some(Name { hash, opening });
        self.evicted.forget(&hash);
        if let Some(opening) = opening {
            *self.openings.entry(opening).or_insert(0) += 1;
        }
        true
    }

    /// Takes a block's name away.
    pub(crate) fn remove(&mut self, block: BlockId) -> Option<BlockHash> {
        let name = self.names[block.0 as usize].take()?;
        self.blocks.remove(&name.hash);
        if let Some(opening) = name.opening
            && let Some(count) = self.openings.get_mut(&opening)
        {
            *count -= 1;
            if *count == 0 {
                self.openings.remove(&opening);
            }
        }
        Some(name.hash)
    }

    /// The same because the block is needed for something else.
    pub(crate) fn evict(&mut self, block: BlockId) -> Option<BlockHash> {
        let hash = self.remove(block)?;
        self.evicted.remember(hash);
        Some(hash)
    }

    /// Takes all names away, and returns the blocks that had one.
    pub(crate) fn clear(&mut self) -> Vec<BlockId> {
        self.blocks.clear();
        // In order of their numbers, so that what follows does not depend on a hash map's.
        let named = self.names.iter_mut().enumerate();
        let blocks = named
            .filter_map(|(block, name)| name.take().map(|_| BlockId(block as u32)))
            .collect();
        self.openings.clear();
        self.evicted = Evicted::default();
        blocks
    }

    /// Why the first block that misses is missing; `opening` if it is a sequence's first.
    pub(crate) fn reason(&self, hash: &BlockHash, opening: Option<BlockHash>) -> MissReason {
        if self.evicted.holds(hash) {
            MissReason::Evicted
        } else if opening.is_some_and(|o| self.openings.contains_key(&o)) {
            MissReason::Salt
        } else {
            MissReason::Cold
        }
    }
}

/// The last names that were evicted.
#[derive(Debug, Default)]
struct Evicted {
    times: HashMap<BlockHash, u64>,
    order: VecDeque<(u64, BlockHash)>,
    clock: u64,
}

impl Evicted {
    fn holds(&self, hash: &BlockHash) -> bool {
        self.times.contains_key(hash)
    }

    fn forget(&mut self, hash: &BlockHash) {
        self.times.remove(hash);
    }

    fn remember(&mut self, hash: BlockHash) {
        self.clock += 1;
        self.times.insert(hash, self.clock);
        self.order.push_back((self.clock, hash));
        if self.order.len() > EVICTED_MAX
            && let Some((time, oldest)) = self.order.pop_front()
            && self.times.get(&oldest) == Some(&time)
        {
            self.times.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockId = BlockId(0);

    fn hash(byte: u8) -> BlockHash {
        BlockHash([byte; 32])
    }

    #[test]
    fn content_has_one_block_and_the_first_keeps_it() {
        let mut index = PrefixIndex::new(2);
        assert!(index.insert(hash(1), BLOCK, None));
        assert!(!index.insert(hash(1), BlockId(1), None));
        assert_eq!(index.get(&hash(1)), Some(BLOCK));
        assert!(index.has(BLOCK) && !index.has(BlockId(1)));
        assert_eq!(index.remove(BLOCK), Some(hash(1)));
        assert_eq!(index.get(&hash(1)), None);
    }

    #[test]
    fn a_miss_has_a_reason() {
        let mut index = PrefixIndex::new(2);
        let opening = Some(hash(9));
        assert_eq!(index.reason(&hash(1), opening), MissReason::Cold);
        index.insert(hash(1), BLOCK, opening);
        assert_eq!(index.reason(&hash(2), opening), MissReason::Salt);
        assert_eq!(index.reason(&hash(2), None), MissReason::Cold);
        index.evict(BLOCK);
        assert_eq!(index.reason(&hash(1), opening), MissReason::Evicted);
        assert_eq!(index.reason(&hash(2), opening), MissReason::Cold);
        index.insert(hash(1), BLOCK, opening);
        index.clear();
        assert_eq!(index.reason(&hash(1), opening), MissReason::Cold);
    }

    #[test]
    fn only_so_many_evictions_are_remembered() {
        let mut evicted = Evicted::default();
        let name = |i: u64| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&i.to_le_bytes());
            BlockHash(bytes)
        };
        (0..EVICTED_MAX as u64 + 5).for_each(|i| evicted.remember(name(i)));
        assert!(!evicted.holds(&name(4)) && evicted.holds(&name(5)));
        assert_eq!(evicted.times.len(), EVICTED_MAX);
    }
}
