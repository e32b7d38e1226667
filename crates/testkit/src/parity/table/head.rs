//! The end of a step: output rows, the draw, and the token that is carried to the next step.

use glim_plan::{CarryRef, InputKind, Op, Rows, SampleInputs};

use super::super::bounds::NONE;
use super::super::case::{Case, Feed};
use super::super::layout::Layout;
use super::{F32, I32, layouts};

pub(super) fn cases() -> Vec<Case> {
    let layouts = layouts();
    let samples = layouts.iter().map(sample);
    samples.chain(layouts.iter().map(shortlist)).collect()
}

/// Candidates of a part of the vocabulary, and the draw from them.
fn shortlist(layout: &Layout) -> Case {
    const VOCAB: usize = 45;
    const FIRST: usize = 11;
    const KEPT: usize = 6;
    let mut feed = Feed::new(format!("Shortlist and Sample, {}", layout.name), layout);
    feed.extents(0, FIRST + VOCAB);
    let x = feed.activation("x", &[VOCAB]);
    let logits = feed.select(x, VOCAB, "logits");
    let rows = layout.step.tokens();
    let out_values = feed.b.result("values", F32, &[rows, KEPT], Rows::Outputs);
    let out_ids = feed.b.result("ids", I32, &[rows, KEPT], Rows::Outputs);
    let inputs = sample_inputs(&mut feed);
    let op = Op::Shortlist {
        logits,
        first_id: FIRST,
        inputs,
        k: KEPT,
        out_values,
        out_ids,
    };
    feed.b.op("shortlist", op);
    let token = feed.b.result("token", I32, &[rows], Rows::Outputs);
    let sample = Op::Sample {
        logits: out_values,
        ids: Some(out_ids),
        inputs,
        carry: None,
        out: token,
    };
    feed.b.op("sample", sample);
    feed.finish(NONE)
}

fn sample_inputs(feed: &mut Feed) -> SampleInputs {
    SampleInputs {
        output_rows: feed.b.input(InputKind::OutputRows),
        positions: feed.b.input(InputKind::Positions),
        temperature: feed.b.input(InputKind::Temperature),
        top_k: feed.b.input(InputKind::TopK),
        top_p: feed.b.input(InputKind::TopP),
        min_p: feed.b.input(InputKind::MinP),
        seeds: feed.b.input(InputKind::Seeds),
        token_mask: feed.b.input(InputKind::TokenMask),
    }
}

/// Logits that are rows of a table: every backend draws from the same bits. The embedding of the token shows what was
/// carried, when the case is run again with carried tokens.
fn sample(layout: &Layout) -> Case {
    const VOCAB: usize = 45;
    let mut feed = Feed::new(
        format!("SelectRows, Sample and carry, {}", layout.name),
        layout,
    );
    feed.extents(0, VOCAB);
    // Tokens are drawn from the vocabulary, and embedded again: the table has a row for each, and for each special.
    let rows = VOCAB + 2;
    let mut values: Vec<f32> = feed.random.units(rows * VOCAB);
    values.iter_mut().for_each(|v| *v *= 4.0);
    let tokens_of_rows = layout.rows().len();
    assert!(tokens_of_rows + 2 <= rows, "a row for each token");
    values[tokens_of_rows * VOCAB] = f32::NAN;
    values[(tokens_of_rows + 1) * VOCAB + 1] = f32::INFINITY;
    let table = feed.values("table", &[rows, VOCAB], &values);
    let carry = CarryRef {
        carry: feed.b.carry("carry", layout.slots()),
        sequence_slots: feed.b.input(InputKind::SequenceSlots),
        cu_seqlens: feed.b.input(InputKind::CuSeqlens),
    };
    let out = feed.result("embedded", F32, &[VOCAB]);
    let embed = Op::Embed {
        tokens: feed.b.input(InputKind::Tokens),
        carry: Some(carry),
        table,
        out,
    };
    feed.b.op("embed", embed);
    let logits = feed.select(out, VOCAB, "logits");
    let token = feed
        .b
        .result("token", I32, &[layout.step.tokens()], Rows::Outputs);
    let inputs = sample_inputs(&mut feed);
    let sample = Op::Sample {
        logits,
        ids: None,
        inputs,
        carry: Some(carry),
        out: token,
    };
    feed.b.op("sample", sample);
    feed.finish(NONE)
}
