//! The engine: one model on one backend, many requests, one step after the other.
//!
//! [`Engine::submit`] queues a request, [`Engine::step`] runs a tick of the [scheduler](crate::scheduler) and says what came of
//! it. What a request gets does not depend on who else is served: each row of a step is computed from its own sequence alone,
//! and its draws are numbered by its own positions.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use glim_model::{Inventory, names, states};
use glim_plan::collective::Group;
use glim_plan::sample::{SampleParams, TOKEN_CORRUPT, TOKEN_NONE_ALLOWED};
use glim_plan::{
    Backend, CacheGeometry, Caps, Plan, ReadTarget, StepKind, StepResults, WeightSource, arrange,
    weight_groups,
};
use glim_text::TokenId;

use crate::block_pool::BlockPool;
use crate::buckets::{DECODE_BUCKETS, PREFILL_BUCKETS, bucket_for, buckets_for};
use crate::budget::{Budget, largest_context};
use crate::error::EngineError;
use crate::ranks::{Rank, Ranks, StateSizes};
use crate::request::{Event, FinishReason, GenerateRequest, Generation};
use crate::sampler::{Drawn, History, draw};
use crate::scheduler::{Limits, RequestId, Scheduler, Tick};
use crate::sequence::Sequence;
use crate::steps::{
    BatchRow, CACHE_TYPE, CARRIED, Draw, Head, Key, Prepared, RankPlans, Steps, every_row_plan,
    largest_plan,
};

/// Sequences of one prefill step.
const MAX_PREFILL_SEQS: usize = 8;

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
        }
    }
}

/// What is decided before anything is loaded: sizes, plans, and the memory they take.
pub struct EnginePlan {
    inventory: Inventory,
    options: EngineOptions,
    geometry: CacheGeometry,
    context: usize,
    prefill_buckets: Vec<usize>,
    decode_buckets: Vec<usize>,
    plans: Vec<(Key, RankPlans)>,
    budgets: Vec<Budget>,
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
        let plans = Steps::plans(&inventory, caps, geometry, &kinds, max_num_seqs)?;
        let budgets = Budget::of_ranks(&inventory, &plans, geometry, max_num_seqs, options.memory)?;
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

    /// The memory that [`Engine::load`] will take; of several ranks, that of the one that takes most.
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

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }
}

/// A request that has been submitted and is not over.
struct Active {
    request: GenerateRequest,
    history: History,
    sequence: Sequence,
    /// Slot of carries, while it runs.
    slot: Option<usize>,
    limit: usize,
    /// Tokens that may be drawn, and the same without stop tokens, while `min_tokens` is not reached.
    mask: Vec<u32>,
    early_mask: Option<Vec<u32>>,
    /// The last token, if the host has drawn it rather than the step.
    next: Option<TokenId>,
}

impl Active {
    fn mask(&self) -> &[u32] {
        let early = self.history.output().len() < self.request.sampling.min_tokens;
        self.early_mask
            .as_ref()
            .filter(|_| early)
            .unwrap_or(&self.mask)
    }

    /// For the token after `computed` tokens.
    fn params(&self, computed: usize) -> SampleParams {
        let s = &self.request.sampling;
        SampleParams {
            temperature: s.temperature,
            top_k: s.top_k as usize,
            top_p: s.top_p,
            min_p: s.min_p,
            seed: s.seed,
            choice: s.choice,
            position: computed as u32,
        }
    }
}

