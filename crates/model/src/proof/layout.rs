//! Level 2: the layouts that files hold one weight in are the same weight, at this model's own sizes.
//!
//! `kv_b` is the one that gets lost: two halves, one of them transposed, head by head. Three checks:
//!
//! - `kv_b formula`: tensors whose elements are their own index go through join and split, and each element must be where the
//!   formulas of [`crate::kv_b`] put it. No mix-up of axes or heads survives that.
//! - `kv_b round trip`: each layer's own keys and values are joined and split again, and must come back bit for bit: as bytes where both
//!   have one plain type, else as decoded numbers.
//! - `stored forms`: what the loader hands out of tensors that hold two logical ones, or are one of many, is what lies in the place that
//!   the form's formula names (see `forms.rs`).
//!
//! None of this can tell a file whose keys were stored untransposed, where `nope` and `rank` would allow it, from a sound one: the
//! numbers themselves say nothing about their order. In GLM-5, 192 and 512, both orders have the same number of bytes and the shape
//! is what the converter wrote. Only a comparison with the original (level 3) or running the model (level 7) shows it.

use std::ops::Range;

use glim_quant::{GgmlType, dequantize};

use super::logical::Logical;
use super::report::{BadElement, Check, Level, Timer};
use super::stored::{StoredTensor, bad_element, descs, stored};
use super::words::counted;
use super::{Progress, forms, parallel};
use crate::catalogue::Role;
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::error::ModelError;
use crate::kv_b::{KvBDims, KvBSizeError, join_kv_b, split_kv_b};
use crate::shard::ShardError;

/// Numbers of a group of heads that is joined at once, at most, unless a single head has more.
const GROUP_ELEMENTS: usize = 1 << 20;
/// Bytes of a decoded number, and of an index.
const ELEM: usize = 4;
/// Elements that go through join and split as indices: with both halves, the whole and the halves again 768 MiB. GLM-5 has 15 million.
const MAX_INDICES: usize = 1 << 26;

/// Level 2. `progress` is called with bytes that add up to [`layout_bytes`].
pub fn layout(checkpoint: &Checkpoint, progress: Progress<'_>) -> Vec<Check> {
    let tensors = stored(checkpoint);
    vec![
        formula(dims(checkpoint), join_kv_b, split_kv_b),
        round_trip(checkpoint, &tensors, progress),
        forms::check(checkpoint, &tensors, progress),
    ]
}

/// The bytes that [`layout`] reports as progress: those of keys and values, and of tensors that are not stored as they are.
pub fn layout_bytes(checkpoint: &Checkpoint) -> u64 {
    let halves = layers(checkpoint).flat_map(|(k_b, v_b)| [k_b, v_b]);
    let rearranged = forms::rearranged(checkpoint).into_iter();
    halves
        .chain(rearranged)
        .map(|desc| desc.byte_len() as u64)
        .sum()
}

fn dims(checkpoint: &Checkpoint) -> KvBDims {
    let config = checkpoint.config();
    KvBDims {
        n_heads: config.n_heads,
        nope: config.qk_nope_head_dim,
        v: config.v_head_dim,
        rank: config.kv_lora_rank,
    }
}

/// Keys and values of each layer.
fn layers(checkpoint: &Checkpoint) -> impl Iterator<Item = (&TensorDesc, &TensorDesc)> {
    let of = |role: Role| descs(checkpoint).filter(move |desc| desc.role == role);
    // One of each in every layer, in the order of layers.
    of(Role::AttnKB).zip(of(Role::AttnVB))
}

type Join = fn(&[u8], &[u8], KvBDims, usize) -> Result<Vec<u8>, KvBSizeError>;
type Split = fn(&[u8], KvBDims, usize) -> Result<(Vec<u8>, Vec<u8>), KvBSizeError>;

