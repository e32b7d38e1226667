//! Shapes, types and rows of every kind of operation: a table with a faulty plan for each, and sweeps that change every buffer
//! of a sound plan in turn, so that no rule is forgotten.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::toy;
use glim_plan::{
    BufferDecl, BufferKind, CacheGeometry, CheckError, CollectiveId, Cols, Gather, GgmlType,
    InputExtents, InputKind, Op, Plan, PlanBuilder, RouterSpec, Rows, SampleInputs, Scoring,
    StateKind, StepKind, check,
};

const F32: GgmlType = GgmlType::F32;
const I32: GgmlType = GgmlType::I32;

/// One rank of two: a sum over the ranks, then each rank's candidates gathered and merged.
fn collectives() -> Plan {
    let (t, d, experts, k) = (5, 6, 7, 3);
    let mut b = PlanBuilder::new(
        "two.ranks",
        StepKind::Decode { rows: t },
        CacheGeometry {
            block_size: 2,
            max_blocks: 2,
        },
    );
    b.rank(0, 2);
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", F32, &[9, d]);
    let x = b.temp("x", F32, &[t, d], Rows::Tokens);
    b.op(
        "embed",
        Op::Embed {
            tokens,
            carry: None,
            table,
            out: x,
        },
    );
    let sum = b.temp("sum", F32, &[t, d], Rows::Tokens);
    b.op(
        "reduce",
        Op::AllReduce {
            id: CollectiveId(0),
            wire: F32,
            x,
            out: sum,
        },
    );
    let weight = b.weight("router", F32, &[experts, d]);
    let ids = b.temp("ids", I32, &[t, k], Rows::Tokens);
    let expert_weights = b.temp("weights", F32, &[t, k], Rows::Tokens);
    let spec = RouterSpec {
        k,
        scoring: Scoring::Softmax,
        n_group: 1,
        topk_group: 1,
        norm: false,
        scale: 1.0,
    };
    b.op(
        "route",
        Op::Route {
            x: sum,
            weight,
            bias: None,
            spec,
            ids,
            expert_weights,
        },
    );
    let all_ids = b.temp("all_ids", I32, &[t, 2 * k], Rows::Tokens);
    b.op(
        "gather_ids",
        Op::AllGather {
            id: CollectiveId(1),
            wire: I32,
            gathers: vec![Gather {
                x: ids,
                out: all_ids,
                lens: vec![k; 2],
            }],
        },
    );
    let all_weights = b.temp("all_weights", F32, &[t, 2 * k], Rows::Tokens);
    b.op(
        "gather_weights",
        Op::AllGather {
            id: CollectiveId(2),
            wire: F32,
            gathers: vec![Gather {
                x: expert_weights,
                out: all_weights,
                lens: vec![k; 2],
            }],
        },
    );
    let out_values = b.result("best", F32, &[t, 4], Rows::Tokens);
    let out_ids = b.result("best_ids", I32, &[t, 4], Rows::Tokens);
    b.op(
        "merge",
        Op::TopKMerge {
            values: all_weights,
            ids: all_ids,
            k: 4,
            out_values,
            out_ids,
        },
    );
    b.finish()
}

