//! Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: the scale follows from the extremes, then each element goes to its
//! nearest code.
//!
//! The order of the float operations is that of `quantize_blocks` in gguf-py 0.19.0
//! (`gguf/quants.py`), which also is that of ggml's `quantize_row_q8_0_ref` and its kin. Codes are
//! made with the scale in f32, before it is rounded to f16.

use super::{Encoded, TooLarge, each_block, f16_bytes, pack_nibbles};

/// `1 / d`, and 0 where that is none: the codes are those of zero then.
///
/// That an inverse overflows takes a scale below 2^-128. An f16 cannot hold it, so whatever the
/// codes are, the block decodes to zeros (and gguf-py's codes depend on the processor).
pub(super) fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Q8_0: the largest magnitude becomes 127; halves round away from zero.
pub(crate) fn q8_0(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 34]| {
        let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        let d = amax / 127.0;
        let id = inverse(d);
        block[..2].copy_from_slice(&f16_bytes(d)?);
        for j in 0..32 {
            block[2 + j] = (x[j] * id).round() as i8 as u8;
        }
        Ok(())
    })
}

/// The element of largest magnitude, sign and all; the first of several.
fn extreme(x: &[f32; 32]) -> f32 {
    x.iter()
        .fold(x[0], |max, &x| if x.abs() > max.abs() { x } else { max })
}

/// Scale and codes of a type without minimum, whose codes 0 to `2 * half - 1` stand for `-half` to
/// `half - 1` scales. The extreme becomes code 0, so that the longer side is used.
fn around_zero(x: &[f32; 32], half: u8) -> (f32, [u8; 32]) {
    let d = extreme(x) / -f32::from(half);
    let id = inverse(d);
    let to_code = f32::from(half) + 0.5; // rounds to nearest when the fraction is cut off
    let codes = x.map(|x| ((x * id + to_code) as u8).min(2 * half - 1));
    (d, codes)
}

/// Scale, minimum and codes 0 to `steps` of a type with a minimum.
fn above_minimum(x: &[f32; 32], steps: u8) -> (f32, f32, [u8; 32]) {
    let (min, max) = x.iter().fold((x[0], x[0]), |(min, max), &x| {
        (if x < min { x } else { min }, if x > max { x } else { max })
    });
    let d = (max - min) / f32::from(steps);
    let id = inverse(d);
    let codes = x.map(|x| (((x - min) * id + 0.5) as u8).min(steps));
    (d, min, codes)
}

/// The fifth bits of all codes, element `j` in bit `j`, and what is left: the nibbles.
fn split_fifth_bit(codes: [u8; 32]) -> ([u8; 4], [u8; 32]) {
    let qh = codes
        .iter()
        .enumerate()
        .fold(0, |qh, (j, code)| qh | u32::from(code >> 4) << j);
    (qh.to_le_bytes(), codes.map(|code| code & 0x0f))
}

/// Q4_0: 16 codes, the extreme is code 0 (-8 scales).
pub(crate) fn q4_0(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 18]| {
        let (d, codes) = around_zero(x, 8);
        block[..2].copy_from_slice(&f16_bytes(d)?);
        pack_nibbles(&codes, &mut block[2..]);
        Ok(())
    })
}

/// Q5_0: 32 codes, the extreme is code 0 (-16 scales).
pub(crate) fn q5_0(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 22]| {
        let (d, codes) = around_zero(x, 16);
        let (qh, nibbles) = split_fifth_bit(codes);
        block[..2].copy_from_slice(&f16_bytes(d)?);
        block[2..6].copy_from_slice(&qh);
        pack_nibbles(&nibbles, &mut block[6..]);
        Ok(())
    })
}

/// Q4_1: 15 steps from the minimum to the maximum.
pub(crate) fn q4_1(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 20]| {
        let (d, min, codes) = above_minimum(x, 15);
        scale_and_min(d, min, block)?;
        pack_nibbles(&codes, &mut block[4..]);
        Ok(())
    })
}

/// Q5_1: 31 steps from the minimum to the maximum.
pub(crate) fn q5_1(src: &[f32], dst: &mut [u8]) -> Encoded {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 24]| {
        let (d, min, codes) = above_minimum(x, 31);
        let (qh, nibbles) = split_fifth_bit(codes);
        scale_and_min(d, min, block)?;
        block[4..8].copy_from_slice(&qh);
        pack_nibbles(&nibbles, &mut block[8..]);
        Ok(())
    })
}

fn scale_and_min(d: f32, min: f32, block: &mut [u8]) -> Result<(), TooLarge> {
    block[..2].copy_from_slice(&f16_bytes(d)?);
    block[2..4].copy_from_slice(&f16_bytes(min)?);
    Ok(())
}
