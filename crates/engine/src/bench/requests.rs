//! Timing requests beside each other, through the queue: what batching gains, and what chunks spare others.

use std::time::{Duration, Instant};

use glim_text::TokenId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::event::Event;
use crate::request::GenerateRequest;
use crate::scheduler::RequestId;

/// Tokens of the prompt of a request that is decoding while others arrive, and of one that arrives behind a long prompt.
const SHORT: usize = 16;

/// Several requests at a time, timed from the first submission to the last token.
#[derive(Debug, Clone, PartialEq)]
pub struct Concurrent {
    /// Requests at a time.
    pub requests: usize,
    /// Tokens of each prompt; no two begin alike.
    pub prompt: usize,
    /// Tokens of each answer.
    pub answer: usize,
    /// Until the last token of all.
    pub total: Duration,
    /// Time of the ticks that had no prompt to compute.
    pub decode: Duration,
    /// Tokens that these ticks drew.
    pub decoded: usize,
}

impl Concurrent {
    /// Tokens of all answers a second, prompts and all.
    pub fn tok_s(&self) -> f64 {
        (self.requests * self.answer) as f64 / self.total.as_secs_f64()
    }

    /// Tokens a second while nothing but answers is computed.
    pub fn decode_tok_s(&self) -> f64 {
        self.decoded as f64 / self.decode.as_secs_f64()
    }
}

/// A short request that arrives just after a step of a long prompt has begun, while a third request decodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Prompt tokens of a step at most.
    pub chunk: usize,
    /// Tokens of the long prompt.
    pub long: usize,
    /// Tokens of the short one.
    pub short: usize,
    /// From its arrival to the first token of the short one.
    pub short_ttft: Duration,
    /// The same of the long one.
    pub long_ttft: Duration,
    /// The longest that the third waited between two tokens.
    pub longest_gap: Duration,
}

/// Runs `requests` distinct requests at a time to their ends.
///
/// # Errors
/// If the engine has no room for them, or a step fails.
pub fn concurrent(
    engine: &mut Engine,
    requests: usize,
    prompt: usize,
    answer: usize,
) -> Result<Concurrent, EngineError> {
    engine.clear_prefix_cache();
    let all: Vec<GenerateRequest> = (0..requests)
        .map(|i| request(engine, i, prompt, answer))
        .collect();
    let start = Instant::now();
    engine.submit_all(all)?;
    let (mut decode, mut decoded) = (Duration::ZERO, 0);
    while !engine.is_idle() {
        let begin = Instant::now();
        let events = engine.step()?;
        if engine.stats().last_step.prefill_tokens == 0 {
            decode += begin.elapsed();
            decoded += events
                .iter()
                .filter(|e| matches!(e, Event::Token { .. }))
                .count();
        }
        fail_with(events)?;
    }
    Ok(Concurrent {
        requests,
        prompt,
        answer,
        total: start.elapsed(),
        decode,
        decoded,
    })
}

/// Lets a short request arrive behind one whose prompt has `long` tokens, in steps of at most `chunk`.
///
/// # Errors
/// As [`concurrent`].
pub fn arrival(engine: &mut Engine, chunk: usize, long: usize) -> Result<Arrival, EngineError> {
    let before = engine.set_max_chunk(chunk);
    let result = arrive(engine, chunk, long);
    engine.set_max_chunk(before);
    result
}

fn arrive(engine: &mut Engine, chunk: usize, long: usize) -> Result<Arrival, EngineError> {
    engine.clear_prefix_cache();
    let room = engine.context() - SHORT;
    let decodes = request(engine, 0, SHORT, room);
    let decodes = engine.submit(decodes)?;
    until(engine, decodes)?;
    let long_request = request(engine, 1, long, 1);
    let long_id = engine.submit(long_request)?;
    let start = Instant::now();
    let mut last = start;
    let (mut short_id, mut short_ttft, mut long_ttft) = (None, None, None);
    let mut longest_gap = Duration::ZERO;
    while short_ttft.is_none() || long_ttft.is_none() {
        let events = engine.step()?;
        let now = Instant::now();
        for event in &events {
            if let Event::Token { id, .. } = event {
                if *id == decodes {
                    longest_gap = longest_gap.max(now - last);
                    last = now;
                } else if *id == long_id {
                    long_ttft = Some(now - start);
                } else if Some(*id) == short_id {
                    short_ttft = Some(now - start);
                }
            }
        }
        fail_with(events)?;
        if short_id.is_none() {
            let short = request(engine, 2, SHORT, 1);
            short_id = Some(engine.submit(short)?);
        }
    }
    engine.cancel(decodes);
    Ok(Arrival {
        chunk,
        long,
        short: SHORT,
        short_ttft: short_ttft.unwrap_or_default(),
        long_ttft: long_ttft.unwrap_or_default(),
        longest_gap,
    })
}

/// Runs ticks until a request has a token.
fn until(engine: &mut Engine, request: RequestId) -> Result<(), EngineError> {
    loop {
        let events = engine.step()?;
        let is_it = |e: &Event| matches!(e, Event::Token { id, .. } if *id == request);
        let is_there = events.iter().any(is_it);
        fail_with(events)?;
        if is_there {
            return Ok(());
        }
    }
}

fn fail_with(events: Vec<Event>) -> Result<(), EngineError> {
    let failed = events.into_iter().find_map(|event| match event {
        Event::Failed { error, .. } => Some(error),
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}

/// Request `i`: its ids spread over the vocabulary, and no two requests begin alike.
fn request(engine: &Engine, i: usize, prompt: usize, answer: usize) -> GenerateRequest {
    let vocab_size = engine.inventory().config().vocab_size;
    let token = |position: usize| {
        let id = (position * 7919 + i * 104_729 + 13) % vocab_size;
        TokenId(id as u32)
    };
    GenerateRequest {
        max_tokens: Some(answer),
        ..GenerateRequest::new((0..prompt).map(token).collect())
    }
}
