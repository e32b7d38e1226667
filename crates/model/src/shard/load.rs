//! A rank's bytes from a checkpoint.
//!
//! Each rank reads its own slices only, straight from what the file stores: rows in one piece and borrowed, columns
//! copied run by run, experts that lie apart one at a time, fused tensors part by part. Keys of a quantised `attn_kv_b`
//! are the exception: blocks run across the axis to be transposed, so that the whole is decoded first.

use std::borrow::Cow;
use std::ops::Range;

use glim_plan::{BackendError, WeightData, WeightSource};

use super::error::ShardError;
use super::fused::{Form, Fused, Part, stored_data};
use super::runs::ByteRuns;
use super::slice::Slice;
use super::{Shards, Weight};
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::kv_b::{KvBDims, keys_of_kv_b};

/// One rank's view of a checkpoint: every tensor by its logical name, in this rank's shape.
///
/// Freely shared between threads.
#[derive(Debug, Clone, Copy)]
pub struct RankWeights<'a> {
    checkpoint: &'a Checkpoint,
    shards: &'a Shards,
    rank: usize,
}

impl Shards {
    /// What `rank` holds of `checkpoint`. The list is taken at its word: [`Self::check`] it first.
    ///
    /// # Errors
    /// [`ShardError::Rank`].
    pub fn rank<'a>(
        &'a self,
        checkpoint: &'a Checkpoint,
        rank: usize,
    ) -> Result<RankWeights<'a>, ShardError> {
        let world_size = self.world_size();
        if rank >= world_size {
            return Err(ShardError::Rank { rank, world_size });
        }
        Ok(RankWeights {
            checkpoint,
            shards: self,
            rank,
        })
    }
}

impl<'a> RankWeights<'a> {
    /// Which rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// This rank's part of a tensor: its shape, and its bytes, row-major blocks of the logical type. Borrowed from the
    /// mapping where they lie there in one piece.
    ///
    /// # Errors
    /// A tensor that list or checkpoint lack, or that differs between them; a wrong list; bytes that cannot be had.
    pub fn load(&self, name: &str) -> Result<WeightData<'a>, ShardError> {
        let unknown = || ShardError::Unknown {
            tensor: name.to_owned(),
        };
        let sharded = self.shards.weight(name).ok_or_else(unknown)?;
        let desc = self.checkpoint.tensor(name).ok_or_else(unknown)?;
        let weight = sharded.weight();
        if (desc.ty, &desc.shape) != (weight.ty, &weight.shape) {
            return Err(other_checkpoint(
                weight,
                format!("{} {:?}", desc.ty, desc.shape),
            ));
        }
        let shape = sharded.shape(self.rank)?;
        let slices = sharded
            .slices()
            .get(self.rank)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let bytes = match slices {
            // A list that passes `shape` has one slice, or none for an idle rank.
            [slice] => self.bytes(weight, desc, slice)?,
            _ => Cow::Borrowed(&[][..]),
        };
        let expected = sharded.byte_len(self.rank)?;
        if bytes.len() != expected {
            return Err(other_checkpoint(
                weight,
                format!("{} bytes for this rank, not {expected}", bytes.len()),
            ));
        }
        Ok(WeightData {
            ty: weight.ty,
            shape,
            bytes,
        })
    }

    /// The bytes of this rank's part of a tensor whose first index is in `outer`, as [`Self::load`] would have them: for whoever
    /// cannot hold the whole part.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_outer(
        &self,
        name: &str,
        outer: &Range<usize>,
    ) -> Result<Cow<'a, [u8]>, ShardError> {
        let unknown = || ShardError::Unknown {
            tensor: name.to_owned(),
        };
        let sharded = self.shards.weight(name).ok_or_else(unknown)?;
        let desc = self.checkpoint.tensor(name).ok_or_else(unknown)?;
        let slices = sharded.slices().get(self.rank);
        let Some([slice]) = slices.map(Vec::as_slice) else {
            return Ok(Cow::Borrowed(&[]));
        };
        let mut ranges = slice.ranges().to_vec();
        if let Some(first) = ranges.first_mut() {
            let end = first.end.min(outer.end);
            *first = first.start.max(outer.start).min(end)..end;
        }
        self.bytes(sharded.weight(), desc, &Slice::new(ranges))
    }

    fn bytes(
        &self,
        weight: &Weight,
        desc: &TensorDesc,
        slice: &Slice,
    ) -> Result<Cow<'a, [u8]>, ShardError> {
        match Form::of(self.checkpoint, desc)? {
            Form::Whole { .. } => self.of_logical(weight, desc, slice),
            Form::Stack { .. } => self.of_stack(weight, desc, slice),
            Form::Part {
                fused,
                part: Part::First,
                stored,
            } if desc.role == crate::catalogue::Role::AttnKB => {
                self.keys(weight, desc, slice, &fused, stored)
            }
            Form::Part {
                fused,
                part,
                stored,
            } => {
                // Asked for the error only: what has no codec is not handed out in other forms either.
                if !weight.ty.can_decode() {
                    self.checkpoint.data(desc)?;
                }
                let bytes = stored_bytes(self.checkpoint, weight, stored)?;
                let slice = fused
                    .stored_slice(part, slice)
                    .ok_or_else(|| layout(weight))?;
                collect(weight, bytes, &fused.view(), &slice)
            }
        }
    }

    fn of_logical(
        &self,
        weight: &Weight,
        desc: &TensorDesc,
        slice: &Slice,
    ) -> Result<Cow<'a, [u8]>, ShardError> {
        collect(weight, self.checkpoint.data(desc)?, &weight.shape, slice)
    }

    /// Experts that lie apart, one after the other.
    fn of_stack(
        &self,
        weight: &Weight,
        desc: &TensorDesc,
        slice: &Slice,
    ) -> Result<Cow<'a, [u8]>, ShardError> {
        let (Some((experts, inside)), Some((_, shape))) =
            (slice.ranges().split_first(), weight.shape.split_first())
        else {
            return Err(layout(weight));
        };
        let inside = Slice::new(inside.to_vec());
        let mut bytes = Vec::new();
        for expert in experts.clone() {
            let piece = self.checkpoint.item(desc, expert)?;
            bytes.extend_from_slice(&collect(weight, piece, shape, &inside)?);
        }
        Ok(Cow::Owned(bytes))
    }

    /// Keys of a whole `attn_kv_b`: this rank's heads are one piece of it.
    fn keys(
        &self,
        weight: &Weight,
        desc: &TensorDesc,
        slice: &Slice,
        fused: &Fused,
        stored: usize,
    ) -> Result<Cow<'a, [u8]>, ShardError> {
        let config = self.checkpoint.config();
        let [heads, rest @ ..] = slice.ranges() else {
            return Err(layout(weight));
        };
        let bytes = stored_bytes(self.checkpoint, weight, stored)?;
        let [n_heads, rows, cols] = fused.view();
        let elem = weight.ty.block_bytes();
        let are_plain = weight.ty.block_elems() == 1 && bytes.len() == n_heads * rows * cols * elem;
        let are_whole_heads = *rest == [0..weight.shape[1], 0..weight.shape[2]];
        if !are_plain || !are_whole_heads {
            return self.of_logical(weight, desc, slice);
        }
        let head_bytes = rows * cols * elem;
        let own = bytes
            .get(heads.start * head_bytes..heads.end * head_bytes)
            .ok_or_else(|| layout(weight))?;
        let dims = KvBDims {
            n_heads: heads.len(),
            nope: config.qk_nope_head_dim,
            v: config.v_head_dim,
            rank: config.kv_lora_rank,
        };
        let keys = keys_of_kv_b(own, dims, elem)
            .map_err(|error| other_checkpoint(weight, error.to_string()))?;
        Ok(Cow::Owned(keys))
    }
}

