//! The "importance" types that look their values up in a table: IQ4_NL.
//!
//! Layout: `block_iq4_nl` in ggml's `ggml-common.h`; order of the float operations:
//! `gguf/quants.py` of gguf-py 0.19.0.

use crate::blocks::{each_block, f16_at};

/// The sixteen levels of the IQ4 types: denser near zero, where most weights are.
const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

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
