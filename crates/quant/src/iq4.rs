//! The 4-bit types whose codes name a level: IQ4_NL, IQ4_XS.
//!
//! Layouts: `block_iq4_nl`, `block_iq4_xs` in ggml's `ggml-common.h`; order of the float
//! operations: `gguf/quants.py` of gguf-py 0.19.0.

use crate::{
    blocks::{each_block, f16_at, u16_at},
    tables::IQ4_LEVELS,
};

/// IQ4_NL, 18 bytes: `d`, `qs[16]`, nibbles in the order of Q4_0; element is `d *
/// IQ4_LEVELS[nibble]`.
pub(crate) fn iq4_nl(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 18], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for j in 0..16 {
            let q = block[2 + j];
            out[j] = d * f32::from(IQ4_LEVELS[usize::from(q & 0x0f)]);
            out[j + 16] = d * f32::from(IQ4_LEVELS[usize::from(q >> 4)]);
        }
    });
}

/// IQ4_XS, 136 bytes: `d`, `scales_h` (u16), `scales_l[4]`, `qs[128]`; element is `d * (scale - 32)
/// * IQ4_LEVELS[nibble]`.
///
/// Sub-block `i` of 32 elements takes the low four bits of its scale from nibble `i` of `scales_l`
/// and the upper two from bits `2 * i` of `scales_h`; bytes `16 * i ..` of `qs` hold it as IQ4_NL
/// does.
pub(crate) fn iq4_xs(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 136], out: &mut [f32; 256]| {
        let (d, scales_h) = (f16_at(block, 0), u16_at(block, 2));
        let (scales_l, qs) = (&block[4..8], &block[8..136]);
        for i in 0..8 {
            let low = scales_l[i / 2] >> (4 * (i % 2)) & 0x0f;
            let high = (scales_h >> (2 * i)) as u8 & 0x03;
            let scale = d * f32::from((low | high << 4) as i8 - 32);
            for j in 0..16 {
                let q = qs[16 * i + j];
                out[32 * i + j] = scale * f32::from(IQ4_LEVELS[usize::from(q & 0x0f)]);
                out[32 * i + 16 + j] = scale * f32::from(IQ4_LEVELS[usize::from(q >> 4)]);
            }
        }
    });
}
