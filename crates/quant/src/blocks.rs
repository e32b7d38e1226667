//! What the decoders share: walking over blocks and reading the fields inside one.

use half::f16;

/// Calls `decode` for each block of `BYTES` bytes in `src` and the `ELEMS` values of `dst` that
/// belong to it.
///
/// The arrays have fixed lengths, so the decoders index them without bounds checks. `dequantize`
/// has checked that both slices hold the same number of whole blocks; a decoder that is registered
/// under the wrong sizes is a bug.
pub(crate) fn each_block<const BYTES: usize, const ELEMS: usize>(
    src: &[u8],
    dst: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMS]),
) {
    let (blocks, src_rest) = src.as_chunks::<BYTES>();
    let (outs, dst_rest) = dst.as_chunks_mut::<ELEMS>();
    assert!(
        src_rest.is_empty() && dst_rest.is_empty() && blocks.len() == outs.len(),
        "a decoder for blocks of {BYTES} bytes and {ELEMS} elements was handed other blocks"
    );
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// The little-endian f16 at byte `at`, widened exactly (subnormals included).
#[inline]
pub(crate) fn f16_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The little-endian u16 at byte `at`.
#[inline]
pub(crate) fn u16_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The little-endian u32 at byte `at`.
#[inline]
pub(crate) fn u32_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
