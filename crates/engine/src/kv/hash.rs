//! Names for the content of cache blocks.
//!
//! A row of the cache depends on all tokens up to its own, so a block's name is a chain: BLAKE3 of its tokens, keyed by the name
//! of the block before it. The first block's key is made of the salt of the request: blocks are shared under equal salts only,
//! and whoever does not know a salt cannot tell by timing what was asked under it. The idea is that of vLLM's
//! `kv_cache_utils.hash_block_tokens`.

use glim_text::TokenId;

/// Domain of the key of first blocks.
const ROOT: &str = "glim prefix cache 1: root";

/// Names the content of a block, with all that stands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// The key of first blocks under a salt.
    pub(crate) fn root(salt: Option<&str>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT);
        // No salt and an empty one are two things.
        hasher.update(&[u8::from(salt.is_some())]);
        hasher.update(salt.unwrap_or_default().as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// The name of the block of `tokens` that follows this one.
    pub(crate) fn child(&self, tokens: &[TokenId]) -> Self {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.0.to_le_bytes()).collect();
        Self(*blake3::keyed_hash(&self.0, &bytes).as_bytes())
    }
}

/// The names of a sequence's whole blocks, in order.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    root: BlockHash,
    hashes: Vec<BlockHash>,
    /// The first block's name if there were no salt: tells a miss by salt from one by content.
    opening: Option<BlockHash>,
}

impl Chain {
    /// Of a sequence that has no tokens yet.
    pub(crate) fn new(salt: Option<&str>) -> Self {
        Self {
            root: BlockHash::root(salt),
            hashes: Vec::new(),
            opening: None,
        }
    }

    /// Names the whole blocks of `tokens` that have no name yet. The tokens before them must be those of the last time.
    pub(crate) fn extend(&mut self, tokens: &[TokenId], block_size: usize) {
        let named = self.hashes.len() * block_size;
        for block in tokens[named..].chunks_exact(block_size) {
            if self.hashes.is_empty() {
                self.opening = Some(BlockHash::root(None).child(block));
            }
            let parent = self.hashes.last().unwrap_or(&self.root);
            self.hashes.push(parent.child(block));
        }
    }

    /// The names.
    pub(crate) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// The first block's name without a salt; `None` if there is no whole block.
    pub(crate) fn opening(&self) -> Option<BlockHash> {
        self.opening
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(salt: Option<&str>, tokens: &[u32]) -> Chain {
        let tokens: Vec<TokenId> = tokens.iter().map(|t| TokenId(*t)).collect();
        let mut chain = Chain::new(salt);
        chain.extend(&tokens, 2);
        chain
    }

    #[test]
    fn a_block_is_named_by_all_tokens_up_to_its_end() {
        let a = chain(None, &[1, 2, 3, 4, 5]);
        let b = chain(None, &[1, 2, 3, 5]);
        let c = chain(None, &[7, 2, 3, 4]);
        assert_eq!(a.hashes().len(), 2, "only whole blocks have names");
        assert_eq!(a.hashes()[0], b.hashes()[0]);
        assert_ne!(a.hashes()[1], b.hashes()[1]);
        assert_ne!(a.hashes()[1], c.hashes()[1], "what stands before counts");
    }

    #[test]
    fn a_chain_grows_to_what_it_would_be_at_once() {
        let mut grown = chain(None, &[1, 2, 3]);
        let tokens = [1, 2, 3, 4, 5, 6].map(TokenId);
        for n in 4..=6 {
            grown.extend(&tokens[..n], 2);
        }
        assert_eq!(grown.hashes(), chain(None, &[1, 2, 3, 4, 5, 6]).hashes());
    }

    #[test]
    fn salts_separate_and_the_opening_does_not_know_them() {
        let chains = [None, Some(""), Some("a"), Some("b")].map(|salt| chain(salt, &[1, 2]));
        for (i, a) in chains.iter().enumerate() {
            for b in &chains[..i] {
                assert_ne!(a.hashes()[0], b.hashes()[0]);
                assert_eq!(a.opening(), b.opening());
            }
        }
        assert_eq!(chain(None, &[1]).opening(), None);
    }
}
