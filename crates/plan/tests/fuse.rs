//! The peephole rewrite: neighbours become one operation, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::drive::{Chunk, Rig, Row};
use common::toy;
use glim_plan::fuse::{ADD_RMS_NORM, EXPERTS_ADD, FusePattern, NORMS, ROPES, SWIGLU_LINEAR};
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

    // Behind an operation that reads what it writes.
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
        takes: |_, _| false,
    };
    const ONE: FusePattern = FusePattern {
        name: "One",
        takes: |parts, _| parts.is_empty(),
    };
    const NOT_FIRST: FusePattern = FusePattern {
        name: "NotFirst",
        takes: |parts, _| !parts.is_empty(),
    };
    const PAIR: FusePattern = FusePattern {
        name: "Pair",
        takes: |parts, _| parts.len() < 2,
    };
    let plan = toy::decode(4);
    for pattern in [NEVER, ONE, NOT_FIRST] {
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
        let fused = all_fused(plan.clone());
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
    for fuse in [fused, all_fused] {
        assert_eq!(play(fuse(toy::decode(4)), fuse(toy::prefill(16, 3))), plain);
    }
}

fn all_fused(mut plan: Plan) -> Plan {
    let patterns = [ADD_RMS_NORM, NORMS, ROPES, SWIGLU_LINEAR, EXPERTS_ADD];
    fuse(&mut plan, &patterns);
    plan
}

#[test]
fn a_product_computes_what_it_takes_and_experts_add_the_shared_one() {
    // The shared expert comes first, as models' plans have it.
    let mut plan = toy::decode(4);
    let at = |plan: &Plan, is: fn(&Op) -> bool| plan.ops.iter().position(|n| is(&n.op)).unwrap();
    let experts = at(&plan, |op| matches!(op, Op::ExpertFfn { .. }));
    let experts = plan.ops.remove(experts);
    let down = plan
        .ops
        .iter()
        .position(|n| n.label == "blk.1.ffn_shexp_down");
    plan.ops.insert(down.unwrap() + 1, experts);
    let plan = all_fused(plan);
    let fused: Vec<(&str, &str)> = plan
        .ops
        .iter()
        .filter_map(|node| match &node.op {
            Op::Fused { name, .. } => Some((*name, node.label.as_str())),
            _ => None,
        })
        .filter(|(name, _)| [SWIGLU_LINEAR.name, EXPERTS_ADD.name].contains(name))
        .collect();
    let (product, sum) = (SWIGLU_LINEAR.name, EXPERTS_ADD.name);
    assert_eq!(
        fused,
        [
            (product, "blk.0.ffn_act + blk.0.ffn_down"),
            (product, "blk.1.ffn_shexp_act + blk.1.ffn_shexp_down"),
            (sum, "blk.1.experts + blk.1.ffn_sum"),
        ]
    );
}

#[test]
fn operations_move_up_to_the_first_of_their_pattern_past_those_that_do_not_mind() {
    // Queries of attention and of the indexer, rotated when both are there.
    let mut plan = toy::decode(4);
    let place = |plan: &Plan, label| plan.ops.iter().position(|n| n.label == label).unwrap();
    let rope = plan.ops.remove(place(&plan, "blk.0.attn_q_rope"));
    let behind = place(&plan, "blk.0.index_q") + 1;
    plan.ops.insert(behind, rope);
    let plan = all_fused(plan);
    let labels: Vec<&str> = plan.ops.iter().map(|node| node.label.as_str()).collect();
    let of_layer = &labels[..labels.iter().position(|l| l.contains("attend")).unwrap()];
    assert_eq!(
        of_layer,
        [
            "token_embd",
            "blk.0.attn_norm",
            "blk.0.attn_a",
            "blk.0.attn_q_a_norm + blk.0.attn_kv_a_norm + blk.0.attn_k_rope + blk.0.latent_append",
            "blk.0.attn_q_b",
            "blk.0.index_q",
            "blk.0.attn_q_rope + blk.0.index_q_rope",
            "blk.0.index_kw",
            "blk.0.index_k_norm + blk.0.index_k_rope + blk.0.index_append",
            "blk.0.index_score",
            "blk.0.index_select",
            "blk.0.attn_k_b",
        ]
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
