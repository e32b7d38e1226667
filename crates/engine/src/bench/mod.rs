//! Timing steps as they are: the prepared plans of an engine, with cached rows whose values do not matter.
//!
//! What a step costs depends on how many rows and positions it has, not on what is in them (but for which experts are chosen),
//! so a context is not computed first: its blocks are taken as they are.

mod requests;

use std::time::{Duration, Instant};

use glim_plan::sample::SampleParams;
use glim_plan::{Cost, Load, StepKind, plan_cost};
use glim_text::TokenId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::sequence::Sequence;
use crate::steps::{BatchRow, Draw};

pub use requests::{Arrival, Concurrent, arrival, concurrent};

/// One size of step, timed.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Rows of the step.
    pub rows: usize,
    /// Positions that are cached for each sequence before it.
    pub context: usize,
    /// Time of each repetition.
    pub times: Vec<Duration>,
    /// What the step must move and do, all ranks together.
    pub cost: Cost,
    /// Operations of a rank's plan.
    pub ops: usize,
}

impl Timing {
    /// The median repetition, in seconds.
    pub fn median(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        times
            .get(times.len() / 2)
            .map_or(0.0, Duration::as_secs_f64)
    }
}

/// Times decode steps of `rows` sequences of `context` tokens each.
///
/// # Errors
/// If the engine has no room for them, or a step fails.
pub fn decode(
    engine: &mut Engine,
    rows: usize,
    context: usize,
    repeats: usize,
) -> Result<Timing, EngineError> {
    let tokens: Vec<[TokenId; 1]> = (0..rows).map(|i| [token(engine, i)]).collect();
    let batch: Vec<&[TokenId]> = tokens.iter().map(|t| t.as_slice()).collect();
    time(engine, &batch, context, repeats, |engine, n| {
        engine.decode_kind(n)
    })
}

/// Times a prefill step of `tokens` tokens of one sequence that has `context` tokens already.
///
/// # Errors
/// As [`decode`].
pub fn prefill(
    engine: &mut Engine,
    tokens: usize,
    context: usize,
    repeats: usize,
) -> Result<Timing, EngineError> {
    let ids: Vec<TokenId> = (0..tokens).map(|i| token(engine, i)).collect();
    time(engine, &[&ids], context, repeats, |engine, n| {
        engine.prefill_kind(n)
    })
}

/// Ids that spread over the vocabulary, so that rows differ and choose different experts.
fn token(engine: &Engine, i: usize) -> TokenId {
    TokenId((i as u32 * 7919 + 13) % engine.inventory().config().vocab_size as u32)
}

fn time(
    engine: &mut Engine,
    batch: &[&[TokenId]],
    context: usize,
    repeats: usize,
    kind: impl Fn(&Engine, usize) -> StepKind,
) -> Result<Timing, EngineError> {
    let rows: usize = batch.iter().map(|tokens| tokens.len()).sum();
    let longest = batch.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
    let needed = context + longest;
    if needed > engine.context() {
        return Err(EngineError::ContextExceeded {
            needed,
            available: engine.context(),
        });
    }
    let step = kind(engine, rows);
    if step.tokens() < rows || step.sequences() < batch.len() {
        return Err(EngineError::BadSequences {
            found: batch.len(),
            max: step.sequences(),
        });
    }
    engine.with_sequences(batch.len(), |engine, sequences| {
        for (sequence, tokens) in sequences.iter_mut().zip(batch) {
            engine.reserve(sequence, context + tokens.len())?;
            sequence.advance(context);
        }
        let vocab = engine.inventory().config().vocab_size;
        let mask = vec![u32::MAX; vocab.div_ceil(32)];
        let mut times = Vec::with_capacity(repeats);
        // One more than counts: the first run finds caches and pages cold.
        for repeat in 0..=repeats {
            let start = Instant::now();
            engine.run_batch(step, &rows_of(sequences, batch, context, &mask))?;
            if repeat > 0 {
                times.push(start.elapsed());
            }
        }
        let load = Load {
            rows,
            outputs: batch.len(),
            sequences: batch.len(),
            context: context + longest.div_ceil(2),
        };
        let step = engine.step_of(step)?;
        let costs = step.plans().map(|plan| plan_cost(plan, &load));
        Ok(Timing {
            rows,
            context,
            times,
            cost: costs.fold(Cost::default(), |sum, cost| sum + cost),
            ops: step.plan.ops.len(),
        })
    })
}

fn rows_of<'a>(
    sequences: &'a [Sequence],
    batch: &'a [&[TokenId]],
    context: usize,
    mask: &'a [u32],
) -> Vec<BatchRow<'a>> {
    let params = SampleParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        choice: 0,
        position: context as u32,
    };
    let row = |(slot, (sequence, tokens)): (usize, (&'a Sequence, &&'a [TokenId]))| BatchRow {
        tokens,
        sequence,
        under_way: 0,
        slot,
        draw: Some(Draw { params, mask }),
    };
    sequences.iter().zip(batch).enumerate().map(row).collect()
}
