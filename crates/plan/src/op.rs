//! The closed list of operations.
//!
//! Operations are coarse: one is what a good kernel does in one launch, or a few. Each declares what it reads, writes and
//! updates in place; nothing else is touched. In the formulas, `T` is the step's rows, `N` its output rows, `x·Wᵀ` a product
//! with a row-major weight `[out, in]`. Sums, softmax and norms are f32; sizes that depend on data stay inside an op.

use glim_quant::GgmlType;

use crate::buffer::BufferId;

/// A range of the last axis of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cols {
    /// The buffer.
    pub buffer: BufferId,
    /// First element of the last axis.
    pub start: usize,
    /// Elements of the last axis.
    pub len: usize,
}

/// Arithmetic of a product in fast math; in exact math all is f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Activations may be rounded to the backend's fast format.
    Fast,
    /// Activations stay f32 (router, indexer weights).
    F32,
}

/// Which two elements of a head one rotation mixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Pairs `(2i, 2i + 1)` (GPT-J).
    Interleaved,
    /// Pairs `(i, i + n/2)` (GPT-NeoX).
    HalfSplit,
}

/// A rotary embedding without scaling: pair `i` turns by `position · theta^(−2i/n)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// First rotated element of a head.
    pub start: usize,
    /// Rotated elements of a head (even).
    pub n: usize,
    /// Base of the frequencies.
    pub theta: f32,
    /// Pairing.
    pub style: RopeStyle,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
}

/// The choice of experts (DeepSeek-V3's `noaux_tc`): choose by `score + bias`, weigh by `score`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterSpec {
    /// Experts chosen for a row.
    pub k: usize,
    /// Logits to scores.
    pub scoring: Scoring,
    /// Groups of consecutive experts; 1: no grouping.
    pub n_group: usize,
    /// Groups that may be chosen from: those with the largest sum of their two best biased scores.
    pub topk_group: usize,
    /// Divide the chosen scores by their sum.
    pub norm: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// How rows find their sequence's cached rows: position `p` of sequence `s` lies in slot
/// `block_tables[s][p / block_size] * block_size + p % block_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Paging {
    /// `[T]` i32 input.
    pub positions: BufferId,
    /// `[sequences + 1]` i32 input.
    pub cu_seqlens: BufferId,
    /// `[sequences, max_blocks]` i32 input.
    pub block_tables: BufferId,
}

/// A carried value, addressed by the slot of a row's sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CarryRef {
    /// `[slots]` i32 carry.
    pub carry: BufferId,
    /// `[sequences]` i32 input.
    pub sequence_slots: BufferId,
    /// `[sequences + 1]` i32 input.
    pub cu_seqlens: BufferId,
}

/// The inputs of [`Op::Sample`], each with a row for each output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleInputs {
    /// `[N]` i32: source row, −1 for a pad.
    pub output_rows: BufferId,
    /// `[T]` i32: the drawn token's position is that of the source row plus one; it is the generator's counter.
    pub positions: BufferId,
    /// `[N]` f32.
    pub temperature: BufferId,
    /// `[N]` i32.
    pub top_k: BufferId,
    /// `[N]` f32.
    pub top_p: BufferId,
    /// `[N]` f32.
    pub min_p: BufferId,
    /// `[N, 3]` i32.
    pub seeds: BufferId,
    /// `[N, ceil(V / 32)]` i32.
    pub token_mask: BufferId,
}

impl SampleInputs {
    fn all(&self) -> [BufferId; 8] {
        [
            self.output_rows,
            self.positions,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seeds,
            self.token_mask,
        ]
    }
}

/// Names a collective, so that ranks can agree on what they enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectiveId(pub u32);

/// One buffer of an [`Op::AllGather`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gather {
    /// This rank's part, `[T|N, lens[rank], …]`.
    pub x: BufferId,
    /// All parts, `[T|N, Σ lens, …]`.
    pub out: BufferId,
    /// Entries of axis 1 that each rank brings; they may differ.
    pub lens: Vec<usize>,
}

