//! One run of a prepared step: operation by operation, over the live rows.

use std::collections::HashMap;
use std::ops::Range;

use glim_quant::GgmlType;

use super::attention::{Cached, attend, index_scores, index_select};
use super::math::{layer_norm, matmul, rms_norm, rope_angles, rotate, swiglu};
use super::moe::{Experts, route, top_k_merge};
use super::{Prepared, ReferenceBackend, poison_of};
use crate::backend::{BackendError, StepId, StepResults};
use crate::buffer::{BufferId, BufferKind, InputKind, Rows};
use crate::collective::{GatherRows, all_gather, all_reduce};
use crate::op::{CarryRef, CollectiveId, Cols, Gather, Op, OpNode, Paging, RopeStyle};
use crate::sample::{SampleParams, sample_row};

pub(super) struct Run<'a> {
    backend: &'a mut ReferenceBackend,
    step: StepId,
    /// Live rows and live output rows.
    tokens: usize,
    outputs: usize,
    /// Label of the operation that runs, for errors.
    label: String,
}

impl<'a> Run<'a> {
    /// Counts the live rows.
    pub(super) fn new(
        backend: &'a mut ReferenceBackend,
        step: StepId,
    ) -> Result<Self, BackendError> {
        let capacity = backend.steps[step.0 as usize].plan.step.tokens();
        let mut run = Self {
            backend,
            step,
            tokens: capacity,
            outputs: 0,
            label: "inputs".into(),
        };
        let inputs = &run.prepared().inputs;
        let cu_seqlens = inputs.get(InputKind::CuSeqlens);
        let mut tokens = capacity;
        for (i, end) in cu_seqlens.iter().enumerate() {
            let limit = cu_seqlens
                .get(i + 1)
                .map_or(capacity, |next| (*next as usize).min(capacity));
            tokens = run.index("cu_seqlens", *end as i32, limit + 1)?;
        }
        let outputs = inputs
            .get(InputKind::OutputRows)
            .iter()
            .take_while(|row| **row as i32 != -1)
            .count();
        (run.tokens, run.outputs) = (tokens, outputs);
        Ok(run)
    }

    fn prepared(&self) -> &Prepared {
        &self.backend.steps[self.step.0 as usize]
    }

    pub(super) fn steps(mut self) -> Result<StepResults, BackendError> {
        for index in 0..self.prepared().plan.ops.len() {
            let node: OpNode = self.prepared().plan.ops[index].clone();
            let skipped = self.backend.options.skip.as_ref() == Some(&node.label);
            self.label = node.label;
            self.backend.ranks().begin(index);
            for part in node.op.parts() {
                let access = part.access();
                if self.backend.options.poison {
                    access.writes.iter().for_each(|id| self.poison(*id));
                }
                if !skipped {
                    self.op(part)?;
                }
                if self.backend.options.poison {
                    for id in access.writes.iter().chain(&access.updates) {
                        self.check_poison(part, *id)?;
                    }
                }
            }
        }
        let plan = &self.prepared().plan;
        let results = plan.buffers_where(|k| *k == BufferKind::Result);
        let words: HashMap<_, _> = results
            .map(|(id, b)| (b.name.clone(), self.words(id).to_vec()))
            .collect();
        Ok(StepResults::new(words))
    }

    // --- memory ---

    fn span(&self, id: BufferId) -> Range<usize> {
        let prepared = self.prepared();
        let start = prepared.arrangement.offsets[id.index()].unwrap_or(0) / 4;
        start..start + prepared.plan.buffer(id).elements()
    }

    /// A buffer of the arena or an input, as words.
    fn words(&self, id: BufferId) -> &[u32] {
        let b = self.prepared().plan.buffer(id);
        match b.kind {
            BufferKind::Input(kind) => self.prepared().inputs.get(kind),
            BufferKind::Carry => self.backend.carries.get(&b.name).map_or(&[], Vec::as_slice),
            _ => &self.backend.arena[self.span(id)],
        }
    }