/// One change of a sound plan.
enum Fault {
    /// Adds to one axis of a buffer.
    Grow(&'static str, usize),
    /// Another element type.
    Type(&'static str, GgmlType),
    /// Other rows.
    Rows(&'static str, Rows),
    /// Another owner.
    Kind(&'static str, BufferKind),
    /// Changes the operation itself.
    Op(fn(&mut Op)),
}

fn break_plan(plan: &mut Plan, label: &str, fault: &Fault) {
    let mut change = |name: &str, f: &dyn Fn(&mut BufferDecl)| {
        let id = plan.find(name).unwrap();
        f(&mut plan.buffers[id.index()]);
    };
    match fault {
        Fault::Grow(name, axis) => change(name, &|b| b.shape[*axis] += 1),
        Fault::Type(name, ty) => change(name, &|b| b.dtype = *ty),
        Fault::Rows(name, rows) => change(name, &|b| b.rows = *rows),
        Fault::Kind(name, kind) => change(name, &|b| b.kind = *kind),
        Fault::Op(f) => f(&mut plan
            .ops
            .iter_mut()
            .find(|node| node.label == label)
            .unwrap()
            .op),
    }
}

/// `(operation, fault, part of the rule's text)`; the fault must be found at that operation.
#[rustfmt::skip]
const TOY: &[(&str, Fault, &str)] = &[
    ("token_embd", Fault::Grow("token_embd.weight", 1), "a row of embd has 21 elements, expected 22"),
    ("token_embd", Fault::Type("embd", I32), "embd is I32, expected F32"),
    ("token_embd", Fault::Type("tokens", F32), "tokens is F32, expected I32"),
    ("token_embd", Fault::Rows("embd", Rows::Outputs), "embd counts Outputs, expected Tokens"),
    ("token_embd", Fault::Grow("embd", 0), "embd has 17 rows, expected the step's 16"),
    ("token_embd", Fault::Kind("carry.token", BufferKind::Temp), "carry.token is Temp, expected a carry"),
    ("token_embd", Fault::Grow("sequence_slots", 0), "sequence_slots is [4], expected [3]"),
    ("token_embd", Fault::Grow("cu_seqlens", 0), "cu_seqlens is [5], expected [4]"),
    ("blk.0.attn_norm", Fault::Grow("blk.0.attn_norm.weight", 0), "blk.0.attn_norm.weight is [22], expected [21]"),
    ("blk.0.attn_norm", Fault::Grow("blk.0.attn_norm", 1), "blk.0.attn_norm is [16, 22], expected [16, 21]"),
    ("blk.0.attn_norm", Fault::Kind("blk.0.attn_norm.weight", BufferKind::Carry), "is Carry, expected a weight"),
    ("blk.0.attn_kv_a_norm", Fault::Op(widen_norm), "columns 6..13 of blk.0.attn_kv_a lie outside its 11"),
    ("blk.0.index_k_norm", Fault::Grow("blk.0.index_k_norm.bias", 0), "index_k_norm.bias is [14], expected [13]"),
    ("blk.0.attn_a", Fault::Grow("blk.0.attn_kv_a.weight", 1), "blk.0.attn_kv_a.weight is [11, 22], expected [11, 21]"),
    ("blk.0.attn_a", Fault::Grow("blk.0.attn_q_a", 1), "a row of blk.0.attn_q_a has 11 elements, expected 10"),
    ("blk.0.attn_a", Fault::Op(drop_result), "2 weights for 1 results"),
    ("blk.0.attn_q_rope", Fault::Type("positions", F32), "positions is F32, expected I32"),
    ("blk.0.attn_q_rope", Fault::Op(odd_rope), "3 rotated elements, expected an even number"),
    ("blk.0.attn_q_rope", Fault::Op(wide_rope), "columns 7..11 of blk.0.attn_q_b lie outside its 9"),
    ("blk.0.latent_append", Fault::Grow("blk.0.latent", 0), "blk.0.latent is [12], expected [11]"),
    ("blk.0.latent_append", Fault::Type("blk.0.latent", GgmlType::BF16), "declares 44 bytes a token"),
    ("blk.0.latent_append", Fault::Kind("blk.0.latent", SLOT), "expected paged state"),
    ("blk.0.latent_append", Fault::Type("slot_mapping", F32), "slot_mapping is F32, expected I32"),
    ("blk.0.latent_append", Fault::Op(shift_part), "columns 8..12 of blk.0.attn_kv_a lie outside its 11"),
    ("blk.0.index_score", Fault::Grow("block_tables", 1), "block_tables is [3, 10], expected [3, 9]"),
    ("blk.0.index_score", Fault::Grow("blk.0.index_scores", 1), "has 28 elements, expected 27"),
    ("blk.0.index_select", Fault::Grow("blk.0.topk", 1), "a row of blk.0.topk has 7 elements, expected 6"),
    ("blk.0.index_select", Fault::Type("forced_topk", F32), "forced_topk is F32, expected I32"),
    ("blk.0.index_select", Fault::Op(narrow_forced), "5 forced positions, expected 6"),
    ("blk.0.index_select", Fault::Op(shift_forced), "columns 1..7 of forced_topk lie outside its 6"),
    ("blk.0.index_select", Fault::Type("blk.0.topk", F32), "blk.0.topk is F32, expected I32"),
    ("blk.0.attend", Fault::Grow("blk.0.context", 2), "blk.0.context is [16, 3, 8]"),
    ("blk.0.attend", Fault::Op(narrow_q_rope), "blk.0.latent is [11], expected [10]"),
    ("blk.0.attn_k_b", Fault::Grow("blk.0.attn_k_b.weight", 0), "is [4, 7, 5], expected [3, 7, 5]"),
    ("blk.0.attn_k_b", Fault::Op(all_of_q), "is [3, 7, 5], expected [3, 7, 9]"),
    ("blk.0.attn_k_b", Fault::Grow("blk.0.q_latent", 2), "blk.0.q_latent is [16, 3, 8], expected [16, 3, 7]"),
    ("blk.0.ffn_act", Fault::Grow("blk.0.ffn_act", 1), "blk.0.ffn_act is [16, 18]"),
    ("blk.1.route", Fault::Grow("blk.1.exp_probs_b.bias", 0), "is [13], expected [12]"),
    ("blk.1.route", Fault::Type("blk.1.expert_ids", F32), "blk.1.expert_ids is F32, expected I32"),
    ("blk.1.route", Fault::Op(uneven_groups), "3 of 12 experts in 5 groups cannot be chosen"),
    ("blk.1.route", Fault::Op(too_few_groups), "1 of 6 groups cannot give 3 experts"),
    ("blk.1.experts", Fault::Grow("blk.1.ffn_up_exps.weight", 1), "is [12, 16, 21], expected [12, 15, 21]"),
    ("blk.1.experts", Fault::Grow("blk.1.ffn_down_exps.weight", 2), "is [12, 21, 16], expected [12, 21, 15]"),
    ("blk.1.experts", Fault::Grow("blk.1.routed", 1), "a row of blk.1.routed has 22 elements, expected 21"),
    ("blk.1.ffn_sum", Fault::Grow("blk.1.ffn_sum", 1), "blk.1.ffn_sum is [16, 22]"),
    ("select", Fault::Grow("selected", 1), "a row of selected has 22 elements, expected 21"),
    ("select", Fault::Grow("output_rows", 0), "rows, but output_rows has"),
    ("select", Fault::Rows("selected", Rows::Tokens), "selected counts Tokens, expected Outputs"),
    ("output", Fault::Grow("output.weight", 1), "output.weight is [41, 22], expected [41, 21]"),
    ("output", Fault::Grow("logits", 1), "a row of logits has 42 elements, expected 41"),
    ("output", Fault::Grow("logits", 0), "logits has Some(17) rows, but output_norm has Some(16)"),
    ("sample", Fault::Grow("temperature", 0), "temperature has Some(17) rows"),
    ("sample", Fault::Grow("seeds", 0), "seeds has Some(17) rows"),
    ("sample", Fault::Grow("seeds", 1), "a row of seeds has 4 elements, expected 3"),
    ("sample", Fault::Grow("token_mask", 0), "token_mask has Some(17) rows"),
    ("sample", Fault::Grow("token_mask", 1), "a row of token_mask has 3 elements, expected 2"),
    ("sample", Fault::Type("token", F32), "token is F32, expected I32"),
];

#[rustfmt::skip]
const COLLECTIVES: &[(&str, Fault, &str)] = &[
    ("reduce", Fault::Grow("sum", 1), "sum is [5, 7], but x is [5, 6]"),
    ("reduce", Fault::Type("sum", I32), "sum is I32, expected F32"),
    ("gather_ids", Fault::Grow("all_ids", 1), "all_ids is [5, 7], expected [5, 6]"),
    ("gather_ids", Fault::Type("all_ids", F32), "all_ids is F32, expected I32"),
    ("gather_ids", Fault::Op(another_part), "ids is [5, 3] of rank 0: expected one length for each of 2 ranks"),
    ("gather_ids", Fault::Op(one_part), "ids is [5, 3] of rank 0: expected one length for each of 2 ranks"),
    ("gather_weights", Fault::Op(quantised_wire), "Q8_0 is no type for a wire"),
    ("merge", Fault::Grow("best", 1), "a row of best has 5 elements, expected 4"),
    ("merge", Fault::Grow("best_ids", 1), "best_ids is [5, 5]"),
    ("merge", Fault::Type("best_ids", F32), "best_ids is F32, expected I32"),
];

const SLOT: BufferKind = BufferKind::State(StateKind::Slot {
    bytes_per_sequence: 44,
});

fn widen_norm(op: &mut Op) {
    if let Op::RmsNorm { x, .. } = op {
        x.start = 6;
    }
}

fn drop_result(op: &mut Op) {
    if let Op::Linear { outs, .. } = op {
        outs.pop();
    }
}

fn odd_rope(op: &mut Op) {
    if let Op::Rope { spec, .. } = op {
        spec.n = 3;
    }
}

fn wide_rope(op: &mut Op) {
    if let Op::Rope { spec, .. } = op {
        spec.start = 7;
    }
}

fn shift_part(op: &mut Op) {
    if let Op::CacheAppend { parts, .. } = op {
        parts[1].start += 1;
    }
}

fn narrow_q_rope(op: &mut Op) {
    if let Op::MlaAttend { q_rope, .. } = op {
        q_rope.len -= 1;
    }
}

fn narrow_forced(op: &mut Op) {
    if let Op::IndexSelect {
        forced: Some(forced),
        ..
    } = op
    {
        forced.len -= 1;
    }
}

fn shift_forced(op: &mut Op) {
    if let Op::IndexSelect {
        forced: Some(forced),
        ..
    } = op
    {
        forced.start += 1;
    }
}

fn all_of_q(op: &mut Op) {
    if let Op::HeadProject { x, .. } = op {
        *x = Cols {
            start: 0,
            len: 9,
            ..*x
        };
    }
}

fn uneven_groups(op: &mut Op) {
    if let Op::Route { spec, .. } = op {
        spec.n_group = 5;
    }
}

fn too_few_groups(op: &mut Op) {
    if let Op::Route { spec, .. } = op {
        (spec.n_group, spec.topk_group) = (6, 1);
    }
}

fn gathers(op: &mut Op) -> &mut Vec<Gather> {
    match op {
        Op::AllGather { gathers, .. } => gathers,
        other => panic!("{other:?}"),
    }
}

fn another_part(op: &mut Op) {
    gathers(op)[0].lens = vec![2, 4];
}

fn one_part(op: &mut Op) {
    gathers(op)[0].lens.pop();
}

fn quantised_wire(op: &mut Op) {
    if let Op::AllGather { wire, .. } = op {
        *wire = GgmlType::Q8_0;
    }
}

fn check_table(sound: &Plan, table: &[(&str, Fault, &str)]) -> BTreeSet<String> {
    let mut kinds = BTreeSet::new();
    for (label, fault, text) in table {
        let mut plan = sound.clone();
        break_plan(&mut plan, label, fault);
        match check(&plan) {
            Err(CheckError::Shape { op, rule, kind, .. }) => {
                assert!(
                    op == *label && rule.contains(text),
                    "{label}, {text}: found at {op}: {rule}"
                );
                kinds.insert(kind);
            }
            other => panic!("{label}, {text}: {other:?}"),
        }
    }
    kinds
}

fn kinds(plan: &Plan) -> BTreeSet<String> {
    plan.ops
        .iter()
        .map(|node| node.op.kind().to_string())
        .collect()
}

#[test]
fn a_faulty_buffer_is_found_at_the_operation_that_it_does_not_fit() {
    let plan = toy::prefill(16, 3);
    assert_eq!(
        check_table(&plan, TOY),
        kinds(&plan),
        "every kind of the toy has a fault in the table"
    );
    let plan = collectives();
    let tested = check_table(&plan, COLLECTIVES);
    for kind in ["AllReduce", "AllGather", "TopKMerge"] {
        assert!(tested.contains(kind), "{kind}");
    }
}

/// Of all the sizes of the model, only these are free: nothing else in a plan depends on them.
const FREE_AXES: &[(&str, usize)] = &[
    ("token_embd.weight", 0),
    ("carry.token", 0),
    ("table", 0),
    ("router", 0),
];
/// Operations name the columns that they read of these; more would be left over.
const FREE_TO_GROW: &[(&str, usize)] = &[("forced_topk", 1)];

#[test]
fn no_axis_of_any_buffer_can_change_unnoticed() {
    for sound in [toy::prefill(16, 3), toy::decode(4), collectives()] {
        for (i, buffer) in sound.buffers.iter().enumerate() {
            for axis in 0..buffer.shape.len() {
                let key = (buffer.name.as_str(), axis);
                for change in [1isize, -1] {
                    let free =
                        FREE_AXES.contains(&key) || change > 0 && FREE_TO_GROW.contains(&key);
                    let mut plan = sound.clone();
                    let size = &mut plan.buffers[i].shape[axis];
                    *size = size.checked_add_signed(change).unwrap();
                    let found = check(&plan);
                    let what = format!("{}: {key:?} by {change}: {found:?}", sound.name);
                    assert_eq!(found.is_ok(), free, "{what}");
                }
            }
        }
    }
}

#[test]
fn no_buffer_can_change_its_type_unnoticed() {
    for sound in [toy::prefill(16, 3), toy::decode(4), collectives()] {
        for (i, buffer) in sound.buffers.iter().enumerate() {
            // A backend decides which weight and state types it takes.
            if matches!(buffer.kind, BufferKind::Weight | BufferKind::State(_)) {
                continue;
            }
            let mut plan = sound.clone();
            plan.buffers[i].dtype = if buffer.dtype == F32 { I32 } else { F32 };
            assert!(
                check(&plan).is_err(),
                "{}: {} as {}",
                sound.name,
                buffer.name,
                plan.buffers[i].dtype
            );
        }
    }
}

#[test]
fn no_activation_can_change_what_its_rows_count_unnoticed() {
    for sound in [toy::prefill(16, 3), toy::decode(4), collectives()] {
        for (i, buffer) in sound
            .buffers
            .iter()
            .enumerate()
            .filter(|(_, b)| b.rows != Rows::Whole)
        {
            for rows in [Rows::Tokens, Rows::Outputs, Rows::Whole] {
                let mut plan = sound.clone();
                plan.buffers[i].rows = rows;
                assert_eq!(
                    check(&plan).is_ok(),
                    rows == buffer.rows,
                    "{}: {} as {rows:?}",
                    sound.name,
                    buffer.name
                );
            }
        }
    }
}

/// A product for each head needs the head axis: without it, the heads' weights would be dealt out to the wrong rows.
#[test]
fn heads_must_be_the_second_of_three_axes() {
    let sound = toy::prefill(16, 3);
    for shape in [vec![16, 3, 1, 9], vec![16, 27]] {
        let mut plan = sound.clone();
        let q = plan.find("blk.0.attn_q_b").unwrap();
        plan.buffers[q.index()].shape = shape;
        assert!(matches!(check(&plan), Err(CheckError::Shape { .. })));
    }
}

/// The router and the experts work on the step's rows, not on output rows.
#[test]
fn output_rows_cannot_be_routed() {
    for label in ["blk.1.route", "blk.1.experts"] {
        let mut plan = toy::prefill(16, 3);
        // Rows are selected first of all, so that they are there to be misused.
        let mut select = plan
            .ops
            .remove(plan.ops.iter().position(|n| n.label == "select").unwrap());
        let (embd, selected) = (plan.find("embd").unwrap(), plan.find("selected").unwrap());
        if let Op::SelectRows { x, .. } = &mut select.op {
            *x = embd;
        }
        plan.ops.insert(1, select);
        plan.tap("blk.1.ffn_residual").unwrap();
        assert_eq!(check(&plan), Ok(()));
        match &mut plan.ops.iter_mut().find(|n| n.label == label).unwrap().op {
            Op::Route { x, .. } | Op::ExpertFfn { x, .. } => *x = selected,
            other => panic!("{other:?}"),
        }
        let error = check(&plan).unwrap_err();
        assert!(
            matches!(&error, CheckError::Shape { op, .. } if op == label),
            "{error}"
        );
    }
}

/// Candidates of tokens 64..73, and the draw from them.
fn candidates() -> Plan {
    let (t, part, k) = (5, 9, 4);
    let mut b = PlanBuilder::new(
        "candidates",
        StepKind::Decode { rows: t },
        CacheGeometry {
            block_size: 2,
            max_blocks: 2,
        },
    );
    b.extents(InputExtents {
        outputs: t,
        vocab_size: 73,
        forced: 0,
    });
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", F32, &[7, part]);
    let x = b.temp("x", F32, &[t, part], Rows::Tokens);
    b.op(
        "embed",
        Op::Embed {
            tokens,
            carry: None,
            table,
            out: x,
        },
    );
    let output_rows = b.input(InputKind::OutputRows);
    let logits = b.temp("logits", F32, &[t, part], Rows::Outputs);
    b.op(
        "select",
        Op::SelectRows {
            x,
            output_rows,
            out: logits,
        },
    );
    let inputs = SampleInputs {
        output_rows,
        positions: b.input(InputKind::Positions),
        temperature: b.input(InputKind::Temperature),
        top_k: b.input(InputKind::TopK),
        top_p: b.input(InputKind::TopP),
        min_p: b.input(InputKind::MinP),
        seeds: b.input(InputKind::Seeds),
        token_mask: b.input(InputKind::TokenMask),
    };
    let out_values = b.temp("values", F32, &[t, k], Rows::Outputs);
    let out_ids = b.temp("ids", I32, &[t, k], Rows::Outputs);
    b.op(
        "shortlist",
        Op::Shortlist {
            logits,
            first_id: 64,
            inputs,
            k,
            out_values,
            out_ids,
        },
    );
    let token = b.result("token", I32, &[t], Rows::Outputs);
    b.op(
        "draw",
        Op::Sample {
            logits: out_values,
            ids: Some(out_ids),
            inputs,
            carry: None,
            out: token,
        },
    );
    b.finish()
}

fn late(op: &mut Op) {
    if let Op::Shortlist { first_id, .. } = op {
        *first_id = 90;
    }
}

fn keep_more(op: &mut Op) {
    if let Op::Shortlist { k, .. } = op {
        *k += 1;
    }
}

fn ids_of_floats(op: &mut Op) {
    if let Op::Sample { logits, ids, .. } = op {
        *ids = Some(*logits);
    }
}

#[test]
fn candidates_fit_their_part_of_the_vocabulary_and_each_other() {
    let plan = candidates();
    assert_eq!(check(&plan), Ok(()));
    let table: &[(&str, Fault, &str)] = &[
        (
            "shortlist",
            Fault::Op(late),
            "a mask of 3 words for tokens 90..99",
        ),
        (
            "shortlist",
            Fault::Op(keep_more),
            "a row of values has 4 elements, expected 5",
        ),
        (
            "shortlist",
            Fault::Grow("ids", 1),
            "ids is [5, 5], but values is [5, 4]",
        ),
        (
            "draw",
            Fault::Op(ids_of_floats),
            "values is F32, expected I32",
        ),
    ];
    check_table(&plan, table);
}
