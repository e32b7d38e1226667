//! The engine: plans, weights and state of one model on one backend, and the loop that drives steps.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Instant;

use glim_model::{EmitRequest, Inventory, OutputRows, emit, names, states};
use glim_plan::sample::{TOKEN_CORRUPT, TOKEN_NONE_ALLOWED};
use glim_plan::{
    Backend, CacheGeometry, Caps, GgmlType, InputKind, Plan, StepId, StepInputs, StepKind,
    StepResults, WeightSource, check_states, fuse, weight_groups,
};
use glim_text::TokenId;

use crate::block_pool::BlockPool;
use crate::buckets::{bucket_for, buckets_for, prefill_chunks};
use crate::error::EngineError;
use crate::request::{FinishReason, GenerateRequest, Generation, SamplingParams};
use crate::sequence::Sequence;

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Longest sequence, prompt and answer, in tokens; `None`: the model's own limit, but at most [`EngineOptions::DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Tokens in a cache block.
    pub block_size: usize,
    /// Longest chunk of a prompt that one step runs.
    pub max_chunk: usize,
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
        }
    }
}

/// A plan that the backend has prepared.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    id: StepId,
    pub(crate) inputs: StepInputs,
}

/// One model on one backend, one request at a time.
pub struct Engine {
    inventory: Inventory,
    backend: Box<dyn Backend>,
    geometry: CacheGeometry,
    context: usize,
    max_chunk: usize,
    buckets: Vec<usize>,
    pool: BlockPool,
    steps: HashMap<StepKind, Prepared>,
}

impl Engine {
    /// Makes the plans, loads the weights, allocates the caches and prepares the steps.
    ///
    /// # Errors
    /// If the context is impossible, a plan cannot be made or breaks a rule, or the backend cannot load or prepare.
    pub fn new(
        inventory: Inventory,
        weights: &dyn WeightSource,
        mut backend: Box<dyn Backend>,
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
        let geometry = CacheGeometry {
            block_size: options.block_size,
            max_blocks: context.div_ceil(options.block_size),
        };
        let buckets = buckets_for(options.max_chunk.min(context));
        let kinds = buckets
            .iter()
            .map(|tokens| StepKind::Prefill {
                tokens: *tokens,
                sequences: 1,
            })
            .chain([StepKind::Decode { rows: 1 }]);
        let plans = kinds
            .map(|step| {
                make_plan(
                    &inventory,
                    &EmitRequest::new(step, geometry),
                    &backend.caps(),
                )
            })
            .collect::<Result<Vec<_>, _>>()?;

        backend.load(&weight_groups(&plans)?, weights)?;
        let decls = states(inventory.config(), GgmlType::F32, GgmlType::F32);
        backend.alloc_state(&decls, geometry.block_size, geometry.max_blocks, 1)?;
        let mut engine = Self {
            pool: BlockPool::new(geometry.max_blocks as u32),
            inventory,
            backend,
            geometry,
            context,
            max_chunk: options.max_chunk,
            buckets,
            steps: HashMap::new(),
        };
        for plan in plans {
            let prepared = engine.prepare(plan)?;
            engine.steps.insert(prepared.plan.step, prepared);
        }
        Ok(engine)
    }

    /// The model.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What runs it.
    pub fn caps(&self) -> Caps {
        self.backend.caps()
    }

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Runs one request to its end. `on_token` gets each token as it is drawn, and may end the generation.
    ///
    /// # Errors
    /// If the request cannot fit or has no meaning, or a step fails. The cache is free again in any case.
    pub fn generate(
        &mut self,
        request: &GenerateRequest,
        on_token: impl FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        request.sampling.check()?;
        self.check_prompt(&request.prompt)?;
        let room = self
            .context
            .checked_sub(request.prompt.len())
            .filter(|room| *room > 0);
        let needed = request.prompt.len() + request.max_tokens.unwrap_or(1);
        let Some(room) = room.filter(|_| needed <= self.context) else {
            return Err(EngineError::ContextExceeded {
                needed,
                available: self.context,
            });
        };
        let limit = request.max_tokens.unwrap_or(room);
        let mut sequence = Sequence::default();
        let result = self.drive(&mut sequence, request, limit, on_token);
        sequence.release(&mut self.pool);
        result
    }

