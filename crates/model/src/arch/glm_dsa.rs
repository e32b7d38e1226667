//! `glm-dsa`: GLM-5, 5.1 and 5.2. Latent attention with a lightning indexer in every layer (or shared between some), the first
//! layers dense, the rest with sigmoid-routed experts.
//!
//! Over ranks (Megatron's scheme): attention has its heads cut and each MLP its inner width, so that a rank's partial sums meet
//! the others' in one all-reduce after attention and one after the MLP. Residual, norms and router run on every rank, on the same
//! bits. The head is cut by rows of the vocabulary.
//!
//! The skeleton is that of a pre-norm decoder: `x += attention(norm(x)); x += ffn(norm(x))`, no scale on the embedding, no bias,
//! no soft-cap. Sources: transformers' `glm_moe_dsa`, llama.cpp's `glm-dsa`.

use glim_plan::{
    BufferId, CarryRef, Gather, GgmlType, InputExtents, InputKind, Op, Plan, PlanBuilder, Rows,
    SampleInputs, StepKind,
};

use super::{EmitError, EmitRequest, OutputRows, names};
use crate::catalogue::Role;
use crate::config::IndexerKind;
use crate::inventory::Inventory;
use crate::layers::{Emitter, all, ffn, last_rows, mla};

pub(super) fn emit(inventory: &Inventory, request: &EmitRequest) -> Result<Plan, EmitError> {
    if !request.sample && !request.logits {
        return Err(EmitError::NoResult);
    }
    let c = inventory.config().clone();
    let name = match request.step {
        StepKind::Decode { rows } => format!("decode-{rows}"),
        StepKind::Prefill { tokens, sequences } => format!("prefill-{tokens}x{sequences}"),
    };
    let mut b = PlanBuilder::new(&name, request.step, request.geometry);
    b.rank(request.rank, request.world_size);
    let outputs = match request.outputs {
        OutputRows::All => request.step.tokens(),
        OutputRows::Last => last_rows(request.step),
    };
    let full = c
        .indexer
        .kinds
        .iter()
        .filter(|kind| **kind == IndexerKind::Full)
        .count();
    b.extents(InputExtents {
        outputs,
        vocab_size: c.vocab_size,
        forced: full * c.indexer.topk,
    });
    let mut e = Emitter {
        b,
        inventory,
        request,
        layer: None,
        collectives: 0,
    };

    let mut x = embed(&mut e)?;
    let mut topk = None;
    for layer in 0..c.n_layers {
        e.layer = Some(layer);
        let a = e.rms_norm(
            "attn_norm",
            all(x, c.hidden_size),
            Role::AttnNorm,
            c.rms_norm_eps,
        )?;
        let y = mla::attention(&mut e, layer, a, &mut topk)?;
        let y = e.all_reduce("attn_reduce", y);
        x = e.add("attn_residual", x, y);
        let a = e.rms_norm(
            "ffn_norm",
            all(x, c.hidden_size),
            Role::FfnNorm,
            c.rms_norm_eps,
        )?;
        let y = if c.is_moe(layer) {
            ffn::moe(&mut e, a)?
        } else {
            ffn::dense(&mut e, a)?
        };
        let y = e.all_reduce("ffn_reduce", y);
        x = e.add("ffn_residual", x, y);
    }
    e.layer = None;
    let h = output_rows(&mut e, x, outputs)?;
    head(&mut e, h, outputs)?;
    Ok(e.b.finish())
}

/// Tokens to rows; a token of −1 is the one that the sequence's last step sampled.
fn embed(e: &mut Emitter<'_>) -> Result<BufferId, EmitError> {
    let table = e.weight(Role::TokenEmbd)?;
    let tokens = e.b.input(InputKind::Tokens);
    let carry = match e.request.step {
        StepKind::Decode { .. } => Some(carry(e)),
        StepKind::Prefill { .. } => None,
    };
    let out = e.temp(names::EMBEDDING, &[e.config().hidden_size]);
    e.op(
        "token_embd",
        Op::Embed {
            tokens,
            carry,
            table,
            out,
        },
    );
    Ok(out)
}

fn carry(e: &mut Emitter<'_>) -> CarryRef {
    CarryRef {
        carry: e.b.carry(names::CARRIED_TOKEN, e.request.sequence_slots),
        sequence_slots: e.b.input(InputKind::SequenceSlots),
        cu_seqlens: e.b.input(InputKind::CuSeqlens),
    }
}

