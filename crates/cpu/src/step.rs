//! One run of a prepared step: operation after operation, each cut over the threads.
//!
//! Inputs were checked before ([`LiveStep`]), so operations follow them without looking. An operation reads and writes parts of
//! the arena; that they do not overlap is what `check_arrangement` has proved of the plan.

use std::collections::HashMap;
use std::ops::Range;

use glim_plan::reference::attention::{Cached, index_select};
use glim_plan::reference::math::{layer_norm, rms_norm, rope_angles, rotate, swiglu};
use glim_plan::reference::moe::{route, top_k_merge};
use glim_plan::sample::{SampleParams, sample_row};
use glim_plan::{
    BackendError, BufferId, BufferKind, CarryRef, Cols, GgmlType, LiveStep, Op, Precision,
    RopeStyle, Rows, StepResults,
};

use crate::attention::{attend, score_pieces, scores};
use crate::backend::{CpuBackend, Prepared, State};
use crate::matmul::q8::Q8;
use crate::matmul::{Kernels, Math, Operand, Scratch, Weight};
use crate::moe::{Choice, ExpertBuffers, ExpertWeights, Workers, experts};
use crate::pool::Pool;
use crate::shared::Parts;

/// Elements of an element-wise operation that are worth a piece of their own.
const ELEMENTS: usize = 16 * 1024;
/// Bytes of weights that are worth a piece of their own.
const WEIGHT_BYTES: usize = 16 * 1024;

const POISON_I32: u32 = i32::MIN as u32;

