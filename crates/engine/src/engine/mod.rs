//! The engine: one model on one backend, many requests, one step after the other.
//!
//! [`Engine::submit`] queues a request, [`Engine::step`] runs a tick of the [scheduler](crate::scheduler) and says what came of
//! it. What a request gets does not depend on who else is served: each row of a step is computed from its own sequence alone,
//! and its draws are numbered by its own positions. Nor does it depend on what of it was cached, or whether it was preempted.

mod active;
mod ahead;
mod generate;
mod inside;
mod serve;

use std::collections::HashMap;
use std::sync::Arc;

use glim_model::{Inventory, states};
use glim_plan::collective::Group;
use glim_plan::{Allocated, Backend, CacheGeometry, Caps, WeightSource, weight_groups};
use glim_text::TokenId;

use crate::budget::{Budget, largest};
use crate::error::EngineError;
use crate::kv::{KvCache, KvEvent, MissReason};
use crate::options::{EngineOptions, EnginePlan, MAX_PREFILL_SEQS};
use crate::ranks::{LoadStage, Rank, Ranks, StateSizes};
use crate::scheduler::{Limits, RequestId, Scheduler};
use crate::stats::{EngineStats, StepSize};
use crate::steps::{CACHE_TYPE, Steps};
use active::Active;
use ahead::InFlight;

/// One model on one backend.
pub struct Engine {
    inventory: Inventory,
    ranks: Ranks,
    geometry: CacheGeometry,
    options: EngineOptions,
    context: usize,
    budgets: Vec<Budget>,
    allocated: Vec<Option<Allocated>>,
    prefill_buckets: Vec<usize>,
    decode_buckets: Vec<usize>,
    prefill_seqs: usize,
    steps: Steps,
    scheduler: Scheduler,
    /// Requests that are not over.
    active: HashMap<RequestId, Active>,
    /// The next tick's decode step, if it runs already.
    ahead: Option<InFlight>,
    launches_ahead: bool,
    steps_run: u64,
    last_step: StepSize,
}

impl Engine {
    /// [`EnginePlan::new`] and [`Engine::load`] in one.
    ///
    /// # Errors
    /// As these.
    pub fn new(
        inventory: Inventory,
        weights: &dyn WeightSource,
        backend: Box<dyn Backend>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let plan = EnginePlan::new(inventory, &backend.caps(), options)?;
        Self::load(plan, weights, backend)
    }

    /// Loads the weights, allocates the caches and prepares the steps.
    ///
    /// # Errors
    /// If the backend cannot load, allocate or prepare.
    pub fn load(
        plan: EnginePlan,
        weights: &dyn WeightSource,
        backend: Box<dyn Backend>,
    ) -> Result<Self, EngineError> {
        Self::load_ranks(plan, vec![Rank { backend, weights }], None)
    }

    /// The same for a model that is cut over ranks: one of `ranks` for each, in their order, whose backends meet in `group`.
    ///
    /// # Errors
    /// If there are not as many ranks as the model is cut over, or one cannot load, allocate or prepare.
    pub fn load_ranks(
        plan: EnginePlan,
        ranks: Vec<Rank<'_>>,
        group: Option<Arc<dyn Group>>,
    ) -> Result<Self, EngineError> {
        Self::load_ranks_told(plan, ranks, group, &|_| ())
    }

