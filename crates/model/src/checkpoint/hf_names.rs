//! The forms in which a Hugging Face checkpoint of `glm_moe_dsa` holds the logical tensors.
//!
//! Experts lie apart (`mlp.experts.E.gate_proj`), `kv_b` is whole, and the rest differs in name only. Source:
//! transformers' `glm_moe_dsa` and llama.cpp's name table.

use super::Half;
use super::resolve::Form;
use crate::catalogue::{Role, TensorSpec};
use crate::config::Config;

/// Where `spec` may come from, the preferred form first.
pub(crate) fn forms(spec: &TensorSpec, config: &Config) -> Vec<Form> {
    let layer = spec.layer.unwrap_or_default();
    let in_layer = |name: &str| format!("model.layers.{layer}.{name}");
    let whole = |name: &str| vec![Form::Whole(in_layer(name))];
    let kv_b = |half| vec![Form::KvB(in_layer("self_attn.kv_b_proj.weight"), half)];
    let experts = |projection: &str| {
        let name = |expert| in_layer(&format!("mlp.experts.{expert}.{projection}.weight"));
        vec![Form::Stack(
            (0..config.moe.n_routed_experts).map(name).collect(),
        )]
    };
    match spec.role {
        Role::TokenEmbd => vec![Form::Whole(EMBED_TOKENS.to_owned())],
        Role::OutputNorm => vec![Form::Whole(NORM.to_owned())],
        Role::Output => vec![
            Form::Whole("lm_head.weight".to_owned()),
            Form::Tied(EMBED_TOKENS.to_owned()),
        ],
        Role::AttnNorm => whole("input_layernorm.weight"),
        Role::FfnNorm => whole("post_attention_layernorm.weight"),
        Role::AttnQA => whole("self_attn.q_a_proj.weight"),
        Role::AttnQANorm => whole("self_attn.q_a_layernorm.weight"),
        Role::AttnQB => whole("self_attn.q_b_proj.weight"),
        Role::AttnKvAMqa => whole("self_attn.kv_a_proj_with_mqa.weight"),
        Role::AttnKvANorm => whole("self_attn.kv_a_layernorm.weight"),
        Role::AttnKB => kv_b(Half::First),
        Role::AttnVB => kv_b(Half::Second),
        Role::AttnOutput => whole("self_attn.o_proj.weight"),
        Role::IndexerAttnQB => whole("self_attn.indexer.wq_b.weight"),
        Role::IndexerAttnK => whole("self_attn.indexer.wk.weight"),
        Role::IndexerKNormWeight => whole("self_attn.indexer.k_norm.weight"),
        Role::IndexerKNormBias => whole("self_attn.indexer.k_norm.bias"),
        Role::IndexerProj => whole("self_attn.indexer.weights_proj.weight"),
        Role::FfnGate => whole("mlp.gate_proj.weight"),
        Role::FfnUp => whole("mlp.up_proj.weight"),
        Role::FfnDown => whole("mlp.down_proj.weight"),
        Role::FfnGateInp => whole("mlp.gate.weight"),
        Role::ExpProbsB => whole("mlp.gate.e_score_correction_bias"),
        Role::FfnGateExps => experts("gate_proj"),
        Role::FfnUpExps => experts("up_proj"),
        Role::FfnDownExps => experts("down_proj"),
        Role::FfnGateShexp => whole("mlp.shared_experts.gate_proj.weight"),
        Role::FfnUpShexp => whole("mlp.shared_experts.up_proj.weight"),
        Role::FfnDownShexp => whole("mlp.shared_experts.down_proj.weight"),
        Role::NextnEhProj => whole("eh_proj.weight"),
        Role::NextnEnorm => whole("enorm.weight"),
        Role::NextnHnorm => whole("hnorm.weight"),
        Role::NextnSharedHeadNorm => {
            vec![
                Form::Whole(in_layer("shared_head.norm.weight")),
                Form::Tied(NORM.to_owned()),
            ]
        }
        Role::NextnEmbedTokens => whole("embed_tokens.weight"),
        Role::NextnSharedHeadHead => whole("shared_head.head.weight"),
    }
}

const EMBED_TOKENS: &str = "model.embed_tokens.weight";
const NORM: &str = "model.norm.weight";
