//! Hyper-parameters from the `config.json` of a `glm_moe_dsa` checkpoint.
//!
//! Keys are transformers' own. A `null` counts as absent. Lists that say something for each layer win over the rules
//! that generate them (`mlp_layer_types` over `first_k_dense_replace`, `indexer_types` over `index_topk_pattern` over
//! `index_topk_freq`).

use std::path::Path;

use serde_json::Value;

use crate::config::{Config, IndexerConfig, IndexerKind, MoeConfig, RopeStyle, Scoring};
use crate::config_check::{self, KeyNames, MAX_LAYERS};
use crate::error::ModelError;
use crate::hparams::{DEFAULT_INDEX_NORM_EPS, GLM_DSA};
use crate::presets::scheduled_kinds;

const MODEL_TYPE: &str = "glm_moe_dsa";
/// transformers' and vLLM's default for `index_skip_topk_offset`.
const DEFAULT_SKIP_TOPK_OFFSET: usize = 2;

/// Reads `json`, the content of the file at `path`.
pub(super) fn read(json: &Value, path: &Path) -> Result<Config, ModelError> {
    let keys = Keys {
        json,
        origin: path.display().to_string(),
    };
    keys.only("model_type", MODEL_TYPE, true)?;
    keys.only("hidden_act", "silu", false)?;
    keys.refuse_true("attention_bias")?;
    keys.refuse_true("mlp_bias")?;

    let n_layers = keys.require("num_hidden_layers")?;
    if !(1..=MAX_LAYERS).contains(&n_layers) {
        return Err(keys.bad("num_hidden_layers", n_layers, format!("1 to {MAX_LAYERS}")));
    }
    if keys.bool("rope_interleave")? == Some(false) {
        return Err(keys.unsupported("rope_interleave", "false", "true"));
    }
    let rms_norm_eps = keys.require_float("rms_norm_eps")?;

    let config = Config {
        arch: GLM_DSA.to_owned(),
        n_layers,
        n_mtp_layers: keys.size("num_nextn_predict_layers")?.unwrap_or(0),
        hidden_size: keys.require("hidden_size")?,
        vocab_size: keys.require("vocab_size")?,
        max_context: keys.require("max_position_embeddings")?,
        rms_norm_eps,
        latent_norm_eps: rms_norm_eps,
        n_heads: keys.require("num_attention_heads")?,
        q_lora_rank: keys.require("q_lora_rank")?,
        kv_lora_rank: keys.require("kv_lora_rank")?,
        qk_nope_head_dim: keys.require("qk_nope_head_dim")?,
        qk_rope_head_dim: keys.require("qk_rope_head_dim")?,
        v_head_dim: keys.require("v_head_dim")?,
        rope_theta: rope_theta(&keys)?,
        intermediate_size: keys.require("intermediate_size")?,
        moe: MoeConfig {
            n_routed_experts: keys.require("n_routed_experts")?,
            num_experts_per_tok: keys.require("num_experts_per_tok")?,
            n_shared_experts: keys.require("n_shared_experts")?,
            moe_intermediate_size: keys.require("moe_intermediate_size")?,
            first_dense_layers: first_dense_layers(&keys, n_layers)?,
            routed_scaling_factor: keys.require_float("routed_scaling_factor")?,
            norm_topk_prob: keys
                .bool("norm_topk_prob")?
                .ok_or_else(|| keys.missing("norm_topk_prob", "true or false"))?,
            scoring: scoring(&keys)?,
            n_group: keys.size("n_group")?.unwrap_or(1),
            topk_group: keys.size("topk_group")?.unwrap_or(1),
        },
        indexer: IndexerConfig {
            n_heads: keys.require("index_n_heads")?,
            head_dim: keys.require("index_head_dim")?,
            topk: keys.require("index_topk")?,
            norm_eps: DEFAULT_INDEX_NORM_EPS,
            rope_style: match keys.bool("indexer_rope_interleave")? {
                None | Some(true) => RopeStyle::Interleaved,
                Some(false) => RopeStyle::HalfSplit,
            },
            kinds: indexer_kinds(&keys, n_layers)?,
        },
    };
    config_check::check(&config, &HF_KEYS, "", &keys.origin)?;
    Ok(config)
}

