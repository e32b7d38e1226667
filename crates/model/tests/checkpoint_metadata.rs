//! Keys in every type that writers use, defaults for those that may be absent, and names for those that may not.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{open, refusal};
use glim_gguf::Value;
use glim_model::Config;
use glim_model::config::{IndexerKind, Scoring};
use glim_testkit::tiny::{Tiny, TinyFile};

fn plain() -> TinyFile {
    Tiny::new(21).build()
}

fn config(file: &TinyFile) -> Config {
    open(file).config().clone()
}

#[test]
fn integers_of_every_type_are_read() {
    let expected = config(&plain());
    assert_eq!(expected.n_heads, 3);
    for three in [
        Value::U8(3),
        Value::I8(3),
        Value::U16(3),
        Value::I16(3),
        Value::I32(3),
        Value::U64(3),
        Value::I64(3),
    ] {
        assert_eq!(
            config(&plain().set("attention.head_count", three)),
            expected
        );
    }
}

#[test]
fn scalars_may_be_one_for_each_layer() {
    let expected = config(&plain());
    let file = plain()
        .set("attention.head_count", vec![3u32; 4])
        .set("attention.head_count_kv", vec![1i32; 5])
        .set("expert_count", vec![0u32, 7, 7, 7, 7])
        // Dense layers only, and sparse layers only: the other entries say nothing.
        .set("feed_forward_length", vec![160u32, 0, 0, 0])
        .set("expert_feed_forward_length", vec![0u64, 288, 288, 288, 288]);
    assert_eq!(config(&file), expected);
}

#[test]
fn a_mix_that_cannot_run_is_named() {
    assert_eq!(
        refusal(&plain().set("expert_feed_forward_length", vec![0u32, 288, 288, 144])),
        "tiny.gguf: key `glm-dsa.expert_feed_forward_length` is 288 in layer 1 and 144 in layer 3; \
         expected one value for all these layers"
    );
    assert_eq!(
        refusal(&plain().set("attention.head_count", vec![3u32, 3])),
        "tiny.gguf: key `glm-dsa.attention.head_count` is an array of 2 values; expected one value, or one for each of 4 layers"
    );
}

#[test]
fn absent_keys_have_the_family_defaults() {
    let file = plain()
        .unset("expert_weights_scale")
        .unset("expert_weights_norm")
        .unset("expert_gating_func")
        .unset("expert_group_count")
        .unset("expert_group_used_count")
        .unset("vocab_size");
    let moe = config(&file).moe;
    assert_eq!(
        (moe.routed_scaling_factor, moe.norm_topk_prob, moe.scoring),
        (1.0, false, Scoring::Sigmoid)
    );
    assert_eq!((moe.n_group, moe.topk_group), (1, 1));
    assert_eq!(config(&file).vocab_size, 259);
    assert_eq!(config(&file).indexer.norm_eps, 1e-6);
    assert_eq!(
        config(&file.set("attention.layer_norm_epsilon", 1e-5f32))
            .indexer
            .norm_eps,
        1e-5
    );
    // Absent and 0 both mean "no scale".
    assert_eq!(
        config(&plain().set("expert_weights_scale", 0f32))
            .moe
            .routed_scaling_factor,
        1.0
    );
}

#[test]
fn present_keys_win_over_defaults() {
    let moe = config(&plain()).moe;
    assert_eq!((moe.routed_scaling_factor, moe.norm_topk_prob), (2.5, true));
    let softmax = plain().set("expert_gating_func", 1u32);
    // A softmax router has no selection bias.
    let softmax = (1..=4).fold(softmax, |file, layer| {
        file.drop_tensor(&format!("blk.{layer}.exp_probs_b.bias"))
    });
    assert_eq!(config(&softmax).moe.scoring, Scoring::Softmax);
}

#[test]
fn without_mla_keys_key_length_is_the_true_width_if_heads_agree() {
    let legacy = plain()
        .legacy_kv_b()
        .unset("attention.key_length_mla")
        .unset("attention.value_length_mla")
        .set("attention.head_count_kv", 3u32)
        .set("attention.key_length", 42u32)
        .set("attention.value_length", 224u32);
    assert_eq!(config(&legacy), config(&plain()));
    assert_eq!(
        refusal(&legacy.set("attention.head_count_kv", 1u32)),
        "tiny.gguf: key `glm-dsa.attention.key_length_mla` is missing; \
         expected the width of a query/key head, as head_count_kv is 1, not 3"
    );
}

