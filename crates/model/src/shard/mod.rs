//! Shards: which part of each logical tensor each rank holds under tensor parallelism.
//!
//! A list of shards is data: for each tensor and rank, [`Slice`]s in the coordinates of the *logical* tensor. It is
//! derived from the tensor's [`Role`] by one table (`rule.rs`) and never written by hand for a name, and it is proven by
//! [`Shards::check`], which knows the table but not how the list was made. Bytes come last: [`ByteRuns`] says where a
//! slice lies in a tensor, [`Fused`] where a part lies in a stored tensor that holds two, and [`Shards::rank`] loads.
//!
//! What that excludes is the classic fault of this class of servers: fused matrices cut as if they were one. Gate and up
//! are two logical tensors here, whether or not the file stores them as one, and `attn_kv_b` goes head by head.
//!
//! Cuts: attention by head, MLPs by blocks of the inner width, the head by rows of the vocabulary; see [`Options`] for what
//! else may be. The unit of an MLP is one block of its down matrix, whose columns are cut; the rows of gate and up are cut
//! at the same places. Where the units do not divide, shares are uneven ([`share`]). Heads must divide, and a rank's
//! columns of `attn_output` must be whole blocks: anything else is an error that says which numbers of ranks would do.
//!
//! ```
//! use glim_model::shard::{Options, PaperModel, Shards};
//! use glim_quant::GgmlType;
//!
//! let model = PaperModel::glm47_flash();
//! let weights = model.weights(|spec| if spec.role.is_float_only() { GgmlType::F32 } else { GgmlType::Q8_0 });
//! let shards = Shards::new(model.heads, weights.clone(), 4, &Options::default())?;
//! shards.check()?;
//! let down = shards.weight("blk.1.ffn_down_exps.weight").ok_or("no such tensor")?;
//! assert_eq!(down.slices()[3][0].to_string(), "[0..64, 0..2048, 1152..1536]");
//! assert_eq!(down.shape(3)?, [64, 2048, 384]);
//!
//! let refused = Shards::new(model.heads, weights, 3, &Options::default()).map(|_| ());
//! assert!(refused.unwrap_err().to_string().contains("20 heads cannot be divided among 3 ranks"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod cut;
mod error;
mod fused;
mod load;
mod paper;
mod rule;
mod runs;
mod slice;

use std::collections::HashMap;

use glim_plan::Placement;
use glim_quant::GgmlType;

pub use self::cut::share;
pub use self::error::{ShardError, ShardFault};
pub use self::fused::{Form, Fused, FusedRows, Part};
pub use self::load::RankWeights;
pub use self::paper::PaperModel;
pub use self::rule::{Family, Latents, Options, TokenEmbd};
pub use self::runs::{ByteRuns, GatherRuns, boxes_of_bytes};
pub use self::slice::Slice;

use self::cut::{Cut, Cutter};
use crate::catalogue::{Role, TensorSpec};
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::config::Config;

/// Ranks of one model.
pub const MAX_WORLD_SIZE: usize = 256;

/// A logical tensor that is to be cut: name, role, type and shape, without bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// GGUF's name of the logical form; unique in its list.
    pub name: String,
    /// What it is for: this alone decides how it is cut.
    pub role: Role,
    /// Its layer; MTP blocks count on from the trunk.
    pub layer: Option<usize>,
    /// Block type of the logical form.
    pub ty: GgmlType,
    /// Row-major shape, in elements.
    pub shape: Vec<usize>,
}

impl Weight {
    /// A tensor of a catalogue, in a type of the caller's choice.
    pub fn on_paper(spec: &TensorSpec, ty: GgmlType) -> Self {
        let TensorSpec {
            name,
            role,
            layer,
            shape,
        } = spec.clone();
        Weight {
            name,
            role,
            layer,
            ty,
            shape,
        }
    }
}

impl From<&TensorDesc> for Weight {
    fn from(desc: &TensorDesc) -> Self {
        Weight {
            name: desc.name.clone(),
            role: desc.role,
            layer: desc.layer,
            ty: desc.ty,
            shape: desc.shape.clone(),
        }
    }
}

/// How many heads there are; their widths follow from the shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCounts {
    /// Attention heads.
    pub attention: usize,
    /// Index heads; of no consequence for a model without indexer.
    pub index: usize,
}

impl From<&Config> for HeadCounts {
    fn from(config: &Config) -> Self {
        HeadCounts {
            attention: config.n_heads,
            index: config.indexer.n_heads,
        }
    }
}

