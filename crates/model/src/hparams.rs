//! Hyper-parameters from GGUF metadata.
//!
//! Keys are `ARCH.` plus llama.cpp's names. Tools differ in the integer type they write and in whether a value is one
//! for the model or one for each layer: both are read. Files describe the cache rather than the heads (one key/value
//! head as wide as the latent), so the true head sizes come from the `_mla` keys; without them the file is a legacy
//! one, whose `key_length` and `value_length` are the true sizes.

use std::ops::Range;

use glim_gguf::{Gguf, Metadata, TensorInfo, UintOrArray};

use crate::catalogue::Role;
use crate::config::{Config, IndexerConfig, IndexerKind, MoeConfig, RopeStyle, Scoring};
use crate::config_check::{self, KeyNames, MAX_HEAD_DIM, MAX_LAYERS};
use crate::error::{ModelError, Problems};

/// The one architecture that this crate knows, as GGUF spells it.
pub(crate) const GLM_DSA: &str = "glm-dsa";

/// Epsilon of the LayerNorm over index keys where the file does not say: what transformers and vLLM use.
pub(crate) const DEFAULT_INDEX_NORM_EPS: f32 = 1e-6;

/// What told the full layers from the shared ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KindsFrom {
    /// A key of the metadata.
    Metadata,
    /// Which indexer tensors exist, and which are copies.
    Tensors,
}

impl Config {
    /// Reads the hyper-parameters of an opened GGUF. Where no key tells, tensors do which layers have an indexer.
    ///
    /// # Errors
    /// Another architecture; a key that is missing, of the wrong type, or cannot be right; a file that holds an MTP
    /// block and no trunk.
    pub fn from_gguf(gguf: &Gguf) -> Result<Config, ModelError> {
        read(gguf).map(|(config, _)| config)
    }
}

pub(crate) fn read(gguf: &Gguf) -> Result<(Config, KindsFrom), ModelError> {
    let keys = Keys::new(gguf.metadata())?;
    refuse_mtp_alone(gguf, &keys)?;

    let n_blocks = keys.require("block_count", "trunk layers plus MTP blocks", ALL)?;
    let n_mtp_layers = keys.size("nextn_predict_layers", ALL)?.unwrap_or(0);
    let n_layers = n_blocks
        .checked_sub(n_mtp_layers)
        .filter(|&n| n > 0)
        .ok_or_else(|| {
            let expected = format!("fewer than the {n_blocks} blocks of `block_count`");
            keys.bad("nextn_predict_layers", n_mtp_layers, expected)
        })?;
    if n_layers > MAX_LAYERS {
        return Err(keys.bad(
            "block_count",
            n_blocks,
            format!("at most {MAX_LAYERS} layers and MTP blocks"),
        ));
    }
    let trunk = 0..n_layers;

    let n_heads = keys.require("attention.head_count", "attention heads", trunk.clone())?;
    let q_lora_rank = keys.require(
        "attention.q_lora_rank",
        "the width of the query latent",
        ALL,
    )?;
    let kv_lora_rank = keys.require(
        "attention.kv_lora_rank",
        "the width of the key/value latent",
        ALL,
    )?;
    let qk_rope_head_dim =
        keys.require("rope.dimension_count", "the rotated width of a head", ALL)?;
    let (qk_head_dim, v_head_dim) = head_dims(&keys, n_heads, trunk.clone())?;
    let qk_nope_head_dim = qk_head_dim
        .checked_sub(qk_rope_head_dim)
        .filter(|&n| n > 0)
        .ok_or_else(|| {
            keys.bad(
                "rope.dimension_count",
                qk_rope_head_dim,
                format!("less than the head width of {qk_head_dim}"),
            )
        })?;
    refuse_rope_scaling(&keys)?;

    let rms_norm_eps =
        keys.require_float("attention.layer_norm_rms_epsilon", "the epsilon of RMSNorm")?;
    let first_dense_layers = keys.require(
        "leading_dense_block_count",
        "the number of dense layers",
        ALL,
    )?;
    let moe_layers = first_dense_layers.min(n_layers)..n_layers;
    let dense_layers = 0..moe_layers.start;
    let (kinds, kinds_from) = indexer_kinds(gguf, &keys, n_layers)?;

    let config = Config {
        arch: keys.arch.to_owned(),
        n_layers,
        n_mtp_layers,
        hidden_size: keys.require("embedding_length", "the width of the residual stream", ALL)?,
        vocab_size: vocab_size(gguf, &keys)?,
        max_context: keys.require("context_length", "the longest sequence in tokens", ALL)?,
        rms_norm_eps,
        latent_norm_eps: rms_norm_eps,
        n_heads,
        q_lora_rank,
        kv_lora_rank,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        rope_theta: keys.require_float("rope.freq_base", "the base of the rotary frequencies")?,
        intermediate_size: keys.require(
            "feed_forward_length",
            "the inner width of the dense MLPs",
            dense_layers,
        )?,
        moe: MoeConfig {
            n_routed_experts: keys.require(
                "expert_count",
                "routed experts in a layer",
                moe_layers.clone(),
            )?,
            num_experts_per_tok: keys.require(
                "expert_used_count",
                "experts chosen for a token",
                moe_layers.clone(),
            )?,
            n_shared_experts: keys.require(
                "expert_shared_count",
                "shared experts in a layer",
                moe_layers.clone(),
            )?,
            moe_intermediate_size: keys.require(
                "expert_feed_forward_length",
                "the inner width of an expert",
                moe_layers,
            )?,
            first_dense_layers,
            // Writers that mean "no scale" leave the key out or write 0.
            routed_scaling_factor: keys
                .float("expert_weights_scale")?
                .filter(|&scale| scale != 0.0)
                .unwrap_or(1.0),
            norm_topk_prob: keys
                .metadata
                .bool(&keys.key("expert_weights_norm"))?
                .unwrap_or(false),
            scoring: scoring(&keys)?,
            // 0 is how some writers say "no groups".
            n_group: keys.size("expert_group_count", ALL)?.unwrap_or(1).max(1),
            topk_group: keys
                .size("expert_group_used_count", ALL)?
                .unwrap_or(1)
                .max(1),
        },
        indexer: IndexerConfig {
            n_heads: keys.require("attention.indexer.head_count", "index heads", ALL)?,
            head_dim: keys.require(
                "attention.indexer.key_length",
                "the width of an index head",
                ALL,
            )?,
            topk: keys.require(
                "attention.indexer.top_k",
                "the number of positions kept",
                ALL,
            )?,
            norm_eps: keys
                .float("attention.layer_norm_epsilon")?
                .unwrap_or(DEFAULT_INDEX_NORM_EPS),
            rope_style: RopeStyle::Interleaved,
            kinds,
        },
    };
    config_check::check(
        &config,
        &GGUF_KEYS,
        &format!("{}.", keys.arch),
        &keys.origin,
    )?;
    Ok((config, kinds_from))
}