    /// The same; `told` hears what is about to be done.
    ///
    /// # Errors
    /// As [`Self::load_ranks`].
    pub fn load_ranks_told(
        plan: EnginePlan,
        ranks: Vec<Rank<'_>>,
        group: Option<Arc<dyn Group>>,
        told: &dyn Fn(LoadStage),
    ) -> Result<Self, EngineError> {
        let EnginePlan {
            inventory,
            options,
            geometry,
            context,
            budgets,
            ..
        } = plan;
        let max_num_seqs = options.max_num_seqs;
        let expected = match options.lone_rank {
            Some(_) => 1,
            None => inventory.world_size(),
        };
        let found = ranks.len();
        let together = group.as_ref().map_or(1, |group| group.world_size());
        if (found, together) != (expected, expected) {
            return Err(EngineError::BadRanks {
                found,
                together,
                expected,
            });
        }
        let groups = (0..expected)
            .map(|rank| weight_groups(plan.plans.iter().map(|(_, plans)| &plans[rank])));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let decls = states(inventory.config(), CACHE_TYPE, CACHE_TYPE);
        let state = StateSizes {
            decls: &decls,
            block_size: geometry.block_size,
            blocks: largest(&budgets).blocks,
            sequence_slots: max_num_seqs,
        };
        told(LoadStage::Weights);
        let mut ranks = Ranks::load(ranks, group, &groups, &state)?;
        let launches_ahead = ranks.caps().launch_ahead;
        told(LoadStage::Steps);
        let steps = Steps::prepare(&mut ranks, plan.plans)?;
        told(LoadStage::Memory);
        let allocated = steps.seal(&mut ranks)?;
        let prefill_seqs = max_num_seqs.min(MAX_PREFILL_SEQS);
        let limits = Limits {
            max_num_seqs,
            max_chunk: options
                .max_chunk
                .clamp(1, plan.prefill_buckets.last().copied().unwrap_or(1)),
            max_prefill_seqs: prefill_seqs,
            max_queue: options.max_queue,
        };
        let kv = KvCache::new(
            largest(&budgets).blocks,
            geometry.block_size,
            options.prefix_cache,
            options.kv_events,
        );
        Ok(Self {
            scheduler: Scheduler::new(limits, kv),
            inventory,
            ranks,
            geometry,
            context,
            budgets,
            allocated,
            prefill_buckets: plan.prefill_buckets,
            decode_buckets: plan.decode_buckets,
            prefill_seqs,
            steps,
            active: HashMap::new(),
            ahead: None,
            launches_ahead,
            options,
            steps_run: 0,
            last_step: StepSize::default(),
        })
    }

    /// The model.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What runs it.
    pub fn caps(&self) -> Caps {
        self.ranks.caps()
    }

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Rows of the head: ids from here on are no tokens.
    pub fn vocab_size(&self) -> usize {
        self.inventory.config().vocab_size
    }

    /// What each rank's backend says that it holds for the engine's steps, in the order of ranks; `None` from one that keeps no account.
    pub fn allocated(&self) -> &[Option<Allocated>] {
        &self.allocated
    }

    /// Memory as planned; of several ranks, by the one that has most.
    pub fn budget(&self) -> &Budget {
        largest(&self.budgets)
    }

    /// Requests that wait, and requests that run.
    pub fn counts(&self) -> (usize, usize) {
        self.scheduler.counts()
    }

    /// How it stands.
    pub fn stats(&self) -> EngineStats {
        let (waiting, running) = self.scheduler.counts();
        let kv = self.scheduler.kv();
        let lookups = kv.lookups();
        let miss = |reason: MissReason| (reason.as_str(), lookups.misses[reason as usize]);
        EngineStats {
            running,
            waiting,
            blocks_total: kv.blocks_total(),
            blocks_used: kv.blocks_total() - kv.blocks_free(),
            blocks_cached: kv.blocks_cached(),
            block_size: kv.block_size(),
            prefix_queries: lookups.queries,
            prefix_hits: lookups.hits,
            preemptions: self.scheduler.preemptions(),
            steps: self.steps_run,
            last_step: self.last_step,
            cache_misses: MissReason::ALL.map(miss),
        }
    }

    /// What happened to reusable blocks since the last call, in order; nothing unless [`EngineOptions::kv_events`] is set.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        self.scheduler.kv_mut().take_events()
    }

    /// Forgets what is in the cache: no request hits what was computed before.
    pub fn clear_prefix_cache(&mut self) {
        self.scheduler.clear_prefix_cache();
    }

    /// Refuses an empty prompt and ids that the model does not have.
    pub(crate) fn check_prompt(&self, prompt: &[TokenId]) -> Result<(), EngineError> {
        let vocab_size = self.inventory.config().vocab_size;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        match prompt.iter().position(|t| t.0 as usize >= vocab_size) {
            Some(position) => Err(EngineError::BadToken {
                id: prompt[position].0,
                position,
                vocab_size,
            }),
            None => Ok(()),
        }
    }
}
