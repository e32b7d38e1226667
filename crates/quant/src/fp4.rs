//! Blocks of 4-bit floats (E2M1) with an 8-bit float as scale: MXFP4, NVFP4.
//!
//! The levels are kept doubled, as integers, so each scale here is half of what its byte says. All
//! operations are exact, but for MXFP4 scales at the two ends of f32. Layouts: `block_mxfp4`,
//! `block_nvfp4` in ggml's `ggml-common.h`; values: `gguf/quants.py` of gguf-py 0.19.0; MXFP4 is
//! the format of the Open Compute Project's "Microscaling Formats (MX) v1.0".

use crate::{blocks::each_block, tables::FP4_LEVELS};

#[inline]
fn level(nibble: u8) -> f32 {
    f32::from(FP4_LEVELS[usize::from(nibble)])
}

/// MXFP4, 17 bytes: `e`, `qs[16]`, nibbles in the order of Q4_0; element is `2^(e - 128) *
/// FP4_LEVELS[nibble]`.
///
/// The specification makes `e = 255` a NaN; gguf-py and ggml make it `2^127`, and so do we.
pub(crate) fn mxfp4(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 17], out: &mut [f32; 32]| {
        let scale = half_e8m0(block[0]);
        for j in 0..16 {
            let q = block[1 + j];
            out[j] = scale * level(q & 0x0f);
            out[j + 16] = scale * level(q >> 4);
        }
    });
}

/// `2^(e - 128)`: half of what an E8M0 says. The two smallest are subnormal.
#[inline]
pub(crate) fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}

/// NVFP4, 36 bytes of 64 elements: four scales (UE4M3), `qs[32]`; element is `scale *
/// FP4_LEVELS[nibble]`.
///
/// Sub-block `s` of 16 elements has scale `s` and bytes `8 * s ..` of `qs`: elements 0..8 in the
/// low nibbles, 8..16 in the high ones. A tensor of this type may come with a factor of its own (an
/// f32 tensor whose name ends in `.scale`), of which a block knows nothing.
pub(crate) fn nvfp4(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 36], out: &mut [f32; 64]| {
        let (scales, qs) = (&block[..4], &block[4..36]);
        for s in 0..4 {
            let scale = half_ue4m3(scales[s]);
            for k in 0..8 {
                let q = qs[8 * s + k];
                out[16 * s + k] = scale * level(q & 0x0f);
                out[16 * s + 8 + k] = scale * level(q >> 4);
            }
        }
    });
}

/// Half of what an unsigned E4M3 (bias 7) says. 0x7f, its NaN, is 0, as in gguf-py and ggml. The
/// eighth bit is ignored, except that 0xff is then a number.
#[inline]
pub(crate) fn half_ue4m3(x: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(x >> 3 & 0x0f), f32::from(x & 0x07));
    match (x, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * (1.0 / 1024.0),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 127 - 7 - 1) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_half_of_what_their_bytes_say() {
        let e8m0 = [
            (0, -128),
            (1, -127),
            (2, -126),
            (127, -1),
            (128, 0),
            (254, 126),
            (255, 127),
        ];
        for (e, exponent) in e8m0 {
            assert_eq!(f64::from(half_e8m0(e)), 2f64.powi(exponent), "{e}");
        }
        let ue4m3 = [
            (0x00, 0.0),
            (0x01, 0.5f32.powi(10)),
            (0x08, 0.5f32.powi(7)),
            (0x38, 0.5),
            (0x3c, 0.75),
            (0x7e, 224.0),
            (0x7f, 0.0),
            (0xb8, 0.5),
        ];
        for (x, value) in ue4m3 {
            assert_eq!(half_ue4m3(x), value, "{x:#x}");
        }
    }
}
