//! Memory, worked out before anything is loaded.

use glim_model::{Config, Inventory, states};
use glim_plan::{BufferKind, CacheGeometry, GgmlType, Plan, StateKind, arrange};

use crate::error::EngineError;
use crate::steps::{Key, RankPlans};

/// What an engine will allocate, in bytes, and how much context that makes. Of several ranks: what the one that needs most will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Weights that the plans read, as stored.
    pub weights: u64,
    /// Latent rows of all blocks.
    pub latent_cache: u64,
    /// Index keys of all blocks.
    pub index_cache: u64,
    /// Temporaries and results of the largest step.
    pub arena: u64,
    /// Blocks.
    pub blocks: usize,
    /// Tokens that the blocks hold, over all sequences.
    pub cache_tokens: usize,
}

impl Budget {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.latent_cache + self.index_cache + self.arena
    }

    /// The budget of these plans, with blocks for `max_num_seqs` whole contexts, or as many as fit into `memory`.
    pub(crate) fn new(
        inventory: &Inventory,
        plans: &[(Key, RankPlans)],
        geometry: CacheGeometry,
        max_num_seqs: usize,
        memory: Option<u64>,
    ) -> Result<Self, EngineError> {
        // Of the rank that needs most: shares can be uneven, but all have as many blocks.
        let per_rank = (0..inventory.world_size()).map(|rank| {
            let own: Vec<&Plan> = plans.iter().map(|(_, plans)| &plans[rank]).collect();
            let arenas = own.iter().map(|p| arrange(p).arena_bytes as u64);
            (weight_bytes(&own), arenas.max().unwrap_or(0))
        });
        let (weights, arena) = per_rank.max_by_key(|(w, a)| w + a).unwrap_or_default();
        let (latent, index) = bytes_per_token(inventory.config());
        let block = (latent + index) * geometry.block_size as u64;
        let wanted = geometry.max_blocks * max_num_seqs;
        let blocks = match memory {
            None => wanted,
            Some(memory) => {
                let room = memory.saturating_sub(weights + arena) / block.max(1);
                // One whole context must fit, or the longest allowed request never could.
                let least = geometry.max_blocks;
                if room < least as u64 {
                    let needed = weights + arena + block * least as u64;
                    return Err(EngineError::OutOfMemory {
                        needed,
                        available: memory,
                    });
                }
                wanted.min(usize::try_from(room).unwrap_or(wanted))
            }
        };
        let tokens = (blocks * geometry.block_size) as u64;
        Ok(Self {
            weights,
            latent_cache: latent * tokens,
            index_cache: index * tokens,
            arena,
            blocks,
            cache_tokens: blocks * geometry.block_size,
        })
    }
}

/// Bytes of the weights that the plans read, each once.
fn weight_bytes(plans: &[&Plan]) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let weights = plans
        .iter()
        .flat_map(|p| p.buffers_where(|k| *k == BufferKind::Weight));
    weights
        .filter(|(_, b)| seen.insert(&b.name))
        .map(|(_, b)| b.bytes() as u64)
        .sum()
}

/// Cache bytes of one token: latent rows, index keys.
fn bytes_per_token(config: &Config) -> (u64, u64) {
    let decls = states(config, GgmlType::F32, GgmlType::F32);
    let sum = |latent: bool| {
        let kind = |kind: &StateKind| match kind {
            StateKind::Paged { bytes_per_token } => *bytes_per_token as u64,
            StateKind::Slot { .. } => 0,
        };
        let of = decls
            .iter()
            .filter(|d| d.name.starts_with("latent") == latent);
        of.map(|d| kind(&d.kind)).sum()
    };
    (sum(true), sum(false))
}