/// The output rows only, normed: the head is the largest matrix of the model.
fn output_rows(e: &mut Emitter<'_>, x: BufferId, outputs: usize) -> Result<BufferId, EmitError> {
    let c = e.config().clone();
    let output_rows = e.b.input(InputKind::OutputRows);
    let selected = of_outputs(
        e,
        "output_rows.out",
        GgmlType::F32,
        &[outputs, c.hidden_size],
    );
    e.op(
        "output_rows",
        Op::SelectRows {
            x,
            output_rows,
            out: selected,
        },
    );
    let weight = e.weight(Role::OutputNorm)?;
    let h = of_outputs(
        e,
        names::FINAL_NORM,
        GgmlType::F32,
        &[outputs, c.hidden_size],
    );
    e.op(
        "output_norm",
        Op::RmsNorm {
            x: all(selected, c.hidden_size),
            weight,
            eps: c.rms_norm_eps,
            out: h,
        },
    );
    Ok(h)
}

fn of_outputs(e: &mut Emitter<'_>, name: &str, ty: GgmlType, shape: &[usize]) -> BufferId {
    e.b.temp(name, ty, shape, Rows::Outputs)
}

/// Logits, and the draw from them. Ranks have their part of the vocabulary each; they gather a few candidates where these are enough,
/// and the logits where not.
fn head(e: &mut Emitter<'_>, h: BufferId, outputs: usize) -> Result<(), EmitError> {
    let (vocab, request) = (e.config().vocab_size, e.request);
    let weight = e.weight(Role::Output)?;
    let lens = e.lens(Role::Output, 0)?;
    let own = lens[request.rank];
    let is_cut = own < vocab;
    let keeps = request
        .shortlist
        .filter(|_| is_cut && request.sample && !request.logits);
    let logits = match request.logits {
        true => {
            let shape = [outputs, vocab];
            e.b.result(names::LOGITS, GgmlType::F32, &shape, Rows::Outputs)
        }
        false if keeps.is_some() => of_outputs(e, "output.part", GgmlType::F32, &[outputs, own]),
        false => of_outputs(e, names::LOGITS, GgmlType::F32, &[outputs, vocab]),
    };
    if is_cut && keeps.is_none() {
        let part = of_outputs(e, "output.part", GgmlType::F32, &[outputs, own]);
        let out = part;
        e.op("output", Op::LmHead { x: h, weight, out });
        let gather = Gather {
            x: part,
            out: logits,
            lens: lens.clone(),
        };
        e.all_gather("output_gather", vec![gather]);
    } else {
        let out = logits;
        e.op("output", Op::LmHead { x: h, weight, out });
    }
    if !request.sample {
        return Ok(());
    }
    match keeps {
        Some(k) => {
            let first_id = lens[..request.rank].iter().sum();
            shortlist_and_sample(e, logits, first_id, k, outputs);
        }
        None => sample(e, logits, None, outputs),
    }
    Ok(())
}

/// The `k` candidates of this rank's part, those of all ranks, and the draw.
fn shortlist_and_sample(
    e: &mut Emitter<'_>,
    logits: BufferId,
    first_id: usize,
    k: usize,
    outputs: usize,
) {
    let ranks = e.request.world_size;
    let mut of = |what: &str, ty, len| of_outputs(e, what, ty, &[outputs, len]);
    let own = [
        of("candidates.part", GgmlType::F32, k),
        of("candidate_ids.part", GgmlType::I32, k),
    ];
    let all = [
        of("candidates", GgmlType::F32, k * ranks),
        of("candidate_ids", GgmlType::I32, k * ranks),
    ];
    let inputs = sample_inputs(e);
    let [out_values, out_ids] = own;
    e.op(
        "shortlist",
        Op::Shortlist {
            logits,
            first_id,
            inputs,
            k,
            out_values,
            out_ids,
        },
    );
    let gather = |(x, out)| Gather {
        x,
        out,
        lens: vec![k; ranks],
    };
    e.all_gather(
        "candidates_gather",
        own.into_iter().zip(all).map(gather).collect(),
    );
    sample(e, all[0], Some(all[1]), outputs);
}

fn sample_inputs(e: &mut Emitter<'_>) -> SampleInputs {
    SampleInputs {
        output_rows: e.b.input(InputKind::OutputRows),
        positions: e.b.input(InputKind::Positions),
        temperature: e.b.input(InputKind::Temperature),
        top_k: e.b.input(InputKind::TopK),
        top_p: e.b.input(InputKind::TopP),
        min_p: e.b.input(InputKind::MinP),
        seeds: e.b.input(InputKind::Seeds),
        token_mask: e.b.input(InputKind::TokenMask),
    }
}

fn sample(e: &mut Emitter<'_>, logits: BufferId, ids: Option<BufferId>, outputs: usize) {
    let inputs = sample_inputs(e);
    let carry = Some(carry(e));
    let out =
        e.b.result(names::TOKENS, GgmlType::I32, &[outputs, 1], Rows::Outputs);
    e.op(
        "sample",
        Op::Sample {
            logits,
            ids,
            inputs,
            carry,
            out,
        },
    );
}
