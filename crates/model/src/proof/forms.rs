//! Of level 2: what the loader makes of tensors that hold two logical ones, or that are one of many.
//!
//! A rank of one loads all of every tensor, a piece at a time; each piece is compared with the bytes in the place that the formulas of
//! `logical.rs` name. Tensors that are stored as they are used are what they are.

use std::ops::Range;

use super::logical::Logical;
use super::report::{BadElement, Check, Level, Timer};
use super::stored::{StoredTensor, bad_element, descs};
use super::words::counted;
use super::{Progress, parallel};
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::shard::{Form, Options, RankWeights, ShardError, Shards};

/// Tensors that the loader takes out of fused ones, or puts together.
pub(super) fn rearranged(checkpoint: &Checkpoint) -> Vec<&TensorDesc> {
    let is_rearranged =
        |desc: &&TensorDesc| !matches!(Form::of(checkpoint, desc), Ok(Form::Whole { .. }));
    descs(checkpoint).filter(is_rearranged).collect()
}

/// What the loader makes of fused and stacked tensors, beside the formulas.
pub(super) fn check(
    checkpoint: &Checkpoint,
    tensors: &[StoredTensor<'_>],
    progress: Progress<'_>,
) -> Check {
    let timer = Timer::start(Level::Layout, "stored forms");
    let all = descs(checkpoint).count();
    let covered = counted(all, "tensor");
    match compare_forms(checkpoint, tensors, progress) {
        Err(error) => timer.failed(covered, 0, error.to_string(), None),
        Ok((_, _, Some(bad))) => {
            let detail = format!(
                "the loader takes `{}` from another place than its stored form says: a fault of this program",
                bad.tensor
            );
            timer.failed(covered, 0, detail, Some(bad))
        }
        Ok((0, _, None)) => timer.passed(covered, 0, "all are stored as they are used"),
        Ok((rearranged, bytes, None)) => {
            let detail = format!(
                "{rearranged} are taken out of fused tensors or put together, the others are stored as they are used"
            );
            timer.passed(covered, bytes, detail)
        }
    }
}

type Compared = (usize, u64, Option<BadElement>);

fn compare_forms(
    checkpoint: &Checkpoint,
    tensors: &[StoredTensor<'_>],
    progress: Progress<'_>,
) -> Result<Compared, ShardError> {
    let descs = rearranged(checkpoint);
    if descs.is_empty() {
        return Ok((0, 0, None));
    }
    // One rank has all of every tensor, and loads it a piece at a time.
    let list = Shards::of(checkpoint, 1, &Options::default())?;
    let loader = list.rank(checkpoint, 0)?;
    let logicals: Vec<Logical<'_>> = descs
        .iter()
        .map(|desc| Logical::new(checkpoint, tensors, desc))
        .collect::<Result<_, _>>()?;
    let pieces: Vec<(&Logical<'_>, Range<usize>)> = logicals
        .iter()
        .flat_map(|logical| {
            let outer = logical.desc.shape.first().copied().unwrap_or(0);
            let step = if logical.is_loaded_whole() { outer } else { 1 };
            let starts = (0..outer).step_by(step.max(1));
            starts.map(move |start| (logical, start..(start + step).min(outer)))
        })
        .collect();
    let largest = pieces
        .iter()
        .map(|(logical, outer)| piece_bytes(logical, outer))
        .max();
    let results = parallel::map(&pieces, 4 * largest.unwrap_or(0), |(logical, outer)| {
        let bytes = piece_bytes(logical, outer);
        let result = compare_piece(&loader, logical, outer);
        progress(bytes as u64);
        Ok((bytes as u64, result?))
    });
    let (mut bytes, mut first_bad) = (0, None);
    for result in results {
        let (n, bad): (u64, Option<BadElement>) = result.map_err(|error: ShardError| error)?;
        bytes += n;
        first_bad = first_bad.or(bad);
    }
    Ok((descs.len(), bytes, first_bad))
}

fn piece_bytes(logical: &Logical<'_>, outer: &Range<usize>) -> usize {
    let desc = logical.desc;
    desc.byte_len() / desc.shape.first().copied().unwrap_or(1).max(1) * outer.len()
}

fn compare_piece(
    loader: &RankWeights<'_>,
    logical: &Logical<'_>,
    outer: &Range<usize>,
) -> Result<Option<BadElement>, ShardError> {
    let desc = logical.desc;
    let each = desc.elements() / desc.shape.first().copied().unwrap_or(1).max(1);
    let elements = outer.start * each..outer.end * each;
    if !logical.has_data(&elements) {
        return Ok(None);
    }
    let found = loader.load_outer(&desc.name, outer)?;
    let mut expected = Vec::new();
    for index in outer.clone() {
        expected.extend_from_slice(&logical.bytes(&(index * each..(index + 1) * each))?);
    }
    if *found == *expected {
        return Ok(None);
    }
    let at = found.iter().zip(&expected).position(|(a, b)| a != b);
    let at = at.unwrap_or(found.len().min(expected.len()));
    let hex = |bytes: &[u8]| {
        bytes
            .get(at)
            .map_or("no byte".to_owned(), |byte| format!("byte {byte:#04x}"))
    };
    let element = elements.start + at / desc.ty.block_bytes() * desc.ty.block_elems();
    let columns = desc.shape.last().copied().unwrap_or(1);
    Ok(Some(bad_element(
        &desc.name,
        columns,
        element,
        hex(&expected),
        hex(&found),
    )))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use glim_testkit::tiny::Tiny;

    use super::super::stored::stored;
    use super::*;

    /// A loader that takes its bytes elsewhere: here, from another file.
    #[test]
    fn a_loader_that_takes_another_place_is_named() {
        let none = |_: u64| ();
        let file = || Tiny::new(3).build().fuse_gate_up().legacy_kv_b();
        let sound = Checkpoint::from_gguf(file().gguf()).unwrap();
        let tensors = stored(&sound);
        assert_eq!(compare_forms(&sound, &tensors, &none).unwrap().2, None);
        for (name, byte, place) in [
            (
                "blk.1.ffn_gate_up_exps.weight",
                (2 * 576 + 300) * 96 * 2,
                ("blk.1.ffn_up_exps.weight", 2 * 288 + 12, 0),
            ),
            // Head 1 of 256 rows, key row 3, column 9: row 9 and column 3 of the keys, which are [128, 32] in a head.
            (
                "blk.1.attn_kv_b.weight",
                ((256 + 3) * 128 + 9) * 2,
                ("blk.1.attn_k_b.weight", 128 + 9, 3),
            ),
        ] {
            let faulty = file().change(name, |tensor| tensor.bytes[byte] ^= 0x55);
            let other = Checkpoint::from_gguf(faulty.gguf()).unwrap();
            let list = Shards::of(&other, 1, &Options::default()).unwrap();
            let loader = list.rank(&other, 0).unwrap();
            let bads = descs(&sound).filter_map(|desc| {
                let logical = Logical::new(&sound, &tensors, desc).unwrap();
                let outer = desc.shape[0];
                (0..outer).find_map(|i| compare_piece(&loader, &logical, &(i..i + 1)).unwrap())
            });
            let bads: Vec<(String, u64, u64)> =
                bads.map(|bad| (bad.tensor, bad.row, bad.col)).collect();
            let (tensor, row, col) = place;
            assert_eq!(bads, [(tensor.to_owned(), row, col)]);
        }
    }
}