    fn f32s(&self, id: BufferId) -> &[f32] {
        let b = self.prepared().plan.buffer(id);
        match b.kind {
            BufferKind::Weight => self
                .backend
                .weights
                .get(&b.name)
                .map_or(&[], |w| w.values.as_slice()),
            BufferKind::State(_) => self
                .backend
                .states
                .get(&b.name)
                .map_or(&[], |s| s.rows.as_slice()),
            _ => bytemuck::cast_slice(self.words(id)),
        }
    }

    fn i32s(&self, id: BufferId) -> &[i32] {
        bytemuck::cast_slice(self.words(id))
    }

    /// The live rows of an activation.
    fn live(&self, id: BufferId) -> &[f32] {
        &self.f32s(id)[..self.live_rows(id) * self.row(id)]
    }

    fn live_rows(&self, id: BufferId) -> usize {
        let b = self.prepared().plan.buffer(id);
        match b.rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
            Rows::Whole => b.shape.first().copied().unwrap_or(1),
        }
    }

    fn row(&self, id: BufferId) -> usize {
        self.prepared().plan.buffer(id).row_elements()
    }

    fn axis(&self, id: BufferId, i: usize) -> usize {
        self.prepared()
            .plan
            .buffer(id)
            .shape
            .get(i)
            .copied()
            .unwrap_or(1)
    }

    fn last(&self, id: BufferId) -> usize {
        self.prepared()
            .plan
            .buffer(id)
            .shape
            .last()
            .copied()
            .unwrap_or(1)
    }

    /// The columns of each innermost row of the live part.
    fn cols(&self, c: &Cols) -> impl Iterator<Item = &[f32]> {
        let (start, len) = (c.start, c.len);
        self.live(c.buffer)
            .chunks_exact(self.last(c.buffer))
            .map(move |row| &row[start..start + len])
    }

    fn store(&mut self, id: BufferId, values: &[f32]) {
        let span = self.span(id);
        self.backend.arena[span][..values.len()].copy_from_slice(bytemuck::cast_slice(values));
    }

    fn store_i32(&mut self, id: BufferId, values: &[i32]) {
        let span = self.span(id);
        self.backend.arena[span][..values.len()].copy_from_slice(bytemuck::cast_slice(values));
    }

    fn poison(&mut self, id: BufferId) {
        let word = poison_of(self.prepared().plan.buffer(id).dtype);
        let span = self.span(id);
        self.backend.arena[span].fill(word);
    }

    fn check_poison(&self, op: &Op, id: BufferId) -> Result<(), BackendError> {
        let plan = &self.prepared().plan;
        let buffer = plan.buffer(id);
        if buffer.kind == BufferKind::Carry {
            return Ok(());
        }
        let ints = poison_of(buffer.dtype);
        let is_poison = |word: u32| {
            word == ints || (ints == super::POISON_F32 && f32::from_bits(word).is_nan())
        };
        let positions = match op {
            Op::IndexScore { paging, .. } => Some(self.i32s(paging.positions)),
            _ => None,
        };
        let width = self.row(id);
        for row in 0..self.live_rows(id) {
            // A row of scores is written up to the row's own position.
            let written = positions.map_or(width, |p| (p[row].max(0) as usize + 1).min(width));
            let words = &self.words(id)[row * width..][..written];
            if let Some(element) = words.iter().position(|w| is_poison(*w)) {
                return Err(BackendError::Poison {
                    plan: plan.name.clone(),
                    op: self.label.clone(),
                    buffer: buffer.name.clone(),
                    row,
                    element,
                });
            }
        }
        Ok(())
    }

    // --- indices from inputs: checked, because they come from outside the plan ---

    fn index(&self, what: &str, found: i32, bound: usize) -> Result<usize, BackendError> {
        match usize::try_from(found) {
            Ok(i) if i < bound => Ok(i),
            _ => Err(BackendError::OutOfRange {
                plan: self.prepared().plan.name.clone(),
                op: self.label.clone(),
                what: what.into(),
                found: i64::from(found),
                bound,
            }),
        }
    }

    /// Sequence of each live row.
    fn sequences(&self, cu_seqlens: BufferId) -> Vec<usize> {
        let cu = self.i32s(cu_seqlens);
        let mut sequence = 0;
        (0..self.tokens as i32)
            .map(|row| {
                while sequence + 2 < cu.len() && row >= cu[sequence + 1] {
                    sequence += 1;
                }
                sequence
            })
            .collect()
    }

    /// For each live row: its position and its sequence's cached rows, checked to cover that position.
    fn cached(
        &self,
        state: BufferId,
        paging: &Paging,
    ) -> Result<Vec<(usize, Cached<'_>)>, BackendError> {
        let geometry = self.prepared().plan.geometry;
        let rows = self.f32s(state);
        let width = self.last(state);
        let slots = rows.len() / width;
        let tables = self.i32s(paging.block_tables);
        let sequences = self.sequences(paging.cu_seqlens);
        let mut all = Vec::with_capacity(self.tokens);
        for (row, position) in self.i32s(paging.positions)[..self.tokens]
            .iter()
            .enumerate()
        {
            let position = self.index("position", *position, geometry.max_positions())?;
            let block_table =
                &tables[sequences[row] * geometry.max_blocks..][..geometry.max_blocks];
            for block in &block_table[..=position / geometry.block_size] {
                self.index("block", *block, slots / geometry.block_size)?;
            }
            all.push((
                position,
                Cached {
                    rows,
                    width,
                    block_table,
                    block_size: geometry.block_size,
                },
            ));
        }
        Ok(all)
    }

    fn carry_slot(&self, c: &CarryRef, sequence: usize) -> Result<usize, BackendError> {
        self.index(
            "sequence slot",
            self.i32s(c.sequence_slots)[sequence],
            self.i32s(c.carry).len(),
        )
    }

    // --- operations ---

    fn op(&mut self, op: &Op) -> Result<(), BackendError> {
        match op {
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            } => {
                let values = self.embed(*tokens, carry.as_ref(), *table)?;
                self.store(*out, &values);
            }
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            } => {
                let w = self.f32s(*weight);
                let values = self.map_rows(x, |row, o| rms_norm(row, w, *eps, o));
                self.store(*out, &values);
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let (w, b) = (self.f32s(*weight), self.f32s(*bias));
                let values = self.map_rows(x, |row, o| layer_norm(row, w, b, *eps, o));
                self.store(*out, &values);
            }
            Op::Linear {
                x, weights, outs, ..
            } => {
                for (weight, out) in weights.iter().zip(outs) {
                    self.product(*x, *weight, *out);
                }
            }
            Op::LmHead { x, weight, out } => self.product(*x, *weight, *out),
            Op::Rope { x, positions, spec } => {
                let mut values = self.live(*x).to_vec();
                let (row, width) = (self.row(*x), self.last(*x));
                let half = spec.style == RopeStyle::HalfSplit;
                for (t, row) in values.chunks_exact_mut(row).enumerate() {
                    let position = self.i32s(*positions)[t];
                    let position = self.index("position", position, 1 << 31)?;
                    let angles = rope_angles(position, spec.theta, spec.n);
                    for head in row.chunks_exact_mut(width) {
                        rotate(&mut head[spec.start..][..spec.n], &angles, half);
                    }
                }
                self.store(*x, &values);
            }
            Op::CacheAppend {
                parts,
                slots,
                state,
            } => self.append(parts, *slots, *state)?,
            Op::IndexScore {
                q,
                weights,
                keys,
                paging,
                scale,
                out,
            } => {
                let heads = self.row(*weights);
                let cached = self.cached(*keys, paging)?;
                let width = self.row(*out);
                let mut rows = Vec::with_capacity(self.tokens);
                for (t, (position, keys)) in cached.iter().enumerate() {
                    let q = &self.f32s(*q)[t * self.row(*q)..][..self.row(*q)];
                    let w = &self.f32s(*weights)[t * heads..][..heads];
                    let mut scores = vec![0.0; position + 1];
                    index_scores(q, w, keys, *scale, &mut scores);
                    rows.push(scores);
                }
                let start = self.span(*out).start;
                for (t, scores) in rows.iter().enumerate() {
                    let slot = &mut self.backend.arena[start + t * width..][..scores.len()];
                    slot.copy_from_slice(bytemuck::cast_slice(scores));
                }
            }
            Op::IndexSelect {
                scores,
                positions,
                topk,
                forced,
                out,
            } => {
                let width = self.row(*scores);
                let mut values = vec![-1; self.tokens * topk];
                for (t, row) in values.chunks_exact_mut(*topk).enumerate() {
                    let position = self.index("position", self.i32s(*positions)[t], width)?;
                    if let Some(f) = forced {
                        let forced =
                            &self.i32s(f.buffer)[t * self.row(f.buffer) + f.start..][..f.len];
                        if forced.first().is_some_and(|s| *s != -1) {
                            row.copy_from_slice(forced);
                            continue;
                        }
                    }
                    let visible = &self.f32s(*scores)[t * width..][..=position];
                    for (slot, s) in row.iter_mut().zip(index_select(visible, *topk)) {
                        *slot = s as i32;
                    }
                }
                self.store_i32(*out, &values);
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
                let mut values = vec![0.0; self.tokens * heads * rank];
                let q_rope: Vec<&[f32]> = self.cols(q_rope).collect();
                for (t, (position, cached)) in self.cached(*latent, paging)?.iter().enumerate() {
                    let positions = self.attended(*topk, t, *position)?;
                    for h in 0..heads {
                        let at = (t * heads + h) * rank;
                        let q = &self.f32s(*q_latent)[at..][..rank];
                        attend(
                            q,
                            q_rope[t * heads + h],
                            cached,
                            &positions,
                            *scale,
                            &mut values[at..][..rank],
                        );
                    }
                }
                self.store(*out, &values);
            }
            Op::HeadProject { x, weight, out } => {
                let (heads, m) = (self.axis(*weight, 0), self.axis(*weight, 1));
                let mut values = vec![0.0; self.tokens * heads * m];
                for (i, x_row) in self.cols(x).enumerate() {
                    let w = &self.f32s(*weight)[i % heads * m * x.len..][..m * x.len];
                    matmul(x_row, w, x.len, &mut values[i * m..][..m]);
                }
                self.store(*out, &values);
            }
            Op::SwiGlu { gate, up, out } => {
                let values: Vec<f32> = self
                    .live(*gate)
                    .iter()
                    .zip(self.live(*up))
                    .map(|(g, u)| swiglu(*g, *u))
                    .collect();
                self.store(*out, &values);
            }
            Op::Route {
                x,
                weight,
                bias,
                spec,
                ids,
                expert_weights,
            } => {
                let (d, experts) = (self.row(*x), self.axis(*weight, 0));
                let mut logits = vec![0.0; self.tokens * experts];
                matmul(self.live(*x), self.f32s(*weight), d, &mut logits);
                let bias = bias.map(|b| self.f32s(b));
                let chosen: Vec<(usize, f32)> = logits
                    .chunks_exact(experts)
                    .flat_map(|row| route(row, bias, spec))
                    .collect();
                let (id, w): (Vec<i32>, Vec<f32>) =
                    chosen.into_iter().map(|(e, w)| (e as i32, w)).unzip();
                self.store_i32(*ids, &id);
                self.store(*expert_weights, &w);
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
                let (d, k, m) = (self.row(*x), self.row(*ids), self.row(*out));
                let (n_experts, inner) = (self.axis(*gate, 0), self.axis(*gate, 1));
                let experts = Experts {
                    gate: self.f32s(*gate),
                    up: self.f32s(*up),
                    down: self.f32s(*down),
                    inner,
                };
                let mut values = vec![0.0; self.tokens * m];
                for t in 0..self.tokens {
                    for i in t * k..(t + 1) * k {
                        let e = self.index("expert", self.i32s(*ids)[i], n_experts)?;
                        let weight = self.f32s(*expert_weights)[i];
                        experts.add(
                            e,
                            weight,
                            &self.f32s(*x)[t * d..][..d],
                            &mut values[t * m..][..m],
                        );
                    }
                }
                self.store(*out, &values);
            }
            Op::Add { a, b, out } => {
                let values: Vec<f32> = self
                    .live(*a)
                    .iter()
                    .zip(self.live(*b))
                    .map(|(a, b)| a + b)
                    .collect();
                self.store(*out, &values);
            }
            Op::SelectRows {
                x,
                output_rows,
                out,
            } => {
                let d = self.row(*x);
                let mut values = Vec::with_capacity(self.outputs * d);
                for row in &self.i32s(*output_rows)[..self.outputs] {
                    let row = self.index("output row", *row, self.tokens)?;
                    values.extend_from_slice(&self.f32s(*x)[row * d..][..d]);
                }
                self.store(*out, &values);
            }
            Op::AllReduce { id, wire, x, out } => {
                let mut values = vec![0.0; self.live(*x).len()];
                let ranks = self.backend.ranks();
                all_reduce(&*ranks, *id, *wire, self.live(*x), &mut values)
                    .map_err(|failure| failure.in_plan(&self.prepared().plan))?;
                self.store(*out, &values);
            }
            Op::AllGather { id, wire, gathers } => self.all_gather(*id, *wire, gathers)?,
            Op::TopKMerge {
                values,
                ids,
                k,
                out_values,
                out_ids,
            } => {
                let n = self.row(*values);
                let (mut best, mut best_ids) = (Vec::new(), Vec::new());
                for (row, row_ids) in self
                    .live(*values)
                    .chunks_exact(n)
                    .zip(self.i32s(*ids).chunks_exact(n))
                {
                    for (value, id) in top_k_merge(row, row_ids, *k) {
                        best.push(value);
                        best_ids.push(id);
                    }
                }
                self.store(*out_values, &best);
                self.store_i32(*out_ids, &best_ids);
            }
            Op::Sample { .. } => self.sample(op)?,
            Op::Fused { parts, .. } => parts.iter().try_for_each(|part| self.op(part))?,
        }
        Ok(())
    }

    fn all_gather(
        &mut self,
        id: CollectiveId,
        wire: GgmlType,
        gathers: &[Gather],
    ) -> Result<(), BackendError> {
        let live_words = |id: BufferId| self.live_rows(id) * self.row(id);
        let mut outs: Vec<Vec<u32>> = gathers.iter().map(|g| vec![0; live_words(g.out)]).collect();
        let mut parts = Vec::with_capacity(gathers.len());
        for (g, out) in gathers.iter().zip(&mut outs) {
            let x = self.prepared().plan.buffer(g.x);
            let inner: usize = x.shape[2..].iter().product();
            parts.push(GatherRows {
                x: &self.words(g.x)[..live_words(g.x)],
                out,
                widths: g.lens.iter().map(|n| n * inner).collect(),
                is_f32: x.dtype == GgmlType::F32,
            });
        }
        all_gather(&*self.backend.ranks(), id, wire, &mut parts)
            .map_err(|failure| failure.in_plan(&self.prepared().plan))?;
        for (g, out) in gathers.iter().zip(outs) {
            self.store_i32(g.out, bytemuck::cast_slice(&out));
        }
        Ok(())
    }

    fn map_rows(&self, x: &Cols, f: impl Fn(&[f32], &mut [f32])) -> Vec<f32> {
        let rows: Vec<&[f32]> = self.cols(x).collect();
        let mut values = vec![0.0; rows.len() * x.len];
        for (row, out) in rows.iter().zip(values.chunks_exact_mut(x.len)) {
            f(row, out);
        }
        values
    }

    fn product(&mut self, x: BufferId, weight: BufferId, out: BufferId) {
        let k = self.row(x);
        let mut values = vec![0.0; self.live_rows(x) * self.axis(weight, 0)];
        matmul(self.live(x), self.f32s(weight), k, &mut values);
        self.store(out, &values);
    }

    fn embed(
        &self,
        tokens: BufferId,
        carry: Option<&CarryRef>,
        table: BufferId,
    ) -> Result<Vec<f32>, BackendError> {
        let (vocab, d) = (self.axis(table, 0), self.row(table));
        let sequences = carry.map(|c| self.sequences(c.cu_seqlens));
        let mut values = Vec::with_capacity(self.tokens * d);
        for (t, token) in self.i32s(tokens)[..self.tokens].iter().enumerate() {
            let token = match (carry, &sequences) {
                (Some(c), Some(sequences)) if *token == -1 => {
                    self.i32s(c.carry)[self.carry_slot(c, sequences[t])?]
                }
                _ => *token,
            };
            let token = self.index("token", token, vocab)?;
            values.extend_from_slice(&self.f32s(table)[token * d..][..d]);
        }
        Ok(values)
    }

    fn append(
        &mut self,
        parts: &[Cols],
        slots: BufferId,
        state: BufferId,
    ) -> Result<(), BackendError> {
        let width = self.last(state);
        let bound = self.f32s(state).len() / width;
        let mut rows: Vec<(usize, Vec<f32>)> = Vec::with_capacity(self.tokens);
        for (t, slot) in self.i32s(slots)[..self.tokens].iter().enumerate() {
            if *slot == -1 {
                continue;
            }
            let slot = self.index("slot", *slot, bound)?;
            let mut row = Vec::with_capacity(width);
            for p in parts {
                let n = self.last(p.buffer);
                row.extend_from_slice(&self.f32s(p.buffer)[t * n + p.start..][..p.len]);
            }
            rows.push((slot, row));
        }
        let name = &self.prepared().plan.buffer(state).name.clone();
        if let Some(state) = self.backend.states.get_mut(name) {
            for (slot, row) in rows {
                state.rows[slot * width..][..width].copy_from_slice(&row);
            }
        }
        Ok(())
    }

    /// The positions that row `t` attends to.
    fn attended(
        &self,
        topk: Option<BufferId>,
        t: usize,
        position: usize,
    ) -> Result<Vec<usize>, BackendError> {
        let Some(topk) = topk else {
            return Ok((0..=position).collect());
        };
        let n = self.row(topk);
        let row = &self.i32s(topk)[t * n..][..n];
        row.iter()
            .take_while(|s| **s != -1)
            .map(|s| self.index("chosen position", *s, position + 1))
            .collect()
    }

    fn sample(&mut self, op: &Op) -> Result<(), BackendError> {
        let Op::Sample {
            logits,
            inputs: i,
            carry,
            out,
        } = op
        else {
            return Ok(());
        };
        let (vocab, words) = (self.row(*logits), self.row(i.token_mask));
        let mut tokens = Vec::with_capacity(self.outputs);
        let mut carried = Vec::new();
        for n in 0..self.outputs {
            let row = self.index("output row", self.i32s(i.output_rows)[n], self.tokens)?;
            let seed = &self.i32s(i.seeds)[n * 3..][..3];
            let params = SampleParams {
                temperature: self.f32s(i.temperature)[n],
                top_k: self.i32s(i.top_k)[n].max(0) as usize,
                top_p: self.f32s(i.top_p)[n],
                min_p: self.f32s(i.min_p)[n],
                seed: u64::from(seed[0] as u32) | u64::from(seed[1] as u32) << 32,
                choice: seed[2] as u32,
                position: (self.i32s(i.positions)[row] as u32).wrapping_add(1),
            };
            let logits = &self.f32s(*logits)[n * vocab..][..vocab];
            let token = sample_row(
                logits,
                &self.words(i.token_mask)[n * words..][..words],
                &params,
            );
            tokens.push(token);
            if let Some(c) = carry {
                let sequence = self.sequences(c.cu_seqlens)[row];
                carried.push((c.carry, self.carry_slot(c, sequence)?, token));
            }
        }
        self.store_i32(*out, &tokens);
        for (id, slot, token) in carried {
            let name = self.prepared().plan.buffer(id).name.clone();
            if let Some(carry) = self.backend.carries.get_mut(&name) {
                carry[slot] = token as u32;
            }
        }
        Ok(())
    }
}
