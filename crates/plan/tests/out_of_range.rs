//! Indices come from outside the plan: each wrong one is named, none panics, and the backend lives on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::drive::{BLOCKS, Chunk, Rig, fill, run_filled};
use common::toy::{GEOMETRY, SLOTS, VOCAB};
use glim_plan::{Backend, BackendError, InputError, InputKind};

const A: [i32; 4] = [5, 2, 9, 11];
const B: [i32; 3] = [0, 7, 3];
const PROMPT_A: [i32; 5] = [1, 9, 19, 31, 4];
const PROMPT_B: [i32; 4] = [2, 10, 20, 32];

/// Runs a decode of two sequences with word `at` of one input changed; gives operation, what, found, bound.
fn change(kind: InputKind, at: usize, value: i32) -> (String, String, i64, usize) {
    let mut rig = Rig::new();
    rig.prefill(&[
        Chunk::new(&PROMPT_A, 0, &A, 3),
        Chunk::new(&PROMPT_B, 0, &B, 0),
    ])
    .unwrap();
    let chunks = [Chunk::new(&[1], 5, &A, 3), Chunk::new(&[2], 4, &B, 0)];
    fill(&mut rig.decode.inputs, &chunks).unwrap();
    let mut words: Vec<i32> = rig
        .decode
        .inputs
        .get(kind)
        .iter()
        .map(|w| *w as i32)
        .collect();
    words[at] = value;
    rig.decode.inputs.set_i32(kind, words).unwrap();
    let Rig {
        backend, decode, ..
    } = &mut rig;
    let error = match run_filled(backend, decode) {
        Err(BackendError::OutOfRange {
            plan,
            op,
            what,
            found,
            bound,
        }) => {
            assert_eq!(plan, "toy.decode");
            (op, what, found, bound)
        }
        other => panic!("{other:?}"),
    };
    // The backend is none the worse for it.
    rig.decode(&chunks).unwrap();
    error
}

fn named(op: &str, what: &str, found: i64, bound: usize) -> (String, String, i64, usize) {
    (op.into(), what.into(), found, bound)
}

#[test]
fn a_wrong_token_is_named() {
    for token in [41, -2, i32::MAX, i32::MIN] {
        assert_eq!(
            change(InputKind::Tokens, 1, token),
            named("token_embd", "token", token.into(), VOCAB)
        );
    }
}

#[test]
fn a_wrong_slot_is_named() {
    let bound = BLOCKS * GEOMETRY.block_size;
    for slot in [96, -2, i32::MAX] {
        let expected = named("blk.0.latent_append", "slot", slot.into(), bound);
        assert_eq!(change(InputKind::SlotMapping, 0, slot), expected);
    }
}

#[test]
fn a_wrong_block_is_named() {
    for block in [-1, 32, i32::MIN] {
        let expected = named("blk.0.index_score", "block", block.into(), BLOCKS);
        // The second sequence's second block.
        assert_eq!(
            change(InputKind::BlockTables, GEOMETRY.max_blocks + 1, block),
            expected
        );
    }
}

#[test]
fn a_wrong_position_is_named() {
    // A rotation turns by any position, but not by a negative one.
    let negative = named("blk.0.attn_q_rope", "position", -1, 1 << 31);
    assert_eq!(change(InputKind::Positions, 0, -1), negative);
    for position in [27, i32::MAX] {
        let expected = named(
            "blk.0.index_score",
            "position",
            position.into(),
            GEOMETRY.max_positions(),
        );
        assert_eq!(change(InputKind::Positions, 0, position), expected);
    }
    // Inside the table, but past the sequence's own blocks.
    assert_eq!(
        change(InputKind::Positions, 1, 9),
        named("blk.0.index_score", "block", -1, BLOCKS)
    );
}

#[test]
fn a_wrong_forced_position_is_named() {
    // Row 0 is at position 5: it may see 0..=5.
    for position in [6, 100, -2] {
        assert_eq!(
            change(InputKind::ForcedTopk, 0, position),
            named("blk.0.attend", "chosen position", position.into(), 6)
        );
    }
}

#[test]
fn a_wrong_output_row_is_named() {
    // Row 2 is a pad; below −1 is no pad.
    for row in [2, 4, -2, i32::MIN] {
        assert_eq!(
            change(InputKind::OutputRows, 0, row),
            named("select", "output row", row.into(), 2)
        );
    }
}

#[test]
fn a_wrong_sequence_slot_is_named() {
    for slot in [-1, 8] {
        assert_eq!(
            change(InputKind::SequenceSlots, 1, slot),
            named("sample", "sequence slot", slot.into(), SLOTS)
        );
    }
}

#[test]
fn wrong_ends_of_sequences_are_named() {
    // More rows than the bucket holds; an end before its beginning.
    assert_eq!(
        change(InputKind::CuSeqlens, 4, 5),
        named("inputs", "cu_seqlens", 5, 5)
    );
    assert_eq!(change(InputKind::CuSeqlens, 2, -1).1, "cu_seqlens");
    assert_eq!(
        change(InputKind::CuSeqlens, 1, 3),
        named("inputs", "cu_seqlens", 3, 3)
    );
}

#[test]
fn a_carried_failure_is_named_by_the_step_that_wants_a_token() {
    // All tokens masked: the row's code is carried, and the next step that wants a token there says so.
    let mut rig = Rig::new();
    let chunk = Chunk::new(&PROMPT_A, 0, &A, 3);
    fill(&mut rig.prefill.inputs, &[chunk]).unwrap();
    rig.prefill
        .inputs
        .set_i32(InputKind::TokenMask, [0; 10])
        .unwrap();
    let Rig {
        backend, prefill, ..
    } = &mut rig;
    let rows = run_filled(backend, prefill).unwrap();
    assert!(
        rows.iter()
            .all(|row| row.token == glim_plan::sample::TOKEN_NONE_ALLOWED)
    );
    let error = rig.decode(&[Chunk::new(&[-1], 5, &A, 3)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plan toy.decode, token_embd: token -3 lies outside 0..41"
    );
}

#[test]
fn inputs_of_another_plan_are_refused() {
    let mut rig = Rig::new();
    let error = rig
        .backend
        .run(rig.decode.step, &rig.prefill.inputs)
        .unwrap_err();
    assert!(
        matches!(error, BackendError::Input(InputError::OtherLayout { .. })),
        "{error}"
    );
    let error = rig
        .backend
        .run(glim_plan::StepId(99), &rig.prefill.inputs)
        .unwrap_err();
    assert!(
        matches!(error, BackendError::Missing { what: "step", .. }),
        "{error}"
    );
}
