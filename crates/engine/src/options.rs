//! How an engine is set up, and what follows from it before anything is loaded.

use glim_model::Inventory;
use glim_plan::{CacheGeometry, Caps, Cost, Load, StepKind, arrange, plan_cost};

use crate::buckets::{DECODE_BUCKETS, PREFILL_BUCKETS, bucket_for, buckets_for};
use crate::budget::{Budget, Wanted, largest, largest_context};
use crate::error::EngineError;
use crate::steps::{Head, Key, RankPlans, StepRequest, Steps, largest_plan};

/// Sequences of one prefill step.
pub(crate) const MAX_PREFILL_SEQS: usize = 8;

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Longest sequence, prompt and answer, in tokens; `None`: the model's own limit, but at most [`EngineOptions::DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Tokens in a cache block.
    pub block_size: usize,
    /// Prompt tokens that one step runs at most.
    pub max_chunk: usize,
    /// Requests that run at a time.
    pub max_num_seqs: usize,
    /// Bytes for weights, caches and arena together; `None`: whatever whole contexts for all sequences take.
    pub memory: Option<u64>,
    /// Tokens that the caches hold together, over all requests; `None`: whole contexts for all sequences. At least one whole context.
    pub cache_tokens: Option<usize>,
    /// Use cached rows of a prompt's beginning again, if another request had the same.
    pub prefix_cache: bool,
    /// Requests that wait beyond the `max_num_seqs` that run; `None`: any number.
    pub max_queue: Option<usize>,
    /// Keep a log of what happens to reusable blocks, for [`crate::Engine::take_kv_events`].
    pub kv_events: bool,
    /// Of a model that is cut over ranks, run this one by itself, whose backend stands in for the others at collectives. It is for
    /// measuring a rank; its tokens mean nothing.
    pub lone_rank: Option<usize>,
}

impl EngineOptions {
    /// Context when none is asked for: caches are allocated for the whole of it.
    pub const DEFAULT_CONTEXT: usize = 8192;
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: None,
            block_size: 64,
            max_chunk: 256,
            max_num_seqs: 1,
            memory: None,
            cache_tokens: None,
            prefix_cache: true,
            max_queue: None,
            kv_events: false,
            lone_rank: None,
        }
    }
}

/// What is decided before anything is loaded: sizes, plans, and the memory they take.
pub struct EnginePlan {
    pub(crate) inventory: Inventory,
    pub(crate) options: EngineOptions,
    pub(crate) geometry: CacheGeometry,
    pub(crate) context: usize,
    pub(crate) prefill_buckets: Vec<usize>,
    pub(crate) decode_buckets: Vec<usize>,
    pub(crate) plans: Vec<(Key, RankPlans)>,
    pub(crate) budgets: Vec<Budget>,
}

impl EnginePlan {
    /// Makes and checks the plans, and works out the memory.
    ///
    /// # Errors
    /// If the context is impossible, a plan cannot be made or breaks a rule, or the memory is too small for one context.
    pub fn new(
        inventory: Inventory,
        caps: &Caps,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let max = inventory.config().max_context;
        let context = options
            .context
            .unwrap_or(max.min(EngineOptions::DEFAULT_CONTEXT));
        if context == 0 || context > max {
            return Err(EngineError::BadContext {
                found: context,
                max,
            });
        }
        let block_size = options.block_size;
        let geometry = CacheGeometry {
            block_size,
            max_blocks: context.div_ceil(block_size),
        };
        let max_num_seqs = options.max_num_seqs;
        let most = *DECODE_BUCKETS.last().unwrap_or(&1);
        if max_num_seqs == 0 || max_num_seqs > most {
            return Err(EngineError::BadSequences {
                found: max_num_seqs,
                max: most,
            });
        }
        let prefill_buckets = buckets_for(PREFILL_BUCKETS, options.max_chunk);
        let decode_buckets = buckets_for(DECODE_BUCKETS, max_num_seqs);
        let sequences = max_num_seqs.min(MAX_PREFILL_SEQS);
        let prefill = prefill_buckets.iter().map(|tokens| StepKind::Prefill {
            tokens: *tokens,
            sequences,
        });
        let decode = decode_buckets
            .iter()
            .map(|rows| StepKind::Decode { rows: *rows });
        let kinds: Vec<StepKind> = prefill.chain(decode).collect();
        let emit = StepRequest {
            geometry,
            sequence_slots: max_num_seqs,
            lone_rank: options.lone_rank,
        };
        let plans = Steps::plans(&inventory, caps, &kinds, emit)?;
        let wanted = Wanted {
            max_num_seqs,
            cache_tokens: options.cache_tokens,
            memory: options.memory,
        };
        let budgets = Budget::of_ranks(&inventory, &plans, geometry, wanted)?;
        Ok(Self {
            inventory,
            options,
            geometry,
            context,
            prefill_buckets,
            decode_buckets,
            plans,
            budgets,
        })
    }

    /// The memory that [`crate::Engine::load`] will take; of several ranks, that of the one that takes most.
    pub fn budget(&self) -> &Budget {
        largest(&self.budgets)
    }

    /// The same for each rank.
    pub fn rank_budgets(&self) -> &[Budget] {
        &self.budgets
    }

    /// The longest context, in tokens, that fits into `memory` bytes on every rank beside its weights; `None` if none does.
    ///
    /// # Errors
    /// If a plan cannot be made.
    pub fn largest_context(&self, caps: &Caps, memory: u64) -> Result<Option<usize>, EngineError> {
        let (block_size, slots) = (self.geometry.block_size, self.options.max_num_seqs);
        let weights = self.budgets.iter().map(|b| b.weights).max().unwrap_or(0);
        let kinds: Vec<StepKind> = self.plans.iter().map(|((kind, _), _)| *kind).collect();
        let largest = kinds.into_iter().max_by_key(|kind| kind.tokens());
        let arena = |max_blocks| {
            let geometry = CacheGeometry {
                block_size,
                max_blocks,
            };
            let plan =
                largest.map(|kind| largest_plan(&self.inventory, caps, geometry, kind, slots));
            Ok(plan
                .transpose()?
                .map_or(0, |plan| arrange(&plan).arena_bytes as u64))
        };
        let config = self.inventory.config();
        largest_context(config, weights, memory, (block_size, slots), arena)
    }

    /// What a decode step of `rows` rows after `context` tokens must move and do, on each rank; `None` if there is no such step.
    pub fn decode_cost(&self, rows: usize, context: usize) -> Option<Vec<Cost>> {
        let kind = StepKind::Decode {
            rows: bucket_for(&self.decode_buckets, rows),
        };
        let load = Load {
            rows,
            outputs: rows,
            sequences: rows,
            context: context + 1,
        };
        let mut plans = self.plans.iter();
        let (_, plans) = plans.find(|(key, _)| *key == (kind, Head::Tokens))?;
        Some(plans.iter().map(|plan| plan_cost(plan, &load)).collect())
    }

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }
}
