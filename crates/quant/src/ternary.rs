//! Types with three levels, -1, 0 and 1: TQ1_0, TQ2_0.
//!
//! Layouts: `block_tq1_0`, `block_tq2_0` in ggml's `ggml-common.h`; order of the float operations:
//! `gguf/quants.py` of gguf-py 0.19.0.

use crate::blocks::{each_block, f16_at};

/// Five base-3 digits in a byte of TQ1_0, most significant first.
const POWERS_OF_3: [u8; 5] = [1, 3, 9, 27, 81];

/// TQ1_0, 54 bytes: `qs[48]`, `qh[4]`, `d`; element is `d * (digit - 1)`.
///
/// A byte holds digits of a fraction below 1 in 256ths (rounded up): multiplying by `3^t` and
/// dropping what overflows brings digit `t` to the front. In order come the five digits of `qs[0 ..
/// 32]`, those of `qs[32 .. 48]`, and four of `qh`; within a part, digit 0 of all bytes is first.
pub(crate) fn tq1_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 54], out: &mut [f32; 256]| {
        let d = f16_at(block, 52);
        let parts = [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)];
        let digits = parts.into_iter().flat_map(|(bytes, n)| {
            let powers = &POWERS_OF_3[..n];
            powers
                .iter()
                .flat_map(move |&power| bytes.iter().map(move |&byte| (byte, power)))
        });
        for (x, (byte, power)) in out.iter_mut().zip(digits) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *x = d * f32::from(digit as i8 - 1);
        }
    });
}

/// TQ2_0, 66 bytes: `qs[64]`, `d`; element is `d * (code - 1)` (code 3, which no encoder writes, is
/// 2).
///
/// Each half `n` of 128 elements is four runs `k` of 32: bits `2 * k` of `qs[32 * n + l]`.
pub(crate) fn tq2_0(src: &[u8], dst: &mut [f32]) {
    each_block(src, dst, |block: &[u8; 66], out: &mut [f32; 256]| {
        let d = f16_at(block, 64);
        for (e, x) in out.iter_mut().enumerate() {
            let (n, k, l) = (e / 128, e / 32 % 4, e % 32);
            let code = block[32 * n + l] >> (2 * k) & 0x03;
            *x = d * f32::from(code as i8 - 1);
        }
    });
}
