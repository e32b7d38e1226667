//! The 32-element block formats without sub-scales: Q8_0, Q8_1, Q4_0, Q4_1, Q5_0, Q5_1.
//!
//! Each block is an f16 scale `d`, in the `_1` types a second f16, and the codes. In the 4- and
//! 5-bit types, byte `j` of `qs` holds element `j` in its low nibble and element `j + 16` in its
//! high nibble. Layouts: `block_q8_0` and its kin in ggml's `ggml-common.h`; order of the float
//! operations: `gguf/quants.py` of gguf-py 0.19.0 (which does not decode Q8_1).

use crate::blocks::{each_block, f16_at, u32_at};

/// Q8_0, 34 bytes: `d`, `i8 q[32]`; element `j` is `d * q[j]`.
pub(crate) fn q8_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 34], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for j in 0..32 {
            out[j] = d * f32::from(block[2 + j] as i8);
        }
    });
}

/// Q8_1, 36 bytes: `d`, `s`, `i8 q[32]`; element `j` is `d * q[j]`.
///
/// A format of activations: `s`, which is `d` times the sum of `q`, saves the other factor of a dot
/// product the sum, and is not needed here.
pub(crate) fn q8_1(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 36], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for j in 0..32 {
            out[j] = d * f32::from(block[4 + j] as i8);
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

/// Q4_1, 20 bytes: `d`, `m`, `qs[16]`; element is `d * nibble + m`.
pub(crate) fn q4_1(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 20], out: &mut [f32; 32]| {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for j in 0..16 {
            let q = block[4 + j];
            out[j] = d * f32::from(q & 0x0f) + m;
            out[j + 16] = d * f32::from(q >> 4) + m;
        }
    });
}

/// The bit that `qh` adds to the nibble of element `j`.
#[inline]
fn fifth_bit(qh: u32, j: usize) -> u8 {
    ((qh >> j) as u8 & 1) << 4
}

/// Q5_0, 22 bytes: `d`, `qh` (u32, bit `j` is the fifth bit of element `j`), `qs[16]`; element is
/// `d * (code - 16)`.
pub(crate) fn q5_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 22], out: &mut [f32; 32]| {
        let (d, qh) = (f16_at(block, 0), u32_at(block, 2));
        for j in 0..16 {
            let q = block[6 + j];
            out[j] = d * f32::from((q & 0x0f | fifth_bit(qh, j)) as i8 - 16);
            out[j + 16] = d * f32::from((q >> 4 | fifth_bit(qh, j + 16)) as i8 - 16);
        }
    });
}

/// Q5_1, 24 bytes: `d`, `m`, `qh`, `qs[16]` as in Q5_0; element is `d * code + m`.
pub(crate) fn q5_1(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 24], out: &mut [f32; 32]| {
        let (d, m, qh) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        for j in 0..16 {
            let q = block[8 + j];
            out[j] = d * f32::from(q & 0x0f | fifth_bit(qh, j)) + m;
            out[j + 16] = d * f32::from(q >> 4 | fifth_bit(qh, j + 16)) + m;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// gguf-py does not decode this type, so these blocks are made by hand from the layout.
    #[test]
    fn q8_1_takes_its_scale_and_passes_over_the_sum() {
        let mut blocks = [0u8; 72];
        blocks[..4].copy_from_slice(&[0x00, 0x38, 0x00, 0xc2]); // d = 0.5, s = -3
        for j in 0..32 {
            blocks[4 + j] = (5 * j as i32 - 128) as i8 as u8; // -128, -123, ... 27
        }
        blocks[36..40].copy_from_slice(&[0x01, 0x80, 0xff, 0xff]); // d = -2^-24, s is a NaN
        blocks[40] = 0x7f;
        blocks[71] = 0x80;

        let mut out = [f32::NAN; 64];
        q8_1(&blocks, &mut out);
        for (j, x) in out[..32].iter().enumerate() {
            assert_eq!(*x, 0.5 * (5.0 * j as f32 - 128.0), "{j}");
        }
        let smallest = 0.5f32.powi(24);
        assert_eq!(
            (out[32], out[33], out[63]),
            (-127.0 * smallest, 0.0, 128.0 * smallest)
        );
    }
}
