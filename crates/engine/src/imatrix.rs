//! Importance matrices: how strongly each column of each weight matrix is driven while the model reads a text.
//!
//! For a weight that multiplies rows `x`, the sum of `x_j²` over all rows, for each column `j`; for stacked experts, over
//! the rows that the router sent to each; for the heads of `attn_k_b` and `attn_v_b`, over each head's own part. The text is
//! cut into windows that do not see each other, and runs through the plans that serve: what an operation reads is tapped.
//!
//! Two inputs are inside operations: the rows that `ffn_down_exps` multiplies are recomputed, `silu(gate_e x) ⊙ up_e x` in
//! f32 from the tapped `x` and route and from the decoded weights. That decodes every expert that a chunk meets once more for each
//! chunk; memory is 8 bytes for each column of each expert (GLM-5:
//! 1.3 GB, and 1.1 GB for the f32 at the end) and the taps of one chunk.
//!
//! Sums are f64 in order of rows, whatever the number of threads; they are rounded to f32 at the end. What is collected
//! under which name is as in llama.cpp (`collect_imatrix` in `tools/imatrix/imatrix.cpp`), which sums in f32.

use std::collections::BTreeMap;

use glim_model::Checkpoint;
use glim_model::checkpoint::{Source, TensorDesc};
use glim_model::quantize::{Entry, Matrices, Sums};
use glim_plan::{BufferId, Op, Plan, StepResults};
use glim_text::TokenId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::eval::perplexity::Likelihood;
use crate::trace::{ForcedChoices, Tracer};

/// What to collect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImatrixOptions {
    /// Tokens of a window.
    pub window: usize,
    /// Also `output.weight`. llama.cpp leaves it out unless asked: its type is a better one anyway.
    pub output: bool,
    /// Threads for what is recomputed, at least 1.
    pub threads: usize,
}

/// What was collected.
#[derive(Debug, Clone, PartialEq)]
pub struct Collected {
    /// Sums by the names of the file's tensors; [`Sums::datasets`] is empty.
    pub sums: Sums,
    /// Perplexity of the text: a sign of whether the model reads it as it should.
    pub perplexity: f64,
    /// Experts, over all layers, that no token met, and experts in all.
    pub unmet: (usize, usize),
}

/// Reads a text. `progress` gets the windows done, the windows in all, and the perplexity so far.
///
/// # Errors
/// If the text is shorter than a window, a weight cannot be decoded, an activation is not finite, or a step fails.
pub fn imatrix(
    engine: &mut Engine,
    checkpoint: &Checkpoint,
    ids: &[TokenId],
    options: ImatrixOptions,
    mut progress: impl FnMut(usize, usize, f64),
) -> Result<Collected, EngineError> {
    let windows = ids.len() / options.window.max(1);
    if windows == 0 || options.window < 2 {
        return Err(EngineError::TextTooShort {
            found: ids.len(),
            expected: options.window.max(2),
        });
    }
    let vocab = engine.inventory().config().vocab_size;
    let kind = engine.prefill_kind(options.window);
    let mut readings = readings(&engine.step_of(kind)?.plan, checkpoint, options.output)?;
    let mut taps: Vec<String> = readings.iter().flat_map(Reading::taps).collect();
    taps.sort();
    taps.dedup();
    let mut tracer = Tracer::new(engine, taps, false)?;
    let (mut text, mut failure) = (Likelihood::default(), None);
    for (w, window) in ids.chunks_exact(options.window).enumerate() {
        tracer.run(
            engine,
            window,
            |_| 0,
            &ForcedChoices::new(),
            |first, n, results| {
                text.add(results, vocab, window, first..first + n);
                for reading in &mut readings {
                    if failure.is_none() {
                        failure = reading.add(results, n, options.threads).err();
                    }
                }
            },
        )?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        progress(w + 1, windows, text.perplexity());
    }

    let mut entries = BTreeMap::new();
    let mut unmet = (0, 0);
    for reading in readings {
        unmet.0 += reading.unmet();
        unmet.1 += reading.experts();
        reading.finish(&mut entries)?;
    }
    by_stored_names(checkpoint, &mut entries);
    Ok(Collected {
        sums: Sums {
            datasets: Vec::new(),
            chunk_count: u32::try_from(windows).unwrap_or(u32::MAX),
            chunk_size: u32::try_from(options.window).unwrap_or(u32::MAX),
            entries,
        },
        perplexity: text.perplexity(),
        unmet,
    })
}

