//! The lightning indexer of DeepSeek sparse attention (DeepSeek-V3.2 §2.1): cheap scores over all cached positions, of which
//! attention then sees the best `topk`.
//!
//! Its heads are laid out `[rope ‖ rest]`, the opposite of attention's queries. Keys go through a real LayerNorm with bias and
//! are cached also while the context is shorter than `topk`.

use glim_plan::{BufferId, Cols, Gather, InputKind, Op, Precision};

use super::{Emitter, all};
use crate::arch::{EmitError, index_key_state};
use crate::catalogue::Role;
use crate::config::IndexerKind;

/// What each index head counts for the normed rows `a`, `[T, Hi]`. In f32: it decides between near-equal positions.
pub(crate) fn head_weights(
    e: &mut Emitter<'_>,
    a: BufferId,
    gathers: &mut Vec<Gather>,
) -> Result<BufferId, EmitError> {
    let heads = [e.config().indexer.n_heads];
    let parts: [(Role, &[usize]); 1] = [(Role::IndexerProj, &heads)];
    Ok(e.linear_whole(a, &parts, Precision::F32, gathers)?[0])
}

/// Emits scores and choice; `q` and `k_raw` are the products with the indexer's two big matrices, `weights` what each head counts.
/// Every rank has all of them whole, and chooses the same. Returns the chosen positions `[T, topk]`.
pub(crate) fn select(
    e: &mut Emitter<'_>,
    layer: usize,
    q: BufferId,
    weights: BufferId,
    k_raw: BufferId,
) -> Result<BufferId, EmitError> {
    let c = e.config().clone();
    let ix = &c.indexer;

    let (weight, bias) = (
        e.weight(Role::IndexerKNormWeight)?,
        e.weight(Role::IndexerKNormBias)?,
    );
    let k = e.temp("indexer.k_norm.out", &[ix.head_dim]);
    e.op(
        "indexer.k_norm",
        Op::LayerNorm {
            x: all(k_raw, ix.head_dim),
            weight,
            bias,
            eps: ix.norm_eps,
            out: k,
        },
    );
    e.rope("indexer.k_rope", k, 0, ix.rope_style);
    e.rope("indexer.q_rope", q, 0, ix.rope_style);

    let keys = e.state(&index_key_state(&c, layer, e.request.index_key_type));
    let slots = e.b.input(InputKind::SlotMapping);
    e.op(
        "indexer.cache",
        Op::CacheAppend {
            parts: vec![all(k, ix.head_dim)],
            slots,
            state: keys,
        },
    );

    let paging = e.paging();
    let scores = e.temp("indexer.scores", &[e.request.geometry.max_positions()]);
    let scale = 1.0 / ((ix.head_dim * ix.n_heads) as f32).sqrt();
    e.op(
        "indexer.score",
        Op::IndexScore {
            q,
            weights,
            keys,
            paging,
            scale,
            out: scores,
        },
    );
    let forced = e.request.forced_topk.then(|| {
        let full_before = ix.kinds[..layer]
            .iter()
            .filter(|kind| **kind == IndexerKind::Full)
            .count();
        Cols {
            buffer: e.b.input(InputKind::ForcedTopk),
            start: full_before * ix.topk,
            len: ix.topk,
        }
    });
    let out = e.temp_i32("indexer.topk", ix.topk);
    e.op(
        "indexer.select",
        Op::IndexSelect {
            scores,
            positions: paging.positions,
            topk: ix.topk,
            forced,
            out,
        },
    );
    Ok(out)
}
