//! Why a model cannot be cut as asked, and what is wrong with a list of shards.

use std::ops::Range;

use glim_quant::GgmlType;

use super::rule::Family;
use super::slice::Slice;
use crate::error::ModelError;

/// Why there are no shards, or no bytes of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// No such number of ranks.
    #[error("{world_size} ranks; expected 1 to {max}", max = super::MAX_WORLD_SIZE)]
    WorldSize {
        /// What was asked for.
        world_size: usize,
    },

    /// The heads cannot be dealt out evenly.
    #[error(
        "tensor `{tensor}`: {heads} heads cannot be divided among {world_size} ranks; world sizes that would do: {}",
        list(would_do)
    )]
    Heads {
        /// The first tensor that is cut by head.
        tensor: String,
        /// Its heads.
        heads: usize,
        /// What was asked for.
        world_size: usize,
        /// The divisors of `heads`.
        would_do: Vec<usize>,
    },

    /// Heads end inside of blocks. There is no fall-back: other columns would belong to other heads.
    #[error(
        "tensor `{tensor}`: with {world_size} ranks each has {columns} columns, which are not whole blocks of {block} of \
         {ty}; world sizes that would do: {}; or requantise the tensor to a type with a smaller block",
        list(would_do), block = ty.block_elems()
    )]
    HeadBlocks {
        /// The tensor whose columns are heads.
        tensor: String,
        /// Its type.
        ty: GgmlType,
        /// Columns of each rank.
        columns: usize,
        /// What was asked for.
        world_size: usize,
        /// Divisors of the number of heads that leave whole blocks.
        would_do: Vec<usize>,
    },

    /// There are fewer units than ranks.
    #[error(
        "tensor `{tensor}` can be cut into {units} parts of {unit} at most, too few for {world_size} ranks; use fewer ranks, \
         a type with a smaller block, or allow idle ranks"
    )]
    IdleRanks {
        /// The tensor; of an MLP, its down matrix.
        tensor: String,
        /// Parts that there are.
        units: usize,
        /// Elements of each: a block, a head, or a row.
        unit: usize,
        /// What was asked for.
        world_size: usize,
    },

    /// A tensor's shape is not what its role calls for.
    #[error("tensor `{tensor}` has shape {found:?}; expected {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its row-major shape.
        found: Vec<usize>,
        /// In words.
        expected: String,
    },

    /// Rows are not whole blocks, or the tensor is too large to count its bytes.
    #[error(
        "tensor `{tensor}` of shape {shape:?} and type {ty} does not lie in whole blocks and countable bytes"
    )]
    Layout {
        /// The tensor.
        tensor: String,
        /// Its row-major shape.
        shape: Vec<usize>,
        /// Its type.
        ty: GgmlType,
    },

    /// A gate or up matrix without its down matrix, whose blocks say where the three are cut.
    #[error("tensor `{tensor}` cannot be cut: there is no down matrix beside it")]
    NoDown {
        /// The gate or up matrix.
        tensor: String,
    },

    /// Two tensors of one name.
    #[error("tensor `{tensor}` is listed twice; expected each name once")]
    Duplicate {
        /// The name.
        tensor: String,
    },

    /// A tensor that the list, or the checkpoint, does not have.
    #[error(
        "tensor `{tensor}` is not in the list of shards, or not in the checkpoint that it is to be loaded from"
    )]
    Unknown {
        /// The name that was asked for.
        tensor: String,
    },

    /// The checkpoint stores the tensor in a form that shards know nothing of.
    #[error(
        "tensor `{tensor}` of {elements} elements is made of {stored} stored elements; expected as many, or a fused form"
    )]
    Form {
        /// The logical tensor.
        tensor: String,
        /// Its elements.
        elements: usize,
        /// Elements of what it is made of.
        stored: usize,
    },

    /// A rank that does not exist.
    #[error("rank {rank} of {world_size}; expected less")]
    Rank {
        /// What was asked for.
        rank: usize,
        /// Ranks that there are.
        world_size: usize,
    },

    /// The checkpoint's tensor is not the one that was cut, or its bytes are not what its type and shape call for.
    #[error("tensor `{tensor}` of the checkpoint is {found}; the shards were made for {expected}")]
    OtherCheckpoint {
        /// The tensor.
        tensor: String,
        /// Type and shape, or bytes, of the checkpoint's.
        found: String,
        /// The same of the list's.
        expected: String,
    },

    /// The list of shards is wrong.
    #[error(transparent)]
    Fault(#[from] ShardFault),

    /// The checkpoint's bytes cannot be had.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// What is wrong with a list of shards. Each names the tensor, and the rank where it is one rank's.
///
/// Ranges are elements of an axis of the logical tensor, unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardFault {
    /// Too few or too many ranks.
    #[error("tensor `{tensor}` is listed for {found} ranks; expected {expected}")]
    Ranks {
        /// The tensor.
        tensor: String,
        /// Ranks of the list.
        found: usize,
        /// Ranks of the model.
        expected: usize,
    },

    /// A slice that does not lie in its tensor.
    #[error("tensor `{tensor}`, rank {rank}: slice {slice} is not inside of shape {shape:?}")]
    Outside {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
        /// The slice.
        slice: Slice,
        /// Row-major shape of the tensor.
        shape: Vec<usize>,
    },

    /// A rank has not all of a tensor that every rank must have whole.
    #[error(
        "tensor `{tensor}`, rank {rank}: holds {found}; expected the whole, as it is replicated and ranks must agree"
    )]
    NotReplicated {
        /// The tensor.
        tensor: String,
        /// The first rank that differs.
        rank: usize,
        /// What it holds.
        found: String,
    },

    /// Cut along another axis than the role calls for: so is a contiguous range of bytes where columns are to be cut.
    #[error(
        "tensor `{tensor}`, rank {rank}: slice {slice} is cut along axis {axis}; expected a cut along axis {expected} only{}",
        if *is_column_cut { " (columns: a strided copy, not a contiguous range of bytes)" } else { "" }
    )]
    WrongAxis {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
        /// The slice.
        slice: Slice,
        /// The axis that should be whole.
        axis: usize,
        /// The axis to cut.
        expected: usize,
        /// Whether that is the last axis.
        is_column_cut: bool,
    },

    /// A cut inside of a block, or of a head.
    #[error(
        "tensor `{tensor}`, rank {rank}: a cut at {at} of axis {axis}; expected a multiple of {unit}"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
        /// The axis that is cut.
        axis: usize,
        /// Where.
        at: usize,
        /// Elements that must stay together.
        unit: usize,
    },

    /// Two ranks hold the same elements.
    #[error(
        "tensor `{tensor}`, rank {rank}: {}..{} of axis {axis} is also held by rank {other}", range.start, range.end
    )]
    Overlap {
        /// The tensor.
        tensor: String,
        /// The rank whose slice begins later.
        rank: usize,
        /// The other one; may be the same rank.
        other: usize,
        /// The axis that is cut.
        axis: usize,
        /// What both hold.
        range: Range<usize>,
    },

    /// No rank holds these elements.
    #[error("tensor `{tensor}`: no rank holds {}..{} of axis {axis}", range.start, range.end)]
    Gap {
        /// The tensor.
        tensor: String,
        /// The axis that is cut.
        axis: usize,
        /// What is missing.
        range: Range<usize>,
    },

    /// The slices tile the tensor, but gathered in the order of ranks they are not the tensor.
    #[error(
        "tensor `{tensor}`, rank {rank}: its part begins at {found} of axis {axis}; expected {expected}: gathered in the order \
         of ranks the parts are not the whole"
    )]
    Order {
        /// The tensor.
        tensor: String,
        /// The first rank out of order.
        rank: usize,
        /// The axis that is cut.
        axis: usize,
        /// Where its part begins.
        found: usize,
        /// Where the ranks before it end.
        expected: usize,
    },

    /// A rank's part is right, but in pieces.
    #[error(
        "tensor `{tensor}`, rank {rank}: {found} slices; expected one, as its bytes could not be gathered row by row"
    )]
    Pieces {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
        /// How many slices.
        found: usize,
    },

    /// Two tensors that meet in one product are cut at different places.
    #[error(
        "rank {rank} holds {what} {} of tensor `{tensor}`, but {} of `{other}`; expected the same of both",
        ranges(found), ranges(expected), what = what(*family)
    )]
    Disagree {
        /// The tensor that differs.
        tensor: String,
        /// The one that it differs from.
        other: String,
        /// The first rank for which they differ.
        rank: usize,
        /// What is dealt out.
        family: Family,
        /// Units (heads; blocks of the MLP's down matrix) of `tensor`.
        found: Vec<Range<usize>>,
        /// Units of `other`.
        expected: Vec<Range<usize>>,
    },

    /// In a stored tensor that holds two logical ones, a rank takes rows of one for the other.
    #[error(
        "tensor `{tensor}`, rank {rank}: row {row} is taken for `{taken_for}`, but is row {part_row} of {outer} {index} of `{is}`"
    )]
    WrongPart {
        /// The stored tensor.
        tensor: String,
        /// The rank.
        rank: usize,
        /// The first such row of the stored tensor, all its axes but the last counted as one.
        row: usize,
        /// The logical tensor that the list says.
        taken_for: String,
        /// The logical tensor that the row belongs to.
        is: String,
        /// `head` or `expert`.
        outer: &'static str,
        /// Which.
        index: usize,
        /// Row inside of that head's or expert's part.
        part_row: usize,
    },
}

fn list(numbers: &[usize]) -> String {
    match numbers {
        [] => "none".to_owned(),
        _ => numbers
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn ranges(ranges: &[Range<usize>]) -> String {
    match ranges {
        [] => "none".to_owned(),
        _ => ranges
            .iter()
            .map(|r| format!("{}..{}", r.start, r.end))
            .collect::<Vec<_>>()
            .join(" and "),
    }
}

fn what(family: Family) -> &'static str {
    match family {
        Family::Heads => "heads",
        Family::IndexHeads => "index heads",
        Family::Dense | Family::Routed | Family::Shared => "inner blocks",
    }
}
