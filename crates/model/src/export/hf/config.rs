//! `config.json` and `generation_config.json`.
//!
//! Keys and their meaning are transformers' (`configuration_glm_moe_dsa.py`); those that it does not know but published
//! folders have (`scoring_func`, `topk_method`, `num_nextn_predict_layers` …) are for other engines. Lists say for each
//! layer what it is, whichever rule made them.

use glim_gguf::Value as GgufValue;
use serde_json::{Map, Value as Json, json};

use super::Float;
use crate::config::{Config, IndexerKind, RopeStyle, Scoring};
use crate::export::general::{General, SAMPLING};

/// What `config.json` says besides hyper-parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traits {
    /// The type of most weights.
    pub(super) float: Float,
    /// Whether the head is the embedding table.
    pub(super) is_tied: bool,
    /// The MTP blocks in the folder.
    pub(super) n_mtp: usize,
}

pub(super) fn config(c: &Config, traits: Traits, token_ids: &Map<String, Json>) -> Json {
    let layers = |word: &dyn Fn(usize) -> &'static str| -> Vec<&'static str> {
        (0..c.n_layers).map(word).collect()
    };
    let mlp_types = layers(&|layer| if c.is_moe(layer) { "sparse" } else { "dense" });
    let indexer_types = layers(&|layer| match c.indexer.kinds.get(layer) {
        Some(IndexerKind::Shared) => "shared",
        _ => "full",
    });
    let dtype = match traits.float {
        Float::F32 => "float32",
        Float::F16 => "float16",
        Float::Bf16 => "bfloat16",
    };
    let scoring = match c.moe.scoring {
        Scoring::Sigmoid => "sigmoid",
        Scoring::Softmax => "softmax",
    };
    let entries = [
        ("architectures", json!(["GlmMoeDsaForCausalLM"])),
        ("attention_bias", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("dtype", json!(dtype)),
        ("first_k_dense_replace", json!(c.moe.first_dense_layers)),
        // transformers' name for the rotated part.
        ("head_dim", json!(c.qk_rope_head_dim)),
        ("hidden_act", json!("silu")),
        ("hidden_size", json!(c.hidden_size)),
        ("index_head_dim", json!(c.indexer.head_dim)),
        ("index_n_heads", json!(c.indexer.n_heads)),
        ("index_topk", json!(c.indexer.topk)),
        (
            "indexer_rope_interleave",
            json!(c.indexer.rope_style == RopeStyle::Interleaved),
        ),
        ("indexer_types", json!(indexer_types)),
        ("intermediate_size", json!(c.intermediate_size)),
        ("kv_lora_rank", json!(c.kv_lora_rank)),
        ("max_position_embeddings", json!(c.max_context)),
        ("mlp_bias", json!(false)),
        ("mlp_layer_types", json!(mlp_types)),
        ("model_type", json!("glm_moe_dsa")),
        ("moe_intermediate_size", json!(c.moe.moe_intermediate_size)),
        ("moe_layer_freq", json!(1)),
        ("n_group", json!(c.moe.n_group)),
        ("n_routed_experts", json!(c.moe.n_routed_experts)),
        ("n_shared_experts", json!(c.moe.n_shared_experts)),
        ("norm_topk_prob", json!(c.moe.norm_topk_prob)),
        ("num_attention_heads", json!(c.n_heads)),
        ("num_experts_per_tok", json!(c.moe.num_experts_per_tok)),
        ("num_hidden_layers", json!(c.n_layers)),
        ("num_key_value_heads", json!(c.n_heads)),
        ("num_nextn_predict_layers", json!(traits.n_mtp)),
        ("q_lora_rank", json!(c.q_lora_rank)),
        ("qk_head_dim", json!(c.qk_head_dim())),
        ("qk_nope_head_dim", json!(c.qk_nope_head_dim)),
        ("qk_rope_head_dim", json!(c.qk_rope_head_dim)),
        ("rms_norm_eps", number(c.rms_norm_eps)),
        ("rope_interleave", json!(true)),
        (
            "rope_parameters",
            json!({"rope_theta": number(c.rope_theta), "rope_type": "default"}),
        ),
        ("routed_scaling_factor", number(c.moe.routed_scaling_factor)),
        ("scoring_func", json!(scoring)),
        ("tie_word_embeddings", json!(traits.is_tied)),
        ("topk_group", json!(c.moe.topk_group)),
        ("topk_method", json!("noaux_tc")),
        ("use_cache", json!(true)),
        ("v_head_dim", json!(c.v_head_dim)),
        ("vocab_size", json!(c.vocab_size)),
    ];
    let mut entries: Vec<(String, Json)> = entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    entries.extend(token_ids.clone());
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    Json::Object(Map::from_iter(entries))
}

/// The ids that end a turn, and what the publisher recommends.
pub(super) fn generation(general: &General, token_ids: &Map<String, Json>) -> Json {
    let mut entries = token_ids.clone();
    entries.retain(|_, id| !id.is_null());
    if !general.sampling.is_empty() {
        entries.insert("do_sample".to_owned(), json!(true));
    }
    for (name, value) in &general.sampling {
        let key = SAMPLING.iter().find(|(_, ours, _)| ours == name);
        let value = match value {
            GgufValue::F32(x) => number(*x),
            GgufValue::I32(x) => json!(x),
            _ => continue,
        };
        if let Some((theirs, ..)) = key {
            entries.insert((*theirs).to_owned(), value);
        }
    }
    Json::Object(entries)
}

/// The shortest number that reads back as the same f32: 0.95, not 0.949999988079071.
fn number(x: f32) -> Json {
    let shortest = x.to_string().parse::<f64>();
    json!(shortest.unwrap_or(f64::from(x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_read_back_the_same() {
        for (x, printed) in [
            (1e-5f32, "1e-05"),
            (0.95, "0.95"),
            (8e6, "8000000.0"),
            (2.5, "2.5"),
        ] {
            let json = number(x);
            assert_eq!(json.to_string().parse::<f64>(), printed.parse::<f64>());
            assert_eq!(json.as_f64().map(|y| y as f32), Some(x));
        }
    }
}
