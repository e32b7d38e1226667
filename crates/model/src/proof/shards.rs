//! Level 4: what each rank holds.
//!
//! First without data: the list of shards is proven by [`Shards::check`] and, for stored tensors that hold two logical ones, by
//! [`Shards::check_stored`]. Then with it: every rank loads every tensor as it would to serve, and the ranks' parts put together must be
//! the tensor's bytes. They are compared byte by byte, which needs no hash and names the first that is wrong. A part that the loader
//! borrows from the mapping *is* the tensor's bytes if it lies where they lie: it is compared by its place.

use std::borrow::Cow;
use std::ops::Range;

use super::Progress;
use super::logical::Logical;
use super::parallel;
use super::report::{BadElement, Check, Level, Timer};
use super::stored::{StoredTensor, bad_element, descs, stored};
use super::words::{bytes, counted};
use crate::checkpoint::Checkpoint;
use crate::shard::{
    HeadCounts, Options, RankWeights, ShardError, ShardedWeight, Shards, weights_of,
};
use glim_plan::Placement;

/// Bytes of a piece that is compared at once, of tensors that are not stacks.
const PIECE_BYTES: usize = 4 << 20;
/// World sizes that a message lists.
const MAX_LISTED: usize = 16;

/// Level 4: one check for each of `world_sizes`. A model that cannot be cut that way is no faulty model: the check is skipped, and its
/// detail says which numbers of ranks would do. `progress` is called with bytes that add up to [`shards_bytes`].
pub fn shards(
    checkpoint: &Checkpoint,
    world_sizes: &[usize],
    progress: Progress<'_>,
) -> Vec<Check> {
    let options = Options::default();
    let check = |&world_size: &usize| match Shards::of(checkpoint, world_size, &options) {
        Ok(list) => shard_list(checkpoint, &list, progress),
        Err(error) => {
            progress(shards_bytes(checkpoint, 1));
            refused(checkpoint, world_size, &error, &options)
        }
    };
    world_sizes.iter().map(check).collect()
}

/// The bytes that [`shards`] reports as progress: those of all logical tensors for each world size.
pub fn shards_bytes(checkpoint: &Checkpoint, world_sizes: usize) -> u64 {
    let each: u64 = descs(checkpoint).map(|desc| desc.byte_len() as u64).sum();
    each.saturating_mul(world_sizes as u64)
}

/// Level 4 for a list of shards, whatever made it.
pub fn shard_list(checkpoint: &Checkpoint, list: &Shards, progress: Progress<'_>) -> Check {
    let world_size = list.world_size();
    let timer = Timer::start(Level::Shards, name(world_size));
    let covered = counted(list.weights().len(), "tensor");
    let fused = match list
        .check()
        .map_err(ShardError::from)
        .and_then(|()| list.check_stored(checkpoint))
    {
        Ok(fused) => fused,
        Err(error) => {
            progress(shards_bytes(checkpoint, 1));
            let detail = format!("the list of shards is wrong: {error}");
            return timer.failed(covered, 0, detail, fault_place(&error));
        }
    };
    let tensors = stored(checkpoint);
    let ranks = (0..world_size).map(|rank| list.rank(checkpoint, rank));
    let compared = ranks
        .collect::<Result<Vec<_>, _>>()
        .and_then(|ranks| Compared::of(checkpoint, &tensors, list, &ranks, progress));
    let outcome = match compared {
        Ok(outcome) => outcome,
        Err(error) => return timer.failed(covered, 0, error.to_string(), None),
    };
    let covered = format!("{covered}, all elements");
    if let Some(bad) = outcome.first_bad {
        let detail = format!(
            "the parts of {world_size} ranks of `{}` put together are not the tensor",
            bad.tensor
        );
        return timer.failed(covered, outcome.bytes, detail, Some(bad));
    }
    match sizes(list) {
        Ok(mut detail) => {
            if fused > 0 {
                detail.push_str(&format!(
                    "; {} cut part by part",
                    counted(fused, "fused tensor")
                ));
            }
            if outcome.holes > 0 {
                detail.push_str(&format!(
                    "; {} of holes by their shapes alone",
                    bytes(outcome.holes)
                ));
            }
            timer.passed(covered, outcome.bytes, detail)
        }
        Err(error) => timer.failed(covered, outcome.bytes, error.to_string(), None),
    }
}

fn name(world_size: usize) -> String {
    format!("tp {world_size}")
}

fn refused(
    checkpoint: &Checkpoint,
    world_size: usize,
    error: &ShardError,
    options: &Options,
) -> Check {
    let timer = Timer::start(Level::Shards, name(world_size));
    let heads = HeadCounts::from(checkpoint.config());
    let possible = Shards::possible_world_sizes(heads, &weights_of(checkpoint), options);
    let listed: Vec<String> = (possible.iter().take(MAX_LISTED))
        .map(usize::to_string)
        .collect();
    let more = if possible.len() > MAX_LISTED {
        ", and more"
    } else {
        ""
    };
    timer.skipped(format!(
        "this model cannot be cut over {world_size} ranks; numbers that would do: {}{more} ({error})",
        listed.join(", ")
    ))
}

