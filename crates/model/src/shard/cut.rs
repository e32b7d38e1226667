//! Where one tensor is cut: the units of its axis, dealt out to the ranks.

use std::collections::HashMap;
use std::ops::Range;

use super::error::ShardError;
use super::rule::{By, Family, Options, Rule, down_of, rule};
use super::runs::ByteRuns;
use super::slice::Slice;
use super::{HeadCounts, Weight};

/// The units of rank `rank` of `world_size`, of `units` in all: consecutive, as even as can be.
///
/// Rank `r` of `R` has `⌊r·n/R⌋..⌊(r+1)·n/R⌋` of `n`.
///
/// # Panics
/// If `world_size` is 0.
pub fn share(units: usize, rank: usize, world_size: usize) -> Range<usize> {
    // In 128 bits the product cannot overflow, and the quotient is at most `units`.
    let start = |rank: usize| (rank as u128 * units as u128 / world_size as u128) as usize;
    start(rank)..start(rank + 1)
}

/// How one tensor is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) axis: usize,
    /// Elements that stay together: a head, a block of the down matrix, a row.
    pub(super) unit: usize,
    pub(super) units: usize,
    pub(super) family: Option<Family>,
}

impl Cut {
    /// What the rule gives to `rank`.
    pub(super) fn slice(&self, shape: &[usize], rank: usize, world_size: usize) -> Slice {
        let units = share(self.units, rank, world_size);
        Slice::along(
            shape,
            self.axis,
            units.start * self.unit..units.end * self.unit,
        )
    }
}

/// Everything that decides on cuts besides the tensor itself.
pub(super) struct Cutter<'a> {
    heads: HeadCounts,
    options: &'a Options,
    /// The down matrix of each MLP.
    downs: HashMap<(Option<usize>, Family), &'a Weight>,
}

impl<'a> Cutter<'a> {
    pub(super) fn new(heads: HeadCounts, weights: &'a [Weight], options: &'a Options) -> Self {
        let down = |weight: &'a Weight| Some(((weight.layer, down_of(weight.role)?), weight));
        Cutter {
            heads,
            options,
            downs: weights.iter().filter_map(down).collect(),
        }
    }

    /// How `weight` is cut over `world_size` ranks; `None` if it is replicated.
    pub(super) fn cut(
        &self,
        weight: &Weight,
        world_size: usize,
    ) -> Result<Option<Cut>, ShardError> {
        let whole = Slice::whole(&weight.shape);
        if weight.shape.contains(&0) {
            return Err(shape(weight, "no axis of length 0".to_owned()));
        }
        if ByteRuns::new(weight.ty, &weight.shape, &whole).is_none() {
            let (tensor, shape, ty) = (weight.name.clone(), weight.shape.clone(), weight.ty);
            return Err(ShardError::Layout { tensor, shape, ty });
        }
        let Rule::Cut { axis, axes, by } = rule(weight.role, self.options) else {
            return Ok(None);
        };
        if weight.shape.len() != axes {
            return Err(shape(weight, format!("{axes} axes")));
        }
        let len = weight.shape[axis];
        let unit = match by {
            By::Heads => width(weight, axis, self.heads.attention)?,
            By::IndexHeads => width(weight, axis, self.heads.index)?,
            By::Inner(family) => self.inner_block(weight, axis, family)?,
            By::Rows => 1,
        };
        let cut = Cut {
            axis,
            unit,
            units: len / unit,
            family: by.family(),
        };
        if by == By::Heads {
            check_heads(weight, cut, world_size)?;
        } else if cut.units < world_size && by != By::IndexHeads && !self.options.allow_idle_ranks {
            let named = match by {
                By::Inner(family) => self
                    .downs
                    .get(&(weight.layer, family))
                    .copied()
                    .unwrap_or(weight),
                _ => weight,
            };
            return Err(ShardError::IdleRanks {
                tensor: named.name.clone(),
                units: cut.units,
                unit,
                world_size,
            });
        }
        Ok(Some(cut))
    }

    /// Elements of a block of the MLP's down matrix: the unit in which gate, up and down are cut.
    fn inner_block(
        &self,
        weight: &Weight,
        axis: usize,
        family: Family,
    ) -> Result<usize, ShardError> {
        let Some(down) = self.downs.get(&(weight.layer, family)) else {
            return Err(ShardError::NoDown {
                tensor: weight.name.clone(),
            });
        };
        let inner = down.shape.last().copied().unwrap_or_default();
        let block = down.ty.block_elems();
        if weight.shape[axis] != inner {
            return Err(shape(
                weight,
                format!(
                    "{inner} along axis {axis}, as the columns of `{}`",
                    down.name
                ),
            ));
        }
        if !inner.is_multiple_of(block) {
            let (tensor, shape, ty) = (down.name.clone(), down.shape.clone(), down.ty);
            return Err(ShardError::Layout { tensor, shape, ty });
        }
        Ok(block)
    }
}

/// Elements of `axis` for each head.
fn width(weight: &Weight, axis: usize, heads: usize) -> Result<usize, ShardError> {
    let len = weight.shape[axis];
    if heads == 0 || !len.is_multiple_of(heads) {
        return Err(shape(
            weight,
            format!("a multiple of its {heads} heads along axis {axis}"),
        ));
    }
    Ok(len / heads)
}

fn check_heads(weight: &Weight, cut: Cut, world_size: usize) -> Result<(), ShardError> {
    let heads = cut.units;
    let divisors = || (1..=heads).filter(|&n| heads.is_multiple_of(n));
    if !heads.is_multiple_of(world_size) {
        return Err(ShardError::Heads {
            tensor: weight.name.clone(),
            heads,
            world_size,
            would_do: divisors().collect(),
        });
    }
    let is_column_cut = cut.axis + 1 == weight.shape.len();
    let in_blocks =
        |ranks: usize| (heads / ranks * cut.unit).is_multiple_of(weight.ty.block_elems());
    if is_column_cut && !in_blocks(world_size) {
        return Err(ShardError::HeadBlocks {
            tensor: weight.name.clone(),
            ty: weight.ty,
            columns: heads / world_size * cut.unit,
            world_size,
            would_do: divisors().filter(|&ranks| in_blocks(ranks)).collect(),
        });
    }
    Ok(())
}

fn shape(weight: &Weight, expected: String) -> ShardError {
    ShardError::Shape {
        tensor: weight.name.clone(),
        found: weight.shape.clone(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_are_consecutive_and_differ_by_one_unit() {
        let shares: Vec<_> = (0..4).map(|rank| share(6, rank, 4)).collect();
        assert_eq!(shares, [0..1, 1..3, 3..4, 4..6]);
        let shares: Vec<_> = (0..4).map(|rank| share(2, rank, 4)).collect();
        assert_eq!(shares, [0..0, 0..1, 1..1, 1..2]);
        assert_eq!(share(usize::MAX, 255, 256).end, usize::MAX);
    }
}