    fn drive(
        &mut self,
        sequence: &mut Sequence,
        request: &GenerateRequest,
        limit: usize,
        mut on_token: impl FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        let start = Instant::now();
        let mut tokens = Vec::new();
        let mut finish_reason = FinishReason::Length;
        let mut next = None;
        if limit > 0 {
            next = Some(self.prefill(sequence, request)?);
        }
        let prefill = start.elapsed();
        let start = Instant::now();
        let mut decode_steps = 0;
        while let Some(token) = next.take() {
            if request.stop_tokens.contains(&token) {
                finish_reason = FinishReason::Stop;
                break;
            }
            tokens.push(token);
            if on_token(token).is_break() {
                finish_reason = FinishReason::Cancelled;
                break;
            }
            if tokens.len() < limit {
                next = Some(self.decode(sequence, request)?);
                decode_steps += 1;
            }
        }
        Ok(Generation {
            tokens,
            finish_reason,
            prompt_tokens: request.prompt.len(),
            prefill,
            decode: start.elapsed(),
            decode_steps,
        })
    }

    /// Runs the prompt in chunks; the last one draws the first token.
    fn prefill(
        &mut self,
        sequence: &mut Sequence,
        request: &GenerateRequest,
    ) -> Result<TokenId, EngineError> {
        let prompt = &request.prompt;
        let mut results = StepResults::default();
        for chunk in prefill_chunks(prompt.len(), self.max_chunk) {
            let tokens = bucket_for(&self.buckets, chunk.len());
            let kind = StepKind::Prefill {
                tokens,
                sequences: 1,
            };
            let last = (chunk.end == prompt.len()).then_some(request);
            results = self.step(kind, sequence, &prompt[chunk], last)?;
        }
        self.sampled(&results, prompt.len())
    }

    /// One token: the one that the last step drew, which the backend has carried.
    fn decode(
        &mut self,
        sequence: &mut Sequence,
        request: &GenerateRequest,
    ) -> Result<TokenId, EngineError> {
        let results = self.decode_step(sequence, request)?;
        self.sampled(&results, sequence.computed())
    }

    fn decode_step(
        &mut self,
        sequence: &mut Sequence,
        request: &GenerateRequest,
    ) -> Result<StepResults, EngineError> {
        const CARRIED: TokenId = TokenId(u32::MAX);
        self.step(
            StepKind::Decode { rows: 1 },
            sequence,
            &[CARRIED],
            Some(request),
        )
    }

    fn sampled(&self, results: &StepResults, position: usize) -> Result<TokenId, EngineError> {
        let token = results.i32s(names::TOKENS).and_then(|t| t.first().copied());
        match token {
            Some(TOKEN_CORRUPT) => Err(EngineError::CorruptLogits { position }),
            Some(TOKEN_NONE_ALLOWED) => Err(EngineError::NoTokenAllowed { position }),
            Some(token) => u32::try_from(token)
                .map(TokenId)
                .map_err(|_| EngineError::CorruptLogits { position }),
            None => Err(EngineError::NoResult {
                plan: "of this step".into(),
                name: names::TOKENS.into(),
            }),
        }
    }

    fn step(
        &mut self,
        kind: StepKind,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        draw: Option<&GenerateRequest>,
    ) -> Result<StepResults, EngineError> {
        let Some(mut prepared) = self.steps.remove(&kind) else {
            return Err(EngineError::NoResult {
                plan: kind.to_string(),
                name: "(the plan itself)".into(),
            });
        };
        let result = self.run(&mut prepared, sequence, tokens, draw);
        self.steps.insert(kind, prepared);
        result
    }

    /// Fuses, checks and prepares a plan.
    pub(crate) fn prepare(&mut self, plan: Plan) -> Result<Prepared, EngineError> {
        let id = self.backend.prepare(&plan)?;
        let inputs = StepInputs::new(&plan);
        Ok(Prepared { plan, id, inputs })
    }

    /// A plan that gives the logits of every row, as this engine's backend runs it. `forced`: with an input that replaces the
    /// indexer's choices.
    pub(crate) fn every_row_plan(&self, step: StepKind, forced: bool) -> Result<Plan, EngineError> {
        let request = EmitRequest {
            outputs: OutputRows::All,
            logits: true,
            sample: false,
            forced_topk: forced,
            ..EmitRequest::new(step, self.geometry)
        };
        make_plan(&self.inventory, &request, &self.backend.caps())
    }

