//! Level 4 of the proof: what each rank holds.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::open;
use glim_model::Checkpoint;
use glim_model::proof::{self, Check, Level, Outcome};
use glim_model::shard::{Options, Shards, Slice, TokenEmbd};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::tiny::Tiny;

fn prove(checkpoint: &Checkpoint, world_sizes: &[usize]) -> Vec<Check> {
    let done = AtomicU64::new(0);
    let checks = proof::shards(checkpoint, world_sizes, &|bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
    });
    let total = proof::shards_bytes(checkpoint, world_sizes.len());
    assert_eq!(done.into_inner(), total, "progress adds up");
    checks
}

#[test]
fn sound_models_pass_over_every_number_of_ranks_that_divides_them() {
    let built_in = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let odd = Checkpoint::open(&assets::odd_glm52()).unwrap();
    for (checkpoint, world_sizes) in [(&built_in, [1, 2, 4, 8]), (&odd, [1, 2, 3, 6])] {
        for (check, world_size) in prove(checkpoint, &world_sizes).iter().zip(world_sizes) {
            assert_eq!(
                (check.level, check.outcome),
                (Level::Shards, Outcome::Passed),
                "{check:?}"
            );
            assert_eq!(check.name, format!("tp {world_size}"));
            assert_eq!(check.bytes, proof::shards_bytes(checkpoint, 1));
        }
    }
    let checks = prove(&odd, &[3]);
    assert!(
        checks[0].detail.contains("(the smallest) to ")
            && checks[0]
                .detail
                .contains("; 5 fused tensors cut part by part"),
        "{}",
        checks[0].detail
    );
}

#[test]
fn every_stored_form_passes() {
    let tiny = Tiny::new(7)
        .matrices(GgmlType::Q8_0)
        .ty("attn_k_b.weight", GgmlType::BF16)
        .ty("attn_v_b.weight", GgmlType::BF16)
        .build();
    let quantised_kv_b = Tiny::new(7)
        .build()
        .legacy_kv_b()
        .retype("attn_kv_b.weight", GgmlType::Q8_0);
    let forms = [
        tiny.clone().fuse_gate_up(),
        tiny.clone().legacy_kv_b(),
        tiny.flat_kv_b().tie_output(),
        quantised_kv_b,
    ];
    for file in forms {
        let checks = prove(&open(&file), &[1, 3]);
        assert!(
            checks.iter().all(|check| check.outcome == Outcome::Passed),
            "{checks:?}"
        );
    }
}

#[test]
fn a_number_of_ranks_that_does_not_divide_the_heads_is_skipped_and_others_are_offered() {
    let odd = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let checks = prove(&odd, &[4, 2]);
    assert_eq!(
        (checks[0].outcome, checks[1].outcome),
        (Outcome::Skipped, Outcome::Passed)
    );
    let detail = &checks[0].detail;
    assert!(
        detail.starts_with(
            "this model cannot be cut over 4 ranks; numbers that would do: 1, 2, 3, 6"
        ),
        "{detail}"
    );
}

/// The classic wrong lists, judged beside a file. `shard_faults.rs` has more of them, without one.
#[test]
fn a_wrong_list_is_named() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let check = |name: &str, slices: Vec<Vec<Slice>>| {
        let options = Options {
            token_embd: TokenEmbd::VocabRows,
            ..Options::default()
        };
        let mut list = Shards::of(&checkpoint, 2, &options).unwrap();
        list.set_slices(name, slices).unwrap();
        let check = proof::shard_list(&checkpoint, &list, &|_| ());
        assert_eq!(check.outcome, Outcome::Failed, "{name}");
        let bad = check.first_bad.unwrap();
        assert!(bad.found.contains(name), "{bad}");
        bad.to_string()
    };
    let slice = |ranges: &[std::ops::Range<usize>]| vec![Slice::new(ranges.to_vec())];

    // [128, 480]: a contiguous range of bytes is rows, and columns are to be cut.
    let found = check(
        "blk.0.attn_output.weight",
        vec![slice(&[0..64, 0..480]), slice(&[64..128, 0..480])],
    );
    assert!(
        found.contains("a strided copy, not a contiguous range of bytes"),
        "{found}"
    );
    // Rank order reversed.
    let found = check(
        "output.weight",
        vec![slice(&[2048..4096, 0..128]), slice(&[0..2048, 0..128])],
    );
    assert!(found.contains("begins at 2048"), "{found}");
    // Gate and up concatenated, then cut in the middle: rank 0 has all of gate, rank 1 none of it.
    let found = check(
        "blk.0.ffn_gate.weight",
        vec![slice(&[0..160, 0..128]), vec![]],
    );
    assert!(
        found.contains("but 0..160 of `blk.0.ffn_gate.weight`; expected the same of both"),
        "{found}"
    );
}
