//! A two-layer model of the shape of GLM-5, small and with sizes that differ from each other, so that an exchanged axis shows.
//! Layer 0 has an indexer and a dense feed-forward part; layer 1 reuses layer 0's positions and has routed experts beside a
//! shared one.

use glim_plan::{
    BufferId, CacheGeometry, CarryRef, Cols, GgmlType, InputExtents, InputKind, Op, Paging, Plan,
    PlanBuilder, Precision, RopeSpec, RopeStyle, RouterSpec, Rows, SampleInputs, Scoring, StepKind,
};

pub(crate) const VOCAB: usize = 41;
pub(crate) const HIDDEN: usize = 21;
pub(crate) const HEADS: usize = 3;
pub(crate) const NOPE: usize = 5;
pub(crate) const ROPE: usize = 4;
pub(crate) const Q_RANK: usize = 10;
pub(crate) const KV_RANK: usize = 7;
pub(crate) const V_HEAD: usize = 11;
pub(crate) const INDEX_HEADS: usize = 2;
pub(crate) const INDEX_DIM: usize = 13;
pub(crate) const TOPK: usize = 6;
pub(crate) const DENSE: usize = 17;
pub(crate) const EXPERTS: usize = 12;
pub(crate) const EXPERTS_USED: usize = 3;
pub(crate) const EXPERT_INNER: usize = 15;
pub(crate) const SHARED_INNER: usize = 19;
/// Sequence slots of the carry.
pub(crate) const SLOTS: usize = 8;
pub(crate) const GEOMETRY: CacheGeometry = CacheGeometry {
    block_size: 3,
    max_blocks: 9,
};

const EPS: f32 = 1e-5;
const F32: GgmlType = GgmlType::F32;

/// A decode plan.
pub(crate) fn decode(rows: usize) -> Plan {
    Toy::emit("toy.decode", StepKind::Decode { rows })
}

/// A prefill plan with as many output rows as rows, so that every row's logits can be compared.
pub(crate) fn prefill(tokens: usize, sequences: usize) -> Plan {
    Toy::emit("toy.prefill", StepKind::Prefill { tokens, sequences })
}

/// All columns of a buffer whose last axis has `len` elements.
pub(crate) fn all(buffer: BufferId, len: usize) -> Cols {
    Cols {
        buffer,
        start: 0,
        len,
    }
}

struct Toy {
    b: PlanBuilder,
    tokens: usize,
}

impl Toy {
    fn emit(name: &str, step: StepKind) -> Plan {
        let mut b = PlanBuilder::new(name, step, GEOMETRY);
        b.extents(InputExtents {
            outputs: step.tokens(),
            vocab_size: VOCAB,
            forced: TOPK,
        });
        let mut toy = Self {
            b,
            tokens: step.tokens(),
        };
        let mut x = toy.embed();
        let mut topk = None;
        for layer in 0..2 {
            x = toy.attention(layer, x, &mut topk);
            x = if layer == 0 { toy.dense(x) } else { toy.moe(x) };
        }
        toy.head(x);
        toy.b.finish()
    }

