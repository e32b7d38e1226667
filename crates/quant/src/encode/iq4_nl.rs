//! IQ4_NL: the levels are not evenly spaced, so the best scale does not follow from the extremes; a
//! few candidates are tried.
//!
//! The error of a block, each element weighted by its own square (large weights matter more), is
//! `Σ w (x - d q)²`. For given levels `q` the best scale is `d = Σ w q x / Σ w q²`, and the error is
//! then smaller the larger `(Σ w q x)² / Σ w q²` is. Candidate scales come from placing the largest
//! element a little beyond, at, or before the outermost level; each candidate fixes the levels, the
//! levels give the best scale, and the winner's scale chooses the levels anew.
//!
//! Source: `quantize_row_iq4_nl_impl` of ggml (`ggml-quants.c`, MIT) with 7 tries to either side and
//! no importance matrix, as `ggml_quantize_chunk` calls it; the order of the float operations is
//! the same, so the bytes are.

use super::{Refused, each_block, f16_bytes, pack_nibbles};
use crate::tables::IQ4_LEVELS;

/// Candidates to either side of the outermost level.
const TRIES: i8 = 7;

/// Blocks whose largest magnitude is below are zeros.
const MIN_MAGNITUDE: f32 = 1e-15;

/// The code whose level is nearest to `x`; of two equally near ones the upper.
fn nearest_level(x: f32) -> u8 {
    let above = IQ4_LEVELS.partition_point(|&level| f32::from(level) <= x);
    match above {
        0 => 0,
        16 => 15,
        _ => {
            let (low, high) = (
                f32::from(IQ4_LEVELS[above - 1]),
                f32::from(IQ4_LEVELS[above]),
            );
            let code = if x - low < high - x { above - 1 } else { above };
            code as u8 // at most 15
        }
    }
}

/// The sums that decide between candidates.
struct Fit {
    /// `Σ w q x`
    qx: f32,
    /// `Σ w q²`
    q2: f32,
}

/// Chooses levels for the elements times `id`, and sums up how well they can do.
fn fit(x: &[f32; 32], id: f32) -> Fit {
    let mut fit = Fit { qx: 0.0, q2: 0.0 };
    for &x in x {
        let q = f32::from(IQ4_LEVELS[usize::from(nearest_level(id * x))]);
        let w = x * x;
        fit.qx += w * q * x;
        fit.q2 += w * q * q;
    }
    fit
}

/// The best scale that was found; 0 for a block of (nearly) zeros.
fn best_scale(x: &[f32; 32]) -> f32 {
    let extreme = x
        .iter()
        .fold(0f32, |max, &x| if x.abs() > max.abs() { x } else { max });
    if extreme.abs() < MIN_MAGNITUDE {
        return 0.0;
    }
    let outermost = f32::from(IQ4_LEVELS[0]);
    // The first candidate has the extreme on the other side, where the levels end earlier.
    let first = fit(x, 1.0 / (-extreme / outermost));
    let mut d = first.qx / first.q2;
    let mut best = d * first.qx;
    for offset in -TRIES..=TRIES {
        let Fit { qx, q2 } = fit(x, (f32::from(offset) + outermost) / extreme);
        if q2 > 0.0 && qx * qx > best * q2 {
            d = qx / q2;
            best = d * qx;
        }
    }
    d
}

pub(crate) fn iq4_nl(src: &[f32], dst: &mut [u8]) -> Result<(), Refused> {
    each_block(src, dst, |x: &[f32; 32], block: &mut [u8; 18]| {
        let d = best_scale(x);
        block[..2].copy_from_slice(&f16_bytes(d)?);
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        pack_nibbles(&x.map(|x| nearest_level(id * x)), &mut block[2..]);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_level_is_the_nearest() {
        for i in -1300..=1300 {
            let x = i as f32 / 10.0;
            let code = nearest_level(x);
            let distance = |code: u8| (f32::from(IQ4_LEVELS[usize::from(code)]) - x).abs();
            assert!(
                (0..16).all(|other| distance(code) <= distance(other)),
                "{x}: {code}"
            );
        }
    }

    #[test]
    fn halfway_goes_up() {
        assert_eq!(nearest_level(-115.5), 1); // between -127 and -104
        assert_eq!(nearest_level(7.0), 9); // between 1 and 13
        assert_eq!(nearest_level(101.0), 15); // between 89 and 113
        assert_eq!((nearest_level(-1e9), nearest_level(1e9)), (0, 15));
    }
}
