//! The 32-element block formats without sub-scales: Q8_0, Q4_0, Q5_0.
//!
//! Each block is an f16 scale `d` and the codes. In the 4- and 5-bit types, byte `j` of `qs` holds
//! element `j` in its low nibble and element `j + 16` in its high nibble. Layouts: `block_q8_0`,
//! `block_q4_0`, `block_q5_0` in ggml's `ggml-common.h`; order of the float operations:
//! `gguf/quants.py` of gguf-py 0.19.0.

use crate::blocks::{each_block, f16_at};

/// Q8_0, 34 bytes: `d`, `i8 q[32]`; element `j` is `d * q[j]`.
pub(crate) fn q8_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 34], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for j in 0..32 {
            out[j] = d * f32::from(block[2 + j] as i8);
        }
    });
}

/// Q4_0, 18 bytes: `d`, `qs[16]`; element is `d * (nibble - 8)`.
pub(crate) fn q4_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 18], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for j in 0..16 {
            let q = block[2 + j];
            out[j] = d * f32::from((q & 0x0f) as i8 - 8);
            out[j + 16] = d * f32::from((q >> 4) as i8 - 8);
        }
    });
}

/// Q5_0, 22 bytes: `d`, `qh` (u32, bit `j` is the fifth bit of element `j`), `qs[16]`; element is
/// `d * (code - 16)`.
pub(crate) fn q5_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 22], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        let qh = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let fifth_bit = |j: usize| ((qh >> j) as u8 & 1) << 4;
        for j in 0..16 {
            let q = block[6 + j];
            out[j] = d * f32::from((q & 0x0f | fifth_bit(j)) as i8 - 16);
            out[j + 16] = d * f32::from((q >> 4 | fifth_bit(j + 16)) as i8 - 16);
        }
    });
}
