//! The one pass over a checkpoint's bytes in which level 1 reads all it needs: hashes, numbers that cannot be right, rows of zeros.
//!
//! Items of 16 MiB are dealt out to the cores; each is taken a leaf of 1 MiB at a time, which the second-level cache still holds when
//! the scan of its blocks follows its hash. What lies in holes is not read.

use std::ops::Range;

use glim_quant::{GgmlType, scan};

use super::Progress;
use super::digest::{self, Hash, LEAF_BYTES, ZeroLeaf};
use super::parallel;
use super::stored::StoredTensor;

/// Bytes of an item.
const ITEM_BYTES: usize = 16 * LEAF_BYTES;

/// What the pass found in one tensor.
#[derive(Default)]
pub(super) struct Found {
    /// The hash of its bytes.
    pub(super) data: Hash,
    /// Its first number that cannot be right: element, expected, found.
    pub(super) implausible: Option<(usize, String, String)>,
    /// Rows that are there and hold nothing but zeros; the first of them.
    pub(super) zero_rows: usize,
    pub(super) first_zero_row: Option<usize>,
}

struct Item {
    tensor: usize,
    /// Of its bytes; begins at a leaf.
    range: Range<usize>,
}

#[derive(Default)]
struct Done {
    leaves: Vec<Hash>,
    found: Found,
}

/// Walks over all tensors. One result for each, in their order.
pub(super) fn walk(tensors: &[StoredTensor<'_>], progress: Progress<'_>) -> Vec<Found> {
    let items: Vec<Item> = (tensors.iter().enumerate())
        .flat_map(|(tensor, stored)| {
            let starts = (0..stored.len).step_by(ITEM_BYTES);
            starts.map(move |start| Item {
                tensor,
                range: start..(start + ITEM_BYTES).min(stored.len),
            })
        })
        .collect();
    let zero_leaf = ZeroLeaf::new();
    let done = parallel::map(&items, LEAF_BYTES, |item| {
        let done = walk_item(&tensors[item.tensor], &item.range, &zero_leaf);
        progress(item.range.len() as u64);
        done
    });

    let mut done = items.iter().zip(done).peekable();
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in 0..tensors.len() {
        let mut leaves = Vec::new();
        let mut found = Found::default();
        while let Some((_, mut part)) = done.next_if(|(item, _)| item.tensor == tensor) {
            leaves.append(&mut part.leaves);
            found.implausible = found.implausible.or(part.found.implausible);
            found.zero_rows += part.found.zero_rows;
            found.first_zero_row = found.first_zero_row.or(part.found.first_zero_row);
        }
        found.data = digest::data(&leaves);
        all.push(found);
    }
    all
}

fn walk_item(tensor: &StoredTensor<'_>, range: &Range<usize>, zero_leaf: &ZeroLeaf) -> Done {
    let mut done = Done::default();
    for start in range.clone().step_by(LEAF_BYTES) {
        let leaf = start..(start + LEAF_BYTES).min(range.end);
        if !tensor.has_data(&leaf) {
            done.leaves.push(zero_leaf.of(leaf.len()));
            continue;
        }
        // The blocks that begin in the leaf may end beyond it.
        let unit = tensor.ty.block_bytes();
        let blocks = beginning_in(&leaf, unit);
        let bytes = tensor.read(&(start..leaf.end.max(blocks.end * unit)));
        done.leaves
            .push(digest::leaf(bytes.get(..leaf.len()).unwrap_or(&bytes)));
        if done.found.implausible.is_none() {
            let bytes = bytes.get(blocks.start * unit - start..).unwrap_or_default();
            done.found.implausible = implausible(tensor, blocks.start, bytes);
        }
        count_zero_rows(tensor, &leaf, &mut done.found);
    }
    done
}

/// Indices of the units of `unit` bytes that begin in `range`.
fn beginning_in(range: &Range<usize>, unit: usize) -> Range<usize> {
    range.start.div_ceil(unit)..range.end.div_ceil(unit)
}

/// Looks at whole blocks, of which the first is block `first` of the tensor.
fn implausible(
    tensor: &StoredTensor<'_>,
    first: usize,
    blocks: &[u8],
) -> Option<(usize, String, String)> {
    let ty: GgmlType = tensor.ty;
    // A type that cannot be scanned is named by the check.
    let found = scan::first_implausible(ty, blocks).ok()??;
    let element = first * ty.block_elems() + found.element;
    Some((element, found.expected, found.found))
}

fn count_zero_rows(tensor: &StoredTensor<'_>, leaf: &Range<usize>, found: &mut Found) {
    if tensor.shape.len() < 2 {
        return;
    }
    let Some(row_bytes) = tensor.ty.row_bytes(tensor.columns()).filter(|&n| n > 0) else {
        return;
    };
    for row in beginning_in(leaf, row_bytes) {
        let place = row * row_bytes..(row + 1) * row_bytes;
        let is_there = tensor.has_data(&(place.start..place.start + 1));
        if is_there && scan::is_zero(tensor.ty, &tensor.read(&place)) {
            found.zero_rows += 1;
            found.first_zero_row.get_or_insert(row);
        }
    }
}
