//! Every rule of the checker, each shown with a plan that breaks it: what is rejected here can never reach a backend.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::edit::{at, id, op};
use common::toy::{self, HIDDEN, VOCAB};
use glim_plan::fuse::ADD_RMS_NORM;
use glim_plan::{
    BufferDecl, BufferId, BufferKind, CheckError, Cols, GgmlType, Op, Placement, Plan, StateKind,
    check, check_states, fuse,
};

const F32: GgmlType = GgmlType::F32;

fn plan() -> Plan {
    toy::prefill(16, 3)
}

fn fused() -> Plan {
    let mut plan = plan();
    fuse(&mut plan, &[ADD_RMS_NORM]);
    plan
}

/// Declares a buffer like another one.
fn clone_buffer(plan: &mut Plan, like: &str, name: &str) -> BufferId {
    let decl = BufferDecl {
        name: name.into(),
        ..plan.buffer(id(plan, like)).clone()
    };
    plan.buffers.push(decl);
    BufferId(plan.buffers.len() as u32 - 1)
}

#[test]
fn a_sound_plan_passes_fused_and_unfused() {
    for plan in [toy::decode(1), toy::decode(4), plan(), fused()] {
        assert_eq!(check(&plan), Ok(()));
        assert_eq!(check_states(&plan, &plan.states()), Ok(()));
    }
    assert!(
        fused()
            .ops
            .iter()
            .any(|node| matches!(node.op, Op::Fused { .. }))
    );
}

#[test]
fn a_read_before_the_write_is_rejected() {
    let mut plan = plan();
    let (first, second) = (at(&plan, "blk.0.ffn_act"), at(&plan, "blk.0.ffn_gate_up"));
    plan.ops.swap(first, second);
    let error = check(&plan).unwrap_err();
    assert_eq!(
        error,
        CheckError::ReadBeforeWrite {
            plan: "toy.prefill".into(),
            op: "blk.0.ffn_act".into(),
            buffer: "blk.0.ffn_gate".into()
        }
    );
    assert_eq!(
        error.to_string(),
        "plan toy.prefill: blk.0.ffn_act reads blk.0.ffn_gate before anything has written it"
    );
}

#[test]
fn an_update_in_place_of_an_unwritten_buffer_is_rejected() {
    let mut plan = plan();
    let (rope, product) = (at(&plan, "blk.0.attn_q_rope"), at(&plan, "blk.0.attn_q_b"));
    plan.ops.swap(rope, product);
    let error = check(&plan).unwrap_err();
    assert!(
        matches!(&error, CheckError::ReadBeforeWrite { op, .. } if op == "blk.0.attn_q_rope"),
        "{error}"
    );
}

#[test]
fn paged_state_read_before_its_append_is_rejected() {
    for (append, reader, state) in [
        ("blk.0.index_append", "blk.0.index_score", "blk.0.index_key"),
        ("blk.1.latent_append", "blk.1.attend", "blk.1.latent"),
    ] {
        let mut plan = plan();
        let node = plan.ops.remove(at(&plan, append));
        let after = at(&plan, reader) + 1;
        plan.ops.insert(after, node);
        let error = check(&plan).unwrap_err();
        let expected = CheckError::ReadBeforeWrite {
            plan: plan.name.clone(),
            op: reader.into(),
            buffer: state.into(),
        };
        assert_eq!(error, expected);
    }
}

/// The fault that this project is named against: the residual skips the experts, whose sum stays behind in its buffer.
#[test]
fn a_phantom_output_is_rejected() {
    let mut plan = plan();
    let (x, y) = (
        id(&plan, "blk.1.attn_residual"),
        id(&plan, "blk.1.ffn_shexp_down"),
    );
    match op(&mut plan, "blk.1.ffn_residual") {
        Op::Add { a, b, .. } => (*a, *b) = (x, y),
        other => panic!("{other:?}"),
    }
    let error = check(&plan).unwrap_err();
    let expected = CheckError::PhantomOutput {
        plan: "toy.prefill".into(),
        op: "blk.1.ffn_sum".into(),
        buffer: "blk.1.ffn_sum".into(),
    };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "plan toy.prefill: blk.1.ffn_sum writes blk.1.ffn_sum, and nothing reads it: a phantom output"
    );
}

/// One of several results is enough.
#[test]
fn one_unread_result_of_several_is_a_phantom_output() {
    let mut plan = plan();
    let gate = id(&plan, "blk.0.ffn_gate");
    match op(&mut plan, "blk.0.ffn_act") {
        Op::SwiGlu { up, .. } => *up = gate,
        other => panic!("{other:?}"),
    }
    let error = check(&plan).unwrap_err();
    assert!(
        matches!(&error, CheckError::PhantomOutput { buffer, .. } if buffer == "blk.0.ffn_up"),
        "{error}"
    );
}

