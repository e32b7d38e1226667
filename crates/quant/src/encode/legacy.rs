//! Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: the scale follows from the extremes, then each element goes to its
//! nearest code. With importance weights all but Q8_0 look for the scale that serves the weighted
//! elements best.
//!
//! The order of the float operations is that of `quantize_blocks` in gguf-py 0.19.0
//! (`gguf/quants.py`), which also is that of ggml's `quantize_row_q8_0_ref` and its kin. Codes are
//! made with the scale in f32, before it is rounded to f16. With weights it is that of ggml's
//! `quantize_row_q4_0_impl` and its kin (`ggml-quants.c`, MIT).

use super::{
    Encoded, Refused, TooLarge, Weights, check_magnitude, each_block, each_weighted_block,
    f16_bytes, pack_nibbles,
    search::{Tries, affine, sum_of_squares, symmetric},
};

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

/// Calls `encode` for each block with what its elements count for, if there are weights: a column's
/// weight times `sqrt(σ² + x²)`, where `σ²` is the mean square of the whole row.
fn each_block_of_row<const BYTES: usize>(
    src: &[f32],
    weights: Weights<'_>,
    dst: &mut [u8],
    encode: impl Fn(&[f32; 32], Option<&[f32; 32]>, &mut [u8; BYTES]) -> Result<(), TooLarge>,
) -> Encoded {
    if weights.is_some() {
        // Every block depends on the whole row, but the one to blame is to be named.
        if let Some(element) = src.iter().position(|x| !x.is_finite()) {
            return Err(Refused::NotFinite { element });
        }
        for (i, x) in src.as_chunks::<32>().0.iter().enumerate() {
            check_magnitude(x).map_err(|TooLarge| Refused::Scale { first: 32 * i })?;
        }
    }
    let sigma2 = weights.map_or(0.0, |_| sum_of_squares(src) / src.len() as f32);
    each_weighted_block(src, weights, dst, |x: &[f32; 32], w, block| {
        let counts = |w: &[f32; 32]| -> [f32; 32] {
            std::array::from_fn(|j| w[j] * (sigma2 + x[j] * x[j]).sqrt())
        };
        encode(x, w.map(counts).as_ref(), block)
    })
}

/// As [`around_zero`], or the best fit.
fn scaled(x: &[f32; 32], counts: Option<&[f32; 32]>, half: u8) -> (f32, [u8; 32]) {
    match counts {
        Some(counts) => {
            let found = symmetric(x, counts, f32::from(half));
            (found.scale, found.codes)
        }
        None => around_zero(x, half),
    }
}

/// As [`above_minimum`], or the best fit; its minimum is not positive.
fn affine_or_extremes(
    x: &[f32; 32],
    counts: Option<&[f32; 32]>,
    steps: u8,
) -> (f32, f32, [u8; 32]) {
    const TRIES: Tries = Tries {
        first: -0.9,
        step: 0.05,
        count: 37,
    };
    match counts {
        Some(counts) => {
            let found = affine(x, counts, f32::from(steps), TRIES, |d| d * d);
            (found.scale, -found.min, found.codes)
        }
        None => above_minimum(x, steps),
    }
}

/// Q4_0: 16 codes, the extreme is code 0 (-8 scales).
pub(crate) fn q4_0(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_block_of_row(src, weights, dst, |x, counts, block: &mut [u8; 18]| {
        let (d, codes) = scaled(x, counts, 8);
        block[..2].copy_from_slice(&f16_bytes(d)?);
        pack_nibbles(&codes, &mut block[2..]);
        Ok(())
    })
}

/// Q5_0: 32 codes, the extreme is code 0 (-16 scales).
pub(crate) fn q5_0(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_block_of_row(src, weights, dst, |x, counts, block: &mut [u8; 22]| {
        let (d, codes) = scaled(x, counts, 16);
        let (qh, nibbles) = split_fifth_bit(codes);
        block[..2].copy_from_slice(&f16_bytes(d)?);
        block[2..6].copy_from_slice(&qh);
        pack_nibbles(&nibbles, &mut block[6..]);
        Ok(())
    })
}

/// Q4_1: 15 steps from the minimum to the maximum.
pub(crate) fn q4_1(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_block_of_row(src, weights, dst, |x, counts, block: &mut [u8; 20]| {
        let (d, min, codes) = affine_or_extremes(x, counts, 15);
        scale_and_min(d, min, block)?;
        pack_nibbles(&codes, &mut block[4..]);
        Ok(())
    })
}

/// Q5_1: 31 steps from the minimum to the maximum.
pub(crate) fn q5_1(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_block_of_row(src, weights, dst, |x, counts, block: &mut [u8; 24]| {
        let (d, min, codes) = affine_or_extremes(x, counts, 31);
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
