//! Timing steps as they are: the prepared plans of an engine, with cached rows whose values do not matter.
//!
//! What a step costs depends on how many rows and positions it has, not on what is in them (but for which experts are chosen),
//! so a context is not computed first: its blocks are taken as they are.

mod profile;
mod requests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use glim_plan::backend::MAX_IN_FLIGHT;
use glim_plan::sample::SampleParams;
use glim_plan::{Cost, Load, StepKind, plan_cost};
use glim_text::TokenId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::sequence::Sequence;
use crate::steps::{BatchRow, Draw};

pub use profile::{Explained, ExplainedOp, explain};
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
    /// Nodes of the graph that rank 0 runs it as, if it is one.
    pub nodes: Option<usize>,
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
    time(engine, &Size::Decode { rows, context }, repeats)
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
    time(engine, &Size::Prefill { tokens, context }, repeats)
}

/// What a step is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A token of each of `rows` sequences that have `context` tokens already.
    Decode {
        /// Sequences.
        rows: usize,
        /// Tokens before the step.
        context: usize,
    },
    /// `tokens` tokens of one sequence that has `context` tokens already.
    Prefill {
        /// Tokens of the step.
        tokens: usize,
        /// Tokens before it.
        context: usize,
    },
}

impl Size {
    /// Rows of the step.
    pub fn rows(self) -> usize {
        match self {
            Self::Decode { rows, .. } => rows,
            Self::Prefill { tokens, .. } => tokens,
        }
    }

    /// Positions that are cached for each sequence before it.
    pub fn context(self) -> usize {
        match self {
            Self::Decode { context, .. } | Self::Prefill { context, .. } => context,
        }
    }

    fn sequences(self) -> usize {
        match self {
            Self::Decode { rows, .. } => rows,
            Self::Prefill { .. } => 1,
        }
    }

    /// What the step must be priced by.
    fn load(self) -> Load {
        let tokens = self.rows() / self.sequences().max(1);
        Load {
            rows: self.rows(),
            outputs: self.sequences(),
            sequences: self.sequences(),
            context: self.context() + tokens.div_ceil(2),
        }
    }
}

/// A token that the model has: ids spread over the vocabulary, so that rows differ and choose different experts.
fn token(engine: &Engine, i: usize) -> TokenId {
    TokenId((i as u32 * 7919 + 13) % engine.inventory().config().vocab_size as u32)
}

fn time(engine: &mut Engine, size: &Size, repeats: usize) -> Result<Timing, EngineError> {
    let (kind, times) = with_batch(engine, *size, |engine, kind, batch| {
        Ok((kind, times(engine, kind, batch, repeats)?))
    })?;
    let nodes = engine.nodes_of(kind)?;
    let step = engine.step_of(kind)?;
    let costs = step.plans().map(|plan| plan_cost(plan, &size.load()));
    Ok(Timing {
        rows: size.rows(),
        context: size.context(),
        times,
        cost: costs.fold(Cost::default(), |sum, cost| sum + cost),
        ops: step.plan.ops.len(),
        nodes,
    })
}

/// Runs a batch over and over, as generation runs such steps: a decode step is handed over while the one in front of it still runs, if the
/// backend gains by that, and its time is that from one step's end to the next one's; all others begin when they are asked for.
fn times(
    engine: &mut Engine,
    kind: StepKind,
    batch: &[BatchRow<'_>],
    repeats: usize,
) -> Result<Vec<Duration>, EngineError> {
    let ahead = match kind {
        StepKind::Decode { .. } if engine.launches_ahead() => MAX_IN_FLIGHT - 1,
        _ => 0,
    };
    // One more than counts: the first run finds caches and pages cold.
    engine.run_batch(kind, batch)?;
    let (mut in_flight, mut handed_over) = (VecDeque::new(), 0);
    let mut times = Vec::with_capacity(repeats);
    let mut last = Instant::now();
    for done in 0..repeats + ahead {
        while in_flight.len() <= ahead && handed_over < repeats + ahead {
            in_flight.push_back(engine.submit_batch(kind, batch)?);
            handed_over += 1;
        }
        let Some(ticket) = in_flight.pop_front() else {
            break;
        };
        engine.wait_batch(kind, ticket)?;
        let now = Instant::now();
        // Nothing ran in front of the first that is launched ahead.
        if done >= ahead {
            times.push(now - last);
        }
        last = now;
    }
    Ok(times)
}

/// Makes the batch of a step of this size, with its sequences, and the step that holds it.
fn with_batch<T>(
    engine: &mut Engine,
    size: Size,
    f: impl FnOnce(&mut Engine, StepKind, &[BatchRow<'_>]) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let (n, context) = (size.sequences(), size.context());
    let ids: Vec<TokenId> = (0..size.rows()).map(|i| token(engine, i)).collect();
    let batch: Vec<&[TokenId]> = ids.chunks(ids.len().div_ceil(n.max(1)).max(1)).collect();
    let needed = context + batch.first().map_or(0, |tokens| tokens.len());
    if needed > engine.context() {
        return Err(EngineError::ContextExceeded {
            needed,
            available: engine.context(),
        });
    }
    let kind = match size {
        Size::Decode { rows, .. } => engine.decode_kind(rows),
        Size::Prefill { tokens, .. } => engine.prefill_kind(tokens),
    };
    if kind.tokens() < size.rows() || kind.sequences() < n {
        return Err(EngineError::BadSequences {
            found: n,
            max: kind.sequences(),
        });
    }
    engine.with_sequences(n, |engine, sequences| {
        for sequence in sequences.iter_mut() {
            engine.reserve(sequence, needed)?;
            sequence.advance(context);
        }
        let vocab = engine.inventory().config().vocab_size;
        let mask = vec![u32::MAX; vocab.div_ceil(32)];
        f(engine, kind, &rows_of(sequences, &batch, context, &mask))
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