/// The tensor that a fault of the list is about, as far as a list has rows and columns.
fn fault_place(error: &ShardError) -> Option<BadElement> {
    let text = error.to_string();
    // Every message names its tensor before any other.
    let (_, rest) = text.split_once("tensor `")?;
    let tensor = rest.split('`').next()?;
    Some(BadElement {
        tensor: tensor.to_owned(),
        row: 0,
        col: 0,
        expected: "slices that tile it as its role calls for".to_owned(),
        found: text.clone(),
    })
}

/// How much the ranks hold.
fn sizes(list: &Shards) -> Result<String, ShardError> {
    let held: Vec<u64> = (0..list.world_size())
        .map(|rank| list.byte_len(rank))
        .collect::<Result<_, _>>()?;
    let extreme = |largest: bool| {
        let ranks = held.iter().copied().enumerate();
        // The first of several.
        ranks.reduce(|a, b| {
            if (b.1 > a.1) == largest && b.1 != a.1 {
                b
            } else {
                a
            }
        })
    };
    let (Some(most), Some(least)) = (extreme(true), extreme(false)) else {
        return Ok(String::new());
    };
    if most.1 == least.1 {
        return Ok(format!("{} on each rank", bytes(most.1)));
    }
    Ok(format!(
        "{} on rank {} (the smallest) to {} on rank {} (the largest)",
        bytes(least.1),
        least.0,
        bytes(most.1),
        most.0
    ))
}

struct Item<'a> {
    logical: &'a Logical<'a>,
    weight: &'a ShardedWeight,
    /// Indices of the first axis.
    outer: Range<usize>,
}

struct Compared {
    bytes: u64,
    holes: u64,
    first_bad: Option<BadElement>,
}

impl Compared {
    fn of(
        checkpoint: &Checkpoint,
        tensors: &[StoredTensor<'_>],
        list: &Shards,
        ranks: &[RankWeights<'_>],
        progress: Progress<'_>,
    ) -> Result<Self, ShardError> {
        let logicals: Vec<Logical<'_>> = descs(checkpoint)
            .map(|desc| Logical::new(checkpoint, tensors, desc))
            .collect::<Result<_, _>>()?;
        let mut items = Vec::new();
        for logical in &logicals {
            let name = &logical.desc.name;
            let weight = list.weight(name).ok_or_else(|| ShardError::Unknown {
                tensor: name.clone(),
            })?;
            for outer in pieces(logical) {
                items.push(Item {
                    logical,
                    weight,
                    outer,
                });
            }
        }
        // What is rearranged stands in memory: once as the tensor's, once as the ranks' parts.
        let largest = items.iter().map(Item::byte_len).max().unwrap_or(0);
        let results = parallel::map(&items, 2 * largest, |item| {
            let bytes = item.byte_len() as u64;
            let result = match item.logical.has_data(&item.elements()) {
                true => item.compare(ranks).map(|bad| (bytes, 0, bad)),
                false => Ok((0, bytes, None)),
            };
            progress(bytes);
            result
        });
        let mut compared = Compared {
            bytes: 0,
            holes: 0,
            first_bad: None,
        };
        for result in results {
            let (bytes, holes, bad) = result?;
            compared.bytes += bytes;
            compared.holes += holes;
            compared.first_bad = compared.first_bad.or(bad);
        }
        Ok(compared)
    }
}

/// A tensor in ranges of its first axis: one expert or head at a time, or rows of some megabytes.
fn pieces(logical: &Logical<'_>) -> Vec<Range<usize>> {
    let Some((&outer, inner)) = logical.desc.shape.split_first() else {
        return Vec::new();
    };
    let step = match inner.len() {
        _ if logical.is_loaded_whole() => outer,
        0 => outer,
        1 => {
            let row_bytes = logical.desc.byte_len() / outer.max(1);
            (PIECE_BYTES / row_bytes.max(1)).max(1)
        }
        _ => 1,
    };
    let starts = (0..outer).step_by(step.max(1));
    starts
        .map(|start| start..(start + step).min(outer))
        .collect()
}

impl Item<'_> {
    fn inner(&self) -> usize {
        let shape = &self.logical.desc.shape;
        shape.iter().skip(1).product()
    }

    fn elements(&self) -> Range<usize> {
        self.outer.start * self.inner()..self.outer.end * self.inner()
    }

    fn byte_len(&self) -> usize {
        let desc = self.logical.desc;
        desc.byte_len() / desc.shape.first().copied().unwrap_or(1).max(1) * self.outer.len()
    }

    /// The piece of the tensor itself.
    fn whole(&self) -> Result<Cow<'_, [u8]>, ShardError> {
        if !self.logical.is_loaded_whole() {
            return Ok(self.logical.bytes(&self.elements())?);
        }
        let mut heads = Vec::new();
        for head in self.outer.clone() {
            let elements = head * self.inner()..(head + 1) * self.inner();
            heads.extend_from_slice(&self.logical.bytes(&elements)?);
        }
        Ok(Cow::Owned(heads))
    }

