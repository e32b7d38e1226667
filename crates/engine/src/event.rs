//! What a caller gets.

use std::time::Duration;

use glim_text::TokenId;

use crate::error::EngineError;
use crate::scheduler::RequestId;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was drawn.
    Stop,
    /// The limit of tokens or of the context was reached.
    Length,
    /// The caller ended it.
    Cancelled,
    /// Its deadline passed.
    Deadline,
}

impl FinishReason {
    /// As in the OpenAI API, where that has a word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
        }
    }
}

/// Log-probabilities at one position, in nats, from the raw logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the token that was drawn.
    pub token: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// What a step did to a request.
#[derive(Debug)]
pub enum Event {
    /// The request runs for the first time.
    Started {
        /// Request.
        id: RequestId,
        /// Tokens of its prompt that were in the cache.
        cached_tokens: usize,
    },
    /// The request lost its blocks to a more urgent one and waits; it will go on as if nothing had happened.
    Preempted {
        /// Request.
        id: RequestId,
    },
    /// A token was drawn.
    Token {
        /// Request.
        id: RequestId,
        /// Token.
        token: TokenId,
        /// If asked for.
        logprobs: Option<Logprobs>,
    },
    /// The request is over; its blocks are free.
    Finished {
        /// Request.
        id: RequestId,
        /// Why.
        reason: FinishReason,
        /// The stop token, if one was drawn.
        stop_token: Option<TokenId>,
    },
    /// The request failed, alone; its blocks are free.
    Failed {
        /// Request.
        id: RequestId,
        /// Why.
        error: EngineError,
    },
}

/// A finished generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Generated tokens, without the stop token.
    pub tokens: Vec<TokenId>,
    /// Their log-probabilities, if asked for.
    pub logprobs: Vec<Logprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, the ones that were in the cache.
    pub cached_tokens: usize,
    /// Time until the first token.
    pub prefill: Duration,
    /// Time of the decode steps.
    pub decode: Duration,
    /// Decode steps that ran.
    pub decode_steps: usize,
}
