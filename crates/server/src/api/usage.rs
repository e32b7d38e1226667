//! `usage` and `timings` as the OpenAI protocols print them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::update::Usage;
use crate::generation::{Clock, Generation};

/// Tokens of a request, all answers together.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct UsageJson {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct PromptDetails {
    /// Those that were in the prefix cache already.
    cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct CompletionDetails {
    /// Those that are reasoning.
    reasoning_tokens: usize,
}

impl From<Usage> for UsageJson {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: usage.cached_tokens,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: usage.reasoning_tokens,
            },
        }
    }
}

/// Speeds of a request, in llama.cpp's form.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Prompt tokens that were cached.
    cache_n: usize,
    /// Prompt tokens that were computed.
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_second: f64,
}

impl Timings {
    /// Of what has been generated so far.
    pub(crate) fn of(generation: &Generation) -> Self {
        let usage = generation.usage();
        let Clock {
            started,
            first_token,
            last_token,
            ..
        } = generation.clock();
        let ms = |from: Option<std::time::Instant>, to: Option<std::time::Instant>| {
            let between = from.zip(to);
            between.map_or(0.0, |(from, to)| {
                to.saturating_duration_since(from).as_secs_f64() * 1e3
            })
        };
        let rate = |n: usize, ms: f64| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
        let prompt_n = usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens);
        let prompt_ms = ms(started, first_token);
        let predicted_ms = ms(first_token, last_token);
        Self {
            cache_n: usage.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_second: rate(prompt_n, prompt_ms),
            predicted_n: usage.completion_tokens,
            predicted_ms,
            // The first token belongs to the prompt's time.
            predicted_per_second: rate(usage.completion_tokens.saturating_sub(1), predicted_ms),
        }
    }
}
