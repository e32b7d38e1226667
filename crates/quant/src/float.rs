//! Types that store each element on its own: F32, F16, BF16. Widening is exact, so these are moves
//! of bits.

use half::{bf16, f16};

use crate::blocks::each_block;

pub(crate) fn f32(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |bytes: &[u8; 4], out: &mut [f32; 1]| {
        out[0] = f32::from_le_bytes(*bytes)
    });
}

pub(crate) fn f16(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |bytes: &[u8; 2], out: &mut [f32; 1]| {
        out[0] = f16::from_le_bytes(*bytes).to_f32()
    });
}

pub(crate) fn bf16(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |bytes: &[u8; 2], out: &mut [f32; 1]| {
        out[0] = bf16::from_le_bytes(*bytes).to_f32()
    });
}