/// One tensor, and what each rank holds of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardedWeight {
    weight: Weight,
    cut: Option<Cut>,
    slices: Vec<Vec<Slice>>,
}

impl ShardedWeight {
    /// The tensor.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// For each rank, its slices. In a right list that is one for each, empty for an idle rank; a wrong one may need
    /// several to say what it says.
    pub fn slices(&self) -> &[Vec<Slice>] {
        &self.slices
    }

    /// Whether the rule cuts this tensor, and along which axis.
    pub fn placement(&self) -> Placement {
        match self.cut {
            None => Placement::Replicated,
            Some(cut) => Placement::Sharded { axis: cut.axis },
        }
    }

    /// Row-major shape of what a rank holds; 0 on the axis that is cut if it holds nothing.
    ///
    /// # Errors
    /// A rank that does not exist; a list of shards that is wrong.
    pub fn shape(&self, rank: usize) -> Result<Vec<usize>, ShardError> {
        let slices = self.of_rank(rank)?;
        check::check_weight(self, self.slices.len())?;
        let mut shape = self.weight.shape.clone();
        if let Some(cut) = self.cut {
            shape[cut.axis] = slices
                .iter()
                .map(|slice| slice.ranges()[cut.axis].len())
                .sum();
        }
        Ok(shape)
    }

    /// The bytes of the whole logical tensor that a rank holds, slice after slice, each in ascending runs.
    ///
    /// # Errors
    /// A rank that does not exist; slices that are not inside of the tensor, or no whole blocks.
    pub fn runs(
        &self,
        rank: usize,
    ) -> Result<impl Iterator<Item = std::ops::Range<usize>> + Clone, ShardError> {
        let runs: Vec<ByteRuns> = self
            .of_rank(rank)?
            .iter()
            .map(|slice| self.runs_of(rank, slice))
            .collect::<Result<_, _>>()?;
        Ok(runs.into_iter().flatten())
    }

    /// How many bytes a rank holds.
    ///
    /// # Errors
    /// As [`Self::runs`].
    pub fn byte_len(&self, rank: usize) -> Result<usize, ShardError> {
        let slices = self.of_rank(rank)?.iter();
        slices
            .map(|slice| Ok(self.runs_of(rank, slice)?.byte_len()))
            .sum()
    }

    /// How the ranks' bytes, put together in this order, are the tensor's bytes. Replicated tensors are rank 0's.
    ///
    /// # Errors
    /// A list of shards that is wrong.
    pub fn gather_runs(&self) -> Result<GatherRuns, ShardError> {
        check::check_weight(self, self.slices.len())?;
        let Some(cut) = self.cut else {
            return Ok(GatherRuns::new(vec![self.byte_len(0)?], 1));
        };
        let outer: usize = self.weight.shape[..cut.axis].iter().product();
        let lens = (0..self.slices.len()).map(|rank| Ok(self.byte_len(rank)? / outer.max(1)));
        Ok(GatherRuns::new(
            lens.collect::<Result<_, ShardError>>()?,
            outer,
        ))
    }

    fn of_rank(&self, rank: usize) -> Result<&[Slice], ShardError> {
        let world_size = self.slices.len();
        let slices = self
            .slices
            .get(rank)
            .ok_or(ShardError::Rank { rank, world_size })?;
        Ok(slices)
    }

    fn runs_of(&self, rank: usize, slice: &Slice) -> Result<ByteRuns, ShardFault> {
        let Weight {
            name, ty, shape, ..
        } = &self.weight;
        if let Some(runs) = ByteRuns::new(*ty, shape, slice) {
            return Ok(runs);
        }
        if !slice.fits(shape) {
            let (tensor, slice, shape) = (name.clone(), slice.clone(), shape.clone());
            return Err(ShardFault::Outside {
                tensor,
                rank,
                slice,
                shape,
            });
        }
        // The tensor as a whole is whole blocks, or there would be no list: it is this slice that is not.
        let (axis, unit) = (shape.len().saturating_sub(1), ty.block_elems());
        let ends = slice
            .ranges()
            .last()
            .map_or([0; 2], |range| [range.start, range.end]);
        let at = ends
            .into_iter()
            .find(|at| !at.is_multiple_of(unit))
            .unwrap_or_default();
        Err(ShardFault::Misaligned {
            tensor: name.clone(),
            rank,
            axis,
            at,
            unit,
        })
    }
}

