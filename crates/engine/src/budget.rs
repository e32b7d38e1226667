//! Memory, worked out before anything is loaded.

use glim_model::{Config, Inventory, states};
use glim_plan::{BufferKind, CacheGeometry, GgmlType, Plan, StateKind, arrange};

use crate::error::EngineError;
use crate::steps::{Key, RankPlans};

/// What one rank will allocate, in bytes, and how much context that makes.
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

/// What the caches are to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Whole contexts, if no tokens are named.
    pub(crate) max_num_seqs: usize,
    /// Tokens over all sequences.
    pub(crate) cache_tokens: Option<usize>,
    /// Bytes for everything; `None`: any number.
    pub(crate) memory: Option<u64>,
}

impl Budget {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.latent_cache + self.index_cache + self.arena
    }

    /// Each rank's budget for these plans, with blocks for the tokens wanted, or as many as fit into the memory of the rank that has
    /// least room: all have as many blocks.
    pub(crate) fn of_ranks(
        inventory: &Inventory,
        plans: &[(Key, RankPlans)],
        geometry: CacheGeometry,
        wanted: Wanted,
    ) -> Result<Vec<Self>, EngineError> {
        let ranks = plans.first().map_or(0, |(_, plans)| plans.len());
        let fixed = (0..ranks).map(|rank| {
            let own: Vec<&Plan> = plans.iter().map(|(_, plans)| &plans[rank]).collect();
            let arenas = own.iter().map(|p| arrange(p).arena_bytes as u64);
            (weight_bytes(&own), arenas.max().unwrap_or(0))
        });
        let fixed: Vec<(u64, u64)> = fixed.collect();
        let most = fixed.iter().map(|(weights, arena)| weights + arena).max();
        let most = most.unwrap_or(0);
        let (latent, index) = bytes_per_token(inventory.config());
        let block = (latent + index) * geometry.block_size as u64;
        let memory = wanted.memory;
        let wanted = match wanted.cache_tokens {
            None => geometry.max_blocks * wanted.max_num_seqs,
            Some(tokens) => tokens.div_ceil(geometry.block_size),
        };
        // One whole context must fit, or the longest allowed request never could.
        if wanted < geometry.max_blocks {
            return Err(EngineError::BadCache {
                found: wanted * geometry.block_size,
                least: geometry.max_blocks * geometry.block_size,
            });
        }
        let blocks = match memory {
            None => wanted,
            Some(memory) => {
                let room = memory.saturating_sub(most) / block.max(1);
                let least = geometry.max_blocks;
                if room < least as u64 {
                    let needed = most + block * least as u64;
                    return Err(EngineError::OutOfMemory {
                        needed,
                        available: memory,
                    });
                }
                wanted.min(usize::try_from(room).unwrap_or(wanted))
            }
        };
        let tokens = (blocks * geometry.block_size) as u64;
        let budget = |(weights, arena)| Self {
            weights,
            latent_cache: latent * tokens,
            index_cache: index * tokens,
            arena,
            blocks,
            cache_tokens: blocks * geometry.block_size,
        };
        Ok(fixed.into_iter().map(budget).collect())
    }
}

/// The longest context, in whole blocks, for which `max_num_seqs` caches and the arena fit into `memory` beside `weights` on a rank;
/// `None` if not even one block does. `arena` gives the arena's bytes for a number of blocks, which grow with it.
pub(crate) fn largest_context(
    config: &Config,
    weights: u64,
    memory: u64,
    (block_size, max_num_seqs): (usize, usize),
    mut arena: impl FnMut(usize) -> Result<u64, EngineError>,
) -> Result<Option<usize>, EngineError> {
    let (latent, index) = bytes_per_token(config);
    let block = (latent + index) * (block_size * max_num_seqs) as u64;
    let mut fits = |blocks: usize| -> Result<bool, EngineError> {
        Ok(weights + block * blocks as u64 + arena(blocks)? <= memory)
    };
    let (mut low, mut high) = (0, config.max_context.div_ceil(block_size) + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    let tokens = (low * block_size).min(config.max_context);
    Ok((low > 0).then_some(tokens))
}

/// Of the rank that takes most. There is one rank at least.
pub(crate) fn largest(budgets: &[Budget]) -> &Budget {
    budgets
        .iter()
        .max_by_key(|budget| budget.total())
        .unwrap_or(&budgets[0])
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