/// An operation. Shapes are capacities.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out[t] = table[token t]`: `tokens [T]` i32, `table [V, D]`, `out [T, D]`. A token of −1 is the carried one.
    Embed {
        /// Token ids.
        tokens: BufferId,
        /// Where a token of −1 comes from.
        carry: Option<CarryRef>,
        /// Embedding rows.
        table: BufferId,
        /// Result.
        out: BufferId,
    },
    /// `out = x · rsqrt(mean(x²) + eps) ⊙ weight` over the last axis: `x [T|N, D]`.
    RmsNorm {
        /// Input, may be a range of columns.
        x: Cols,
        /// `[D]`.
        weight: BufferId,
        /// Added to the mean square.
        eps: f32,
        /// Result `[T|N, D]`.
        out: BufferId,
    },
    /// `out = (x − mean) / sqrt(var + eps) ⊙ weight + bias` over the last axis.
    LayerNorm {
        /// Input, may be a range of columns.
        x: Cols,
        /// `[D]`.
        weight: BufferId,
        /// `[D]`.
        bias: BufferId,
        /// Added to the variance.
        eps: f32,
        /// Result.
        out: BufferId,
    },
    /// `outs[i] = x · weights[i]ᵀ`: one input `[T, K]`, weights `[Mᵢ, K]`, results `[T, …]` of `Mᵢ` elements a row.
    Linear {
        /// Input.
        x: BufferId,
        /// Weights that share the input; one kernel may read them together.
        weights: Vec<BufferId>,
        /// One result for each weight.
        outs: Vec<BufferId>,
        /// Arithmetic in fast math.
        precision: Precision,
    },
    /// Rotates `x [T, W]` or `[T, H, W]` in place by each row's position.
    Rope {
        /// Updated.
        x: BufferId,
        /// `[T]` i32.
        positions: BufferId,
        /// What is rotated, and how.
        spec: RopeSpec,
    },
    /// Writes `[parts[0] ‖ parts[1] ‖ …]` of each live row to its slot of a paged state; rows with slot −1 are skipped.
    CacheAppend {
        /// Column ranges of `[T, …]` buffers.
        parts: Vec<Cols>,
        /// `[T]` i32.
        slots: BufferId,
        /// Paged state `[W]`, `W` the sum of the parts' lengths.
        state: BufferId,
    },
    /// Lightning-indexer scores (DeepSeek-V3.2 §2.1): `out[t, s] = Σ_h weights[t, h] · scale · relu(q[t, h] · key[s])` for
    /// `s ≤ position t`; the rest of a row is not written: `q [T, Hi, Di]`, `weights [T, Hi]`, `out [T, max positions]`.
    IndexScore {
        /// Index queries, rotated.
        q: BufferId,
        /// Head weights.
        weights: BufferId,
        /// Paged state of index keys `[Di]`.
        keys: BufferId,
        /// Where the keys are.
        paging: Paging,
        /// Constant factor (positive).
        scale: f32,
        /// Scores.
        out: BufferId,
    },
    /// `out[t]` = the positions of the `min(topk, position t + 1)` largest scores, ascending, then −1. Equal scores at the
    /// last place: the lower position wins. A row whose `forced` columns do not start with −1 takes those positions instead:
    /// two computations can then be compared beyond a near-tie that they round differently.
    IndexSelect {
        /// `[T, max positions]`.
        scores: BufferId,
        /// `[T]` i32.
        positions: BufferId,
        /// Positions kept.
        topk: usize,
        /// `topk` columns of the input [`crate::InputKind::ForcedTopk`].
        forced: Option<Cols>,
        /// `[T, topk]` i32.
        out: BufferId,
    },
    /// Absorbed multi-head latent attention over cached rows `[c ‖ k_pe]`: with `s` over `topk[t]` up to its first −1 (or all
    /// `s ≤ position t`), `p = softmax_s(scale · (q_latent·c_s + q_rope·k_pe_s))`,
    /// `out[t, h] = Σ_s p · c_s`.
    MlaAttend {
        /// `[T, H, R]`.
        q_latent: BufferId,
        /// The rotated columns of `[T, H, W]`.
        q_rope: Cols,
        /// Paged state `[R + rope]`.
        latent: BufferId,
        /// Positions chosen by an indexer; `None`: all.
        topk: Option<BufferId>,
        /// Where the rows are.
        paging: Paging,
        /// Softmax scale.
        scale: f32,
        /// `[T, H, R]`.
        out: BufferId,
    },
    /// A product for each head: `out[t, h] = weight[h] · x[t, h]`: `x [T, H, In]`, `weight [H, Out, In]`, `out [T, H, Out]`.
    HeadProject {
        /// Input, may be a range of a head's columns.
        x: Cols,
        /// Weights of all heads.
        weight: BufferId,
        /// Result.
        out: BufferId,
    },
    /// `out = silu(gate) ⊙ up`, all `[T, I]`.
    SwiGlu {
        /// Passed through silu.
        gate: BufferId,
        /// Factor.
        up: BufferId,
        /// Result.
        out: BufferId,
    },
    /// Router, in f32: logits `x · weightᵀ`, then the choice by [`RouterSpec`]: `ids [T, k]` i32 ascending, `weights [T, k]`.
    Route {
        /// `[T, D]`.
        x: BufferId,
        /// `[E, D]`.
        weight: BufferId,
        /// `[E]`: for choosing only.
        bias: Option<BufferId>,
        /// The rule.
        spec: RouterSpec,
        /// Chosen experts.
        ids: BufferId,
        /// Their weights.
        expert_weights: BufferId,
    },
    /// `out[t] = Σ_i expert_weights[t, i] · down_e (silu(gate_e x) ⊙ up_e x)`, `e = ids[t, i]`. Sorting rows by expert, and the
    /// scratch for it (bounded by `T · k` rows), are inside.
    ExpertFfn {
        /// `[T, D]`.
        x: BufferId,
        /// `[T, k]` i32.
        ids: BufferId,
        /// `[T, k]`.
        expert_weights: BufferId,
        /// `[E, I, D]`.
        gate: BufferId,
        /// `[E, I, D]`.
        up: BufferId,
        /// `[E, D, I]`.
        down: BufferId,
        /// `[T, D]`.
        out: BufferId,
    },
    /// `out = a + b`.
    Add {
        /// `[T, D]`.
        a: BufferId,
        /// `[T, D]`.
        b: BufferId,
        /// `[T, D]`.
        out: BufferId,
    },
    /// `out[n] = x[output_rows[n]]`; pad rows are skipped.
    SelectRows {
        /// `[T, D]`.
        x: BufferId,
        /// `[N]` i32.
        output_rows: BufferId,
        /// `[N, D]`.
        out: BufferId,
    },
    /// `out = x · weightᵀ`: `x [N, D]`, `weight [V, D]`, `out [N, V]` f32.
    LmHead {
        /// Final-normed rows.
        x: BufferId,
        /// Output head.
        weight: BufferId,
        /// Logits.
        out: BufferId,
    },
    /// `out` = sum of `x` over the ranks, in rank order.
    AllReduce {
        /// Same on all ranks.
        id: CollectiveId,
        /// Type on the wire: f32 in exact math, bf16 in fast.
        wire: GgmlType,
        /// This rank's addend.
        x: BufferId,
        /// The sum.
        out: BufferId,
    },
    /// For each of `gathers`: `out` = the ranks' `x`, joined along axis 1 in rank order. Several buffers go in one
    /// collective, since a small one costs its latency and not its bytes.
    AllGather {
        /// Same on all ranks.
        id: CollectiveId,
        /// Type on the wire; i32 buffers travel as they are.
        wire: GgmlType,
        /// What is gathered.
        gathers: Vec<Gather>,
    },
    /// Merges the ranks' candidates: the `k` largest of `values [N, C]` with their `ids [N, C]`, largest first, ties to the lower id.
    TopKMerge {
        /// `[N, C]` f32.
        values: BufferId,
        /// `[N, C]` i32.
        ids: BufferId,
        /// Kept.
        k: usize,
        /// `[N, k]` f32.
        out_values: BufferId,
        /// `[N, k]` i32.
        out_ids: BufferId,
    },
    /// Of this rank's part of the vocabulary, the `k` tokens among which the drawn one is if it is one of them
    /// ([`crate::sample::shortlist`]): so that ranks gather a few candidates and not all logits. Empty places have id −1 and logit −∞.
    Shortlist {
        /// `[N, V of this rank]`.
        logits: BufferId,
        /// Token of the first logit.
        first_id: usize,
        /// Parameters; the mask is that of the whole vocabulary.
        inputs: SampleInputs,
        /// Kept.
        k: usize,
        /// `[N, k]` f32.
        out_values: BufferId,
        /// `[N, k]` i32.
        out_ids: BufferId,
    },
    /// Draws a token for each live output row as [`crate::sample`] specifies; a row without a possible token gets a negative
    /// code. The token also goes to the row's sequence slot of the carry.
    Sample {
        /// `[N, V]`, or `[N, C]` of candidates.
        logits: BufferId,
        /// `[N, C]` i32: the candidates' tokens; `None`: each column is the token of its index.
        ids: Option<BufferId>,
        /// Parameters.
        inputs: SampleInputs,
        /// Where the token is carried to; written for live rows only.
        carry: Option<CarryRef>,
        /// `[N]` i32.
        out: BufferId,
    },
    /// Several operations that a backend has one kernel for. Meaning, check and cost are those of the parts, in order.
    Fused {
        /// Name of the pattern.
        name: &'static str,
        /// The operations.
        parts: Vec<Op>,
    },
}