/// A model over `world_size` ranks: what each of them holds of each tensor.
#[derive(Debug, Clone)]
pub struct Shards {
    world_size: usize,
    weights: Vec<ShardedWeight>,
    by_name: HashMap<String, usize>,
}

impl Shards {
    /// Cuts `weights` by the rule.
    ///
    /// # Errors
    /// No such number of ranks; heads that it does not divide, or that end inside of blocks; fewer blocks than ranks;
    /// a tensor of another shape than its role calls for, or listed twice.
    pub fn new(
        heads: HeadCounts,
        weights: Vec<Weight>,
        world_size: usize,
        options: &Options,
    ) -> Result<Self, ShardError> {
        if !(1..=MAX_WORLD_SIZE).contains(&world_size) {
            return Err(ShardError::WorldSize { world_size });
        }
        let cuts = cuts(heads, &weights, world_size, options)?;
        let mut by_name = HashMap::with_capacity(weights.len());
        for (index, weight) in weights.iter().enumerate() {
            if by_name.insert(weight.name.clone(), index).is_some() {
                return Err(ShardError::Duplicate {
                    tensor: weight.name.clone(),
                });
            }
        }
        let sharded = |(weight, cut): (Weight, Option<Cut>)| {
            let slice = |rank| match cut {
                None => Slice::whole(&weight.shape),
                Some(cut) => cut.slice(&weight.shape, rank, world_size),
            };
            let slices = (0..world_size).map(|rank| vec![slice(rank)]).collect();
            ShardedWeight {
                weight,
                cut,
                slices,
            }
        };
        let weights = weights.into_iter().zip(cuts).map(sharded).collect();
        Ok(Shards {
            world_size,
            weights,
            by_name,
        })
    }

    /// Cuts every tensor of a checkpoint: the trunk's, then those of MTP blocks.
    ///
    /// A head that is tied to the embedding table is cut by itself: where the table is replicated, a rank holds its
    /// share of the rows as the head besides.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(
        checkpoint: &Checkpoint,
        world_size: usize,
        options: &Options,
    ) -> Result<Self, ShardError> {
        Self::new(
            checkpoint.config().into(),
            weights_of(checkpoint),
            world_size,
            options,
        )
    }

    /// The numbers of ranks, up to [`MAX_WORLD_SIZE`], over which a model can be cut.
    pub fn possible_world_sizes(
        heads: HeadCounts,
        weights: &[Weight],
        options: &Options,
    ) -> Vec<usize> {
        (1..=MAX_WORLD_SIZE)
            .filter(|&world_size| cuts(heads, weights, world_size, options).is_ok())
            .collect()
    }

    /// How many ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Every tensor, in the order of the list that was cut: a checkpoint's in catalogue order.
    pub fn weights(&self) -> &[ShardedWeight] {
        &self.weights
    }

    /// A tensor by its name.
    pub fn weight(&self, name: &str) -> Option<&ShardedWeight> {
        self.weights.get(*self.by_name.get(name)?)
    }

    /// Bytes of everything that a rank holds.
    ///
    /// # Errors
    /// As [`ShardedWeight::byte_len`].
    pub fn byte_len(&self, rank: usize) -> Result<u64, ShardError> {
        self.weights
            .iter()
            .map(|weight| Ok(weight.byte_len(rank)? as u64))
            .sum()
    }

    /// Replaces what the ranks hold of a tensor, for lists that were made elsewhere: for [`Self::check`] to judge.
    ///
    /// # Errors
    /// [`ShardError::Unknown`].
    pub fn set_slices(&mut self, name: &str, slices: Vec<Vec<Slice>>) -> Result<(), ShardError> {
        let index = self.by_name.get(name).ok_or_else(|| ShardError::Unknown {
            tensor: name.to_owned(),
        })?;
        self.weights[*index].slices = slices;
        Ok(())
    }
}

/// All tensors of trunk and MTP blocks, in catalogue order.
pub fn weights_of(checkpoint: &Checkpoint) -> Vec<Weight> {
    checkpoint
        .tensors()
        .iter()
        .chain(checkpoint.mtp_tensors())
        .map(Weight::from)
        .collect()
}

fn cuts(
    heads: HeadCounts,
    weights: &[Weight],
    world_size: usize,
    options: &Options,
) -> Result<Vec<Option<Cut>>, ShardError> {
    let cutter = Cutter::new(heads, weights, options);
    weights
        .iter()
        .map(|weight| cutter.cut(weight, world_size))
        .collect()
}
