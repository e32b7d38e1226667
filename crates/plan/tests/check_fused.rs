//! A fused operation is held to the rules of its parts, in their order.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::edit::{id, op};
use common::toy;
use glim_plan::fuse::ADD_RMS_NORM;
use glim_plan::{CheckError, Op, Plan, check, fuse};

const LABEL: &str = "blk.0.attn_residual + blk.0.ffn_norm";

fn fused() -> Plan {
    let mut plan = toy::prefill(16, 3);
    fuse(&mut plan, &[ADD_RMS_NORM]);
    plan
}

fn parts(plan: &mut Plan) -> &mut Vec<Op> {
    match op(plan, LABEL) {
        Op::Fused { parts, .. } => parts,
        other => panic!("{other:?}"),
    }
}

#[test]
fn parts_in_the_wrong_order_read_before_they_write() {
    let mut plan = fused();
    parts(&mut plan).swap(0, 1);
    let expected = CheckError::ReadBeforeWrite {
        plan: plan.name.clone(),
        op: LABEL.into(),
        buffer: "blk.0.attn_residual".into(),
    };
    assert_eq!(check(&plan).unwrap_err(), expected);
}

#[test]
fn a_part_may_not_alias() {
    let mut plan = fused();
    let sum = id(&plan, "blk.0.attn_residual");
    match &mut parts(&mut plan)[1] {
        Op::RmsNorm { out, .. } => *out = sum,
        other => panic!("{other:?}"),
    }
    assert!(matches!(check(&plan), Err(CheckError::Aliasing { op, .. }) if op == LABEL));
}

#[test]
fn a_part_may_not_overwrite() {
    let mut plan = fused();
    let earlier = id(&plan, "blk.0.attn_norm");
    match &mut parts(&mut plan)[1] {
        Op::RmsNorm { out, .. } => *out = earlier,
        other => panic!("{other:?}"),
    }
    assert!(matches!(check(&plan), Err(CheckError::Overwrite { op, .. }) if op == LABEL));
}

#[test]
fn a_parts_shape_counts() {
    let mut plan = fused();
    let out = id(&plan, "blk.0.ffn_norm");
    plan.buffers[out.index()].shape[1] += 1;
    assert!(matches!(check(&plan), Err(CheckError::Shape { op, .. }) if op == LABEL));
}

#[test]
fn a_part_whose_output_nobody_reads_is_a_phantom() {
    let mut plan = fused();
    let embd = id(&plan, "embd");
    match &mut parts(&mut plan)[1] {
        Op::RmsNorm { x, .. } => x.buffer = embd,
        other => panic!("{other:?}"),
    }
    match op(&mut plan, "blk.0.ffn_residual + blk.1.attn_norm") {
        Op::Fused { parts, .. } => match &mut parts[0] {
            Op::Add { a, .. } => *a = embd,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    assert!(matches!(check(&plan), Err(CheckError::PhantomOutput { op, .. }) if op == LABEL));
}

#[test]
fn a_fused_operation_inside_another_is_rejected() {
    let mut plan = fused();
    let inner = Op::Fused {
        name: "Inner",
        parts: std::mem::take(parts(&mut plan)),
    };
    parts(&mut plan).push(inner);
    let error = check(&plan).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("Inner is nested in another fused operation"),
        "{error}"
    );
}