    /// The ranks' parts of this piece beside the piece itself.
    fn compare(&self, ranks: &[RankWeights<'_>]) -> Result<Option<BadElement>, ShardError> {
        let whole = self.whole()?;
        let name = &self.logical.desc.name;
        let axis = match self.weight.placement() {
            Placement::Sharded { axis } => axis,
            Placement::Replicated => {
                for rank in ranks {
                    let part = rank.load_outer(name, &self.outer)?;
                    if let Some(at) = first_difference(&part, &whole) {
                        return Ok(Some(self.bad(at, &whole, &part, at, rank.rank())));
                    }
                }
                return Ok(None);
            }
        };
        // Indices before the axis that is cut: of each, the ranks' bytes follow each other.
        let before: usize = match axis {
            0 => 1,
            _ => self.outer.len() * self.logical.desc.shape[1..axis].iter().product::<usize>(),
        };
        let parts = ranks
            .iter()
            .map(|rank| rank.load_outer(name, &self.outer))
            .collect::<Result<Vec<_>, _>>()?;
        let mut end = 0;
        for index in 0..before {
            for (rank, part) in parts.iter().enumerate() {
                let len = part.len() / before.max(1);
                let from = index * len;
                let expected = whole.get(end..end + len).unwrap_or_default();
                if let Some(at) = first_difference(&part[from..from + len], expected) {
                    return Ok(Some(self.bad(end + at, &whole, part, from + at, rank)));
                }
                end += len;
            }
        }
        if end != whole.len() {
            return Ok(Some(self.bad(end, &whole, &[], 0, ranks.len())));
        }
        Ok(None)
    }

    /// Byte `at` of this piece, of which a rank's part has byte `part_at` in its place.
    fn bad(&self, at: usize, whole: &[u8], part: &[u8], part_at: usize, rank: usize) -> BadElement {
        let desc = self.logical.desc;
        let byte = |bytes: &[u8], at: usize| match bytes.get(at) {
            Some(byte) => format!("byte {byte:#04x}"),
            None => "no byte".to_owned(),
        };
        let element = self.elements().start + at / desc.ty.block_bytes() * desc.ty.block_elems();
        let columns = desc.shape.last().copied().unwrap_or(1);
        let expected = format!("{} at {at} of the piece", byte(whole, at));
        let found = format!("{} of rank {rank}", byte(part, part_at));
        bad_element(&desc.name, columns, element, expected, found)
    }
}

/// Where two byte strings differ first; bytes in the same place of memory do not.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if std::ptr::eq(a, b) || a == b {
        return None;
    }
    let differs = a.iter().zip(b).position(|(a, b)| a != b);
    Some(differs.unwrap_or(a.len().min(b.len())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use glim_quant::GgmlType;
    use glim_testkit::tiny::{Tiny, TinyFile};

    use super::*;

    fn tiny() -> TinyFile {
        Tiny::new(7)
            .matrices(GgmlType::Q8_0)
            .ty("attn_k_b.weight", GgmlType::BF16)
            .ty("attn_v_b.weight", GgmlType::BF16)
            .build()
    }

    /// What the comparison of bytes is there for: ranks that load something else than the tensor. No right list does that, so
    /// the ranks load from another file, which differs in one byte.
    #[test]
    fn a_byte_that_a_rank_does_not_have_is_named() {
        let sound = Checkpoint::from_gguf(tiny().gguf()).unwrap();
        let list = Shards::of(&sound, 3, &Options::default()).unwrap();
        let none = |_: u64| ();
        let cases = [
            // Columns are cut: rows of 288 are nine blocks, three for each rank. Expert 5 of 7, row 95 of 96, block 8.
            (
                "blk.2.ffn_down_exps.weight",
                (5 * 96 + 95) * 9 + 8,
                5 * 96 + 95,
                256,
            ),
            // Rows are cut: 288 rows of three blocks in an expert.
            (
                "blk.2.ffn_gate_exps.weight",
                (6 * 288 + 287) * 3 + 1,
                6 * 288 + 287,
                32,
            ),
            // Replicated.
            ("blk.0.attn_q_a.weight", 63 * 3, 63, 0),
        ];
        for (name, block, row, col) in cases {
            for file in [tiny(), tiny().fuse_gate_up()] {
                let checkpoint = Checkpoint::from_gguf(file.gguf()).unwrap();
                let faulty = tiny().change(name, |tensor| tensor.bytes[34 * block + 20] ^= 0xff);
                let other = Checkpoint::from_gguf(faulty.gguf()).unwrap();
                let load = |from| {
                    (0..3)
                        .map(|rank| list.rank(from, rank).unwrap())
                        .collect::<Vec<_>>()
                };
                let tensors = stored(&checkpoint);
                let same =
                    Compared::of(&checkpoint, &tensors, &list, &load(&sound), &none).unwrap();
                assert_eq!(same.first_bad, None);
                let compared = Compared::of(&checkpoint, &tensors, &list, &load(&other), &none);
                let bad = compared.unwrap().first_bad.unwrap();
                assert_eq!(
                    (bad.tensor.as_str(), bad.row, bad.col),
                    (name, row as u64, col),
                    "{bad}"
                );
            }
        }
    }
}
