//! Costs of the toy's operations against figures worked out by hand from its sizes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::toy;
use glim_plan::{
    CacheGeometry, CollectiveId, Cost, Gather, GgmlType, InputKind, Load, Op, Plan, PlanBuilder,
    Rows, StepKind, op_cost, plan_cost,
};

/// Three rows of two sequences, two of them wanted, each seeing ten positions.
const LOAD: Load = Load {
    rows: 3,
    outputs: 2,
    sequences: 2,
    context: 10,
};

fn cost(weight_bytes: f64, state_bytes: f64, activation_bytes: f64, flops: f64) -> Cost {
    Cost {
        weight_bytes,
        state_bytes,
        activation_bytes,
        wire_bytes: 0.0,
        flops,
    }
}

fn of(plan: &Plan, label: &str) -> Cost {
    op_cost(
        plan,
        &plan.ops.iter().find(|n| n.label == label).unwrap().op,
        &LOAD,
    )
}

#[test]
fn each_operation_costs_what_its_sizes_say() {
    let plan = toy::prefill(16, 3);
    let table = [
        // 3 of 41 rows of 21 f32; 3 tokens in, 3 rows of 84 bytes out.
        ("token_embd", cost(252.0, 0.0, 12.0 + 252.0, 0.0)),
        // 21 weights; 3 rows in and out; 4 operations an element.
        ("blk.0.attn_norm", cost(84.0, 0.0, 504.0, 252.0)),
        // Only 7 of 11 columns are normed; the row is counted whole.
        (
            "blk.0.attn_kv_a_norm",
            cost(28.0, 0.0, 3.0 * (44.0 + 28.0), 84.0),
        ),
        // 10 × 21 and 11 × 21 weights; 2 · 3 rows · 441 weights.
        (
            "blk.0.attn_a",
            cost(1764.0, 0.0, 3.0 * (84.0 + 40.0 + 44.0), 2646.0),
        ),
        // 27 elements in place, read and written, and a position.
        (
            "blk.0.attn_q_rope",
            cost(0.0, 0.0, 3.0 * (2.0 * 108.0 + 4.0), 0.0),
        ),
        // 3 rows of 11 f32 into the cache; the slot and both sources are read.
        (
            "blk.0.latent_append",
            cost(0.0, 132.0, 3.0 * (28.0 + 44.0 + 4.0), 0.0),
        ),
        // Keys once a sequence: 2 · 10 · 52 bytes; 3 rows · 10 positions · 26 products; q, head weights, visible scores.
        (
            "blk.0.index_score",
            cost(0.0, 1040.0, 3.0 * (104.0 + 8.0) + 120.0, 1560.0),
        ),
        // Visible scores in, 6 positions out.
        ("blk.0.index_select", cost(0.0, 0.0, 120.0 + 72.0, 0.0)),
        // 3 heads of 7 × 5; all of q is counted.
        (
            "blk.0.attn_k_b",
            cost(420.0, 0.0, 3.0 * (108.0 + 84.0), 630.0),
        ),
        // Each row gathers 6 of its 10 positions: 3 · 6 · 44 bytes; 3 rows · 3 heads · 6 positions · (11 + 7) products.
        (
            "blk.0.attend",
            cost(0.0, 792.0, 3.0 * (84.0 + 108.0 + 84.0 + 24.0 + 4.0), 1944.0),
        ),
        ("blk.0.ffn_act", cost(0.0, 0.0, 3.0 * 3.0 * 68.0, 0.0)),
        // 12 × 21 weights and 12 biases.
        (
            "blk.1.route",
            cost(1056.0, 0.0, 3.0 * (84.0 + 12.0 + 12.0), 1512.0),
        ),
        ("blk.1.ffn_sum", cost(0.0, 0.0, 756.0, 0.0)),
        // Two of the rows, each read and written, and their numbers.
        ("select", cost(0.0, 0.0, 2.0 * (84.0 + 84.0 + 4.0), 0.0)),
        // 41 × 21 weights; 2 · 2 rows · 861 products.
        ("output", cost(3444.0, 0.0, 2.0 * (84.0 + 164.0), 3444.0)),
    ];
    for (label, expected) in table {
        assert_eq!(of(&plan, label), expected, "{label}");
    }
}

#[test]
fn experts_are_read_as_often_as_rows_are_likely_to_touch_them() {
    let plan = toy::prefill(16, 3);
    let found = of(&plan, "blk.1.experts");
    // An expert is 3 · 15 · 21 f32; three rows choose 3 of 12 each and miss one with (3/4)³.
    let touched = 12.0 * (1.0 - 0.75f64.powi(3));
    assert!(
        (found.weight_bytes - 3780.0 * touched).abs() < 1e-6,
        "{}",
        found.weight_bytes
    );
    assert_eq!(found.flops, 2.0 * 3.0 * 3.0 * 945.0);
    assert_eq!(found.activation_bytes, 3.0 * (84.0 + 12.0 + 12.0 + 84.0));

    // One row touches exactly its own; a thousand touch all.
    let with = |rows| {
        let load = Load { rows, ..LOAD };
        op_cost(
            &plan,
            &plan
                .ops
                .iter()
                .find(|n| n.label == "blk.1.experts")
                .unwrap()
                .op,
            &load,
        )
        .weight_bytes
    };
    assert!((with(1) - 3.0 * 3780.0).abs() < 1e-6);
    assert!((with(1000) - 12.0 * 3780.0).abs() < 1e-6);
}