    /// Capacities of prefill steps, ascending.
    pub(crate) fn buckets(&self) -> &[usize] {
        &self.buckets
    }

    /// Longest chunk.
    pub(crate) fn max_chunk(&self) -> usize {
        self.max_chunk
    }

    /// Runs `tokens` of one sequence as the next rows of it. With `draw`, the last row's token is drawn; a plan whose
    /// output rows are all rows gets them all.
    pub(crate) fn run(
        &mut self,
        prepared: &mut Prepared,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        draw: Option<&GenerateRequest>,
    ) -> Result<StepResults, EngineError> {
        let (first, n) = (sequence.computed(), tokens.len());
        let block_size = self.geometry.block_size;
        sequence.reserve(first + n, block_size, &mut self.pool)?;
        let inputs = &mut prepared.inputs;
        inputs.set(InputKind::Tokens, tokens.iter().map(|t| t.0))?;
        inputs.set_i32(InputKind::Positions, (first..first + n).map(|p| p as i32))?;
        inputs.set_i32(
            InputKind::SlotMapping,
            (first..first + n).map(|p| sequence.slot(p, block_size)),
        )?;
        inputs.set_i32(InputKind::CuSeqlens, [0, n as i32])?;
        inputs.set_i32(InputKind::BlockTables, sequence.table(self.geometry))?;
        if inputs.has(InputKind::SequenceSlots) {
            inputs.set_i32(InputKind::SequenceSlots, [0])?;
        }
        let all_rows = inputs.get(InputKind::OutputRows).len() == prepared.plan.step.tokens();
        match draw {
            Some(_) if !all_rows || n == 1 => {
                inputs.set_i32(InputKind::OutputRows, [n as i32 - 1])?
            }
            None if !all_rows => inputs.set_i32(InputKind::OutputRows, [-1])?,
            _ => inputs.set_i32(InputKind::OutputRows, 0..n as i32)?,
        }
        if inputs.has(InputKind::Temperature) {
            let vocab = self.inventory.config().vocab_size;
            let limit = draw.and_then(|r| r.vocab_limit).unwrap_or(vocab);
            let sampling = draw.map_or(SamplingParams::GREEDY, |r| r.sampling);
            set_sampling(inputs, &sampling, limit, vocab)?;
        }
        let results = self.backend.run(prepared.id, inputs)?;
        sequence.advance(n);
        Ok(results)
    }

    /// Runs `f` with a fresh sequence, whose blocks are free again afterwards.
    pub(crate) fn with_sequence<T>(
        &mut self,
        f: impl FnOnce(&mut Self, &mut Sequence) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut sequence = Sequence::default();
        let result = f(self, &mut sequence);
        sequence.release(&mut self.pool);
        result
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

fn make_plan(
    inventory: &Inventory,
    request: &EmitRequest,
    caps: &Caps,
) -> Result<Plan, EngineError> {
    let mut plan = emit(inventory, request)?;
    let states = states(
        inventory.config(),
        request.latent_type,
        request.index_key_type,
    );
    check_states(&plan, &states)?;
    fuse(&mut plan, &caps.patterns);
    check_states(&plan, &states)?;
    Ok(plan)
}

fn set_sampling(
    inputs: &mut StepInputs,
    sampling: &SamplingParams,
    limit: usize,
    vocab: usize,
) -> Result<(), EngineError> {
    inputs.set_f32(InputKind::Temperature, [sampling.temperature])?;
    inputs.set(InputKind::TopK, [sampling.top_k])?;
    inputs.set_f32(InputKind::TopP, [sampling.top_p])?;
    inputs.set(
        InputKind::Seeds,
        [sampling.seed as u32, (sampling.seed >> 32) as u32, 0],
    )?;
    let word = |i: usize| match limit.saturating_sub(i * 32) {
        0 => 0,
        n if n < 32 => (1u32 << n) - 1,
        _ => u32::MAX,
    };
    inputs.set(InputKind::TokenMask, (0..vocab.div_ceil(32)).map(word))?;
    Ok(())
}
