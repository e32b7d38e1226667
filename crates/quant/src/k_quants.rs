//! The 256-element super-blocks ("K-quants"): Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, and Q8_K for
//! activations.
//!
//! A super-block has one f16 scale (and one f16 minimum) for all, and small integer scales for its
//! sub-blocks: eight of 32 elements in Q4_K and Q5_K, sixteen of 16 in Q2_K, Q3_K and Q6_K. Q8_K
//! has a single f32 scale.
//!
//! All products here are exact: an f16 has 11 significant bits, scales and codes add at most 11
//! (Q2_K to Q5_K) or 13 (Q6_K), and f32 has 24. Only the subtraction of the minimum rounds, once,
//! so a kernel may multiply in any order, and fuse the last multiplication with the subtraction,
//! and still yield these bits. (Q8_K, whose scale has 24 bits, rounds in its one product.) Layouts:
//! `block_q2_K` and its kin in ggml's `ggml-common.h`; order of the float operations:
//! `gguf/quants.py` of gguf-py 0.19.0 (which does not decode Q8_K).

use crate::blocks::{each_block, f16_at, u32_at};

/// Q2_K, 84 bytes: `scales[16]`, `qs[64]`, `d`, `dmin`; element is `d * scale * code - dmin * min`.
///
/// A byte of `scales` serves 16 elements in order: scale in the low nibble, minimum in the high
/// one. Each half `n` of 128 elements is four runs `k` of 32, whose codes are bits `2 * k` of
/// `qs[32 * n + l]`.
pub(crate) fn q2_k(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 84], out: &mut [f32; 256]| {
        let (scales, qs) = (&block[..16], &block[16..80]);
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (n, k) in [0, 1].into_iter().flat_map(|n| (0..4).map(move |k| (n, k))) {
            for l in 0..32 {
                let e = 128 * n + 32 * k + l;
                let packed = scales[e / 16];
                let (scale, m) = (d * f32::from(packed & 0x0f), dmin * f32::from(packed >> 4));
                out[e] = scale * f32::from(qs[32 * n + l] >> (2 * k) & 0x03) - m;
            }
        }
    });
}

/// The 6-bit scale, less 32, of the 16 elements `i` (0..16) of Q3_K: low four bits in nibbles of
/// `packed[0 .. 8]` (low nibbles first), upper two in `packed[8 .. 12]`, bits `2 * (i / 4)` of byte
/// `i % 4`.
#[inline]
fn q3_k_scale(packed: &[u8], i: usize) -> i8 {
    let low = packed[i % 8] >> (4 * (i / 8)) & 0x0f;
    let high = packed[8 + i % 4] >> (2 * (i / 4)) & 0x03;
    (low | high << 4) as i8 - 32
}

/// Q3_K, 110 bytes: `hmask[32]`, `qs[64]`, `scales[12]`, `d`; element is `d * scale * code`.
///
/// The low two bits of a code lie as in Q2_K. Bit `4 * n + k` of `hmask[l]` is its third bit
/// inverted in meaning: where it is *clear*, 4 is subtracted.
pub(crate) fn q3_k(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 110], out: &mut [f32; 256]| {
        let (hmask, qs, scales) = (&block[..32], &block[32..96], &block[96..108]);
        let d = f16_at(block, 108);
        for (n, k) in [0, 1].into_iter().flat_map(|n| (0..4).map(move |k| (n, k))) {
            for l in 0..32 {
                let e = 128 * n + 32 * k + l;
                let low = (qs[32 * n + l] >> (2 * k) & 0x03) as i8;
                let offset = if hmask[l] >> (4 * n + k) & 1 == 0 {
                    4
                } else {
                    0
                };
                let scale = d * f32::from(q3_k_scale(scales, e / 16));
                out[e] = scale * f32::from(low - offset);
            }
        }
    });
}

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

/// Q8_K, 292 bytes: `d` (f32), `i8 qs[256]`, i16 `bsums[16]`; element is `d * q`.
///
/// A format of activations: `bsums`, the sums of 16 codes each, serve dot products with types that
/// have minima, and are not needed here.
pub(crate) fn q8_k(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 292], out: &mut [f32; 256]| {
        let d = f32::from_bits(u32_at(block, 0));
        for (x, &q) in out.iter_mut().zip(&block[4..260]) {
            *x = d * f32::from(q as i8);
        }
    });
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::q8_k;

    /// gguf-py does not decode this type, so this block is made by hand from the layout.
    #[test]
    fn q8_k_takes_its_f32_scale_and_passes_over_the_sums() {
        let mut block = [0xaa; 292];
        block[..4].copy_from_slice(&0.375f32.to_le_bytes());
        for j in 0..256 {
            block[4 + j] = j as u8; // 0, 1, ... 127, -128, ... -1
        }
        let mut out = [f32::NAN; 256];
        q8_k(&block, &mut out);
        assert_eq!(out[..4], [0.0, 0.375, 0.75, 1.125]);
        assert_eq!((out[127], out[128], out[255]), (47.625, -48.0, -0.375));
    }

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
