//! Multi-head latent attention, always in absorbed form: queries are projected into the latent space, where all heads share
//! one cached row `[c ‖ k_pe]`, and the result is projected back (DeepSeek-V2, §2.1; `q_absᵀ c = qᵀ (W_k c)`).
//!
//! The absorbed form reads `kv_lora + rope` values a position instead of `heads · (nope + rope + v)`, and gives the same bits for
//! any chunking, which the expanded form does not.

use glim_plan::{BufferId, Cols, InputKind, Op, Precision};

use super::{Emitter, all, indexer};
use crate::arch::{EmitError, latent_state};
use crate::catalogue::Role;
use crate::config::{IndexerKind, RopeStyle};

/// Emits attention over the normed rows `a`. `topk` holds the positions chosen by the nearest full layer so far, and is
/// replaced if this layer has an indexer.
pub(crate) fn attention(
    e: &mut Emitter<'_>,
    layer: usize,
    a: BufferId,
    topk: &mut Option<BufferId>,
) -> Result<BufferId, EmitError> {
    let c = e.config().clone();
    // This rank's heads; the latents are every rank's.
    let (heads, rank, rope, nope) = (
        e.local(Role::AttnKB, 0)?,
        c.kv_lora_rank,
        c.qk_rope_head_dim,
        c.qk_nope_head_dim,
    );
    let full = c.indexer.kinds.get(layer) == Some(&IndexerKind::Full);

    let q_lora = [c.q_lora_rank];
    let latent = [c.latent_dim()];
    let index_key = [c.indexer.head_dim];
    let mut down: Vec<(Role, &[usize])> =
        vec![(Role::AttnQA, &q_lora), (Role::AttnKvAMqa, &latent)];
    if full {
        down.push((Role::IndexerAttnK, &index_key));
    }
    let mut gathers = Vec::new();
    let down = e.linear_whole(a, &down, Precision::Fast, &mut gathers)?;
    let (q_a, kv_a) = (down[0], down[1]);
    let index_weights = match full {
        true => Some(indexer::head_weights(e, a, &mut gathers)?),
        false => None,
    };
    e.all_gather("attn_latent_gather", gathers);

    // Queries; the indexer's come from the same normed latent.
    let qr = e.rms_norm(
        "attn_q_a_norm",
        all(q_a, c.q_lora_rank),
        Role::AttnQANorm,
        c.latent_norm_eps,
    )?;
    let q_shape = [heads, c.qk_head_dim()];
    let (q, index_q) = queries(e, qr, &q_shape, full)?;
    e.rope("attn_q_rope", q, nope, RopeStyle::Interleaved);

    // The cached row: the norm covers the latent only, the rotation the rest only.
    let c_normed = e.rms_norm(
        "attn_kv_a_norm",
        all(kv_a, rank),
        Role::AttnKvANorm,
        c.latent_norm_eps,
    )?;
    e.rope("attn_k_rope", kv_a, rank, RopeStyle::Interleaved);
    let state = e.state(&latent_state(&c, layer, e.request.latent_type));
    let slots = e.b.input(InputKind::SlotMapping);
    let parts = vec![
        all(c_normed, rank),
        Cols {
            buffer: kv_a,
            start: rank,
            len: rope,
        },
    ];
    e.op(
        "attn_cache",
        Op::CacheAppend {
            parts,
            slots,
            state,
        },
    );

    if let (Some(q), Some(weights), Some(k)) = (index_q, index_weights, down.get(2)) {
        *topk = Some(indexer::select(e, layer, q, weights, *k)?);
    }
    let Some(chosen) = *topk else {
        return Err(EmitError::NoFullIndexer { layer });
    };

    let weight = e.weight(Role::AttnKB)?;
    let q_latent = e.temp("attn_k_b.out", &[heads, rank]);
    e.op(
        "attn_k_b",
        Op::HeadProject {
            x: Cols {
                buffer: q,
                start: 0,
                len: nope,
            },
            weight,
            out: q_latent,
        },
    );

    let paging = e.paging();
    let u = e.temp("attn.out", &[heads, rank]);
    let q_rope = Cols {
        buffer: q,
        start: nope,
        len: rope,
    };
    let scale = c.softmax_scale();
    e.op(
        "attn",
        Op::MlaAttend {
            q_latent,
            q_rope,
            latent: state,
            topk: Some(chosen),
            paging,
            scale,
            out: u,
        },
    );

    let weight = e.weight(Role::AttnVB)?;
    let o = e.temp("attn_v_b.out", &[heads, c.v_head_dim]);
    e.op(
        "attn_v_b",
        Op::HeadProject {
            x: all(u, rank),
            weight,
            out: o,
        },
    );
    e.linear1(o, Role::AttnOutput, &[c.hidden_size])
}

/// Attention's queries, of this rank's heads, and the index queries, of all heads: both from the normed latent `qr`, and in one
/// operation where no part has to be gathered.
fn queries(
    e: &mut Emitter<'_>,
    qr: BufferId,
    q_shape: &[usize],
    full: bool,
) -> Result<(BufferId, Option<BufferId>), EmitError> {
    if !full {
        return Ok((
            e.linear(qr, &[(Role::AttnQB, q_shape)], Precision::Fast)?[0],
            None,
        ));
    }
    let index_shape = [e.config().indexer.n_heads, e.config().indexer.head_dim];
    let index_rows = index_shape.iter().product::<usize>();
    if e.local(Role::IndexerAttnQB, 0)? == index_rows {
        let parts: [(Role, &[usize]); 2] =
            [(Role::AttnQB, q_shape), (Role::IndexerAttnQB, &index_shape)];
        let both = e.linear(qr, &parts, Precision::Fast)?;
        return Ok((both[0], Some(both[1])));
    }
    let mut gathers = Vec::new();
    let parts: [(Role, &[usize]); 1] = [(Role::IndexerAttnQB, &index_shape)];
    let index_q = e.linear_whole(qr, &parts, Precision::Fast, &mut gathers)?[0];
    e.all_gather("indexer.q_gather", gathers);
    let q = e.linear(qr, &[(Role::AttnQB, q_shape)], Precision::Fast)?[0];
    Ok((q, Some(index_q)))
}
