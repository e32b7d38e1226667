//! Whether hyper-parameters can be right, whatever they were read from.
//!
//! Limits are far above any model of the family; they keep every product of sizes within 64 bits and refuse nonsense
//! before anything is allocated by it.

use std::fmt::Display;

use crate::config::Config;
use crate::error::ModelError;

/// Layers of the trunk.
pub const MAX_LAYERS: usize = 1 << 12;
/// MTP blocks.
pub const MAX_MTP_LAYERS: usize = 1 << 4;
/// Width of the residual stream, of a latent, or of an MLP.
pub const MAX_WIDTH: usize = 1 << 20;
/// Rows of the embedding table.
pub const MAX_VOCAB: usize = 1 << 24;
/// Tokens of context.
pub const MAX_CONTEXT: usize = 1 << 31;
/// Attention or index heads.
pub const MAX_HEADS: usize = 1 << 12;
/// Width of a head, or of a part of it.
pub const MAX_HEAD_DIM: usize = 1 << 14;
/// Routed experts in a layer.
pub const MAX_EXPERTS: usize = 1 << 16;
/// Shared experts in a layer.
pub const MAX_SHARED_EXPERTS: usize = 1 << 8;

/// What a source calls each hyper-parameter.
pub(crate) struct KeyNames {
    pub(crate) n_layers: &'static str,
    pub(crate) n_mtp_layers: &'static str,
    pub(crate) hidden_size: &'static str,
    pub(crate) vocab_size: &'static str,
    pub(crate) max_context: &'static str,
    pub(crate) rms_norm_eps: &'static str,
    pub(crate) n_heads: &'static str,
    pub(crate) q_lora_rank: &'static str,
    pub(crate) kv_lora_rank: &'static str,
    pub(crate) qk_nope_head_dim: &'static str,
    pub(crate) qk_rope_head_dim: &'static str,
    pub(crate) v_head_dim: &'static str,
    pub(crate) rope_theta: &'static str,
    pub(crate) intermediate_size: &'static str,
    pub(crate) n_routed_experts: &'static str,
    pub(crate) num_experts_per_tok: &'static str,
    pub(crate) n_shared_experts: &'static str,
    pub(crate) moe_intermediate_size: &'static str,
    pub(crate) first_dense_layers: &'static str,
    pub(crate) routed_scaling_factor: &'static str,
    pub(crate) n_group: &'static str,
    pub(crate) topk_group: &'static str,
    pub(crate) index_n_heads: &'static str,
    pub(crate) index_head_dim: &'static str,
    pub(crate) index_topk: &'static str,
    pub(crate) index_norm_eps: &'static str,
}

/// Refuses the first value that cannot be right, by its key in the source: `prefix` plus the name.
pub(crate) fn check(
    config: &Config,
    names: &KeyNames,
    prefix: &str,
    origin: &str,
) -> Result<(), ModelError> {
    let check = Checker { prefix, origin };
    let (moe, indexer) = (&config.moe, &config.indexer);

    check.size(names.n_layers, config.n_layers, 1..=MAX_LAYERS)?;
    check.size(names.n_mtp_layers, config.n_mtp_layers, 0..=MAX_MTP_LAYERS)?;
    check.size(names.hidden_size, config.hidden_size, 1..=MAX_WIDTH)?;
    check.size(names.vocab_size, config.vocab_size, 1..=MAX_VOCAB)?;
    check.size(names.max_context, config.max_context, 1..=MAX_CONTEXT)?;
    check.size(names.n_heads, config.n_heads, 1..=MAX_HEADS)?;
    check.size(names.q_lora_rank, config.q_lora_rank, 1..=MAX_WIDTH)?;
    check.size(names.kv_lora_rank, config.kv_lora_rank, 1..=MAX_WIDTH)?;
    check.size(
        names.qk_rope_head_dim,
        config.qk_rope_head_dim,
        2..=MAX_HEAD_DIM,
    )?;
    check.that(
        config.qk_rope_head_dim.is_multiple_of(2),
        names.qk_rope_head_dim,
        config.qk_rope_head_dim,
        "an even number: elements are rotated in pairs",
    )?;
    check.size(
        names.qk_nope_head_dim,
        config.qk_nope_head_dim,
        1..=MAX_HEAD_DIM,
    )?;
    check.size(names.v_head_dim, config.v_head_dim, 1..=MAX_HEAD_DIM)?;
    check.positive(names.rms_norm_eps, config.rms_norm_eps)?;
    check.positive(names.rope_theta, config.rope_theta)?;

    check.size(
        names.first_dense_layers,
        moe.first_dense_layers,
        0..=config.n_layers,
    )?;
    if moe.first_dense_layers > 0 {
        check.size(
            names.intermediate_size,
            config.intermediate_size,
            1..=MAX_WIDTH,
        )?;
    }
    check.size(
        names.n_routed_experts,
        moe.n_routed_experts,
        1..=MAX_EXPERTS,
    )?;
    check.size(
        names.n_shared_experts,
        moe.n_shared_experts,
        1..=MAX_SHARED_EXPERTS,
    )?;
    check.size(
        names.moe_intermediate_size,
        moe.moe_intermediate_size,
        1..=MAX_WIDTH,
    )?;
    check.positive(names.routed_scaling_factor, moe.routed_scaling_factor)?;
    check.size(names.n_group, moe.n_group, 1..=moe.n_routed_experts)?;
    check.that(
        moe.n_routed_experts.is_multiple_of(moe.n_group),
        names.n_group,
        moe.n_group,
        format_args!("a divisor of the {} experts", moe.n_routed_experts),
    )?;
    let group_size = moe.n_routed_experts / moe.n_group;
    // A group's score is the sum of its two best.
    check.that(
        moe.n_group == 1 || group_size >= 2,
        names.n_group,
        moe.n_group,
        format_args!(
            "at least two of the {} experts in a group",
            moe.n_routed_experts
        ),
    )?;
    check.size(names.topk_group, moe.topk_group, 1..=moe.n_group)?;
    check.size(
        names.num_experts_per_tok,
        moe.num_experts_per_tok,
        1..=moe.topk_group * group_size,
    )?;

    check.size(names.index_n_heads, indexer.n_heads, 1..=MAX_HEADS)?;
    check.size(
        names.index_head_dim,
        indexer.head_dim,
        config.qk_rope_head_dim..=MAX_HEAD_DIM,
    )?;
    check.size(names.index_topk, indexer.topk, 1..=MAX_CONTEXT)?;
    check.that(
        indexer.norm_eps.is_finite() && indexer.norm_eps >= 0.0,
        names.index_norm_eps,
        indexer.norm_eps,
        "a finite number that is not negative",
    )
}

struct Checker<'a> {
    prefix: &'a str,
    origin: &'a str,
}

impl Checker<'_> {
    fn size(
        &self,
        name: &str,
        value: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<(), ModelError> {
        self.that(
            range.contains(&value),
            name,
            value,
            format_args!("{} to {}", range.start(), range.end()),
        )
    }

    fn positive(&self, name: &str, value: f32) -> Result<(), ModelError> {
        self.that(
            value.is_finite() && value > 0.0,
            name,
            value,
            "a finite number above 0",
        )
    }

    fn that(
        &self,
        holds: bool,
        name: &str,
        found: impl Display,
        expected: impl Display,
    ) -> Result<(), ModelError> {
        if holds {
            return Ok(());
        }
        Err(ModelError::BadKey {
            origin: self.origin.to_owned(),
            key: format!("{}{name}", self.prefix),
            found: found.to_string(),
            expected: expected.to_string(),
        })
    }
}
