//! The arena: over random plans, no two live buffers share bytes, nothing is wasted beyond reason, and a shared arena computes
//! what separate memory computes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::toy;
use common::weights::Weights;
use glim_plan::arrange::{ARENA_ALIGN, ArrangeError};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BufferId, BufferKind, CacheGeometry, GgmlType, InputKind, Op, Plan, PlanBuilder,
    Precision, Rows, StepInputs, StepKind, arrange, check, check_arrangement, weight_groups,
};
use proptest::prelude::*;

const ROWS: usize = 3;
const VOCAB: usize = 5;
/// Row widths: below, at and above the arena's alignment for three rows.
const WIDTHS: [usize; 4] = [1, 24, 64, 100];

/// A step of a random plan: picks among the buffers so far.
#[derive(Debug, Clone)]
enum Pick {
    Add { a: usize, b: usize },
    Linear { x: usize, width: usize },
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    let pick = prop_oneof![
        3 => (0usize..64, 0usize..64).prop_map(|(a, b)| Pick::Add { a, b }),
        1 => (0usize..64, 0usize..WIDTHS.len()).prop_map(|(x, width)| Pick::Linear { x, width }),
    ];
    prop::collection::vec(pick, 1..40)
}

/// Straight-line plan; what nobody reads is a result, and so is every `tap`-th buffer.
fn build(picks: &[Pick], tap: usize) -> Plan {
    let mut b = PlanBuilder::new(
        "random",
        StepKind::Decode { rows: ROWS },
        CacheGeometry {
            block_size: 1,
            max_blocks: 1,
        },
    );
    let tokens = b.input(InputKind::Tokens);
    let mut made: Vec<(BufferId, usize)> = Vec::new();
    for width in WIDTHS {
        let table = b.weight(&format!("table.{width}"), GgmlType::F32, &[VOCAB, width]);
        let out = b.temp(
            &format!("embd.{width}"),
            GgmlType::F32,
            &[ROWS, width],
            Rows::Tokens,
        );
        b.op(
            &format!("embd.{width}"),
            Op::Embed {
                tokens,
                carry: None,
                table,
                out,
            },
        );
        made.push((out, width));
    }
    for (i, pick) in picks.iter().enumerate() {
        let name = format!("v{i}");
        // Recent buffers more often than old ones, so that lives end.
        let at = |n: usize| made[made.len() - 1 - n % made.len().min(6)];
        let (op, out, width) = match pick {
            Pick::Add { a, b: other } => {
                let (a, width) = at(*a);
                let same: Vec<BufferId> = made
                    .iter()
                    .filter(|(_, w)| *w == width)
                    .map(|(id, _)| *id)
                    .collect();
                let out = b.temp(&name, GgmlType::F32, &[ROWS, width], Rows::Tokens);
                (
                    Op::Add {
                        a,
                        b: same[same.len() - 1 - other % same.len().min(4)],
                        out,
                    },
                    out,
                    width,
                )
            }
            Pick::Linear { x, width } => {
                let ((x, k), width) = (at(*x), WIDTHS[*width]);
                let weight = b.weight(&format!("w.{k}.{width}"), GgmlType::F32, &[width, k]);
                let out = b.temp(&name, GgmlType::F32, &[ROWS, width], Rows::Tokens);
                (
                    Op::Linear {
                        x,
                        weights: vec![weight],
                        outs: vec![out],
                        precision: Precision::F32,
                    },
                    out,
                    width,
                )
            }
        };
        b.op(&name, op);
        made.push((out, width));
    }
    let mut plan = b.finish();
    let read: Vec<BufferId> = plan.ops.iter().flat_map(|n| n.op.access().reads).collect();
    for (i, (id, _)) in made.iter().enumerate() {
        if !read.contains(id) || i % tap == tap - 1 {
            let name = plan.buffer(*id).name.clone();
            plan.tap(&name).unwrap();
        }
    }
    plan
}

fn aligned(bytes: usize) -> usize {
    bytes.div_ceil(ARENA_ALIGN) * ARENA_ALIGN
}

