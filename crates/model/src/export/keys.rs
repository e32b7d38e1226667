//! The `glm-dsa.*` keys, in the order and with the value types of llama.cpp's converter.
//!
//! Differences from that converter, none of which changes what a reader computes: `expert_gating_func`,
//! `expert_weights_norm` and `attention.indexer.types` are always written (there only where `config.json` or
//! transformers' defaults name them), and `block_count` and `nextn_predict_layers` count the MTP blocks that the file
//! really holds.

use glim_gguf::{Array, Value};

use super::Mtp;
use super::types::FileType;
use crate::checkpoint::Checkpoint;
use crate::config::{Config, IndexerKind, Scoring};

/// Version of the block formats, `GGML_QNT_VERSION`.
const QUANTIZATION_VERSION: u32 = 2;

/// Keys of the architecture, and those about the file's types.
pub(super) fn keys(checkpoint: &Checkpoint, file_type: FileType, mtp: Mtp) -> Vec<(String, Value)> {
    let n_mtp = n_mtp(checkpoint, mtp);
    of_config(checkpoint.config(), n_mtp, file_type.id())
}

/// The same keys of a model with `n_mtp` MTP blocks; `file_type` is a number of llama.cpp's `LLAMA_FTYPE`.
pub(crate) fn of_config(c: &Config, n_mtp: usize, file_type: u32) -> Vec<(String, Value)> {
    let gating = match c.moe.scoring {
        Scoring::Softmax => 1,
        Scoring::Sigmoid => 2,
    };
    let kinds = c.indexer.kinds.iter();
    let full = kinds.map(|kind| *kind == IndexerKind::Full).collect();

    let mut keys = Keys {
        arch: &c.arch,
        keys: Vec::new(),
    };
    keys.size("block_count", c.n_layers + n_mtp);
    keys.size("context_length", c.max_context);
    keys.size("embedding_length", c.hidden_size);
    keys.size("feed_forward_length", c.intermediate_size);
    keys.size("attention.head_count", c.n_heads);
    // Absorbed attention has one key head, as wide as the latent and its rotated part.
    keys.size("attention.head_count_kv", 1);
    keys.set("rope.freq_base", c.rope_theta);
    keys.set("attention.layer_norm_rms_epsilon", c.rms_norm_eps);
    keys.size("expert_count", c.moe.n_routed_experts);
    keys.size("expert_used_count", c.moe.num_experts_per_tok);
    keys.size("expert_group_count", c.moe.n_group);
    keys.size("expert_group_used_count", c.moe.topk_group);
    keys.size("expert_gating_func", gating);
    keys.size("attention.key_length", c.latent_dim());
    keys.size("attention.value_length", c.kv_lora_rank);
    keys.general("file_type", file_type);
    keys.size("leading_dense_block_count", c.moe.first_dense_layers);
    keys.size("vocab_size", c.vocab_size);
    keys.size("attention.q_lora_rank", c.q_lora_rank);
    keys.size("attention.kv_lora_rank", c.kv_lora_rank);
    keys.size("attention.key_length_mla", c.qk_head_dim());
    keys.size("attention.value_length_mla", c.v_head_dim);
    keys.size("expert_feed_forward_length", c.moe.moe_intermediate_size);
    keys.size("expert_shared_count", c.moe.n_shared_experts);
    keys.set("expert_weights_scale", c.moe.routed_scaling_factor);
    keys.set("expert_weights_norm", c.moe.norm_topk_prob);
    keys.size("rope.dimension_count", c.qk_rope_head_dim);
    if n_mtp > 0 {
        keys.size("nextn_predict_layers", n_mtp);
    }
    keys.size("attention.indexer.head_count", c.indexer.n_heads);
    keys.size("attention.indexer.key_length", c.indexer.head_dim);
    keys.size("attention.indexer.top_k", c.indexer.topk);
    keys.set("attention.indexer.types", Value::Array(Array::Bool(full)));
    keys.general("quantization_version", QUANTIZATION_VERSION);
    keys.keys
}

/// The MTP blocks that will be written.
pub(super) fn n_mtp(checkpoint: &Checkpoint, mtp: Mtp) -> usize {
    match mtp {
        Mtp::Keep if !checkpoint.mtp_tensors().is_empty() => checkpoint.config().n_mtp_layers,
        _ => 0,
    }
}

struct Keys<'a> {
    arch: &'a str,
    keys: Vec<(String, Value)>,
}

impl Keys<'_> {
    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.keys
            .push((format!("{}.{name}", self.arch), value.into()));
    }

    /// As u32, like the converter; what does not fit, and no real model has, as u64, which readers take as well.
    fn size(&mut self, name: &str, n: usize) {
        self.set(
            name,
            u32::try_from(n).map_or(Value::U64(n as u64), Value::U32),
        );
    }

    fn general(&mut self, name: &str, value: impl Into<Value>) {
        self.keys.push((format!("general.{name}"), value.into()));
    }
}