/// Index-valued tensors through join and split, which are parameters so that wrong ones can be tried.
fn formula(dims: KvBDims, join: Join, split: Split) -> Check {
    let timer = Timer::start(Level::Layout, "kv_b formula");
    let KvBDims {
        n_heads,
        nope,
        v,
        rank,
    } = dims;
    // Of a model with more, as many heads as fit: what holds for some holds for all.
    let head = (nope + v).saturating_mul(rank).max(1);
    let n_heads = n_heads.min(MAX_INDICES / head);
    if n_heads == 0 {
        return timer.skipped(format!(
            "a head of {head} elements is too large to be tried with indices"
        ));
    }
    let dims = KvBDims { n_heads, ..dims };
    let covered = format!("{n_heads} heads of {nope} + {v} rows of {rank}, every element");
    // Keys count from 0, values on from there.
    let (keys, count) = (n_heads * rank * nope, n_heads * head);
    let indices =
        |range: Range<usize>| -> Vec<u8> { range.flat_map(|i| (i as u32).to_le_bytes()).collect() };
    let (k_b, v_b) = (indices(0..keys), indices(keys..count));
    let kv_b = match join(&k_b, &v_b, dims, ELEM) {
        Ok(kv_b) => kv_b,
        Err(error) => return timer.failed(covered, 0, error.to_string(), None),
    };
    let mut at = 0;
    for h in 0..n_heads {
        for row in 0..nope + v {
            for r in 0..rank {
                // The formulas once more: k_b[h][r][row], v_b[h][row - nope][r].
                let expected = match row.checked_sub(nope) {
                    None => (h * rank + r) * nope + row,
                    Some(j) => keys + (h * v + j) * rank + r,
                };
                let found = element(&kv_b, at);
                if found != expected as u32 {
                    let bad = bad_element(
                        "kv_b",
                        rank,
                        at,
                        format!("index {expected}"),
                        format!("index {found}"),
                    );
                    let detail =
                        "keys and values are not joined by the formulas: a fault of this program"
                            .to_owned();
                    return timer.failed(covered, 0, detail, Some(bad));
                }
                at += 1;
            }
        }
    }
    match split(&kv_b, dims, ELEM) {
        Ok(halves) if halves == (k_b, v_b) => timer.passed(covered, 0, ""),
        Ok(_) => timer.failed(
            covered,
            0,
            "split does not undo join: a fault of this program",
            None,
        ),
        Err(error) => timer.failed(covered, 0, error.to_string(), None),
    }
}

fn element(bytes: &[u8], index: usize) -> u32 {
    let bytes = bytes
        .get(index * ELEM..(index + 1) * ELEM)
        .unwrap_or_default();
    bytes.try_into().map_or(u32::MAX, u32::from_le_bytes)
}

/// Some heads of one layer.
struct Heads<'a> {
    k_b: &'a Logical<'a>,
    v_b: &'a Logical<'a>,
    heads: Range<usize>,
}

enum RoundTrip {
    Holes,
    Done(u64),
    Bad(BadElement),
    Error(String),
}

fn round_trip(
    checkpoint: &Checkpoint,
    tensors: &[StoredTensor<'_>],
    progress: Progress<'_>,
) -> Check {
    let timer = Timer::start(Level::Layout, "kv_b round trip");
    let dims = dims(checkpoint);
    let pairs: Result<Vec<_>, ShardError> = layers(checkpoint)
        .map(|(k_b, v_b)| {
            let logical = |desc| Logical::new(checkpoint, tensors, desc);
            Ok((logical(k_b)?, logical(v_b)?))
        })
        .collect();
    let pairs = match pairs {
        Ok(pairs) => pairs,
        Err(error) => return timer.failed("", 0, error.to_string(), None),
    };
    let covered = format!("{}, every element", counted(pairs.len(), "layer"));
    let head_elements = (dims.nope + dims.v) * dims.rank;
    let group = (GROUP_ELEMENTS / head_elements.max(1)).clamp(1, dims.n_heads.max(1));
    let mut items = Vec::new();
    for (k_b, v_b) in &pairs {
        for first in (0..dims.n_heads).step_by(group) {
            items.push(Heads {
                k_b,
                v_b,
                heads: first..(first + group).min(dims.n_heads),
            });
        }
    }
    // Both halves decoded, joined, and split: four times four bytes.
    let largest = items.iter().map(|item| item.heads.len()).max().unwrap_or(1);
    let results = parallel::map(&items, largest * head_elements * 4 * ELEM, |item| {
        let result = item.round_trip(dims);
        let bytes = [item.k_b, item.v_b].map(|half| half.desc.byte_len() / dims.n_heads.max(1));
        progress((bytes.iter().sum::<usize>() * item.heads.len()) as u64);
        result.unwrap_or_else(|error| RoundTrip::Error(error.to_string()))
    });
    let (mut bytes, mut holes) = (0, 0);
    for (result, item) in results.into_iter().zip(&items) {
        match result {
            RoundTrip::Holes => holes += item.heads.len(),
            RoundTrip::Done(n) => bytes += n,
            RoundTrip::Bad(bad) => {
                let detail = format!(
                    "`{}` does not survive joining and splitting: a fault of this program",
                    bad.tensor
                );
                return timer.failed(covered, bytes, detail, Some(bad));
            }
            RoundTrip::Error(error) => return timer.failed(covered, bytes, error, None),
        }
    }
    let detail = match holes {
        0 => String::new(),
        n => format!("{} are holes and were not read", counted(n, "head")),
    };
    timer.passed(covered, bytes, detail)
}

impl Heads<'_> {
    fn round_trip(&self, dims: KvBDims) -> Result<RoundTrip, ModelError> {
        let elements = |logical: &Logical<'_>| {
            let each = logical.desc.elements() / dims.n_heads.max(1);
            self.heads.start * each..self.heads.end * each
        };
        let halves = [self.k_b, self.v_b];
        if !halves.iter().any(|half| half.has_data(&elements(half))) {
            return Ok(RoundTrip::Holes);
        }
        let (k_b, v_b) = (
            bytes_of(self.k_b, dims, &self.heads)?,
            bytes_of(self.v_b, dims, &self.heads)?,
        );
        let types = halves.map(|half| half.desc.ty);
        let read = (k_b.len() + v_b.len()) as u64;
        let dims = KvBDims {
            n_heads: self.heads.len(),
            ..dims
        };
        let (k_b, v_b, elem) = match types {
            [a, b] if a == b && a.block_elems() == 1 => (k_b, v_b, a.block_bytes()),
            [a, b] => match (decoded(a, &k_b), decoded(b, &v_b)) {
                (Ok(k_b), Ok(v_b)) => (k_b, v_b, ELEM),
                (Err(error), _) | (_, Err(error)) => return Ok(RoundTrip::Error(error)),
            },
        };
        let again =
            join_kv_b(&k_b, &v_b, dims, elem).and_then(|kv_b| split_kv_b(&kv_b, dims, elem));
        let (new_k_b, new_v_b) = match again {
            Ok(again) => again,
            Err(error) => return Ok(RoundTrip::Error(error.to_string())),
        };
        for (half, old, new) in [(self.k_b, &k_b, &new_k_b), (self.v_b, &v_b, &new_v_b)] {
            if let Some(at) = old.iter().zip(new).position(|(a, b)| a != b) {
                let columns = half.desc.shape.last().copied().unwrap_or(1);
                let element = elements(half).start + at / elem;
                let hex = |bytes: &[u8]| format!("byte {:#04x}", bytes[at]);
                return Ok(RoundTrip::Bad(bad_element(
                    &half.desc.name,
                    columns,
                    element,
                    hex(old),
                    hex(new),
                )));
            }
        }
        Ok(RoundTrip::Done(read))
    }
}

