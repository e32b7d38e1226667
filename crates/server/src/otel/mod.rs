//! Traces for OpenTelemetry, behind the cargo feature `otel`.
//!
//! The span `request` that surrounds every request is exported with all its fields. A W3C `traceparent` of the client makes it a part of
//! the client's trace ([`continue_trace`]). When a generation ends, [`generation`] adds what the semantic conventions for generative AI
//! name (`gen_ai.*`), and a child span for each phase: `queued`, `prefill`, `decode`. Neither prompts nor answers are among it.
//!
//! Without the feature the two functions do nothing, and no crate of OpenTelemetry is built.

#[cfg(feature = "otel")]
mod export;
#[cfg(all(test, feature = "otel"))]
mod tests;

use std::time::Instant;

use axum::http::HeaderMap;
use tracing::Span;

#[cfg(feature = "otel")]
pub use export::{Otel, OtelError};

/// What a trace tells of a generation.
#[cfg_attr(
    not(feature = "otel"),
    expect(dead_code, reason = "the exporter reads it")
)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GenerationTrace<'a> {
    /// The answer's id.
    pub(crate) id: &'a str,
    /// The model, as the response names it.
    pub(crate) model: &'a str,
    /// `stop`, `length`, …, or `abort` or `error`.
    pub(crate) finish_reason: &'a str,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Those of them that were in the cache.
    pub(crate) cached_tokens: usize,
    /// Tokens of all answers.
    pub(crate) completion_tokens: usize,
    /// When the request arrived.
    pub(crate) arrived: Instant,
    /// When its first step began.
    pub(crate) started: Option<Instant>,
    /// When its first token was there.
    pub(crate) first_token: Option<Instant>,
    /// When its last token was there.
    pub(crate) last_token: Option<Instant>,
}

/// Makes a request's span a child of the span that its headers name. Before the span is entered; afterwards it is too late.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    #[cfg(feature = "otel")]
    export::continue_trace(span, headers);
    #[cfg(not(feature = "otel"))]
    let _ = (span, headers);
}

/// Adds what is known at the end of a generation to its request's span.
pub(crate) fn generation(span: &Span, trace: &GenerationTrace<'_>) {
    #[cfg(feature = "otel")]
    export::generation(span, trace);
    #[cfg(not(feature = "otel"))]
    let _ = (span, trace);
}