/// First write and last use of a buffer, found the slow way.
fn life(plan: &Plan, id: BufferId) -> Option<(usize, usize)> {
    let touches = |i: &usize| {
        let a = plan.ops[*i].op.access();
        a.reads.contains(&id) || a.writes.contains(&id) || a.updates.contains(&id)
    };
    let (mut all, end) = ((0..plan.ops.len()).filter(touches), plan.ops.len());
    let first = all.next()?;
    let last = all.next_back().unwrap_or(first);
    Some((
        first,
        if plan.buffer(id).kind == BufferKind::Result {
            end
        } else {
            last
        },
    ))
}

fn arena_buffers(plan: &Plan) -> Vec<BufferId> {
    plan.buffers_where(|k| matches!(k, BufferKind::Temp | BufferKind::Result))
        .map(|(id, _)| id)
        .collect()
}

/// Runs the plan; results by name, bit by bit.
fn results(plan: &Plan, names: &[String]) -> Vec<Vec<u32>> {
    let mut backend = ReferenceBackend::new(ReferenceOptions {
        poison: true,
        ..ReferenceOptions::default()
    });
    backend
        .load(
            &weight_groups(std::slice::from_ref(plan)).unwrap(),
            &Weights::seeded(&[plan], 3),
        )
        .unwrap();
    let step = backend.prepare(plan).unwrap();
    let mut inputs = StepInputs::new(plan);
    inputs.set_i32(InputKind::Tokens, [2, 0, 4]).unwrap();
    let results = backend.run(step, &inputs).unwrap();
    names
        .iter()
        .map(|n| {
            results
                .f32s(n)
                .unwrap()
                .iter()
                .map(|v| v.to_bits())
                .collect()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_two_live_buffers_share_bytes(picks in picks(), tap in 1usize..9) {
        let plan = build(&picks, tap);
        prop_assert_eq!(check(&plan), Ok(()));
        let arrangement = arrange(&plan);
        prop_assert_eq!(check_arrangement(&plan, &arrangement), Ok(()));
        // The same, found the slow way.
        let all = arena_buffers(&plan);
        let span = |id: BufferId| {
            let start = arrangement.offsets[id.index()].unwrap();
            start..start + plan.buffer(id).bytes()
        };
        for a in &all {
            prop_assert_eq!(span(*a).start % ARENA_ALIGN, 0);
            prop_assert!(span(*a).end <= arrangement.arena_bytes);
            for b in all.iter().filter(|b| *b != a) {
                let ((a_first, a_last), (b_first, b_last)) = (life(&plan, *a).unwrap(), life(&plan, *b).unwrap());
                let meet = a_first.max(b_first) <= a_last.min(b_last);
                let share = span(*a).start.max(span(*b).start) < span(*a).end.min(span(*b).end);
                prop_assert!(!(meet && share), "{} and {}", plan.buffer(*a).name, plan.buffer(*b).name);
            }
        }
    }

    #[test]
    fn the_arena_is_between_the_largest_live_set_and_the_sum(picks in picks(), tap in 1usize..9) {
        let plan = build(&picks, tap);
        let all = arena_buffers(&plan);
        let sum = |ids: &mut dyn Iterator<Item = &BufferId>| -> usize { ids.map(|id| aligned(plan.buffer(*id).bytes())).sum() };
        let largest = (0..=plan.ops.len())
            .map(|at| sum(&mut all.iter().filter(|id| life(&plan, **id).is_some_and(|(a, b)| a <= at && at <= b))))
            .max();
        let arena = arrange(&plan).arena_bytes;
        prop_assert!(arena >= largest.unwrap());
        prop_assert!(arena <= sum(&mut all.iter()));
    }

    #[test]
    fn a_shared_arena_computes_what_separate_memory_computes(picks in picks()) {
        let plan = build(&picks, 9);
        let names: Vec<String> =
            plan.buffers_where(|k| *k == BufferKind::Result).map(|(_, b)| b.name.clone()).collect();
        // All taps live to the end, so nothing is shared.
        let apart = build(&picks, 1);
        prop_assert_eq!(arena_buffers(&apart).len(), apart.buffers_where(|k| *k == BufferKind::Result).count());
        prop_assert_eq!(results(&plan, &names), results(&apart, &names));
    }
}

/// `x0 = embed`, then a chain of `n` sums.
fn chain(n: usize) -> Plan {
    let picks: Vec<Pick> = (0..n).map(|_| Pick::Add { a: 0, b: 0 }).collect();
    build(&picks, usize::MAX)
}

#[test]
fn a_chain_needs_two_places_however_long_it_is() {
    let long = arrange(&chain(30));
    assert_eq!(long.arena_bytes, arrange(&chain(3)).arena_bytes);
    let plan = chain(30);
    let (a, b, c) = (
        plan.find("v1").unwrap(),
        plan.find("v2").unwrap(),
        plan.find("v3").unwrap(),
    );
    let offset = |id: BufferId| long.offsets[id.index()].unwrap();
    assert_ne!(offset(a), offset(b));
    assert_eq!(offset(a), offset(c));
}

#[test]
fn only_temporaries_and_results_lie_in_the_arena() {
    let plan = toy::decode(4);
    let arrangement = arrange(&plan);
    for (i, b) in plan.buffers.iter().enumerate() {
        let inside = matches!(b.kind, BufferKind::Temp | BufferKind::Result);
        assert_eq!(arrangement.offsets[i].is_some(), inside, "{}", b.name);
    }
    let sum: usize = arena_buffers(&plan)
        .iter()
        .map(|id| aligned(plan.buffer(*id).bytes()))
        .sum();
    assert!(
        arrangement.arena_bytes < sum / 3,
        "{} of {sum}",
        arrangement.arena_bytes
    );
    assert_eq!(arrange(&plan), arrangement);
}

#[test]
fn a_broken_arrangement_is_reported_with_both_names() {
    let plan = chain(4);
    let mut broken = arrange(&plan);
    let (a, b) = (plan.find("v1").unwrap(), plan.find("v2").unwrap());
    // One row into its neighbour: operand and result of one sum.
    broken.offsets[b.index()] =
        broken.offsets[a.index()].map(|offset| offset + plan.buffer(a).bytes() - 4);
    let error = check_arrangement(&plan, &broken).unwrap_err();
    assert_eq!(
        error,
        ArrangeError::Overlap {
            plan: "random".into(),
            a: "v1".into(),
            b: "v2".into()
        }
    );
    let expected = "plan random: v1 and v2 are live at the same time and share bytes of the arena";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_live_buffer_without_a_place_in_the_arena_is_reported() {
    let plan = chain(4);
    let sound = arrange(&plan);
    let v1 = plan.find("v1").unwrap().index();
    for offset in [None, Some(sound.arena_bytes)] {
        let mut broken = sound.clone();
        broken.offsets[v1] = offset;
        match check_arrangement(&plan, &broken).unwrap_err() {
            ArrangeError::Unplaced { buffer, .. } => assert_eq!(buffer, "v1"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_result_lives_to_the_end() {
    let mut plan = chain(10);
    let before = arrange(&plan);
    let id = plan.tap("v1").unwrap();
    let arrangement = arrange(&plan);
    assert!(arrangement.arena_bytes > before.arena_bytes);
    let start = |id: BufferId| arrangement.offsets[id.index()].unwrap();
    for later in (2..10).map(|i| plan.find(&format!("v{i}")).unwrap()) {
        assert!(start(later) != start(id), "{}", plan.buffer(later).name);
    }
    // Where the untapped plan put it, another buffer follows.
    let stale = check_arrangement(&plan, &before).unwrap_err();
    let (a, b) = ("v1".to_owned(), "v3".to_owned());
    assert!(
        matches!(&stale, ArrangeError::Overlap { a: x, b: y, .. } if (x, y) == (&a, &b)),
        "{stale}"
    );
}

#[test]
fn a_fused_pair_keeps_its_inner_buffer_apart() {
    let mut plan = toy::decode(4);
    glim_plan::fuse(&mut plan, &[glim_plan::fuse::ADD_RMS_NORM]);
    let mut broken = arrange(&plan);
    let (sum, norm) = (
        plan.find("blk.1.attn_residual").unwrap(),
        plan.find("blk.1.ffn_norm").unwrap(),
    );
    broken.offsets[norm.index()] = broken.offsets[sum.index()];
    assert!(check_arrangement(&plan, &broken).is_err());
}
