//! Architectures: each emits plans for one step shape and one rank.

mod glm_dsa;

use glim_plan::{CacheGeometry, GgmlType, Plan, StateDecl, StateKind, StepKind};
use thiserror::Error;

use crate::config::{Config, IndexerKind};
use crate::inventory::Inventory;

/// Buffers of a plan that callers find by name.
pub mod names {
    /// Result `[N, vocab]` f32, if logits are asked for.
    pub const LOGITS: &str = "logits";
    /// Result `[N]` i32, if tokens are sampled.
    pub const TOKENS: &str = "sampled";
    /// Carry `[slots]` i32: each sequence's last sampled token.
    pub const CARRIED_TOKEN: &str = "carried_token";
    /// Temporary `[T, hidden]`: the embedded tokens.
    pub const EMBEDDING: &str = "token_embd.out";
    /// Temporary `[N, hidden]`: after the last norm.
    pub const FINAL_NORM: &str = "output_norm.out";

    /// Temporary `[T, hidden]`: the residual stream after a layer.
    pub fn layer_out(layer: usize) -> String {
        format!("blk.{layer}.ffn_residual.out")
    }

    /// Temporary `[T, k]` i32: the experts chosen by a sparse layer.
    pub fn router_ids(layer: usize) -> String {
        format!("blk.{layer}.router.ids")
    }

    /// Temporary `[T, k]` f32: their weights.
    pub fn router_weights(layer: usize) -> String {
        format!("blk.{layer}.router.weights")
    }

    /// Temporary `[T, max positions]` f32: index scores of a full layer.
    pub fn index_scores(layer: usize) -> String {
        format!("blk.{layer}.indexer.scores")
    }

    /// Temporary `[T, topk]` i32: positions chosen by a full layer.
    pub fn index_topk(layer: usize) -> String {
        format!("blk.{layer}.indexer.topk")
    }
}

/// Which rows of a step get logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputRows {
    /// One for each sequence (each row of a decode step).
    Last,
    /// Every row.
    All,
}

/// A plan to be made.
#[derive(Debug, Clone)]
pub struct EmitRequest {
    /// Step kind and bucket.
    pub step: StepKind,
    /// Cache shape.
    pub geometry: CacheGeometry,
    /// This rank.
    pub rank: usize,
    /// Ranks.
    pub world_size: usize,
    /// Slots of carries: sequences that can be alive at a time.
    pub sequence_slots: usize,
    /// Rows that get logits.
    pub outputs: OutputRows,
    /// Whether logits are a result.
    pub logits: bool,
    /// Whether tokens are sampled in the step.
    pub sample: bool,
    /// Whether rows can be given the positions that they attend to ([`glim_plan::InputKind::ForcedTopk`]): for comparisons.
    pub forced_topk: bool,
    /// Candidates that each rank keeps of its part of the vocabulary, where tokens are drawn and logits are not asked for; `None`: the
    /// logits are gathered whole. Enough for draws that are [`glim_plan::sample::is_shortlistable`].
    pub shortlist: Option<usize>,
    /// Type of values on their way between ranks: F32 in exact math.
    pub wire: GgmlType,
    /// Element type of the latent cache.
    pub latent_type: GgmlType,
    /// Element type of the index-key cache.
    pub index_key_type: GgmlType,
}

impl EmitRequest {
    /// One rank, f32 caches, one sequence slot, the last rows sampled.
    pub fn new(step: StepKind, geometry: CacheGeometry) -> Self {
        Self {
            step,
            geometry,
            rank: 0,
            world_size: 1,
            sequence_slots: 1,
            outputs: OutputRows::Last,
            logits: false,
            sample: true,
            forced_topk: false,
            shortlist: None,
            wire: GgmlType::F32,
            latent_type: GgmlType::F32,
            index_key_type: GgmlType::F32,
        }
    }
}

/// Why a plan cannot be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum EmitError {
    /// A weight that the architecture needs is not in the inventory.
    #[error("the model has no tensor {name}, which its plan reads")]
    NoWeight {
        /// GGUF name.
        name: String,
    },
    /// A shared layer before any full one.
    #[error("layer {layer} shares the indexer of an earlier layer, but there is none before it")]
    NoFullIndexer {
        /// Layer.
        layer: usize,
    },
    /// Nothing to compute.
    #[error("a step that neither samples nor gives logits has no result")]
    NoResult,
    /// The weights are not cut for these ranks.
    #[error(
        "a plan for rank {rank} of {world_size} needs weights cut for {world_size} ranks, not for {found}"
    )]
    WorldSize {
        /// Rank asked for.
        rank: usize,
        /// Ranks asked for.
        world_size: usize,
        /// Ranks that the inventory is cut over.
        found: usize,
    },
    /// A rank would have no part of a product whose parts are gathered.
    #[error(
        "{name} cannot be cut by rows over {world_size} ranks: some would have none; keep the latents whole on each rank instead"
    )]
    IdleRank {
        /// GGUF name.
        name: String,
        /// Ranks.
        world_size: usize,
    },
    /// No such architecture.
    #[error("no plans for the architecture {arch}: expected one of {}", SUPPORTED.join(", "))]
    UnknownArch {
        /// `general.architecture`.
        arch: String,
    },
}

/// Architectures that plans can be emitted for, by `general.architecture`.
pub const SUPPORTED: &[&str] = &["glm-dsa"];

/// Makes a plan.
///
/// # Errors
/// If the architecture is unknown, a weight is absent or not cut for these ranks, or the request asks for nothing.
pub fn emit(inventory: &Inventory, request: &EmitRequest) -> Result<Plan, EmitError> {
    let EmitRequest {
        rank, world_size, ..
    } = *request;
    let found = inventory.world_size();
    if found != world_size || rank >= world_size {
        return Err(EmitError::WorldSize {
            rank,
            world_size,
            found,
        });
    }
    match inventory.config().arch.as_str() {
        "glm-dsa" => glm_dsa::emit(inventory, request),
        arch => Err(EmitError::UnknownArch {
            arch: arch.to_owned(),
        }),
    }
}

/// The states that a model owns: latent rows of every layer, index keys of the full ones.
pub fn states(config: &Config, latent_type: GgmlType, index_key_type: GgmlType) -> Vec<StateDecl> {
    let full = |layer: &usize| config.indexer.kinds.get(*layer) == Some(&IndexerKind::Full);
    let latents = (0..config.n_layers).map(|layer| latent_state(config, layer, latent_type));
    let keys = (0..config.n_layers)
        .filter(full)
        .map(|layer| index_key_state(config, layer, index_key_type));
    latents.chain(keys).collect()
}

/// `[c ‖ k_pe]` of a layer.
pub(crate) fn latent_state(config: &Config, layer: usize, ty: GgmlType) -> StateDecl {
    paged(format!("latent.{layer}"), ty, config.latent_dim())
}

/// Index keys of a full layer.
pub(crate) fn index_key_state(config: &Config, layer: usize, ty: GgmlType) -> StateDecl {
    paged(format!("index_key.{layer}"), ty, config.indexer.head_dim)
}

fn paged(name: String, dtype: GgmlType, width: usize) -> StateDecl {
    let bytes_per_token = dtype.row_bytes(width).unwrap_or(0);
    StateDecl {
        name,
        kind: StateKind::Paged { bytes_per_token },
        dtype,
        shape: vec![width],
    }
}
