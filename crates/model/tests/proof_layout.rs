//! Level 2 of the proof: layouts at a model's own sizes. What it can fail on, a wrong loader, is tried beside the code.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::open;
use glim_model::Checkpoint;
use glim_model::proof::{self, Check, Level, Outcome};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::faults::GgufFile;
use glim_testkit::tiny::Tiny;

fn prove(checkpoint: &Checkpoint) -> Vec<Check> {
    let done = AtomicU64::new(0);
    let checks = proof::layout(checkpoint, &|bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
    });
    assert_eq!(
        done.into_inner(),
        proof::layout_bytes(checkpoint),
        "progress adds up"
    );
    let names: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names, ["kv_b formula", "kv_b round trip", "stored forms"]);
    for check in &checks {
        assert_eq!(
            (check.level, check.outcome),
            (Level::Layout, Outcome::Passed),
            "{check:?}"
        );
    }
    checks
}

#[test]
fn sound_models_pass_at_their_own_sizes() {
    let odd = prove(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    assert_eq!(
        odd[0].covered,
        "6 heads of 96 + 80 rows of 256, every element"
    );
    assert_eq!(odd[1].covered, "5 layers, every element");
    // Both halves of five kv_b, three matrices of experts in three layers.
    assert!(
        odd[2]
            .detail
            .starts_with("19 are taken out of fused tensors or put together"),
        "{:?}",
        odd[2]
    );
    let built_in = prove(&Checkpoint::open(&assets::tiny_glm5()).unwrap());
    assert_eq!(built_in[2].detail, "all are stored as they are used");
}

#[test]
fn every_stored_form_passes() {
    let plain = Tiny::new(7).build();
    for file in [
        plain.clone().fuse_gate_up(),
        plain.clone().legacy_kv_b(),
        plain
            .clone()
            .legacy_kv_b()
            .retype("attn_kv_b.weight", GgmlType::Q8_0),
        plain.flat_kv_b().tie_output(),
    ] {
        prove(&open(&file));
    }
}

/// Said in the documentation, and so: a file whose keys were stored untransposed has nothing that shows it by itself.
#[test]
fn keys_that_were_stored_untransposed_pass_here() {
    let file = GgufFile::of(&Tiny::new(7).build().gguf())
        .untransposed_k_b(1)
        .swapped_kv(2);
    prove(&Checkpoint::from_gguf(file.gguf()).unwrap());
}