const HF_KEYS: KeyNames = KeyNames {
    n_layers: "num_hidden_layers",
    n_mtp_layers: "num_nextn_predict_layers",
    hidden_size: "hidden_size",
    vocab_size: "vocab_size",
    max_context: "max_position_embeddings",
    rms_norm_eps: "rms_norm_eps",
    n_heads: "num_attention_heads",
    q_lora_rank: "q_lora_rank",
    kv_lora_rank: "kv_lora_rank",
    qk_nope_head_dim: "qk_nope_head_dim",
    qk_rope_head_dim: "qk_rope_head_dim",
    v_head_dim: "v_head_dim",
    rope_theta: "rope_theta",
    intermediate_size: "intermediate_size",
    n_routed_experts: "n_routed_experts",
    num_experts_per_tok: "num_experts_per_tok",
    n_shared_experts: "n_shared_experts",
    moe_intermediate_size: "moe_intermediate_size",
    first_dense_layers: "first_k_dense_replace",
    routed_scaling_factor: "routed_scaling_factor",
    n_group: "n_group",
    topk_group: "topk_group",
    index_n_heads: "index_n_heads",
    index_head_dim: "index_head_dim",
    index_topk: "index_topk",
    index_norm_eps: "layer_norm_eps",
};

struct Keys<'a> {
    json: &'a Value,
    origin: String,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    fn bad(
        &self,
        key: &str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> ModelError {
        let (origin, key) = (self.origin.clone(), key.to_owned());
        ModelError::BadKey {
            origin,
            key,
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    fn missing(&self, key: &str, expected: &str) -> ModelError {
        ModelError::MissingKey {
            origin: self.origin.clone(),
            key: key.to_owned(),
            expected: expected.to_owned(),
        }
    }

    fn unsupported(&self, key: &str, found: &str, supported: &str) -> ModelError {
        let (origin, key, supported) = (
            self.origin.clone(),
            key.to_owned(),
            format!("`{supported}`"),
        );
        ModelError::Unsupported {
            origin,
            key,
            found: found.to_owned(),
            supported,
        }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| self.bad(key, brief(value), expected))
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.typed(key, "a whole number", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    fn require(&self, key: &str) -> Result<usize, ModelError> {
        self.size(key)?
            .ok_or_else(|| self.missing(key, "a whole number"))
    }

    fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.typed(key, "a number", |value| value.as_f64().map(|x| x as f32))
    }

    fn require_float(&self, key: &str) -> Result<f32, ModelError> {
        self.float(key)?
            .ok_or_else(|| self.missing(key, "a number"))
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// The words of a list with an entry for each layer; entries beyond the trunk are dropped.
    fn words(&self, key: &str, n_layers: usize) -> Result<Option<Vec<&'a str>>, ModelError> {
        let words = self.typed(key, "a list of strings", |value| {
            value
                .as_array()?
                .iter()
                .map(Value::as_str)
                .collect::<Option<Vec<_>>>()
        })?;
        let Some(mut words) = words else {
            return Ok(None);
        };
        if words.len() < n_layers {
            let found = format!("a list of {} entries", words.len());
            return Err(self.bad(key, found, format!("one for each of {n_layers} layers")));
        }
        words.truncate(n_layers);
        Ok(Some(words))
    }

    fn only(&self, key: &str, supported: &str, required: bool) -> Result<(), ModelError> {
        match self.text(key)? {
            Some(found) if found != supported => Err(self.unsupported(key, found, supported)),
            None if required => Err(self.missing(key, &format!("`{supported}`"))),
            _ => Ok(()),
        }
    }

    fn refuse_true(&self, key: &str) -> Result<(), ModelError> {
        match self.bool(key)? {
            Some(true) => Err(self.unsupported(key, "true", "false")),
            _ => Ok(()),
        }
    }
}

/// A JSON value for a message.
fn brief(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// `rope_parameters.rope_theta`, or the older `rope_theta`; no scaling.
fn rope_theta(keys: &Keys<'_>) -> Result<f32, ModelError> {
    for (key, outer) in [("rope_parameters", true), ("rope_scaling", false)] {
        let Some(json) = keys.get(key) else { continue };
        let inner = Keys {
            json,
            origin: keys.origin.clone(),
        };
        for kind in ["rope_type", "type"] {
            inner.only(kind, "default", false)?;
        }
        if outer && let Some(theta) = inner.float("rope_theta")? {
            return Ok(theta);
        }
    }
    keys.float("rope_theta")?.ok_or_else(|| {
        keys.missing(
            "rope_parameters.rope_theta",
            "the base of the rotary frequencies",
        )
    })
}

fn scoring(keys: &Keys<'_>) -> Result<Scoring, ModelError> {
    match keys.text("scoring_func")? {
        // The model's code uses sigmoid and does not ask.
        None | Some("sigmoid") => Ok(Scoring::Sigmoid),
        Some("softmax") => Ok(Scoring::Softmax),
        Some(other) => Err(keys.unsupported("scoring_func", other, "sigmoid")),
    }
}

fn first_dense_layers(keys: &Keys<'_>, n_layers: usize) -> Result<usize, ModelError> {
    if let Some(found) = keys.size("moe_layer_freq")?
        && found != 1
    {
        return Err(keys.unsupported("moe_layer_freq", &found.to_string(), "1"));
    }
    let key = "mlp_layer_types";
    let Some(types) = keys.words(key, n_layers)? else {
        return keys.require("first_k_dense_replace");
    };
    let dense = types.iter().take_while(|&&kind| kind == "dense").count();
    match types.iter().skip(dense).position(|&kind| kind != "sparse") {
        None => Ok(dense),
        Some(offset) => {
            let layer = dense + offset;
            let found = format!("`{}` for layer {layer}", types[layer]);
            Err(keys.bad(
                key,
                found,
                "`dense` for the first layers, then `sparse` for all others",
            ))
        }
    }
}

fn indexer_kinds(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<IndexerKind>, ModelError> {
    let (key, kinds) = if let Some(types) = keys.words("indexer_types", n_layers)? {
        let kinds = types.iter().map(|&kind| match kind {
            "full" => Ok(IndexerKind::Full),
            "shared" => Ok(IndexerKind::Shared),
            other => Err(keys.bad(
                "indexer_types",
                format!("`{other}`"),
                "`full` or `shared` for each layer",
            )),
        });
        ("indexer_types", kinds.collect::<Result<Vec<_>, _>>()?)
    } else if let Some(pattern) = keys.text("index_topk_pattern")? {
        let expected = format!("F or S for each of {n_layers} layers");
        let kinds = pattern.chars().map(|letter| match letter {
            'F' => Ok(IndexerKind::Full),
            'S' => Ok(IndexerKind::Shared),
            _ => Err(keys.bad(
                "index_topk_pattern",
                format!("`{pattern}`"),
                expected.clone(),
            )),
        });
        let mut kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        if kinds.len() < n_layers {
            return Err(keys.bad("index_topk_pattern", format!("`{pattern}`"), expected));
        }
        kinds.truncate(n_layers);
        ("index_topk_pattern", kinds)
    } else {
        let freq = keys.size("index_topk_freq")?.unwrap_or(1);
        if freq == 0 {
            return Err(keys.bad("index_topk_freq", freq, "at least 1"));
        }
        let offset = keys
            .size("index_skip_topk_offset")?
            .unwrap_or(DEFAULT_SKIP_TOPK_OFFSET);
        (
            "index_skip_topk_offset",
            scheduled_kinds(n_layers, freq, offset),
        )
    };
    if kinds.first() == Some(&IndexerKind::Shared) {
        return Err(keys.bad(
            key,
            "such that layer 0 is shared",
            "layer 0 full: no earlier layer chooses positions",
        ));
    }
    Ok(kinds)
}
