//! A request that has been submitted and is not over, as the engine sees it: what its draws need. Its tokens and blocks are the
//! scheduler's.

use glim_plan::sample::SampleParams;
use glim_text::TokenId;

use crate::constraint::{ConstraintError, TokenConstraint};
use crate::request::{GenerateRequest, SamplingParams};
use crate::sampler::Counts;

/// What draws the tokens of a request.
pub(super) struct Active {
    pub(super) sampling: SamplingParams,
    pub(super) stop_tokens: Vec<TokenId>,
    /// Tokens of the answer at most.
    pub(super) limit: usize,
    /// Kept if the sampling penalises.
    pub(super) counts: Counts,
    /// The last token, if the host has drawn it rather than the step.
    pub(super) next: Option<TokenId>,
    /// Tokens that may be drawn, and the same without stop tokens, while `min_tokens` is not reached.
    mask: Vec<u32>,
    early_mask: Option<Vec<u32>>,
    constraint: Option<Box<dyn TokenConstraint>>,
    /// The mask of the next draw, if there is a constraint.
    bound: Vec<u32>,
}

impl Active {
    /// Of a request whose answer has at most `limit` tokens, from a model of `vocab_size` tokens.
    pub(super) fn new(request: &mut GenerateRequest, limit: usize, vocab_size: usize) -> Self {
        let (mask, early_mask) = masks(request, vocab_size);
        let counts = match request.sampling.penalises() {
            true => Counts::new(&request.prompt),
            false => Counts::default(),
        };
        Self {
            sampling: request.sampling.clone(),
            stop_tokens: std::mem::take(&mut request.stop_tokens),
            limit,
            counts,
            next: None,
            mask,
            early_mask,
            constraint: request.constraint.take(),
            bound: Vec::new(),
        }
    }

    /// Prepares the mask of the next draw, that of token `n` of the answer.
    pub(super) fn bind(&mut self, n: usize) -> Result<(), ConstraintError> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(());
        };
        let is_early = n < self.sampling.min_tokens;
        let free = self.early_mask.as_ref().filter(|_| is_early);
        self.bound.clone_from(free.unwrap_or(&self.mask));
        constraint.restrict(&mut self.bound)
    }

    /// Whether a draw needs what the host knows of the last one.
    pub(super) fn draws_on_host(&self) -> bool {
        self.constraint.is_some() || self.sampling.needs_logits()
    }

    /// Tells the constraint what was drawn.
    pub(super) fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        match &mut self.constraint {
            Some(constraint) => constraint.accept(token),
            None => Ok(()),
        }
    }

    /// Which tokens may be drawn as token `n` of the answer; [`Self::bind`] came before.
    pub(super) fn mask(&self, n: usize) -> &[u32] {
        if self.constraint.is_some() {
            return &self.bound;
        }
        let is_early = n < self.sampling.min_tokens;
        let early = self.early_mask.as_ref().filter(|_| is_early);
        early.unwrap_or(&self.mask)
    }

    /// Parameters of the token at a position of the sequence.
    pub(super) fn params(&self, position: usize) -> SampleParams {
        let s = &self.sampling;
        SampleParams {
            temperature: s.temperature,
            top_k: s.top_k as usize,
            top_p: s.top_p,
            min_p: s.min_p,
            seed: s.seed,
            choice: s.choice,
            position: position as u32,
        }
    }
}

/// Bits of the tokens that may be drawn, and the same before `min_tokens`.
fn masks(request: &GenerateRequest, vocab_size: usize) -> (Vec<u32>, Option<Vec<u32>>) {
    let limit = request.vocab_limit.unwrap_or(vocab_size).min(vocab_size);
    let mut mask = vec![0u32; vocab_size.div_ceil(32)];
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
    let forbidden = request.sampling.forbidden.iter();
    forbidden.for_each(|t| set(&mut mask, t.0 as usize, false));
    let early = (request.sampling.min_tokens > 0).then(|| {
        let mut early = mask.clone();
        let stops = request.stop_tokens.iter();
        stops.for_each(|t| set(&mut early, t.0 as usize, false));
        early
    });
    (mask, early)
}