/// Sums of squares of the columns of some matrices.
#[derive(Debug, Default)]
struct Squares {
    /// `[matrices, columns]`.
    sums: Vec<f64>,
    /// Rows, of all matrices or of each.
    counts: Vec<u64>,
}

impl Squares {
    fn new(columns: usize, matrices: usize, counts: usize) -> Self {
        Self {
            sums: vec![0.0; columns * matrices],
            counts: vec![0; counts],
        }
    }

    /// Adds a row of matrix `i`.
    fn add(&mut self, i: usize, x: &[f32]) {
        for (sum, x) in self.sums[i * x.len()..].iter_mut().zip(x) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }

    fn entry(&self, tensor: &str) -> Result<Entry, EngineError> {
        let sums: Vec<f32> = self.sums.iter().map(|sum| *sum as f32).collect();
        match sums.iter().position(|sum| !sum.is_finite()) {
            Some(column) => Err(EngineError::CorruptActivation {
                tensor: tensor.to_owned(),
                column,
            }),
            None => Ok(Entry {
                sums,
                counts: self.counts.clone(),
            }),
        }
    }
}

/// What one operation reads, and its sums.
#[derive(Debug)]
enum Reading<'a> {
    /// Rows that all of `weights` multiply.
    Rows {
        x: String,
        width: usize,
        weights: Vec<String>,
        squares: Squares,
    },
    /// Rows of several heads, of which a range of columns is multiplied with each head's matrix.
    Heads {
        x: String,
        head_width: usize,
        start: usize,
        len: usize,
        weight: String,
        squares: Squares,
    },
    /// Rows for the experts that the router chose.
    Experts(Box<Experts<'a>>),
}

#[derive(Debug)]
struct Experts<'a> {
    x: String,
    ids: String,
    k: usize,
    hidden: usize,
    inner: usize,
    gate: (String, Matrices<'a>),
    up: (String, Matrices<'a>),
    down: String,
    /// Of gate and up.
    into: Squares,
    /// Of down.
    out_of: Squares,
}

/// The readings of a plan's operations.
fn readings<'a>(
    plan: &Plan,
    checkpoint: &'a Checkpoint,
    output: bool,
) -> Result<Vec<Reading<'a>>, EngineError> {
    let name = |id: BufferId| plan.buffer(id).name.clone();
    let width = |id: BufferId| plan.buffer(id).row_elements();
    let rows = |x: BufferId, weights: Vec<String>| Reading::Rows {
        x: name(x),
        width: width(x),
        weights,
        squares: Squares::new(width(x), 1, 1),
    };
    let mut readings = Vec::new();
    for op in plan.ops.iter().flat_map(|node| node.op.parts()) {
        match op {
            Op::Linear { x, weights, .. } => {
                readings.push(rows(*x, weights.iter().map(|id| name(*id)).collect()));
            }
            Op::Route { x, weight, .. } => readings.push(rows(*x, vec![name(*weight)])),
            Op::LmHead { x, weight, .. } if output => readings.push(rows(*x, vec![name(*weight)])),
            Op::HeadProject { x, weight, .. } => {
                let heads = plan.buffer(*weight).shape[0];
                readings.push(Reading::Heads {
                    x: name(x.buffer),
                    head_width: width(x.buffer) / heads,
                    start: x.start,
                    len: x.len,
                    weight: name(*weight),
                    squares: Squares::new(x.len, heads, 1),
                });
            }
            Op::ExpertFfn {
                x,
                ids,
                gate,
                up,
                down,
                ..
            } => {
                let matrices = |id: BufferId| -> Result<(String, Matrices<'a>), EngineError> {
                    let name = name(id);
                    let tensor = tensor(checkpoint, &name)?;
                    Ok((name, Matrices::of(checkpoint, tensor)?))
                };
                let shape = &plan.buffer(*gate).shape;
                let (experts, inner, hidden) = (shape[0], shape[1], shape[2]);
                readings.push(Reading::Experts(Box::new(Experts {
                    x: name(*x),
                    ids: name(*ids),
                    k: width(*ids),
                    hidden,
                    inner,
                    gate: matrices(*gate)?,
                    up: matrices(*up)?,
                    down: name(*down),
                    into: Squares::new(hidden, experts, experts),
                    out_of: Squares::new(inner, experts, experts),
                })));
            }
            _ => {}
        }
    }
    // From before keys and values were split: the latent, as it is cached, is what the whole multiplies.
    for layer in 0..checkpoint.config().n_layers {
        let kv_b = format!("blk.{layer}.attn_kv_b.weight");
        let latent = format!("blk.{layer}.attn_kv_a_norm.out");
        if let (true, Some(x)) = (is_stored(checkpoint, &kv_b), plan.find(&latent)) {
            readings.push(rows(x, vec![kv_b]));
        }
    }
    Ok(readings)
}