/// The bytes of some heads, put together.
fn bytes_of(
    logical: &Logical<'_>,
    dims: KvBDims,
    heads: &Range<usize>,
) -> Result<Vec<u8>, ModelError> {
    let each = logical.desc.elements() / dims.n_heads.max(1);
    let mut bytes = Vec::new();
    for h in heads.clone() {
        bytes.extend_from_slice(&logical.bytes(&(h * each..(h + 1) * each))?);
    }
    Ok(bytes)
}

fn decoded(ty: GgmlType, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut values = vec![0f32; bytes.len() / ty.block_bytes() * ty.block_elems()];
    dequantize(ty, bytes, &mut values).map_err(|error| error.to_string())?;
    Ok(values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::report::Outcome;
    use super::*;

    const DIMS: KvBDims = KvBDims {
        n_heads: 3,
        nope: 5,
        v: 7,
        rank: 4,
    };

    fn bad(join: Join, split: Split) -> String {
        let check = formula(DIMS, join, split);
        assert_eq!(check.outcome, Outcome::Failed);
        check.first_bad.map_or(check.detail, |bad| bad.to_string())
    }

    #[test]
    fn the_formulas_hold_and_each_way_to_get_them_wrong_is_named() {
        let check = formula(DIMS, join_kv_b, split_kv_b);
        assert_eq!(
            (check.outcome, check.covered.as_str()),
            (Outcome::Passed, "3 heads of 5 + 7 rows of 4, every element")
        );
        // All keys, then all values.
        let concatenated: Join = |k_b, v_b, dims, elem| {
            let keys = join_kv_b(k_b, &[], KvBDims { v: 0, ..dims }, elem)?;
            Ok([&keys, v_b].concat())
        };
        assert_eq!(
            bad(concatenated, split_kv_b),
            "kv_b row 5, column 0: expected index 60, found index 20"
        );
        // Keys as they are stored.
        let untransposed: Join = |k_b, v_b, dims, elem| {
            let (key_bytes, value_bytes) =
                (dims.nope * dims.rank * elem, dims.v * dims.rank * elem);
            let heads = k_b.chunks(key_bytes).zip(v_b.chunks(value_bytes));
            Ok(heads
                .flat_map(|(keys, values)| [keys, values].concat())
                .collect())
        };
        assert_eq!(
            bad(untransposed, split_kv_b),
            "kv_b row 0, column 1: expected index 5, found index 1"
        );
        // A split of its own mind.
        let swapped: Split = |kv_b, dims, elem| {
            let (k_b, v_b) = split_kv_b(kv_b, dims, elem)?;
            Ok((v_b, k_b))
        };
        assert!(bad(join_kv_b, swapped).contains("split does not undo join"));
    }
}