/// The layers of a value that is the same in all of them; an array must have equal entries.
const ALL: Range<usize> = 0..usize::MAX;

const GGUF_KEYS: KeyNames = KeyNames {
    n_layers: "block_count",
    n_mtp_layers: "nextn_predict_layers",
    hidden_size: "embedding_length",
    vocab_size: "vocab_size",
    max_context: "context_length",
    rms_norm_eps: "attention.layer_norm_rms_epsilon",
    n_heads: "attention.head_count",
    q_lora_rank: "attention.q_lora_rank",
    kv_lora_rank: "attention.kv_lora_rank",
    qk_nope_head_dim: "attention.key_length_mla",
    qk_rope_head_dim: "rope.dimension_count",
    v_head_dim: "attention.value_length_mla",
    rope_theta: "rope.freq_base",
    intermediate_size: "feed_forward_length",
    n_routed_experts: "expert_count",
    num_experts_per_tok: "expert_used_count",
    n_shared_experts: "expert_shared_count",
    moe_intermediate_size: "expert_feed_forward_length",
    first_dense_layers: "leading_dense_block_count",
    routed_scaling_factor: "expert_weights_scale",
    n_group: "expert_group_count",
    topk_group: "expert_group_used_count",
    index_n_heads: "attention.indexer.head_count",
    index_head_dim: "attention.indexer.key_length",
    index_topk: "attention.indexer.top_k",
    index_norm_eps: "attention.layer_norm_epsilon",
};

/// The metadata of one file under its architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
    origin: String,
}