/// An operation and its name in the model.
#[derive(Debug, Clone, PartialEq)]
pub struct OpNode {
    /// Opaque here; e.g. `blk.3.attn_q_b`.
    pub label: String,
    /// What it does.
    pub op: Op,
}

/// What an operation touches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Read only.
    pub reads: Vec<BufferId>,
    /// Written whole (all live rows), never read.
    pub writes: Vec<BufferId>,
    /// Read and written in place, or written in part.
    pub updates: Vec<BufferId>,
    /// Paged or slot state that gets this step's rows.
    pub appends: Vec<BufferId>,
}

impl Access {
    fn new(reads: &[BufferId], writes: &[BufferId]) -> Self {
        Self {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            ..Self::default()
        }
    }

    fn read_paging(mut self, p: &Paging) -> Self {
        self.reads
            .extend([p.positions, p.cu_seqlens, p.block_tables]);
        self
    }
}

impl Op {
    /// What the operation touches. For [`Op::Fused`]: the union over its parts, in order, without repeats.
    pub fn access(&self) -> Access {
        match self {
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            } => {
                let mut a = Access::new(&[*tokens, *table], &[*out]);
                if let Some(c) = carry {
                    a.reads.extend([c.carry, c.sequence_slots, c.cu_seqlens]);
                }
                a
            }
            Op::RmsNorm { x, weight, out, .. } => Access::new(&[x.buffer, *weight], &[*out]),
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                ..
            } => Access::new(&[x.buffer, *weight, *bias], &[*out]),
            Op::Linear {
                x, weights, outs, ..
            } => {
                let mut a = Access::new(&[*x], outs);
                a.reads.extend(weights);
                a
            }
            Op::Rope { x, positions, .. } => Access {
                updates: vec![*x],
                ..Access::new(&[*positions], &[])
            },
            Op::CacheAppend {
                parts,
                slots,
                state,
            } => {
                let mut a = Access {
                    appends: vec![*state],
                    ..Access::new(&[*slots], &[])
                };
                a.reads.extend(parts.iter().map(|p| p.buffer));
                a
            }
            Op::IndexScore {
                q,
                weights,
                keys,
                paging,
                out,
                ..
            } => Access::new(&[*q, *weights, *keys], &[*out]).read_paging(paging),
            Op::IndexSelect {
                scores,
                positions,
                forced,
                out,
                ..
            } => {
                let mut a = Access::new(&[*scores, *positions], &[*out]);
                a.reads.extend(forced.map(|f| f.buffer));
                a
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
                let mut a =
                    Access::new(&[*q_latent, q_rope.buffer, *latent], &[*out]).read_paging(paging);
                a.reads.extend(topk);
                a
            }
            Op::HeadProject { x, weight, out } => Access::new(&[x.buffer, *weight], &[*out]),
            Op::SwiGlu { gate, up, out } => Access::new(&[*gate, *up], &[*out]),
            Op::Route {
                x,
                weight,
                bias,
                ids,
                expert_weights,
                ..
            } => {
                let mut a = Access::new(&[*x, *weight], &[*ids, *expert_weights]);
                a.reads.extend(bias);
                a
            }
            Op::ExpertFfn {
                x,
                ids,
                expert_weights,
                gate,
                up,
                down,
                out,
            } => Access::new(&[*x, *ids, *expert_weights, *gate, *up, *down], &[*out]),
            Op::Add { a, b, out } => Access::new(&[*a, *b], &[*out]),
            Op::SelectRows {
                x,
                output_rows,
                out,
            } => Access::new(&[*x, *output_rows], &[*out]),
            Op::LmHead { x, weight, out } => Access::new(&[*x, *weight], &[*out]),
            Op::AllReduce { x, out, .. } => Access::new(&[*x], &[*out]),
            Op::AllGather { gathers, .. } => {
                let mut a = Access::default();
                a.reads.extend(gathers.iter().map(|g| g.x));
                a.writes.extend(gathers.iter().map(|g| g.out));
                a
            }
            Op::TopKMerge {
                values,
                ids,
                out_values,
                out_ids,
                ..
            } => Access::new(&[*values, *ids], &[*out_values, *out_ids]),
            Op::Shortlist {
                logits,
                inputs,
                out_values,
                out_ids,
                ..
            } => {
                let mut a = Access::new(&[*logits], &[*out_values, *out_ids]);
                a.reads.extend(inputs.all());
                a
            }
            Op::Sample {
                logits,
                ids,
                inputs,
                carry,
                out,
            } => {
                let mut a = Access::new(&[*logits], &[*out]);
                a.reads.extend(ids);
                a.reads.extend(inputs.all());
                if let Some(c) = carry {
                    a.reads.extend([c.sequence_slots, c.cu_seqlens]);
                    a.updates.push(c.carry);
                }
                a
            }
            Op::Fused { parts, .. } => fused_access(parts),
        }
    }

    /// Name of the kind, as in prints.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "Embed",
            Op::RmsNorm { .. } => "RmsNorm",
            Op::LayerNorm { .. } => "LayerNorm",
            Op::Linear { .. } => "Linear",
            Op::Rope { .. } => "Rope",
            Op::CacheAppend { .. } => "CacheAppend",
            Op::IndexScore { .. } => "IndexScore",
            Op::IndexSelect { .. } => "IndexSelect",
            Op::MlaAttend { .. } => "MlaAttend",
            Op::HeadProject { .. } => "HeadProject",
            Op::SwiGlu { .. } => "SwiGlu",
            Op::Route { .. } => "Route",
            Op::ExpertFfn { .. } => "ExpertFfn",
            Op::Add { .. } => "Add",
            Op::SelectRows { .. } => "SelectRows",
            Op::LmHead { .. } => "LmHead",
            Op::AllReduce { .. } => "AllReduce",
            Op::AllGather { .. } => "AllGather",
            Op::TopKMerge { .. } => "TopKMerge",
            Op::Shortlist { .. } => "Shortlist",
            Op::Sample { .. } => "Sample",
            Op::Fused { name, .. } => name,
        }
    }

    /// The operation itself, or the parts of a fused one: what a backend without the fused kernel runs.
    pub fn parts(&self) -> &[Op] {
        match self {
            Op::Fused { parts, .. } => parts,
            op => std::slice::from_ref(op),
        }
    }

    /// The collective that the operation enters, with its wire type.
    pub fn collective(&self) -> Option<(CollectiveId, GgmlType)> {
        match self {
            Op::AllReduce { id, wire, .. } | Op::AllGather { id, wire, .. } => Some((*id, *wire)),
            _ => None,
        }
    }
}

fn fused_access(parts: &[Op]) -> Access {
    fn push(list: &mut Vec<BufferId>, id: BufferId) {
        if !list.contains(&id) {
            list.push(id);
        }
    }
    let mut all = Access::default();
    for part in parts {
        let a = part.access();
        for id in a.reads {
            if !all.writes.contains(&id) {
                push(&mut all.reads, id);
            }
        }
        for id in a.writes {
            push(&mut all.writes, id);
        }
        for id in a.updates {
            push(
                if all.writes.contains(&id) {
                    &mut all.writes
                } else {
                    &mut all.updates
                },
                id,
            );
        }
        for id in a.appends {
            push(&mut all.appends, id);
        }
    }
    all
}