fn tensor<'a>(checkpoint: &'a Checkpoint, name: &str) -> Result<&'a TensorDesc, EngineError> {
    let found = checkpoint.tensor(name);
    found.ok_or_else(|| {
        EngineError::Emit(glim_model::EmitError::NoWeight {
            name: name.to_owned(),
        })
    })
}

fn is_stored(checkpoint: &Checkpoint, name: &str) -> bool {
    match checkpoint.source() {
        Source::Gguf(gguf) => gguf.tensor(name).is_some(),
        Source::Hf(_) => false,
    }
}

/// Adds the entries that a file's own forms of tensors are looked up by.
fn by_stored_names(checkpoint: &Checkpoint, entries: &mut BTreeMap<String, Entry>) {
    for layer in 0..checkpoint.config().n_layers {
        let fused = format!("blk.{layer}.ffn_gate_up_exps.weight");
        let gate = format!("blk.{layer}.ffn_gate_exps.weight");
        if is_stored(checkpoint, &fused)
            && let Some(entry) = entries.get(&gate)
        {
            entries.insert(fused, entry.clone());
        }
    }
}

impl Reading<'_> {
    /// Names of the buffers it looks at.
    fn taps(&self) -> Vec<String> {
        match self {
            Self::Rows { x, .. } | Self::Heads { x, .. } => vec![x.clone()],
            Self::Experts(experts) => vec![experts.x.clone(), experts.ids.clone()],
        }
    }

    /// Adds the first `n` rows of a chunk.
    fn add(&mut self, results: &StepResults, n: usize, threads: usize) -> Result<(), EngineError> {
        match self {
            Self::Rows {
                x, width, squares, ..
            } => {
                let x = f32s(results, x)?;
                x.chunks_exact(*width)
                    .take(n)
                    .for_each(|row| squares.add(0, row));
                squares.counts[0] += n as u64;
            }
            Self::Heads {
                x,
                head_width,
                start,
                len,
                squares,
                ..
            } => {
                let heads = squares.sums.len() / *len;
                let x = f32s(results, x)?;
                for (i, head) in x.chunks_exact(*head_width).take(n * heads).enumerate() {
                    squares.add(i % heads, &head[*start..][..*len]);
                }
                squares.counts[0] += n as u64;
            }
            Self::Experts(experts) => experts.add(results, n, threads)?,
        }
        Ok(())
    }

    /// Experts that no row met.
    fn unmet(&self) -> usize {
        match self {
            Self::Experts(experts) => {
                let counts = &experts.into.counts;
                counts.iter().filter(|count| **count == 0).count()
            }
            _ => 0,
        }
    }

    fn experts(&self) -> usize {
        match self {
            Self::Experts(experts) => experts.into.counts.len(),
            _ => 0,
        }
    }

    fn finish(self, entries: &mut BTreeMap<String, Entry>) -> Result<(), EngineError> {
        let mut insert = |name: String, squares: &Squares| -> Result<(), EngineError> {
            let entry = squares.entry(&name)?;
            entries.insert(name, entry);
            Ok(())
        };
        match self {
            Self::Rows {
                weights, squares, ..
            } => weights
                .into_iter()
                .try_for_each(|weight| insert(weight, &squares)),
            Self::Heads {
                weight, squares, ..
            } => insert(weight, &squares),
            Self::Experts(experts) => {
                insert(experts.gate.0, &experts.into)?;
                insert(experts.up.0, &experts.into)?;
                insert(experts.down, &experts.out_of)
            }
        }
    }
}