/// One model on one backend.
pub struct Engine {
    inventory: Inventory,
    ranks: Ranks,
    geometry: CacheGeometry,
    options: EngineOptions,
    context: usize,
    budgets: Vec<Budget>,
    prefill_buckets: Vec<usize>,
    decode_buckets: Vec<usize>,
    prefill_seqs: usize,
    pool: BlockPool,
    steps: Steps,
    scheduler: Scheduler,
    active: BTreeMap<RequestId, Active>,
    free_slots: Vec<usize>,
    next_id: u64,
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
        let EnginePlan {
            inventory,
            options,
            geometry,
            context,
            budgets,
            ..
        } = plan;
        let max_num_seqs = options.max_num_seqs;
        let (found, expected) = (ranks.len(), inventory.world_size());
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
        let mut ranks = Ranks::load(ranks, group, &groups, &state)?;
        let steps = Steps::prepare(&mut ranks, plan.plans)?;
        let prefill_seqs = max_num_seqs.min(MAX_PREFILL_SEQS);
        let limits = Limits {
            max_num_seqs,
            max_chunk: options
                .max_chunk
                .min(plan.prefill_buckets.last().copied().unwrap_or(1)),
            max_prefill_seqs: prefill_seqs,
            block_size: geometry.block_size,
        };
        Ok(Self {
            pool: BlockPool::new(largest(&budgets).blocks as u32),
            scheduler: Scheduler::new(limits),
            inventory,
            ranks,
            geometry,
            context,
            budgets,
            prefill_buckets: plan.prefill_buckets,
            decode_buckets: plan.decode_buckets,
            prefill_seqs,
            steps,
            active: BTreeMap::new(),
            free_slots: (0..max_num_seqs).rev().collect(),
            options,
            next_id: 0,
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

    /// Memory as allocated; of several ranks, by the one that has most.
    pub fn budget(&self) -> &Budget {
        largest(&self.budgets)
    }

    /// Requests that wait, and requests that run.
    pub fn counts(&self) -> (usize, usize) {
        self.scheduler.counts()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If it could never run: empty, beyond the context or the cache, or with parameters that mean nothing.
    pub fn submit(&mut self, request: GenerateRequest) -> Result<RequestId, EngineError> {
        request.sampling.check()?;
        self.check_prompt(&request.prompt)?;
        let prompt = request.prompt.len();
        let needed = prompt + request.max_tokens.unwrap_or(1);
        if needed > self.context {
            return Err(EngineError::ContextExceeded {
                needed,
                available: self.context,
            });
        }
        let limit = request.max_tokens.unwrap_or(self.context - prompt);
        // The last token is drawn and never computed.
        let capacity = (prompt + limit).saturating_sub(1).max(prompt);
        let blocks = capacity.div_ceil(self.geometry.block_size);
        if blocks > self.pool.blocks_total() {
            let (free, total) = (self.pool.blocks_free(), self.pool.blocks_total());
            return Err(EngineError::OutOfBlocks {
                needed: blocks,
                free,
                total,
            });
        }
        let (mask, early_mask) = self.masks(&request);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.scheduler.submit(id, prompt, capacity);
        let active = Active {
            history: History::new(&request.prompt),
            sequence: Sequence::default(),
            slot: None,
            limit,
            mask,
            early_mask,
            next: None,
            request,
        };
        self.active.insert(id, active);
        Ok(id)
    }

    /// Ends a request; its blocks are free at once. Says whether there was one.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.end(id)
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Runs one tick: at most one decode step and one prefill step.
    ///
    /// # Errors
    /// If a step fails as a whole; a request that fails alone is an [`Event::Failed`].
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let tick = self.scheduler.tick(self.pool.blocks_free());
        self.admit(&tick)?;
        let mut events = Vec::new();
        let decode: Vec<_> = tick.decode.iter().map(|id| (*id, None)).collect();
        self.batch(&decode, &mut events)?;
        let prefill: Vec<_> = tick
            .prefill
            .into_iter()
            .map(|(id, range)| (id, Some(range)))
            .collect();
        self.batch(&prefill, &mut events)?;
        Ok(events)
    }

    /// Runs one request to its end, with nothing beside it. `on_token` gets each token as it is drawn, and may end the
    /// generation.
    ///
    /// # Errors
    /// If the request cannot run or a step fails, or other requests are under way. The cache is free again in any case.
    pub fn generate(
        &mut self,
        request: &GenerateRequest,
        mut on_token: impl FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        if !self.is_idle() {
            return Err(EngineError::Busy);
        }
        let start = Instant::now();
        let own = self.submit(request.clone())?;
        let mut out = Generation {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
            prompt_tokens: request.prompt.len(),
            prefill: start.elapsed(),
            decode: start.elapsed(),
            decode_steps: 0,
        };
        let mut first = None;
        while self.active.contains_key(&own) {
            let events = match self.step() {
                Ok(events) => events,
                Err(error) => {
                    self.end(own);
                    return Err(error);
                }
            };
            let since_first = *first.get_or_insert_with(|| {
                out.prefill = start.elapsed();
                Instant::now()
            });
            if events.is_empty() {
                first = None;
            } else if !out.tokens.is_empty() {
                out.decode_steps += 1;
            }
            for event in events {
                match event {
                    Event::Token {
                        token, logprobs, ..
                    } => {
                        out.tokens.push(token);
                        out.logprobs.extend(logprobs);
                        if on_token(token).is_break() && self.end(own) {
                            out.finish_reason = FinishReason::Cancelled;
                        }
                    }
                    Event::Finished { reason, .. } => {
                        if out.finish_reason != FinishReason::Cancelled {
                            out.finish_reason = reason;
                        }
                    }
                    Event::Failed { error, .. } => return Err(error),
                }
            }
            out.decode = since_first.elapsed();
        }
        Ok(out)
    }

    /// Gives admitted requests their blocks and slots.
    fn admit(&mut self, tick: &Tick) -> Result<(), EngineError> {
        for id in &tick.admitted {
            let Some(active) = self.active.get_mut(id) else {
                continue;
            };
            let capacity = (active.request.prompt.len() + active.limit).saturating_sub(1);
            let capacity = capacity.max(active.request.prompt.len());
            active
                .sequence
                .reserve(capacity, self.geometry.block_size, &mut self.pool)?;
            active.slot = self.free_slots.pop();
        }
        Ok(())
    }

    /// Runs one step over these sequences: the next token of each, or a part of its prompt.
    fn batch(
        &mut self,
        work: &[(RequestId, Option<std::ops::Range<usize>>)],
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        if work.is_empty() {
            return Ok(());
        }
        let mut rows = Vec::with_capacity(work.len());
        let mut carried = Vec::with_capacity(work.len());
        for (id, range) in work {
            let active = &self.active[id];
            carried.push([active.next.unwrap_or(CARRIED)]);
            let last = range
                .as_ref()
                .is_none_or(|r| r.end == active.request.prompt.len());
            rows.push((active, range, last));
        }
        let mut head = Head::Tokens;
        let world_size = self.inventory.world_size();
        let mut batch = Vec::with_capacity(work.len());
        for ((active, range, last), carried) in rows.iter().zip(&carried) {
            let tokens = match range {
                Some(range) => &active.request.prompt[range.clone()],
                None => carried.as_slice(),
            };
            let end = active.sequence.computed() + tokens.len();
            let draw = last.then(|| Draw {
                params: active.params(end),
                mask: active.mask(),
            });
            head = head.max(match &draw {
                Some(_) if active.request.sampling.needs_logits() => Head::Logits,
                Some(draw) => Head::for_draw(&draw.params, world_size),
                None => Head::Tokens,
            });
            let slot = active.slot.unwrap_or(0);
            batch.push(BatchRow {
                tokens,
                sequence: &active.sequence,
                slot,
                draw,
            });
        }
        let tokens = batch.iter().map(|r| r.tokens.len()).sum();
        let kind = match work[0].1 {
            None => self.decode_kind(tokens),
            Some(_) => self.prefill_kind(tokens),
        };
        let lengths: Vec<usize> = batch.iter().map(|r| r.tokens.len()).collect();
        let drawn: Vec<bool> = batch.iter().map(|r| r.draw.is_some()).collect();
        let results = self.steps.get(kind, head)?.run(&mut self.ranks, &batch)?;
        let mut output = 0;
        for (((id, _), n), drawn) in work.iter().zip(lengths).zip(drawn) {
            self.scheduler.computed(*id, n);
            if let Some(active) = self.active.get_mut(id) {
                active.sequence.advance(n);
            }
            if drawn {
                self.token(*id, &results, output, events);
                output += 1;
            }
        }
        Ok(())
    }

    /// Takes the token of an output row: from the step, or drawn here from its logits.
    fn token(
        &mut self,
        id: RequestId,
        results: &StepResults,
        output: usize,
        events: &mut Vec<Event>,
    ) {
        let vocab = self.inventory.config().vocab_size;
        let Some(active) = self.active.get_mut(&id) else {
            return;
        };
        let position = active.sequence.computed();
        let drawn = if active.request.sampling.needs_logits() {
            let row = results
                .f32s(names::LOGITS)
                .and_then(|l| l.get(output * vocab..)?.get(..vocab));
            let missing = || EngineError::NoResult {
                plan: "of this step".into(),
                name: names::LOGITS.into(),
            };
            let params = active.params(position);
            row.ok_or_else(missing).and_then(|row| {
                draw(
                    row,
                    active.mask(),
                    &params,
                    &active.request.sampling,
                    &active.history,
                )
            })
        } else {
            let token = results
                .i32s(names::TOKENS)
                .and_then(|t| t.get(output).copied());
            sampled(token, position).map(|token| Drawn {
                token,
                logprobs: None,
            })
        };
        let drawn = match drawn {
            Ok(drawn) => drawn,
            Err(error) => {
                self.end(id);
                events.push(Event::Failed { id, error });
                return;
            }
        };
        active.next = active
            .request
            .sampling
            .needs_logits()
            .then_some(drawn.token);
        let stop = active.request.stop_tokens.contains(&drawn.token);
        let limit = active.limit;
        let mut length = limit == 0;
        if !stop && limit > 0 {
            active.history.push(drawn.token);
            length = active.history.output().len() >= limit;
            events.push(Event::Token {
                id,
                token: drawn.token,
                logprobs: drawn.logprobs,
            });
        }
        if stop || length {
            self.end(id);
            let reason = if stop {
                FinishReason::Stop
            } else {
                FinishReason::Length
            };
            events.push(Event::Finished { id, reason });
        }
    }

    /// Forgets a request and frees what it held.
    fn end(&mut self, id: RequestId) -> bool {
        self.scheduler.remove(id);
        let Some(active) = self.active.remove(&id) else {
            return false;
        };
        self.free_slots.extend(active.slot);
        active.sequence.release(&mut self.pool);
        true
    }

    /// Bits of the tokens that may be drawn.
    fn masks(&self, request: &GenerateRequest) -> (Vec<u32>, Option<Vec<u32>>) {
        let vocab = self.inventory.config().vocab_size;
        let limit = request.vocab_limit.unwrap_or(vocab).min(vocab);
        let mut mask = vec![0u32; vocab.div_ceil(32)];
        let set = |mask: &mut [u32], id: usize, on: bool| {
            if id < limit {
                let bit = 1 << (id % 32);
                if on {
                    mask[id / 32] |= bit
                } else {
                    mask[id / 32] &= !bit
                }
            }
        };
        match &request.sampling.allowed {
            Some(allowed) => allowed
                .iter()
                .for_each(|t| set(&mut mask, t.0 as usize, true)),
            None => (0..limit).for_each(|id| set(&mut mask, id, true)),
        }
        request
            .sampling
            .forbidden
            .iter()
            .for_each(|t| set(&mut mask, t.0 as usize, false));
        let early = (request.sampling.min_tokens > 0).then(|| {
            let mut early = mask.clone();
            request
                .stop_tokens
                .iter()
                .for_each(|t| set(&mut early, t.0 as usize, false));
            early
        });
        (mask, early)
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

    // --- for traces ---

    /// Capacities of prefill steps, ascending.
    pub(crate) fn buckets(&self) -> &[usize] {
        &self.prefill_buckets
    }

    /// Longest chunk.
    pub(crate) fn max_chunk(&self) -> usize {
        self.options.max_chunk
    }

    /// Prepares a prefill step of one sequence that gives every row, changed by `edit` first.
    pub(crate) fn prepare_every_row(
        &mut self,
        tokens: usize,
        forced: bool,
        edit: impl FnMut(&mut Plan) -> Result<(), EngineError>,
    ) -> Result<Prepared, EngineError> {
        let step = StepKind::Prefill {
            tokens,
            sequences: 1,
        };
        let slots = self.options.max_num_seqs;
        let caps = self.ranks.caps();
        let mut plans = every_row_plan(&self.inventory, &caps, self.geometry, step, slots, forced)?;
        plans.iter_mut().try_for_each(edit)?;
        Prepared::new(&mut self.ranks, plans)
    }

    /// Runs the next rows of a sequence through a step that gives every row.
    pub(crate) fn run_rows(
        &mut self,
        prepared: &mut Prepared,
        sequence: &mut Sequence,
        tokens: &[TokenId],
    ) -> Result<StepResults, EngineError> {
        let length = sequence.computed() + tokens.len();
        sequence.reserve(length, self.geometry.block_size, &mut self.pool)?;
        let row = BatchRow {
            tokens,
            sequence,
            slot: 0,
            draw: None,
        };
        let results = prepared.run(&mut self.ranks, &[row])?;
        sequence.advance(tokens.len());
        Ok(results)
    }

    /// Runs `f` with a fresh sequence, whose blocks are free again afterwards.
    pub(crate) fn with_sequence<T>(
        &mut self,
        f: impl FnOnce(&mut Self, &mut Sequence) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.with_sequences(1, |engine, sequences| f(engine, &mut sequences[0]))
    }

    /// The same with several.
    pub(crate) fn with_sequences<T>(
        &mut self,
        n: usize,
        f: impl FnOnce(&mut Self, &mut [Sequence]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut sequences: Vec<Sequence> = (0..n).map(|_| Sequence::default()).collect();
        let result = f(self, &mut sequences);
        sequences
            .into_iter()
            .for_each(|sequence| sequence.release(&mut self.pool));
        result
    }

    // --- for proofs ---

    /// Prepares the plan of a serving step once more, changed by `edit` first.
    pub(crate) fn prepare_edited(
        &mut self,
        kind: StepKind,
        edit: impl FnMut(Plan) -> Result<Plan, EngineError>,
    ) -> Result<Prepared, EngineError> {
        let plans = self.steps.get(kind, Head::Tokens)?.plans().cloned();
        let plans = plans.map(edit).collect::<Result<_, _>>()?;
        Prepared::new(&mut self.ranks, plans)
    }

    /// Runs a batch through such a step; the sequences stay as they are. The results are each rank's.
    pub(crate) fn run_prepared(
        &mut self,
        prepared: &mut Prepared,
        batch: &[BatchRow<'_>],
    ) -> Result<Vec<StepResults>, EngineError> {
        prepared.run_ranks(&mut self.ranks, batch)
    }

    /// Reads a rank's memory.
    pub(crate) fn read(&self, rank: usize, target: ReadTarget<'_>) -> Result<Vec<u8>, EngineError> {
        Ok(self.ranks.read(rank, target)?)
    }

    /// The plan of a prefill step of one sequence that gives every row, if one rank had the whole model.
    pub(crate) fn whole_plan(&self, tokens: usize) -> Result<Plan, EngineError> {
        let step = StepKind::Prefill {
            tokens,
            sequences: 1,
        };
        let (whole, caps) = (self.inventory.whole(), self.ranks.caps());
        let slots = self.options.max_num_seqs;
        let mut plans = every_row_plan(&whole, &caps, self.geometry, step, slots, false)?;
        Ok(plans.swap_remove(0))
    }

    // --- for benchmarks ---

    /// The decode step that holds `rows` rows.
    pub(crate) fn decode_kind(&self, rows: usize) -> StepKind {
        StepKind::Decode {
            rows: bucket_for(&self.decode_buckets, rows),
        }
    }

    /// The prefill step that holds `tokens` tokens.
    pub(crate) fn prefill_kind(&self, tokens: usize) -> StepKind {
        let tokens = bucket_for(&self.prefill_buckets, tokens);
        StepKind::Prefill {
            tokens,
            sequences: self.prefill_seqs,
        }
    }

    /// A step, without logits as a result.
    pub(crate) fn step_of(&mut self, kind: StepKind) -> Result<&Prepared, EngineError> {
        Ok(self.steps.get(kind, Head::Tokens)?)
    }

    /// Takes blocks for a sequence.
    pub(crate) fn reserve(
        &mut self,
        sequence: &mut Sequence,
        tokens: usize,
    ) -> Result<(), EngineError> {
        sequence.reserve(tokens, self.geometry.block_size, &mut self.pool)
    }

    /// Runs a batch; the sequences stay as they are.
    pub(crate) fn run_batch(
        &mut self,
        kind: StepKind,
        batch: &[BatchRow<'_>],
    ) -> Result<StepResults, EngineError> {
        self.steps
            .get(kind, Head::Tokens)?
            .run(&mut self.ranks, batch)
    }
}

/// Of the rank that takes most. There is one rank at least.
fn largest(budgets: &[Budget]) -> &Budget {
    budgets
        .iter()
        .max_by_key(|budget| budget.total())
        .unwrap_or(&budgets[0])
}

/// What [`glim_plan::Op::Sample`] gave: a token, or the reason why there is none.
fn sampled(token: Option<i32>, position: usize) -> Result<TokenId, EngineError> {
    match token {
        Some(TOKEN_NONE_ALLOWED) => Err(EngineError::NoTokenAllowed { position }),
        Some(TOKEN_CORRUPT) => Err(EngineError::CorruptLogits { position }),
        Some(token) => u32::try_from(token)
            .map(TokenId)
            .map_err(|_| EngineError::CorruptLogits { position }),
        None => Err(EngineError::NoResult {
            plan: "of this step".into(),
            name: names::TOKENS.into(),
        }),
    }
}