impl<'a> Keys<'a> {
    fn new(metadata: &'a Metadata) -> Result<Self, ModelError> {
        let origin = metadata.path().display().to_string();
        let key = "general.architecture";
        match metadata.str(key)? {
            Some(GLM_DSA) => Ok(Keys {
                metadata,
                arch: GLM_DSA,
                origin,
            }),
            Some(found) => Err(ModelError::Unsupported {
                origin,
                key: key.to_owned(),
                found: found.to_owned(),
                supported: format!("`{GLM_DSA}` (GLM-5, 5.1, 5.2)"),
            }),
            None => Err(ModelError::MissingKey {
                origin,
                key: key.to_owned(),
                expected: "the architecture's name".to_owned(),
            }),
        }
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    fn bad(
        &self,
        suffix: &str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::BadKey {
            origin: self.origin.clone(),
            key: self.key(suffix),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    fn missing(&self, suffix: &str, expected: &str) -> ModelError {
        ModelError::MissingKey {
            origin: self.origin.clone(),
            key: self.key(suffix),
            expected: expected.to_owned(),
        }
    }

    /// A size that is one number, or one for each layer and then the same in all of `layers`.
    fn size(&self, suffix: &str, layers: Range<usize>) -> Result<Option<usize>, ModelError> {
        let value = match self.metadata.uints(&self.key(suffix))? {
            None => return Ok(None),
            Some(UintOrArray::Scalar(value)) => value,
            Some(UintOrArray::Array(values)) => self.common(suffix, &values, layers)?,
        };
        usize::try_from(value)
            .map(Some)
            .map_err(|_| self.bad(suffix, value, "a size that fits this machine"))
    }

    fn require(&self, suffix: &str, what: &str, layers: Range<usize>) -> Result<usize, ModelError> {
        self.size(suffix, layers)?
            .ok_or_else(|| self.missing(suffix, what))
    }

    /// The entry that all of `layers` have in common. Entries beyond them are not looked at, except that an array for
    /// no layer at all gives its first.
    fn common(
        &self,
        suffix: &str,
        values: &[u64],
        layers: Range<usize>,
    ) -> Result<u64, ModelError> {
        let end = if layers == ALL {
            values.len()
        } else {
            layers.end
        };
        if values.is_empty() || values.len() < end {
            let expected = format!("one value, or one for each of {} layers", end.max(1));
            return Err(self.bad(
                suffix,
                format!("an array of {} values", values.len()),
                expected,
            ));
        }
        let chosen = layers.start.min(end)..end;
        let first = values
            .get(chosen.start)
            .or(values.first())
            .copied()
            .unwrap_or_default();
        match values[chosen.clone()]
            .iter()
            .position(|&value| value != first)
        {
            None => Ok(first),
            Some(offset) => {
                let (start, other) = (chosen.start, chosen.start + offset);
                let found = format!(
                    "{first} in layer {start} and {} in layer {other}",
                    values[other]
                );
                Err(self.bad(suffix, found, "one value for all these layers"))
            }
        }
    }

    fn float(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        Ok(self
            .metadata
            .float(&self.key(suffix))?
            .map(|value| value as f32))
    }

    fn require_float(&self, suffix: &str, what: &str) -> Result<f32, ModelError> {
        self.float(suffix)?
            .ok_or_else(|| self.missing(suffix, what))
    }
}

/// Some files hold the MTP block alone, to be loaded beside a trunk.
fn refuse_mtp_alone(gguf: &Gguf, keys: &Keys<'_>) -> Result<(), ModelError> {
    let starts = |prefix: &str| gguf.tensors().iter().any(|t| t.name.starts_with(prefix));
    if starts("blk.0.") || !gguf.tensors().iter().any(|t| t.name.contains(".nextn.")) {
        return Ok(());
    }
    let mut problems = Problems::default();
    problems.push(|| {
        "holds an MTP block and no trunk (no tensor `blk.0.*`); open the file of the trunk"
            .to_owned()
    });
    Err(ModelError::Tensors {
        origin: keys.origin.clone(),
        problems,
    })
}

/// `(qk_head_dim, v_head_dim)`: the true sizes, not those of the cache.
fn head_dims(
    keys: &Keys<'_>,
    n_heads: usize,
    trunk: Range<usize>,
) -> Result<(usize, usize), ModelError> {
    let key = keys.size("attention.key_length_mla", trunk.clone())?;
    let value = keys.size("attention.value_length_mla", trunk.clone())?;
    match (key, value) {
        (Some(key), Some(value)) if key <= MAX_HEAD_DIM => Ok((key, value)),
        (Some(key), Some(_)) => Err(keys.bad(
            "attention.key_length_mla",
            key,
            format!("at most {MAX_HEAD_DIM}"),
        )),
        (Some(_), None) => {
            Err(keys.missing("attention.value_length_mla", "the width of a value head"))
        }
        (None, Some(_)) => {
            Err(keys.missing("attention.key_length_mla", "the width of a query/key head"))
        }
        (None, None) => {
            let n_kv_heads = keys
                .size("attention.head_count_kv", trunk.clone())?
                .unwrap_or(n_heads);
            if n_kv_heads != n_heads {
                // key_length would be the latent's width here.
                return Err(keys.missing(
                    "attention.key_length_mla",
                    &format!("the width of a query/key head, as head_count_kv is {n_kv_heads}, not {n_heads}"),
                ));
            }
            let key = keys.require(
                "attention.key_length",
                "the width of a query/key head",
                trunk.clone(),
            )?;
            let value =
                keys.require("attention.value_length", "the width of a value head", trunk)?;
            Ok((key, value))
        }
    }
}

/// The family's rotary frequencies are not scaled; a file that asks for it would be computed wrongly.
fn refuse_rope_scaling(keys: &Keys<'_>) -> Result<(), ModelError> {
    let kind = keys.metadata.str(&keys.key("rope.scaling.type"))?;
    let factor = keys.float("rope.scaling.factor")?;
    let unsupported = |suffix: &str, found: String, supported: &str| {
        let (origin, key) = (keys.origin.clone(), keys.key(suffix));
        Err(ModelError::Unsupported {
            origin,
            key,
            found,
            supported: supported.to_owned(),
        })
    };
    match (kind, factor) {
        (Some(kind), _) if kind != "none" => unsupported(
            "rope.scaling.type",
            kind.to_owned(),
            "`none`, or no such key",
        ),
        (None, Some(factor)) if factor != 1.0 && factor != 0.0 => unsupported(
            "rope.scaling.factor",
            factor.to_string(),
            "1, or no such key",
        ),
        _ => Ok(()),
    }
}

/// The key, or the rows of the embedding table.
fn vocab_size(gguf: &Gguf, keys: &Keys<'_>) -> Result<usize, ModelError> {
    if let Some(size) = keys.size("vocab_size", ALL)? {
        return Ok(size);
    }
    gguf.tensor(&Role::TokenEmbd.gguf_name(None))
        .and_then(|table| table.shape().first().copied())
        .ok_or_else(|| keys.missing("vocab_size", "the rows of the embedding table"))
}

/// ggml's numbers: 0 none (not set), 1 softmax, 2 sigmoid. GLM files without the key mean sigmoid.
fn scoring(keys: &Keys<'_>) -> Result<Scoring, ModelError> {
    match keys.size("expert_gating_func", ALL)? {
        None | Some(0 | 2) => Ok(Scoring::Sigmoid),
        Some(1) => Ok(Scoring::Softmax),
        Some(other) => Err(keys.bad("expert_gating_func", other, "1 (softmax) or 2 (sigmoid)")),
    }
}

/// Which layers have an indexer of their own.
///
/// The key decides where it exists. Older files lack it: then a layer is full if its tensors exist, unless they are
/// copies of the nearest earlier full layer's: some converters gave every layer an indexer that way.
fn indexer_kinds(
    gguf: &Gguf,
    keys: &Keys<'_>,
    n_layers: usize,
) -> Result<(Vec<IndexerKind>, KindsFrom), ModelError> {
    let suffix = "attention.indexer.types";
    if let Some(full) = keys.metadata.bools(&keys.key(suffix))? {
        if full.len() < n_layers {
            let found = format!("an array of {} values", full.len());
            return Err(keys.bad(suffix, found, format!("one for each of {n_layers} layers")));
        }
        if !full[0] {
            return Err(keys.bad(
                suffix,
                "`shared` for layer 0",
                "`full`: no earlier layer chooses positions",
            ));
        }
        let kind = |full: &bool| {
            if *full {
                IndexerKind::Full
            } else {
                IndexerKind::Shared
            }
        };
        return Ok((
            full[..n_layers].iter().map(kind).collect(),
            KindsFrom::Metadata,
        ));
    }

    // Layer 0 must be full: if its tensors are absent, resolution names them.
    let mut kinds = vec![IndexerKind::Full];
    let mut last_full = IndexerTensors::of(gguf, 0);
    for layer in 1..n_layers {
        let tensors = IndexerTensors::of(gguf, layer);
        // A layer with part of an indexer counts as full, so that the missing part is named.
        if tensors.are_absent() || tensors.equal(&last_full, gguf) {
            kinds.push(IndexerKind::Shared);
        } else {
            kinds.push(IndexerKind::Full);
            last_full = tensors;
        }
    }
    Ok((kinds, KindsFrom::Tensors))
}

/// A layer's indexer as stored, the small tensors first: most comparisons end there.
struct IndexerTensors<'a>([Option<&'a TensorInfo>; 5]);

impl<'a> IndexerTensors<'a> {
    fn of(gguf: &'a Gguf, layer: usize) -> Self {
        const BY_SIZE: [Role; 5] = [
            Role::IndexerKNormBias,
            Role::IndexerKNormWeight,
            Role::IndexerProj,
            Role::IndexerAttnK,
            Role::IndexerAttnQB,
        ];
        IndexerTensors(BY_SIZE.map(|role| gguf.tensor(&role.gguf_name(Some(layer)))))
    }

    fn are_absent(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Whether all are there in both and are the same, byte for byte.
    fn equal(&self, other: &IndexerTensors<'_>, gguf: &Gguf) -> bool {
        self.0.iter().zip(&other.0).all(|pair| match pair {
            (Some(a), Some(b)) => {
                a.ty == b.ty && a.ggml_dims == b.ggml_dims && gguf.data(a) == gguf.data(b)
            }
            _ => false,
        })
    }
}