#[test]
fn indexer_types_may_be_integers_and_cover_the_mtp_block() {
    use IndexerKind::{Full, Shared};
    for types in [
        Value::from(vec![1i32, 1, 0, 1]),
        vec![true, true, false, true, true].into(),
    ] {
        let kinds = config(&plain().set("attention.indexer.types", types))
            .indexer
            .kinds;
        assert_eq!(kinds, [Full, Full, Shared, Full]);
    }
    assert_eq!(
        refusal(&plain().set("attention.indexer.types", vec![true, true])),
        "tiny.gguf: key `glm-dsa.attention.indexer.types` is an array of 2 values; expected one for each of 4 layers"
    );
    assert_eq!(
        refusal(&plain().set("attention.indexer.types", vec![false, true, true, true])),
        "tiny.gguf: key `glm-dsa.attention.indexer.types` is `shared` for layer 0; \
         expected `full`: no earlier layer chooses positions"
    );
}

#[test]
fn another_architecture_is_named_with_what_is_supported() {
    assert_eq!(
        refusal(&plain().set_whole("general.architecture", "deepseek2")),
        "tiny.gguf: general.architecture is `deepseek2`, which is not supported; supported: `glm-dsa` (GLM-5, 5.1, 5.2)"
    );
}

#[test]
fn each_required_key_is_named_when_missing() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "leading_dense_block_count",
        "attention.head_count",
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "expert_count",
        "expert_used_count",
        "expert_shared_count",
        "expert_feed_forward_length",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
    ] {
        let message = refusal(&plain().unset(key));
        let expected = format!("tiny.gguf: key `glm-dsa.{key}` is missing; expected ");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn values_that_cannot_be_right_are_named() {
    #[track_caller]
    fn check(key: &str, value: impl Into<Value>, expected: &str) {
        let message = refusal(&plain().set(key, value));
        assert_eq!(
            message,
            format!("tiny.gguf: key `glm-dsa.{key}` is {expected}")
        );
    }
    check(
        "block_count",
        4098u32,
        "4098; expected at most 4096 layers and MTP blocks",
    );
    check(
        "block_count",
        u64::MAX,
        "18446744073709551615; expected at most 4096 layers and MTP blocks",
    );
    check(
        "nextn_predict_layers",
        9u32,
        "9; expected fewer than the 5 blocks of `block_count`",
    );
    check("embedding_length", 0u32, "0; expected 1 to 1048576");
    check(
        "attention.head_count",
        1u32 << 30,
        "1073741824; expected 1 to 4096",
    );
    check(
        "rope.dimension_count",
        9u32,
        "9; expected an even number: elements are rotated in pairs",
    );
    check(
        "rope.dimension_count",
        64u32,
        "64; expected less than the head width of 42",
    );
    check(
        "rope.dimension_count",
        42u32,
        "42; expected less than the head width of 42",
    );
    check(
        "attention.key_length_mla",
        1u32 << 20,
        "1048576; expected at most 16384",
    );
    check(
        "rope.freq_base",
        f32::NAN,
        "NaN; expected a finite number above 0",
    );
    check(
        "attention.layer_norm_rms_epsilon",
        0f32,
        "0; expected a finite number above 0",
    );
    check("leading_dense_block_count", 5u32, "5; expected 0 to 4");
    check("expert_used_count", 8u32, "8; expected 1 to 7");
    check(
        "expert_group_count",
        2u32,
        "2; expected a divisor of the 7 experts",
    );
    check(
        "expert_group_count",
        7u32,
        "7; expected at least two of the 7 experts in a group",
    );
    check("expert_group_used_count", 2u32, "2; expected 1 to 1");
    check(
        "expert_gating_func",
        3u32,
        "3; expected 1 (softmax) or 2 (sigmoid)",
    );
    check(
        "expert_weights_scale",
        -1f32,
        "-1; expected a finite number above 0",
    );
    check(
        "attention.indexer.key_length",
        8u32,
        "8; expected 10 to 16384",
    );
    check(
        "attention.indexer.top_k",
        0u32,
        "0; expected 1 to 2147483648",
    );
}

#[test]
fn a_wrong_type_is_named() {
    let message = refusal(&plain().set("expert_count", "seven"));
    assert!(
        message.starts_with("tiny.gguf: key `glm-dsa.expert_count` is "),
        "{message}"
    );
    let message = refusal(&plain().set("embedding_length", -96i32));
    assert!(
        message.starts_with("tiny.gguf: key `glm-dsa.embedding_length` is "),
        "{message}"
    );
}

#[test]
fn scaled_rope_is_refused() {
    assert_eq!(
        refusal(
            &plain()
                .set("rope.scaling.type", "yarn")
                .set("rope.scaling.factor", 4f32)
        ),
        "tiny.gguf: glm-dsa.rope.scaling.type is `yarn`, which is not supported; supported: `none`, or no such key"
    );
    open(&plain().set("rope.scaling.type", "none"));
}