impl WeightSource for RankWeights<'_> {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        self.load(name).map_err(|error| BackendError::Source {
            weight: name.into(),
            reason: error.to_string(),
        })
    }
}

/// The bytes of a slice: borrowed if they are one run of borrowed bytes.
fn collect<'b>(
    weight: &Weight,
    bytes: Cow<'b, [u8]>,
    shape: &[usize],
    slice: &Slice,
) -> Result<Cow<'b, [u8]>, ShardError> {
    let runs = ByteRuns::new(weight.ty, shape, slice).ok_or_else(|| layout(weight))?;
    let too_short = |range: &Range<usize>| {
        other_checkpoint(
            weight,
            format!("too short for bytes {}..{}", range.start, range.end),
        )
    };
    let mut first_of_many = runs.clone();
    match (first_of_many.next(), first_of_many.len()) {
        (None, _) => return Ok(Cow::Borrowed(&[])),
        (Some(run), 0) => {
            if run == (0..bytes.len()) {
                return Ok(bytes);
            }
            return match bytes {
                Cow::Borrowed(bytes) => bytes
                    .get(run.clone())
                    .map(Cow::Borrowed)
                    .ok_or_else(|| too_short(&run)),
                Cow::Owned(bytes) => {
                    let own = bytes.get(run.clone()).ok_or_else(|| too_short(&run))?;
                    Ok(Cow::Owned(own.to_vec()))
                }
            };
        }
        _ => {}
    }
    let mut own = Vec::with_capacity(runs.byte_len().min(bytes.len()));
    for run in runs {
        own.extend_from_slice(bytes.get(run.clone()).ok_or_else(|| too_short(&run))?);
    }
    Ok(Cow::Owned(own))
}

fn stored_bytes<'b>(
    checkpoint: &'b Checkpoint,
    weight: &Weight,
    stored: usize,
) -> Result<Cow<'b, [u8]>, ShardError> {
    stored_data(checkpoint, stored).ok_or_else(|| ShardError::Unknown {
        tensor: weight.name.clone(),
    })
}

fn layout(weight: &Weight) -> ShardError {
    let Weight {
        name, shape, ty, ..
    } = weight;
    ShardError::Layout {
        tensor: name.clone(),
        shape: shape.clone(),
        ty: *ty,
    }
}

fn other_checkpoint(weight: &Weight, found: String) -> ShardError {
    let expected = format!("{} {:?}", weight.ty, weight.shape);
    ShardError::OtherCheckpoint {
        tensor: weight.name.clone(),
        found,
        expected,
    }
}
