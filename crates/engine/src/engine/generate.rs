//! One request with nothing beside it, for callers that want an answer and no queue.

use std::ops::ControlFlow;
use std::time::Instant;

use glim_text::TokenId;

use super::Engine;
use crate::error::EngineError;
use crate::event::{Event, FinishReason, Generation};
use crate::request::GenerateRequest;

impl Engine {
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
            cached_tokens: 0,
            prefill: start.elapsed(),
            decode: start.elapsed(),
            decode_steps: 0,
        };
        let mut first = None;
        while !self.is_idle() {
            let events = self.step().inspect_err(|_| {
                self.cancel(own);
            })?;
            let mut has_drawn = false;
            for event in events {
                match event {
                    Event::Started { cached_tokens, .. } => out.cached_tokens = cached_tokens,
                    Event::Preempted { .. } => {}
                    Event::Token {
                        token, logprobs, ..
                    } => {
                        has_drawn = true;
                        out.tokens.push(token);
                        out.logprobs.extend(logprobs);
                        if on_token(token).is_break() && self.cancel(own) {
                            out.finish_reason = FinishReason::Cancelled;
                        }
                    }
                    Event::Finished { reason, .. } => {
                        has_drawn = true;
                        out.finish_reason = reason;
                    }
                    Event::Failed { error, .. } => return Err(error),
                }
            }
            match first {
                None if has_drawn => {
                    out.prefill = start.elapsed();
                    first = Some(Instant::now());
                }
                None => {}
                Some(_) => out.decode_steps += 1,
            }
            out.decode = first.map_or(out.decode, |first| first.elapsed());
        }
        Ok(out)
    }
}
