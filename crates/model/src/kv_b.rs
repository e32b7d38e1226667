//! `kv_b` and its two halves: the one weight of MLA that files store in two layouts.
//!
//! Hugging Face (and legacy GGUF) hold `kv_b` as `[n_heads * (nope + v), rank]`: head by head, first the rows that make
//! keys, then the rows that make values; *not* all keys and then all values. GGUF splits it for absorbed attention into
//! `k_b`, `[n_heads, rank, nope]`, each head **transposed**, and `v_b`, `[n_heads, v, rank]`, as it is:
//!
//! ```text
//! kv_b[h*(nope+v) + d][r]        = k_b[h][r][d]      d < nope
//! kv_b[h*(nope+v) + nope + j][r] = v_b[h][j][r]      j < v
//! ```
//!
//! These functions move bytes and know no type. Value rows are moved whole, so they may be rows of quantised blocks;
//! key elements are moved one by one, so keys need a type with an element size. Formulas: llama.cpp's converter,
//! checked against transformers.

/// Sizes of `kv_b`, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBDims {
    /// Attention heads.
    pub n_heads: usize,
    /// Rotation-free part of a key head (`qk_nope_head_dim`).
    pub nope: usize,
    /// Width of a value head (`v_head_dim`).
    pub v: usize,
    /// Width of the latent (`kv_lora_rank`).
    pub rank: usize,
}

/// A buffer is not as long as its shape says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} has {found} bytes; expected {expected}")]
pub struct KvBSizeError {
    what: &'static str,
    found: usize,
    expected: usize,
}

fn expect_len(what: &'static str, bytes: &[u8], factors: &[usize]) -> Result<(), KvBSizeError> {
    // A product beyond usize matches no buffer.
    let expected = factors
        .iter()
        .try_fold(1usize, |n, &f| n.checked_mul(f))
        .unwrap_or(usize::MAX);
    if bytes.len() == expected {
        Ok(())
    } else {
        Err(KvBSizeError {
            what,
            found: bytes.len(),
            expected,
        })
    }
}

/// The key half of `kv_b`, as `k_b` stores it.
///
/// `kv_b`: `[n_heads * (nope + v), rank]` elements of `elem` bytes. Returns `[n_heads, rank, nope]`.
pub fn keys_of_kv_b(kv_b: &[u8], dims: KvBDims, elem: usize) -> Result<Vec<u8>, KvBSizeError> {
    let KvBDims {
        n_heads,
        nope,
        v,
        rank,
    } = dims;
    expect_len("kv_b", kv_b, &[n_heads, nope + v, rank, elem])?;
    let mut keys = vec![0; n_heads * rank * nope * elem];
    for h in 0..n_heads {
        let src = &kv_b[h * (nope + v) * rank * elem..][..nope * rank * elem];
        transpose(
            src,
            nope,
            rank,
            elem,
            &mut keys[h * rank * nope * elem..][..rank * nope * elem],
        );
    }
    Ok(keys)
}

/// The value half of `kv_b`, as `v_b` stores it.
///
/// `kv_b`: `n_heads * (nope + v)` rows of `row_bytes` each (any type). Returns `n_heads * v` rows.
pub fn values_of_kv_b(
    kv_b: &[u8],
    dims: KvBDims,
    row_bytes: usize,
) -> Result<Vec<u8>, KvBSizeError> {
    let KvBDims {
        n_heads, nope, v, ..
    } = dims;
    expect_len("kv_b", kv_b, &[n_heads, nope + v, row_bytes])?;
    let mut values = Vec::with_capacity(n_heads * v * row_bytes);
    for h in 0..n_heads {
        values.extend_from_slice(&kv_b[(h * (nope + v) + nope) * row_bytes..][..v * row_bytes]);
    }
    Ok(values)
}

/// Both halves of `kv_b`: `(k_b, v_b)`.
pub fn split_kv_b(
    kv_b: &[u8],
    dims: KvBDims,
    elem: usize,
) -> Result<(Vec<u8>, Vec<u8>), KvBSizeError> {
    Ok((
        keys_of_kv_b(kv_b, dims, elem)?,
        values_of_kv_b(kv_b, dims, dims.rank.saturating_mul(elem))?,
    ))
}

/// `kv_b` from its halves: the inverse of [`split_kv_b`].
///
/// `k_b`: `[n_heads, rank, nope]`, `v_b`: `[n_heads, v, rank]`, elements of `elem` bytes. Returns
/// `[n_heads * (nope + v), rank]`.
pub fn join_kv_b(
    k_b: &[u8],
    v_b: &[u8],
    dims: KvBDims,
    elem: usize,
) -> Result<Vec<u8>, KvBSizeError> {
    let KvBDims {
        n_heads,
        nope,
        v,
        rank,
    } = dims;
    expect_len("k_b", k_b, &[n_heads, rank, nope, elem])?;
    expect_len("v_b", v_b, &[n_heads, v, rank, elem])?;
    let (key_bytes, value_bytes) = (nope * rank * elem, v * rank * elem);
    let mut kv_b = vec![0; n_heads * (key_bytes + value_bytes)];
    for (h, head) in kv_b
        .chunks_exact_mut((key_bytes + value_bytes).max(1))
        .enumerate()
    {
        let (keys, values) = head.split_at_mut(key_bytes);
        transpose(&k_b[h * key_bytes..][..key_bytes], rank, nope, elem, keys);
        values.copy_from_slice(&v_b[h * value_bytes..][..value_bytes]);
    }
    Ok(kv_b)
}

