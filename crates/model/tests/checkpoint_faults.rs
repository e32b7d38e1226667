//! Every fault of a GGUF's tensors is named: file, tensor, what was found and what was expected.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{check_refusal, open, refusal};
use glim_model::Checkpoint;
use glim_quant::GgmlType;
use glim_testkit::tiny::{Tiny, TinyFile};

fn plain() -> TinyFile {
    Tiny::new(11).build()
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    assert_eq!(
        refusal(&plain().drop_tensor("blk.2.attn_q_b.weight")),
        "tiny.gguf: tensor `blk.2.attn_q_b.weight` is missing; expected shape [126, 64] (ggml {64, 126})"
    );
}

#[test]
fn a_missing_tensor_is_named_with_what_would_do_in_its_place() {
    assert_eq!(
        refusal(&plain().drop_tensor("blk.0.attn_k_b.weight")),
        "tiny.gguf: tensor `blk.0.attn_k_b.weight` is missing; expected shape [3, 128, 32] (ggml {32, 128, 3}), \
         or `blk.0.attn_kv_b.weight` in its place"
    );
}

#[test]
fn a_surplus_tensor_is_named() {
    assert_eq!(
        refusal(&plain().add_tensor("blk.1.attn_gate.weight", &[96, 96])),
        "tiny.gguf: tensor `blk.1.attn_gate.weight` is not one of this model's"
    );
    assert_eq!(
        refusal(&plain().add_tensor("blk.1.ffn_up_exps.scale", &[7])),
        "tiny.gguf: tensor `blk.1.ffn_up_exps.scale` is not one of this model's: separate scales are not supported yet"
    );
}

#[test]
fn a_misspelt_tensor_is_recognised() {
    assert_eq!(
        refusal(&plain().rename("blk.1.ffn_norm.weight", "blk.1.ffn_nrom.weight")),
        "tiny.gguf: tensor `blk.1.ffn_norm.weight` is missing; expected shape [96] (ggml {96}); \
         tensor `blk.1.ffn_nrom.weight` is not one of this model's; did you mean `blk.1.ffn_norm.weight`?"
    );
}

#[test]
fn a_mis_shaped_tensor_is_named_in_both_conventions() {
    assert_eq!(
        refusal(&plain().reshape("blk.0.ffn_gate.weight", &[96, 160])),
        "tiny.gguf: tensor `blk.0.ffn_gate.weight` has shape [96, 160] (ggml {160, 96}); \
         expected [160, 96] (ggml {96, 160})"
    );
}

#[test]
fn keys_stored_untransposed_are_mis_shaped() {
    assert_eq!(
        refusal(&plain().reshape("blk.3.attn_k_b.weight", &[3, 32, 128])),
        "tiny.gguf: tensor `blk.3.attn_k_b.weight` has shape [3, 32, 128] (ggml {128, 32, 3}); \
         expected [3, 128, 32] (ggml {32, 128, 3}) or [384, 32] (ggml {32, 384})"
    );
}

#[test]
fn a_fused_matrix_of_the_wrong_height_is_named() {
    let file = plain()
        .fuse_gate_up()
        .reshape("blk.1.ffn_gate_up_exps.weight", &[14, 288, 96]);
    let message = refusal(&file);
    assert!(
        message.starts_with(
            "tiny.gguf: tensor `blk.1.ffn_gate_up_exps.weight` has shape [14, 288, 96] (ggml {96, 288, 14}); \
             expected [7, 576, 96] (ggml {96, 576, 7})"
        ),
        "{message}"
    );
}

#[test]
fn a_quantised_vector_or_router_is_refused() {
    for (name, ty) in [
        ("blk.1.ffn_gate_inp.weight", "Q8_0"),
        ("blk.0.attn_norm.weight", "Q8_0"),
    ] {
        assert_eq!(
            refusal(&plain().retype(name, GgmlType::Q8_0)),
            format!("tiny.gguf: tensor `{name}` has type {ty}; expected F32, F16 or BF16")
        );
    }
}

#[test]
fn part_of_an_mtp_block_is_not_a_stripped_one() {
    assert_eq!(
        refusal(&plain().drop_tensor("blk.4.nextn.eh_proj.weight")),
        "tiny.gguf: tensor `blk.4.nextn.eh_proj.weight` is missing; expected shape [96, 192] (ggml {192, 96})"
    );
    let message = refusal(
        &plain()
            .strip_mtp()
            .add_tensor("blk.4.nextn.hnorm.weight", &[96]),
    );
    assert!(
        message.contains("tensor `blk.4.nextn.eh_proj.weight` is missing"),
        "{message}"
    );
    assert!(message.ends_with("; and more"), "{message}");
}

#[test]
fn an_undeclared_mtp_block_is_surplus() {
    let message = refusal(
        &plain()
            .set("block_count", 4u32)
            .unset("nextn_predict_layers"),
    );
    assert!(
        message.contains("tensor `blk.4.nextn.eh_proj.weight` is not one of this model's"),
        "{message}"
    );
}

#[test]
fn an_mtp_block_alone_is_not_a_model() {
    assert_eq!(
        refusal(&plain().only_mtp()),
        "tiny.gguf: holds an MTP block and no trunk (no tensor `blk.0.*`); open the file of the trunk"
    );
}

#[test]
fn a_full_layer_without_its_indexer_is_named() {
    let message = refusal(&plain().set("attention.indexer.types", vec![true; 4]));
    assert!(
        message.contains("tensor `blk.2.indexer.attn_q_b.weight` is missing"),
        "{message}"
    );
    // Without the key the tensors decide, but half an indexer is a fault and not a shared layer.
    assert_eq!(
        refusal(&plain().drop_tensor("blk.3.indexer.attn_k.weight")),
        "tiny.gguf: tensor `blk.3.indexer.attn_k.weight` is missing; expected shape [14, 96] (ggml {96, 14})"
    );
    let mut file = plain();
    for part in [
        "attn_k.weight",
        "attn_q_b.weight",
        "proj.weight",
        "k_norm.weight",
        "k_norm.bias",
    ] {
        file = file.drop_tensor(&format!("blk.0.indexer.{part}"));
    }
    let message = refusal(&file);
    assert!(
        message.contains("tensor `blk.0.indexer.attn_k.weight` is missing"),
        "{message}"
    );
}

#[test]
fn several_problems_come_in_one_message() {
    let message = refusal(
        &plain()
            .drop_tensor("output_norm.weight")
            .add_tensor("blk.9.attn_norm.weight", &[96]),
    );
    assert_eq!(
        message,
        "tiny.gguf: tensor `output_norm.weight` is missing; expected shape [96] (ggml {96}); \
         tensor `blk.9.attn_norm.weight` is not one of this model's"
    );
}

#[test]
fn in_a_split_set_the_part_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // The last tensor is in the last part.
    let file = plain().add_tensor("surplus.weight", &[32]);
    let parts = file.write_split(folder.path(), "tiny", 2);
    let message = check_refusal(Checkpoint::open(&parts[1]).unwrap_err());
    assert!(
        message.contains(
            "tensor `surplus.weight` in tiny-00002-of-00002.gguf is not one of this model's"
        ),
        "{message}"
    );
}

#[test]
fn the_plain_file_is_sound() {
    open(&plain());
}
