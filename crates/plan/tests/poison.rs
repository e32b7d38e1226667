//! `--poison`: outputs and state hold NaN before they are written, so an operation that does not do its work is named.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::drive::{Chunk, Rig, Row};
use common::toy;
use glim_plan::fuse::ADD_RMS_NORM;
use glim_plan::reference::ReferenceOptions;
use glim_plan::{BackendError, Op, Plan, fuse};

fn prefill_plan() -> Plan {
    toy::prefill(16, 3)
}

/// Prefills seven tokens and decodes two.
fn play(poison: bool, skip: Option<&str>, prefill: Plan) -> Result<Vec<Row>, BackendError> {
    let options = ReferenceOptions {
        poison,
        skip: skip.map(Into::into),
        ..ReferenceOptions::default()
    };
    let mut rig = Rig::with(options, toy::decode(4), prefill);
    let mut rows = rig.prefill(&[Chunk::new(&[5, 3, 40, 22, 9, 1, 17], 0, &[6, 2, 4], 1)])?;
    rows.extend(rig.decode(&[Chunk::new(&[-1], 7, &[6, 2, 4], 1)])?);
    rows.extend(rig.decode(&[Chunk::new(&[-1], 8, &[6, 2, 4], 1)])?);
    Ok(rows)
}

/// The operation that is named, and the buffer.
fn named(result: Result<Vec<Row>, BackendError>) -> (String, String) {
    match result {
        Err(BackendError::Poison {
            op,
            buffer,
            row: 0,
            element: 0,
            plan,
        }) => {
            assert_eq!(plan, "toy.prefill");
            (op, buffer)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sound_plan_runs_clean_and_gives_the_same() {
    assert_eq!(
        play(true, None, prefill_plan()).unwrap(),
        play(false, None, prefill_plan()).unwrap()
    );
}

#[test]
fn every_skipped_operation_is_named() {
    let plan = prefill_plan();
    let mut skipped = 0;
    for node in &plan.ops {
        let access = node.op.access();
        let expected = match (&access.writes[..], &access.appends[..]) {
            ([first, ..], _) => (node.label.clone(), plan.buffer(*first).name.clone()),
            // The rows are still NaN: the first to read them is named.
            ([], [state]) => match plan.buffer(*state).name.as_str() {
                "blk.0.index_key" => ("blk.0.index_score".into(), "blk.0.index_scores".into()),
                "blk.0.latent" => ("blk.0.attend".into(), "blk.0.context".into()),
                "blk.1.latent" => ("blk.1.attend".into(), "blk.1.context".into()),
                other => panic!("{other}"),
            },
            _ => continue,
        };
        assert_eq!(
            named(play(true, Some(&node.label), plan.clone())),
            expected,
            "without {}",
            node.label
        );
        skipped += 1;
    }
    let ropes = plan
        .ops
        .iter()
        .filter(|node| matches!(node.op, Op::Rope { .. }))
        .count();
    assert_eq!((skipped, ropes), (plan.ops.len() - 6, 6));
}

#[test]
fn a_skipped_fused_operation_is_named() {
    let mut plan = prefill_plan();
    fuse(&mut plan, &[ADD_RMS_NORM]);
    let label = "blk.0.attn_residual + blk.0.ffn_norm";
    assert_eq!(
        named(play(true, Some(label), plan)),
        (label.into(), "blk.0.attn_residual".into())
    );
}

/// Why poison exists: the arena holds other buffers' numbers, which look like a result.
#[test]
fn without_poison_a_skipped_operation_goes_unnoticed() {
    let sound = play(false, None, prefill_plan()).unwrap();
    for label in [
        "blk.0.latent_append",
        "blk.0.index_append",
        "blk.1.ffn_norm",
        "blk.1.ffn_sum",
    ] {
        let rows = play(false, Some(label), prefill_plan()).unwrap();
        assert_ne!(rows, sound, "without {label}");
    }
}

/// What poison cannot see: the operand of an update in place was sound before it.
#[test]
fn a_skipped_update_in_place_is_beyond_poison() {
    let rows = play(true, Some("blk.0.index_q_rope"), prefill_plan()).unwrap();
    assert_eq!(rows.len(), 9);
}

/// State of an earlier step is not poisoned again: only the missing rows are.
#[test]
fn rows_that_a_step_failed_to_append_are_found_by_the_step_that_reads_them() {
    let options = ReferenceOptions {
        poison: true,
        ..ReferenceOptions::default()
    };
    let mut rig = Rig::with(options, toy::decode(4), prefill_plan());
    rig.prefill(&[Chunk::new(&[5, 3], 0, &[6, 2, 4], 1)])
        .unwrap();
    // Position 2 is left out.
    let error = rig
        .decode(&[Chunk::new(&[7], 3, &[6, 2, 4], 1)])
        .unwrap_err();
    let expected = "plan toy.decode: blk.0.index_score left poison in blk.0.index_scores at row 0, element 2: \
                    it was never written, or is NaN";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_nan_that_is_computed_is_named_where_it_arises() {
    use common::weights::Weights;
    use glim_plan::{Backend, StepInputs, weight_groups};

    let plan = toy::decode(1);
    let mut weights = Weights::seeded(&[&plan], 1);
    let mut values = weights.values("blk.1.ffn_shexp_up.weight").to_vec();
    values[5 * toy::HIDDEN + 2] = f32::NAN;
    weights.insert(
        "blk.1.ffn_shexp_up.weight",
        &[toy::SHARED_INNER, toy::HIDDEN],
        values,
    );
    let options = ReferenceOptions {
        poison: true,
        ..ReferenceOptions::default()
    };
    let mut backend = glim_plan::reference::ReferenceBackend::new(options);
    backend
        .load(
            &weight_groups(std::slice::from_ref(&plan)).unwrap(),
            &weights,
        )
        .unwrap();
    backend
        .alloc_state(&plan.states(), toy::GEOMETRY.block_size, 2, toy::SLOTS)
        .unwrap();
    let step = backend.prepare(&plan).unwrap();
    let mut inputs = StepInputs::new(&plan);
    common::drive::fill(&mut inputs, &[Chunk::new(&[4], 0, &[1], 0)]).unwrap();
    match backend.run(step, &inputs) {
        Err(BackendError::Poison {
            op,
            buffer,
            row: 0,
            element: 5,
            ..
        }) => {
            assert_eq!(
                (op.as_str(), buffer.as_str()),
                ("blk.1.ffn_shexp_gate_up", "blk.1.ffn_shexp_up")
            );
        }
        other => panic!("{other:?}"),
    }
}
