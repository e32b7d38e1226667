//! What comes of a generation, in the one form that every protocol prints in its own.

use glim_text::{Piece, TokenId};

use crate::error::ApiError;

/// One thing that happened.
#[derive(Debug)]
pub(crate) enum Update {
    /// More of an answer.
    Delta(Delta),
    /// An answer is whole.
    Finished {
        /// Which of the `n` answers.
        choice: u32,
        finish: Finish,
    },
    /// The generation failed, all answers of it; nothing follows.
    Failed(ApiError),
}

/// More of an answer: text, and the tokens that it came from. Either may be empty: text is held back while it may still become a stop
/// string or a character, and a tag is a token without text.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Which of the `n` answers.
    pub(crate) choice: u32,
    /// In order, after stop strings and the rules for tools.
    pub(crate) pieces: Vec<Piece>,
    /// Of each token, if asked for.
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// The tokens.
    pub(crate) token_ids: Vec<TokenId>,
}

/// A token with its log-probability in nats, from the raw logits (before bias, penalties and temperature).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) token: TokenId,
    pub(crate) logprob: f32,
    /// The likeliest tokens, likeliest first.
    pub(crate) top: Vec<(TokenId, f32)>,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finish {
    pub(crate) reason: FinishReason,
    /// What of the caller's own ended it.
    pub(crate) stop: Option<StopReason>,
    /// Generated tokens, stop token not counted.
    pub(crate) completion_tokens: usize,
    /// Those of them that are reasoning.
    pub(crate) reasoning_tokens: usize,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    /// By itself, or at a stop string or token.
    Stop,
    /// At the limit of tokens or of the context.
    Length,
    /// With calls of tools that were free to be made or not.
    ToolCalls,
}

impl FinishReason {
    /// As in the OpenAI API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What of the caller's own ended an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// A stop string.
    Text(String),
    /// A token of `stop_token_ids`.
    Token(TokenId),
}

/// Counts of a generation, all answers together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    /// Those of them that were in the prefix cache already.
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) reasoning_tokens: usize,
}