/// A rotation after the last reader: the buffer was read once, but not as it is now.
#[test]
fn an_update_in_place_that_nobody_reads_is_a_phantom_output() {
    let mut plan = plan();
    let node = plan.ops.remove(at(&plan, "blk.0.attn_q_rope"));
    let after = at(&plan, "blk.0.attend") + 1;
    plan.ops.insert(after, node);
    let expected = CheckError::PhantomOutput {
        plan: "toy.prefill".into(),
        op: "blk.0.attn_q_rope".into(),
        buffer: "blk.0.attn_q_b".into(),
    };
    assert_eq!(check(&plan).unwrap_err(), expected);
}

/// A tap makes a temporary a root: then nobody has to read it.
#[test]
fn a_tapped_buffer_need_not_be_read() {
    let mut plan = plan();
    let gate = id(&plan, "blk.0.ffn_gate");
    match op(&mut plan, "blk.0.ffn_act") {
        Op::SwiGlu { up, .. } => *up = gate,
        other => panic!("{other:?}"),
    }
    plan.tap("blk.0.ffn_up").unwrap();
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn an_output_that_is_also_an_input_is_rejected() {
    let mut plan = plan();
    let embd = id(&plan, "embd");
    match op(&mut plan, "blk.0.attn_residual") {
        Op::Add { out, .. } => *out = embd,
        other => panic!("{other:?}"),
    }
    let expected = CheckError::Aliasing {
        plan: "toy.prefill".into(),
        op: "blk.0.attn_residual".into(),
        buffer: "embd".into(),
        first: "an output",
        second: "an input",
    };
    assert_eq!(check(&plan).unwrap_err(), expected);
}

#[test]
fn one_buffer_for_two_outputs_is_rejected() {
    let mut plan = plan();
    let gate = id(&plan, "blk.0.ffn_gate");
    match op(&mut plan, "blk.0.ffn_gate_up") {
        Op::Linear { outs, .. } => outs[1] = gate,
        other => panic!("{other:?}"),
    }
    let expected = CheckError::Aliasing {
        plan: "toy.prefill".into(),
        op: "blk.0.ffn_gate_up".into(),
        buffer: "blk.0.ffn_gate".into(),
        first: "an output",
        second: "an output",
    };
    assert_eq!(check(&plan).unwrap_err(), expected);
}

#[test]
fn state_that_is_appended_and_read_by_one_operation_is_rejected() {
    let mut plan = plan();
    let latent = id(&plan, "blk.0.latent");
    match op(&mut plan, "blk.0.latent_append") {
        Op::CacheAppend { parts, .. } => {
            parts[0] = Cols {
                buffer: latent,
                start: 0,
                len: 1,
            }
        }
        other => panic!("{other:?}"),
    }
    let error = check(&plan).unwrap_err();
    assert!(
        matches!(
            &error,
            CheckError::Aliasing {
                first: "an append",
                second: "an input",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn an_overwritten_buffer_is_rejected() {
    let mut plan = plan();
    let first = id(&plan, "blk.0.attn_norm");
    match op(&mut plan, "blk.0.ffn_norm") {
        Op::RmsNorm { out, .. } => *out = first,
        other => panic!("{other:?}"),
    }
    let expected = CheckError::Overwrite {
        plan: "toy.prefill".into(),
        op: "blk.0.ffn_norm".into(),
        buffer: "blk.0.attn_norm".into(),
        earlier: "blk.0.attn_norm".into(),
    };
    assert_eq!(check(&plan).unwrap_err(), expected);
}

#[test]
fn weights_inputs_states_and_carries_cannot_be_outputs() {
    for kind in [
        BufferKind::Weight,
        BufferKind::Input(glim_plan::InputKind::Temperature),
        BufferKind::State(StateKind::Slot {
            bytes_per_sequence: 4,
        }),
        BufferKind::Carry,
    ] {
        let mut plan = plan();
        let out = id(&plan, "blk.0.attn_residual");
        plan.buffers[out.index()].kind = kind;
        let error = check(&plan).unwrap_err();
        let named = matches!(&error, CheckError::Immutable { op, buffer, .. }
            if op == "blk.0.attn_residual" && buffer == "blk.0.attn_residual");
        assert!(named, "{kind:?}: {error}");
    }
}

#[test]
fn a_weight_or_an_input_cannot_be_updated_in_place() {
    let mut plan = plan();
    let q = id(&plan, "blk.0.attn_q_b");
    plan.buffers[q.index()].kind = BufferKind::Weight;
    let error = check(&plan).unwrap_err();
    assert!(
        matches!(&error, CheckError::Immutable { op, .. } if op == "blk.0.attn_q_b"),
        "{error}"
    );

    // A weight that only the rotation writes.
    let mut plan = toy::decode(2);
    let extra = clone_buffer(&mut plan, "blk.0.attn_q_b", "rotated");
    plan.buffers[extra.index()].kind = BufferKind::Weight;
    match op(&mut plan, "blk.0.attn_q_rope") {
        Op::Rope { x, .. } => *x = extra,
        other => panic!("{other:?}"),
    }
    let error = check(&plan).unwrap_err();
    assert!(
        matches!(&error, CheckError::Immutable { op, .. } if op == "blk.0.attn_q_rope"),
        "{error}"
    );
}

#[test]
fn only_state_can_be_appended() {
    let mut plan = plan();
    let state = id(&plan, "blk.0.latent");
    plan.buffers[state.index()].kind = BufferKind::Temp;
    assert!(
        matches!(check(&plan), Err(CheckError::Shape { op, .. }) if op == "blk.0.latent_append")
    );
}

#[test]
fn a_row_that_is_no_whole_number_of_blocks_is_rejected() {
    let mut plan = plan();
    let w = id(&plan, "blk.0.ffn_down.weight");
    plan.buffers[w.index()].dtype = GgmlType::Q8_0;
    let expected = CheckError::Block {
        plan: "toy.prefill".into(),
        buffer: "blk.0.ffn_down.weight".into(),
        shape: vec![HIDDEN, toy::DENSE],
        dtype: GgmlType::Q8_0.to_string(),
        block: 32,
    };
    assert_eq!(check(&plan).unwrap_err(), expected);

    plan.buffers[w.index()].dtype = F32;
    plan.buffers[w.index()].shape = vec![HIDDEN, 0];
    assert!(matches!(check(&plan), Err(CheckError::Block { .. })));
}

#[test]
fn a_state_that_is_not_appended_is_rejected() {
    // Declared, but no operation touches it.
    let mut plan = plan();
    clone_buffer(&mut plan, "blk.0.latent", "blk.2.latent");
    let expected = CheckError::StateNotAppended {
        plan: "toy.prefill".into(),
        state: "blk.2.latent".into(),
    };
    assert_eq!(check(&plan).unwrap_err(), expected);

    // Owned by the model, unknown to the plan.
    let plan = toy::decode(4);
    let mut model = plan.states();
    model.push(glim_plan::StateDecl {
        name: "blk.2.latent".into(),
        ..model[0].clone()
    });
    let expected = CheckError::StateNotAppended {
        plan: "toy.decode".into(),
        state: "blk.2.latent".into(),
    };
    assert_eq!(check_states(&plan, &model).unwrap_err(), expected);
}

#[test]
fn a_state_that_differs_from_the_models_is_rejected() {
    let plan = plan();
    let model = plan.states();
    for (change, what) in [(true, "shape"), (false, "kind")] {
        let mut model = model.clone();
        if change {
            model[1].shape = vec![14];
        } else {
            model[1].kind = StateKind::Slot {
                bytes_per_sequence: 52,
            };
        }
        let error = check_states(&plan, &model).unwrap_err();
        let named =
            matches!(&error, CheckError::StateDiffers { state, .. } if *state == model[1].name);
        assert!(named, "{what}: {error}");
    }
}

#[test]
fn check_states_checks_the_plan_as_well() {
    let mut plan = plan();
    let states = plan.states();
    plan.ops.pop();
    assert!(matches!(
        check_states(&plan, &states),
        Err(CheckError::MissingResult { .. })
    ));
}

#[test]
fn a_result_that_nothing_writes_is_rejected() {
    let mut plan = plan();
    plan.ops.pop();
    let expected = CheckError::MissingResult {
        plan: "toy.prefill".into(),
        buffer: "token".into(),
    };
    assert_eq!(check(&plan).unwrap_err(), expected);
}

#[test]
fn one_weight_may_be_read_twice_and_one_buffer_added_to_itself() {
    let mut plan = plan();
    match op(&mut plan, "blk.1.ffn_sum") {
        Op::Add { a, b, .. } => *b = *a,
        other => panic!("{other:?}"),
    }
    let shared = id(&plan, "blk.1.ffn_shexp_down");
    plan.buffers[shared.index()].kind = BufferKind::Result;
    assert_eq!(check(&plan), Ok(()));
}

/// Replication or sharding is for the loader; it does not change what an operation sees.
#[test]
fn placement_does_not_matter_to_the_check() {
    let mut plan = plan();
    let head = id(&plan, "output.weight");
    plan.buffers[head.index()].placement = Placement::Sharded { axis: 0 };
    assert_eq!(plan.buffer(head).shape, [VOCAB, HIDDEN]);
    assert_eq!(check(&plan), Ok(()));
}

/// Positions have the shape of slots; a cache that is appended by position would overwrite other sequences' rows.
#[test]
fn an_input_of_another_kind_is_rejected() {
    let mut plan = plan();
    let positions = id(&plan, "positions");
    match op(&mut plan, "blk.0.latent_append") {
        Op::CacheAppend { slots, .. } => *slots = positions,
        other => panic!("{other:?}"),
    }
    let message = check(&plan).unwrap_err().to_string();
    assert!(
        message.contains("expected the input slot_mapping"),
        "{message}"
    );
}
