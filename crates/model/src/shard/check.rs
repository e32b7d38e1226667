//! The proof that a list of shards is the model, whatever made the list. It needs no data.
//!
//! For each tensor: every rank holds the whole, or the ranks' slices tile it along the one axis that its role is cut
//! along, on boundaries of blocks and heads, in the order of ranks. And for each [`Family`]: its tensors are cut at the
//! same places. The second is what a tensor by itself cannot show: gate and up that were concatenated before they were
//! cut tile both matrices perfectly, and are wrong.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cut::Cut;
use super::error::ShardFault;
use super::rule::Family;
use super::slice::Slice;
use super::{ShardedWeight, Shards};

impl Shards {
    /// Proves that the list is right: each tensor complete, no element twice, cuts on whole blocks and heads, replicated
    /// tensors whole on every rank, parts in the order of ranks, and tensors that work together cut at the same places.
    ///
    /// # Errors
    /// The first fault, in the order of the list; then those between tensors.
    pub fn check(&self) -> Result<(), ShardFault> {
        for weight in self.weights() {
            check_weight(weight, self.world_size())?;
        }
        check_families(self.weights().iter())
    }
}

/// One tensor by itself.
pub(super) fn check_weight(sharded: &ShardedWeight, world_size: usize) -> Result<(), ShardFault> {
    let (weight, slices) = (sharded.weight(), sharded.slices());
    let tensor = || weight.name.clone();
    if slices.len() != world_size {
        return Err(ShardFault::Ranks {
            tensor: tensor(),
            found: slices.len(),
            expected: world_size,
        });
    }
    for (rank, slice) in by_rank(slices) {
        if !slice.fits(&weight.shape) {
            let (slice, shape) = (slice.clone(), weight.shape.clone());
            return Err(ShardFault::Outside {
                tensor: tensor(),
                rank,
                slice,
                shape,
            });
        }
    }
    let Some(cut) = sharded.cut else {
        let whole = [Slice::whole(&weight.shape)];
        return match slices.iter().position(|found| *found != whole) {
            None => Ok(()),
            Some(rank) => Err(ShardFault::NotReplicated {
                tensor: tensor(),
                rank,
                found: in_words(&slices[rank]),
            }),
        };
    };
    for (rank, slice) in by_rank(slices).filter(|(_, slice)| !slice.is_empty()) {
        let is_whole = |axis: usize| slice.ranges()[axis] == (0..weight.shape[axis]);
        if let Some(axis) =
            (0..weight.shape.len()).find(|&axis| axis != cut.axis && !is_whole(axis))
        {
            return Err(ShardFault::WrongAxis {
                tensor: tensor(),
                rank,
                slice: slice.clone(),
                axis,
                expected: cut.axis,
                is_column_cut: cut.axis + 1 == weight.shape.len(),
            });
        }
        check_alignment(sharded, cut, rank, &slice.ranges()[cut.axis])?;
    }
    check_tiling(sharded, cut)?;
    match slices.iter().position(|slices| slices.len() > 1) {
        None => Ok(()),
        Some(rank) => Err(ShardFault::Pieces {
            tensor: tensor(),
            rank,
            found: slices[rank].len(),
        }),
    }
}

fn check_alignment(
    sharded: &ShardedWeight,
    cut: Cut,
    rank: usize,
    range: &Range<usize>,
) -> Result<(), ShardFault> {
    let weight = sharded.weight();
    let block = match cut.axis + 1 == weight.shape.len() {
        true => weight.ty.block_elems(),
        false => 1,
    };
    for unit in [cut.unit, block] {
        if let Some(at) = [range.start, range.end]
            .into_iter()
            .find(|at| !at.is_multiple_of(unit))
        {
            return Err(ShardFault::Misaligned {
                tensor: weight.name.clone(),
                rank,
                axis: cut.axis,
                at,
                unit,
            });
        }
    }
    Ok(())
}

/// The pieces cover the axis once, and in the order in which the ranks hold them.
fn check_tiling(sharded: &ShardedWeight, cut: Cut) -> Result<(), ShardFault> {
    let tensor = || sharded.weight().name.clone();
    let axis = cut.axis;
    let pieces: Vec<(usize, &Range<usize>)> = by_rank(sharded.slices())
        .filter(|(_, slice)| !slice.is_empty())
        .map(|(rank, slice)| (rank, &slice.ranges()[axis]))
        .collect();
    let mut sorted = pieces.clone();
    sorted.sort_by_key(|(_, range)| range.start);

    let (mut end, mut before) = (0, 0);
    for &(rank, range) in &sorted {
        if range.start < end {
            let range = range.start..range.end.min(end);
            return Err(ShardFault::Overlap {
                tensor: tensor(),
                rank,
                other: before,
                axis,
                range,
            });
        }
        if range.start > end {
            return Err(ShardFault::Gap {
                tensor: tensor(),
                axis,
                range: end..range.start,
            });
        }
        (end, before) = (range.end, rank);
    }
    let len = sharded.weight().shape[axis];
    if end < len {
        return Err(ShardFault::Gap {
            tensor: tensor(),
            axis,
            range: end..len,
        });
    }
    match pieces
        .iter()
        .zip(&sorted)
        .find(|(piece, sorted)| piece != sorted)
    {
        None => Ok(()),
        Some(((rank, piece), (_, expected))) => {
            let (found, expected) = (piece.start, expected.start);
            Err(ShardFault::Order {
                tensor: tensor(),
                rank: *rank,
                axis,
                found,
                expected,
            })
        }
    }
}

/// The tensors of each family of each layer give each rank the same heads, or the same inner blocks.
pub(super) fn check_families<'a>(
    weights: impl Iterator<Item = &'a ShardedWeight>,
) -> Result<(), ShardFault> {
    let mut first_of: BTreeMap<(Option<usize>, Family), &ShardedWeight> = BTreeMap::new();
    for sharded in weights {
        let Some(family) = sharded.cut.and_then(|cut| cut.family) else {
            continue;
        };
        let first = *first_of
            .entry((sharded.weight().layer, family))
            .or_insert(sharded);
        for rank in 0..sharded.slices().len() {
            let (found, expected) = (units(sharded, rank), units(first, rank));
            if found != expected {
                return Err(ShardFault::Disagree {
                    tensor: sharded.weight().name.clone(),
                    other: first.weight().name.clone(),
                    rank,
                    family,
                    found,
                    expected,
                });
            }
        }
    }
    Ok(())
}

/// What a rank holds of the axis that is cut, in units; neighbours merged.
fn units(sharded: &ShardedWeight, rank: usize) -> Vec<Range<usize>> {
    let Some(cut) = sharded.cut else {
        return Vec::new();
    };
    let mut merged: Vec<Range<usize>> = Vec::new();
    let slices = sharded.slices().get(rank).into_iter().flatten();
    for slice in slices.filter(|slice| !slice.is_empty()) {
        let range = &slice.ranges()[cut.axis];
        let range = range.start / cut.unit..range.end / cut.unit;
        match merged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => merged.push(range),
        }
    }
    merged
}

fn by_rank(slices: &[Vec<Slice>]) -> impl Iterator<Item = (usize, &Slice)> {
    slices
        .iter()
        .enumerate()
        .flat_map(|(rank, slices)| slices.iter().map(move |slice| (rank, slice)))
}

fn in_words(slices: &[Slice]) -> String {
    match slices {
        [] => "nothing".to_owned(),
        _ => slices
            .iter()
            .map(Slice::to_string)
            .collect::<Vec<_>>()
            .join(" and "),
    }
}
