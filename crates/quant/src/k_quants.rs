//! The 256-element super-blocks ("K-quants"): Q4_K, Q5_K, Q6_K.
//!
//! A super-block has one f16 scale (and one f16 minimum) for all, and small integer scales for its
//! sub-blocks: eight of 32 elements in Q4_K and Q5_K, sixteen of 16 in Q6_K.
//!
//! All products here are exact: an f16 has 11 significant bits, scales and codes add at most 11
//! (Q4_K, Q5_K) or 13 (Q6_K), and f32 has 24. Only the subtraction of the minimum rounds, once, so
//! a kernel may multiply in any order, and fuse the last multiplication with the subtraction, and
//! still yield these bits. Layouts: `block_q4_K`, `block_q5_K`, `block_q6_K` in ggml's
//! `ggml-common.h`; order of the float operations: `gguf/quants.py` of gguf-py 0.19.0.

use crate::blocks::{each_block, f16_at};

/// Unpacks the 6-bit scale and minimum of sub-block `j` (0..8) from the 12 bytes that Q4_K and Q5_K
/// share.
///
/// Bytes 0..4 hold the scales of sub-blocks 0..4 in their low six bits, bytes 4..8 the minima.
/// Sub-blocks 4..8 take their low four bits from bytes 8..12 (scale in the low nibble, minimum in
/// the high one) and their top two bits from the two bits that were left over in bytes 0..4 and
/// 4..8.
#[inline]
fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 0x3f, packed[j + 4] & 0x3f)
    } else {
        let low = packed[j + 4];
        (
            low & 0x0f | packed[j - 4] >> 6 << 4,
            low >> 4 | packed[j] >> 6 << 4,
        )
    }
}

/// Q4_K, 144 bytes: `d`, `dmin`, `scales[12]`, `qs[128]`; element is `d * scale * nibble - dmin *
/// min`.
///
/// Bytes `32 * g .. 32 * (g + 1)` of `qs` hold sub-block `2 * g` in their low nibbles and `2 * g +
/// 1` in their high ones.
pub(crate) fn q4_k(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 144], out: &mut [f32; 256]| {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (scales, qs) = (&block[4..16], &block[16..144]);
        for j in 0..8 {
            let (scale, min) = scale_and_min(scales, j);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            let shift = 4 * (j % 2);
            for l in 0..32 {
                let nibble = qs[j / 2 * 32 + l] >> shift & 0x0f;
                out[32 * j + l] = d * f32::from(nibble) - m;
            }
        }
    });
}

/// Q5_K, 176 bytes: `d`, `dmin`, `scales[12]`, `qh[32]`, `qs[128]`; as Q4_K, and bit `j` of `qh[l]`
/// is the fifth bit of element `l` of sub-block `j`.
pub(crate) fn q5_k(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 176], out: &mut [f32; 256]| {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..176]);
        for j in 0..8 {
            let (scale, min) = scale_and_min(scales, j);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            let shift = 4 * (j % 2);
            for l in 0..32 {
                let nibble = qs[j / 2 * 32 + l] >> shift & 0x0f;
                let code = nibble | (qh[l] >> j & 1) << 4;
                out[32 * j + l] = d * f32::from(code) - m;
            }
        }
    });
}

/// Q6_K, 210 bytes: `ql[128]`, `qh[64]`, `i8 scales[16]`, `d`; element is `d * scale * (code -
/// 32)`.
///
/// Each half `n` of 128 elements is four runs `k` of 32: `ql[64 * n + 32 * (k % 2) + l]` holds the
/// low four bits (low nibble for runs 0 and 1, high nibble for 2 and 3), bits `2 * k` of `qh[32 * n
/// + l]` the upper two. One scale serves 16 elements in order.
pub(crate) fn q6_k(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 210], out: &mut [f32; 256]| {
        let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16_at(block, 208);
        for (n, k) in [0, 1].into_iter().flat_map(|n| (0..4).map(move |k| (n, k))) {
            for l in 0..32 {
                let low = ql[64 * n + 32 * (k % 2) + l] >> (4 * (k / 2)) & 0x0f;
                let high = qh[32 * n + l] >> (2 * k) & 0x03;
                let e = 128 * n + 32 * k + l;
                let scale = d * f32::from(scales[e / 16] as i8);
                out[e] = scale * f32::from((low | high << 4) as i8 - 32);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use half::f16;

    /// What the head of this file promises to kernels. Exponents do not matter, so all mantissas of
    /// normal f16 numbers stand for all of them; the smallest subnormal stands for the other end.
    #[test]
    fn products_of_scales_and_codes_are_exact() {
        let mantissas = (0x3c00..0x4000).chain([0x0001, 0x03ff, 0x7bff]);
        for d in mantissas.map(|bits| f16::from_bits(bits).to_f32()) {
            for scale in i8::MIN..=i8::MAX {
                for code in -32..32i8 {
                    let product = d * f32::from(scale) * f32::from(code);
                    let exact = f64::from(d) * f64::from(scale) * f64::from(code);
                    assert_eq!(f64::from(product), exact, "{d} * {scale} * {code}");
                }
            }
        }
    }
}