fn f32s<'r>(results: &'r StepResults, name: &str) -> Result<&'r [f32], EngineError> {
    results.f32s(name).ok_or_else(|| no_result(name))
}

fn no_result(name: &str) -> EngineError {
    EngineError::NoResult {
        plan: "of this step".into(),
        name: name.to_owned(),
    }
}

impl Experts<'_> {
    fn add(&mut self, results: &StepResults, n: usize, threads: usize) -> Result<(), EngineError> {
        let ids = results
            .i32s(&self.ids)
            .ok_or_else(|| no_result(&self.ids))?;
        let x = f32s(results, &self.x)?;
        // Rows of each expert, in order.
        let mut rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (row, chosen) in ids.chunks_exact(self.k).take(n).enumerate() {
            for id in chosen {
                // A row has no expert twice, and a pad's −1 is none.
                if let Ok(expert) = usize::try_from(*id) {
                    rows.entry(expert).or_default().push(row);
                }
            }
        }
        let rows: Vec<(usize, Vec<usize>)> = rows.into_iter().collect();
        for (expert, rows) in &rows {
            for row in rows {
                self.into
                    .add(*expert, &x[row * self.hidden..][..self.hidden]);
            }
            self.into.counts[*expert] += rows.len() as u64;
            self.out_of.counts[*expert] += rows.len() as u64;
        }

        // Each thread has experts of its own, and so sums of its own.
        let (hidden, inner) = (self.hidden, self.inner);
        let (gate, up) = (&self.gate.1, &self.up.1);
        let sum = |share: &[(usize, Vec<usize>)]| -> Result<Vec<Squares>, EngineError> {
            let (mut gate_values, mut up_values) = (Vec::new(), Vec::new());
            let mut found = Vec::with_capacity(share.len());
            for (expert, rows) in share {
                let failed = |error: glim_model::QuantError| EngineError::BadWeight {
                    reason: error.to_string(),
                };
                gate.decode(*expert, &mut gate_values).map_err(failed)?;
                up.decode(*expert, &mut up_values).map_err(failed)?;
                let mut squares = Squares::new(inner, 1, 0);
                for row in rows {
                    let x = &x[row * hidden..][..hidden];
                    squares.add(0, &inner_row(&gate_values, &up_values, x));
                }
                found.push(squares);
            }
            Ok(found)
        };
        let shares: Vec<&[(usize, Vec<usize>)]> = rows
            .chunks(rows.len().div_ceil(threads.max(1)).max(1))
            .collect();
        let sums: Vec<Result<Vec<Squares>, EngineError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = shares
                .iter()
                .map(|share| scope.spawn(|| sum(share)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(sums) => sums,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        });
        for (share, sums) in shares.into_iter().zip(sums) {
            for ((expert, _), squares) in share.iter().zip(sums?) {
                let all = &mut self.out_of.sums[expert * inner..];
                all.iter_mut()
                    .zip(squares.sums)
                    .for_each(|(all, sum)| *all += sum);
            }
        }
        Ok(())
    }
}

/// `silu(gate x) ⊙ up x`.
fn inner_row(gate: &[f32], up: &[f32], x: &[f32]) -> Vec<f32> {
    let rows = gate.chunks_exact(x.len()).zip(up.chunks_exact(x.len()));
    let value = |(gate, up): (&[f32], &[f32])| {
        let gate = dot(gate, x);
        gate / (1.0 + (-gate).exp()) * dot(up, x)
    };
    rows.map(value).collect()
}

/// In eight sums side by side, which vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    sums.into_iter().chain(rest).sum()
}
