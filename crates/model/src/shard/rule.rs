//! The rule: how a tensor is cut, by its [`Role`] alone.
//!
//! One table for every architecture, file form and quantisation. Attention is cut by head and each MLP by its inner width,
//! so that each rank's partial sums meet in one all-reduce after `attn_output` and one after the down matrices (Megatron's
//! scheme). What every rank needs whole (norms, router, latents, indexer) is replicated.

use crate::catalogue::Role;

/// What may be cut or not, at the caller's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The embedding table.
    pub token_embd: TokenEmbd,
    /// The projections to the latents, and those of the indexer.
    pub latents: Latents,
    /// Whether a rank may have no part of an MLP, where there are fewer blocks than ranks, or none of another tensor that
    /// is cut by rows. It then adds nothing to the sum and waits for the others; by default that is
    /// [an error](super::ShardError::IdleRanks).
    pub allow_idle_ranks: bool,
}

/// Where the embedding table lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenEmbd {
    /// Whole on each rank: costs memory, saves a collective.
    #[default]
    Replicated,
    /// Cut by rows; embedding then ends in an all-reduce.
    VocabRows,
}

/// Where the projections to the latents (`attn_q_a`, `attn_kv_a_mqa`) and those of the indexer lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Latents {
    /// Whole on each rank.
    #[default]
    Replicated,
    /// Cut by rows, those of the index heads by head; where there are fewer index heads than ranks, some ranks have none.
    /// Each part is gathered on its own before its norm, which needs the whole vector.
    Rows,
}

/// Tensors of one layer that must be cut at the same places, as what one yields the other takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Attention heads: queries, keys, values, and the columns of `attn_output`.
    Heads,
    /// Inner width of the dense MLP.
    Dense,
    /// Inner width of the routed experts: cut inside each.
    Routed,
    /// Inner width of the shared experts, which are one MLP.
    Shared,
    /// Index heads: their queries and their weights.
    IndexHeads,
}

/// What the units are that an axis is cut in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Heads; the number of ranks must divide theirs.
    Heads,
    /// Blocks of the down matrix of this MLP.
    Inner(Family),
    /// Index heads; any share of them.
    IndexHeads,
    /// Single rows.
    Rows,
}

impl By {
    pub(super) fn family(self) -> Option<Family> {
        match self {
            By::Heads => Some(Family::Heads),
            By::Inner(family) => Some(family),
            By::IndexHeads => Some(Family::IndexHeads),
            By::Rows => None,
        }
    }
}

/// How tensors of one role are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Each rank holds the whole.
    Replicated,
    /// Each rank holds its share of `axis`; the tensor has `axes` of them.
    Cut { axis: usize, axes: usize, by: By },
}

/// The table. Axes are those of the shapes that [`Role`] documents.
pub(super) fn rule(role: Role, options: &Options) -> Rule {
    let cut = |axis, axes, by| Rule::Cut { axis, axes, by };
    let if_latents = |by| match options.latents {
        Latents::Replicated => Rule::Replicated,
        Latents::Rows => cut(0, 2, by),
    };
    match role {
        Role::TokenEmbd | Role::NextnEmbedTokens => match options.token_embd {
            TokenEmbd::Replicated => Rule::Replicated,
            TokenEmbd::VocabRows => cut(0, 2, By::Rows),
        },
        Role::Output | Role::NextnSharedHeadHead => cut(0, 2, By::Rows),

        Role::AttnQA | Role::AttnKvAMqa | Role::IndexerAttnK => if_latents(By::Rows),
        Role::IndexerAttnQB | Role::IndexerProj => if_latents(By::IndexHeads),

        Role::AttnQB => cut(0, 2, By::Heads),
        Role::AttnKB | Role::AttnVB => cut(0, 3, By::Heads),
        Role::AttnOutput => cut(1, 2, By::Heads),

        Role::FfnGate | Role::FfnUp => cut(0, 2, By::Inner(Family::Dense)),
        Role::FfnDown => cut(1, 2, By::Inner(Family::Dense)),
        Role::FfnGateExps | Role::FfnUpExps => cut(1, 3, By::Inner(Family::Routed)),
        Role::FfnDownExps => cut(2, 3, By::Inner(Family::Routed)),
        Role::FfnGateShexp | Role::FfnUpShexp => cut(0, 2, By::Inner(Family::Shared)),
        Role::FfnDownShexp => cut(1, 2, By::Inner(Family::Shared)),

        Role::OutputNorm
        | Role::AttnNorm
        | Role::FfnNorm
        | Role::AttnQANorm
        | Role::AttnKvANorm
        | Role::IndexerKNormWeight
        | Role::IndexerKNormBias
        | Role::FfnGateInp
        | Role::ExpProbsB
        | Role::NextnEhProj
        | Role::NextnEnorm
        | Role::NextnHnorm
        | Role::NextnSharedHeadNorm => Rule::Replicated,
    }
}

/// The MLP whose down matrix a tensor of this role is.
pub(super) fn down_of(role: Role) -> Option<Family> {
    match role {
        Role::FfnDown => Some(Family::Dense),
        Role::FfnDownExps => Some(Family::Routed),
        Role::FfnDownShexp => Some(Family::Shared),
        _ => None,
    }
}
