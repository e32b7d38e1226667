//! One operation on chosen rows, in the reference's arithmetic, from operands that lie anywhere.
//!
//! The reference executor runs its steps through this, with operands in its own memory. A proof hands in what another backend
//! read, and weights as the bytes of a file, and gets what that backend should have written. [`Recompute::spread`] says beside it how
//! large the numbers were that an element was summed from, which is what rounding errors go by.
//!
//! Weights are decoded row by row: an operation needs memory for the rows that it is asked for, whatever the weight's size.

mod attention;
mod operands;
mod products;
mod sample;
mod spread;

pub use self::operands::{Matrix, Operands, Output, Rows};

use super::math::{layer_norm, rms_norm, rope_angles, rotate, swiglu};
use super::moe::{route, top_k_merge};
use crate::backend::BackendError;
use crate::buffer::{self, BufferId, InputKind};
use crate::op::{CarryRef, Cols, Op, RopeStyle};
use crate::plan::Plan;

/// Rows of a step that are not pads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// Rows.
    pub tokens: usize,
    /// Output rows.
    pub outputs: usize,
}

impl Live {
    /// Counts them in the inputs.
    ///
    /// # Errors
    /// If `cu_seqlens` falls or points outside.
    pub fn read(plan: &Plan, operands: &dyn Operands) -> Result<Self, BackendError> {
        let capacity = plan.step.tokens();
        let all = Self {
            tokens: capacity,
            outputs: 0,
        };
        let at = At {
            plan,
            operands,
            live: all,
            threads: 1,
            label: "inputs",
        };
        let input = |kind| plan.input(kind).map_or(Ok(&[][..]), |id| operands.i32s(id));
        let (cu_seqlens, output_rows) =
            (input(InputKind::CuSeqlens)?, input(InputKind::OutputRows)?);
        let mut tokens = capacity;
        for (i, end) in cu_seqlens.iter().enumerate() {
            let limit = cu_seqlens
                .get(i + 1)
                .map_or(capacity, |next| (*next as usize).min(capacity));
            tokens = at.index("cu_seqlens", *end, limit + 1)?;
        }
        let outputs = output_rows.iter().take_while(|row| **row != -1).count();
        Ok(Self { tokens, outputs })
    }
}

/// Computes operations of one plan, in a step with given operands.
#[derive(Clone, Copy)]
pub struct Recompute<'a> {
    plan: &'a Plan,
    operands: &'a dyn Operands,
    live: Live,
    threads: usize,
}

impl<'a> Recompute<'a> {
    /// For a step with these live rows. Large products are cut over `threads` threads, which changes no bit.
    pub fn new(plan: &'a Plan, operands: &'a dyn Operands, live: Live, threads: usize) -> Self {
        Self {
            plan,
            operands,
            live,
            threads,
        }
    }

    /// How many rows an operation writes: those that can be asked for.
    pub fn live_rows(&self, op: &Op) -> usize {
        let access = op.access();
        match access.writes.first().or(access.updates.first()) {
            Some(id) => self.at("").live_rows(*id),
            None => self.live.tokens,
        }
    }

    /// What an operation (a part, if it is a fused one) writes into these rows, ascending. `label` is for errors.
    ///
    /// # Errors
    /// If an operand is missing, or an index points outside.
    pub fn op(&self, label: &str, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        self.at(label).op(op, rows)
    }

    /// For each f32 output of [`Self::op`], in its order, how large the numbers were that each element comes from: its rounding
    /// error is this times a factor that depends on the arithmetic, and on the number of addends.
    ///
    /// | operation | spread |
    /// | --- | --- |
    /// | products | `√(Σ_b max_b(x)² · Σ_b w²)`, over blocks `b` of 32: the root sum of squares, if every element of a block were as large as its largest |
    /// | `ExpertFfn` | the same of the last product, with the spread of what goes into it: through silu's slope and the product with `up` |
    /// | `IndexScore` | `Σ_h |weight| · scale · max|q| · ‖key‖` |
    /// | `MlaAttend` | `Σ_s p · |c|`, times one and twice the largest score's spread `scale · max|q| · ‖row‖` |
    /// | `LayerNorm` | `|w| · scale · max|x| + |out| + |b|` |
    /// | `Rope` | length of the pair; 0 for elements that are not rotated |
    /// | `Add` | `|a| + |b|` |
    /// | `RmsNorm`, `SwiGlu`, `Embed` | `|out|` |
    /// | `Route` | of the *logits*, which are no output: one for each expert |
    /// | copies | 0 |
    ///
    /// # Errors
    /// As [`Self::op`].
    pub fn spread(
        &self,
        label: &str,
        op: &Op,
        rows: &[usize],
    ) -> Result<Vec<Output>, BackendError> {
        self.at(label).spread(op, rows)
    }

