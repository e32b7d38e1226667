//! Weight groups: one layout for all plans of a model.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::toy;
use glim_plan::groups::GroupError;
use glim_plan::{BufferKind, Op, Plan, WeightGroup, weight_groups};

fn names(groups: &[WeightGroup]) -> Vec<Vec<&str>> {
    groups
        .iter()
        .map(|g| g.names.iter().map(String::as_str).collect())
        .collect()
}

fn linear<'a>(plan: &'a mut Plan, label: &str) -> &'a mut Op {
    &mut plan.ops.iter_mut().find(|n| n.label == label).unwrap().op
}

#[test]
fn every_weight_is_in_exactly_one_group() {
    let plans = [toy::decode(1), toy::decode(4), toy::prefill(16, 3)];
    let groups = weight_groups(&plans).unwrap();
    let all: Vec<&str> = names(&groups).concat();
    let unique: BTreeSet<&str> = all.iter().copied().collect();
    let declared: BTreeSet<&str> = plans[0]
        .buffers_where(|k| *k == BufferKind::Weight)
        .map(|(_, b)| b.name.as_str())
        .collect();
    assert_eq!((all.len(), &unique), (unique.len(), &declared));
    for group in &groups {
        let stored = |name: &String| plans[0].buffer(plans[0].find(name).unwrap()).bytes();
        let bytes: Vec<usize> = group.names.iter().map(stored).collect();
        assert_eq!(group.bytes, bytes, "{:?}", group.names);
    }
}

#[test]
fn weights_that_one_operation_reads_form_a_group_in_order_of_first_use() {
    let groups = weight_groups(&[toy::decode(4)]).unwrap();
    let groups = names(&groups);
    assert_eq!(groups[0], ["token_embd.weight"]);
    assert_eq!(
        groups[2],
        ["blk.0.attn_q_a.weight", "blk.0.attn_kv_a.weight"]
    );
    let together: Vec<_> = groups.iter().filter(|g| g.len() > 1).collect();
    assert_eq!(
        together,
        [
            &vec!["blk.0.attn_q_a.weight", "blk.0.attn_kv_a.weight"],
            &vec!["blk.0.index_k.weight", "blk.0.index_weights.weight"],
            &vec!["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"],
            &vec!["blk.1.attn_q_a.weight", "blk.1.attn_kv_a.weight"],
            &vec!["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"],
            &vec!["blk.1.ffn_shexp_gate.weight", "blk.1.ffn_shexp_up.weight"],
        ]
    );
    assert_eq!(groups.last().unwrap(), &["output.weight"]);
}

#[test]
fn the_order_of_plans_does_not_change_the_groups() {
    let (a, b) = (toy::decode(1), toy::prefill(16, 3));
    assert_eq!(
        weight_groups(&[a.clone(), b.clone()]),
        weight_groups(&[b, a])
    );
    assert_eq!(weight_groups(&[]), Ok(vec![]));
}

/// A plan that reads the first weight alone, in a separate operation, still finds it in its group.
#[test]
fn a_weight_that_another_plan_reads_alone_stays_in_its_group() {
    let mut alone = toy::decode(1);
    match linear(&mut alone, "blk.0.ffn_gate_up") {
        Op::Linear { weights, outs, .. } => {
            weights.truncate(1);
            outs.truncate(1);
        }
        other => panic!("{other:?}"),
    }
    for plans in [[alone.clone(), toy::decode(4)], [toy::decode(4), alone]] {
        let groups = weight_groups(&plans).unwrap();
        assert!(names(&groups).contains(&vec!["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"]));
    }
}

#[test]
fn plans_that_want_a_weight_in_other_company_are_refused() {
    let mut swapped = toy::prefill(16, 3);
    match linear(&mut swapped, "blk.0.ffn_gate_up") {
        Op::Linear { weights, outs, .. } => {
            weights.reverse();
            outs.reverse();
        }
        other => panic!("{other:?}"),
    }
    let error = weight_groups(&[toy::decode(4), swapped]).unwrap_err();
    let (gate, up) = (
        "blk.0.ffn_gate.weight".to_string(),
        "blk.0.ffn_up.weight".to_string(),
    );
    let expected = GroupError {
        plan: "toy.prefill".into(),
        weight: up.clone(),
        found: vec![up.clone(), gate.clone()],
        expected: vec![gate, up],
    };
    assert_eq!(error, expected);
    assert!(
        error.to_string().ends_with("a weight is resident once"),
        "{error}"
    );
}

#[test]
fn two_groups_of_one_plan_cannot_share_a_weight() {
    let mut plan = toy::decode(4);
    let gate = plan.find("blk.0.ffn_gate.weight").unwrap();
    match linear(&mut plan, "blk.1.ffn_shexp_gate_up") {
        Op::Linear { weights, .. } => weights[0] = gate,
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(weight_groups(&[plan]), Err(GroupError { weight, .. }) if weight == "blk.0.ffn_gate.weight")
    );
}
