//! Hyper-parameters of one model, under the names of the field.
//!
//! A [`Config`] is plain data: it is read from GGUF metadata ([`crate::hparams`]) or from an HF `config.json`
//! ([`crate::checkpoint::hf`]), and everything above it (catalogue, shards, plans) asks it and nothing else.

pub use glim_plan::{RopeStyle, Scoring};

/// What a layer does for its choice of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexerKind {
    /// The layer has an indexer, and an index-key cache, of its own.
    Full,
    /// The layer reuses the positions chosen by the nearest earlier full layer (GLM-5.2).
    Shared,
}

/// The lightning indexer (DeepSeek sparse attention).
#[derive(Debug, Clone, PartialEq)]
pub struct IndexerConfig {
    /// Heads that score; their weighted sum is the score of a position.
    pub n_heads: usize,
    /// Width of a head and of a cached index key.
    pub head_dim: usize,
    /// Positions kept for each row.
    pub topk: usize,
    /// Epsilon of the LayerNorm over index keys.
    pub norm_eps: f32,
    /// Rotation of the first `qk_rope_head_dim` elements of index queries and keys.
    pub rope_style: RopeStyle,
    /// One entry for each trunk layer.
    pub kinds: Vec<IndexerKind>,
}

/// The feed-forward part of the sparse layers.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeConfig {
    /// Routed experts in a layer.
    pub n_routed_experts: usize,
    /// Routed experts that run for one row.
    pub num_experts_per_tok: usize,
    /// Shared experts; stored as one fused MLP of `n_shared_experts * moe_intermediate_size`.
    pub n_shared_experts: usize,
    /// Inner width of one expert.
    pub moe_intermediate_size: usize,
    /// Layers `0..first_dense_layers` have a dense MLP instead.
    pub first_dense_layers: usize,
    /// Factor on the weights of the chosen experts.
    pub routed_scaling_factor: f32,
    /// Whether the chosen weights are divided by their sum first.
    pub norm_topk_prob: bool,
    /// How logits become scores.
    pub scoring: Scoring,
    /// Groups of experts; 1 means no grouping.
    pub n_group: usize,
    /// Groups that may be chosen from.
    pub topk_group: usize,
}

/// Hyper-parameters of a model of the MLA + DSA + MoE family.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// GGUF's `general.architecture`, e.g. `glm-dsa`; also for HF checkpoints.
    pub arch: String,
    /// Trunk layers, without MTP blocks.
    pub n_layers: usize,
    /// MTP (NextN) blocks that the metadata declares after the trunk; the tensors may be stripped all the same.
    pub n_mtp_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding and of the output head (padding rows included).
    pub vocab_size: usize,
    /// Longest sequence that the model was made for, in tokens.
    pub max_context: usize,
    /// Epsilon of every RMSNorm but the latent ones.
    pub rms_norm_eps: f32,
    /// Epsilon of `q_a_norm` and `kv_a_norm`: equal to `rms_norm_eps` unless overridden.
    pub latent_norm_eps: f32,
    /// Attention heads.
    pub n_heads: usize,
    /// Width of the query latent.
    pub q_lora_rank: usize,
    /// Width of the key/value latent that is cached.
    pub kv_lora_rank: usize,
    /// Part of a query/key head without rotation.
    pub qk_nope_head_dim: usize,
    /// Part of a query/key head with rotation.
    pub qk_rope_head_dim: usize,
    /// Width of a value head.
    pub v_head_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Inner width of the dense MLPs.
    pub intermediate_size: usize,
    /// Experts.
    pub moe: MoeConfig,
    /// Sparse attention.
    pub indexer: IndexerConfig,
}

impl Config {
    /// Whether trunk layer `layer` has experts rather than a dense MLP.
    pub fn is_moe(&self, layer: usize) -> bool {
        layer >= self.moe.first_dense_layers
    }

    /// Width of a whole query/key head: rotation-free part, then rotated part.
    pub fn qk_head_dim(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// Width of a cached latent row: normed latent, then the rotated key part.
    pub fn latent_dim(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// `1 / sqrt(qk_head_dim)`: the true head width, never the latent's.
    pub fn softmax_scale(&self) -> f32 {
        1.0 / (self.qk_head_dim() as f32).sqrt()
    }
}