/// `dst[c][r] = src[r][c]` for `src` of `rows` x `cols` elements.
fn transpose(src: &[u8], rows: usize, cols: usize, elem: usize, dst: &mut [u8]) {
    match elem {
        1 => transpose_n::<1>(src, rows, cols, dst),
        2 => transpose_n::<2>(src, rows, cols, dst),
        4 => transpose_n::<4>(src, rows, cols, dst),
        _ => transpose_any(src, rows, cols, elem, dst),
    }
}

/// The same for an element size that the compiler knows, in tiles that stay in the first-level cache.
fn transpose_n<const N: usize>(src: &[u8], rows: usize, cols: usize, dst: &mut [u8]) {
    const TILE: usize = 32;
    let (src, _) = src.as_chunks::<N>();
    let (dst, _) = dst.as_chunks_mut::<N>();
    for r0 in (0..rows).step_by(TILE) {
        for c0 in (0..cols).step_by(TILE) {
            for r in r0..rows.min(r0 + TILE) {
                for c in c0..cols.min(c0 + TILE) {
                    dst[c * rows + r] = src[r * cols + c];
                }
            }
        }
    }
}

fn transpose_any(src: &[u8], rows: usize, cols: usize, elem: usize, dst: &mut [u8]) {
    for r in 0..rows {
        for c in 0..cols {
            dst[(c * rows + r) * elem..][..elem]
                .copy_from_slice(&src[(r * cols + c) * elem..][..elem]);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Every size odd and different, so that no exchange of axes goes unseen.
    const DIMS: KvBDims = KvBDims {
        n_heads: 3,
        nope: 5,
        v: 7,
        rank: 4,
    };

    /// Values that name their own index, in `elem` little-endian bytes.
    fn index_valued(count: usize, first: usize, elem: usize) -> Vec<u8> {
        (first..first + count)
            .flat_map(|i| i.to_le_bytes().into_iter().take(elem).collect::<Vec<_>>())
            .collect()
    }

    fn at(bytes: &[u8], index: usize, elem: usize) -> &[u8] {
        &bytes[index * elem..][..elem]
    }

    #[test]
    fn join_places_each_element_where_the_formulas_say() {
        let KvBDims {
            n_heads,
            nope,
            v,
            rank,
        } = DIMS;
        for elem in [1, 2, 3, 4, 8] {
            let k_b = index_valued(n_heads * rank * nope, 0, elem);
            let v_b = index_valued(n_heads * v * rank, 100, elem);
            let kv_b = join_kv_b(&k_b, &v_b, DIMS, elem).unwrap();
            for h in 0..n_heads {
                for r in 0..rank {
                    for d in 0..nope {
                        let found = at(&kv_b, (h * (nope + v) + d) * rank + r, elem);
                        assert_eq!(
                            found,
                            at(&k_b, (h * rank + r) * nope + d, elem),
                            "key {h} {d} {r}"
                        );
                    }
                    for j in 0..v {
                        let found = at(&kv_b, (h * (nope + v) + nope + j) * rank + r, elem);
                        assert_eq!(
                            found,
                            at(&v_b, (h * v + j) * rank + r, elem),
                            "value {h} {j} {r}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn split_undoes_join_and_join_undoes_split() {
        // Beyond one tile on both axes, and ragged at its edge.
        let large = KvBDims {
            n_heads: 2,
            nope: 37,
            v: 3,
            rank: 65,
        };
        for dims in [DIMS, large] {
            for elem in [1, 2, 3, 4] {
                let kv_b = index_valued(dims.n_heads * (dims.nope + dims.v) * dims.rank, 0, elem);
                let (k_b, v_b) = split_kv_b(&kv_b, dims, elem).unwrap();
                assert_eq!(join_kv_b(&k_b, &v_b, dims, elem).unwrap(), kv_b);
            }
        }
    }

    #[test]
    fn value_rows_move_whole_whatever_they_hold() {
        let kv_b: Vec<u8> = (0..36u8).flat_map(|row| [row; 34]).collect();
        let values = values_of_kv_b(&kv_b, DIMS, 34).unwrap();
        let rows: Vec<u8> = values.chunks(34).map(|row| row[33]).collect();
        let expected: Vec<u8> = (5..12).chain(17..24).chain(29..36).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_buffer_of_another_length_is_an_error() {
        assert_eq!(
            split_kv_b(&[0; 3 * 12 * 4 * 2 - 1], DIMS, 2)
                .unwrap_err()
                .to_string(),
            "kv_b has 287 bytes; expected 288"
        );
        assert!(
            join_kv_b(&[0; 60], &[0; 83], DIMS, 1)
                .unwrap_err()
                .to_string()
                .starts_with("v_b has 83 bytes")
        );
        let huge = KvBDims {
            n_heads: usize::MAX,
            ..DIMS
        };
        assert!(keys_of_kv_b(&[], huge, 4).is_err());
    }
}
