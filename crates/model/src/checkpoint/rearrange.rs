//! Bytes of a logical tensor from the stored ones.

use std::borrow::Cow;
use std::path::PathBuf;

use glim_quant::{GgmlType, dequantize};

use super::{Checkpoint, Half, Origin, TensorDesc, kv_b_dims, transposable};
use crate::error::ModelError;
use crate::kv_b::{KvBDims, keys_of_kv_b, values_of_kv_b};

/// Resolution has checked shapes and types; the source has checked lengths.
pub(super) fn data<'a>(
    checkpoint: &'a Checkpoint,
    t: &TensorDesc,
) -> Result<Cow<'a, [u8]>, ModelError> {
    let stored = |index: usize| checkpoint.source.stored(index);
    match &t.origin {
        Origin::Whole(index) => Ok(stored(*index)),
        Origin::GateUp(index, half) => {
            Ok(Cow::Owned(half_of_each_expert(&stored(*index), t, *half)))
        }
        Origin::KvB(index, half) => {
            let ((name, ty), bytes) = (checkpoint.source.header(*index), stored(*index));
            let part = match half {
                Half::First => keys(&bytes, ty, kv_b_dims(&checkpoint.config)),
                Half::Second => values(&bytes, ty, kv_b_dims(&checkpoint.config)),
            };
            part.map(Cow::Owned)
                .map_err(|reason| ModelError::Malformed {
                    path: PathBuf::from(checkpoint.source.name()),
                    reason: format!("tensor `{name}`: {reason}"),
                })
        }
        Origin::Stack(indices) => {
            let mut bytes = Vec::with_capacity(t.byte_len());
            for &index in indices {
                bytes.extend_from_slice(&stored(index));
            }
            Ok(Cow::Owned(bytes))
        }
    }
}

/// From `[E, 2 * I, D]` the first or the last `I` rows of each expert.
fn half_of_each_expert(fused: &[u8], t: &TensorDesc, half: Half) -> Vec<u8> {
    let experts = t.shape.first().copied().unwrap_or(1).max(1);
    let half_bytes = t.byte_len() / experts;
    let skip = match half {
        Half::First => 0,
        Half::Second => half_bytes,
    };
    let mut bytes = Vec::with_capacity(t.byte_len());
    for expert in fused.chunks_exact((2 * half_bytes).max(1)) {
        bytes.extend_from_slice(&expert[skip..skip + half_bytes]);
    }
    bytes
}

fn values(kv_b: &[u8], ty: GgmlType, dims: KvBDims) -> Result<Vec<u8>, String> {
    let row_bytes = ty
        .row_bytes(dims.rank)
        .ok_or_else(|| not_whole_blocks(ty, dims))?;
    values_of_kv_b(kv_b, dims, row_bytes).map_err(|error| error.to_string())
}

/// Keys, transposed. Blocks run along the latent, so quantised rows are decoded: exact, as decoding is what defines
/// them.
fn keys(kv_b: &[u8], ty: GgmlType, dims: KvBDims) -> Result<Vec<u8>, String> {
    if transposable(ty) == ty {
        return keys_of_kv_b(kv_b, dims, ty.block_bytes()).map_err(|error| error.to_string());
    }
    let row_bytes = ty
        .row_bytes(dims.rank)
        .ok_or_else(|| not_whole_blocks(ty, dims))?;
    let head_bytes = (dims.nope + dims.v) * row_bytes;
    let one_head = KvBDims {
        n_heads: 1,
        v: 0,
        ..dims
    };
    let mut row = vec![0f32; dims.nope * dims.rank];
    let mut keys = Vec::with_capacity(dims.n_heads * row.len() * 4);
    for head in kv_b.chunks_exact(head_bytes.max(1)) {
        dequantize(ty, &head[..dims.nope * row_bytes], &mut row)
            .map_err(|error| error.to_string())?;
        let decoded: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        keys.extend(keys_of_kv_b(&decoded, one_head, 4).map_err(|error| error.to_string())?);
    }
    Ok(keys)
}

fn not_whole_blocks(ty: GgmlType, dims: KvBDims) -> String {
    format!(
        "{} elements are not whole blocks of {}",
        dims.rank,
        ty.name()
    )
}
