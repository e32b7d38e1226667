//! IQ4_NL and IQ4_XS: the levels are not evenly spaced, so the best scale does not follow from the
//! extremes; a few candidates are tried.
//!
//! The error of 32 elements, each weighted by its own square (large weights matter more), is `Σ w (x
//! - d q)²`. Candidate scales come from placing the largest element a little beyond, at, or before
//! the outermost level; the winner's fitted scale chooses the levels anew. IQ4_XS does this for each
//! sub-block, and makes 6-bit integers of the scales of a super-block. An importance weight `v`
//! makes `w = v sqrt(σ² + x²)`, where `σ²` is twice the variance of the block.
//!
//! Source: `quantize_row_iq4_nl_impl` of ggml (`ggml-quants.c`, MIT) with 7 tries to either side, as
//! `ggml_quantize_chunk` calls it; the order of the float operations is the same, so the bytes are.

use super::{
    Encoded, Weights, check_magnitude, each_weighted_block, f16_bytes, pack_nibbles,
    search::{MIN_MAGNITUDE, best_scale, extreme, nearest, sum_of_squares},
};
use crate::tables::IQ4_LEVELS;

/// Candidates to either side of the outermost level.
const TRIES: i8 = 7;

/// Half-way points between neighbouring levels. A number there goes to the upper one.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        midpoints[i] = (IQ4_LEVELS[i] as f32 + IQ4_LEVELS[i + 1] as f32) / 2.0;
        i += 1;
    }
    midpoints
};

/// The code whose level is nearest to `x`; of two equally near ones the upper.
fn nearest_code(x: f32) -> u8 {
    MIDPOINTS
        .iter()
        .map(|&midpoint| u8::from(x >= midpoint))
        .sum()
}

/// That code's level, by steps from the lowest: without a table this vectorises.
#[inline(always)]
fn nearest_level(x: f32) -> f32 {
    let mut level = f32::from(IQ4_LEVELS[0]);
    for (i, &midpoint) in MIDPOINTS.iter().enumerate() {
        let step = f32::from(IQ4_LEVELS[i + 1] - IQ4_LEVELS[i]);
        level += if x >= midpoint { step } else { 0.0 };
    }
    level
}

/// What the elements of a run count: with importance weights, `sigma2` goes into it.
fn element_weights(x: &[f32; 32], weights: Option<&[f32; 32]>, sigma2: f32) -> [f32; 32] {
    match weights {
        Some(v) => std::array::from_fn(|j| v[j] * (sigma2 + x[j] * x[j]).sqrt()),
        None => x.map(|x| x * x),
    }
}

/// The best scale that was found; 0 for a run of (nearly) zeros.
fn search(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < MIN_MAGNITUDE {
        return 0.0;
    }
    let outermost = f32::from(IQ4_LEVELS[0]);
    let (scale, _) = best_scale(
        x,
        w,
        2 + 2 * TRIES as usize,
        |t| match t {
            // The first candidate has the extreme on the other side, where the levels end earlier.
            0 => 1.0 / (-extreme / outermost),
            _ => ((t as f32 - 1.0 - f32::from(TRIES)) + outermost) / extreme,
        },
        |inverse, x, w| {
            let q = nearest_level(inverse * x);
            (w * q * x, w * q * q)
        },
    );
    scale
}

/// IQ4_NL: an f16 scale for 32 elements.
pub(crate) fn iq4_nl(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(src, weights, dst, |x, weights, block: &mut [u8; 18]| {
        check_magnitude(x)?;
        let sigma2 = sum_of_squares(x) * (2.0 / 32.0);
        let d = search(x, &element_weights(x, weights, sigma2));
        block[..2].copy_from_slice(&f16_bytes(d)?);
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        pack_nibbles(&x.map(|x| nearest_code(id * x)), &mut block[2..]);
        Ok(())
    })
}

/// IQ4_XS: eight sub-blocks of 32, whose scales are 6-bit integers times one f16.
pub(crate) fn iq4_xs(src: &[f32], weights: Weights<'_>, dst: &mut [u8]) -> Encoded {
    each_weighted_block(
        src,
        weights,
        dst,
        |x: &[f32; 256], weights, block: &mut [u8; 136]| {
            check_magnitude(x)?;
            let sigma2 = sum_of_squares(x) * (2.0 / 256.0);
            let (runs, _) = x.as_chunks::<32>();
            let scales: [f32; 8] = std::array::from_fn(|i| {
                let weights = weights.map(|weights| &weights.as_chunks().0[i]);
                search(&runs[i], &element_weights(&runs[i], weights, sigma2))
            });
            let d = -extreme(&scales) / 32.0;
            let id = if d == 0.0 { 0.0 } else { 1.0 / d };
            block[..2].copy_from_slice(&f16_bytes(d)?);
            let (mut low, mut high) = ([0u8; 4], 0u16);
            for (i, x) in runs.iter().enumerate() {
                let integer = nearest(id * scales[i], -32.0, 31.0);
                let scale = d * integer;
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                let codes = x.map(|x| nearest_code(inverse * x));
                pack_nibbles(&codes, &mut block[8 + 16 * i..][..16]);
                let stored = (integer + 32.0) as u8;
                low[i / 2] |= (stored & 0x0f) << (4 * (i % 2));
                high |= u16::from(stored >> 4) << (2 * i);
            }
            block[2..4].copy_from_slice(&high.to_le_bytes());
            block[4..8].copy_from_slice(&low);
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_code_is_the_nearest() {
        for i in -1300..=1300 {
            let x = i as f32 / 10.0;
            let code = nearest_code(x);
            let distance = |code: u8| (f32::from(IQ4_LEVELS[usize::from(code)]) - x).abs();
            assert!(
                (0..16).all(|other| distance(code) <= distance(other)),
                "{x}: {code}"
            );
            assert_eq!(nearest_level(x), f32::from(IQ4_LEVELS[usize::from(code)]));
        }
    }

    #[test]
    fn halfway_goes_up() {
        assert_eq!(nearest_code(-115.5), 1); // between -127 and -104
        assert_eq!(nearest_code(7.0), 9); // between 1 and 13
        assert_eq!(nearest_code(101.0), 15); // between 89 and 113
        assert_eq!((nearest_code(-1e9), nearest_code(1e9)), (0, 15));
    }
}