    /// A temporary `[T, width…]`.
    fn temp(&mut self, name: &str, width: &[usize]) -> BufferId {
        let shape = [&[self.tokens], width].concat();
        self.b.temp(name, F32, &shape, Rows::Tokens)
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> BufferId {
        self.b.weight(name, F32, shape)
    }

    fn carry(&mut self) -> CarryRef {
        CarryRef {
            carry: self.b.carry("carry.token", SLOTS),
            sequence_slots: self.b.input(InputKind::SequenceSlots),
            cu_seqlens: self.b.input(InputKind::CuSeqlens),
        }
    }

    fn paging(&mut self) -> Paging {
        Paging {
            positions: self.b.input(InputKind::Positions),
            cu_seqlens: self.b.input(InputKind::CuSeqlens),
            block_tables: self.b.input(InputKind::BlockTables),
        }
    }

    fn embed(&mut self) -> BufferId {
        let tokens = self.b.input(InputKind::Tokens);
        let carry = Some(self.carry());
        let table = self.weight("token_embd.weight", &[VOCAB, HIDDEN]);
        let out = self.temp("embd", &[HIDDEN]);
        self.b.op(
            "token_embd",
            Op::Embed {
                tokens,
                carry,
                table,
                out,
            },
        );
        out
    }

    fn rms_norm(&mut self, label: &str, x: Cols) -> BufferId {
        let weight = self.weight(&format!("{label}.weight"), &[x.len]);
        let out = self.temp(label, &[x.len]);
        self.b.op(
            label,
            Op::RmsNorm {
                x,
                weight,
                eps: EPS,
                out,
            },
        );
        out
    }

    /// One result for each `(name, width)`.
    fn linear(
        &mut self,
        label: &str,
        x: BufferId,
        k: usize,
        outs: &[(&str, &[usize])],
        precision: Precision,
    ) -> Vec<BufferId> {
        let weights = outs
            .iter()
            .map(|(name, width)| {
                self.weight(&format!("{name}.weight"), &[width.iter().product(), k])
            })
            .collect();
        let outs: Vec<BufferId> = outs
            .iter()
            .map(|(name, width)| self.temp(name, width))
            .collect();
        self.b.op(
            label,
            Op::Linear {
                x,
                weights,
                outs: outs.clone(),
                precision,
            },
        );
        outs
    }

    fn rope(&mut self, label: &str, x: BufferId, start: usize, style: RopeStyle) {
        let positions = self.b.input(InputKind::Positions);
        self.b.op(
            label,
            Op::Rope {
                x,
                positions,
                spec: RopeSpec {
                    start,
                    n: ROPE,
                    theta: 1000.0,
                    style,
                },
            },
        );
    }

    fn append(&mut self, label: &str, parts: Vec<Cols>, state: &str) -> BufferId {
        let slots = self.b.input(InputKind::SlotMapping);
        let state = self
            .b
            .paged_state(state, F32, parts.iter().map(|p| p.len).sum());
        self.b.op(
            label,
            Op::CacheAppend {
                parts,
                slots,
                state,
            },
        );
        state
    }

    fn add(&mut self, label: &str, a: BufferId, b: BufferId) -> BufferId {
        let out = self.temp(label, &[HIDDEN]);
        self.b.op(label, Op::Add { a, b, out });
        out
    }

    fn attention(&mut self, layer: usize, x: BufferId, topk: &mut Option<BufferId>) -> BufferId {
        let n = |part: &str| format!("blk.{layer}.{part}");
        let h = self.rms_norm(&n("attn_norm"), all(x, HIDDEN));
        let outs = [
            (&*n("attn_q_a"), &[Q_RANK][..]),
            (&*n("attn_kv_a"), &[KV_RANK + ROPE][..]),
        ];
        let a = self.linear(&n("attn_a"), h, HIDDEN, &outs, Precision::Fast);
        let (q_a, kv_a) = (a[0], a[1]);
        let q_a = self.rms_norm(&n("attn_q_a_norm"), all(q_a, Q_RANK));
        let q = self.linear(
            &n("attn_q_b"),
            q_a,
            Q_RANK,
            &[(&n("attn_q_b"), &[HEADS, NOPE + ROPE])],
            Precision::Fast,
        )[0];
        self.rope(&n("attn_q_rope"), q, NOPE, RopeStyle::Interleaved);
        let c = self.rms_norm(&n("attn_kv_a_norm"), all(kv_a, KV_RANK));
        self.rope(&n("attn_k_rope"), kv_a, KV_RANK, RopeStyle::Interleaved);
        let k_pe = Cols {
            buffer: kv_a,
            start: KV_RANK,
            len: ROPE,
        };
        let latent = self.append(
            &n("latent_append"),
            vec![all(c, KV_RANK), k_pe],
            &n("latent"),
        );
        if layer == 0 {
            *topk = Some(self.indexer(h, q_a));
        }

        let k_b = self.weight(&n("attn_k_b.weight"), &[HEADS, KV_RANK, NOPE]);
        let q_latent = self.temp(&n("q_latent"), &[HEADS, KV_RANK]);
        self.b.op(
            &n("attn_k_b"),
            Op::HeadProject {
                x: all(q, NOPE),
                weight: k_b,
                out: q_latent,
            },
        );
        let paging = self.paging();
        let q_rope = Cols {
            buffer: q,
            start: NOPE,
            len: ROPE,
        };
        let (scale, topk) = (1.0 / ((NOPE + ROPE) as f32).sqrt(), *topk);
        let out = self.temp(&n("context"), &[HEADS, KV_RANK]);
        self.b.op(
            &n("attend"),
            Op::MlaAttend {
                q_latent,
                q_rope,
                latent,
                topk,
                paging,
                scale,
                out,
            },
        );
        let v_b = self.weight(&n("attn_v_b.weight"), &[HEADS, V_HEAD, KV_RANK]);
        let v = self.temp(&n("attn_v"), &[HEADS, V_HEAD]);
        self.b.op(
            &n("attn_v_b"),
            Op::HeadProject {
                x: all(out, KV_RANK),
                weight: v_b,
                out: v,
            },
        );
        let out = self.linear(
            &n("attn_output"),
            v,
            HEADS * V_HEAD,
            &[(&n("attn_output"), &[HIDDEN])],
            Precision::Fast,
        )[0];
        self.add(&n("attn_residual"), x, out)
    }

    fn indexer(&mut self, h: BufferId, q_a: BufferId) -> BufferId {
        let outs: [(&str, &[usize]); 1] = [("blk.0.index_q", &[INDEX_HEADS, INDEX_DIM])];
        let q = self.linear("blk.0.index_q", q_a, Q_RANK, &outs, Precision::Fast)[0];
        let outs: [(&str, &[usize]); 2] = [
            ("blk.0.index_k", &[INDEX_DIM]),
            ("blk.0.index_weights", &[INDEX_HEADS]),
        ];
        let kw = self.linear("blk.0.index_kw", h, HIDDEN, &outs, Precision::F32);
        let weight = self.weight("blk.0.index_k_norm.weight", &[INDEX_DIM]);
        let bias = self.weight("blk.0.index_k_norm.bias", &[INDEX_DIM]);
        let k = self.temp("blk.0.index_k_norm", &[INDEX_DIM]);
        self.b.op(
            "blk.0.index_k_norm",
            Op::LayerNorm {
                x: all(kw[0], INDEX_DIM),
                weight,
                bias,
                eps: EPS,
                out: k,
            },
        );
        self.rope("blk.0.index_q_rope", q, 0, RopeStyle::HalfSplit);
        self.rope("blk.0.index_k_rope", k, 0, RopeStyle::HalfSplit);
        let keys = self.append(
            "blk.0.index_append",
            vec![all(k, INDEX_DIM)],
            "blk.0.index_key",
        );
        let scores = self.temp("blk.0.index_scores", &[GEOMETRY.max_positions()]);
        let (paging, scale) = (self.paging(), 0.25);
        self.b.op(
            "blk.0.index_score",
            Op::IndexScore {
                q,
                weights: kw[1],
                keys,
                paging,
                scale,
                out: scores,
            },
        );
        let out = self.b.temp(
            "blk.0.topk",
            GgmlType::I32,
            &[self.tokens, TOPK],
            Rows::Tokens,
        );
        let positions = paging.positions;
        let forced = Some(all(self.b.input(InputKind::ForcedTopk), TOPK));
        self.b.op(
            "blk.0.index_select",
            Op::IndexSelect {
                scores,
                positions,
                topk: TOPK,
                forced,
                out,
            },
        );
        out
    }

    fn gated(&mut self, prefix: &str, h: BufferId, inner: usize) -> BufferId {
        let n = |part: &str| format!("{prefix}_{part}");
        let outs = [(&*n("gate"), &[inner][..]), (&*n("up"), &[inner][..])];
        let gu = self.linear(&n("gate_up"), h, HIDDEN, &outs, Precision::Fast);
        let act = self.temp(&n("act"), &[inner]);
        self.b.op(
            &n("act"),
            Op::SwiGlu {
                gate: gu[0],
                up: gu[1],
                out: act,
            },
        );
        self.linear(
            &n("down"),
            act,
            inner,
            &[(&n("down"), &[HIDDEN])],
            Precision::Fast,
        )[0]
    }

    fn dense(&mut self, x: BufferId) -> BufferId {
        let h = self.rms_norm("blk.0.ffn_norm", all(x, HIDDEN));
        let y = self.gated("blk.0.ffn", h, DENSE);
        self.add("blk.0.ffn_residual", x, y)
    }

    fn moe(&mut self, x: BufferId) -> BufferId {
        let h = self.rms_norm("blk.1.ffn_norm", all(x, HIDDEN));
        let weight = self.weight("blk.1.ffn_gate_inp.weight", &[EXPERTS, HIDDEN]);
        let bias = Some(self.weight("blk.1.exp_probs_b.bias", &[EXPERTS]));
        let ids = self.b.temp(
            "blk.1.expert_ids",
            GgmlType::I32,
            &[self.tokens, EXPERTS_USED],
            Rows::Tokens,
        );
        let expert_weights = self.temp("blk.1.expert_weights", &[EXPERTS_USED]);
        let spec = RouterSpec {
            k: EXPERTS_USED,
            scoring: Scoring::Sigmoid,
            n_group: 3,
            topk_group: 2,
            norm: true,
            scale: 2.5,
        };
        self.b.op(
            "blk.1.route",
            Op::Route {
                x: h,
                weight,
                bias,
                spec,
                ids,
                expert_weights,
            },
        );
        let gate = self.weight(
            "blk.1.ffn_gate_exps.weight",
            &[EXPERTS, EXPERT_INNER, HIDDEN],
        );
        let up = self.weight("blk.1.ffn_up_exps.weight", &[EXPERTS, EXPERT_INNER, HIDDEN]);
        let down = self.weight(
            "blk.1.ffn_down_exps.weight",
            &[EXPERTS, HIDDEN, EXPERT_INNER],
        );
        let routed = self.temp("blk.1.routed", &[HIDDEN]);
        self.b.op(
            "blk.1.experts",
            Op::ExpertFfn {
                x: h,
                ids,
                expert_weights,
                gate,
                up,
                down,
                out: routed,
            },
        );
        let shared = self.gated("blk.1.ffn_shexp", h, SHARED_INNER);
        let y = self.add("blk.1.ffn_sum", routed, shared);
        self.add("blk.1.ffn_residual", x, y)
    }

    fn head(&mut self, x: BufferId) {
        let n = self.tokens;
        let output_rows = self.b.input(InputKind::OutputRows);
        let selected = self.b.temp("selected", F32, &[n, HIDDEN], Rows::Outputs);
        self.b.op(
            "select",
            Op::SelectRows {
                x,
                output_rows,
                out: selected,
            },
        );
        let weight = self.weight("output_norm.weight", &[HIDDEN]);
        let normed = self.b.temp("output_norm", F32, &[n, HIDDEN], Rows::Outputs);
        self.b.op(
            "output_norm",
            Op::RmsNorm {
                x: all(selected, HIDDEN),
                weight,
                eps: EPS,
                out: normed,
            },
        );
        let weight = self.weight("output.weight", &[VOCAB, HIDDEN]);
        let logits = self.b.result("logits", F32, &[n, VOCAB], Rows::Outputs);
        self.b.op(
            "output",
            Op::LmHead {
                x: normed,
                weight,
                out: logits,
            },
        );
        let inputs = SampleInputs {
            output_rows,
            positions: self.b.input(InputKind::Positions),
            temperature: self.b.input(InputKind::Temperature),
            top_k: self.b.input(InputKind::TopK),
            top_p: self.b.input(InputKind::TopP),
            min_p: self.b.input(InputKind::MinP),
            seeds: self.b.input(InputKind::Seeds),
            token_mask: self.b.input(InputKind::TokenMask),
        };
        let out = self.b.result("token", GgmlType::I32, &[n], Rows::Outputs);
        let carry = Some(self.carry());
        self.b.op(
            "sample",
            Op::Sample {
                logits,
                ids: None,
                inputs,
                carry,
                out,
            },
        );
    }
}
