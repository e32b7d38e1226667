//! The input block: pads, capacities, and what a plan does not have.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::toy;
use glim_plan::{
    CacheGeometry, GgmlType, InputError, InputKind, Op, PlanBuilder, Rows, StepInputs, StepKind,
};

/// −1 as a word.
const NONE: u32 = u32::MAX;

fn inputs() -> StepInputs {
    StepInputs::new(&toy::prefill(16, 3))
}

#[test]
fn a_new_block_holds_only_pads() {
    let inputs = inputs();
    let pads = [
        (InputKind::Tokens, 16, 0),
        (InputKind::Positions, 16, 0),
        (InputKind::SlotMapping, 16, NONE),
        (InputKind::CuSeqlens, 4, 0),
        (InputKind::BlockTables, 3 * 9, NONE),
        (InputKind::SequenceSlots, 3, NONE),
        (InputKind::OutputRows, 16, NONE),
        (InputKind::Temperature, 16, 0f32.to_bits()),
        (InputKind::TopK, 16, 0),
        (InputKind::TopP, 16, 1f32.to_bits()),
        (InputKind::MinP, 16, 0),
        (InputKind::Seeds, 16 * 3, 0),
        (InputKind::TokenMask, 16 * 2, u32::MAX),
        (InputKind::ForcedTopk, 16 * 6, NONE),
    ];
    assert_eq!(pads.map(|(kind, ..)| kind), InputKind::ALL);
    for (kind, words, pad) in pads {
        assert_eq!(inputs.get(kind), vec![pad; words], "{}", kind.name());
    }
}

#[test]
fn the_inputs_lie_one_after_the_other() {
    let inputs = inputs();
    let mut end = 0;
    for kind in InputKind::ALL {
        let range = inputs.range(kind).unwrap();
        assert_eq!(range.start, end, "{}", kind.name());
        end = range.end;
    }
    assert_eq!(inputs.words().len(), end);
}

#[test]
fn setting_an_input_pads_its_rest_whatever_lay_there() {
    let mut inputs = inputs();
    inputs.fill(0x7fc0_0000);
    inputs.set_i32(InputKind::SlotMapping, [7, -1, 9]).unwrap();
    assert_eq!(inputs.get(InputKind::SlotMapping)[..4], [7, NONE, 9, NONE]);
    assert_eq!(inputs.get(InputKind::SlotMapping)[4..], [NONE; 12]);
    inputs.set_f32(InputKind::TopP, [0.5]).unwrap();
    assert_eq!(
        inputs.get(InputKind::TopP)[..2],
        [0.5f32.to_bits(), 1f32.to_bits()]
    );
    // Its neighbours are left alone.
    assert_eq!(inputs.get(InputKind::Positions), [0x7fc0_0000; 16]);
    assert_eq!(inputs.get(InputKind::TopK), [0x7fc0_0000; 16]);
}

#[test]
fn absent_sequences_repeat_the_last_end() {
    let mut inputs = inputs();
    inputs.set_i32(InputKind::CuSeqlens, [0, 5]).unwrap();
    assert_eq!(inputs.get(InputKind::CuSeqlens), [0, 5, 5, 5]);
    inputs.set_i32(InputKind::CuSeqlens, [0, 2, 6, 7]).unwrap();
    assert_eq!(inputs.get(InputKind::CuSeqlens), [0, 2, 6, 7]);
    inputs.set_i32(InputKind::CuSeqlens, []).unwrap();
    assert_eq!(inputs.get(InputKind::CuSeqlens), [0; 4]);
}

#[test]
fn too_many_words_are_refused_with_both_numbers() {
    let mut inputs = inputs();
    let error = inputs.set_i32(InputKind::Tokens, 0..20).unwrap_err();
    let expected = InputError::TooLong {
        plan: "toy.prefill".into(),
        kind: InputKind::Tokens,
        found: 20,
        capacity: 16,
    };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "20 words for the input tokens of plan toy.prefill, which holds 16"
    );
    inputs.set_i32(InputKind::Tokens, 0..16).unwrap();
}

#[test]
fn an_input_that_the_plan_lacks_is_refused() {
    let mut b = PlanBuilder::new(
        "tiny",
        StepKind::Decode { rows: 1 },
        CacheGeometry {
            block_size: 1,
            max_blocks: 1,
        },
    );
    let tokens = b.input(InputKind::Tokens);
    let table = b.weight("table", GgmlType::F32, &[3, 2]);
    let out = b.result("out", GgmlType::F32, &[1, 2], Rows::Tokens);
    b.op(
        "embed",
        Op::Embed {
            tokens,
            carry: None,
            table,
            out,
        },
    );
    let mut inputs = StepInputs::new(&b.finish());

    assert!(inputs.has(InputKind::Tokens) && !inputs.has(InputKind::TopK));
    assert_eq!(
        (inputs.range(InputKind::TopK), inputs.get(InputKind::TopK)),
        (None, &[][..])
    );
    let error = inputs.set_i32(InputKind::TopK, [1]).unwrap_err();
    assert_eq!(
        error,
        InputError::Absent {
            plan: "tiny".into(),
            kind: InputKind::TopK
        }
    );
    assert_eq!(error.to_string(), "plan tiny has no input top_k");
}

#[test]
fn a_block_takes_over_only_a_block_of_the_same_layout() {
    let mut given = inputs();
    given.set_i32(InputKind::Tokens, [3, 1, 4]).unwrap();
    let mut own = inputs();
    own.copy_from(&given).unwrap();
    assert_eq!(own, given);

    let error = own
        .copy_from(&StepInputs::new(&toy::decode(4)))
        .unwrap_err();
    assert_eq!(
        error,
        InputError::OtherLayout {
            plan: "toy.prefill".into(),
            found: "toy.decode".into()
        }
    );
    assert_eq!(own, given);
}
