//! What a caller asks for, and what it gets.

use std::time::Duration;

use glim_text::TokenId;

use crate::error::EngineError;

/// How tokens are drawn; the order of the steps is that of [`glim_plan::sample`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// 0: the likeliest token.
    pub temperature: f32,
    /// Draw among this many likeliest tokens; 0: all.
    pub top_k: u32,
    /// Draw among the likeliest tokens that together reach this probability; 1: all.
    pub top_p: f32,
    /// Equal seeds give equal streams.
    pub seed: u64,
}

impl SamplingParams {
    /// Always the likeliest token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 0,
    };

    /// Refuses values without a meaning.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(EngineError::BadSampling {
                name: "temperature",
                found: self.temperature,
                expected: "a finite number, 0 or more",
            });
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(EngineError::BadSampling {
                name: "top_p",
                found: self.top_p,
                expected: "above 0, at most 1",
            });
        }
        Ok(())
    }
}

/// A generation to be run.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Prompt.
    pub prompt: Vec<TokenId>,
    /// How to draw.
    pub sampling: SamplingParams,
    /// Tokens to generate at most; `None`: up to the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the generation and are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Ids from here on are never drawn: rows of the head beyond the tokenizer's vocabulary. `None`: all may be drawn.
    pub vocab_limit: Option<usize>,
}

impl GenerateRequest {
    /// Greedy, without stop tokens, up to the end of the context.
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            prompt,
            sampling: SamplingParams::GREEDY,
            max_tokens: None,
            stop_tokens: Vec::new(),
            vocab_limit: None,
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was drawn.
    Stop,
    /// The limit of tokens or of the context was reached.
    Length,
    /// The caller ended it.
    Cancelled,
}

impl FinishReason {
    /// As in the OpenAI API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A finished generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Generated tokens, without the stop token.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time until the first token.
    pub prefill: Duration,
    /// Time of the decode steps.
    pub decode: Duration,
    /// Decode steps that ran.
    pub decode_steps: usize,
}
