//! Shape, type and row rules of each operation.

use glim_quant::GgmlType;

use crate::buffer::{BufferDecl, BufferId, BufferKind, InputKind, Rows, StateKind};
use crate::op::{CarryRef, Cols, Gather, Op, Paging, SampleInputs};
use crate::plan::Plan;

/// The rule that a plan broke, in words: what was found, what was expected.
type Rule = Result<(), String>;

/// Checks one operation (the parts of a fused one) against its rules.
pub(crate) fn validate(plan: &Plan, op: &Op) -> Rule {
    op.parts()
        .iter()
        .try_for_each(|part| Shapes { plan }.op(part))
}

struct Shapes<'a> {
    plan: &'a Plan,
}

impl Shapes<'_> {
    fn get(&self, id: BufferId) -> &BufferDecl {
        self.plan.buffer(id)
    }

    fn is(&self, id: BufferId, shape: &[usize]) -> Rule {
        let b = self.get(id);
        if b.shape == shape {
            Ok(())
        } else {
            Err(format!("{} is {:?}, expected {:?}", b.name, b.shape, shape))
        }
    }

    /// Rows of `elements`, however they are divided into axes.
    fn row_of(&self, id: BufferId, rows: Rows, elements: usize) -> Rule {
        let b = self.get(id);
        self.rows(id, rows)?;
        if b.row_elements() == elements {
            Ok(())
        } else {
            Err(format!(
                "a row of {} has {} elements, expected {elements}",
                b.name,
                b.row_elements()
            ))
        }
    }

    fn rows(&self, id: BufferId, rows: Rows) -> Rule {
        let b = self.get(id);
        if b.rows != rows {
            return Err(format!("{} counts {:?}, expected {rows:?}", b.name, b.rows));
        }
        let first = b.shape.first().copied().unwrap_or(0);
        if rows == Rows::Tokens && first != self.plan.step.tokens() {
            return Err(format!(
                "{} has {first} rows, expected the step's {}",
                b.name,
                self.plan.step.tokens()
            ));
        }
        Ok(())
    }

    fn dtype(&self, id: BufferId, dtype: GgmlType) -> Rule {
        let b = self.get(id);
        if b.dtype == dtype {
            Ok(())
        } else {
            Err(format!("{} is {}, expected {dtype}", b.name, b.dtype))
        }
    }

    fn same(&self, a: BufferId, b: BufferId) -> Rule {
        let (a, b) = (self.get(a), self.get(b));
        if a.shape == b.shape && a.rows == b.rows {
            Ok(())
        } else {
            Err(format!(
                "{} is {:?}, but {} is {:?}",
                b.name, b.shape, a.name, a.shape
            ))
        }
    }

    fn f32s(&self, ids: &[BufferId]) -> Rule {
        ids.iter().try_for_each(|id| self.dtype(*id, GgmlType::F32))
    }

    fn i32s(&self, ids: &[BufferId]) -> Rule {
        ids.iter().try_for_each(|id| self.dtype(*id, GgmlType::I32))
    }

    fn weight(&self, id: BufferId, shape: &[usize]) -> Rule {
        let b = self.get(id);
        if b.kind != BufferKind::Weight {
            return Err(format!("{} is {:?}, expected a weight", b.name, b.kind));
        }
        self.is(id, shape)
    }

    /// The engine fills inputs by what they mean: positions where slots belong would have the right shape.
    fn input(&self, id: BufferId, kind: InputKind) -> Rule {
        let b = self.get(id);
        if b.kind == BufferKind::Input(kind) {
            Ok(())
        } else {
            Err(format!(
                "{} is {:?}, expected the input {}",
                b.name,
                b.kind,
                kind.name()
            ))
        }
    }

    fn paged(&self, id: BufferId, width: usize) -> Rule {
        let b = self.get(id);
        match b.kind {
            BufferKind::State(StateKind::Paged { bytes_per_token }) => {
                self.is(id, &[width])?;
                if b.dtype.row_bytes(width) == Some(bytes_per_token) {
                    Ok(())
                } else {
                    Err(format!(
                        "{} declares {bytes_per_token} bytes a token, {width} elements of {} need {:?}",
                        b.name,
                        b.dtype,
                        b.dtype.row_bytes(width)
                    ))
                }
            }
            kind => Err(format!("{} is {kind:?}, expected paged state", b.name)),
        }
    }

    fn cols(&self, c: &Cols) -> Rule {
        let b = self.get(c.buffer);
        let width = b.shape.last().copied().unwrap_or(0);
        if c.len > 0 && c.start.checked_add(c.len).is_some_and(|end| end <= width) {
            Ok(())
        } else {
            Err(format!(
                "columns {}..{} of {} lie outside its {width}",
                c.start,
                c.start.saturating_add(c.len),
                b.name
            ))
        }
    }

    fn paging(&self, p: &Paging) -> Rule {
        let sequences = self.plan.step.sequences();
        self.i32s(&[p.positions, p.cu_seqlens, p.block_tables])?;
        self.input(p.positions, InputKind::Positions)?;
        self.input(p.cu_seqlens, InputKind::CuSeqlens)?;
        self.input(p.block_tables, InputKind::BlockTables)?;
        self.row_of(p.positions, Rows::Tokens, 1)?;
        self.is(p.cu_seqlens, &[sequences + 1])?;
        self.is(p.block_tables, &[sequences, self.plan.geometry.max_blocks])
    }

    fn carry(&self, c: &CarryRef) -> Rule {
        let sequences = self.plan.step.sequences();
        let b = self.get(c.carry);
        if b.kind != BufferKind::Carry {
            return Err(format!("{} is {:?}, expected a carry", b.name, b.kind));
        }
        self.i32s(&[c.carry, c.sequence_slots, c.cu_seqlens])?;
        self.input(c.sequence_slots, InputKind::SequenceSlots)?;
        self.input(c.cu_seqlens, InputKind::CuSeqlens)?;
        self.is(c.sequence_slots, &[sequences])?;
        self.is(c.cu_seqlens, &[sequences + 1])
    }

    fn op(&self, op: &Op) -> Rule {
        let last = |id: BufferId| self.get(id).shape.last().copied().unwrap_or(0);
        let axis = |id: BufferId, i: usize| self.get(id).shape.get(i).copied().unwrap_or(0);
        match op {
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            } => {
                self.i32s(&[*tokens])?;
                self.input(*tokens, InputKind::Tokens)?;
                self.row_of(*tokens, Rows::Tokens, 1)?;
                self.f32s(&[*out])?;
                self.row_of(*out, Rows::Tokens, last(*table))?;
                self.weight(*table, &[axis(*table, 0), last(*out)])?;
                carry.as_ref().map_or(Ok(()), |c| self.carry(c))
            }
            Op::RmsNorm { x, weight, out, .. } => self.norm(x, &[*weight], *out),
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                ..
            } => self.norm(x, &[*weight, *bias], *out),
            Op::Linear {
                x, weights, outs, ..
            } => {
                if weights.is_empty() || weights.len() != outs.len() {
                    return Err(format!(
                        "{} weights for {} results",
                        weights.len(),
                        outs.len()
                    ));
                }
                self.f32s(&[*x])?;
                let (k, rows) = (self.get(*x).row_elements(), self.get(*x).rows);
                for (w, out) in weights.iter().zip(outs) {
                    let m = axis(*w, 0);
                    self.weight(*w, &[m, k])?;
                    self.f32s(&[*out])?;
                    self.row_of(*out, rows, m)?;
                    self.same_count(*x, *out)?;
                }
                Ok(())
            }
            Op::Rope { x, positions, spec } => {
                self.f32s(&[*x])?;
                self.rows(*x, Rows::Tokens)?;
                self.i32s(&[*positions])?;
                self.input(*positions, InputKind::Positions)?;
                self.row_of(*positions, Rows::Tokens, 1)?;
                self.cols(&Cols {
                    buffer: *x,
                    start: spec.start,
                    len: spec.n,
                })?;
                if spec.n % 2 == 0 {
                    Ok(())
                } else {
                    Err(format!(
                        "{} rotated elements, expected an even number",
                        spec.n
                    ))
                }
            }
            Op::CacheAppend {
                parts,
                slots,
                state,
            } => {
                self.i32s(&[*slots])?;
                self.input(*slots, InputKind::SlotMapping)?;
                self.row_of(*slots, Rows::Tokens, 1)?;
                for p in parts {
                    self.f32s(&[p.buffer])?;
                    self.cols(p)?;
                    self.row_of(p.buffer, Rows::Tokens, last(p.buffer))?;
                }
                self.paged(*state, parts.iter().map(|p| p.len).sum())
            }
            Op::IndexScore {
                q,
                weights,
                keys,
                paging,
                out,
                ..
            } => {
                let (heads, dim) = (axis(*q, 1), last(*q));
                self.f32s(&[*q, *weights, *out])?;
                self.rows(*q, Rows::Tokens)?;
                self.is(*q, &[self.plan.step.tokens(), heads, dim])?;
                self.row_of(*weights, Rows::Tokens, heads)?;
                self.paged(*keys, dim)?;
                self.paging(paging)?;
                self.row_of(*out, Rows::Tokens, self.plan.geometry.max_positions())
            }
            Op::IndexSelect {
                scores,
                positions,
                topk,
                forced,
                out,
            } => {
                self.f32s(&[*scores])?;
                self.i32s(&[*positions, *out])?;
                self.input(*positions, InputKind::Positions)?;
                self.row_of(*positions, Rows::Tokens, 1)?;
                self.row_of(*scores, Rows::Tokens, self.plan.geometry.max_positions())?;
                if let Some(forced) = forced {
                    self.i32s(&[forced.buffer])?;
                    self.input(forced.buffer, InputKind::ForcedTopk)?;
                    self.row_of(forced.buffer, Rows::Tokens, last(forced.buffer))?;
                    self.cols(forced)?;
                    if forced.len != *topk {
                        return Err(format!("{} forced positions, expected {topk}", forced.len));
                    }
                }
                self.row_of(*out, Rows::Tokens, *topk)
            }
            Op::MlaAttend {
                q_latent,
                q_rope,
                latent,
                topk,
                paging,
                out,
                ..
            } => {
                let (heads, rank) = (axis(*q_latent, 1), last(*q_latent));
                self.f32s(&[*q_latent, q_rope.buffer, *out])?;
                self.rows(*q_latent, Rows::Tokens)?;
                self.is(*q_latent, &[self.plan.step.tokens(), heads, rank])?;
                self.cols(q_rope)?;
                self.is(
                    q_rope.buffer,
                    &[self.plan.step.tokens(), heads, last(q_rope.buffer)],
                )?;
                self.paged(*latent, rank + q_rope.len)?;
                self.paging(paging)?;
                if let Some(topk) = topk {
                    self.i32s(&[*topk])?;
                    self.rows(*topk, Rows::Tokens)?;
                }
                self.same(*q_latent, *out)
            }
            Op::HeadProject { x, weight, out } => {
                self.f32s(&[x.buffer, *out])?;
                self.cols(x)?;
                let heads = axis(x.buffer, 1);
                self.rows(x.buffer, Rows::Tokens)?;
                self.is(x.buffer, &[self.plan.step.tokens(), heads, last(x.buffer)])?;
                self.weight(*weight, &[heads, axis(*weight, 1), x.len])?;
                self.rows(*out, Rows::Tokens)?;
                self.is(*out, &[self.plan.step.tokens(), heads, axis(*weight, 1)])
            }
            Op::SwiGlu { gate, up, out } => {
                self.f32s(&[*gate, *up, *out])?;
                self.same(*gate, *up)?;
                self.same(*gate, *out)
            }
            Op::Route {
                x,
                weight,
                bias,
                spec,
                ids,
                expert_weights,
            } => {
                let experts = axis(*weight, 0);
                self.f32s(&[*x, *expert_weights])?;
                self.i32s(&[*ids])?;
                self.rows(*x, Rows::Tokens)?;
                self.weight(*weight, &[experts, self.get(*x).row_elements()])?;
                if let Some(bias) = bias {
                    self.weight(*bias, &[experts])?;
                }
                if spec.k == 0
                    || spec.k > experts
                    || spec.n_group == 0
                    || experts % spec.n_group != 0
                {
                    return Err(format!(
                        "{} of {experts} experts in {} groups cannot be chosen",
                        spec.k, spec.n_group
                    ));
                }
                if spec.topk_group == 0
                    || spec.topk_group > spec.n_group
                    || spec.k > experts / spec.n_group * spec.topk_group
                {
                    return Err(format!(
                        "{} of {} groups cannot give {} experts",
                        spec.topk_group, spec.n_group, spec.k
                    ));
                }
                self.row_of(*ids, Rows::Tokens, spec.k)?;
                self.row_of(*expert_weights, Rows::Tokens, spec.k)
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
                let (experts, inner, d) =
                    (axis(*gate, 0), axis(*gate, 1), self.get(*x).row_elements());
                self.f32s(&[*x, *expert_weights, *out])?;
                self.i32s(&[*ids])?;
                self.rows(*x, Rows::Tokens)?;
                self.rows(*ids, Rows::Tokens)?;
                self.same(*ids, *expert_weights)?;
                self.weight(*gate, &[experts, inner, d])?;
                self.weight(*up, &[experts, inner, d])?;
                self.weight(*down, &[experts, axis(*down, 1), inner])?;
                self.row_of(*out, Rows::Tokens, axis(*down, 1))
            }
            Op::Add { a, b, out } => {
                self.f32s(&[*a, *b, *out])?;
                self.same(*a, *b)?;
                self.same(*a, *out)
            }
            Op::SelectRows {
                x,
                output_rows,
                out,
            } => {
                self.f32s(&[*x, *out])?;
                self.i32s(&[*output_rows])?;
                self.input(*output_rows, InputKind::OutputRows)?;
                self.rows(*x, Rows::Tokens)?;
                self.row_of(*output_rows, Rows::Outputs, 1)?;
                self.row_of(*out, Rows::Outputs, self.get(*x).row_elements())?;
                self.same_count(*output_rows, *out)
            }
            Op::LmHead { x, weight, out } => {
                self.f32s(&[*x, *out])?;
                self.weight(*weight, &[axis(*weight, 0), self.get(*x).row_elements()])?;
                self.row_of(*out, self.get(*x).rows, axis(*weight, 0))?;
                self.same_count(*x, *out)
            }
            Op::AllReduce { wire, x, out, .. } => {
                self.f32s(&[*x, *out])?;
                wire_type(*wire, false)?;
                self.same(*x, *out)
            }
            Op::AllGather { wire, gathers, .. } => {
                let is_i32 = |g: &Gather| self.get(g.x).dtype == GgmlType::I32;
                wire_type(*wire, gathers.iter().all(is_i32))?;
                gathers.iter().try_for_each(|g| self.gather(g))
            }
            Op::TopKMerge {
                values,
                ids,
                k,
                out_values,
                out_ids,
            } => {
                self.f32s(&[*values, *out_values])?;
                self.i32s(&[*ids, *out_ids])?;
                self.same(*values, *ids)?;
                self.row_of(*out_values, self.get(*values).rows, *k)?;
                self.same_count(*values, *out_values)?;
                self.same(*out_values, *out_ids)?;
                let candidates = self.get(*values).row_elements();
                if *k <= candidates {
                    Ok(())
                } else {
                    Err(format!("{k} of {candidates} candidates cannot be kept"))
                }
            }
            Op::Shortlist {
                logits,
                first_id,
                inputs,
                k,
                out_values,
                out_ids,
            } => {
                let part = self.get(*logits).row_elements();
                self.sample_inputs(*logits, inputs)?;
                // The mask is that of the whole vocabulary, of which this is a part.
                let words = self.get(inputs.token_mask).row_elements();
                if words < (first_id + part).div_ceil(32) {
                    let end = first_id + part;
                    return Err(format!(
                        "a mask of {words} words for tokens {first_id}..{end}"
                    ));
                }
                self.f32s(&[*out_values])?;
                self.i32s(&[*out_ids])?;
                self.row_of(*out_values, Rows::Outputs, *k)?;
                self.same_count(*logits, *out_values)?;
                self.same(*out_values, *out_ids)
            }
            Op::Sample {
                logits,
                ids,
                inputs,
                carry,
                out,
            } => {
                let vocab = self.get(*logits).row_elements();
                match ids {
                    Some(ids) => {
                        self.i32s(&[*ids])?;
                        self.same(*logits, *ids)?;
                        self.sample_inputs(*logits, inputs)?;
                    }
                    None => {
                        self.sample_inputs(*logits, inputs)?;
                        self.row_of(inputs.token_mask, Rows::Outputs, vocab.div_ceil(32))?;
                    }
                }
                self.i32s(&[*out])?;
                self.row_of(*out, Rows::Outputs, 1)?;
                self.same_count(*logits, *out)?;
                carry.as_ref().map_or(Ok(()), |c| self.carry(c))
            }
            // `validate` passes parts only, and parts are not nested.
            Op::Fused { name, .. } => Err(format!("{name} is nested in another fused operation")),
        }
    }

    /// The parameters of a draw from `logits`.
    fn sample_inputs(&self, logits: BufferId, i: &SampleInputs) -> Rule {
        self.f32s(&[logits, i.temperature, i.top_p, i.min_p])?;
        self.i32s(&[i.output_rows, i.positions, i.top_k, i.seeds, i.token_mask])?;
        self.rows(logits, Rows::Outputs)?;
        for (id, kind) in [
            (i.output_rows, InputKind::OutputRows),
            (i.positions, InputKind::Positions),
            (i.temperature, InputKind::Temperature),
            (i.top_k, InputKind::TopK),
            (i.top_p, InputKind::TopP),
            (i.min_p, InputKind::MinP),
            (i.seeds, InputKind::Seeds),
            (i.token_mask, InputKind::TokenMask),
        ] {
            self.input(id, kind)?;
        }
        self.row_of(i.positions, Rows::Tokens, 1)?;
        for id in [i.output_rows, i.temperature, i.top_k, i.top_p, i.min_p] {
            self.row_of(id, Rows::Outputs, 1)?;
            self.same_count(logits, id)?;
        }
        self.row_of(i.seeds, Rows::Outputs, 3)?;
        self.same_count(logits, i.seeds)?;
        self.rows(i.token_mask, Rows::Outputs)?;
        self.same_count(logits, i.token_mask)
    }

    fn gather(&self, g: &Gather) -> Rule {
        let (x, world_size) = (self.get(g.x), self.plan.world_size);
        self.dtype(g.out, x.dtype)?;
        self.rows(g.out, x.rows)?;
        let own = g.lens.get(self.plan.rank).copied();
        if g.lens.len() != world_size || own.is_none() || own != x.shape.get(1).copied() {
            return Err(format!(
                "{} is {:?} of rank {}: expected one length for each of {world_size} ranks, and its own as axis 1, not {:?}",
                x.name, x.shape, self.plan.rank, g.lens
            ));
        }
        let mut shape = x.shape.clone();
        if let Some(n) = shape.get_mut(1) {
            *n = g.lens.iter().sum();
        }
        self.is(g.out, &shape)
    }

    fn norm(&self, x: &Cols, weights: &[BufferId], out: BufferId) -> Rule {
        self.f32s(&[x.buffer, out])?;
        self.cols(x)?;
        for w in weights {
            self.weight(*w, &[x.len])?;
        }
        let (from, to) = (self.get(x.buffer), self.get(out));
        let mut shape = from.shape.clone();
        if let Some(width) = shape.last_mut() {
            *width = x.len;
        }
        if to.shape == shape && to.rows == from.rows {
            Ok(())
        } else {
            Err(format!("{} is {:?}, expected {shape:?}", to.name, to.shape))
        }
    }

    /// As many entries of axis 0: a step says how many rows it has, but not how many output rows.
    fn same_count(&self, a: BufferId, b: BufferId) -> Rule {
        let (a, b) = (self.get(a), self.get(b));
        if a.shape.first() == b.shape.first() {
            Ok(())
        } else {
            Err(format!(
                "{} has {:?} rows, but {} has {:?}",
                b.name,
                b.shape.first(),
                a.name,
                a.shape.first()
            ))
        }
    }
}

/// What values can be sent as.
fn wire_type(wire: GgmlType, all_i32: bool) -> Rule {
    match wire {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => Ok(()),
        GgmlType::I32 if all_i32 => Ok(()),
        other => Err(format!(
            "{other} is no type for a wire: expected F32, F16 or BF16"
        )),
    }
}