#[test]
fn attention_over_all_positions_reads_the_cache_once_a_sequence() {
    let mut plan = toy::prefill(16, 3);
    let node = plan
        .ops
        .iter_mut()
        .find(|n| n.label == "blk.1.attend")
        .unwrap();
    match &mut node.op {
        Op::MlaAttend { topk, .. } => *topk = None,
        other => panic!("{other:?}"),
    }
    let found = of(&plan, "blk.1.attend");
    assert_eq!(
        (found.state_bytes, found.flops),
        (2.0 * 10.0 * 44.0, 2.0 * 3.0 * 3.0 * 10.0 * 18.0)
    );
}

#[test]
fn a_context_shorter_than_topk_is_read_whole() {
    let plan = toy::prefill(16, 3);
    let op = &plan
        .ops
        .iter()
        .find(|n| n.label == "blk.0.attend")
        .unwrap()
        .op;
    let found = op_cost(&plan, op, &Load { context: 4, ..LOAD });
    assert_eq!(found.state_bytes, 3.0 * 4.0 * 44.0);
}

/// Pads are free: a bigger bucket costs the same.
#[test]
fn cost_goes_by_live_rows_not_by_capacity() {
    assert_eq!(
        plan_cost(&toy::prefill(16, 3), &LOAD),
        plan_cost(&toy::prefill(64, 5), &LOAD)
    );
    let plan = toy::prefill(16, 3);
    let sum = plan
        .ops
        .iter()
        .fold(0.0, |sum, n| sum + op_cost(&plan, &n.op, &LOAD).flops);
    assert_eq!(plan_cost(&plan, &LOAD).flops, sum);
}

#[test]
fn quantised_weights_cost_their_blocks() {
    let mut b = PlanBuilder::new(
        "q",
        StepKind::Decode { rows: 1 },
        CacheGeometry {
            block_size: 1,
            max_blocks: 1,
        },
    );
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", GgmlType::F32, &[3, 64]);
    let x = b.temp("x", GgmlType::F32, &[1, 64], Rows::Tokens);
    b.op(
        "embed",
        Op::Embed {
            tokens,
            carry: None,
            table,
            out: x,
        },
    );
    let w = b.weight("w", GgmlType::Q8_0, &[5, 64]);
    let out = b.result("out", GgmlType::F32, &[1, 5], Rows::Tokens);
    let precision = glim_plan::Precision::Fast;
    b.op(
        "product",
        Op::Linear {
            x,
            weights: vec![w],
            outs: vec![out],
            precision,
        },
    );
    let plan = b.finish();
    let load = Load {
        rows: 1,
        outputs: 1,
        sequences: 1,
        context: 1,
    };
    // A block of 32 is 34 bytes.
    assert_eq!(
        op_cost(&plan, &plan.ops[1].op, &load),
        cost(5.0 * 68.0, 0.0, 256.0 + 20.0, 640.0)
    );
}

#[test]
fn collectives_cost_their_rows_on_the_wire() {
    let mut b = PlanBuilder::new(
        "c",
        StepKind::Decode { rows: 8 },
        CacheGeometry {
            block_size: 1,
            max_blocks: 1,
        },
    );
    b.rank(0, 2);
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", GgmlType::F32, &[9, 6]);
    let x = b.temp("x", GgmlType::F32, &[8, 6], Rows::Tokens);
    b.op(
        "embed",
        Op::Embed {
            tokens,
            carry: None,
            table,
            out: x,
        },
    );
    let sum = b.temp("sum", GgmlType::F32, &[8, 6], Rows::Tokens);
    b.op(
        "reduce",
        Op::AllReduce {
            id: CollectiveId(0),
            wire: GgmlType::BF16,
            x,
            out: sum,
        },
    );
    let out = b.result("out", GgmlType::F32, &[8, 12], Rows::Tokens);
    b.op(
        "gather",
        Op::AllGather {
            id: CollectiveId(1),
            wire: GgmlType::F32,
            gathers: vec![Gather {
                x: sum,
                out,
                lens: vec![6; 2],
            }],
        },
    );
    let plan = b.finish();
    let reduce = op_cost(&plan, &plan.ops[1].op, &LOAD);
    assert_eq!(
        (reduce.wire_bytes, reduce.activation_bytes),
        (3.0 * 12.0, 3.0 * 48.0)
    );
    let gather = op_cost(&plan, &plan.ops[2].op, &LOAD);
    assert_eq!(
        (gather.wire_bytes, gather.activation_bytes),
        (3.0 * 24.0, 3.0 * (24.0 + 48.0))
    );
}