    /// The router's logits `[rows][experts]` of [`Op::Route`], which are no output; nothing for other operations.
    ///
    /// # Errors
    /// As [`Self::op`].
    pub fn router_logits(
        &self,
        label: &str,
        op: &Op,
        rows: &[usize],
    ) -> Result<Vec<Vec<f32>>, BackendError> {
        match op {
            Op::Route { x, weight, .. } => self.at(label).product(*x, *weight, rows),
            _ => Ok(Vec::new()),
        }
    }

    fn at<'l>(&self, label: &'l str) -> At<'l>
    where
        'a: 'l,
    {
        At {
            plan: self.plan,
            operands: self.operands,
            live: self.live,
            threads: self.threads,
            label,
        }
    }
}

/// [`Recompute`] at one operation.
#[derive(Clone, Copy)]
struct At<'a> {
    plan: &'a Plan,
    operands: &'a dyn Operands,
    live: Live,
    threads: usize,
    /// Label of the operation, for errors.
    label: &'a str,
}

impl<'a> At<'a> {
    // --- operands ---

    fn f32s(&self, id: BufferId) -> Result<&'a [f32], BackendError> {
        self.operands.f32s(id)
    }

    fn i32s(&self, id: BufferId) -> Result<&'a [i32], BackendError> {
        self.operands.i32s(id)
    }

    fn live_rows(&self, id: BufferId) -> usize {
        let b = self.plan.buffer(id);
        match b.rows {
            buffer::Rows::Tokens => self.live.tokens,
            buffer::Rows::Outputs => self.live.outputs,
            buffer::Rows::Whole => b.shape.first().copied().unwrap_or(1),
        }
    }

    fn row_len(&self, id: BufferId) -> usize {
        self.plan.buffer(id).row_elements()
    }

    fn axis(&self, id: BufferId, i: usize) -> usize {
        self.plan.buffer(id).shape.get(i).copied().unwrap_or(1)
    }

    fn last(&self, id: BufferId) -> usize {
        self.plan.buffer(id).shape.last().copied().unwrap_or(1)
    }

    /// Row `t` of an activation.
    fn row(&self, id: BufferId, t: usize) -> Result<&'a [f32], BackendError> {
        let n = self.row_len(id);
        Ok(&self.f32s(id)?[t * n..][..n])
    }

    /// The columns of each innermost row of row `t`.
    fn cols(
        &self,
        c: &Cols,
        t: usize,
    ) -> Result<impl Iterator<Item = &'a [f32]> + use<'a>, BackendError> {
        let (start, len) = (c.start, c.len);
        let rows = self.row(c.buffer, t)?.chunks_exact(self.last(c.buffer));
        Ok(rows.map(move |row| &row[start..start + len]))
    }

    /// An output that is computed row by row.
    fn rows(
        &self,
        out: BufferId,
        rows: &[usize],
        mut f: impl FnMut(usize) -> Result<Vec<f32>, BackendError>,
    ) -> Result<Vec<Output>, BackendError> {
        let rows = rows.iter().map(|t| Ok((*t, f(*t)?)));
        Ok(vec![Output {
            buffer: out,
            rows: Rows::F32(rows.collect::<Result<_, BackendError>>()?),
        }])
    }

    // --- indices from inputs: checked, because they come from outside the plan ---

    fn index(&self, what: &str, found: i32, bound: usize) -> Result<usize, BackendError> {
        match usize::try_from(found) {
            Ok(i) if i < bound => Ok(i),
            _ => Err(BackendError::OutOfRange {
                plan: self.plan.name.clone(),
                op: self.label.into(),
                what: what.into(),
                found: i64::from(found),
                bound,
            }),
        }
    }

    /// Sequence of a live row.
    fn sequence(&self, cu_seqlens: BufferId, row: usize) -> Result<usize, BackendError> {
        let cu = self.i32s(cu_seqlens)?;
        let ends = cu.iter().skip(1).take(cu.len().saturating_sub(2));
        Ok(ends.take_while(|end| **end <= row as i32).count())
    }

    fn carry_slot(&self, c: &CarryRef, sequence: usize) -> Result<usize, BackendError> {
        self.index(
            "sequence slot",
            self.i32s(c.sequence_slots)?[sequence],
            self.i32s(c.carry)?.len(),
        )
    }

    // --- operations ---

    fn op(&self, op: &Op, rows: &[usize]) -> Result<Vec<Output>, BackendError> {
        match op {
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            } => self.embed(*tokens, carry.as_ref(), *table, *out, rows),
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            } => {
                let w = self.operands.weight(*weight)?;
                let w = w.vector()?;
                self.map(x, *out, rows, |row, o| rms_norm(row, &w, *eps, o))
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let (w, b) = (self.operands.weight(*weight)?, self.operands.weight(*bias)?);
                let (w, b) = (w.vector()?, b.vector()?);
                self.map(x, *out, rows, |row, o| layer_norm(row, &w, &b, *eps, o))
            }
            Op::Linear {
                x, weights, outs, ..
            } => {
                let pairs = weights.iter().zip(outs);
                pairs
                    .map(|(w, out)| self.linear(*x, *w, *out, rows))
                    .collect()
            }
            Op::LmHead { x, weight, out } => Ok(vec![self.linear(*x, *weight, *out, rows)?]),
            Op::Rope { x, positions, spec } => {
                let half = spec.style == RopeStyle::HalfSplit;
                let (positions, width) = (self.i32s(*positions)?, self.last(*x));
                self.rows(*x, rows, |t| {
                    let position = self.index("position", positions[t], 1 << 31)?;
                    let angles = rope_angles(position, spec.theta, spec.n);
                    let mut row = self.row(*x, t)?.to_vec();
                    for head in row.chunks_exact_mut(width) {
                        rotate(&mut head[spec.start..][..spec.n], &angles, half);
                    }
                    Ok(row)
                })
            }
            Op::CacheAppend {
                parts,
                slots,
                state,
            } => self.append(parts, *slots, *state, rows),
            Op::IndexScore { .. } => self.index_score(op, rows),
            Op::IndexSelect { .. } => self.index_select(op, rows),
            Op::MlaAttend { .. } => self.attend(op, rows),
            Op::HeadProject { x, weight, out } => self.head_project(x, *weight, *out, rows),
            Op::SwiGlu { gate, up, out } => self.pairs(*gate, *up, *out, rows, swiglu),
            Op::Route {
                x,
                weight,
                bias,
                spec,
                ids,
                expert_weights,
            } => {
                let bias = bias.map(|b| self.operands.weight(b)).transpose()?;
                let bias = bias.as_ref().map(Matrix::vector).transpose()?;
                let (mut chosen, mut weights) = (Vec::new(), Vec::new());
                for (t, logits) in rows.iter().zip(self.product(*x, *weight, rows)?) {
                    let choice = route(&logits, bias.as_deref(), spec);
                    chosen.push((*t, choice.iter().map(|(e, _)| *e as i32).collect()));
                    weights.push((*t, choice.into_iter().map(|(_, w)| w).collect()));
                }
                Ok(vec![
                    Output {
                        buffer: *ids,
                        rows: Rows::I32(chosen),
                    },
                    Output {
                        buffer: *expert_weights,
                        rows: Rows::F32(weights),
                    },
                ])
            }
            Op::ExpertFfn { .. } => self.experts(op, rows),
            Op::Add { a, b, out } => self.pairs(*a, *b, *out, rows, |a, b| a + b),
            Op::SelectRows {
                x,
                output_rows,
                out,
            } => {
                let sources = self.i32s(*output_rows)?;
                self.rows(*out, rows, |n| {
                    let row = self.index("output row", sources[n], self.live.tokens)?;
                    Ok(self.row(*x, row)?.to_vec())
                })
            }
            // What it gives depends on the other ranks: whoever runs them brings them together.
            Op::AllReduce { .. } | Op::AllGather { .. } => Err(BackendError::Unsupported {
                backend: "reference".into(),
                plan: self.plan.name.clone(),
                reason: format!("{} needs the other ranks' operands", self.label),
            }),
            Op::TopKMerge {
                values,
                ids,
                k,
                out_values,
                out_ids,
            } => {
                let n = self.row_len(*ids);
                let (mut best, mut best_ids) = (Vec::new(), Vec::new());
                for t in rows {
                    let row_ids = &self.i32s(*ids)?[t * n..][..n];
                    let merged = top_k_merge(self.row(*values, *t)?, row_ids, *k);
                    best.push((*t, merged.iter().map(|(value, _)| *value).collect()));
                    best_ids.push((*t, merged.into_iter().map(|(_, id)| id).collect()));
                }
                Ok(vec![
                    Output {
                        buffer: *out_values,
                        rows: Rows::F32(best),
                    },
                    Output {
                        buffer: *out_ids,
                        rows: Rows::I32(best_ids),
                    },
                ])
            }
            Op::Shortlist { .. } => self.shortlist(op, rows),
            Op::Sample { .. } => self.sample(op, rows),
            Op::Fused { name, .. } => Err(BackendError::Unsupported {
                backend: "reference".into(),
                plan: self.plan.name.clone(),
                reason: format!("{name} is computed part by part"),
            }),
        }
    }

    /// `f` of each innermost row.
    fn map(
        &self,
        x: &Cols,
        out: BufferId,
        rows: &[usize],
        f: impl Fn(&[f32], &mut [f32]),
    ) -> Result<Vec<Output>, BackendError> {
        self.rows(out, rows, |t| {
            let mut values = vec![0.0; self.row_len(out)];
            let outs = values.chunks_exact_mut(x.len);
            self.cols(x, t)?.zip(outs).for_each(|(row, o)| f(row, o));
            Ok(values)
        })
    }

    /// `f` of each pair of elements.
    fn pairs(
        &self,
        a: BufferId,
        b: BufferId,
        out: BufferId,
        rows: &[usize],
        f: impl Fn(f32, f32) -> f32,
    ) -> Result<Vec<Output>, BackendError> {
        self.rows(out, rows, |t| {
            let pairs = self.row(a, t)?.iter().zip(self.row(b, t)?);
            Ok(pairs.map(|(a, b)| f(*a, *b)).collect())
        })
    }

    fn embed(
        &self,
        tokens: BufferId,
        carry: Option<&CarryRef>,
        table: BufferId,
        out: BufferId,
        rows: &[usize],
    ) -> Result<Vec<Output>, BackendError> {
        let (tokens, w) = (self.i32s(tokens)?, self.operands.weight(table)?);
        self.rows(out, rows, |t| {
            let token = match (carry, tokens[t]) {
                (Some(c), -1) => {
                    let sequence = self.sequence(c.cu_seqlens, t)?;
                    self.i32s(c.carry)?[self.carry_slot(c, sequence)?]
                }
                (_, token) => token,
            };
            let token = self.index("token", token, w.rows())?;
            Ok(w.row(token, &mut Vec::new())?.to_vec())
        })
    }

    fn append(
        &self,
        parts: &[Cols],
        slots: BufferId,
        state: BufferId,
        rows: &[usize],
    ) -> Result<Vec<Output>, BackendError> {
        let (slots, width) = (self.i32s(slots)?, self.last(state));
        let bound = self.f32s(state)?.len() / width;
        let mut appended = Vec::with_capacity(rows.len());
        for t in rows.iter().filter(|t| slots[**t] != -1) {
            let slot = self.index("slot", slots[*t], bound)?;
            let mut row = Vec::with_capacity(width);
            for part in parts {
                self.cols(part, *t)?
                    .for_each(|cols| row.extend_from_slice(cols));
            }
            appended.push((slot, row));
        }
        Ok(vec![Output {
            buffer: state,
            rows: Rows::F32(appended),
        }])
    }
}