/// A run of one step.
pub(crate) struct Run<'a> {
    prepared: &'a Prepared,
    live: &'a LiveStep,
    arena: Parts<'a, u32>,
    kernels: Kernels,
    poison: bool,
    pool: &'a mut Pool,
    scratch: &'a mut [Scratch],
    weights: &'a [Weight],
    states: &'a mut [State],
    carries: &'a mut [Vec<u32>],
    q8: &'a mut Q8,
    experts: &'a mut ExpertBuffers,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        backend: &'a mut CpuBackend,
        prepared: &'a Prepared,
        arena: &'a mut [u32],
        live: &'a LiveStep,
        kernels: Kernels,
        poison: bool,
    ) -> Self {
        Self {
            prepared,
            live,
            arena: Parts::new(arena),
            kernels,
            poison,
            pool: &mut backend.pool,
            scratch: &mut backend.scratch,
            weights: &backend.weights,
            states: &mut backend.states,
            carries: &mut backend.carries,
            q8: &mut backend.q8,
            experts: &mut backend.experts,
        }
    }

    pub(crate) fn step(mut self) -> Result<StepResults, BackendError> {
        for node in &self.prepared.plan.ops {
            for part in node.op.parts() {
                if self.poison {
                    let access = part.access();
                    access.writes.iter().for_each(|id| self.fill_poison(*id));
                    self.op(&node.label, part)?;
                    for id in access.writes.iter().chain(&access.updates) {
                        self.check_poison(&node.label, part, *id)?;
                    }
                } else {
                    self.op(&node.label, part)?;
                }
            }
        }
        let results = self
            .prepared
            .plan
            .buffers_where(|k| *k == BufferKind::Result);
        let words: HashMap<_, _> = results
            .map(|(id, b)| (b.name.clone(), self.words(id).to_vec()))
            .collect();
        Ok(StepResults::new(words))
    }

    // --- memory ---

    fn span(&self, id: BufferId) -> Range<usize> {
        // Every buffer of the arena has an offset: `check_arrangement`.
        let start = self.prepared.arrangement.offsets[id.index()].unwrap_or(0) / 4;
        start..start + self.prepared.plan.buffer(id).elements()
    }

    /// An input, or a buffer of the arena that the current operation does not write.
    fn words(&self, id: BufferId) -> &'a [u32] {
        match self.prepared.plan.buffer(id).kind {
            BufferKind::Input(kind) => self.prepared.inputs.get(kind),
            _ => {
                let span = self.span(id);
                // SAFETY: shared use of a part that nothing writes during this operation: its outputs lie elsewhere, since
                // `check_arrangement` has proved that buffers that are live together do not overlap.
                unsafe { self.arena.part(span.start, span.len()) }
            }
        }
    }

    fn f32s(&self, id: BufferId) -> &'a [f32] {
        bytemuck::cast_slice(self.words(id))
    }

    fn i32s(&self, id: BufferId) -> &'a [i32] {
        bytemuck::cast_slice(self.words(id))
    }

    /// A buffer that the current operation writes.
    fn out<T: bytemuck::Pod>(&mut self, id: BufferId) -> &'a mut [T] {
        let span = self.span(id);
        // SAFETY: each operation takes each of its outputs once, and its inputs lie elsewhere (see `words`).
        bytemuck::cast_slice_mut(unsafe { self.arena.part(span.start, span.len()) })
    }

    fn weight(&self, id: BufferId) -> &'a Weight {
        &self.weights[self.prepared.bound[id.index()]]
    }

    /// A small weight as f32.
    fn vector(&self, id: BufferId) -> Vec<f32> {
        let w = self.weight(id);
        let mut values = vec![0.0; w.k];
        w.decode(0, &mut values);
        values
    }

    fn live_rows(&self, id: BufferId) -> usize {
        let b = self.prepared.plan.buffer(id);
        match b.rows {
            Rows::Tokens => self.live.tokens,
            Rows::Outputs => self.live.outputs,
            Rows::Whole => b.shape.first().copied().unwrap_or(1),
        }
    }

    fn row(&self, id: BufferId) -> usize {
        self.prepared.plan.buffer(id).row_elements()
    }

    fn axis(&self, id: BufferId, i: usize) -> usize {
        self.prepared
            .plan
            .buffer(id)
            .shape
            .get(i)
            .copied()
            .unwrap_or(1)
    }

    fn last(&self, id: BufferId) -> usize {
        self.prepared
            .plan
            .buffer(id)
            .shape
            .last()
            .copied()
            .unwrap_or(1)
    }

    /// The live rows of an activation.
    fn live(&self, id: BufferId) -> &'a [f32] {
        &self.f32s(id)[..self.live_rows(id) * self.row(id)]
    }

    // --- poison ---

    fn fill_poison(&mut self, id: BufferId) {
        let f32s = self.prepared.plan.buffer(id).dtype == GgmlType::F32;
        let word = if f32s { f32::NAN.to_bits() } else { POISON_I32 };
        self.out::<u32>(id).fill(word);
    }

    fn check_poison(&self, label: &str, op: &Op, id: BufferId) -> Result<(), BackendError> {
        let plan = &self.prepared.plan;
        let buffer = plan.buffer(id);
        if buffer.kind == BufferKind::Carry {
            return Ok(());
        }
        let f32s = buffer.dtype == GgmlType::F32;
        let poisoned = |w: &u32| {
            if f32s {
                f32::from_bits(*w).is_nan()
            } else {
                *w == POISON_I32
            }
        };
        let width = self.row(id);
        for row in 0..self.live_rows(id) {
            // A row of scores is written up to the row's own position.
            let written = match op {
                Op::IndexScore { .. } => (self.live.positions[row] + 1).min(width),
                _ => width,
            };
            let words = &self.words(id)[row * width..][..written];
            if let Some(element) = words.iter().position(poisoned) {
                return Err(BackendError::Poison {
                    plan: plan.name.clone(),
                    op: label.into(),
                    buffer: buffer.name.clone(),
                    row,
                    element,
                });
            }
        }
        Ok(())
    }

    // --- operations ---

    fn op(&mut self, label: &str, op: &Op) -> Result<(), BackendError> {
        match op {
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            } => {
                self.embed(label, *tokens, carry.as_ref(), *table, *out)?;
            }
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            } => {
                let w = self.vector(*weight);
                self.map_rows(x, *out, |row, o| rms_norm(row, &w, *eps, o));
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let (w, b) = (self.vector(*weight), self.vector(*bias));
                self.map_rows(x, *out, |row, o| layer_norm(row, &w, &b, *eps, o));
            }
            Op::Linear {
                x,
                weights,
                outs,
                precision,
            } => {
                self.linear(*x, weights, outs, *precision);
            }
            Op::LmHead { x, weight, out } => self.linear(*x, &[*weight], &[*out], Precision::Fast),
            Op::Rope { x, spec, .. } => {
                let (row, width) = (self.row(*x), self.last(*x));
                let half = spec.style == RopeStyle::HalfSplit;
                let values = Parts::new(self.out::<f32>(*x));
                let positions = &self.live.positions;
                self.pool
                    .ranges(self.live.tokens, ELEMENTS.div_ceil(16 * row), |_, range| {
                        for t in range {
                            let angles = rope_angles(positions[t], spec.theta, spec.n);
                            // SAFETY: one range owns row `t`.
                            let row = unsafe { values.part(t * row, row) };
                            for head in row.chunks_exact_mut(width) {
                                rotate(&mut head[spec.start..][..spec.n], &angles, half);
                            }
                        }
                    });
            }
            Op::CacheAppend { parts, state, .. } => self.append(parts, *state),
            Op::IndexScore {
                q,
                weights,
                keys,
                paging,
                scale,
                out,
            } => {
                let (q_row, heads, width) = (self.row(*q), self.row(*weights), self.row(*out));
                let (q, w) = (self.f32s(*q), self.f32s(*weights));
                let out = Parts::new(self.out::<f32>(*out));
                let pieces = score_pieces(&self.live.positions);
                let tables = self.i32s(paging.block_tables);
                let cached = cached(self.states, self.prepared, self.live, *keys, tables);
                let kernels = self.kernels;
                self.pool.ranges(pieces.len(), 1, |_, range| {
                    for (t, positions) in &pieces[range] {
                        // SAFETY: one piece owns these positions of row `t`.
                        let out = unsafe { out.part(t * width + positions.start, positions.len()) };
                        let (q, w) = (&q[t * q_row..][..q_row], &w[t * heads..][..heads]);
                        scores(kernels, q, w, &cached[*t], *scale, positions.clone(), out);
                    }
                });
            }
            Op::IndexSelect {
                scores,
                topk,
                forced,
                out,
                ..
            } => {
                let width = self.row(*scores);
                let scores = self.f32s(*scores);
                let forced = forced.map(|f| (self.i32s(f.buffer), self.row(f.buffer), f.start));
                let out = Parts::new(self.out::<i32>(*out));
                let positions = &self.live.positions;
                self.pool.ranges(self.live.tokens, 1, |_, range| {
                    for t in range {
                        // SAFETY: one range owns row `t`.
                        let row = unsafe { out.part(t * topk, *topk) };
                        let forced = forced.map(|(f, n, start)| &f[t * n + start..][..*topk]);
                        if let Some(forced) = forced.filter(|f| f.first() != Some(&-1)) {
                            row.copy_from_slice(forced);
                            continue;
                        }
                        let visible = &scores[t * width..][..=positions[t]];
                        let chosen = index_select(visible, *topk);
                        row.fill(-1);
                        row.iter_mut()
                            .zip(chosen)
                            .for_each(|(slot, s)| *slot = s as i32);
                    }
                });
            }
            Op::MlaAttend {
                q_latent,
                q_rope,
                latent,
                topk,
                paging,
                scale,
                out,
            } => {
                let (heads, rank) = (self.axis(*q_latent, 1), self.last(*q_latent));
                let (rope_buffer, rope_row) = (self.f32s(q_rope.buffer), self.last(q_rope.buffer));
                let chosen: Vec<Vec<i32>> = self.attended(label, *topk)?;
                let q = self.f32s(*q_latent);
                let out = Parts::new(self.out::<f32>(*out));
                let tables = self.i32s(paging.block_tables);
                let cached = cached(self.states, self.prepared, self.live, *latent, tables);
                let kernels = self.kernels;
                self.pool.ranges(self.live.tokens * heads, 1, |_, range| {
                    let mut p = Vec::new();
                    for i in range {
                        let q_rope = &rope_buffer[i * rope_row + q_rope.start..][..q_rope.len];
                        let q = &q[i * rank..][..rank];
                        // SAFETY: one range owns head `i`.
                        let out = unsafe { out.part(i * rank, rank) };
                        let t = i / heads;
                        attend(
                            kernels, q, q_rope, &cached[t], &chosen[t], *scale, &mut p, out,
                        );
                    }
                });
            }
            Op::HeadProject { x, weight, out } => self.head_project(x, *weight, *out),
            Op::SwiGlu { gate, up, out } => {
                let (gate, up) = (self.live(*gate), self.live(*up));
                self.map_elements(gate.len(), *out, |i| swiglu(gate[i], up[i]));
            }
            Op::Route {
                x,
                weight,
                bias,
                spec,
                ids,
                expert_weights,
            } => {
                let w = self.weight(*weight);
                let experts = w.shape[0];
                let mut logits = vec![0.0; self.live.tokens * experts];
                let x = Operand {
                    f32s: self.f32s(*x),
                    q8: None,
                };
                self.product(&[w], x, &[Parts::new(&mut logits)], self.live.tokens);
                let bias = bias.map(|b| self.vector(b));
                let ids = Parts::new(self.out::<i32>(*ids));
                let weights = Parts::new(self.out::<f32>(*expert_weights));
                self.pool.ranges(self.live.tokens, 16, |_, range| {
                    for t in range {
                        // SAFETY: one range owns row `t`.
                        let (ids, weights) = unsafe {
                            (
                                ids.part(t * spec.k, spec.k),
                                weights.part(t * spec.k, spec.k),
                            )
                        };
                        let chosen =
                            route(&logits[t * experts..][..experts], bias.as_deref(), spec);
                        for (i, (id, weight)) in chosen.into_iter().enumerate() {
                            (ids[i], weights[i]) = (id as i32, weight);
                        }
                    }
                });
            }
            Op::ExpertFfn {
                x,
                ids,
                expert_weights,
                gate,
                up,
                down,
                out,
            } => {
                let w = ExpertWeights {
                    gate: self.weight(*gate),
                    up: self.weight(*up),
                    down: self.weight(*down),
                };
                let (k, tokens) = (self.row(*ids), self.live.tokens);
                let q8 = self.quantise(self.live(*x), tokens, w.gate.k, &[w.gate, w.up]);
                let (x, ids) = (self.f32s(*x), &self.i32s(*ids)[..tokens * k]);
                self.check_experts(label, ids, w.gate.shape[0])?;
                let weights = &self.f32s(*expert_weights)[..tokens * k];
                let n = self.live_rows(*out) * self.row(*out);
                let out = &mut self.out::<f32>(*out)[..n];
                let operand = Operand {
                    f32s: x,
                    q8: q8.then_some(&*self.q8),
                };
                let mut workers = Workers {
                    kernels: self.kernels,
                    pool: self.pool,
                    scratch: self.scratch,
                };
                let choice = Choice { ids, weights, k };
                experts(&mut workers, self.experts, w, operand, choice, out);
            }
            Op::Add { a, b, out } => {
                let (a, b) = (self.live(*a), self.live(*b));
                self.map_elements(a.len(), *out, |i| a[i] + b[i]);
            }
            Op::SelectRows { x, out, .. } => {
                let (d, x) = (self.row(*x), self.f32s(*x));
                let out = self.out::<f32>(*out);
                for (row, out) in self.live.output_rows.iter().zip(out.chunks_exact_mut(d)) {
                    out.copy_from_slice(&x[row * d..][..d]);
                }
            }
            // One rank: the sum over the ranks is the rank's own addend, and so is the gathered whole.
            Op::AllReduce { x, out, .. } | Op::AllGather { x, out, .. } => {
                let x = self.live(*x);
                self.out::<f32>(*out)[..x.len()].copy_from_slice(x);
            }
            Op::TopKMerge {
                values,
                ids,
                k,
                out_values,
                out_ids,
            } => {
                let n = self.row(*values);
                let (values, ids) = (self.live(*values), self.i32s(*ids));
                let (best, best_ids) = (self.out::<f32>(*out_values), self.out::<i32>(*out_ids));
                for (i, (row, row_ids)) in
                    values.chunks_exact(n).zip(ids.chunks_exact(n)).enumerate()
                {
                    for (j, (value, id)) in top_k_merge(row, row_ids, *k).into_iter().enumerate() {
                        (best[i * k + j], best_ids[i * k + j]) = (value, id);
                    }
                }
            }
            Op::Sample { .. } => self.sample(op),
            Op::Fused { parts, .. } => {
                parts.iter().try_for_each(|part| self.op(label, part))?;
            }
        }
        Ok(())
    }

    fn out_of_range(&self, op: &str, what: &str, found: i32, bound: usize) -> BackendError {
        BackendError::OutOfRange {
            plan: self.prepared.plan.name.clone(),
            op: op.into(),
            what: what.into(),
            found: i64::from(found),
            bound,
        }
    }

    fn check_experts(&self, op: &str, ids: &[i32], bound: usize) -> Result<(), BackendError> {
        let outside = ids
            .iter()
            .find(|e| !usize::try_from(**e).is_ok_and(|e| e < bound));
        outside.map_or(Ok(()), |e| Err(self.out_of_range(op, "expert", *e, bound)))
    }

    fn map_rows(&mut self, x: &Cols, out: BufferId, f: impl Fn(&[f32], &mut [f32]) + Sync) {
        let (width, values) = (self.last(x.buffer), self.live(x.buffer));
        let out = Parts::new(self.out::<f32>(out));
        self.pool.ranges(
            values.len() / width,
            ELEMENTS.div_ceil(x.len),
            |_, range| {
                for i in range {
                    // SAFETY: one range owns row `i`.
                    f(&values[i * width + x.start..][..x.len], unsafe {
                        out.part(i * x.len, x.len)
                    });
                }
            },
        );
    }

    fn map_elements(&mut self, n: usize, out: BufferId, f: impl Fn(usize) -> f32 + Sync) {
        let out = Parts::new(self.out::<f32>(out));
        self.pool.ranges(n, ELEMENTS, |_, range| {
            // SAFETY: ranges are disjoint.
            let out = unsafe { out.part(range.start, range.len()) };
            out.iter_mut().zip(range).for_each(|(o, i)| *o = f(i));
        });
    }

    /// Rounds rows to 8 bits if one of the weights wants that; says whether.
    fn quantise(&mut self, x: &[f32], rows: usize, k: usize, weights: &[&Weight]) -> bool {
        if self.kernels.math == Math::Exact || !weights.iter().any(|w| w.wants_q8()) {
            return false;
        }
        self.q8.resize(rows, k);
        let parts = self.q8.parts();
        self.pool
            .ranges(rows, ELEMENTS.div_ceil(4 * k), |_, range| {
                for t in range {
                    // SAFETY: one range owns row `t`.
                    unsafe { parts.fill(t, &x[t * k..][..k]) };
                }
            });
        true
    }

    fn linear(
        &mut self,
        x: BufferId,
        weights: &[BufferId],
        outs: &[BufferId],
        precision: Precision,
    ) {
        let (rows, k) = (self.live_rows(x), self.row(x));
        let weights: Vec<&Weight> = weights.iter().map(|w| self.weight(*w)).collect();
        let f32s = self.live(x);
        let q8 = precision == Precision::Fast && self.quantise(f32s, rows, k, &weights);
        let outs: Vec<Parts<'_, f32>> = outs
            .iter()
            .map(|out| Parts::new(self.out::<f32>(*out)))
            .collect();
        // The borrow of the rounded rows ends with the product; `product` takes the rest of `self` apart.
        let rounded = q8.then(|| std::mem::take(self.q8));
        self.product(
            &weights,
            Operand {
                f32s,
                q8: rounded.as_ref(),
            },
            &outs,
            rows,
        );
        if let Some(rounded) = rounded {
            *self.q8 = rounded;
        }
    }

    /// Products of one operand with several weights, as one section.
    fn product(
        &mut self,
        weights: &[&Weight],
        x: Operand<'_>,
        outs: &[Parts<'_, f32>],
        rows: usize,
    ) {
        let x_rows: Vec<usize> = (0..rows).collect();
        let scratch = Parts::new(self.scratch);
        let kernels = self.kernels;
        let heights: Vec<usize> = weights.iter().map(|w| w.shape[0]).collect();
        let bytes: usize = weights.iter().map(|w| w.bytes.len()).sum();
        let total: usize = heights.iter().sum();
        let grain = (WEIGHT_BYTES * total)
            .div_ceil(bytes.max(1))
            .div_ceil(rows.max(1));
        self.pool.ranges(total, grain, |thread, range| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
            let mut first = 0;
            for ((w, m), out) in weights.iter().zip(&heights).zip(outs) {
                let start = range.start.clamp(first, first + m) - first;
                let end = range.end.clamp(first, first + m) - first;
                kernels.product(w, start..end, x, &x_rows, scratch, |t, j, value| {
                    // SAFETY: one range owns row `j` of this weight, and so column `j` of its result.
                    unsafe { out.set(t * m + j, value) };
                });
                first += m;
            }
        });
    }

    fn head_project(&mut self, x: &Cols, weight: BufferId, out: BufferId) {
        let w = self.weight(weight);
        let (heads, m) = (w.shape[0], w.shape[1]);
        let width = self.last(x.buffer);
        let tokens = self.live.tokens;
        let rows: Vec<f32> = self
            .live(x.buffer)
            .chunks_exact(width)
            .flat_map(|row| &row[x.start..x.start + x.len])
            .copied()
            .collect();
        let quantised = self.quantise(&rows, tokens * heads, x.len, &[w]);
        let operand = Operand {
            f32s: &rows,
            q8: quantised.then_some(&*self.q8),
        };
        let out = Parts::new(self.out_of(out));
        let (scratch, kernels) = (Parts::new(self.scratch), self.kernels);
        let grain = (WEIGHT_BYTES * heads * m)
            .div_ceil(w.bytes.len().max(1))
            .div_ceil(tokens.max(1));
        self.pool.ranges(heads * m, grain, |thread, range| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratch.part(thread, 1)[0] };
            let mut start = range.start;
            while start < range.end {
                let head = start / m;
                let end = range.end.min((head + 1) * m);
                let x_rows: Vec<usize> = (0..tokens).map(|t| t * heads + head).collect();
                kernels.product(w, start..end, operand, &x_rows, scratch, |row, j, value| {
                    // SAFETY: one range owns row `j` of the weight, and so this element of every row.
                    unsafe { out.set((row / heads) * heads * m + j, value) };
                });
                start = end;
            }
        });
    }

    /// [`Self::out`] of f32, without borrowing `self`.
    fn out_of(&self, id: BufferId) -> &'a mut [f32] {
        let span = self.span(id);
        // SAFETY: as `out`.
        bytemuck::cast_slice_mut(unsafe { self.arena.part(span.start, span.len()) })
    }

    fn embed(
        &mut self,
        label: &str,
        tokens: BufferId,
        carry: Option<&CarryRef>,
        table: BufferId,
        out: BufferId,
    ) -> Result<(), BackendError> {
        let (w, d) = (self.weight(table), self.row(out));
        let vocab = w.shape[0];
        let tokens = self.i32s(tokens);
        let out = self.out::<f32>(out);
        for (t, out) in out.chunks_exact_mut(d).take(self.live.tokens).enumerate() {
            let token = match (tokens[t], carry) {
                (-1, Some(c)) => {
                    let slot = self.live.sequence_slots[self.live.sequences[t]];
                    self.carries[self.prepared.bound[c.carry.index()]][slot] as i32
                }
                (token, _) => token,
            };
            let row = usize::try_from(token).ok().filter(|t| *t < vocab);
            let row = row.ok_or_else(|| self.out_of_range(label, "token", token, vocab))?;
            w.decode(row, out);
        }
        Ok(())
    }

    fn append(&mut self, parts: &[Cols], state: BufferId) {
        let width = self.last(state);
        let sources: Vec<(&[f32], usize, &Cols)> = parts
            .iter()
            .map(|p| (self.f32s(p.buffer), self.last(p.buffer), p))
            .collect();
        let rows = &mut self.states[self.prepared.bound[state.index()]].rows;
        for (t, slot) in self.live.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let mut row = &mut rows[slot * width..][..width];
            for (source, stride, p) in &sources {
                let (head, rest) = row.split_at_mut(p.len);
                head.copy_from_slice(&source[t * stride + p.start..][..p.len]);
                row = rest;
            }
        }
    }

    /// The positions that each live row attends to.
    fn attended(&self, op: &str, topk: Option<BufferId>) -> Result<Vec<Vec<i32>>, BackendError> {
        let positions = self.live.positions.iter();
        match topk {
            None => Ok(positions
                .map(|position| (0..=*position as i32).collect())
                .collect()),
            Some(topk) => {
                let (n, chosen) = (self.row(topk), self.i32s(topk));
                positions
                    .enumerate()
                    .map(|(t, position)| {
                        let row = chosen[t * n..][..n].iter().copied();
                        let row: Vec<i32> = row.take_while(|s| *s != -1).collect();
                        let outside =
                            |s: &&i32| usize::try_from(**s).map_or(true, |s| s > *position);
                        match row.iter().find(outside) {
                            Some(s) => {
                                Err(self.out_of_range(op, "chosen position", *s, position + 1))
                            }
                            None => Ok(row),
                        }
                    })
                    .collect()
            }
        }
    }

    fn sample(&mut self, op: &Op) {
        let Op::Sample {
            logits,
            inputs: i,
            carry,
            out,
        } = op
        else {
            return;
        };
        let (vocab, words) = (self.row(*logits), self.row(i.token_mask));
        let (logits, masks) = (self.f32s(*logits), self.words(i.token_mask));
        let (temperature, top_p) = (self.f32s(i.temperature), self.f32s(i.top_p));
        let min_p = self.f32s(i.min_p);
        let (top_k, seeds) = (self.i32s(i.top_k), self.words(i.seeds));
        let tokens = self.out::<i32>(*out);
        let parts = Parts::new(tokens);
        let live = self.live;
        self.pool.ranges(live.outputs, 1, |_, range| {
            for n in range {
                let seed = &seeds[n * 3..][..3];
                let params = SampleParams {
                    temperature: temperature[n],
                    top_k: top_k[n].max(0) as usize,
                    top_p: top_p[n],
                    min_p: min_p[n],
                    seed: u64::from(seed[0]) | u64::from(seed[1]) << 32,
                    choice: seed[2],
                    position: live.positions[live.output_rows[n]] as u32 + 1,
                };
                let mask = &masks[n * words..][..words];
                // SAFETY: one range owns element `n`.
                unsafe { parts.set(n, sample_row(&logits[n * vocab..][..vocab], mask, &params)) };
            }
        });
        if let Some(c) = carry {
            let tokens = self.i32s(*out);
            let carry = &mut self.carries[self.prepared.bound[c.carry.index()]];
            for (n, row) in live.output_rows.iter().enumerate() {
                carry[live.sequence_slots[live.sequences[*row]]] = tokens[n] as u32;
            }
        }
    }
}

/// Each live row's view of its sequence's cached rows.
fn cached<'s>(
    states: &'s [State],
    prepared: &Prepared,
    live: &LiveStep,
    state: BufferId,
    tables: &'s [i32],
) -> Vec<Cached<'s>> {
    let geometry = prepared.plan.geometry;
    let state = &states[prepared.bound[state.index()]];
    let view = |sequence: &usize| Cached {
        rows: &state.rows,
        width: state.width(),
        block_table: &tables[sequence * geometry.max_blocks..][..geometry.max_blocks],
        block_size: geometry.block_size,
    };
    live.sequences.iter().map(view).collect()
}
