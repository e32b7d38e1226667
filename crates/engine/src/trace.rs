//! Looking inside a step: named temporaries of a prompt's last rows, through the plans that generation uses.

use std::collections::{BTreeMap, HashMap};

use glim_plan::{GgmlType, InputKind, Plan, StepResults};
use glim_text::TokenId;

use crate::buckets::{bucket_for, prefill_chunks};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::steps::Prepared;

/// Rows of one buffer, f32 or i32.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rows {
    /// Elements of a row.
    pub(crate) width: usize,
    /// Rows of an f32 buffer, the last ones of the prompt.
    pub(crate) f32s: Vec<f32>,
    /// Rows of an i32 buffer.
    pub(crate) i32s: Vec<i32>,
}

impl Rows {
    fn push(&mut self, values: Values<'_>, live: usize, keep: usize) {
        fn tail<T: Copy>(all: &mut Vec<T>, new: &[T], keep: usize) {
            all.extend_from_slice(new);
            let extra = all.len().saturating_sub(keep);
            all.drain(..extra);
        }
        let (n, keep) = (live * self.width, keep * self.width);
        match values {
            Values::F32(v) => tail(&mut self.f32s, &v[..n], keep),
            Values::I32(v) => tail(&mut self.i32s, &v[..n], keep),
        }
    }
}

enum Values<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
}

/// Buffers by name.
pub(crate) type Trace = HashMap<String, Rows>;

/// Index choices that replace the model's own: by index of the full layer and position.
pub(crate) type ForcedChoices = BTreeMap<(usize, usize), Vec<i32>>;

/// Prepared plans whose taps are results, one for each prefill bucket.
pub(crate) struct Tracer {
    taps: Vec<String>,
    steps: Vec<(usize, Prepared)>,
}

impl Tracer {
    /// Plans that give logits of every row, and `taps`. `forced`: index choices can be replaced.
    pub(crate) fn new(
        engine: &mut Engine,
        taps: Vec<String>,
        forced: bool,
    ) -> Result<Self, EngineError> {
        let mut steps = Vec::new();
        for tokens in engine.buckets().to_vec() {
            let tap = |plan: &mut Plan| {
                taps.iter()
                    .try_for_each(|tap| plan.tap(tap).map(|_| ()).map_err(EngineError::from))
            };
            steps.push((tokens, engine.prepare_every_row(tokens, forced, tap)?));
        }
        Ok(Self { taps, steps })
    }

    /// Runs a prompt as a sequence of its own and keeps the last `keep(tap)` rows of each tap. `each` sees every chunk's
    /// results as they come: the first row's position, the number of rows, and the results.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        ids: &[TokenId],
        keep: impl Fn(&str) -> usize,
        forced: &ForcedChoices,
        mut each: impl FnMut(usize, usize, &StepResults),
    ) -> Result<Trace, EngineError> {
        engine.check_prompt(ids)?;
        if ids.len() > engine.context() {
            let (needed, available) = (ids.len(), engine.context());
            return Err(EngineError::ContextExceeded { needed, available });
        }
        let buckets: Vec<usize> = self.steps.iter().map(|(tokens, _)| *tokens).collect();
        let (taps, steps) = (&self.taps, &mut self.steps);
        engine.with_sequence(|engine, sequence| {
            let mut trace = Trace::new();
            for chunk in prefill_chunks(ids.len(), engine.max_chunk()) {
                let bucket = bucket_for(&buckets, chunk.len());
                let Some((_, prepared)) = steps.iter_mut().find(|(tokens, _)| *tokens == bucket)
                else {
                    continue;
                };
                set_forced(prepared, &chunk, forced)?;
                let results = engine.run_rows(prepared, sequence, &ids[chunk.clone()])?;
                each(chunk.start, chunk.len(), &results);
                for tap in taps {
                    let plan = &prepared.plan;
                    let missing = || EngineError::NoResult {
                        plan: plan.name.clone(),
                        name: tap.clone(),
                    };
                    let decl = plan.buffer(plan.find(tap).ok_or_else(missing)?);
                    let values = match decl.dtype {
                        GgmlType::I32 => Values::I32(results.i32s(tap).ok_or_else(missing)?),
                        _ => Values::F32(results.f32s(tap).ok_or_else(missing)?),
                    };
                    let rows = trace.entry(tap.clone()).or_default();
                    rows.width = decl.row_elements();
                    rows.push(values, chunk.len(), keep(tap));
                }
            }
            Ok(trace)
        })
    }
}

/// Writes the forced choices of a chunk's rows into the step's inputs; −1 everywhere else.
fn set_forced(
    prepared: &mut Prepared,
    chunk: &std::ops::Range<usize>,
    forced: &ForcedChoices,
) -> Result<(), EngineError> {
    let rows = prepared.plan.step.tokens();
    let inputs = prepared.inputs_mut();
    if !inputs.has(InputKind::ForcedTopk) {
        return Ok(());
    }
    let width = inputs.get(InputKind::ForcedTopk).len() / rows;
    let mut words = vec![-1; rows * width];
    for ((layer, position), choice) in forced {
        if chunk.contains(position) {
            let at = (position - chunk.start) * width + layer * choice.len();
            words[at..][..choice.len()].copy_from_slice(choice);
        }
    }
    inputs.set_i32(InputKind::ForcedTopk, words)?;
    Ok(())
}
