//! All ranks enter the same collectives, or the first of them would wait for ever.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_plan::fuse::FusePattern;
use glim_plan::{
    CacheGeometry, CheckError, CollectiveId, Gather, GgmlType, InputKind, Op, Plan, PlanBuilder,
    Rows, StepKind, check, check_ranks, fuse,
};

const F32: GgmlType = GgmlType::F32;
const WORLD: usize = 3;

/// `x → reduce 0 → reduce 1 → gather 2`.
fn rank(rank: usize) -> Plan {
    let (t, d) = (4, 5);
    let mut b = PlanBuilder::new(
        "shard",
        StepKind::Decode { rows: t },
        CacheGeometry {
            block_size: 2,
            max_blocks: 2,
        },
    );
    b.rank(rank, WORLD);
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
    let once = b.temp("once", F32, &[t, d], Rows::Tokens);
    b.op(
        "reduce_0",
        Op::AllReduce {
            id: CollectiveId(0),
            wire: F32,
            x,
            out: once,
        },
    );
    let twice = b.temp("twice", F32, &[t, d], Rows::Tokens);
    b.op(
        "reduce_1",
        Op::AllReduce {
            id: CollectiveId(1),
            wire: GgmlType::BF16,
            x: once,
            out: twice,
        },
    );
    let out = b.result("out", F32, &[t, d * WORLD], Rows::Tokens);
    b.op(
        "gather_2",
        Op::AllGather {
            id: CollectiveId(2),
            wire: F32,
            gathers: vec![Gather {
                x: twice,
                out,
                lens: vec![d; WORLD],
            }],
        },
    );
    b.finish()
}

/// Checks all ranks with the last one changed; gives index, found, expected.
fn differ(change: impl FnOnce(&mut Plan)) -> (usize, String, String) {
    let mut plans: Vec<Plan> = (0..WORLD).map(rank).collect();
    change(&mut plans[2]);
    match check_ranks(&plans) {
        Err(CheckError::CollectivesDiffer {
            plan,
            rank: 2,
            first_rank: 0,
            index,
            found,
            expected,
        }) => {
            assert_eq!(plan, "shard");
            (index, found, expected)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_that_agree_pass() {
    let plans: Vec<Plan> = (0..WORLD).map(rank).collect();
    plans.iter().for_each(|p| check(p).unwrap());
    assert_eq!(check_ranks(&plans), Ok(()));
    assert_eq!(check_ranks(&plans[..1]), Ok(()));
    assert_eq!(check_ranks(&[]), Ok(()));
}

#[test]
fn a_missing_collective_is_named() {
    let (index, found, expected) = differ(|p| drop(p.ops.remove(3)));
    assert_eq!(index, 2);
    assert!(
        found == "no collective" && expected.starts_with("AllGather 2"),
        "{found}, {expected}"
    );
}

#[test]
fn a_surplus_collective_is_named() {
    let (index, found, expected) = differ(|p| p.ops.push(p.ops[2].clone()));
    assert!(
        index == 3 && found.starts_with("AllReduce 1") && expected == "no collective",
        "{found}, {expected}"
    );
}

#[test]
fn another_order_is_rejected() {
    let (index, found, expected) = differ(|p| p.ops.swap(1, 2));
    assert_eq!(index, 0);
    assert!(
        found.starts_with("AllReduce 1") && expected.starts_with("AllReduce 0"),
        "{found}, {expected}"
    );
}

#[test]
fn another_wire_type_is_rejected() {
    let (index, found, expected) = differ(|p| match &mut p.ops[2].op {
        Op::AllReduce { wire, .. } => *wire = F32,
        other => panic!("{other:?}"),
    });
    assert_eq!(index, 1);
    assert!(
        found.ends_with("as F32") && expected.ends_with("as BF16"),
        "{found}, {expected}"
    );
}

#[test]
fn another_id_is_rejected() {
    let (index, ..) = differ(|p| match &mut p.ops[1].op {
        Op::AllReduce { id, .. } => *id = CollectiveId(7),
        other => panic!("{other:?}"),
    });
    assert_eq!(index, 0);
}

#[test]
fn another_shape_is_rejected() {
    let (index, found, expected) = differ(|p| {
        let id = p.find("once").unwrap();
        p.buffers[id.index()].shape[1] = 6;
    });
    assert_eq!(index, 0);
    assert!(
        found.contains("[4, 6]") && expected.contains("[4, 5]"),
        "{found}, {expected}"
    );
}

/// The gathered whole can have one shape while the ranks do not agree on who brings what.
#[test]
fn other_parts_of_the_same_whole_are_rejected() {
    let (index, found, expected) = differ(|p| match &mut p.ops[3].op {
        Op::AllGather { gathers, .. } => gathers[0].lens = vec![4, 6, 5],
        other => panic!("{other:?}"),
    });
    assert_eq!(index, 2);
    assert!(
        found.contains("[4, 15] in [4, 6, 5]") && expected.contains("[4, 15] in [5, 5, 5]"),
        "{found}, {expected}"
    );
}

#[test]
fn collectives_inside_a_fused_operation_count() {
    const PAIR: FusePattern = FusePattern {
        name: "Pair",
        takes: |parts, next| parts.len() < 2 && matches!(next, Op::AllReduce { .. }),
    };
    let mut plans: Vec<Plan> = (0..WORLD).map(rank).collect();
    // A rank may fuse what another does not: what they enter is the same.
    fuse(&mut plans[1], &[PAIR]);
    assert_eq!(plans[1].ops.len(), 3);
    assert_eq!(check_ranks(&plans), Ok(()));
    plans[1].ops.remove(1);
    assert!(matches!(
        check_ranks(&plans),
        Err(CheckError::CollectivesDiffer {
            rank: 1,
            index: 0,
            ..
        })
    ));
}

#[test]
fn the_message_says_who_would_wait() {
    let mut plans: Vec<Plan> = (0..WORLD).map(rank).collect();
    plans[1].ops.remove(3);
    let message = check_ranks(&plans).unwrap_err().to_string();
    assert!(message.starts_with("rank 1 of plan shard enters no collective as collective 2, but rank 0 enters AllGather 2"), "{message}");
}
