//! The peephole rewrite: neighbours become one operation, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::drive::{Chunk, Rig, Row};
use common::toy;
use glim_plan::fuse::{ADD_RMS_NORM, FusePattern};
use glim_plan::reference::ReferenceOptions;
use glim_plan::{
    Load, Op, Plan, arrange, check, check_arrangement, fuse, plan_cost, weight_groups,
};

fn fused(mut plan: Plan) -> Plan {
    fuse(&mut plan, &[ADD_RMS_NORM]);
    plan
}

#[test]
fn an_add_and_the_norm_that_reads_it_become_one_operation() {
    let (plan, fused) = (toy::decode(4), fused(toy::decode(4)));
    let labels: Vec<&str> = fused
        .ops
        .iter()
        .filter(|n| matches!(n.op, Op::Fused { .. }))
        .map(|n| n.label.as_str())
        .collect();
    assert_eq!(
        labels,
        [
            "blk.0.attn_residual + blk.0.ffn_norm",
            "blk.0.ffn_residual + blk.1.attn_norm",
            "blk.1.attn_residual + blk.1.ffn_norm"
        ]
    );
    // All else is as it was, in the same order: unfolding gives the plan back.
    let parts: Vec<&Op> = fused.ops.iter().flat_map(|node| node.op.parts()).collect();
    let ops: Vec<&Op> = plan.ops.iter().map(|node| &node.op).collect();
    assert_eq!(parts, ops);
    assert_eq!(fused.buffers, plan.buffers);
    assert!(fused.ops.iter().all(|n| matches!(
        n.op,
        Op::Fused {
            name: "AddRmsNorm",
            ..
        }
    ) == n.label.contains(" + ")));
}

#[test]
fn an_add_whose_norm_reads_something_else_is_left() {
    let mut plan = toy::decode(4);
    let embd = plan.find("embd").unwrap();
    let at = plan
        .ops
        .iter()
        .position(|n| n.label == "blk.0.ffn_norm")
        .unwrap();
    match &mut plan.ops[at].op {
        Op::RmsNorm { x, .. } => x.buffer = embd,
        other => panic!("{other:?}"),
    }
    assert!(
        fused(plan)
            .ops
            .iter()
            .any(|n| n.label == "blk.0.attn_residual" && matches!(n.op, Op::Add { .. }))
    );

    // Not neighbours.
    let mut plan = toy::decode(4);
    plan.ops.swap(at, at + 1);
    assert!(
        fused(plan)
            .ops
            .iter()
            .any(|n| n.label == "blk.0.attn_residual" && matches!(n.op, Op::Add { .. }))
    );
}

#[test]
fn the_first_pattern_that_matches_wins_and_nonsense_is_ignored() {
    const NEVER: FusePattern = FusePattern {
        name: "Never",
        matches: |_| None,
    };
    const ONE: FusePattern = FusePattern {
        name: "One",
        matches: |_| Some(1),
    };
    const TOO_LONG: FusePattern = FusePattern {
        name: "TooLong",
        matches: |ops| Some(ops.len() + 1),
    };
    const PAIR: FusePattern = FusePattern {
        name: "Pair",
        matches: |ops| (ops.len() >= 2).then_some(2),
    };
    let plan = toy::decode(4);
    for pattern in [NEVER, ONE, TOO_LONG] {
        let mut same = plan.clone();
        fuse(&mut same, &[pattern]);
        assert_eq!(same, plan, "{}", pattern.name);
    }
    let mut pairs = plan.clone();
    fuse(&mut pairs, &[PAIR, ADD_RMS_NORM]);
    assert_eq!(pairs.ops.len(), plan.ops.len().div_ceil(2));
    assert!(pairs.ops.iter().all(|n| !matches!(
        n.op,
        Op::Fused {
            name: "AddRmsNorm",
            ..
        }
    )));
    // Any neighbours may be fused: the rules go by the parts.
    assert_eq!(check(&pairs), Ok(()));
    check_arrangement(&pairs, &arrange(&pairs)).unwrap();
}

#[test]
fn a_fused_plan_passes_the_check_and_costs_the_same() {
    for plan in [toy::decode(4), toy::prefill(16, 3)] {
        let fused = fused(plan.clone());
        assert_eq!(check(&fused), Ok(()));
        check_arrangement(&fused, &arrange(&fused)).unwrap();
        let load = Load {
            rows: 4,
            outputs: 2,
            sequences: 3,
            context: 11,
        };
        let (a, b) = (plan_cost(&plan, &load), plan_cost(&fused, &load));
        // Sums in another order: the figures agree to rounding.
        for (a, b) in [
            (a.weight_bytes, b.weight_bytes),
            (a.state_bytes, b.state_bytes),
            (a.activation_bytes, b.activation_bytes),
            (a.wire_bytes, b.wire_bytes),
            (a.flops, b.flops),
        ] {
            assert!((a - b).abs() <= 1e-12 * a.abs(), "{a} {b}");
        }
        assert_eq!(weight_groups(&[plan]), weight_groups(&[fused]));
    }
}

#[test]
fn a_fused_plan_gives_the_same_bits() {
    let play = |decode: Plan, prefill: Plan| -> Vec<Row> {
        let mut rig = Rig::with(
            ReferenceOptions {
                poison: true,
                ..ReferenceOptions::default()
            },
            decode,
            prefill,
        );
        let mut rows = rig
            .prefill(&[Chunk::new(
                &[5, 3, 40, 22, 9, 1, 17, 8],
                0,
                &[6, 2, 4, 1],
                1,
            )])
            .unwrap();
        rows.extend((8..11).flat_map(|p| {
            rig.decode(&[Chunk::new(&[-1], p, &[6, 2, 4, 1], 1)])
                .unwrap()
        }));
        rows
    };
    let plain = play(toy::decode(4), toy::prefill(16, 3));
    assert_eq!(
        play(fused(toy::decode(4)), fused(toy::prefill(16, 3))),
        plain
    );
}

/// What happens inside a fused operation is not seen outside: the union over the parts.
#[test]
fn access_of_a_fused_operation_is_the_union_of_its_parts() {
    let plan = fused(toy::decode(4));
    let node = plan
        .ops
        .iter()
        .find(|n| n.label == "blk.0.attn_residual + blk.0.ffn_norm")
        .unwrap();
    let names = |ids: &[glim_plan::BufferId]| -> Vec<String> {
        ids.iter().map(|id| plan.buffer(*id).name.clone()).collect()
    };
    let access = node.op.access();
    assert_eq!(
        names(&access.reads),
        ["embd", "blk.0.attn_output", "blk.0.ffn_norm.weight"]
    );
    assert_eq!(
        names(&access.writes),
        ["blk.0.attn_residual", "blk.0.ffn_norm"]
    );
    assert!(access.updates.is_empty() && access.appends.is_empty());
    assert_eq!(node.op.kind(), "AddRmsNorm");
}
